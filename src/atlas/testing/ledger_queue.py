"""The ledger's contract: who is claimed first, and who may be claimed at all."""

from __future__ import annotations

from typing import Any

from atlas.kernel.run import Append, NewRun
from atlas.testing.ledger_rig import PASS_S, SHORT_S, Scene, case, jumping_case

HOUR_US = 3_600_000_000


async def submit_tree(scene: Scene, children: int, **changes: Any) -> tuple[NewRun, list[str]]:
    """A root that is held and its children, queued in one commit."""
    root, lease = await scene.hold("parent", **changes)
    below = tuple(scene.new_child(root, **changes) for _ in range(children))
    await scene.ledger.append(Append(lease, children=below))
    return root, [child.run_id for child in below]


@case
async def higher_priority_comes_first(scene: Scene) -> None:
    low, high, middle = [await scene.submit(priority=priority) for priority in (-1, 5, 0)]
    assert await scene.claim_ids() == [high.run_id, middle.run_id, low.run_id]


@case
async def equal_runs_come_in_order_of_age(scene: Scene) -> None:
    runs = [(await scene.submit()).run_id for _ in range(6)]
    assert await scene.claim_ids(limit=2) == runs[:2]
    assert await scene.claim_ids() == runs[2:]


@case
async def a_run_is_not_claimed_before_it_is_due(scene: Scene) -> None:
    later = await scene.submit(due_us=scene.now_us + 200_000)
    assert await scene.claim_ids() == []
    now = await scene.submit()
    assert await scene.claim_ids() == [now.run_id]
    await scene.rig.advance(PASS_S)
    assert await scene.claim_ids() == [later.run_id]


@case
async def a_released_run_is_due_when_it_said(scene: Scene) -> None:
    run, lease = await scene.hold()
    due_us = scene.now_us + 200_000
    await scene.ledger.append(Append(lease, state="queued", release=True, due_us=due_us))
    assert (await scene.ledger.run(run.run_id)).due_us == due_us
    assert await scene.claim_ids() == []
    await scene.rig.advance(PASS_S)
    assert await scene.claim_ids() == [run.run_id]


@case
async def many_children_delay_another_tree_by_one_position_at_most(scene: Scene) -> None:
    _, crowd = await submit_tree(scene, 300)
    assert await scene.claim_ids(limit=3) == crowd[:3]
    single = await scene.submit()
    assert single.run_id in await scene.claim_ids(limit=2)
    _, pair = await submit_tree(scene, 2)
    order = await scene.claim_ids(limit=6)
    assert [order.index(child) for child in pair] <= [1, 3], order


@case
async def trees_take_turns(scene: Scene) -> None:
    _, first = await submit_tree(scene, 20)
    _, second = await submit_tree(scene, 20)
    order = await scene.claim_ids(limit=20)
    assert 9 <= sum(run_id in first for run_id in order) <= 11
    assert [run_id for run_id in order if run_id in first] == first[: sum(run_id in first for run_id in order)]
    assert [run_id for run_id in order if run_id in second] == second[: sum(run_id in second for run_id in order)]


@case
async def places_do_not_share_their_fairness(scene: Scene) -> None:
    # A tree that has had a lot in one place is not punished for it in another.
    root, lease = await scene.hold(place="gpu")
    busy = tuple(scene.new_child(root, place="gpu") for _ in range(30))
    await scene.ledger.append(Append(lease, children=busy))
    await scene.claim_ids(places=("gpu",))
    others = [(await scene.submit()).run_id for _ in range(4)]
    mine = scene.new_child(root)
    await scene.ledger.append(Append(lease, children=(mine,)))
    assert mine.run_id in await scene.claim_ids(limit=5)
    assert len(others) == 4


@jumping_case
async def runs_scheduled_long_ago_get_no_head_start(scene: Scene) -> None:
    root, lease = await scene.hold(lease_s=10_000)
    scheduled = tuple(scene.new_child(root, due_us=scene.now_us + HOUR_US) for _ in range(50))
    await scene.ledger.append(Append(lease, children=scheduled))
    other, mine = await scene.hold(lease_s=10_000)
    await scene.ledger.append(Append(mine, children=tuple(scene.new_child(other) for _ in range(60))))
    assert len(await scene.claim_ids(lease_s=10_000)) == 60
    await scene.rig.advance(3601)
    fresh = await scene.submit()
    assert fresh.run_id in await scene.claim_ids(limit=2)


@case
async def lapsed_leases_come_before_anything_queued(scene: Scene) -> None:
    lapsed, _ = await scene.hold("ann", SHORT_S)
    urgent = await scene.submit(priority=9)
    await scene.rig.advance(PASS_S)
    assert await scene.claim_ids() == [lapsed.run_id, urgent.run_id]


