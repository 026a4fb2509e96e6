"""The ledger's contract: budgets. What is admitted never passes a cap, and what is settled is counted once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence

from msgspec.structs import replace

from atlas.kernel.budget import Balance, Reservation, Settlement
from atlas.kernel.errors import AtlasError, BudgetBusy, BudgetRefused, Fault, StaleLease
from atlas.kernel.event import Spend
from atlas.kernel.hold import Cap, Hold, Meter
from atlas.kernel.port import Ledger
from atlas.kernel.run import Append, Lease, RunState, SpendRow
from atlas.testing.ledger_rig import Case, Rig, Scene, case, open_scene, peer_case, refused

DAY = "2026-11-16"
TREE = Meter("tree/run_root")
TREE_CAP = Cap("tree", TREE.scope, micro_usd=100, tokens=1_000)
MODEL = "lab:small"


def hold(micro_usd: int, tokens: int = 0, meters: Sequence[Meter] = (TREE,)) -> Hold:
    """A hold of the day `DAY`; half of its tokens may be output."""
    return Hold(micro_usd, tokens, tokens // 2, MODEL, tuple(meters), DAY)


def reserve(effect: str, micro_usd: int, tokens: int = 0, caps: Sequence[Cap] = (TREE_CAP,)) -> Reservation:
    """A reservation on the tree's meter."""
    return Reservation(effect, hold(micro_usd, tokens), tuple(caps))


def settle(effect: str, micro_usd: int, tokens: int = 0) -> Settlement:
    """A settlement that counts its tokens as input."""
    return Settlement(effect, Spend(tokens_in=tokens, cost_micro_usd=micro_usd), MODEL)


async def balance(ledger: Ledger, cap: Cap = TREE_CAP) -> Balance:
    """How far one cap has gone."""
    [found] = await ledger.balances((cap,))
    return found


@case
async def what_is_reserved_is_held_until_it_is_settled(scene: Scene) -> None:
    run, lease = await scene.hold()
    assert await scene.ledger.balances((TREE_CAP, replace(TREE_CAP, scope="fleet"))) == (Balance(), Balance())
    await scene.ledger.append(Append(lease, (scene.note("intent"),), reserve=reserve("e1", 60, 500)))
    assert await balance(scene.ledger) == Balance(0, 60, 0, 500)
    assert (await scene.ledger.run(run.run_id)).spend == Spend()
    used = Spend(1, 30, 20, 41)
    settlement = Settlement("e1", used, MODEL, cached_in=10, saved_micro_usd=7)
    await scene.ledger.append(Append(lease, (scene.note("receipt"),), settle=(settlement,)))
    assert await balance(scene.ledger) == Balance(41, 0, 50, 0)
    row = await scene.ledger.run(run.run_id)
    assert (row.spend, row.estimated_micro_usd) == (used, 0)
    assert await scene.ledger.spend() == [SpendRow(DAY, "tester", "owner", used, MODEL, False, 10, 7)]
    assert await scene.texts(run.run_id) == ["intent", "receipt"]


@case
async def a_reservation_that_passes_a_cap_writes_nothing(scene: Scene) -> None:
    run, lease = await scene.hold()
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 50), spend=Spend(1)))
    await scene.ledger.append(Append(lease, settle=(settle("e1", 50),)))
    position, before = await scene.ledger.head(), await balance(scene.ledger)
    with refused(BudgetRefused, "budget_refused"):
        await scene.ledger.append(
            Append(lease, (scene.note("no"),), reserve=reserve("e2", 51), spend=Spend(1), state="waiting")
        )
    assert (await scene.ledger.head(), await balance(scene.ledger)) == (position, before)
    assert (await scene.ledger.run(run.run_id)).spend.steps == 1
    assert await scene.state(run.run_id) == "running"
    with refused(Fault, "hold_gone"):
        await scene.ledger.append(Append(lease, settle=(settle("e2", 1),)))
    await scene.ledger.append(Append(lease, reserve=reserve("e2", 50)))


