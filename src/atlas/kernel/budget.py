"""Budgets: what is reserved before an effect, what is settled after it, and how much a call may still use.

Everything here is pure. The ledger applies `check` inside the commit that records an intent, so that no two
processes can admit the same money; `grant` tells a driver beforehand how large a call it can afford. Events import the
data they carry from `hold`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import ROUND_FLOOR, Decimal
from typing import Final

import msgspec

from atlas.kernel.contract import Budget
from atlas.kernel.errors import BudgetBusy, BudgetRefused, LimitRefused
from atlas.kernel.event import Spend
from atlas.kernel.hold import Cap, Hold, Meter, Pool

__all__ = [
    "Balance",
    "Cap",
    "Grant",
    "Hold",
    "Meter",
    "Need",
    "Pool",
    "Quote",
    "Reservation",
    "Settlement",
    "Wait",
    "Warned",
    "agent_caps",
    "caps_at",
    "check",
    "day_at",
    "fleet_caps",
    "forecast",
    "grant",
    "in_full",
    "is_near",
    "meters_at",
    "micro_usd",
    "minute_at",
    "pool_of",
    "reached",
    "usd",
    "within_request",
]

MICRO: Final = 1_000_000
FLOOR_TOKENS: Final = 256
FLEET: Final = "fleet"
_WINDOW: Final = timedelta(days=7)
_HOURS: Final = 6


class Reservation(msgspec.Struct, frozen=True):
    """An effect that asks for money: admitted in the commit of its intent, under every one of `caps`, or not at all."""

    effect: str
    hold: Hold
    caps: tuple[Cap, ...] = ()


class Settlement(msgspec.Struct, frozen=True):
    """What an effect really used: added to the meters of its hold and to the run's and the day's totals.

    Without a model, here and in the hold, it moves the meters only: that is money a run was trusted with (by a mandate),
    not what it cost. A final one releases the hold. One that is not takes what it spent out of the hold and leaves the rest reserved.
    `cached_in` are the tokens read from the provider's cache (a part of `spend.tokens_in`), and `saved_micro_usd` what
    that saved.
    """

    effect: str
    spend: Spend
    model: str = ""
    is_estimated: bool = False
    is_final: bool = True
    cached_in: int = 0
    saved_micro_usd: int = 0


class Balance(msgspec.Struct, frozen=True):
    """How far the meters under a cap have gone."""

    spent_micro_usd: int = 0
    held_micro_usd: int = 0
    spent_tokens: int = 0
    held_tokens: int = 0

    def plus(self, spent_micro_usd: int, held_micro_usd: int, spent_tokens: int, held_tokens: int) -> Balance:
        """The balance after a change."""
        return Balance(
            self.spent_micro_usd + spent_micro_usd,
            self.held_micro_usd + held_micro_usd,
            self.spent_tokens + spent_tokens,
            self.held_tokens + held_tokens,
        )

    def debt(self, cap: Cap) -> int:
        """The micro-dollars by which providers billed more than the cap; what is reserved is no debt."""
        return max(0, self.spent_micro_usd - cap.micro_usd) if cap.micro_usd is not None else 0

    def debt_tokens(self, cap: Cap) -> int:
        """The tokens by which providers counted more than the cap."""
        return max(0, self.spent_tokens - cap.tokens) if cap.tokens is not None else 0

    def is_over(self, cap: Cap) -> bool:
        """Whether what is spent and reserved together passes the cap."""
        money, tokens = self.spent_micro_usd + self.held_micro_usd, self.spent_tokens + self.held_tokens
        return (cap.micro_usd is not None and money > cap.micro_usd) or (cap.tokens is not None and tokens > cap.tokens)


class Warned(msgspec.Struct, frozen=True):
    """An alert: what was spent under a cap has reached this fraction of it. Raised once in each period."""

    cap: str
    scope: str
    period: str
    fraction: float
    at_us: int


class Need(msgspec.Struct, frozen=True):
    """What a model call wants: the tokens it sends, and the longest answer it asks for."""

    tokens_in: int
    max_output_tokens: int


class Quote(msgspec.Struct, frozen=True):
    """What a call costs at most, in micro-dollars, given the limit of its answer; it never falls as that rises.

    `guessed`: the models whose price is not known, and for which the highest known one is taken.
    """

    cost: Callable[[int], int]
    guessed: tuple[str, ...] = ()

    def __call__(self, max_output_tokens: int) -> int:
        """The cost with that limit."""
        return self.cost(max_output_tokens)


class Grant(msgspec.Struct, frozen=True):
    """The call can be afforded with this output limit; the rest is what has to be reserved for it."""

    max_output_tokens: int
    micro_usd: int
    tokens: int


class Wait(msgspec.Struct, frozen=True):
    """Only what others have reserved under `cap` stands in the way."""

    cap: Cap
    message: str


def check(caps: Sequence[Cap], balances: Sequence[Balance], hold: Hold) -> None:
    """Admits the hold under every cap; else BudgetRefused, or BudgetBusy when only other reservations block it."""
    busy: str = ""
    for cap, balance in zip(caps, balances, strict=True):
        if not balance.plus(0, hold.micro_usd, 0, hold.tokens).is_over(cap):
            continue
        message = _told(cap, balance, hold.micro_usd, hold.tokens)
        if Balance(balance.spent_micro_usd + hold.micro_usd, 0, balance.spent_tokens + hold.tokens).is_over(cap):
            raise _refusal(message)
        busy = busy or message
    if busy:
        raise BudgetBusy(busy, hint="Wait until the calls under way have been settled.")


def grant(
    need: Need,
    cost: Callable[[int], int],
    caps: Sequence[Cap],
    balances: Sequence[Balance],
    floor: int = FLOOR_TOKENS,
) -> Grant | Wait | BudgetRefused:
    """The largest output limit that can be afforded, at most what is asked; below the floor nothing.

    `cost` says what the call costs at most in micro-dollars, given the output limit; it never falls as that rises.
    """
    floor = min(floor, need.max_output_tokens)

    def blocking(output: int, *, is_alone: bool) -> tuple[Cap, Balance] | None:
        money, tokens = cost(output), need.tokens_in + output
        for cap, balance in zip(caps, balances, strict=True):
            held = (0, 0) if is_alone else (balance.held_micro_usd, balance.held_tokens)
            after = Balance(balance.spent_micro_usd + money, held[0], balance.spent_tokens + tokens, held[1])
            if after.is_over(cap):
                return cap, balance
        return None

    now = blocking(floor, is_alone=False)
    if now is not None:
        ever = blocking(floor, is_alone=True)
        cap, balance = ever or now
        message = _told(cap, balance, cost(floor), need.tokens_in + floor)
        return Wait(cap, message) if ever is None else _refusal(message)
    low, high = floor, need.max_output_tokens
    while low < high:  # the full answer is tried first: that is nearly always what can be afforded
        middle = high if low == floor and high == need.max_output_tokens else (low + high + 1) // 2
        if blocking(middle, is_alone=False) is None:
            low = middle
        else:
            high = middle - 1
    return Grant(low, cost(low), need.tokens_in + low)


def within_request(need: Need, tokens_per_request: int | None, floor: int = FLOOR_TOKENS) -> Need:
    """The need cut to the limit of one request; LimitRefused when not even the floor is left for the answer."""
    if tokens_per_request is None:
        return need
    output = min(need.max_output_tokens, tokens_per_request - need.tokens_in)
    if output < min(floor, need.max_output_tokens):
        raise LimitRefused(
            f"the request has {need.tokens_in:,} tokens and one request may have {tokens_per_request:,} with its answer",
            hint="Raise budget.tokens_per_request, or lower context.max_tokens.",
            code="tokens_per_request",
        )
    return Need(need.tokens_in, output)


def caps_at(
    at_us: int,
    zone: tzinfo,
    *,
    fleet: Budget,
    contract: Budget,
    agent: str,
    principal: str,
    pools: Sequence[Pool] = (),
    raised_micro_usd: int = 0,
) -> tuple[Cap, ...]:
    """Every cap an effect is under at that time, smallest scope first; each on money raised by what was granted extra."""
    caps = (
        *(
            Cap(f"tree {pool.run_id}", pool.scope, "", "", pool.micro_usd, pool.tokens, pool.warn_at)
            for pool in reversed(pools)
        ),
        *agent_caps(at_us, zone, contract, agent, principal),
        *fleet_caps(at_us, zone, fleet),
    )
    if not raised_micro_usd:
        return caps
    return tuple(
        cap if cap.micro_usd is None else msgspec.structs.replace(cap, micro_usd=cap.micro_usd + raised_micro_usd)
        for cap in caps
    )


def fleet_caps(at_us: int, zone: tzinfo, budget: Budget) -> tuple[Cap, ...]:
    """The caps on periods for everything in the vault together."""
    return _period_caps(at_us, zone, budget, FLEET, FLEET)


def agent_caps(at_us: int, zone: tzinfo, budget: Budget, agent: str, principal: str) -> tuple[Cap, ...]:
    """The caps on periods for what one principal does with one agent."""
    return _period_caps(at_us, zone, budget, f"agent {agent} of {principal}", _agent_scope(agent, principal))


def meters_at(at_us: int, zone: tzinfo, *, agent: str, principal: str, pools: Sequence[Pool] = ()) -> tuple[Meter, ...]:
    """Every meter an effect counts on at that time, in one order everywhere.

    The periods are counted whether or not there is a cap on them, so that one written later finds the past.
    """
    day, hour = day_at(at_us, zone), _hour_of(_utc(at_us))
    mine = _agent_scope(agent, principal)
    periods = [Meter(FLEET, day), Meter(mine, day), Meter(f"hour/{FLEET}", hour), Meter(f"hour/{mine}", hour)]
    return (*(Meter(pool.scope) for pool in pools), *periods)


def pool_of(run_id: str, budgets: Sequence[Budget], usd_given: float | None = None) -> Pool | None:
    """The pool of a run under these budgets and what it was given when it was submitted; None without any cap."""
    money = [budget.usd_per_run for budget in budgets if budget.usd_per_run is not None]
    money += [] if usd_given is None else [usd_given]
    tokens = [budget.tokens_per_run for budget in budgets if budget.tokens_per_run is not None]
    if not money and not tokens:
        return None
    warn_at = tuple(sorted({fraction for budget in budgets for fraction in budget.warn_at}))
    return Pool(run_id, micro_usd(min(money)) if money else None, min(tokens, default=None), warn_at)


def in_full(effect: str, hold: Hold) -> Settlement:
    """The settlement of a call of which nobody knows what it used: everything it had reserved, marked estimated."""
    tokens_out = min(hold.max_output_tokens, hold.tokens)
    spend = Spend(tokens_in=hold.tokens - tokens_out, tokens_out=tokens_out, cost_micro_usd=hold.micro_usd)
    return Settlement(effect, spend, hold.model, is_estimated=True)


def is_near(cap: Cap, balance: Balance, hold: Hold) -> bool:
    """Whether a threshold may be reached once this hold and all the others are settled.

    When a settlement passes a threshold, the last admission before it saw all of that reserved; so at least that call
    looks when it is settled.
    """
    if not cap.warn_at:
        return False
    money = balance.spent_micro_usd + balance.held_micro_usd + hold.micro_usd
    return bool(reached(cap, Balance(money, 0, balance.spent_tokens + balance.held_tokens + hold.tokens)))


def reached(cap: Cap, balance: Balance) -> tuple[float, ...]:
    """The thresholds of the cap that what was spent has reached."""
    level = 0.0
    if cap.micro_usd is not None:
        level = balance.spent_micro_usd / cap.micro_usd if cap.micro_usd else float(balance.spent_micro_usd > 0)
    if cap.tokens:
        level = max(level, balance.spent_tokens / cap.tokens)
    return tuple(fraction for fraction in cap.warn_at if level >= fraction)


def forecast(spent: int, recent: int, recent_s: float, left_s: float) -> int:
    """What will have been spent at the end of a period when it goes on as it recently did."""
    return spent + (round(recent / recent_s * max(left_s, 0.0)) if recent_s > 0 else 0)


def day_at(at_us: int, zone: tzinfo) -> str:
    """The day in the zone, as YYYY-MM-DD."""
    return _utc(at_us).astimezone(zone).date().isoformat()


def minute_at(at_us: int) -> int:
    """The minute of a time. All times in one have the same caps and meters: in every zone a day begins with a minute."""
    return at_us // (60 * MICRO)


@functools.lru_cache(maxsize=256)
def micro_usd(amount: float) -> int:
    """Whole micro-dollars, rounded down; through the shortest decimal form, so that 0.1 means a tenth."""
    return int((Decimal(str(amount)) * MICRO).to_integral_value(ROUND_FLOOR))


def usd(micro: int) -> str:
    """An amount for people: at least two decimals, and as many as it has."""
    sign, micro = ("-", -micro) if micro < 0 else ("", micro)
    decimals = f"{micro % MICRO:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}${micro // MICRO:,}.{decimals}"


def _period_caps(at_us: int, zone: tzinfo, budget: Budget, name: str, scope: str) -> tuple[Cap, ...]:
    now = _utc(at_us)
    day = now.astimezone(zone).date().isoformat()
    caps: list[Cap] = []

    def add(key: str, amount: float | None, scope: str, first: str, last: str) -> None:
        if amount is not None:
            caps.append(Cap(f"{name} {key}", scope, first, last, micro_usd(amount), None, budget.warn_at))

    add("usd_per_day", budget.usd_per_day, scope, day, day)
    # All of the six hours in which the window begins count, so that no seven days ever hold more than the cap. Hours
    # are those of UTC: a window has no zone, and a change of clocks must not repeat one.
    add("usd_per_7d", budget.usd_per_7d, f"hour/{scope}", _hour_of(now - _WINDOW), _hour_of(now))
    add("usd_per_month", budget.usd_per_month, scope, f"{day[:7]}-01", f"{day[:7]}-31")
    return tuple(caps)


def _agent_scope(agent: str, principal: str) -> str:
    # Unambiguous whatever a principal is called: the name of an agent holds no slash.
    return f"agent/{principal}/{agent}"


def _utc(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us // MICRO, UTC)


def _hour_of(moment: datetime) -> str:
    """The first of the six hours that the moment lies in: 29 of them make a window that rolls."""
    return f"{moment.isoformat()[:11]}{moment.hour - moment.hour % _HOURS:02d}"


def _told(cap: Cap, balance: Balance, asked_micro_usd: int, asked_tokens: int) -> str:
    """What stands against what under the dimension of the cap that does not hold."""
    money = balance.spent_micro_usd + balance.held_micro_usd + asked_micro_usd
    if cap.micro_usd is not None and money > cap.micro_usd:
        spent, held = usd(balance.spent_micro_usd), usd(balance.held_micro_usd)
        return (
            f"the cap {cap.name!r} allows {usd(cap.micro_usd)}: "
            f"{spent} spent, {held} reserved, {usd(asked_micro_usd)} asked"
        )
    return (
        f"the cap {cap.name!r} allows {cap.tokens or 0:,} tokens: "
        f"{balance.spent_tokens:,} spent, {balance.held_tokens:,} reserved, {asked_tokens:,} asked"
    )


def _refusal(message: str) -> BudgetRefused:
    return BudgetRefused(message, hint="Raise the cap, wait for the next period, or ask for less; see 'atlas budget'.")
