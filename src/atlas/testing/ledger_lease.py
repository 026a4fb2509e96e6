"""The ledger's contract: leases, fencing and takeover."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from atlas.kernel.errors import Fault, NotFound, StaleLease
from atlas.kernel.run import Append, Claimed, Lease
from atlas.testing.ledger_rig import LONG_S, PASS_S, SHORT_S, Scene, case, peer_case, refused


async def refused_as_stale(scene: Scene, lease: Lease) -> None:
    """Fails unless an append under the lease is refused and changes nothing."""
    before, head = await scene.ledger.run(lease.run_id), await scene.ledger.head()
    with refused(StaleLease):
        await scene.ledger.append(Append(lease, (scene.note("too late"),), state="failed"))
    assert await scene.ledger.run(lease.run_id) == before
    assert await scene.ledger.head() == head


@case
async def claiming_makes_a_run_running_under_a_lease(scene: Scene) -> None:
    run = await scene.submit()
    assert await scene.state(run.run_id) == "queued"
    [claimed] = await scene.claim("ann")
    assert (claimed.lease.run_id, claimed.lease.owner, claimed.previous_owner) == (run.run_id, "ann", "")
    row = await scene.ledger.run(run.run_id)
    assert (row.state, row.owner, row.generation) == ("running", "ann", claimed.lease.generation)
    assert row.lease_until_us == claimed.lease.until_us > row.created_us
    assert await scene.claim("bob") == []


@case
async def a_taken_over_owner_cannot_append(scene: Scene) -> None:
    _, old = await scene.hold("ann", SHORT_S)
    await scene.rig.advance(PASS_S)
    [taken] = await scene.claim("bob")
    assert (taken.previous_owner, taken.lease.generation) == ("ann", old.generation + 1)
    await refused_as_stale(scene, old)
    await scene.ledger.append(Append(taken.lease, (scene.note("mine"),)))
    assert await scene.texts(old.run_id) == ["mine"]


@case
async def the_same_owner_is_fenced_by_generation_too(scene: Scene) -> None:
    _, old = await scene.hold("ann", SHORT_S)
    await scene.rig.advance(PASS_S)
    [again] = await scene.claim("ann")
    assert again.previous_owner == "ann"
    await refused_as_stale(scene, old)


@case
async def a_generation_alone_is_no_lease(scene: Scene) -> None:
    _, lease = await scene.hold("ann")
    await refused_as_stale(scene, replace(lease, owner="bob"))


@case
async def a_lapsed_lease_nobody_took_still_appends(scene: Scene) -> None:
    run, lease = await scene.hold("ann", SHORT_S)
    await scene.rig.advance(PASS_S)
    await scene.ledger.append(Append(lease, (scene.note("slept"),)))
    assert await scene.texts(run.run_id) == ["slept"]


@case
async def renewing_keeps_a_lease_alive(scene: Scene) -> None:
    _, lease = await scene.hold("ann", SHORT_S)
    [renewed] = await scene.ledger.renew([lease], LONG_S)
    assert renewed.until_us > lease.until_us
    await scene.rig.advance(PASS_S)
    assert await scene.claim("bob") == []


@case
async def a_lapsed_lease_nobody_took_is_renewed(scene: Scene) -> None:
    _, lease = await scene.hold("ann", SHORT_S)
    await scene.rig.advance(PASS_S)
    assert len(await scene.ledger.renew([lease], LONG_S)) == 1
    assert await scene.claim("bob") == []


@case
async def lost_leases_are_missing_from_a_renewal(scene: Scene) -> None:
    _, kept = await scene.hold("ann")
    _, released = await scene.hold("ann")
    _, ended = await scene.hold("ann")
    _, taken = await scene.hold("ann", SHORT_S)
    await scene.park(released)
    await scene.end(ended)
    await scene.rig.advance(PASS_S)
    assert await scene.claim_ids(owner="bob") == [taken.run_id]
    gone = replace(kept, run_id="run_that_never_was")
    renewed = await scene.ledger.renew([released, kept, ended, taken, gone], LONG_S)
    assert [lease.run_id for lease in renewed] == [kept.run_id]


@case
async def a_released_lease_is_over(scene: Scene) -> None:
    run, lease = await scene.hold("ann")
    await scene.ledger.append(Append(lease, (scene.note("back"),), state="queued", release=True))
    row = await scene.ledger.run(run.run_id)
    assert (row.state, row.owner, row.lease_until_us) == ("queued", "", 0)
    await refused_as_stale(scene, lease)
    [claimed] = await scene.claim("bob")
    assert (claimed.previous_owner, claimed.lease.generation) == ("", lease.generation + 1)


@case
async def a_run_given_back_while_running_is_queued(scene: Scene) -> None:
    run, lease = await scene.hold("ann")
    await scene.ledger.append(Append(lease, release=True))
    assert await scene.claim_ids(owner="bob") == [run.run_id]


@case
async def ending_gives_the_lease_back(scene: Scene) -> None:
    run, lease = await scene.hold("ann")
    await scene.end(lease, "failed")
    row = await scene.ledger.run(run.run_id)
    assert (row.state, row.owner, row.lease_until_us) == ("failed", "", 0)
    assert row.ended_us >= row.created_us
    await refused_as_stale(scene, lease)
    assert await scene.claim("bob") == []


@case
async def an_ended_run_is_claimed_by_name_only_and_stays_ended(scene: Scene) -> None:
    run, lease = await scene.hold("ann")
    await scene.end(lease, "cancelled")
    ended_us = (await scene.ledger.run(run.run_id)).ended_us
    later = await scene.take(run.run_id, "bob", SHORT_S)
    assert await scene.state(run.run_id) == "cancelled"
    assert await scene.claim("eve", run_id=run.run_id) == []
    await scene.rig.advance(PASS_S)
    assert await scene.claim("eve") == []
    await scene.ledger.append(Append(later, (scene.note("resolved"),), release=True))
    row = await scene.ledger.run(run.run_id)
    assert (row.state, row.owner, row.ended_us) == ("cancelled", "", ended_us)
    await refused_as_stale(scene, later)
    assert await scene.texts(run.run_id) == ["end", "resolved"]


@case
async def a_run_that_waits_warm_is_taken_over_when_its_lease_lapses(scene: Scene) -> None:
    run, lease = await scene.hold("ann", SHORT_S)
    await scene.ledger.append(Append(lease, state="waiting"))
    row = await scene.ledger.run(run.run_id)
    assert (row.state, row.owner) == ("waiting", "ann")
    assert await scene.claim("bob") == []
    await scene.rig.advance(PASS_S)
    assert [claimed.previous_owner for claimed in await scene.claim("bob")] == ["ann"]
    assert await scene.state(run.run_id) == "running"


@case
async def a_signal_does_not_hide_who_held_a_lapsed_run(scene: Scene) -> None:
    run, lease = await scene.hold("ann", SHORT_S)
    await scene.ledger.append(Append(lease, state="waiting"))
    await scene.rig.advance(PASS_S)
    await scene.ledger.signal(scene.new_signal(run.run_id))
    assert [claimed.previous_owner for claimed in await scene.claim("bob")] == ["ann"]


@case
async def a_warm_parent_goes_on_under_its_lease(scene: Scene) -> None:
    run, lease = await scene.hold("ann")
    await scene.ledger.append(Append(lease, state="waiting"))
    await scene.ledger.append(Append(lease, (scene.note("on"),), state="running"))
    assert (await scene.state(run.run_id), await scene.texts(run.run_id)) == ("running", ["on"])


@case
async def a_run_in_doubt_whose_holder_died_is_taken_over(scene: Scene) -> None:
    run, lease = await scene.hold("ann", SHORT_S)
    await scene.ledger.append(Append(lease, state="in_doubt"))
    await scene.rig.advance(PASS_S)
    assert await scene.claim_ids(owner="bob") == [run.run_id]
    assert await scene.state(run.run_id) == "running"


@case
async def a_forbidden_change_of_state_changes_nothing(scene: Scene) -> None:
    run, lease = await scene.hold("ann")
    await scene.ledger.append(Append(lease, state="in_doubt"))
    before = await scene.ledger.run(run.run_id)
    with refused(Fault, "bad_transition"):
        await scene.ledger.append(Append(lease, (scene.note("no"),), state="succeeded"))
    assert await scene.ledger.run(run.run_id) == before


@case
async def appending_to_an_unknown_run_is_not_found(scene: Scene) -> None:
    _, lease = await scene.hold("ann")
    with refused(NotFound):
        await scene.ledger.append(Append(replace(lease, run_id="run_that_never_was")))


@case
async def owners_are_those_with_live_leases(scene: Scene) -> None:
    await scene.hold("bob")
    await scene.hold("ann")
    await scene.hold("ann")
    await scene.hold("eve", SHORT_S)
    await scene.rig.advance(PASS_S)
    _, given_back = await scene.hold("zoe")
    await scene.park(given_back)
    assert await scene.ledger.owners() == ["ann", "bob"]


@case
async def expiring_an_owner_lets_its_leases_lapse_and_no_others(scene: Scene) -> None:
    first, _ = await scene.hold("ann")
    second, _ = await scene.hold("ann")
    await scene.hold("bob")
    assert await scene.ledger.expire("ann") == 2
    assert await scene.ledger.expire("ann") == 0
    assert await scene.ledger.owners() == ["bob"]
    taken = await scene.claim("eve", limit=10)
    assert {(claimed.lease.run_id, claimed.previous_owner) for claimed in taken} == {
        (first.run_id, "ann"),
        (second.run_id, "ann"),
    }


async def claim_all(scene: Scene, owner: str, into: list[Claimed], limit: int) -> None:
    """Claims until nothing is left."""
    while claimed := await scene.claim(owner, limit=limit):
        into += claimed


@case
async def no_run_is_claimed_twice_by_concurrent_claimers(scene: Scene) -> None:
    runs = [(await scene.submit()).run_id for _ in range(60)]
    taken: list[Claimed] = []
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(claim_all(scene, f"owner{number}", taken, 1 + number % 3))
    assert sorted(claimed.lease.run_id for claimed in taken) == sorted(runs)


@peer_case
async def no_run_is_claimed_twice_through_two_ledgers(scene: Scene, other: Scene) -> None:
    runs = [(await scene.submit()).run_id for _ in range(60)]
    taken: list[Claimed] = []
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(claim_all((scene, other)[number % 2], f"owner{number}", taken, 1 + number % 3))
    assert sorted(claimed.lease.run_id for claimed in taken) == sorted(runs)


@peer_case
async def an_owner_is_fenced_through_another_ledger(scene: Scene, other: Scene) -> None:
    _, old = await scene.hold("ann", SHORT_S)
    await scene.rig.advance(PASS_S)
    [taken] = await other.claim("bob")
    await refused_as_stale(scene, old)
    await other.ledger.append(Append(taken.lease, (scene.note("mine"),)))
    assert await scene.texts(old.run_id) == ["mine"]