@case
async def what_goes_before_a_batch_stands_when_the_batch_is_refused(scene: Scene) -> None:
    run, lease = await scene.hold()
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 90)))
    receipt = Append(lease, (scene.note("receipt"),), settle=(settle("e1", 80),), lazy=True)
    answer = await scene.ledger.append(Append(lease, (scene.note("no"),), reserve=reserve("e2", 21)), receipt)
    assert isinstance(answer.refused, BudgetRefused)
    assert await scene.texts(run.run_id) == ["receipt"]
    assert await balance(scene.ledger) == Balance(80, 0, 0, 0)
    await scene.ledger.append(Append(lease, reserve=reserve("e3", 20)))
    # What the first one frees is there for the second.
    freed = Append(lease, (scene.note("freed"),), settle=(settle("e3", 5),))
    answer = await scene.ledger.append(Append(lease, (scene.note("yes"),), reserve=reserve("e4", 15)), freed)
    assert answer.refused is None
    assert await scene.texts(run.run_id) == ["receipt", "freed", "yes"]
    assert await balance(scene.ledger) == Balance(85, 15, 0, 0)
    assert answer.position == await scene.ledger.head()


@case
async def neither_happens_when_what_goes_before_is_refused(scene: Scene) -> None:
    run, lease = await scene.hold()
    stale = replace(lease, generation=lease.generation - 1)
    with refused(StaleLease):
        await scene.ledger.append(Append(stale, (scene.note("b"),)), Append(stale, (scene.note("a"),)))
    with refused(Fault, "hold_gone"):
        await scene.ledger.append(Append(lease, (scene.note("b"),)), Append(lease, settle=(settle("e9", 1),)))
    assert await scene.texts(run.run_id) == []


@case
async def a_refusal_names_the_cap_and_what_stands_against_it(scene: Scene) -> None:
    _, lease = await scene.hold()
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 2_500_000, caps=())))
    await scene.ledger.append(Append(lease, settle=(settle("e1", 2_500_000),)))
    cap = Cap("fleet usd_per_day", TREE.scope, micro_usd=3_000_000)
    try:
        await scene.ledger.append(Append(lease, reserve=reserve("e2", 700_000, caps=(cap,))))
        raise AssertionError("admitted")
    except BudgetRefused as error:
        said = error.message
    for part in ("fleet usd_per_day", "$3.00", "$2.50 spent", "$0.00 reserved", "$0.70 asked"):
        assert part in said, said


@case
async def when_only_other_reservations_block_it_is_busy(scene: Scene) -> None:
    _, lease = await scene.hold()
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 60)))
    with refused(BudgetBusy, "budget_busy"):
        await scene.ledger.append(Append(lease, reserve=reserve("e2", 41)))
    with refused(BudgetRefused):
        await scene.ledger.append(Append(lease, reserve=reserve("e2", 101)))
    await scene.ledger.append(Append(lease, settle=(settle("e1", 59),)))
    await scene.ledger.append(Append(lease, reserve=reserve("e2", 41)))


@case
async def a_refused_batch_leaves_the_others_of_its_group_alone(scene: Scene) -> None:
    held = [await scene.hold() for _ in range(6)]
    answers = [
        scene.ledger.append(Append(lease, (scene.note("intent"),), reserve=reserve("e", amount)))
        for (_, lease), amount in zip(held, (30, 101, 30, 500, 40, 1), strict=True)
    ]
    assert [await _name(answer) for answer in answers] == [
        *("Appended", "BudgetRefused", "Appended", "BudgetRefused", "Appended", "BudgetBusy"),
    ]
    assert await balance(scene.ledger) == Balance(0, 100)
    assert [await scene.texts(run.run_id) for run, _ in held] == [["intent"], [], ["intent"], [], ["intent"], []]


@case
async def every_cap_must_have_room(scene: Scene) -> None:
    _, lease = await scene.hold()
    inner, outer = Meter("tree/inner"), Meter("tree/outer")
    caps = (Cap("inner", inner.scope, micro_usd=50), Cap("outer", outer.scope, micro_usd=70))
    for effect, meters in (("e1", (inner, outer)), ("e2", (outer,))):
        amount = hold(35, meters=meters)
        mine = caps if len(meters) == 2 else caps[1:]
        await scene.ledger.append(Append(lease, reserve=Reservation(effect, amount, mine)))
    assert await scene.ledger.balances(caps) == (Balance(0, 35), Balance(0, 70))
    with refused(BudgetBusy):
        await scene.ledger.append(Append(lease, reserve=Reservation("e3", hold(1, meters=(inner, outer)), caps)))
    with refused(BudgetRefused):
        await scene.ledger.append(Append(lease, reserve=Reservation("e3", hold(51, meters=(inner, outer)), caps)))
    assert await scene.ledger.balances(caps) == (Balance(0, 35), Balance(0, 70))