@case
async def only_runs_of_the_listed_places_are_claimed(scene: Scene) -> None:
    here = await scene.submit()
    gpu = await scene.submit(place="gpu")
    edge = await scene.submit(place="edge")
    assert await scene.claim_ids(places=("gpu",)) == [gpu.run_id]
    assert await scene.claim_ids(places=("nowhere",)) == []
    assert sorted(await scene.claim_ids(places=("", "edge"))) == sorted([here.run_id, edge.run_id])


@case
async def lapsed_runs_of_other_places_are_left_alone(scene: Scene) -> None:
    run = await scene.submit(place="gpu")
    await scene.claim("ann", places=("gpu",), lease_s=SHORT_S)
    await scene.rig.advance(PASS_S)
    assert await scene.claim_ids() == []
    assert await scene.claim_ids(places=("gpu",)) == [run.run_id]


@case
async def no_more_runs_are_running_than_allowed(scene: Scene) -> None:
    for _ in range(5):
        await scene.submit()
    assert len(await scene.claim("ann", limit=10, max_running=3)) == 3
    assert await scene.claim("bob", limit=10, max_running=3) == []
    assert await scene.claim("bob", limit=10, max_running=0) == []
    assert len(await scene.claim("bob", limit=10, max_running=4)) == 1


@case
async def waiting_ended_and_lapsed_runs_take_no_room(scene: Scene) -> None:
    for _ in range(7):
        await scene.submit()
    waits, ends, lapses = [claimed.lease for claimed in await scene.claim("ann", limit=3, max_running=3)]
    await scene.ledger.append(Append(waits, state="waiting"))
    await scene.end(ends)
    assert len(await scene.claim("bob", limit=10, max_running=3)) == 2
    await scene.ledger.expire("ann")
    taken = await scene.claim_ids(owner="eve", max_running=3)
    assert taken == [waits.run_id] or taken == [lapses.run_id]


@case
async def a_run_is_claimed_by_name_whatever_its_due_time_and_the_caps(scene: Scene) -> None:
    await scene.hold()
    later = await scene.submit(due_us=scene.now_us + HOUR_US)
    assert await scene.claim_ids(max_running=1) == []
    assert await scene.claim_ids(max_running=1, run_id=later.run_id) == [later.run_id]
    assert await scene.claim_ids(max_running=100, run_id=later.run_id) == [], "it is held"
    assert await scene.claim_ids(run_id="run_that_never_was") == []


@case
async def a_parked_run_is_claimed_by_name_only(scene: Scene) -> None:
    for state in ("waiting", "in_doubt"):
        run, lease = await scene.hold()
        await scene.park(lease, state)
        assert await scene.claim_ids() == []
        assert await scene.claim_ids(run_id=run.run_id) == [run.run_id]
        assert await scene.state(run.run_id) == "running"


@case
async def a_run_of_another_place_is_not_claimed_by_name(scene: Scene) -> None:
    run = await scene.submit(place="gpu")
    assert await scene.claim_ids(run_id=run.run_id) == []
    assert await scene.claim_ids(run_id=run.run_id, places=("gpu",)) == [run.run_id]


@case
async def turns_of_a_session_run_one_at_a_time_in_order(scene: Scene) -> None:
    first = await scene.submit()
    turns = [first, *[await scene.submit(session_id=first.session_id, priority=9) for _ in range(3)]]
    assert [(await scene.ledger.run(turn.run_id)).turn for turn in turns] == [1, 2, 3, 4]
    for turn in turns:
        [claimed] = await scene.claim(limit=10)
        assert claimed.lease.run_id == turn.run_id
        assert await scene.claim_ids() == []
        await scene.end(claimed.lease)
    assert await scene.claim_ids() == []


@case
async def a_parked_turn_holds_the_next_one_back(scene: Scene) -> None:
    first, lease = await scene.hold()
    second = await scene.submit(session_id=first.session_id)
    await scene.park(lease)
    assert await scene.claim_ids() == []
    assert await scene.claim_ids(run_id=second.run_id) == [], "not by name either"
    await scene.ledger.signal(scene.new_signal(first.run_id))
    [again] = await scene.claim(limit=10)
    await scene.end(again.lease)
    assert await scene.claim_ids() == [second.run_id]


@case
async def a_turn_that_has_come_still_waits_until_it_is_due(scene: Scene) -> None:
    first, lease = await scene.hold()
    second = await scene.submit(session_id=first.session_id, due_us=scene.now_us + 200_000)
    await scene.end(lease)
    assert await scene.claim_ids() == []
    await scene.rig.advance(PASS_S)
    assert await scene.claim_ids() == [second.run_id]


@case
async def children_do_not_wait_for_the_turns_of_their_session(scene: Scene) -> None:
    root, children = await submit_tree(scene, 2)
    await scene.submit(session_id=root.session_id)
    assert await scene.claim_ids() == children
    assert [(await scene.ledger.run(child)).turn for child in children] == [0, 0]


@case
async def sessions_do_not_wait_for_each_other(scene: Scene) -> None:
    first = await scene.submit()
    await scene.submit(session_id=first.session_id)
    other = await scene.submit()
    assert await scene.claim_ids() == [first.run_id, other.run_id]
