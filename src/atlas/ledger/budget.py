"""What a commit does to budgets, on any store: worked out whole before anything is written.

    plan         the batch's settlements, then its reservation under every cap -> Plan, or a refusal
    Plan         what changes: meters, holds, totals of the day and of the run, alerts

Commits exclude each other on every store, so what a plan read still holds when it is written. Its cost is that of
the caps and meters the effect names: nothing is ever counted again from the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from atlas.kernel.budget import Balance, Reservation, Settlement, Warned, check, in_full, is_near, reached
from atlas.kernel.errors import Fault
from atlas.kernel.event import NO_SPEND, Spend
from atlas.kernel.hold import Cap, Hold, Meter
from atlas.kernel.run import Append
from atlas.ledger.rule import utc_day

Sums = tuple[int, int, int, int]  # money spent and held, tokens spent and held

_ENCODER: Final = msgspec.json.Encoder()


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hold as it is stored, with the caps that somebody wants to be told about.

    `near`: a threshold may be reached when this is settled; `far`: only if more is billed than was reserved.
    """

    hold: Hold
    near: tuple[Cap, ...] = ()
    far: tuple[Cap, ...] = ()


_DECODER: Final = msgspec.json.Decoder(Held)


class Total(msgspec.Struct, frozen=True, gc=False):
    """The key of a row of the day's totals."""

    day: str
    model: str = ""
    is_estimated: bool = False


class Used(msgspec.Struct, frozen=True, gc=False):
    """What is added to a row of the day's totals."""

    spend: Spend = NO_SPEND
    cached_in: int = 0
    saved_micro_usd: int = 0

    def plus(self, other: Used) -> Used:
        """The sum."""
        cached, saved = self.cached_in + other.cached_in, self.saved_micro_usd + other.saved_micro_usd
        return Used(self.spend.plus(other.spend), cached, saved)


NOTHING_USED: Final = Used()


class Book(Protocol):
    """The reads that a plan needs, inside the commit."""

    @property
    def now_us(self) -> int:
        """The time of the commit."""
        ...

    def balances(self, caps: Sequence[Cap]) -> list[Balance]:
        """How far the meters under each cap have gone."""
        ...

    def find_hold(self, run_id: str, effect: str) -> Held | None:
        """What the effect has reserved and not settled yet."""
        ...

    def holds(self, run_id: str) -> list[tuple[str, Held]]:
        """Everything the run has reserved and not settled yet, by effect."""
        ...

    def is_warned(self, warned: Warned) -> bool:
        """Whether this alert was raised before."""
        ...


class Plan:
    """What a commit changes. `holds` maps an effect to its new hold, or to None when it has none any more."""

    def __init__(self) -> None:
        self.meters: dict[tuple[str, str], Sums] = {}
        self.holds: dict[str, Held | None] = {}
        self.totals: dict[Total, Used] = {}
        self.spend = NO_SPEND
        self.estimated_micro_usd = 0
        self.warned: list[Warned] = []

    def count(self, meters: Sequence[Meter], money: int, held_money: int, tokens: int, held_tokens: int) -> None:
        """Moves every one of the meters."""
        change = (money, held_money, tokens, held_tokens)
        for meter in meters:
            key = (meter.scope, meter.bucket)
            self.meters[key] = plus(self.meters[key], change) if key in self.meters else change

    def add(self, total: Total, used: Used) -> None:
        """Adds to the run's and the day's totals."""
        self.totals[total] = self.totals[total].plus(used) if total in self.totals else used
        self.spend = self.spend.plus(used.spend)
        if total.is_estimated:
            self.estimated_micro_usd += used.spend.cost_micro_usd

    def after(self, cap: Cap, balance: Balance) -> Balance:
        """The balance under a cap once this plan is carried out."""
        for (scope, bucket), change in self.meters.items():
            if scope == cap.scope and cap.first <= bucket <= cap.last:
                balance = balance.plus(*change)
        return balance


