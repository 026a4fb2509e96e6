"""The ledger in a Postgres database: the same tables and rules as in SQLite, for more than one machine.

One thread of a process writes, in groups; a few others read; one listens. Processes exclude each other from writing
by an advisory lock of the database. The driver is imported when a ledger is opened, not before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from atlas.kernel.budget import Balance
from atlas.kernel.errors import Unavailable
from atlas.kernel.hold import Cap
from atlas.kernel.port import Clock, Wake
from atlas.kernel.run import Lease, RunPage, RunQuery
from atlas.ledger import postgres_read, rule
from atlas.ledger.database import DatabaseLedger
from atlas.ledger.desk import Desk
from atlas.ledger.wake import Hub, Subscription

if TYPE_CHECKING:
    from atlas.ledger.postgres_threads import Threads

T = TypeVar("T")
LOCK_S: Final = 10.0
PATIENCE_S: Final = 30.0


class PostgresLedger(DatabaseLedger):
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
        super().__init__(clock, blobs)
        self._url = url
        self._lock_s = lock_s
        self._patience_s = patience_s
        self._readers = readers
        self._every = Hub()
        self._work = Hub()
        self._threads: Threads | None = None

    async def open(self) -> None:
        """Connects, migrates an older schema, refuses a newer one with the version that can read it."""
        self._check_process()
        if self._threads is not None:
            return
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

    async def owners(self) -> list[str]:
        """Who holds leases now."""
        return await self._read(postgres_read.owners)

    async def runs(self, query: RunQuery) -> RunPage:
        """One page of runs, newest first."""
        return await self._read(postgres_read.runs, query)

    async def balances(self, caps: Sequence[Cap]) -> tuple[Balance, ...]:
        """How far the meters under each cap have gone, at one moment."""
        return await self._read(postgres_read.balances, tuple(caps))

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

    def _put(
        self, work: Callable[[Desk], T], *, is_lazy: bool = False, lease: Lease | None = None
    ) -> asyncio.Future[T]:
        return self._opened().writer.put(work, is_lazy=is_lazy, lease=lease)

    async def _read(self, query: Callable[..., T], *arguments: object) -> T:
        return await self._opened().readers.get(query, *arguments)

    def _opened(self) -> Threads:
        self._check_process()
        if self._threads is None:
            raise rule.closed()
        return self._threads
