"""A process that reserves from a pool as often as it is let: prints how often that was. SQLITE-FILE|URL RUN TRIES."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from atlas.kernel.budget import Cap, Hold, Meter, Reservation
from atlas.kernel.errors import BudgetBusy
from atlas.kernel.run import Append
from atlas.ledger.database import DatabaseLedger
from atlas.ledger.postgres import PostgresLedger
from atlas.ledger.sqlite import SqliteLedger

POOL = Cap("pool", "tree/shared", micro_usd=100)


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000

    def entropy(self, size: int) -> bytes:
        return os.urandom(size)


def open_store(place: str, blobs: Path) -> SqliteLedger | PostgresLedger:
    if place.startswith("postgres"):
        return PostgresLedger(place, clock=SystemClock(), blobs=blobs)
    return SqliteLedger(Path(place), clock=SystemClock(), blobs=blobs)


async def spend(place: str, run_id: str, tries: int) -> int:
    ledger = open_store(place, Path(place + ".blobs") if "://" not in place else Path("/nonexistent"))
    await ledger.open()
    try:
        return await reserve_all(ledger, run_id, tries)
    finally:
        await ledger.close()


async def reserve_all(ledger: DatabaseLedger, run_id: str, tries: int) -> int:
    [claimed] = await ledger.claim(f"owner of {run_id}", limit=1, lease_s=60, max_running=99, run_id=run_id)
    hold = Hold(3, meters=(Meter("tree/shared"), Meter("fleet", "2026-11-16"), Meter("agent/owner/x", "2026-11-16")))
    admitted = 0
    for start in range(0, tries, 7):
        answers = [
            ledger.append(Append(claimed.lease, reserve=Reservation(f"e{number}", hold, (POOL,))))
            for number in range(start, min(start + 7, tries))
        ]
        for answer in answers:
            try:
                await answer
                admitted += 1
            except BudgetBusy:
                continue
    return admitted


if __name__ == "__main__":
    sys.stdout.write(str(asyncio.run(spend(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
