"""Several processes reserve from one pool: together they get exactly what it holds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from atlas.kernel.budget import Balance
from atlas.kernel.event import NULL, RunCreated, draft
from atlas.kernel.run import NewRun
from contract import budget_child

PROCESSES = 4
TRIES = 21


async def prepare(place: str, blobs: Path) -> None:
    ledger = budget_child.open_store(place, blobs)
    await ledger.open()
    for number in range(PROCESSES):
        created = draft(RunCreated("x", "1.0.0", NULL, "snap", "", "seed"), 0, "owner")
        await ledger.submit(NewRun(f"run_{number}", "", "x", "1.0.0", "snap", "owner", created, f"run_{number}"))
    await ledger.close()


async def held(place: str, blobs: Path) -> Balance:
    ledger = budget_child.open_store(place, blobs)
    await ledger.open()
    [found] = await ledger.balances((budget_child.POOL,))
    await ledger.close()
    return found


def check(place: str, blobs: Path) -> None:
    asyncio.run(prepare(place, blobs))
    script = str(Path(budget_child.__file__))
    running = [
        subprocess.Popen([sys.executable, script, place, f"run_{number}", str(TRIES)], stdout=subprocess.PIPE)
        for number in range(PROCESSES)
    ]
    admitted = [int(process.communicate(timeout=60)[0]) for process in running]
    assert sum(admitted) == 33, admitted
    assert asyncio.run(held(place, blobs)) == Balance(0, 99)


@pytest.mark.timeout(120)
def test_processes_on_sqlite_share_one_pool(tmp_path: Path) -> None:
    check(str(tmp_path / "ledger.db"), tmp_path / "blobs")


@pytest.mark.timeout(120)
def test_processes_on_postgres_share_one_pool(pg_database: str, tmp_path: Path) -> None:
    check(pg_database, tmp_path / "blobs")