def plus(one: Sums, other: Sums) -> Sums:
    """The sum, each of the four on its own."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def is_free(batch: Append) -> bool:
    """Whether a batch that ends no run leaves every budget alone."""
    return batch.reserve is None and not batch.settle and batch.spend == NO_SPEND


def plan(book: Book, batch: Append, *, is_end: bool) -> Plan:
    """What the batch does to budgets; BudgetRefused or BudgetBusy when its reservation is not admitted.

    The end of a run settles what is left of its holds in full: nobody will come to say what those calls used.
    """
    made = Plan()
    run_id = batch.lease.run_id
    if batch.spend != NO_SPEND:
        made.add(Total(batch.day or utc_day(book.now_us)), Used(batch.spend))
    watched: dict[Cap, None] = {}
    for settlement in batch.settle:
        held = (
            made.holds[settlement.effect]
            if settlement.effect in made.holds
            else book.find_hold(run_id, settlement.effect)
        )
        watched |= dict.fromkeys(_settle(made, book, run_id, settlement, held))
    if batch.reserve is not None:
        _reserve(made, book, run_id, batch.reserve)
    if is_end:
        for effect, held in {**dict(book.holds(run_id)), **made.holds}.items():
            if held is not None:
                watched |= dict.fromkeys(_settle(made, book, run_id, in_full(effect, held.hold), held))
    if watched:
        made.warned = _alerts(made, book, tuple(watched))
    return made


def hold_row(run_id: str, effect: str, held: Held, now_us: int) -> tuple[str, str, int, int, int, bytes]:
    """The hold as it is stored."""
    return run_id, effect, held.hold.micro_usd, held.hold.tokens, now_us, _ENCODER.encode(held)


def decode_held(body: bytes) -> Held:
    """The hold that was stored."""
    return _DECODER.decode(body)


def _settle(made: Plan, book: Book, run_id: str, settlement: Settlement, held: Held | None) -> tuple[Cap, ...]:
    if held is None:
        raise Fault(f"run {run_id} has nothing reserved for effect {settlement.effect}", code="hold_gone")
    hold, spend = held.hold, settlement.spend
    tokens = spend.tokens_in + spend.tokens_out
    money_left = tokens_left = 0
    made.holds[settlement.effect] = None
    if not settlement.is_final:
        money_left, tokens_left = max(0, hold.micro_usd - spend.cost_micro_usd), max(0, hold.tokens - tokens)
        limit = min(hold.max_output_tokens, tokens_left)
        left = replace(hold, micro_usd=money_left, tokens=tokens_left, max_output_tokens=limit)
        made.holds[settlement.effect] = replace(held, hold=left)
    made.count(hold.meters, spend.cost_micro_usd, money_left - hold.micro_usd, tokens, tokens_left - hold.tokens)
    model = settlement.model or hold.model
    if model:
        total = Total(hold.day or utc_day(book.now_us), model, settlement.is_estimated)
        made.add(total, Used(spend, settlement.cached_in, settlement.saved_micro_usd))
    is_more = spend.cost_micro_usd > hold.micro_usd or tokens > hold.tokens
    return held.near + held.far if is_more else held.near


def _reserve(made: Plan, book: Book, run_id: str, asked: Reservation) -> None:
    held = made.holds[asked.effect] if asked.effect in made.holds else book.find_hold(run_id, asked.effect)
    if held is not None:
        raise Fault(f"run {run_id} has reserved for effect {asked.effect} already", code="hold_exists")
    hold = asked.hold
    if hold.micro_usd < 0 or hold.tokens < 0:
        raise Fault(f"a hold cannot be negative: {hold.micro_usd} micro-dollars, {hold.tokens} tokens", code="bad_hold")
    balances = admit(made, book, asked)
    made.count(hold.meters, 0, hold.micro_usd, 0, hold.tokens)
    near: list[Cap] = []
    far: list[Cap] = []
    for cap, balance in zip(asked.caps, balances, strict=True):
        if is_near(cap, balance, hold):
            near.append(cap)
        elif cap.warn_at:
            far.append(cap)
    made.holds[asked.effect] = Held(hold, tuple(near), tuple(far))


def admit(made: Plan, book: Book, asked: Reservation) -> list[Balance]:
    """The balances before it; raises unless every cap has room for the hold. This keeps a budget from being overrun."""
    balances = book.balances(asked.caps)
    if made.meters:
        balances = [made.after(cap, balance) for cap, balance in zip(asked.caps, balances, strict=True)]
    check(asked.caps, balances, asked.hold)
    return balances


def _alerts(made: Plan, book: Book, caps: tuple[Cap, ...]) -> list[Warned]:
    alerts: list[Warned] = []
    for cap, balance in zip(caps, book.balances(caps), strict=True):
        for fraction in reached(cap, made.after(cap, balance)):
            warned = Warned(cap.name, cap.scope, cap.period, fraction, book.now_us)
            if not book.is_warned(warned):
                alerts.append(warned)
    return alerts