@case
async def a_cap_on_tokens_is_a_cap_of_its_own(scene: Scene) -> None:
    _, lease = await scene.hold()
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 1, 900)))
    with refused(BudgetBusy):
        await scene.ledger.append(Append(lease, reserve=reserve("e2", 1, 101)))
    await scene.ledger.append(Append(lease, settle=(settle("e1", 1, 950),)))
    with refused(BudgetRefused):
        await scene.ledger.append(Append(lease, reserve=reserve("e2", 1, 51)))
    await scene.ledger.append(Append(lease, reserve=reserve("e2", 1, 50)))


@case
async def a_cap_on_a_period_adds_up_its_buckets(scene: Scene) -> None:
    _, lease = await scene.hold()
    days = ("2026-10-31", "2026-11-01", "2026-11-16", "2026-11-30", "2026-12-01")
    for number, day in enumerate(days):
        amount = hold(10**number, meters=(Meter("fleet", day), Meter("hour/fleet", f"{day}T05")))
        await scene.ledger.append(Append(lease, reserve=Reservation(day, amount)))
    month = Cap("month", "fleet", "2026-11-01", "2026-11-31", 2_000)
    window = Cap("7d", "hour/fleet", "2026-11-23T06", "2026-11-30T06", 2_000)
    one = Cap("day", "fleet", "2026-11-16", "2026-11-16", 100)
    assert [found.held_micro_usd for found in await scene.ledger.balances((month, window, one))] == [1_110, 1_000, 100]
    for cap, room in ((month, 890), (window, 1_000), (one, 0)):
        meters = (Meter("fleet", "2026-11-16"), Meter("hour/fleet", "2026-11-30T06"))
        with refused(BudgetBusy):
            await scene.ledger.append(Append(lease, reserve=Reservation("e", hold(room + 1, meters=meters), (cap,))))


@case
async def a_settlement_counts_on_the_day_of_its_intent(scene: Scene) -> None:
    _, lease = await scene.hold()
    before = Meter("fleet", DAY)
    await scene.ledger.append(Append(lease, reserve=Reservation("e1", hold(50, meters=(before,)))))
    await scene.ledger.append(Append(lease, settle=(settle("e1", 20),), spend=Spend(1), day="2026-11-17"))
    caps = (Cap("then", "fleet", DAY, DAY), Cap("now", "fleet", "2026-11-17", "2026-11-17"))
    assert await scene.ledger.balances(caps) == (Balance(20), Balance())
    rows = {(row.day, row.model): row.spend for row in await scene.ledger.spend()}
    assert rows == {(DAY, MODEL): Spend(cost_micro_usd=20), ("2026-11-17", ""): Spend(1)}


@case
async def a_provider_that_bills_more_than_was_reserved_closes_the_pool(scene: Scene) -> None:
    _, lease = await scene.hold()
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 40, 10)))
    await scene.ledger.append(Append(lease, settle=(settle("e1", 130, 10),)))
    found = await balance(scene.ledger)
    assert (found, found.debt(TREE_CAP), found.debt_tokens(TREE_CAP)) == (Balance(130, 0, 10, 0), 30, 0)
    for amount in (0, 1):
        with refused(BudgetRefused):
            await scene.ledger.append(Append(lease, reserve=reserve("e2", amount)))


@case
async def money_that_no_model_cost_moves_meters_and_no_totals(scene: Scene) -> None:
    run, lease = await scene.hold()
    mandate = Meter("mandate/m1", DAY)
    cap = Cap("mandate m1", mandate.scope, DAY, DAY, 100)
    for effect in ("e1", "e2"):
        asked = Reservation(effect, Hold(40, meters=(mandate,)), (cap,))
        await scene.ledger.append(Append(lease, reserve=asked))
    await scene.ledger.append(Append(lease, settle=(Settlement("e1", Spend(cost_micro_usd=40)),)))
    assert await balance(scene.ledger, cap) == Balance(40, 40)
    await scene.end(lease)
    assert await balance(scene.ledger, cap) == Balance(80)
    row = await scene.ledger.run(run.run_id)
    assert (row.spend, row.estimated_micro_usd, await scene.ledger.spend()) == (Spend(), 0, [])


