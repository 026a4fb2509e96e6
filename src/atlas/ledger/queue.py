"""The queue: tags, claims and leases. Every function runs inside the writer's transaction, on any database.

The lock that a transaction begins with admits one writer at a time over all processes, so what a claim reads cannot
change before it commits, and no run is claimed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from atlas.kernel.run import Claimed, Lease
from atlas.ledger.desk import Desk
from atlas.ledger.rule import claimed_state, lease_us, next_tag


class Wanted(msgspec.Struct, frozen=True):
    """What a claim asks for."""

    owner: str
    limit: int
    lease_s: float
    max_running: int
    places: tuple[str, ...]
    run_id: str


def claim(desk: Desk, wanted: Wanted) -> list[Claimed]:
    """Makes up to `limit` runs running: lapsed leases first, then by priority, tag and age."""
    if wanted.run_id:
        return _claim_one(desk, wanted)
    _promote_due(desk)
    room = wanted.max_running - desk.one("count_running", (desk.now_us,))[0]
    room = min(room, wanted.limit)
    if room <= 0:
        return []
    lapsed = [row for row in desk.all("lapsed_runs", (desk.now_us,)) if row[5] in wanted.places][:room]
    taken = [_take(desk, row, wanted) for row in lapsed]
    room -= len(taken)
    if room > 0:
        ready: list[Any] = []
        for place in dict.fromkeys(wanted.places):
            ready += desk.all("ready_runs", (place, room))
        # Columns: rowid, run_id, state, owner, generation, place, priority, tag, created_us.
        ready.sort(key=lambda row: (-row[6], row[7], row[8], row[1]))
        for row in ready[:room]:
            desk.do("set_lane_tag", (row[5], row[6], "", row[7]))
            taken.append(_take(desk, row, wanted))
    return taken


def tag_for(desk: Desk, place: str, priority: int, root_run_id: str) -> int:
    """The next tag of the tree in the lane, now given away."""
    virtual_time = desk.one("lane_tag", (place, priority, ""))
    last = desk.one("lane_tag", (place, priority, root_run_id))
    tag = next_tag(virtual_time[0] if virtual_time else 0, last[0] if last else 0)
    desk.do("set_lane_tag", (place, priority, root_run_id, tag))
    return tag


def queue(desk: Desk, rowid: int | str, due_us: int, place: str, priority: int, root_run_id: str) -> None:
    """Puts a run that nobody holds into the queue, claimable from `due_us` on.

    Such a run has been claimed before, so no earlier turn of its session is open.
    """
    tag = tag_for(desk, place, priority, root_run_id) if due_us <= desk.now_us else 0
    desk.do("queue_run", (desk.now_us, due_us, tag, rowid))


def open_next_turn(desk: Desk, session_id: str) -> None:
    """Lets the oldest turn that has not ended be claimed, now that the one before it has."""
    row = desk.one("next_turn", (session_id,))
    if row is None:
        return
    rowid, state, due_us, place, priority, root_run_id = row
    is_ready = state == "queued" and due_us <= desk.now_us
    desk.do("unblock", (tag_for(desk, place, priority, root_run_id) if is_ready else 0, rowid))


def renew(desk: Desk, leases: Sequence[Lease], lease_s: float) -> list[Lease]:
    """The leases still held, extended."""
    until_us = desk.now_us + lease_us(lease_s)
    return [
        Lease(lease.run_id, lease.owner, lease.generation, until_us)
        for lease in leases
        if desk.do("renew_lease", (until_us, lease.run_id, lease.owner, lease.generation))
    ]


def expire(desk: Desk, owner: str) -> int:
    """Lets every live lease of `owner` lapse now."""
    desk.work.add(owner)  # stands for all that it held
    return desk.do("expire_owner", (desk.now_us, owner, desk.now_us))


def _claim_one(desk: Desk, wanted: Wanted) -> list[Claimed]:
    row = desk.one("one_run", (wanted.run_id,))
    if row is None:
        return []
    owner, place, is_blocked, lease_until_us = row[3], row[5], row[8], row[9]
    is_held = owner and lease_until_us > desk.now_us
    if is_held or is_blocked or place not in wanted.places or wanted.limit < 1:
        return []
    return [_take(desk, row, wanted)]


def _promote_due(desk: Desk) -> None:
    """Gives a tag to each run that came due; only now, so that runs scheduled long ago get no head start."""
    for rowid, place, priority, root_run_id in desk.all("runs_come_due", (desk.now_us,)):
        desk.do("set_tag", (tag_for(desk, place, priority, root_run_id), rowid))


def _take(desk: Desk, row: Any, wanted: Wanted) -> Claimed:
    rowid, run_id, state, owner, generation = row[:5]
    lease = Lease(run_id, wanted.owner, generation + 1, desk.now_us + lease_us(wanted.lease_s))
    changed = (claimed_state(state), lease.owner, lease.generation, lease.until_us, desk.now_us, rowid)
    desk.do("take_run", changed)
    desk.work.discard(run_id)
    return Claimed(lease, owner)
