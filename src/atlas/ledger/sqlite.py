"""The ledger in one SQLite file: the embedded default.

One thread of a process writes, in groups; a few others read; the event loops of the callers only wait. Processes
share the file: SQLite's own lock admits one writing transaction at a time, and datagrams tell the others of it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from atlas.kernel.errors import AtlasError, LedgerUnavailable
from atlas.kernel.event import Event
from atlas.kernel.port import Clock, Wake
from atlas.kernel.run import (
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
    SessionRow,
    Signal,
    SpendRow,
    Submitted,
)
from atlas.ledger import migrate, rule, sqlite_commit, sqlite_queue, sqlite_read
from atlas.ledger.blob import FileBlobs
from atlas.ledger.reader import Readers
from atlas.ledger.sqlite_desk import BUSY_S, SqliteDesk, connect
from atlas.ledger.sqlite_error import translate
from atlas.ledger.statement import load_migrations, load_statements
from atlas.ledger.wake import Hub, Peers, Subscription
from atlas.ledger.writer import News, Writer

T = TypeVar("T")


class SqliteLedger:
    """A `Ledger` on one file. Usable from several event loops and threads, not across a fork."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        blobs: Path,
        busy_s: float = BUSY_S,
        readers: int = 2,
    ) -> None:
        self._path = path
        self._clock = clock
        self._blobs = FileBlobs(blobs, clock)
        self._busy_s = busy_s
        self._pid = os.getpid()
        self._sql: dict[str, str] = {}
        self._work = Hub()
        self._every = Hub()
        self._peers = Peers(path, clock.entropy(6).hex(), self._work, self._every)
        self._readers = Readers(self._open_reader, self._translate, readers)
        self._writer = Writer(self._open_desk, self._translate, self._committed, self._peers.close)

    async def open(self) -> None:
        """Connects, migrates an older schema, refuses a newer one with the version that can read it."""
        self._check_process()
        if self._writer.is_open:
            return
        if not self._sql:
            self._sql = load_statements("sqlite")
        await self._writer.start()
        self._readers.start()

    async def close(self) -> None:
        """Commits everything handed over before; nothing is accepted after."""
        self._check_process()
        await self._readers.stop()
        await self._writer.stop()

    async def submit(self, run: NewRun) -> Submitted:
        """Creates the run with its first event, or finds the one made before."""
        return await self._write(lambda desk: sqlite_commit.submit(desk, run))

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
        wanted = sqlite_queue.Wanted(owner, limit, lease_s, max_running, tuple(places), run_id)
        return await self._write(lambda desk: sqlite_queue.claim(desk, wanted))

    async def renew(self, leases: Sequence[Lease], lease_s: float) -> list[Lease]:
        """Extends the leases still held; the others are missing from the answer."""
        return await self._write(lambda desk: sqlite_queue.renew(desk, leases, lease_s))

    async def owners(self) -> list[str]:
        """Who holds leases now."""
        return await self._read(sqlite_read.owners, self._clock.now_us())

    async def expire(self, owner: str) -> int:
        """Lets the leases of an owner lapse at once."""
        return await self._write(lambda desk: sqlite_queue.expire(desk, owner))

    def append(self, batch: Append) -> Awaitable[Appended]:
        """Commits the batch; its place in the order is fixed by this call, not by the await."""
        self._check_process()
        return self._writer.put(lambda desk: sqlite_commit.append(desk, batch), is_lazy=batch.lazy)

    async def signal(self, signal: NewSignal) -> bool:
        """Inserts the signal once, and queues the run when it is parked."""
        return await self._write(lambda desk: sqlite_commit.insert_signal(desk, signal))

    async def signals(self, run_id: str = "") -> list[Signal]:
        """Open signals of one run, or of all that have not ended, oldest first."""
        return await self._read(sqlite_read.signals, run_id)

    async def events(self, run_id: str, *, after: int = 0, limit: int = 0) -> list[Event]:
        """The run's events in order."""
        return await self._read(sqlite_read.events, run_id, after, limit)

    async def feed(self, after: int, limit: int) -> list[Event]:
        """Events of all runs in commit order."""
        return await self._read(sqlite_read.feed, after, limit)

    async def head(self) -> int:
        """The global position of the newest event."""
        return await self._read(sqlite_read.head)

    async def run(self, run_id: str) -> RunRow:
        """The run's row, or NotFound."""
        return await self._read(sqlite_read.run, run_id)

    async def runs(self, query: RunQuery) -> RunPage:
        """One page of runs, newest first."""
        return await self._read(sqlite_read.runs, query)

    async def last_children(self, agent: str, snapshot: str, limit: int) -> list[RunRow]:
        """The newest ended child runs of an agent with this snapshot."""
        return await self._read(sqlite_read.last_children, agent, snapshot, limit)

    async def session(self, session_id: str) -> SessionRow:
        """The session, or NotFound."""
        return await self._read(sqlite_read.session, session_id)

    async def inbox(self, run_id: str = "") -> list[InboxItem]:
        """What waits for a person, oldest first."""
        return await self._read(sqlite_read.inbox, run_id)

    async def spend(self, since_day: str = "", agent: str = "") -> list[SpendRow]:
        """Totals by day, agent and principal."""
        return await self._read(sqlite_read.spend, since_day, agent)

    async def erase(self, run_id: str, seq: int) -> None:
        """Replaces body and salt of one event by nothing."""
        await self._write(lambda desk: sqlite_commit.erase(desk, run_id, seq))

    async def put_blob(self, data: bytes) -> str:
        """The SHA-256 under which the bytes are durably kept."""
        self._check_process()
        return await asyncio.to_thread(self._blobs.put, data)

    async def get_blob(self, digest: str) -> bytes:
        """The exact bytes of a blob."""
        self._check_process()
        return await asyncio.to_thread(self._blobs.get, digest)

    def wake(self, *, every_commit: bool = False) -> AbstractAsyncContextManager[Wake]:
        """A subscription to commits of this process and of every other one on this file."""
        return self._subscribe(every_commit)

    @asynccontextmanager
    async def _subscribe(self, every_commit: bool) -> AsyncIterator[Wake]:
        self._check_process()
        listener = self._peers.every if every_commit else self._peers.work

        def listen(desk: SqliteDesk) -> None:
            listener.bind()
            self._look(desk)

        # Listening starts, and the state of the file is noted, before the subscription begins: whatever another
        # process commits from here on is either announced to the socket or found by the check.
        await self._writer.put(listen, is_write=False)
        yield Subscription(self._every if every_commit else self._work, self._check_others)

    async def _check_others(self) -> None:
        # Who waits is not told of a failing disk; who then reads or writes is.
        with suppress(LedgerUnavailable):
            await self._writer.put(self._look, is_write=False)

    def _look(self, desk: SqliteDesk) -> None:
        if desk.saw_others():
            self._work.bump()
            self._every.bump()

    def _committed(self, news: News) -> None:
        self._every.bump()
        if news is News.WORK:
            self._work.bump()
        self._peers.announce(has_work=news is News.WORK)

    async def _write(self, work: Callable[[SqliteDesk], T]) -> T:
        self._check_process()
        result: T = await self._writer.put(work)
        return result

    async def _read(self, query: Callable[..., T], *arguments: object) -> T:
        self._check_process()
        return await self._readers.get(lambda db: query(db, self._sql, *arguments))

    def _open_desk(self) -> SqliteDesk:
        connection = connect(self._path, busy_s=self._busy_s, is_reader=False)
        try:
            migrate.prepare(connection, self._path, load_migrations("sqlite"), self._clock, self._busy_s)
            desk = SqliteDesk(connection, self._sql, self._clock)
            desk.saw_others()
        except BaseException:
            connection.close()
            raise
        return desk

    def _open_reader(self) -> sqlite3.Connection:
        return connect(self._path, busy_s=self._busy_s, is_reader=True)

    def _translate(self, error: BaseException) -> AtlasError:
        return translate(error, self._path)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise rule.forked()
