"""Erased text is gone from every file of the ledger, not only from what queries show."""

from __future__ import annotations

import asyncio
from pathlib import Path

from atlas.kernel.event import NULL, Logged, RunCreated, draft
from atlas.kernel.run import Append, NewRun, NewSignal
from atlas.ledger.sqlite import SqliteLedger
from atlas.testing.clock import FakeClock

SECRET = "the key is under the third stair"


def files_with_secret(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_erased_text_leaves_every_file(tmp_path: Path) -> None:
    async def work() -> None:
        ledger = SqliteLedger(tmp_path / "ledger.db", clock=FakeClock(), blobs=tmp_path / "blobs")
        await ledger.open()
        created = draft(RunCreated("tester", "1.0.0", NULL, "snap", "ses_1", "seed"), 1, "owner")
        await ledger.submit(NewRun("run_1", "ses_1", "tester", "1.0.0", "snap", "owner", created, "run_1"))
        [claimed] = await ledger.claim("ann", limit=1, lease_s=60, max_running=10)
        await ledger.signal(NewSignal("sig_1", "run_1", "answer", "owner", SECRET.encode()))
        body = draft(Logged(SECRET), 1, "owner")
        long = draft(Logged(SECRET + "x" * 20_000), 1, "owner")
        await ledger.append(Append(claimed.lease, (body, long), consumed=("sig_1",)))
        assert files_with_secret(tmp_path)
        await ledger.erase("run_1", 2)
        await ledger.erase("run_1", 3)
        assert files_with_secret(tmp_path) == []
        await ledger.close()
        assert files_with_secret(tmp_path) == []

    asyncio.run(work())
