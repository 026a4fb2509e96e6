"""Budgets in memory: meters, holds, totals and alerts as tables that a commit can undo."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from atlas.kernel.budget import Balance, Warned
from atlas.kernel.hold import Cap
from atlas.kernel.run import SpendRow
from atlas.ledger.budget import Held, Plan, Used

Key = tuple[str, str, str, str, bool]


class MemoryBook:
    """What a plan reads and changes. `put` and `drop` write to a table in such a way that the commit can be undone."""

    def __init__(self, put: Callable[[dict[Any, Any], Any, Any], None], drop: Callable[[dict[Any, Any], Any], None]):
        self._put = put
        self._drop = drop
        self._meters: dict[tuple[str, str], Balance] = {}
        self._buckets: dict[str, list[str]] = {}  # of each scope, sorted; one that was never counted on stays at zero
        self._holds: dict[str, dict[str, Held]] = {}
        self._warned: dict[tuple[str, str, str, float], Warned] = {}
        self.spend: dict[Key, SpendRow] = {}
        self.now_us = 0

    def balances(self, caps: Sequence[Cap]) -> list[Balance]:
        """How far the meters under each cap have gone."""
        return [self._sum(cap) for cap in caps]

    def find_hold(self, run_id: str, effect: str) -> Held | None:
        """What the effect has reserved and not settled yet."""
        return self._holds.get(run_id, {}).get(effect)

    def holds(self, run_id: str) -> list[tuple[str, Held]]:
        """Everything the run has reserved and not settled yet."""
        return sorted(self._holds.get(run_id, {}).items(), key=lambda item: item[0])

    def is_warned(self, warned: Warned) -> bool:
        """Whether this alert was raised before."""
        return (warned.scope, warned.cap, warned.period, warned.fraction) in self._warned

    def list_warned(self, since_us: int) -> list[Warned]:
        """Alerts raised since a time, oldest first."""
        found = [warned for warned in self._warned.values() if warned.at_us >= since_us]
        return sorted(found, key=lambda warned: (warned.at_us, warned.scope, warned.cap, warned.fraction))

    def carry_out(self, plan: Plan, run_id: str, agent: str, principal: str) -> None:
        """Writes what the plan changes."""
        for effect, held in plan.holds.items():
            if held is None:
                self._drop(self._holds.get(run_id, {}), effect)
            else:
                self._put(self._holds.setdefault(run_id, {}), effect, held)
        for key, change in plan.meters.items():
            if key not in self._meters:
                self._enter(*key)
            self._put(self._meters, key, self._meters.get(key, Balance()).plus(*change))
        for total, used in plan.totals.items():
            if used != Used():
                self._add((total.day, agent, principal, total.model, total.is_estimated), used)
        for warned in plan.warned:
            self._put(self._warned, (warned.scope, warned.cap, warned.period, warned.fraction), warned)

    def _sum(self, cap: Cap) -> Balance:
        if cap.first == cap.last:
            return self._meters.get((cap.scope, cap.first), Balance())
        buckets = self._buckets.get(cap.scope, [])
        total = Balance()
        for bucket in buckets[bisect_left(buckets, cap.first) : bisect_right(buckets, cap.last)]:
            found = self._meters.get((cap.scope, bucket), Balance())
            total = total.plus(found.spent_micro_usd, found.held_micro_usd, found.spent_tokens, found.held_tokens)
        return total

    def _enter(self, scope: str, bucket: str) -> None:
        # Not undone with the commit: a bucket without a meter adds nothing, and entering it again changes nothing.
        buckets = self._buckets.setdefault(scope, [])
        if bucket not in buckets:
            insort(buckets, bucket)

    def _add(self, key: Key, used: Used) -> None:
        day, agent, principal, model, is_estimated = key
        row = self.spend.get(key) or SpendRow(day, agent, principal, Used().spend, model, is_estimated)
        row = replace(
            row,
            spend=row.spend.plus(used.spend),
            cached_in=row.cached_in + used.cached_in,
            saved_micro_usd=row.saved_micro_usd + used.saved_micro_usd,
        )
        self._put(self.spend, key, row)
