"""The ledger's contract: signals, and that no order of sending and parking loses a wake-up."""

from __future__ import annotations

import asyncio

from atlas.kernel.errors import Conflict, NotFound
from atlas.kernel.run import Append
from atlas.testing.ledger_rig import Scene, case, peer_case, refused


async def ids(scene: Scene, run_id: str = "") -> list[str]:
    """The open signals."""
    return [signal.id for signal in await scene.ledger.signals(run_id)]


@case
async def a_signal_is_kept_until_it_is_consumed(scene: Scene) -> None:
    run, lease = await scene.hold()
    signal = scene.new_signal(run.run_id, kind="cancel", principal="eve", body=b'{"a": 1}')
    assert await scene.ledger.signal(signal)
    [kept] = await scene.ledger.signals(run.run_id)
    assert (kept.id, kept.run_id, kept.kind) == (signal.id, run.run_id, "cancel")
    assert (kept.principal, kept.body) == ("eve", b'{"a": 1}')
    await scene.ledger.append(Append(lease, (scene.note("heard"),), consumed=(signal.id,)))
    assert await ids(scene, run.run_id) == []


@case
async def an_id_is_inserted_once(scene: Scene) -> None:
    run, lease = await scene.hold()
    signal = scene.new_signal(run.run_id)
    assert await scene.ledger.signal(signal)
    assert not await scene.ledger.signal(signal)
    assert await ids(scene, run.run_id) == [signal.id]
    await scene.ledger.append(Append(lease, consumed=(signal.id,)))
    assert not await scene.ledger.signal(signal), "a consumed one counts too"
    await scene.park(lease)
    assert not await scene.ledger.signal(signal)
    assert await scene.state(run.run_id) == "waiting", "an old id wakes nobody"


@case
async def signals_come_oldest_first(scene: Scene) -> None:
    run, _ = await scene.hold()
    other, _ = await scene.hold()
    sent = [scene.new_signal((run, other)[number % 2].run_id) for number in range(6)]
    for signal in sent:
        await scene.ledger.signal(signal)
    assert await ids(scene, run.run_id) == [signal.id for signal in sent[::2]]
    assert await ids(scene) == [signal.id for signal in sent]


@case
async def signals_of_ended_runs_are_listed_by_run_only(scene: Scene) -> None:
    run, lease = await scene.hold()
    before, after = scene.new_signal(run.run_id), scene.new_signal(run.run_id)
    await scene.ledger.signal(before)
    await scene.end(lease)
    assert await scene.ledger.signal(after)
    assert await ids(scene) == []
    assert await ids(scene, run.run_id) == [before.id, after.id]


@case
async def a_signal_queues_a_parked_run(scene: Scene) -> None:
    for state in ("waiting", "in_doubt"):
        run, lease = await scene.hold()
        await scene.park(lease, state)
        await scene.ledger.signal(scene.new_signal(run.run_id))
        assert await scene.state(run.run_id) == "queued"
        assert await scene.claim_ids() == [run.run_id]


@case
async def a_signal_leaves_runs_that_are_not_parked_as_they_are(scene: Scene) -> None:
    running, _ = await scene.hold()
    warm, lease = await scene.hold()
    await scene.ledger.append(Append(lease, state="waiting"))
    ended, last = await scene.hold()
    await scene.end(last)
    queued = await scene.submit(due_us=scene.now_us + 10**12)
    runs = (running, warm, ended, queued)
    before = [await scene.ledger.run(run.run_id) for run in runs]
    for run in runs:
        await scene.ledger.signal(scene.new_signal(run.run_id))
    assert [await scene.ledger.run(run.run_id) for run in runs] == before
    assert await scene.claim_ids() == []


