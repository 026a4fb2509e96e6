"""Budgets on an SQL database: the reads a plan needs, and the writes that carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap

from msgspec.structs import astuple

from atlas.kernel.budget import Balance, Warned
from atlas.kernel.hold import Cap
from atlas.ledger.budget import Held, Plan, Used, decode_held, encode_held
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
        row = self._desk.one("get_hold", (run_id, effect))
        return decode_held(row[1]) if row is not None else None

    def holds(self, run_id: str) -> list[tuple[str, Held]]:
        """Everything the run has reserved and not settled yet."""
        return [(effect, decode_held(body)) for effect, body in self._desk.all("run_holds", (run_id,))]

    def is_warned(self, warned: Warned) -> bool:
        """Whether this alert was raised before."""
        key = (warned.scope, warned.cap, warned.period, warned.fraction)
        return self._desk.one("is_warned", key) is not None


def carry_out(desk: Desk, plan: Plan, run_id: str, agent: str, principal: str) -> None:
    """Writes what the plan changes."""
    for effect, held in plan.holds.items():
        if held is None:
            desk.do("drop_hold", (run_id, effect))
        else:
            hold = held.hold
            values = (run_id, effect, hold.micro_usd, hold.tokens, desk.now_us, encode_held(held))
            desk.do("set_hold", values)
    if plan.meters:
        desk.add_meters([(*key, *change) for key, change in plan.meters.items()])
    for total, used in plan.totals.items():
        if used != Used():
            key = (total.day, agent, principal, total.model, int(total.is_estimated))
            desk.do("add_spend", (*key, *astuple(used.spend), used.cached_in, used.saved_micro_usd))
    for warned in plan.warned:
        desk.do("add_warned", astuple(warned))