@case
async def only_what_is_reserved_can_be_settled_and_only_once(scene: Scene) -> None:
    run, lease = await scene.hold()
    _, other = await scene.hold()
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 60)))
    for wrong in (Append(lease, settle=(settle("e2", 1),)), Append(other, settle=(settle("e1", 1),))):
        with refused(Fault, "hold_gone"):
            await scene.ledger.append(replace(wrong, drafts=(scene.note("no"),)))
    with refused(Fault, "hold_exists"):
        await scene.ledger.append(Append(lease, reserve=reserve("e1", 1)))
    with refused(Fault, "hold_gone"):
        await scene.ledger.append(Append(lease, settle=(settle("e1", 1), settle("e1", 1))))
    assert await balance(scene.ledger) == Balance(0, 60)
    await scene.ledger.append(Append(lease, settle=(settle("e1", 0),)))
    with refused(Fault, "hold_gone"):
        await scene.ledger.append(Append(lease, settle=(settle("e1", 1),)))
    assert await balance(scene.ledger) == Balance()
    assert await scene.texts(run.run_id) == []
    assert await scene.ledger.spend() == []


@case
async def a_hold_is_never_negative(scene: Scene) -> None:
    _, lease = await scene.hold()
    for wrong in (hold(-1), hold(1, -1)):
        with refused(Fault, "bad_hold"):
            await scene.ledger.append(Append(lease, reserve=Reservation("e1", wrong, (TREE_CAP,))))
    assert await balance(scene.ledger) == Balance()


@case
async def a_part_settlement_leaves_the_rest_reserved(scene: Scene) -> None:
    _, lease = await scene.hold()
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 60, 600)))
    await scene.ledger.append(Append(lease, settle=(replace(settle("e1", 25, 100), is_final=False),)))
    assert await balance(scene.ledger) == Balance(25, 35, 100, 500)
    await scene.ledger.append(Append(lease, settle=(replace(settle("e1", 40, 0), is_final=False),)))
    assert await balance(scene.ledger) == Balance(65, 0, 100, 500)
    await scene.ledger.append(Append(lease, settle=(settle("e1", 5, 20),)))
    assert await balance(scene.ledger) == Balance(70, 0, 120, 0)


@case
async def a_call_that_is_asked_again_settles_and_reserves_in_one_commit(scene: Scene) -> None:
    _, lease = await scene.hold()
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 50)))
    lost = replace(settle("e1", 50), is_estimated=True)
    with refused(BudgetRefused):
        await scene.ledger.append(Append(lease, settle=(lost,), reserve=reserve("e1", 51)))
    assert await balance(scene.ledger) == Balance(0, 50)
    await scene.ledger.append(Append(lease, settle=(lost,), reserve=reserve("e1", 50)))
    assert await balance(scene.ledger) == Balance(50, 50)
    await scene.ledger.append(Append(lease, settle=(settle("e1", 20),)))
    assert await balance(scene.ledger) == Balance(70)
    assert [(row.is_estimated, row.spend.cost_micro_usd) for row in await scene.ledger.spend()] == [
        *((False, 20), (True, 50)),
    ]


@case
async def a_run_that_ends_settles_what_it_holds_in_full(scene: Scene) -> None:
    states: tuple[RunState, ...] = ("succeeded", "failed", "refused", "cancelled")
    for state in states:
        run, lease = await scene.hold()
        meter = Meter(f"tree/{run.run_id}")
        cap = Cap("tree", meter.scope)
        for effect, amount in (("e1", 10), ("e2", 20)):
            await scene.ledger.append(
                Append(lease, reserve=Reservation(effect, hold(amount, 10 * amount, (meter,)), (cap,)))
            )
        await scene.ledger.append(Append(lease, settle=(settle("e1", 3, 30),), state=state))
        assert await scene.ledger.balances((cap,)) == (Balance(23, 0, 230, 0),)
        row = await scene.ledger.run(run.run_id)
        assert (row.spend, row.estimated_micro_usd) == (Spend(0, 130, 100, 23), 20), row
    rows = [(row.is_estimated, row.spend) for row in await scene.ledger.spend()]
    assert rows == [(False, Spend(0, 120, 0, 12)), (True, Spend(0, 400, 400, 80))]


@case
async def a_run_that_sleeps_or_changes_hands_keeps_what_it_holds(scene: Scene) -> None:
    run, lease = await scene.hold()
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 60)))
    await scene.park(lease, "in_doubt")
    assert await balance(scene.ledger) == Balance(0, 60)
    again = await scene.take(run.run_id, "bob")
    with refused(StaleLease):
        await scene.ledger.append(Append(lease, settle=(settle("e1", 60),)))
    with refused(StaleLease):
        await scene.ledger.append(Append(lease, reserve=reserve("e2", 1)))
    assert await balance(scene.ledger) == Balance(0, 60)
    await scene.ledger.append(Append(again, settle=(settle("e1", 7),)))
    assert await balance(scene.ledger) == Balance(7)


