"""What a ledger on an SQL database does, whichever database it is: every call becomes work for its threads."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from atlas.kernel.budget import Warned
from atlas.kernel.event import Event
from atlas.kernel.port import Clock
from atlas.kernel.run import (
    Append,
    Appended,
    Claimed,
    InboxItem,
    Lease,
    NewRun,
    NewSignal,
    RunRow,
    SessionRow,
    Signal,
    SpendRow,
    Submitted,
)
from atlas.ledger import commit, queue, read, rule
from atlas.ledger.blob import FIND_BYTES, FileBlobs
from atlas.ledger.desk import Desk

T = TypeVar("T")


class DatabaseLedger(ABC):
    """The part of a `Ledger` that databases share: an adapter adds its threads, lists of runs, leases and wakes."""

    def __init__(self, clock: Clock, blobs: Path) -> None:
        self._clock = clock
        self._blobs = FileBlobs(blobs, clock)
        self._pid = os.getpid()

    @abstractmethod
    def _put(
        self, work: Callable[[Desk], T], *, is_lazy: bool = False, lease: Lease | None = None
    ) -> asyncio.Future[T]:
        """Hands work to the thread that writes; its place in the order is fixed when this returns."""

    @abstractmethod
    async def _read(self, query: Callable[..., T], *arguments: object) -> T:
        """What `query(database, statements, *arguments)` answers."""

    async def submit(self, run: NewRun, *, lazy: bool = False) -> Submitted:
        """Creates the run with its first event, or finds the one made before."""
        return await self._put(lambda desk: commit.submit(desk, run), is_lazy=lazy)

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
        wanted = queue.Wanted(owner, limit, lease_s, max_running, tuple(places), run_id)
        return await self._put(lambda desk: queue.claim(desk, wanted))

    async def renew(self, leases: Sequence[Lease], lease_s: float) -> list[Lease]:
        """Extends the leases still held; the others are missing from the answer."""
        return await self._put(lambda desk: queue.renew(desk, leases, lease_s))

    async def expire(self, owner: str) -> int:
        """Lets the leases of an owner lapse at once."""
        return await self._put(lambda desk: queue.expire(desk, owner))

    def append(self, batch: Append, before: Append | None = None) -> Awaitable[Appended]:
        """Commits the batch; its place in the order is fixed by this call, not by the await."""
        if before is not None:
            return self._put(lambda desk: commit.append_behind(desk, before, batch), lease=batch.lease)
        return self._put(lambda desk: commit.append(desk, batch), is_lazy=batch.lazy, lease=batch.lease)

    async def signal(self, signal: NewSignal) -> bool:
        """Inserts the signal once, and queues the run when it is parked."""
        return await self._put(lambda desk: commit.insert_signal(desk, signal))

    async def signals(self, run_id: str = "") -> list[Signal]:
        """Open signals of one run, or of all that have not ended, oldest first."""
        return await self._read(read.signals, run_id)

    async def events(self, run_id: str, *, after: int = 0, limit: int = 0) -> list[Event]:
        """The run's events in order."""
        return await self._read(read.events, run_id, after, limit)

    async def feed(self, after: int, limit: int) -> list[Event]:
        """Events of all runs in commit order."""
        return await self._read(read.feed, after, limit)

    async def head(self) -> int:
        """The global position of the newest event."""
        return await self._read(read.head)

    async def run(self, run_id: str) -> RunRow:
        """The run's row, or NotFound."""
        return await self._read(read.run, run_id)

    async def last_children(self, agent: str, snapshot: str, limit: int) -> list[RunRow]:
        """The newest ended child runs of an agent with this snapshot."""
        return await self._read(read.last_children, agent, snapshot, limit)

    async def session(self, session_id: str) -> SessionRow:
        """The session, or NotFound."""
        return await self._read(read.session, session_id)

    async def inbox(self, run_id: str = "") -> list[InboxItem]:
        """What waits for a person, oldest first."""
        return await self._read(read.inbox, run_id)

    async def spend(self, since_day: str = "", agent: str = "") -> list[SpendRow]:
        """Totals by day, agent, principal and model."""
        return await self._read(read.spend, since_day, agent)

    async def warned(self, since_us: int = 0) -> list[Warned]:
        """Alerts raised since a time, oldest first."""
        return await self._read(read.warned, since_us)

    async def erase(self, run_id: str, seq: int) -> None:
        """Replaces body and salt of one event by nothing."""
        await self._put(lambda desk: commit.erase(desk, run_id, seq))

    async def put_blob(self, data: bytes) -> str:
        """The SHA-256 under which the bytes are durably kept."""
        self._check_process()
        if len(data) <= FIND_BYTES and (found := self._blobs.find(data)) is not None:
            return found
        return await asyncio.to_thread(self._blobs.put, data)

    async def get_blob(self, digest: str) -> bytes:
        """The exact bytes of a blob."""
        self._check_process()
        return await asyncio.to_thread(self._blobs.get, digest)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise rule.forked()
