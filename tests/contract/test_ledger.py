"""Runs the shipped contract of the ledger against the adapters that need no server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

for _part in ("rig", "lease", "queue", "signal", "submit", "append", "read", "wake", "random"):
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


class SqliteRig:
    """A ledger in a file."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self._folder = folder

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Ledger]:
        ledger = SqliteLedger(self._folder / "ledger.db", clock=self.clock, blobs=self._folder / "blobs")
        await ledger.open()
        try:
            yield ledger
        finally:
            await ledger.close()


@pytest.mark.parametrize("case", cases(can_jump=True, has_peers=False), ids=lambda case: case.name)
def test_memory(case: Case) -> None:
    asyncio.run(case.check(MemoryRig()))


@pytest.mark.parametrize("case", cases(can_jump=True, has_peers=True), ids=lambda case: case.name)
def test_sqlite(case: Case, tmp_path: Path) -> None:
    asyncio.run(case.check(SqliteRig(tmp_path)))