@case
async def an_alert_is_raised_once_in_each_period(scene: Scene) -> None:
    _, lease = await scene.hold()

    async def use(effect: str, day: str, amount: int) -> list[tuple[str, float]]:
        cap = Cap("fleet usd_per_day", "fleet", day, day, 100, warn_at=(0.5, 0.8))
        asked = Reservation(effect, hold(50, meters=(Meter("fleet", day),)), (cap,))
        first = await scene.ledger.append(Append(lease, reserve=asked))
        second = await scene.ledger.append(Append(lease, settle=(settle(effect, amount),)))
        return [(warned.period, warned.fraction) for warned in (*first.warned, *second.warned)]

    assert await use("e1", DAY, 49) == []
    assert await use("e2", DAY, 1) == [(DAY, 0.5)]
    assert await use("e3", DAY, 0) == []
    assert await use("e4", DAY, 90) == [(DAY, 0.8)]
    assert await use("e5", "2026-11-17", 85) == [("2026-11-17", 0.5), ("2026-11-17", 0.8)]
    told = await scene.ledger.warned()
    assert sorted((one.cap, one.scope, one.period, one.fraction) for one in told) == [
        ("fleet usd_per_day", "fleet", day, fraction) for day in (DAY, "2026-11-17") for fraction in (0.5, 0.8)
    ]
    assert await scene.ledger.warned(since_us=told[-1].at_us + 1) == []


@case
async def a_bill_above_the_hold_raises_the_alerts_it_passes(scene: Scene) -> None:
    _, lease = await scene.hold()
    cap = replace(TREE_CAP, warn_at=(0.5, 1.0))
    await scene.ledger.append(Append(lease, reserve=reserve("e1", 10, caps=(cap,))))
    appended = await scene.ledger.append(Append(lease, settle=(settle("e1", 120),)))
    assert [warned.fraction for warned in appended.warned] == [0.5, 1.0]


@case
async def meters_of_names_that_look_alike_are_kept_apart(scene: Scene) -> None:
    names = (
        "owner",
        "Owner",
        "OWNER",
        "owner ",
        "o\u0308wner",
        "\u00f6wner",
        "own\u200ber",
        "owner/x",
        "\u212aim",
        "Kim",
    )
    _, lease = await scene.hold()
    for number, name in enumerate(names):
        amount = hold(number + 1, meters=(Meter(f"agent/{name}/tester", DAY),))
        await scene.ledger.append(Append(lease, reserve=Reservation(f"e{number}", amount)))
    caps = [Cap("day", f"agent/{name}/tester", DAY, DAY) for name in names]
    found = await scene.ledger.balances(caps)
    assert [one.held_micro_usd for one in found] == list(range(1, len(names) + 1))


@case
async def many_at_once_never_pass_the_cap(scene: Scene) -> None:
    leases = [(await scene.hold())[1] for _ in range(40)]
    admitted = await _storm(scene.ledger, leases, 7)
    assert admitted == 100 // 7
    assert await balance(scene.ledger) == Balance(0, admitted * 7)


@peer_case
async def two_ledgers_on_one_store_share_one_pool(scene: Scene, other: Scene) -> None:
    mine = [(await scene.hold("ann"))[1] for _ in range(20)]
    yours = [(await other.hold("bob"))[1] for _ in range(20)]
    async with asyncio.TaskGroup() as group:
        first = group.create_task(_storm(scene.ledger, mine, 7))
        second = group.create_task(_storm(other.ledger, yours, 7))
    assert first.result() + second.result() == 100 // 7
    assert await balance(scene.ledger) == await balance(other.ledger) == Balance(0, 98)


async def _storm(ledger: Ledger, leases: Sequence[Lease], amount: int) -> int:
    """How many of the leases' reservations were admitted."""
    answers = [ledger.append(Append(lease, reserve=reserve("e", amount))) for lease in leases]
    names = [await _name(answer) for answer in answers]
    assert set(names) <= {"Appended", "BudgetBusy"}
    return names.count("Appended")


async def _name(answer: Awaitable[object]) -> str:
    """The name of the answer's class, or of the error's."""
    try:
        return type(await answer).__name__
    except AtlasError as error:
        return type(error).__name__