@case
async def a_run_released_over_an_open_signal_is_queued(scene: Scene) -> None:
    for state in ("waiting", "in_doubt"):
        run, lease = await scene.hold()
        await scene.ledger.signal(scene.new_signal(run.run_id))
        await scene.park(lease, state)
        row = await scene.ledger.run(run.run_id)
        assert (row.state, row.owner) == ("queued", "")
        assert await scene.claim_ids() == [run.run_id]


@case
async def a_run_that_consumed_its_signals_parks(scene: Scene) -> None:
    run, lease = await scene.hold()
    signal = scene.new_signal(run.run_id)
    await scene.ledger.signal(signal)
    await scene.ledger.append(Append(lease, state="waiting", release=True, consumed=(signal.id,)))
    assert await scene.state(run.run_id) == "waiting"


@case
async def a_run_that_signals_itself_does_not_sleep(scene: Scene) -> None:
    run, lease = await scene.hold()
    signal = scene.new_signal(run.run_id)
    await scene.ledger.append(Append(lease, state="waiting", release=True, signals=(signal,)))
    assert await scene.state(run.run_id) == "queued"
    assert await ids(scene) == [signal.id]


@case
async def a_child_wakes_its_parked_parent_in_the_commit_that_ends_it(scene: Scene) -> None:
    parent, lease = await scene.hold()
    child = scene.new_child(parent)
    await scene.ledger.append(Append(lease, children=(child,), state="waiting", release=True))
    below = await scene.take(child.run_id, "bob")
    signal = scene.new_signal(parent.run_id, kind="child_ended")
    await scene.ledger.append(Append(below, (scene.note("end"),), state="succeeded", signals=(signal,)))
    assert (await scene.state(child.run_id), await scene.state(parent.run_id)) == ("succeeded", "queued")
    assert await ids(scene, parent.run_id) == [signal.id]


@case
async def consuming_what_is_not_there_changes_nothing(scene: Scene) -> None:
    run, lease = await scene.hold()
    other, _ = await scene.hold()
    foreign, spent = scene.new_signal(other.run_id), scene.new_signal(run.run_id)
    for signal in (foreign, spent):
        await scene.ledger.signal(signal)
    await scene.ledger.append(Append(lease, consumed=(spent.id,)))
    before, head = await scene.ledger.run(run.run_id), await scene.ledger.head()
    for wrong in (foreign.id, spent.id, "sig_that_never_was"):
        with refused(Conflict, "signal_gone"):
            await scene.ledger.append(Append(lease, (scene.note("no"),), consumed=(wrong,)))
    assert (await scene.ledger.run(run.run_id), await scene.ledger.head()) == (before, head)
    assert await ids(scene) == [foreign.id]


@case
async def a_signal_to_an_unknown_run_is_not_found(scene: Scene) -> None:
    run, lease = await scene.hold()
    lost = scene.new_signal("run_that_never_was")
    with refused(NotFound):
        await scene.ledger.signal(lost)
    with refused(NotFound):
        await scene.ledger.append(Append(lease, (scene.note("no"),), signals=(lost,)))
    assert await scene.texts(run.run_id) == []


async def race(scene: Scene, other: Scene) -> None:
    """Parks runs and signals them at the same time; whichever comes first, the run ends up queued."""
    held = [await scene.hold() for _ in range(40)]
    async with asyncio.TaskGroup() as group:
        for number, (run, lease) in enumerate(held):
            signal = other.new_signal(run.run_id)
            if number % 2:
                group.create_task(other.ledger.signal(signal))
                group.create_task(scene.park(lease))
            else:
                group.create_task(scene.park(lease))
                group.create_task(other.ledger.signal(signal))
    assert {await scene.state(run.run_id) for run, _ in held} == {"queued"}
    assert len(await scene.claim_ids()) == len(held)


@case
async def parking_and_signalling_at_once_loses_no_wake_up(scene: Scene) -> None:
    await race(scene, scene)


@peer_case
async def parking_here_and_signalling_there_loses_no_wake_up(scene: Scene, other: Scene) -> None:
    await race(scene, other)
