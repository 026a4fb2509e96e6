"""What `atlas costs` and `atlas budget` answer, from a ledger in memory."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from atlas.control.costs import Bookkeeper, CostRow
from atlas.kernel.budget import Cap, Hold, Meter, Pool, Reservation, Settlement
from atlas.kernel.config import Config
from atlas.kernel.contract import Budget, Contract
from atlas.kernel.errors import Invalid
from atlas.kernel.event import NULL, RunCreated, Spend, draft
from atlas.kernel.port import Vault
from atlas.kernel.run import Append, Lease, NewRun
from atlas.ledger.memory import MemoryLedger
from atlas.testing.clock import START_US, FakeClock
from atlas.vault.zone import zone_of

USD = 1_000_000
DAY_S = 86_400


class OneAgent:
    """A vault with the agent `advisor` and one that cannot be read."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def agents(self) -> list[str]:
        return ["advisor", "broken"]

    def contract(self, name: str) -> Contract:
        if name != "advisor":
            raise Invalid("broken")
        return Contract(name, "1.0.0", "Helps", budget=self._budget)


class Books:
    """A ledger that money was spent from, and its bookkeeper."""

    def __init__(self, fleet: Budget = Budget(), agent: Budget = Budget(), zone: str = "UTC") -> None:  # noqa: B008 - frozen
        self.clock = FakeClock(START_US + 10 * DAY_S * USD + 43_200 * USD)  # noon of 2026-01-11 in UTC
        self.ledger = MemoryLedger(self.clock)
        vault = cast(Vault, OneAgent(agent))
        self.keeper = Bookkeeper(self.ledger, vault, Config(budget=fleet, time_zone=zone), self.clock, zone_of(zone))
        self._number = 0

    async def run(self, run_id: str, parent: str = "", root: str = "", pools: tuple[Pool, ...] = ()) -> Lease:
        created = RunCreated("advisor", "1.0.0", NULL, "snap", "", "seed", pools=pools)
        made = draft(created, self.clock.now_us(), "owner")
        depth = 1 if parent else 0
        new = NewRun(run_id, "", "advisor", "1.0.0", "snap", "owner", made, root or run_id, parent, depth=depth)
        await self.ledger.submit(new)
        [claimed] = await self.ledger.claim("ann", limit=1, lease_s=10**6, max_running=99, run_id=run_id)
        return claimed.lease

    async def spend(self, lease: Lease, day: str, micro: int, model: str = "lab:small", **more: Any) -> None:
        """Reserves twice what a call then costs."""
        self._number += 1
        effect = f"e{self._number}"
        meters = (Meter("fleet", day), Meter("agent/owner/advisor", day), *more.pop("meters", ()))
        hold = Hold(2 * micro, 20, 10, model, meters, day)
        caps: tuple[Cap, ...] = more.pop("caps", ())
        await self.ledger.append(Append(lease, reserve=Reservation(effect, hold, caps)))
        settled = Settlement(effect, Spend(1, 7, 3, micro), model, **more)
        await self.ledger.append(Append(lease, settle=(settled,)))

    async def hold(self, lease: Lease, day: str, micro: int, *meters: Meter) -> None:
        hold = Hold(micro, 5, meters=(Meter("fleet", day), Meter("agent/owner/advisor", day), *meters))
        await self.ledger.append(Append(lease, reserve=Reservation("held", hold)))


def named(rows: tuple[CostRow, ...]) -> dict[str, tuple[float, float]]:
    return {row.name: (row.cost_usd, row.estimated_usd) for row in rows}


def test_costs_add_up_by_day_agent_and_model() -> None:
    async def play() -> None:
        books = Books()
        await books.ledger.open()
        lease = await books.run("run_a")
        await books.spend(lease, "2026-01-09", 250_000)
        await books.spend(lease, "2026-01-10", 1_000_000, "lab:large", cached_in=5, saved_micro_usd=300)
        await books.spend(lease, "2026-01-10", 500_000, is_estimated=True)
        by_day = await books.keeper.costs("day", "30d", 20)
        assert named(by_day.rows) == {"2026-01-09": (0.25, 0.0), "2026-01-10": (1.5, 0.5)}
        assert (by_day.total.cost_usd, by_day.total.saved_usd, by_day.total.cached_in) == (1.75, 0.0003, 5)
        by_model = await books.keeper.costs("model", "2026-01-10", 20)
        assert list(named(by_model.rows).items()) == [("lab:large", (1.0, 0.0)), ("lab:small", (0.5, 0.5))]
        assert named((await books.keeper.costs("agent", "30d", 20)).rows) == {"advisor": (1.75, 0.5)}
        by_run = await books.keeper.costs("run", "30d", 20)
        assert named(by_run.rows) == {"run_a": (1.75, 0.5)}
        assert (await books.keeper.costs("day", "2026-01-11", 20)).rows == ()

    asyncio.run(play())