class Naive:
    """Budgets as a list of everything that ever happened, counted from the start each time."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], Hold] = {}
        self.spent: list[tuple[Hold, Spend, bool]] = []

    def balance(self, cap: Cap) -> Balance:
        """What is spent and held under a cap."""
        mine = [one for one in self.held.values() if any(cap.covers(meter) for meter in one.meters)]
        past = [spend for one, spend, _ in self.spent if any(cap.covers(meter) for meter in one.meters)]
        return Balance(
            sum(spend.cost_micro_usd for spend in past),
            sum(one.micro_usd for one in mine),
            sum(spend.tokens_in + spend.tokens_out for spend in past),
            sum(one.tokens for one in mine),
        )

    def outcome(self, asked: Reservation) -> str:
        """What becomes of a reservation."""
        busy = ""
        for cap in asked.caps:
            found = self.balance(cap)
            for limit, spent, held, want in (
                (cap.micro_usd, found.spent_micro_usd, found.held_micro_usd, asked.hold.micro_usd),
                (cap.tokens, found.spent_tokens, found.held_tokens, asked.hold.tokens),
            ):
                if limit is not None and spent + want > limit:
                    return "budget_refused"
                if limit is not None and spent + held + want > limit:
                    busy = "budget_busy"
        return busy

    def settle(self, key: tuple[str, str], spend: Spend, *, is_estimated: bool) -> None:
        """Counts what was spent instead of what was held."""
        self.spent.append((self.held.pop(key), spend, is_estimated))


async def _play(scene: Scene, seed: int, steps: int = 250) -> None:
    """Random reservations, settlements and ends do on the ledger what they do when everything is counted again."""
    pick, naive = random.Random(seed), Naive()
    scopes = {"tree/a": ("",), "tree/a/b": ("",), "fleet": tuple(f"2026-11-{day:02d}" for day in range(1, 10))}
    caps = [
        *(Cap("a", "tree/a", micro_usd=4_000), Cap("b", "tree/a/b", micro_usd=1_500, tokens=900)),
        *(
            Cap("week", "fleet", "2026-11-02", "2026-11-08", 3_000),
            Cap("day", "fleet", "2026-11-04", "2026-11-04", 700),
        ),
    ]
    leases: dict[str, Lease] = {}
    for number in range(steps):
        if len(leases) < 5:
            run, lease = await scene.hold()
            leases[run.run_id] = lease
        run_id = pick.choice(sorted(leases))
        mine = sorted(effect for owner, effect in naive.held if owner == run_id)
        roll = pick.random()
        if roll < 0.55 or not mine:
            meters = tuple(Meter(name, pick.choice(scopes[name])) for name in scopes if pick.random() < 0.7)
            asked = Reservation(f"e{number}", hold(pick.randrange(400), pick.randrange(200), meters), tuple(caps))
            expected = naive.outcome(asked)
            found = await _outcome(scene.ledger, Append(leases[run_id], reserve=asked))
            assert found == expected, (number, found, expected)
            if not expected:
                naive.held[run_id, asked.effect] = asked.hold
        elif roll < 0.95:
            effect = pick.choice(mine)
            spend = Spend(0, pick.randrange(100), pick.randrange(100), pick.randrange(300))
            await scene.ledger.append(Append(leases[run_id], settle=(Settlement(effect, spend, MODEL),)))
            naive.settle((run_id, effect), spend, is_estimated=False)
        else:
            await scene.end(leases.pop(run_id))
            for effect in mine:
                one = naive.held[run_id, effect]
                spend = Spend(0, one.tokens - one.max_output_tokens, one.max_output_tokens, one.micro_usd)
                naive.settle((run_id, effect), spend, is_estimated=True)
        assert await scene.ledger.balances(caps) == tuple(naive.balance(cap) for cap in caps)
    for is_estimated in (False, True):
        total = sum(spend.cost_micro_usd for _, spend, guess in naive.spent if guess is is_estimated)
        rows = [row for row in await scene.ledger.spend() if row.is_estimated is is_estimated]
        assert sum(row.spend.cost_micro_usd for row in rows) == total


async def _outcome(ledger: Ledger, batch: Append) -> str:
    try:
        await ledger.append(batch)
    except AtlasError as error:
        return error.reason
    return ""


def _random_case(seed: int) -> Case:
    async def play(rig: Rig) -> None:
        async with open_scene(rig) as scene:
            await _play(scene, seed)

    return Case(f"budgets_are_what_counting_everything_again_gives_{seed}", play)


RANDOM_BUDGETS = tuple(_random_case(seed) for seed in (1, 2, 3))
