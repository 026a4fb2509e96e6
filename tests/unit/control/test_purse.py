"""A purse says what a run is under at this moment, whatever it said before."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from atlas.control.purse import MAX_KEPT, Purse
from atlas.kernel.budget import caps_at, day_at, meters_at, minute_at
from atlas.kernel.contract import Budget, Contract
from atlas.kernel.event import NULL, Critical, RunCreated
from atlas.kernel.hold import Pool
from atlas.kernel.state import State, initial

FLEET = Budget(usd_per_day=9, usd_per_7d=30, usd_per_month=99)
OWN = Budget(usd_per_day=2, tokens_per_request=5_000)
AUCKLAND = ZoneInfo("Pacific/Auckland")
MICRO = 1_000_000


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * MICRO


def run(run_id: str = "run_1", principal: str = "owner", agent: str = "shop", **more: Any) -> State:
    return initial(run_id, principal, RunCreated(agent, "1.0.0", NULL, "", "ses_1", "", **more))


def purse(contracts: dict[str, Contract]) -> Purse:
    async def contract(created: RunCreated) -> Contract:
        return contracts[created.agent]

    return Purse(FLEET, AUCKLAND, contract)


def contract(budget: Budget = OWN) -> Contract:
    return Contract(name="shop", version="1.0.0", description="Sells.", budget=budget)


def check(one: Purse, state: State, now_us: int, own: Budget = OWN) -> None:
    names: Any = {"agent": state.created.agent, "principal": state.principal, "pools": state.created.pools}
    raised = 0 if state.created.critical is None else state.created.critical.micro_usd
    for _ in range(2):
        bounds = asyncio.run(one.bounds(state, now_us))
        caps = caps_at(now_us, AUCKLAND, fleet=FLEET, contract=own, raised_micro_usd=raised, **names)
        assert bounds.caps == caps
        assert bounds.meters == meters_at(now_us, AUCKLAND, **names)
        assert bounds.day == day_at(now_us, AUCKLAND)
        assert bounds.tokens_per_request == own.tokens_per_request


def test_a_new_day_or_new_hours_count_from_their_first_moment() -> None:
    one, state = purse({"shop": contract()}), run()
    midnight, six = at("2026-11-15T11:00:00"), at("2026-11-15T12:00:00")
    for moment in (midnight - 1, midnight, six - 1, six, midnight - 1, midnight + 86_400 * MICRO):
        check(one, state, moment)


def test_what_one_run_is_under_is_not_what_another_is_under() -> None:
    one, now_us = purse({"shop": contract(), "bank": contract()}), at("2026-11-16T12:00:00")
    check(one, run(), now_us)
    check(one, run("run_2", pools=(Pool("run_2", 7 * MICRO),)), now_us)
    check(one, run("run_3", "eve"), now_us)
    check(one, run("run_4", agent="bank"), now_us)
    check(one, run("run_1", critical=Critical(5 * MICRO, "urgent", "ada")), now_us)


def test_a_contract_that_was_edited_counts_at_once() -> None:
    contracts = {"shop": contract()}
    one, state, now_us = purse(contracts), run(), at("2026-11-16T12:00:00")
    check(one, state, now_us)
    tighter = Budget(usd_per_day=1, tokens_per_request=10)
    contracts["shop"] = contract(tighter)
    check(one, state, now_us, tighter)


def test_what_is_kept_stays_small() -> None:
    one = purse({"shop": contract()})
    for number in range(2 * MAX_KEPT + 5):
        asyncio.run(one.bounds(run(f"run_{number}"), 0))
        assert len(one._kept) <= MAX_KEPT


def test_in_every_zone_a_day_begins_with_a_minute() -> None:
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        for month in range(240):
            moment = datetime(2020 + month // 12, 1 + month % 12, 1, tzinfo=zone)
            assert moment.timestamp() % 60 == 0, name
    assert minute_at(60 * MICRO - 1) == 0
    assert minute_at(60 * MICRO) == 1
