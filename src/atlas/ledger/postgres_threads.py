"""The threads of an open ledger on Postgres: one that writes, a few that read, one that listens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import psycopg

from atlas.kernel.errors import AtlasError
from atlas.kernel.port import Clock
from atlas.ledger import postgres_schema
from atlas.ledger.postgres_desk import PostgresDesk
from atlas.ledger.postgres_error import translate
from atlas.ledger.postgres_link import Link
from atlas.ledger.postgres_listen import PostgresListener
from atlas.ledger.postgres_session import ReadSession
from atlas.ledger.postgres_writer import PostgresWriter
from atlas.ledger.reader import Readers
from atlas.ledger.statement import load_migrations, load_statements
from atlas.ledger.writer import News


class Threads:
    """What an open ledger works with; `heard` is called after every commit, with whether it made work."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        lock_s: float,
        patience_s: float,
        readers: int,
        heard: Callable[[bool], None],
    ) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._heard = heard
        self._hurry = threading.Event()
        self._nonce = clock.entropy(8).hex()
        self._sql = load_statements("postgres")
        self._link = Link(url, self._sql, lock_s)
        self.listener = PostgresListener(self._link, self._nonce, heard)
        self.readers = Readers(self._open_session, readers)
        self.writer = PostgresWriter(
            self._open_desk, self._translate, self._committed, patience_s=patience_s, hurry=self._hurry
        )

    async def start(self) -> None:
        """Connects and migrates; raises what went wrong."""
        await self.writer.start()
        self.readers.start()

    async def stop(self) -> None:
        """Ends the threads; what cannot be finished because the server is away fails now."""
        self._hurry.set()
        await self.readers.stop()
        await self.writer.stop()
        await asyncio.to_thread(self.listener.close)

    def _committed(self, news: News) -> None:
        self._heard(news is News.WORK)

    def _open_desk(self) -> PostgresDesk:
        connection = self._link.connect("writer")
        migrations = load_migrations("postgres")
        try:
            postgres_schema.prepare(connection, self._sql, migrations, self._clock, self._link.where)
        except psycopg.Error as error:
            connection.close()
            raise self._translate(error) from None
        except AtlasError:
            connection.close()
            raise
        return PostgresDesk(self._link, connection, self._sql, len(migrations), self._clock, self._nonce)

    def _open_session(self) -> ReadSession:
        return ReadSession(self._link, self._sql, self._patience_s, self._hurry)

    def _translate(self, error: BaseException) -> AtlasError:
        return translate(error, self._link.where)
