"""The ledger in a Postgres database: the same tables and rules as in SQLite, for more than one machine.

One thread of a process writes, in groups; a few others read; one listens. Processes exclude each other from writing
by an advisory lock of the database. The driver is imported when a ledger is opened, not before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from atlas.kernel.errors import Unavailable
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
from atlas.ledger import postgres_read, rule, sqlite_commit, sqlite_queue, sqlite_read
from atlas.ledger.blob import FileBlobs
from atlas.ledger.wake import Hub, Subscription

if TYPE_CHECKING:
    from atlas.ledger.postgres_threads import Threads

T = TypeVar("T")
LOCK_S: Final = 10.0
PATIENCE_S: Final = 30.0


class PostgresLedger:
    """A `Ledger` in schema `atlas` of one database. Usable from several event loops and threads, not across a fork.

    While the server is away, calls wait up to `patience_s` for it to come back and then raise LedgerUnavailable.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        blobs: Path,
        lock_s: float = LOCK_S,
        patience_s: float = PATIENCE_S,
        readers: int = 2,
    ) -> None:
        self._url = url
        self._clock = clock
        self._blobs = FileBlobs(blobs, clock)
        self._lock_s = lock_s
        self._patience_s = patience_s
        self._readers = readers
        self._pid = os.getpid()
        self._every = Hub()
        self._work = Hub()
        self._threads: Threads | None = None

    async def open(self) -> None:
        """Connects, migrates an older schema, refuses a newer one with the version that can read it."""
        self._check_process()
        try:
            from atlas.ledger.postgres_threads import Threads
        except ImportError as error:
            raise Unavailable(
                f"the ledger's address names a Postgres server, and its driver is not installed: {error}",
                hint="pip install 'atlas-agents[postgres]'",
                code="missing_extra",
            ) from None
        threads = Threads(
            self._url,
            self._clock,
            lock_s=self._lock_s,
            patience_s=self._patience_s,
            readers=self._readers,
            heard=self._heard,
        )
        await threads.start()
        self._threads = threads

    async def close(self) -> None:
        """Commits everything handed over before; nothing is accepted after."""
        self._check_process()
        threads, self._threads = self._threads, None
        if threads is not None:
            await threads.stop()

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
        return await self._read(postgres_read.owners)

    async def expire(self, owner: str) -> int:
        """Lets the leases of an owner lapse at once."""
        return await self._write(lambda desk: sqlite_queue.expire(desk, owner))

    def append(self, batch: Append) -> Awaitable[Appended]:
        """Commits the batch; its place in the order is fixed by this call, not by the await."""
        return self._opened().writer.append(batch)

    async def signal(self, signal: NewSignal) -> bool:
        """Inserts the signal once, and queues the run when it is parked."""
        return await self._write(lambda desk: sqlite_commit.insert_signal(desk, signal))

    async def signals(self, run_id: str = "") -> list[Signal]:
        """Open signals, oldest first: of one run, or of all that have not ended."""
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
        return await self._read(postgres_read.runs, query)

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
        """A subscription to commits of this process and of every other one on this database."""
        return self._subscribe(every_commit)

    @asynccontextmanager
    async def _subscribe(self, every_commit: bool) -> AsyncIterator[Wake]:
        listener = self._opened().listener
        # Listening begins before the subscription: what is committed from here on is heard, or found by the check.
        if not listener.is_listening:
            await asyncio.to_thread(listener.start)
        hub = self._every if every_commit else self._work

        async def check() -> None:
            if not listener.is_listening:
                hub.bump()  # nobody can tell what was committed meanwhile

        yield Subscription(hub, check)

    def _heard(self, has_work: bool) -> None:
        self._every.bump()
        if has_work:
            self._work.bump()

    async def _write(self, work: Callable[[Any], T]) -> T:
        result: T = await self._opened().writer.put(work)
        return result

    async def _read(self, query: Callable[..., T], *arguments: object) -> T:
        def work(session: Any) -> T:
            result: T = session.run(query, *arguments)
            return result

        return await self._opened().readers.get(work)

    def _opened(self) -> Threads:
        self._check_process()
        if self._threads is None:
            raise rule.closed()
        return self._threads

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise rule.forked()
