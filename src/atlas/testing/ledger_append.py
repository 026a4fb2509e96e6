"""The ledger's contract: a batch happens whole or not at all, and batches happen in order."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from atlas.kernel.errors import AtlasError, Conflict, Fault, LedgerUnavailable, LimitRefused, NotFound, StaleLease
from atlas.kernel.event import Draft, Spend
from atlas.kernel.run import Append, Appended, InboxItem, Lease, TreeLimits
from atlas.testing.ledger_rig import Scene, case, jumping_case, locking_case, peer_case, refused


@case
async def an_append_says_where_it_ended(scene: Scene) -> None:
    _, first = await scene.hold()
    _, second = await scene.hold()
    assert await scene.ledger.append(Append(first, (scene.note("a"), scene.note("b")))) == Appended(3, 4)
    assert await scene.ledger.append(Append(second, (scene.note("c"),))) == Appended(2, 5)
    assert await scene.ledger.append(Append(first)) == Appended(3, 5), "a batch without events moves nothing"
    assert await scene.ledger.head() == 5


@case
async def bodies_are_stored_byte_for_byte(scene: Scene) -> None:
    run, lease = await scene.hold()
    body = '{"message":  "ü\\u00fc \U0001f600", "level":"x" }'.encode()
    written = Draft("logged", 123_456_789, "zoë", body, 1)
    await scene.ledger.append(Append(lease, (written,)))
    [event] = await scene.ledger.events(run.run_id, after=1)
    assert (event.kind, event.time_us, event.principal, event.body, event.version) == (
        *("logged", 123_456_789, "zoë", body, 1),
    )


@case
async def batches_happen_in_the_order_of_the_calls(scene: Scene) -> None:
    run, lease = await scene.hold()
    pending = [scene.ledger.append(Append(lease, (scene.note(str(n)),), lazy=n % 3 != 0)) for n in range(50)]
    last = await pending[-1]
    assert [answer.seq for answer in [await one for one in pending[:-1]]] == list(range(2, 51))
    assert last.seq == 51
    assert await scene.texts(run.run_id) == [str(n) for n in range(50)]


@case
async def a_lazy_batch_is_committed_by_itself(scene: Scene) -> None:
    run, lease = await scene.hold()
    async with asyncio.timeout(5):
        await scene.ledger.append(Append(lease, (scene.note("alone"),), lazy=True))
    assert await scene.texts(run.run_id) == ["alone"]


@case
async def a_later_call_waits_for_batches_before_it(scene: Scene) -> None:
    run, lease = await scene.hold()
    pending = scene.ledger.append(Append(lease, (scene.note("parks"),), state="waiting", release=True, lazy=True))
    await scene.ledger.signal(scene.new_signal(run.run_id))
    await pending
    assert await scene.state(run.run_id) == "queued"


@case
async def a_batch_whose_caller_went_away_still_happens(scene: Scene) -> None:
    run, lease = await scene.hold()
    future = asyncio.ensure_future(scene.ledger.append(Append(lease, (scene.note("kept"),))))
    future.cancel()
    await scene.ledger.append(Append(lease, (scene.note("next"),)))
    assert await scene.texts(run.run_id) == ["kept", "next"]


async def outcome(pending: Any) -> str:
    """What became of an append."""
    try:
        await pending
    except AtlasError as error:
        return error.reason
    return "ok"


@case
async def a_refused_batch_leaves_its_neighbours_untouched(scene: Scene) -> None:
    run, lease = await scene.hold()
    stale = replace(lease, generation=lease.generation - 1)
    limits = TreeLimits(runs=1, spawns_per_minute=100)
    signal = scene.new_signal(run.run_id)
    await scene.ledger.signal(signal)
    batches = [
        Append(lease, (scene.note("1"),), consumed=(signal.id,)),
        Append(stale, (scene.note("no"),)),
        Append(lease, (scene.note("2"),)),
        Append(lease, (scene.note("no"),), consumed=(signal.id,)),
        Append(lease, (scene.note("3"),)),
        Append(lease, (scene.note("no"),), children=(scene.new_child(run),), tree_limits=limits),
        Append(lease, (Draft("logged", 1, "\ud800", b"{}"),)),
        Append(lease, (scene.note("4"),)),
    ]
    pending = [scene.ledger.append(batch) for batch in batches]
    answers = [await outcome(one) for one in pending]
    assert answers == ["ok", "stale_lease", "ok", "signal_gone", "ok", "max_runs_per_tree", "bad_record", "ok"]
    assert await scene.texts(run.run_id) == ["1", "2", "3", "4"]
    await scene.check_chains([run.run_id])


@locking_case
async def nothing_takes_effect_behind_an_append_that_was_lost(scene: Scene) -> None:
    run, lease = await scene.hold()
    other, free = await scene.hold()
    behind: list[Any] = []
    async with scene.rig.lock():
        lost = asyncio.ensure_future(scene.ledger.append(Append(lease, (scene.note("lost"),))))
        while not lost.done():
            # The holder cannot know yet, and the last of these come to their turn after the lock is gone.
            behind.append(scene.ledger.append(Append(lease, (scene.note("behind"),))))
            await asyncio.sleep(0.01)
        aside = scene.ledger.append(Append(free, (scene.note("aside"),)))
    with refused(LedgerUnavailable):
        await lost
    for one in behind:
        with refused(LedgerUnavailable):
            await one
    assert (await aside).seq == 2, "another lease is not concerned"
    await asyncio.sleep(0)  # answers that were there already did not let the loop tell the ledger that we heard them
    await scene.ledger.append(Append(lease, (scene.note("knowingly"),)))
    assert await scene.texts(run.run_id) == ["knowingly"]
    await scene.check_chains([run.run_id, other.run_id])


def everything(scene: Scene, lease: Lease, parent: Any) -> Append:
    """A batch that does one of each."""
    return Append(
        lease,
        (scene.note("all"),),
        state="waiting",
        release=True,
        children=(scene.new_child(parent),),
        signals=(scene.new_signal(parent.run_id),),
        spend=Spend(1, 2, 3, 4),
        inbox_open=(InboxItem(lease.run_id, "e1", "approval", "tester", "owner", b"{}", 1),),
        inbox_close=("e0",),
    )


async def picture(scene: Scene, run_id: str) -> tuple[Any, ...]:
    """Everything a batch may change."""
    ledger = scene.ledger
    row = await ledger.run(run_id)
    rows = [await ledger.head(), await ledger.inbox(), await ledger.spend(), await ledger.signals()]
    return (row, *rows, await ledger.session(row.session_id))


@case
async def a_batch_happens_whole_or_not_at_all(scene: Scene) -> None:
    run, lease = await scene.hold()
    opened = InboxItem(run.run_id, "e0", "doubt", "tester", "owner", b"{}", 1)
    await scene.ledger.append(Append(lease, inbox_open=(opened,)))
    before = await picture(scene, run.run_id)
    whole = everything(scene, lease, run)
    taken = await scene.submit(key="k", fingerprint="f")
    clash = scene.new_child(run, key="k", fingerprint="other")
    twin = scene.new_child(run, session_id="ses_twin", agent="x", principal="eve")
    twins = (twin, scene.new_child(run, session_id="ses_twin", agent="x", principal="bob"))
    before = await picture(scene, run.run_id)
    broken: list[tuple[type[AtlasError], Append]] = [
        (StaleLease, replace(whole, lease=replace(lease, generation=99))),
        (Conflict, replace(whole, consumed=("sig_that_never_was",))),
        (Conflict, replace(whole, children=(*whole.children, clash))),
        (Conflict, replace(whole, children=(*whole.children, *twins))),
        (NotFound, replace(whole, signals=(*whole.signals, scene.new_signal("run_that_never_was")))),
        (LimitRefused, replace(whole, tree_limits=TreeLimits(1, 100))),
        (Fault, replace(whole, drafts=(*whole.drafts, Draft("logged", 1, "\ud800", b"{}")))),
    ]
    for kind, batch in broken:
        with refused(kind):
            await scene.ledger.append(batch)
        assert await picture(scene, run.run_id) == before, kind
    await scene.ledger.append(whole)
    assert await scene.state(run.run_id) == "queued"
    assert [item.effect for item in await scene.ledger.inbox()] == ["e1"]
    assert len(await scene.ledger.signals(run.run_id)) == 1
    assert await scene.claim_ids() == [taken.run_id, whole.children[0].run_id, run.run_id]


@case
async def children_are_created_as_if_submitted(scene: Scene) -> None:
    root, lease = await scene.hold()
    child = scene.new_child(root, parent_effect="e1", priority=2)
    await scene.ledger.append(Append(lease, (scene.note("spawn"),), children=(child,)))
    row = await scene.ledger.run(child.run_id)
    assert (row.state, row.head_seq, row.depth, row.parent_effect) == ("queued", 1, 1, "e1")
    assert (row.root_run_id, row.parent_run_id) == (root.run_id, root.run_id)
    feed = await scene.ledger.feed(0, 10)
    assert [event.run_id for event in feed] == [root.run_id, root.run_id, child.run_id]


@case
async def a_child_is_created_once(scene: Scene) -> None:
    root, lease = await scene.hold()
    child = scene.new_child(root)
    limits = TreeLimits(runs=2, spawns_per_minute=1)
    for _ in range(3):
        await scene.ledger.append(Append(lease, children=(child,), tree_limits=limits))
    assert await scene.claim_ids() == [child.run_id]
    assert (await scene.ledger.run(child.run_id)).head_seq == 1


@case
async def a_tree_may_not_have_more_runs_than_its_limit(scene: Scene) -> None:
    root, lease = await scene.hold()
    limits = TreeLimits(runs=4, spawns_per_minute=1000)
    pair = tuple(scene.new_child(root) for _ in range(2))
    await scene.ledger.append(Append(lease, children=pair, tree_limits=limits))
    more = tuple(scene.new_child(root) for _ in range(2))
    with refused(LimitRefused, "max_runs_per_tree"):
        await scene.ledger.append(Append(lease, (scene.note("no"),), children=more, tree_limits=limits))
    below = await scene.take(pair[0].run_id, "bob")
    grandchild = scene.new_child(pair[0])
    await scene.ledger.append(Append(below, children=(grandchild,), tree_limits=limits))
    with refused(LimitRefused, "max_runs_per_tree"):
        await scene.ledger.append(Append(lease, children=more[:1], tree_limits=limits))
    assert (await scene.ledger.run(root.run_id)).head_seq == 1
    with refused(NotFound):
        await scene.ledger.run(more[0].run_id)


@case
async def ended_runs_count_and_other_trees_do_not(scene: Scene) -> None:
    root, lease = await scene.hold()
    child = scene.new_child(root)
    limits = TreeLimits(runs=2, spawns_per_minute=1000)
    await scene.ledger.append(Append(lease, children=(child,), tree_limits=limits))
    await scene.end(await scene.take(child.run_id))
    with refused(LimitRefused):
        await scene.ledger.append(Append(lease, children=(scene.new_child(root),), tree_limits=limits))
    other, free = await scene.hold()
    await scene.ledger.append(Append(free, children=(scene.new_child(other),), tree_limits=limits))


@case
async def a_tree_may_not_spawn_faster_than_its_limit(scene: Scene) -> None:
    root, lease = await scene.hold()
    limits = TreeLimits(runs=1000, spawns_per_minute=3)
    trio = tuple(scene.new_child(root) for _ in range(3))
    await scene.ledger.append(Append(lease, children=trio, tree_limits=limits))
    with refused(LimitRefused, "spawn_rate"):
        await scene.ledger.append(
            Append(lease, (scene.note("no"),), children=(scene.new_child(root),), tree_limits=limits)
        )
    assert (await scene.ledger.run(root.run_id)).head_seq == 1


@jumping_case
async def the_rate_is_of_a_rolling_minute(scene: Scene) -> None:
    root, lease = await scene.hold(lease_s=10_000)
    limits = TreeLimits(runs=1000, spawns_per_minute=2)

    async def spawn() -> str:
        batch = Append(lease, children=(scene.new_child(root),), tree_limits=limits)
        return await outcome(scene.ledger.append(batch))

    assert await spawn() == "ok"
    await scene.rig.advance(30)
    assert [await spawn(), await spawn()] == ["ok", "spawn_rate"]
    await scene.rig.advance(31.5)
    assert [await spawn(), await spawn()] == ["ok", "spawn_rate"]
    await scene.rig.advance(61.5)
    assert [await spawn(), await spawn(), await spawn()] == ["ok", "ok", "spawn_rate"]


@case
async def concurrent_spawns_do_not_pass_the_limit(scene: Scene) -> None:
    root, lease = await scene.hold()
    limits = TreeLimits(runs=11, spawns_per_minute=1000)
    batches = [Append(lease, children=(scene.new_child(root),), tree_limits=limits) for _ in range(30)]
    pending = [scene.ledger.append(batch) for batch in batches]
    answers = [await outcome(one) for one in pending]
    assert (answers.count("ok"), answers.count("max_runs_per_tree")) == (10, 20)
    assert len(await scene.claim_ids()) == 10


@case
async def spend_adds_up_by_run_and_by_day(scene: Scene) -> None:
    run, lease = await scene.hold()
    other, second = await scene.hold(agent="writer", principal="eve")
    await scene.ledger.append(Append(lease, (scene.note("a"),), spend=Spend(1, 10, 20, 300)))
    await scene.ledger.append(Append(lease, spend=Spend(2, 1, 2, 3)))
    await scene.ledger.append(Append(second, (scene.note("b"),), spend=Spend(1, 5, 5, 5)))
    await scene.ledger.append(Append(second, (scene.note("c"),)))
    assert (await scene.ledger.run(run.run_id)).spend == Spend(3, 11, 22, 303)
    assert (await scene.ledger.run(other.run_id)).spend == Spend(1, 5, 5, 5)
    rows = await scene.ledger.spend()
    assert [(row.agent, row.principal, row.spend) for row in rows] == [
        ("tester", "owner", Spend(3, 11, 22, 303)),
        ("writer", "eve", Spend(1, 5, 5, 5)),
    ]
    assert await scene.ledger.spend(agent="writer") == rows[1:]
    assert await scene.ledger.spend(since_day=rows[0].day) == rows
    assert await scene.ledger.spend(since_day="9999-01-01") == []


@jumping_case
async def spend_is_kept_by_utc_day(scene: Scene) -> None:
    _, lease = await scene.hold()
    for _ in range(3):
        await scene.ledger.append(Append(lease, spend=Spend(1)))
        await scene.rig.advance(86_400)
    days = [row.day for row in await scene.ledger.spend()]
    assert days == sorted(set(days))
    assert len(days) == 3
    assert [row.day for row in await scene.ledger.spend(since_day=days[1])] == days[1:]


@case
async def the_inbox_lists_what_is_open_oldest_first(scene: Scene) -> None:
    run, lease = await scene.hold()
    other, second = await scene.hold()
    old = InboxItem(other.run_id, "e1", "doubt", "tester", "owner", b'{"x":1}', 100)
    new = InboxItem(run.run_id, "e1", "approval", "tester", "owner", b"{}", 200)
    newer = InboxItem(run.run_id, "e2", "approval", "tester", "owner", b"{}", 300)
    await scene.ledger.append(Append(lease, inbox_open=(newer, new)))
    await scene.ledger.append(Append(second, inbox_open=(old,)))
    assert await scene.ledger.inbox() == [old, new, newer]
    assert await scene.ledger.inbox(run.run_id) == [new, newer]
    await scene.ledger.append(Append(lease, inbox_close=("e1",)))
    assert await scene.ledger.inbox() == [old, newer], "only the run's own effect is closed"


@case
async def an_item_opened_again_is_replaced(scene: Scene) -> None:
    run, lease = await scene.hold()
    asked = InboxItem(run.run_id, "e1", "approval", "tester", "owner", b"{}", 100)
    doubted = replace(asked, kind="doubt", created_us=200)
    await scene.ledger.append(Append(lease, inbox_open=(asked,)))
    await scene.ledger.append(Append(lease, inbox_open=(doubted,)))
    assert await scene.ledger.inbox() == [doubted]


@case
async def a_closed_ledger_takes_nothing(scene: Scene) -> None:
    _, lease = await scene.hold()
    pending = scene.ledger.append(Append(lease, (scene.note("last"),), lazy=True))
    await scene.ledger.close()
    assert (await pending).seq == 2, "what was handed over before is committed"
    with refused(LedgerUnavailable):
        await scene.ledger.append(Append(lease, (scene.note("no"),)))
    with refused(LedgerUnavailable):
        await scene.ledger.head()
    with refused(LedgerUnavailable):
        await scene.submit()


async def write_all(scene: Scene, lease: Lease, count: int) -> None:
    """Appends one by one."""
    for number in range(count):
        await scene.ledger.append(Append(lease, (scene.note(str(number)), scene.note("+"))))


@case
async def concurrent_writers_keep_their_chains(scene: Scene) -> None:
    held = [await scene.hold() for _ in range(10)]
    async with asyncio.TaskGroup() as group:
        for _, lease in held:
            group.create_task(write_all(scene, lease, 10))
    await scene.check_chains([run.run_id for run, _ in held])
    assert await scene.ledger.head() == 10 + 10 * 20


@peer_case
async def two_ledgers_keep_chains_and_positions(scene: Scene, other: Scene) -> None:
    held = [await scene.hold() for _ in range(8)]
    async with asyncio.TaskGroup() as group:
        for number, (_, lease) in enumerate(held):
            group.create_task(write_all((scene, other)[number % 2], lease, 10))
    await other.check_chains([run.run_id for run, _ in held])
    assert [event.position for event in await other.ledger.feed(0, 0)] == list(range(1, 8 + 8 * 20 + 1))
