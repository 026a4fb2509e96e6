"""The Postgres ledger keeps the ledger's contract, on a real server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from atlas.kernel.port import Ledger
from atlas.ledger.postgres import PostgresLedger
from atlas.ledger.statement import load_statements
from atlas.testing.ledger import Case, cases

# The server's clock cannot be moved, so the tests give their databases a clock that can: the same, plus an offset.
_MOVABLE_CLOCK = """
CREATE TABLE IF NOT EXISTS atlas.test_offset (us bigint NOT NULL);
CREATE OR REPLACE FUNCTION atlas.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
           + coalesce((SELECT sum(us) FROM atlas.test_offset), 0)::bigint
$$
"""


class MovableClock:
    """The machine's time, plus an offset."""

    def __init__(self) -> None:
        self.offset_us = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.offset_us

    def entropy(self, size: int) -> bytes:
        return os.urandom(size)


class PostgresRig:
    """An empty database whose time can be moved."""

    def __init__(self, url: str, folder: Path, lock_s: float) -> None:
        self.clock = MovableClock()
        self._lock_s = lock_s
        self._url = url
        self._folder = folder

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Ledger]:
        ledger = PostgresLedger(self._url, clock=self.clock, blobs=self._folder / "blobs", lock_s=self._lock_s)
        await ledger.open()
        try:
            with psycopg.connect(self._url, autocommit=True) as admin:
                admin.execute(_MOVABLE_CLOCK)
            yield ledger
        finally:
            await ledger.close()

    async def advance(self, seconds: float) -> None:
        self.clock.offset_us += int(seconds * 1_000_000)
        with psycopg.connect(self._url, autocommit=True) as admin:
            admin.execute("INSERT INTO atlas.test_offset VALUES (%s)", (int(seconds * 1_000_000),))

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        with psycopg.connect(self._url) as admin:
            admin.execute(load_statements("postgres")["lock_writes"])
            yield


@pytest.mark.parametrize("case", cases(can_jump=True, has_peers=True, can_lock=True), ids=lambda case: case.name)
def test_postgres(case: Case, pg_database: str, tmp_path: Path) -> None:
    asyncio.run(case.check(PostgresRig(pg_database, tmp_path, lock_s=0.3 if case.needs == "lock" else 10.0)))
