"""What was spent and what is left: the numbers behind `atlas costs` and `atlas budget`.

costs_by     totals by day, agent or model, from the ledger's own totals
costs_of     the tree of one run, or the newest trees
standings    every cap that is written down, how far it has gone, and where it will end
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final, Literal, TypeAlias

import msgspec

from atlas.control.history import created_of
from atlas.kernel.budget import MICRO, Balance, Cap, Pool, agent_caps, day_at, fleet_caps, forecast
from atlas.kernel.config import Config
from atlas.kernel.errors import AtlasError, Invalid
from atlas.kernel.event import Spend
from atlas.kernel.port import Clock, Ledger, Vault
from atlas.kernel.run import RunQuery, RunRow, SpendRow

By: TypeAlias = Literal["day", "agent", "model", "run"]

_DAY_S: Final = 86_400
_RECENT_DAYS: Final = 7
_PAGE: Final = 500
_ACTIVE: Final = ("running", "waiting", "in_doubt", "queued")


class CostRow(msgspec.Struct, frozen=True):
    """What one thing cost; `estimated_usd` is the part of it that no provider has confirmed."""

    name: str
    cost_usd: float
    estimated_usd: float
    tokens_in: int
    tokens_out: int
    cached_in: int
    saved_usd: float
    steps: int
    depth: int = 0
    agent: str = ""
    state: str = ""


class Standing(msgspec.Struct, frozen=True):
    """A cap and how far it has gone. `debt_usd` is what providers billed past it; then nothing more is admitted."""

    cap: str
    scope: str
    limit_usd: float | None
    spent_usd: float
    reserved_usd: float
    left_usd: float | None
    debt_usd: float
    limit_tokens: int | None
    spent_tokens: int
    reserved_tokens: int
    forecast_usd: float | None = None


class Alert(msgspec.Struct, frozen=True):
    """A threshold that was reached: once in each period."""

    cap: str
    period: str
    fraction: float
    at_us: int


class Outlook(msgspec.Struct, frozen=True):
    """What this month will have cost when it goes on as in the last seven days."""

    month: str
    spent_usd: float
    forecast_usd: float


class Costs(msgspec.Struct, frozen=True):
    """Costs since a day, grouped; `caps` and `alerts` are those of now."""

    by: By
    since: str
    time_zone: str
    rows: tuple[CostRow, ...]
    total: CostRow
    outlook: Outlook
    caps: tuple[Standing, ...]
    alerts: tuple[Alert, ...]


class Bookkeeper:
    """Answers questions about money over one vault; days begin and end in `zone`."""

    def __init__(self, ledger: Ledger, vault: Vault, config: Config, clock: Clock, zone: tzinfo) -> None:
        self._ledger = ledger
        self._vault = vault
        self._config = config
        self._clock = clock
        self._zone = zone

    async def costs(self, by: By, since: str, limit: int) -> Costs:
        """Totals since a day, with the caps of now."""
        day = self.day_of(since)
        if by == "run":
            rows = await self._newest_trees(day, limit)
        else:
            rows = grouped(await self._ledger.spend(day), by)
        return Costs(
            by=by,
            since=day,
            time_zone=self._config.time_zone,
            rows=tuple(rows),
            total=_sum("total", rows),
            outlook=await self._outlook(),
            caps=await self.standings(),
            alerts=await self._alerts(),
        )

    async def tree(self, row: RunRow) -> tuple[CostRow, ...]:
        """What each run of a tree cost by itself, parents before children, and the sum of all first."""
        rows = _below(row, await self._runs_of(row.root_run_id))
        return (_sum(row.run_id, [_run_row(one) for one in rows]), *(_run_row(one) for one in rows))

    async def standings(self) -> tuple[Standing, ...]:
        """Every cap on a period that is written down, for the vault and for each agent and principal."""
        now_us = self._clock.now_us()
        caps = list(fleet_caps(now_us, self._zone, self._config.budget))
        rows = await self._ledger.spend(self.day_of(f"{_RECENT_DAYS + 31}d"))
        known = {(row.agent, row.principal) for row in rows} | {(name, "owner") for name in self._vault.agents()}
        for agent, principal in sorted(known):
            try:
                budget = self._vault.contract(agent).budget
            except AtlasError:
                continue  # gone or broken: `atlas doctor` says so
            caps += agent_caps(now_us, self._zone, budget, agent, principal)
        return await self._stand(caps, rows)

    async def pools(self) -> tuple[Standing, ...]:
        """The pools of the runs that have not ended."""
        page = await self._ledger.runs(RunQuery(states=_ACTIVE, limit=_PAGE))
        pools: dict[str, Pool] = {}
        for row in page.runs:
            for event in await self._ledger.events(row.run_id, limit=1):
                pools |= {pool.run_id: pool for pool in created_of(event).pools} if event.salt else {}
        caps = [
            Cap(f"tree {pool.run_id}", pool.scope, micro_usd=pool.micro_usd, tokens=pool.tokens)
            for _, pool in sorted(pools.items())
        ]
        return await self._stand(caps, [])

    def day_of(self, since: str) -> str:
        """The day that `since` means: a date, or so many days back, such as 7d."""
        if since.endswith("d") and since[:-1].isdigit() and len(since) <= 6:
            days = max(int(since[:-1]) - 1, 0)
            return day_at(self._clock.now_us() - days * _DAY_S * MICRO, self._zone)
        try:
            return date.fromisoformat(since).isoformat()
        except ValueError:
            raise Invalid(f"{since!r} is no day", hint="Write 2026-11-01, or 7d for a week.", code="bad_day") from None

    async def _stand(self, caps: Sequence[Cap], rows: Sequence[SpendRow]) -> tuple[Standing, ...]:
        balances = await self._ledger.balances(caps)
        return tuple(
            _standing(cap, balance, self._expected(cap, balance, rows))
            for cap, balance in zip(caps, balances, strict=True)
        )

    def _expected(self, cap: Cap, balance: Balance, rows: Sequence[SpendRow]) -> int | None:
        """Where a cap on a day or a month will end; others have no end to forecast."""
        now = self._now()
        if cap.name.endswith("usd_per_day"):
            end = _midnight(now) + timedelta(days=1)
        elif cap.name.endswith("usd_per_month"):
            end = _month_end(now)
        else:
            return None
        mine = [row for row in rows if cap.scope in ("fleet", f"agent/{row.principal}/{row.agent}")]
        recent, recent_s = self._recent(mine, now)
        return forecast(balance.spent_micro_usd, recent, recent_s, (end - now).total_seconds())

    async def _outlook(self) -> Outlook:
        now = self._now()
        rows = await self._ledger.spend(self.day_of(f"{_RECENT_DAYS + 31}d"))
        month = now.date().isoformat()[:7]
        spent = sum(row.spend.cost_micro_usd for row in rows if row.day.startswith(month))
        recent, recent_s = self._recent(rows, now)
        expected = forecast(spent, recent, recent_s, (_month_end(now) - now).total_seconds())
        return Outlook(month, spent / MICRO, expected / MICRO)

    def _recent(self, rows: Sequence[SpendRow], now: datetime) -> tuple[int, float]:
        """What the last days cost, and how long they were: at least one, at most seven, since the first cost."""
        first = (now - timedelta(days=_RECENT_DAYS - 1)).date().isoformat()
        mine = [row for row in rows if row.day >= first and row.spend.cost_micro_usd]
        if not mine:
            return 0, 0.0
        began = datetime.fromisoformat(min(row.day for row in mine)).replace(tzinfo=self._zone)
        seconds = max((now - began).total_seconds(), float(_DAY_S))
        return sum(row.spend.cost_micro_usd for row in mine), seconds

    async def _alerts(self) -> tuple[Alert, ...]:
        since_us = self._clock.now_us() - _RECENT_DAYS * _DAY_S * MICRO
        found = await self._ledger.warned(since_us)
        return tuple(Alert(one.cap, one.period, one.fraction, one.at_us) for one in found)

    async def _newest_trees(self, day: str, limit: int) -> list[CostRow]:
        page = await self._ledger.runs(RunQuery(roots_only=True, limit=limit))
        rows: list[CostRow] = []
        for root in page.runs:
            if day_at(root.created_us, self._zone) < day:
                break
            whole = await self._runs_of(root.run_id)
            total = _sum(root.run_id, [_run_row(one) for one in whole])
            rows.append(msgspec.structs.replace(total, agent=root.agent, state=root.state))
        return rows

    async def _runs_of(self, root_run_id: str) -> list[RunRow]:
        rows: list[RunRow] = []
        before = ""
        while True:
            page = await self._ledger.runs(RunQuery(root_run_id=root_run_id, before=before, limit=_PAGE))
            rows += page.runs
            before = page.next
            if not before:
                return sorted(rows, key=lambda row: row.run_id)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_us() // MICRO, UTC).astimezone(self._zone)


def grouped(rows: Iterable[SpendRow], by: By) -> list[CostRow]:
    """The totals by day (in order), or by agent or model (the dearest first)."""
    found: dict[str, list[CostRow]] = {}
    for row in rows:
        if by == "model" and not row.model and row.spend == Spend(steps=row.spend.steps):
            continue  # steps that used no model and cost nothing
        name = {"day": row.day, "agent": row.agent}.get(by, row.model or "(no model)")
        found.setdefault(name, []).append(_spend_row(name, row))
    sums = [_sum(name, parts) for name, parts in found.items()]
    return sums if by == "day" else sorted(sums, key=lambda row: (-row.cost_usd, row.name))


def _spend_row(name: str, row: SpendRow) -> CostRow:
    guess = row.spend.cost_micro_usd if row.is_estimated else 0
    return _cost(name, row.spend, guess, row.cached_in, row.saved_micro_usd)


def _run_row(row: RunRow) -> CostRow:
    made = _cost(row.run_id, row.spend, row.estimated_micro_usd, 0, 0)
    return msgspec.structs.replace(made, depth=row.depth, agent=row.agent, state=row.state)


def _cost(name: str, spend: Spend, guess: int, cached_in: int, saved: int) -> CostRow:
    return CostRow(
        name=name,
        cost_usd=spend.cost_micro_usd / MICRO,
        estimated_usd=guess / MICRO,
        tokens_in=spend.tokens_in,
        tokens_out=spend.tokens_out,
        cached_in=cached_in,
        saved_usd=saved / MICRO,
        steps=spend.steps,
    )


def _sum(name: str, rows: Sequence[CostRow]) -> CostRow:
    """The sum, to the micro-dollar."""
    return CostRow(
        name=name,
        cost_usd=round(sum(row.cost_usd for row in rows), 6),
        estimated_usd=round(sum(row.estimated_usd for row in rows), 6),
        tokens_in=sum(row.tokens_in for row in rows),
        tokens_out=sum(row.tokens_out for row in rows),
        cached_in=sum(row.cached_in for row in rows),
        saved_usd=round(sum(row.saved_usd for row in rows), 6),
        steps=sum(row.steps for row in rows),
    )


def _standing(cap: Cap, balance: Balance, expected: int | None) -> Standing:
    used = balance.spent_micro_usd + balance.held_micro_usd
    return Standing(
        cap=cap.name,
        scope=cap.scope,
        limit_usd=None if cap.micro_usd is None else cap.micro_usd / MICRO,
        spent_usd=balance.spent_micro_usd / MICRO,
        reserved_usd=balance.held_micro_usd / MICRO,
        left_usd=None if cap.micro_usd is None else max(0, cap.micro_usd - used) / MICRO,
        debt_usd=balance.debt(cap) / MICRO,
        limit_tokens=cap.tokens,
        spent_tokens=balance.spent_tokens,
        reserved_tokens=balance.held_tokens,
        forecast_usd=None if expected is None else expected / MICRO,
    )


def _below(top: RunRow, rows: Sequence[RunRow]) -> list[RunRow]:
    """The run and what it spawned, each child below its parent."""
    children: dict[str, list[RunRow]] = {}
    for row in rows:
        children.setdefault(row.parent_run_id, []).append(row)
    found: list[RunRow] = []
    pending = [top]
    while pending:
        row = pending.pop()
        found.append(row)
        pending += reversed(children.get(row.run_id, []))
    return found


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def _month_end(now: datetime) -> datetime:
    first = _midnight(now).replace(day=1)
    return (first + timedelta(days=32)).replace(day=1)
