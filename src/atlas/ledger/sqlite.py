"""The ledger in one SQLite file: the embedded default.

One thread of a process writes, in groups; a few others read; the event loops of the callers only wait. Processes
share the file: SQLite's own lock admits one writing transaction at a time, and datagrams tell the others of it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from atlas.kernel.budget import Balance
from atlas.kernel.errors import AtlasError, LedgerUnavailable
from atlas.kernel.hold import Cap
from atlas.kernel.port import Clock, Wake
from atlas.kernel.run import Lease, RunPage, RunQuery
from atlas.ledger import migrate, sqlite_read
from atlas.ledger.database import DatabaseLedger
from atlas.ledger.desk import Desk
from atlas.ledger.reader import Readers
from atlas.ledger.sqlite_desk import BUSY_S, SqliteDesk, connect
from atlas.ledger.sqlite_error import translate
from atlas.ledger.sqlite_session import SqliteSession
from atlas.ledger.sqlite_writer import SqliteWriter
from atlas.ledger.statement import load_migrations, load_statements
from atlas.ledger.wake import Hub, Peers, Subscription
from atlas.ledger.writer import News

T = TypeVar("T")


class SqliteLedger(DatabaseLedger):
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
        super().__init__(clock, blobs)
        self._path = path
        self._busy_s = busy_s
        self._sql: dict[str, str] = {}
        self._schema = 0
        self._work = Hub()
        self._every = Hub()
        self._peers = Peers(path, clock.entropy(6).hex(), self._work, self._every)
        self._readers = Readers(self._open_session, readers)
        self._writer = SqliteWriter(self._open_desk, self._translate, self._committed, self._peers.close)

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

    async def owners(self) -> list[str]:
        """Who holds leases now."""
        return await self._read(sqlite_read.owners, self._clock.now_us())

    async def runs(self, query: RunQuery) -> RunPage:
        """One page of runs, newest first."""
        return await self._read(sqlite_read.runs, query)

    async def balances(self, caps: Sequence[Cap]) -> tuple[Balance, ...]:
        """How far the meters under each cap have gone, at one moment."""
        return await self._read(sqlite_read.balances, tuple(caps))

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

    def _put(
        self, work: Callable[[Desk], T], *, is_lazy: bool = False, lease: Lease | None = None
    ) -> asyncio.Future[T]:
        self._check_process()
        return self._writer.put(work, is_lazy=is_lazy, lease=lease)

    async def _read(self, query: Callable[..., T], *arguments: object) -> T:
        self._check_process()
        return await self._readers.get(query, *arguments)

    def _open_desk(self) -> SqliteDesk:
        migrations = load_migrations("sqlite")
        self._schema = len(migrations)
        connection: sqlite3.Connection | None = None
        try:
            connection = connect(self._path, busy_s=self._busy_s, is_reader=False)
            migrate.prepare(connection, self._path, migrations, self._clock, self._busy_s)
            desk = SqliteDesk(connection, self._path, self._sql, self._schema, self._clock)
            desk.saw_others()
        except (AtlasError, sqlite3.Error, OSError) as error:
            if connection is not None:
                connection.close()
            raise self._translate(error) from None
        return desk

    def _open_session(self) -> SqliteSession:
        return SqliteSession(self._path, self._sql, self._schema, self._busy_s)

    def _translate(self, error: BaseException) -> AtlasError:
        return translate(error, self._path)
