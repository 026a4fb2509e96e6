"""What changes the record: submitting, appending, signalling. Runs inside the writer's transaction, on any database.

Checks come before the first write wherever a caller can provoke the refusal, because a job that is refused with
nothing written costs its group nothing. What is refused later is undone by the writer.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import astuple, replace

from atlas.kernel.chain import GENESIS
from atlas.kernel.errors import AtlasError
from atlas.kernel.run import PARKED, TERMINAL, Append, Appended, NewRun, NewSignal, RunState, Submitted
from atlas.ledger import budget, rule
from atlas.ledger.budget_desk import DeskBook, carry_out
from atlas.ledger.desk import Desk
from atlas.ledger.known import Head
from atlas.ledger.queue import open_next_turn, queue, tag_for

_NO_SPEND: Final = (0, 0, 0, 0, 0)


def submit(desk: Desk, run: NewRun) -> Submitted:
    """The run that answers the submission, created now unless it was before."""
    existing = _find(desk, run)
    if existing:
        return Submitted(existing, False)
    _create(desk, run)
    return Submitted(run.run_id, True)


def append(desk: Desk, batch: Append) -> Appended:
    """Everything in the batch, by the holder of the lease."""
    run_id = batch.lease.run_id
    head = desk.head(run_id)
    if head is None:
        raise rule.no_run(run_id)
    rule.check_fence(batch.lease, head.owner, head.generation)
    state, released = rule.settle(head.state, batch)
    children = _new_children(desk, batch, head) if batch.children else ()
    is_end = state in TERMINAL and head.state not in TERMINAL
    plan = budget.plan(DeskBook(desk), batch, is_end=is_end) if is_end or not budget.is_free(batch) else None

    seq, link = desk.write_events(run_id, batch.drafts, head.seq, head.hash) if batch.drafts else (head.seq, head.hash)
    spend = (*astuple(plan.spend), plan.estimated_micro_usd) if plan is not None and plan.totals else _NO_SPEND
    desk.touch(run_id, head, seq, link, spend)
    if plan is not None:
        carry_out(desk, plan, run_id, head.agent, head.principal)
    for signal_id in batch.consumed:
        if not desk.do("consume_signal", (seq, signal_id, run_id)):
            raise rule.signal_gone(run_id, signal_id)
    for child in children:
        submit(desk, child)
    for signal in batch.signals:
        insert_signal(desk, signal)
    for item in batch.inbox_open:
        desk.do("open_inbox", astuple(item))
    for effect in batch.inbox_close:
        desk.do("close_inbox", (run_id, effect))
    if released or state != head.state:
        _move(desk, head, batch, state, released)
    return Appended(seq, desk.position, tuple(plan.warned) if plan else ())


def append_behind(desk: Desk, before: Append, batch: Append) -> Appended:
    """Both, one after the other; the first stands alone when the second is refused before it wrote anything."""
    first = append(desk, before)
    done = desk.changes
    try:
        return append(desk, batch)
    except AtlasError as error:
        if desk.changes != done:
            raise
        return replace(first, refused=error)


def insert_signal(desk: Desk, signal: NewSignal) -> bool:
    """Stores the signal unless its id was stored before, and queues a run that sleeps.

    A run that somebody holds hears of it by its wake. A run whose lease has lapsed is claimable already, and stays
    as it is, so that whoever takes it over learns who held it.
    """
    row = desk.one("signal_target", (signal.run_id,))
    if row is None:
        raise rule.no_run(signal.run_id)
    rowid, state, owner, place, priority, root_run_id = row
    values = (signal.id, signal.run_id, signal.kind, signal.principal, signal.body, desk.now_us, int(state in TERMINAL))
    if not desk.do("insert_signal", values):
        return False
    desk.work.add(signal.run_id)
    if state in PARKED and not owner:
        queue(desk, rowid, desk.now_us, place, priority, root_run_id)
    return True


def erase(desk: Desk, run_id: str, seq: int) -> None:
    """Empties body and salt of one event."""
    if not desk.erase(run_id, seq):
        raise rule.no_event(run_id, seq)


def _find(desk: Desk, run: NewRun) -> str:
    """The run that was created for this submission before, or nothing."""
    if run.key:
        row = desk.one("find_key", (run.principal, run.agent, run.key))
        if row is not None:
            rule.check_key(run, row[0], row[1])
            return str(row[1])
    return run.run_id if desk.one("has_run", (run.run_id,)) else ""


def _new_children(desk: Desk, batch: Append, head: Head) -> tuple[NewRun, ...]:
    """The children that do not exist yet, when the tree may have that many more."""
    children = tuple(child for child in batch.children if not _find(desk, child))
    if batch.tree_limits is not None and children:
        row = desk.one("tree_runs", (head.root_run_id,))
        recent = desk.one("recent_spawns", (head.root_run_id, rule.minute_start(desk.now_us)))
        rule.check_limits(batch.tree_limits, row[0] if row else 0, recent[0], len(children))
    return children


def _create(desk: Desk, run: NewRun) -> None:
    now_us = desk.now_us
    turn = _take_turn(desk, run) if run.session_id else 0
    is_blocked = turn > 0 and desk.one("has_open_turn", (run.session_id,)) is not None
    is_ready = not is_blocked and run.due_us <= now_us
    seq, link = desk.write_events(run.run_id, (run.created,), 0, GENESIS)
    values = (
        *(run.run_id, run.session_id, turn, run.agent, run.version, run.snapshot, run.principal),
        *(run.parent_run_id, run.parent_effect, run.root_run_id, run.depth),
        *(run.priority, run.place, run.key, now_us, now_us, run.due_us, seq, link, int(is_blocked)),
        tag_for(desk, run.place, run.priority, run.root_run_id) if is_ready else 0,
    )
    desk.do("insert_run", values)
    desk.work.add(run.run_id)
    desk.do("grow_tree", (run.root_run_id,))
    if run.parent_run_id:
        desk.do("drop_old_spawns", (run.root_run_id, rule.minute_start(now_us)))
        desk.do("add_spawn", (run.root_run_id, now_us // 1_000_000))
    if run.key:
        desk.do("insert_key", (run.principal, run.agent, run.key, run.fingerprint, run.run_id))


def _take_turn(desk: Desk, run: NewRun) -> int:
    """The turn of the run in its session, which is made when new; 0 for a child."""
    row = desk.one("find_session", (run.session_id,))
    if row is None:
        turn = rule.first_turn(run)
        values = (run.session_id, run.agent, run.principal, desk.now_us, turn, run.branch_of, run.branch_turn)
        desk.do("insert_session", values)
        return turn
    agent, principal, turns = row
    rule.check_session(run, agent, principal)
    if not rule.is_turn(run):
        return 0
    desk.do("take_turn", (turns + 1, run.session_id))
    return int(turns) + 1


def _move(desk: Desk, head: Head, batch: Append, state: RunState, released: bool) -> None:
    """Gives the run its new state, and its lease back.

    Whether a signal is open is asked in the same transaction that parks: a signal committed before is seen here and
    queues the run, one committed later finds it parked and queues it. No order loses the wake-up.
    """
    desk.work.add(batch.lease.run_id)
    due_us = batch.due_us
    if released and state in PARKED and desk.one("has_signal", (batch.lease.run_id,)):
        state, due_us = rule.park(state, True), desk.now_us
    if state == "queued":
        queue(desk, head.rowid, due_us, head.place, head.priority, head.root_run_id)
    elif state in TERMINAL and head.state not in TERMINAL:
        desk.do("end_run", (state, desk.now_us, desk.now_us, head.rowid))
        desk.do("end_signals", (batch.lease.run_id,))
        if head.root_run_id == batch.lease.run_id:
            desk.do("drop_lane", (head.place, head.priority, head.root_run_id))
        if head.turn:
            open_next_turn(desk, head.session_id)
    else:
        desk.do("release_run" if released else "move_run", (state, desk.now_us, head.rowid))
