"""What the tests of the SQLite ledger run in processes of their own. Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from atlas.kernel.chain import check_chain
from atlas.kernel.errors import AtlasError
from atlas.kernel.event import NULL, Logged, RunCreated, draft
from atlas.kernel.ident import RUN, new_id
from atlas.kernel.run import Append, Lease, NewRun
from atlas.ledger import wake
from atlas.ledger.sqlite import SqliteLedger


class HostClock:
    """The time of this machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def entropy(self, size: int) -> bytes:
        return os.urandom(size)


CLOCK = HostClock()


def make(folder: Path, **options: Any) -> SqliteLedger:
    """A ledger in `folder`."""
    return SqliteLedger(folder / "ledger.db", clock=CLOCK, blobs=folder / "blobs", **options)


def new_run() -> NewRun:
    """A run to submit."""
    run_id = new_id(RUN, CLOCK.now_us(), CLOCK.entropy(10))
    created = draft(RunCreated("tester", "1.0.0", NULL, "snap", f"ses_{run_id}", "seed"), CLOCK.now_us(), "owner")
    return NewRun(run_id, f"ses_{run_id}", "tester", "1.0.0", "snap", "owner", created, run_id)


def note(text: str) -> Any:
    """An event that says `text`."""
    return draft(Logged(text), CLOCK.now_us(), "owner")


async def hold(ledger: SqliteLedger) -> Lease:
    """A new run that this process holds."""
    run = new_run()
    await ledger.submit(run)
    [claimed] = await ledger.claim(f"p{os.getpid()}", limit=1, lease_s=60, max_running=1000, run_id=run.run_id)
    return claimed.lease


async def work(folder: Path) -> dict[str, Any]:
    """Claims runs until none are left, and writes to each from several tasks at once."""
    ledger = make(folder)
    await ledger.open()
    claimed: list[str] = []
    owner = f"p{os.getpid()}"

    async def drive(lease: Lease) -> None:
        for number in range(6):
            await ledger.append(Append(lease, (note(str(number)), note("+"))))
        await ledger.append(Append(lease, (note("end"),), state="succeeded"))

    while taken := await ledger.claim(owner, limit=3, lease_s=60, max_running=1000):
        claimed += [one.lease.run_id for one in taken]
        async with asyncio.TaskGroup() as group:
            for one in taken:
                group.create_task(drive(one.lease))
    await ledger.close()
    return {"claimed": claimed}


async def acknowledge(folder: Path) -> dict[str, Any]:
    """Appends for ever, and says what was acknowledged; ends by being killed."""
    ledger = make(folder)
    await ledger.open()
    lease = await hold(ledger)
    print(lease.run_id, flush=True)
    while True:
        appended = await ledger.append(Append(lease, (note("x" * 200), note("y"))))
        print(appended.seq, flush=True)


async def fill(folder: Path) -> dict[str, Any]:
    """Writes until the disk, a tmpfs of this process, is full; then makes room and goes on."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=True)
    ballast = folder / "ballast"
    ballast.write_bytes(b"b" * 1024 * 1024)
    ledger = make(folder)
    await ledger.open()
    lease = await hold(ledger)
    first, acknowledged = await _until_refused(ledger, lease)
    _, more = await _until_refused(ledger, lease)
    blob = await _refusal(ledger.put_blob(b"z" * 2_000_000))
    ballast.unlink()
    after = await ledger.append(Append(lease, (note("again"),)))
    digest = await ledger.put_blob(b"z" * 300_000)
    report = await _verify(ledger, lease)
    await ledger.close()
    return report | {
        "error": first,
        "blob": blob,
        "blob_after": len(digest),
        "acknowledged": acknowledged + more,
        "after": after.seq,
        "leftovers": [path.name for path in (folder / "blobs").rglob("*.tmp")],
    }


async def limit(folder: Path) -> dict[str, Any]:
    """Writes until no file may grow further; then lifts the limit and goes on."""
    ledger = make(folder)
    await ledger.open()
    lease = await hold(ledger)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
    error, acknowledged = await _until_refused(ledger, lease)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    after = await ledger.append(Append(lease, (note("again"),)))
    report = await _verify(ledger, lease)
    await ledger.close()
    return report | {"error": error, "acknowledged": acknowledged, "after": after.seq}


async def read_only(folder: Path) -> dict[str, Any]:
    """Uses a ledger on a disk that becomes read-only, then opens it there."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True)
    ledger = make(folder)
    await ledger.open()
    lease = await hold(ledger)
    await ledger.append(Append(lease, (note("before"),)))
    await ledger.close()
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    error = await _refusal(make(folder).open())
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    ledger = make(folder)
    await ledger.open()
    report = await _verify(ledger, lease)
    await ledger.close()
    return report | {"error": error}


def lock(folder: Path) -> None:
    """Holds the write lock until its input ends."""
    connection = sqlite3.connect(folder / "ledger.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    print("locked", flush=True)
    sys.stdin.read()
    connection.execute("ROLLBACK")


async def wait(folder: Path) -> dict[str, Any]:
    """Says when it listens, then how long it waited for another process's commit."""
    ledger = make(folder)
    await ledger.open()
    async with ledger.wake() as commits:
        started = time.monotonic()
        print("listening", flush=True)
        woken = await commits.wait(60)
        waited_s = time.monotonic() - started
    runs = await ledger.claim("me", limit=10, lease_s=60, max_running=10)
    await ledger.close()
    return {"woken": woken, "waited_s": waited_s, "claimed": len(runs)}


async def hear(folder: Path) -> dict[str, Any]:
    """Waits without ever looking at the database: only the socket tells."""
    wake.CHECK_S = 3600.0
    return await wait(folder)


async def _until_refused(ledger: SqliteLedger, lease: Lease) -> tuple[dict[str, str], int]:
    acknowledged = 0
    while True:
        try:
            await ledger.append(Append(lease, (note("x" * 5000),)))
        except AtlasError as error:
            return _described(error), acknowledged
        acknowledged += 1


async def _refusal(action: Any) -> dict[str, str]:
    try:
        await action
    except AtlasError as error:
        return _described(error)
    return {}


def _described(error: AtlasError) -> dict[str, str]:
    return {"class": type(error).__name__, "code": error.reason, "message": error.message, "hint": error.hint}


async def _verify(ledger: SqliteLedger, lease: Lease) -> dict[str, Any]:
    row, events = await ledger.run(lease.run_id), await ledger.events(lease.run_id)
    finding = check_chain(lease.run_id, events, row.head_seq, row.head_hash)
    return {"events": len(events), "finding": finding.message if finding else ""}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    if name == "lock":
        lock(folder)
        return
    commands = {
        "work": work,
        "acknowledge": acknowledge,
        "fill": fill,
        "limit": limit,
        "read_only": read_only,
        "wait": wait,
        "hear": hear,
    }
    print(json.dumps(asyncio.run(commands[name](folder))), flush=True)


if __name__ == "__main__":
    main()