def test_steps_that_cost_nothing_are_no_model() -> None:
    async def play() -> None:
        books = Books()
        await books.ledger.open()
        lease = await books.run("run_a")
        await books.spend(lease, "2026-01-11", 250_000)
        await books.ledger.append(Append(lease, spend=Spend(1)))
        assert list(named((await books.keeper.costs("model", "1d", 20)).rows)) == ["lab:small"]
        await books.ledger.append(Append(lease, spend=Spend(1, cost_micro_usd=7)))
        assert list(named((await books.keeper.costs("model", "1d", 20)).rows)) == ["lab:small", "(no model)"]

    asyncio.run(play())


def test_a_tree_is_told_parents_before_children() -> None:
    async def play() -> None:
        books = Books()
        await books.ledger.open()
        root = await books.run("run_a")
        child = await books.run("run_b", "run_a", "run_a")
        grandchild = await books.run("run_d", "run_b", "run_a")
        other = await books.run("run_c", "run_a", "run_a")
        for lease, micro in ((root, 1), (child, 10), (grandchild, 100), (other, 1_000)):
            await books.spend(lease, "2026-01-11", micro)
        total, *rows = await books.keeper.tree(await books.ledger.run("run_a"))
        assert [row.name for row in rows] == ["run_a", "run_b", "run_d", "run_c"]
        assert total.cost_usd == 0.001111
        below, *_ = await books.keeper.tree(await books.ledger.run("run_b"))
        assert below.cost_usd == 0.00011

    asyncio.run(play())


def test_caps_say_what_is_spent_reserved_left_and_owed() -> None:
    async def play() -> None:
        books = Books(Budget(usd_per_day=2, usd_per_month=100), Budget(usd_per_day=1))
        await books.ledger.open()
        lease = await books.run("run_a")
        await books.spend(lease, "2026-01-11", 1_250_000)
        await books.hold(lease, "2026-01-11", 500_000)
        found = {one.cap: one for one in await books.keeper.standings()}
        assert list(found) == ["fleet usd_per_day", "fleet usd_per_month", "agent advisor of owner usd_per_day"]
        fleet, mine = found["fleet usd_per_day"], found["agent advisor of owner usd_per_day"]
        assert (fleet.spent_usd, fleet.reserved_usd, fleet.left_usd, fleet.debt_usd) == (1.25, 0.5, 0.25, 0.0)
        assert (mine.left_usd, mine.debt_usd) == (0.0, 0.25)
        # Half a day cost 1.25 and counts as a whole one, so the other half is taken to cost half of that.
        assert fleet.forecast_usd == pytest.approx(1.875)

    asyncio.run(play())


def test_a_forecast_takes_the_rate_of_the_last_days() -> None:
    async def play() -> None:
        books = Books()
        await books.ledger.open()
        lease = await books.run("run_a")
        await books.spend(lease, "2026-01-01", 5_000_000)  # longer ago than what counts as recent
        for day in range(5, 11):
            await books.spend(lease, f"2026-01-{day:02d}", 1_000_000)
        await books.spend(lease, "2026-01-11", 500_000)
        outlook = (await books.keeper.costs("day", "30d", 20)).outlook
        assert (outlook.month, outlook.spent_usd) == ("2026-01", 11.5)
        assert outlook.forecast_usd == pytest.approx(11.5 + 20.5)  # a dollar a day for 20 and a half days

    asyncio.run(play())


def test_pools_of_runs_that_have_not_ended_are_listed() -> None:
    async def play() -> None:
        books = Books()
        await books.ledger.open()
        pool = Pool("run_a", 1_000_000, 500)
        lease = await books.run("run_a", pools=(pool,))
        await books.hold(lease, "2026-01-11", 400_000, Meter(pool.scope))
        [found] = await books.keeper.pools()
        assert (found.cap, found.limit_usd, found.reserved_usd, found.left_usd) == ("tree run_a", 1.0, 0.4, 0.6)
        assert (found.limit_tokens, found.reserved_tokens) == (500, 5)
        await books.ledger.append(Append(lease, state="succeeded"))
        assert await books.keeper.pools() == ()

    asyncio.run(play())


def test_alerts_of_the_last_days_are_shown() -> None:
    async def play() -> None:
        books = Books()
        await books.ledger.open()
        cap = Cap("fleet usd_per_day", "fleet", "2026-01-11", "2026-01-11", USD, warn_at=(0.5,))
        await books.spend(await books.run("run_a"), "2026-01-11", 500_000, caps=(cap,))
        [alert] = (await books.keeper.costs("day", "7d", 20)).alerts
        assert (alert.cap, alert.period, alert.fraction) == ("fleet usd_per_day", "2026-01-11", 0.5)

    asyncio.run(play())


def test_days_are_counted_in_the_configured_zone() -> None:
    assert Books(zone="UTC").keeper.day_of("1d") == "2026-01-11"
    assert Books(zone="Pacific/Auckland").keeper.day_of("1d") == "2026-01-12"
    assert Books().keeper.day_of("7d") == "2026-01-05"


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "d", "-1d", "99999999d", ""])
def test_what_is_no_day_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        Books().keeper.day_of(text)


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        zone_of("Europe/Nowhere")
    assert caught.value.reason == "bad_time_zone"
