"""The ledger's contract: submitting, keys and sessions."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from atlas.kernel.errors import Conflict, NotFound
from atlas.kernel.run import Append, Submitted
from atlas.testing.ledger_rig import Scene, case, peer_case, refused


@case
async def submitting_creates_row_first_event_session_and_place_in_the_queue(scene: Scene) -> None:
    run = scene.new_run(priority=3, place="gpu", key="k", fingerprint="f", version="2.0.0", snapshot="s2")
    assert await scene.ledger.submit(run) == Submitted(run.run_id, True)
    row = await scene.ledger.run(run.run_id)
    assert (row.run_id, row.session_id, row.turn, row.agent) == (run.run_id, run.session_id, 1, "tester")
    assert (row.version, row.snapshot, row.principal) == ("2.0.0", "s2", "owner")
    assert (row.parent_run_id, row.root_run_id, row.depth) == ("", run.run_id, 0)
    assert (row.priority, row.place, row.key, row.state) == (3, "gpu", "k", "queued")
    assert (row.owner, row.lease_until_us, row.ended_us, row.head_seq) == ("", 0, 0, 1)
    [event] = await scene.ledger.events(run.run_id)
    assert (event.seq, event.kind, event.body) == (1, "run.created", run.created.body)
    assert (event.time_us, event.principal, event.hash) == (run.created.time_us, "owner", row.head_hash)
    session = await scene.ledger.session(run.session_id)
    assert (session.agent, session.principal, session.turns, session.branch_of) == ("tester", "owner", 1, "")
    assert await scene.claim_ids(places=("gpu",)) == [run.run_id]


@case
async def a_lazy_submission_is_committed_by_itself(scene: Scene) -> None:
    run = scene.new_run()
    async with asyncio.timeout(5):
        assert await scene.ledger.submit(run, lazy=True) == Submitted(run.run_id, True)
    assert await scene.claim_ids() == [run.run_id]


@case
async def a_claim_takes_a_lazy_submission_made_before_it(scene: Scene) -> None:
    run = scene.new_run()
    submitting = asyncio.ensure_future(scene.ledger.submit(run, lazy=True))
    await asyncio.sleep(0)
    assert await scene.claim_ids() == [run.run_id]
    assert await submitting == Submitted(run.run_id, True)


@case
async def the_same_key_gives_the_run_made_first(scene: Scene) -> None:
    first = await scene.submit(key="k", fingerprint="f")
    again = scene.new_run(key="k", fingerprint="f")
    assert await scene.ledger.submit(again) == Submitted(first.run_id, False)
    with refused(NotFound):
        await scene.ledger.run(again.run_id)
    lease = await scene.take(first.run_id)
    await scene.end(lease)
    assert await scene.ledger.submit(again) == Submitted(first.run_id, False), "a terminal result is sticky"
    assert await scene.ledger.head() == 2


@case
async def the_same_key_for_something_else_is_a_conflict(scene: Scene) -> None:
    await scene.submit(key="k", fingerprint="f")
    with refused(Conflict, "key_reused"):
        await scene.submit(key="k", fingerprint="other")
    assert await scene.ledger.head() == 1


@case
async def keys_belong_to_a_principal_and_an_agent(scene: Scene) -> None:
    await scene.submit(key="k", fingerprint="f")
    for changes in ({"principal": "eve"}, {"agent": "writer"}, {"key": "k2"}):
        run = scene.new_run(**({"key": "k", "fingerprint": "other"} | changes))
        assert await scene.ledger.submit(run) == Submitted(run.run_id, True)


@case
async def runs_without_a_key_are_always_new(scene: Scene) -> None:
    first, second = await scene.submit(), await scene.submit()
    assert len({first.run_id, second.run_id, *await scene.claim_ids()}) == 2


@case
async def the_same_run_is_created_once(scene: Scene) -> None:
    run = await scene.submit()
    assert await scene.ledger.submit(run) == Submitted(run.run_id, False)
    assert (await scene.ledger.session(run.session_id)).turns == 1
    assert await scene.ledger.head() == 1


async def submit_all(scene: Scene, other: Scene) -> None:
    """Submits one key many times at once."""
    runs = [(scene, other)[number % 2].new_run(key="k", fingerprint="f") for number in range(20)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task((scene, other)[number % 2].ledger.submit(run)) for number, run in enumerate(runs)]
    answers = [task.result() for task in tasks]
    assert len({answer.run_id for answer in answers}) == 1
    assert sum(answer.is_new for answer in answers) == 1
    assert await scene.claim_ids() == [answers[0].run_id]


@case
async def a_key_submitted_many_times_at_once_makes_one_run(scene: Scene) -> None:
    await submit_all(scene, scene)


@peer_case
async def a_key_submitted_through_two_ledgers_at_once_makes_one_run(scene: Scene, other: Scene) -> None:
    await submit_all(scene, other)


@case
async def a_session_belongs_to_one_agent_and_one_principal(scene: Scene) -> None:
    first = await scene.submit()
    for changes in ({"agent": "writer"}, {"principal": "eve"}):
        with refused(Conflict, "session_mismatch"):
            await scene.submit(session_id=first.session_id, **changes)
    assert (await scene.ledger.session(first.session_id)).turns == 1
    assert await scene.ledger.head() == 1


@case
async def a_child_of_another_agent_lives_in_its_parents_session(scene: Scene) -> None:
    parent, lease = await scene.hold()
    child = scene.new_child(parent, agent="writer")
    await scene.ledger.append(Append(lease, children=(child,)))
    row = await scene.ledger.run(child.run_id)
    assert (row.session_id, row.turn, row.parent_run_id) == (parent.session_id, 0, parent.run_id)
    session = await scene.ledger.session(parent.session_id)
    assert (session.agent, session.turns) == ("tester", 1)


@case
async def a_branch_remembers_its_session(scene: Scene) -> None:
    first = await scene.submit()
    branch = await scene.submit(branch_of=first.session_id)
    assert (await scene.ledger.session(branch.session_id)).branch_of == first.session_id


@case
async def a_branch_goes_on_from_the_turn_that_it_leaves(scene: Scene) -> None:
    first = await scene.submit()
    await scene.submit(session_id=first.session_id)
    branch = await scene.submit(branch_of=first.session_id, branch_turn=2)
    session = await scene.ledger.session(branch.session_id)
    assert (session.branch_of, session.branch_turn, session.turns) == (first.session_id, 2, 2)
    later = await scene.submit(session_id=branch.session_id)
    turns = [(await scene.ledger.run(one.run_id)).turn for one in (branch, later)]
    assert turns == [2, 3]
    assert (await scene.ledger.session(first.session_id)).turns == 2, "the session it left is as it was"
    lease = await scene.take(branch.run_id)
    assert await scene.claim_ids() == [first.run_id]
    await scene.end(lease)
    assert await scene.claim_ids() == [later.run_id]


@case
async def what_does_not_exist_is_not_found(scene: Scene) -> None:
    with refused(NotFound):
        await scene.ledger.run("run_that_never_was")
    with refused(NotFound):
        await scene.ledger.session("ses_that_never_was")
    assert await scene.ledger.events("run_that_never_was") == []
    assert await scene.ledger.signals("run_that_never_was") == []


@case
async def a_refused_submission_leaves_nothing_behind(scene: Scene) -> None:
    first = await scene.submit()
    foreign = scene.new_run(session_id=first.session_id, agent="writer", key="k", fingerprint="f")
    with refused(Conflict):
        await scene.ledger.submit(foreign)
    fixed = replace(foreign, session_id=scene.new_id("ses_"), fingerprint="g")
    assert await scene.ledger.submit(fixed) == Submitted(fixed.run_id, True), "the key was not taken"
