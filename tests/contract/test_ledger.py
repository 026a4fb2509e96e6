"""Runs the shipped contract of the ledger against the adapters that need no server."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

for _part in ("rig", "lease", "queue", "signal", "submit", "append", "read", "wake", "budget", "random"):
    pytest.register_assert_rewrite(f"atlas.testing.ledger_{_part}")

from atlas.kernel.port import Ledger  # noqa: E402 - after the asserts are made to explain themselves
from atlas.ledger.memory import MemoryLedger  # noqa: E402
from atlas.ledger.sqlite import SqliteLedger  # noqa: E402
from atlas.testing.clock import FakeClock  # noqa: E402
from atlas.testing.ledger import Case, cases  # noqa: E402


class MemoryRig:
    """A ledger in memory; it cannot be opened twice."""

    def __init__(self) -> None:
        self.clock = FakeClock()

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Ledger]:
        ledger = MemoryLedger(self.clock)
        await ledger.open()
        yield ledger
        await ledger.close()

    def lock(self) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError


class SqliteRig:
    """A ledger in a file."""

    def __init__(self, folder: Path, busy_s: float) -> None:
        self.clock = FakeClock()
        self._folder = folder
        self._busy_s = busy_s

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Ledger]:
        path, blobs = self._folder / "ledger.db", self._folder / "blobs"
        ledger = SqliteLedger(path, clock=self.clock, blobs=blobs, busy_s=self._busy_s)
        await ledger.open()
        try:
            yield ledger
        finally:
            await ledger.close()

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        other = sqlite3.connect(self._folder / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.close()


@pytest.mark.parametrize("case", cases(can_jump=True, has_peers=False, can_lock=False), ids=lambda case: case.name)
def test_memory(case: Case) -> None:
    asyncio.run(case.check(MemoryRig()))


@pytest.mark.parametrize("case", cases(can_jump=True, has_peers=True, can_lock=True), ids=lambda case: case.name)
def test_sqlite(case: Case, tmp_path: Path) -> None:
    asyncio.run(case.check(SqliteRig(tmp_path, busy_s=0.3 if case.needs == "lock" else 10.0)))
