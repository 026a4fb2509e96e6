"""The ledger in memory: for hosts without a vault, for tests, and as the model the other adapters are held against.

Each call takes effect whole, under one lock, before it returns; what fails half-way is undone. Nothing outlives
the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from bisect import insort
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from atlas.kernel.budget import Balance, Warned
from atlas.kernel.chain import GENESIS, SALT_BYTES, seal
from atlas.kernel.errors import AtlasError, NotFound
from atlas.kernel.event import NO_SPEND, Draft, Event
from atlas.kernel.hold import Cap
from atlas.kernel.port import Clock, Wake
from atlas.kernel.run import (
    PARKED,
    TERMINAL,
    Append,
    Appended,
    Claimed,
    InboxItem,
    Lease,
    NewRun,
    NewSignal,
    RunPage,
    RunQuery,
    RunRow,
    RunState,
    SessionRow,
    Signal,
    SpendRow,
    Submitted,
)
from atlas.ledger import budget, rule
from atlas.ledger.memory_budget import MemoryBook
from atlas.ledger.wake import Hub, Subscription

T = TypeVar("T")


class MemoryLedger:
    """A `Ledger` that keeps everything in this process. Usable from several event loops and threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._is_open = False
        self._work = Hub()
        self._every = Hub()
        self._feed: list[Event] = []
        self._events: dict[str, list[Event]] = {}
        self._run_ids: list[str] = []  # sorted
        self._runs: dict[str, RunRow] = {}
        self._queued: dict[str, int] = {}  # run -> tag, 0 while it is not due or its turn has not come
        self._leased: dict[str, bool] = {}
        self._blocked: dict[str, bool] = {}
        self._open_turns: dict[str, tuple[str, ...]] = {}  # session -> runs that have not ended, in order of turns
        self._lanes: dict[tuple[str, int, str], int] = {}
        self._sessions: dict[str, SessionRow] = {}
        self._keys: dict[tuple[str, str, str], tuple[str, str]] = {}
        self._trees: dict[str, int] = {}
        self._spawns: dict[str, dict[int, int]] = {}
        self._signals: dict[str, Signal] = {}  # open ones
        self._signal_numbers: dict[str, int] = {}  # of all, in order of insertion
        self._inbox: dict[tuple[str, str], InboxItem] = {}
        self._book = MemoryBook(self._set, self._drop)
        self._blobs: dict[str, bytes] = {}
        self._undo: list[Callable[[], object]] = []
        self._has_work = False
        self._now_us = 0

    async def open(self) -> None:
        """Takes calls from here on."""
        self._is_open = True

    async def close(self) -> None:
        """Takes no calls any more; what was recorded stays as long as this object."""
        self._is_open = False

    async def submit(self, run: NewRun, *, lazy: bool = False) -> Submitted:
        """Creates the run with its first event, or finds the one made before."""
        with self._commit():
            return self._submit(run)

    async def claim(
        self,
        owner: str,
        *,
        limit: int,
        lease_s: float,
        max_running: int,
        places: Sequence[str] = ("",),
        run_id: str = "",
    ) -> list[Claimed]:
        """Takes runs that are due or whose lease has lapsed."""
        with self._commit():
            if run_id:
                chosen = [run_id] if limit > 0 and self._is_claimable(run_id, places) else []
            else:
                self._promote_due()
                running = sum(self._is_live(self._runs[held], "running") for held in self._leased)
                chosen = self._in_order(places)[: max(min(limit, max_running - running), 0)]
                for ready in chosen:
                    self._advance_lane(ready)
            return [self._take(taken, owner, lease_s) for taken in chosen]

    async def renew(self, leases: Sequence[Lease], lease_s: float) -> list[Lease]:
        """Extends the leases still held; the others are missing from the answer."""
        with self._commit():
            until_us = self._now_us + rule.lease_us(lease_s)
            kept: list[Lease] = []
            for lease in leases:
                row = self._runs.get(lease.run_id)
                if row is not None and row.owner == lease.owner and row.generation == lease.generation:
                    self._set(self._runs, lease.run_id, replace(row, lease_until_us=until_us))
                    kept.append(replace(lease, until_us=until_us))
            return kept

    async def owners(self) -> list[str]:
        """Who holds leases now."""
        with self._read():
            return sorted({self._runs[held].owner for held in self._leased if self._is_live(self._runs[held])})

    async def expire(self, owner: str) -> int:
        """Lets the leases of an owner lapse at once."""
        with self._commit():
            held = [self._runs[run_id] for run_id in self._leased]
            live = [row for row in held if row.owner == owner and self._is_live(row)]
            for row in live:
                self._set(self._runs, row.run_id, replace(row, lease_until_us=self._now_us))
                self._has_work = True
            return len(live)

    def append(self, batch: Append, before: Append | None = None) -> Awaitable[Appended]:
        """Commits the batch at once; the answer is there already."""
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        try:
            with self._commit():
                answer.set_result(self._append(batch) if before is None else self._append_behind(before, batch))
        except AtlasError as error:
            answer.set_exception(error)
        return answer

    def _append_behind(self, before: Append, batch: Append) -> Appended:
        first = self._append(before)
        done = len(self._undo)
        try:
            return self._append(batch)
        except AtlasError as error:
            if len(self._undo) != done:
                raise
            return replace(first, refused=error)

    async def signal(self, signal: NewSignal) -> bool:
        """Inserts the signal once, and queues the run when it is parked."""
        with self._commit():
            return self._insert_signal(signal)

    async def signals(self, run_id: str = "") -> list[Signal]:
        """Open signals of one run, or of all that have not ended, oldest first."""
        with self._read():
            oldest_first = sorted(self._signals.values(), key=lambda signal: self._signal_numbers[signal.id])
            if run_id:
                return [signal for signal in oldest_first if signal.run_id == run_id]
            return [signal for signal in oldest_first if not self._runs[signal.run_id].ended_us]

    async def events(self, run_id: str, *, after: int = 0, limit: int = 0) -> list[Event]:
        """The run's events in order."""
        with self._read():
            return self._events.get(run_id, [])[after : after + limit if limit else None]

    async def feed(self, after: int, limit: int) -> list[Event]:
        """Events of all runs in commit order."""
        with self._read():
            return self._feed[after : after + limit if limit else None]

    async def head(self) -> int:
        """The global position of the newest event."""
        with self._read():
            return len(self._feed)

    async def run(self, run_id: str) -> RunRow:
        """The run's row, or NotFound."""
        with self._read():
            if run_id not in self._runs:
                raise rule.no_run(run_id)
            return self._runs[run_id]

    async def runs(self, query: RunQuery) -> RunPage:
        """One page of runs, newest first."""
        with self._read():
            limit = max(query.limit, 1)
            newest_first = (self._runs[run_id] for run_id in reversed(self._run_ids))
            found = [row for row in newest_first if _matches(query, row)][: limit + 1]
            page = tuple(found[:limit])
            return RunPage(page, page[-1].run_id if len(found) > limit else "")

    async def last_children(self, agent: str, snapshot: str, limit: int) -> list[RunRow]:
        """The newest ended child runs of an agent with this snapshot."""
        with self._read():
            ended = [row for row in self._runs.values() if row.ended_us and row.parent_run_id]
            mine = [row for row in ended if row.agent == agent and row.snapshot == snapshot]
            return sorted(mine, key=lambda row: (row.ended_us, row.run_id), reverse=True)[:limit]

    async def session(self, session_id: str) -> SessionRow:
        """The session, or NotFound."""
        with self._read():
            if session_id not in self._sessions:
                raise rule.no_session(session_id)
            return self._sessions[session_id]

    async def inbox(self, run_id: str = "") -> list[InboxItem]:
        """What waits for a person, oldest first."""
        with self._read():
            items = [item for item in self._inbox.values() if not run_id or item.run_id == run_id]
            return sorted(items, key=lambda item: (item.created_us, item.run_id, item.effect))

    async def spend(self, since_day: str = "", agent: str = "") -> list[SpendRow]:
        """Totals by day, agent, principal and model."""
        with self._read():
            rows = [self._book.spend[name] for name in sorted(self._book.spend)]
            return [row for row in rows if row.day >= since_day and agent in ("", row.agent)]

    async def balances(self, caps: Sequence[Cap]) -> tuple[Balance, ...]:
        """How far the meters under each cap have gone."""
        with self._read():
            return tuple(self._book.balances(caps))

    async def warned(self, since_us: int = 0) -> list[Warned]:
        """Alerts raised since a time, oldest first."""
        with self._read():
            return self._book.list_warned(since_us)

    async def erase(self, run_id: str, seq: int) -> None:
        """Replaces body and salt of one event by nothing."""
        with self._commit():
            events = self._events.get(run_id, [])
            if not 1 <= seq <= len(events):
                raise rule.no_event(run_id, seq)
            event = replace(events[seq - 1], body=b"", salt=b"")
            events[seq - 1] = self._feed[event.position - 1] = event
            self._undo.append(lambda: None)  # something was written, and nothing after it can fail

    async def put_blob(self, data: bytes) -> str:
        """The SHA-256 under which the bytes are kept."""
        with self._read():
            digest = hashlib.sha256(data).hexdigest()
            self._blobs[digest] = bytes(data)
            return digest

    async def get_blob(self, digest: str) -> bytes:
        """The exact bytes of a blob."""
        with self._read():
            if digest not in self._blobs:
                raise NotFound(f"there is no blob {digest}")
            return self._blobs[digest]

    def wake(self, *, every_commit: bool = False) -> AbstractAsyncContextManager[Wake]:
        """A subscription to commits."""
        return self._subscribe(self._every if every_commit else self._work)

    @asynccontextmanager
    async def _subscribe(self, hub: Hub) -> AsyncIterator[Wake]:
        yield Subscription(hub, None)

    # One commit: all of it, or nothing.

    @contextmanager
    def _read(self) -> Iterator[None]:
        with self._lock:
            if not self._is_open:
                raise rule.closed()
            self._now_us = self._clock.now_us()
            yield

    @contextmanager
    def _commit(self) -> Iterator[None]:
        with self._read():
            self._undo.clear()
            self._has_work = False
            try:
                yield
            except BaseException as error:
                for step in reversed(self._undo):
                    step()
                if isinstance(error, rule.BAD_VALUE):
                    raise rule.bad_record(error) from error
                raise
            is_changed, has_work = bool(self._undo), self._has_work
            self._undo.clear()
        if is_changed:
            self._every.bump()
        if is_changed and has_work:
            self._work.bump()

    def _set(self, table: dict[Any, T], key: Any, value: T) -> None:
        if key in table:
            old = table[key]
            self._undo.append(lambda: table.__setitem__(key, old))
        else:
            self._undo.append(lambda: table.pop(key))
        table[key] = value

    def _drop(self, table: dict[Any, T], key: Any) -> None:
        if key in table:
            old = table.pop(key)
            self._undo.append(lambda: table.__setitem__(key, old))

    def _write_events(self, run_id: str, drafts: Sequence[Draft], seq: int, head: bytes) -> tuple[int, bytes]:
        mine = self._events.setdefault(run_id, [])
        for draft in drafts:
            seq += 1
            event = seal(draft, run_id, seq, len(self._feed) + 1, head, self._clock.entropy(SALT_BYTES))
            self._feed.append(event)
            mine.append(event)
            self._undo += [mine.pop, self._feed.pop]
            head = event.hash
        return seq, head

    # Runs

    def _submit(self, run: NewRun) -> Submitted:
        existing = self._find(run)
        if existing:
            return Submitted(existing, False)
        self._create(run)
        return Submitted(run.run_id, True)

    def _find(self, run: NewRun) -> str:
        if run.key and (run.principal, run.agent, run.key) in self._keys:
            fingerprint, run_id = self._keys[run.principal, run.agent, run.key]
            rule.check_key(run, fingerprint, run_id)
            return run_id
        return run.run_id if run.run_id in self._runs else ""

    def _create(self, run: NewRun) -> None:
        now_us = self._now_us
        turn = self._take_turn(run) if run.session_id else 0
        earlier = self._open_turns.get(run.session_id, ()) if turn else ()
        seq, head = self._write_events(run.run_id, (run.created,), 0, GENESIS)
        row = RunRow(
            *(run.run_id, run.session_id, turn, run.agent, run.version, run.snapshot, run.principal),
            *(run.parent_run_id, run.parent_effect, run.root_run_id, run.depth, run.priority, run.place, run.key),
            state="queued",
            created_us=now_us,
            updated_us=now_us,
            ended_us=0,
            due_us=run.due_us,
            owner="",
            generation=0,
            lease_until_us=0,
            head_seq=seq,
            head_hash=head,
            spend=NO_SPEND,
        )
        self._set(self._runs, run.run_id, row)
        insort(self._run_ids, run.run_id)
        self._undo.append(lambda: self._run_ids.remove(run.run_id))
        if turn:
            self._set(self._open_turns, run.session_id, (*earlier, run.run_id))
        if earlier:
            self._set(self._blocked, run.run_id, True)
        self._queue(row)
        self._set(self._trees, run.root_run_id, self._trees.get(run.root_run_id, 0) + 1)
        if run.parent_run_id:
            start, second = rule.minute_start(now_us), now_us // 1_000_000
            recent = {at: runs for at, runs in self._spawns.get(run.root_run_id, {}).items() if at >= start}
            self._set(self._spawns, run.root_run_id, recent | {second: recent.get(second, 0) + 1})
        if run.key:
            self._set(self._keys, (run.principal, run.agent, run.key), (run.fingerprint, run.run_id))

    def _take_turn(self, run: NewRun) -> int:
        session = self._sessions.get(run.session_id)
        if session is None:
            branch = (run.branch_of, run.branch_turn)
            session = SessionRow(run.session_id, run.agent, run.principal, self._now_us, 0, *branch)
            turn = rule.first_turn(run)
        else:
            rule.check_session(run, session.agent, session.principal)
            turn = session.turns + 1 if rule.is_turn(run) else 0
        self._set(self._sessions, run.session_id, replace(session, turns=turn or session.turns))
        return turn

    def _append(self, batch: Append) -> Appended:
        run_id = batch.lease.run_id
        row = self._runs.get(run_id)
        if row is None:
            raise rule.no_run(run_id)
        rule.check_fence(batch.lease, row.owner, row.generation)
        state, released = rule.settle(row.state, batch)
        children = self._new_children(batch, row)
        self._book.now_us = self._now_us
        plan = budget.plan(self._book, batch, is_end=state in TERMINAL and row.state not in TERMINAL)

        seq, head = self._write_events(run_id, batch.drafts, row.head_seq, row.head_hash)
        spend, estimated = row.spend.plus(plan.spend), row.estimated_micro_usd + plan.estimated_micro_usd
        touched = replace(row, head_seq=seq, head_hash=head, updated_us=self._now_us, spend=spend)
        self._set(self._runs, run_id, replace(touched, estimated_micro_usd=estimated))
        self._book.carry_out(plan, run_id, row.agent, row.principal)
        for signal_id in batch.consumed:
            if signal_id not in self._signals or self._signals[signal_id].run_id != run_id:
                raise rule.signal_gone(run_id, signal_id)
            self._drop(self._signals, signal_id)
        for child in children:
            self._submit(child)
        for signal in batch.signals:
            self._insert_signal(signal)
        for item in batch.inbox_open:
            self._set(self._inbox, (item.run_id, item.effect), item)
        for effect in batch.inbox_close:
            self._drop(self._inbox, (run_id, effect))
        if released or state != row.state:
            self._move(run_id, batch, state, released)
        return Appended(seq, len(self._feed), tuple(plan.warned))

    def _new_children(self, batch: Append, row: RunRow) -> list[NewRun]:
        children = [child for child in batch.children if not self._find(child)]
        if batch.tree_limits is not None and children:
            start = rule.minute_start(self._now_us)
            recent = sum(runs for at, runs in self._spawns.get(row.root_run_id, {}).items() if at >= start)
            rule.check_limits(batch.tree_limits, self._trees.get(row.root_run_id, 0), recent, len(children))
        return children

    def _move(self, run_id: str, batch: Append, state: RunState, released: bool) -> None:
        self._has_work = True
        row = replace(self._runs[run_id], updated_us=self._now_us)
        due_us = batch.due_us
        if released and state in PARKED and any(signal.run_id == run_id for signal in self._signals.values()):
            state, due_us = rule.park(state, True), self._now_us
        is_end = state in TERMINAL and row.state not in TERMINAL
        row = replace(row, state=state, ended_us=self._now_us if is_end else row.ended_us)
        if released:
            row = replace(row, owner="", lease_until_us=0)
            self._drop(self._leased, run_id)
        if state == "queued":
            row = replace(row, due_us=due_us)
        self._set(self._runs, run_id, row)
        if state == "queued":
            self._queue(row)
        if is_end:
            self._end(row)

    def _end(self, row: RunRow) -> None:
        if row.root_run_id == row.run_id:
            self._drop(self._lanes, (row.place, row.priority, row.run_id))
        if not row.turn:
            return
        later = tuple(run_id for run_id in self._open_turns[row.session_id] if run_id != row.run_id)
        self._set(self._open_turns, row.session_id, later)
        if later:
            self._drop(self._blocked, later[0])
            if self._runs[later[0]].state == "queued":
                self._queue(self._runs[later[0]])

    def _insert_signal(self, signal: NewSignal) -> bool:
        row = self._runs.get(signal.run_id)
        if row is None:
            raise rule.no_run(signal.run_id)
        if signal.id in self._signal_numbers:
            return False
        self._set(self._signal_numbers, signal.id, len(self._signal_numbers))
        kept = Signal(signal.id, signal.run_id, signal.kind, signal.principal, signal.body, self._now_us)
        self._set(self._signals, signal.id, kept)
        self._has_work = True
        # One that somebody held when its lease lapsed is claimable as it is.
        if row.state in PARKED and not row.owner:
            row = replace(row, state="queued", due_us=self._now_us, updated_us=self._now_us)
            self._set(self._runs, row.run_id, row)
            self._queue(row)
        return True

    # The queue

    def _queue(self, row: RunRow) -> None:
        is_ready = row.due_us <= self._now_us and row.run_id not in self._blocked
        self._set(self._queued, row.run_id, self._next_tag(row) if is_ready else 0)
        self._has_work = True

    def _next_tag(self, row: RunRow) -> int:
        lane = (row.place, row.priority)
        tag = rule.next_tag(self._lanes.get((*lane, ""), 0), self._lanes.get((*lane, row.root_run_id), 0))
        self._set(self._lanes, (*lane, row.root_run_id), tag)
        return tag

    def _promote_due(self) -> None:
        waiting = [self._runs[run_id] for run_id, tag in self._queued.items() if not tag]
        due = [row for row in waiting if row.due_us <= self._now_us and row.run_id not in self._blocked]
        for row in sorted(due, key=lambda row: (row.due_us, row.created_us, row.run_id)):
            self._set(self._queued, row.run_id, self._next_tag(row))

    def _in_order(self, places: Sequence[str]) -> list[str]:
        """Every run that may be claimed now, the first to be claimed first."""
        held = [self._runs[run_id] for run_id in self._leased]
        lapsed = [row for row in held if row.state not in TERMINAL and not self._is_live(row) and row.place in places]
        lapsed.sort(key=lambda row: (-row.priority, row.created_us, row.run_id))
        ready = [self._runs[run_id] for run_id, tag in self._queued.items() if tag]
        ready = [row for row in ready if row.place in places]
        ready.sort(key=lambda row: (-row.priority, self._queued[row.run_id], row.created_us, row.run_id))
        return [row.run_id for row in lapsed + ready]

    def _is_claimable(self, run_id: str, places: Sequence[str]) -> bool:
        row = self._runs.get(run_id)
        if row is None or row.place not in places:
            return False
        return not self._is_live(row) and run_id not in self._blocked

    def _is_live(self, row: RunRow, state: RunState | None = None) -> bool:
        return bool(row.owner) and row.lease_until_us > self._now_us and state in (None, row.state)

    def _advance_lane(self, run_id: str) -> None:
        row = self._runs[run_id]
        if run_id in self._queued:
            self._set(self._lanes, (row.place, row.priority, ""), self._queued[run_id])

    def _take(self, run_id: str, owner: str, lease_s: float) -> Claimed:
        row = self._runs[run_id]
        lease = Lease(run_id, owner, row.generation + 1, self._now_us + rule.lease_us(lease_s))
        changed = replace(
            row,
            state=rule.claimed_state(row.state),
            owner=owner,
            generation=lease.generation,
            lease_until_us=lease.until_us,
            updated_us=self._now_us,
        )
        self._set(self._runs, run_id, changed)
        self._set(self._leased, run_id, True)
        self._drop(self._queued, run_id)
        return Claimed(lease, row.owner)


def _matches(query: RunQuery, row: RunRow) -> bool:
    asked = (
        (query.agent, row.agent),
        (query.session_id, row.session_id),
        (query.principal, row.principal),
        (query.root_run_id, row.root_run_id),
        (query.parent_run_id, row.parent_run_id),
    )
    return (
        all(value in ("", found) for value, found in asked)
        and (not query.states or row.state in query.states)
        and (not query.roots_only or not row.parent_run_id)
        and row.run_id.startswith(query.id_prefix)
        and (not query.before or row.run_id < query.before)
    )
