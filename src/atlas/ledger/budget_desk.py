"""Budgets on an SQL database: the reads a plan needs, and the writes that carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from operator import itemgetter

from msgspec.structs import astuple

from atlas.kernel.budget import Balance, Warned
from atlas.kernel.hold import Cap
from atlas.ledger.budget import NOTHING_USED, Held, Plan
from atlas.ledger.desk import Desk


class DeskBook:
    """What a plan reads, inside the writer's transaction."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.now_us = desk.now_us

    def balances(self, caps: Sequence[Cap]) -> list[Balance]:
        """How far the meters under each cap have gone."""
        return list(starmap(Balance, self._desk.sum_meters(caps)))

    def find_hold(self, run_id: str, effect: str) -> Held | None:
        """What the effect has reserved and not settled yet."""
        return self._desk.holds(run_id).get(effect)

    def holds(self, run_id: str) -> list[tuple[str, Held]]:
        """Everything the run has reserved and not settled yet."""
        return sorted(self._desk.holds(run_id).items(), key=itemgetter(0))

    def is_warned(self, warned: Warned) -> bool:
        """Whether this alert was raised before."""
        key = (warned.scope, warned.cap, warned.period, warned.fraction)
        return self._desk.one("is_warned", key) is not None


def carry_out(desk: Desk, plan: Plan, run_id: str, agent: str, principal: str) -> None:
    """Writes what the plan changes."""
    for effect, held in plan.holds.items():
        desk.set_hold(run_id, effect, held)
    if plan.meters:
        desk.add_meters(plan.meters)
    for total, used in plan.totals.items():
        if used != NOTHING_USED:
            key = (total.day, agent, principal, total.model, int(total.is_estimated))
            desk.add_total(key, (*astuple(used.spend), used.cached_in, used.saved_micro_usd))
    for warned in plan.warned:
        desk.do("add_warned", astuple(warned))
