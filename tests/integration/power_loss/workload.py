"""The program whose writes are recorded: a small fleet of runs on a SQLite ledger, run under strace.

    python workload.py FOLDER ACKNOWLEDGEMENTS [WEAKNESS]

Each awaited call is acknowledged by one line in a file outside the ledger's folder, written after the call has
returned and before anything else happens to that run. The weaknesses are defects that the proof has to find.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from atlas.kernel.event import Draft, Spend
from atlas.kernel.ident import RUN, SESSION, SIGNAL, new_id
from atlas.kernel.run import Append, Claimed, InboxItem, Lease, NewRun, NewSignal
from atlas.ledger.blob import FileBlobs
from atlas.ledger.sqlite import SqliteLedger
from atlas.ledger.sqlite_desk import SqliteDesk
from integration.power_loss.picture import take

RUNS = 10
BLOB_BYTES = 70_000
DATABASE = "ledger.db"
BLOBS = "blobs"


class Acked(msgspec.Struct, frozen=True, tag=True):
    """The run's commit number `commit` was acknowledged."""

    run_id: str
    commit: int


class Seen(msgspec.Struct, frozen=True, tag=True):
    """How a run looked after its commit number `commit`."""

    run_id: str
    commit: int
    picture: msgspec.Raw


class Kept(msgspec.Struct, frozen=True, tag=True):
    """A blob was acknowledged."""

    digest: str


Line: TypeAlias = Acked | Seen | Kept


class SystemClock:
    """The machine's time; bytes that are the same in every recording."""

    def __init__(self) -> None:
        self._calls = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def entropy(self, size: int) -> bytes:
        self._calls += 1
        return hashlib.shake_128(str(self._calls).encode()).digest(size)


class Fleet:
    """Runs on one ledger, and the file in which every acknowledgement is noted."""

    def __init__(self, ledger: SqliteLedger, acknowledgements: int, clock: SystemClock) -> None:
        self._ledger = ledger
        self._acknowledgements = acknowledgements
        self._clock = clock
        self._commits: dict[str, int] = {}

    async def story(self, number: int) -> None:
        """One run from its submission to its end; every third one asks a person, every fourth one has a child."""
        run = self._new_run(number)
        await self._told(run.run_id, self._ledger.submit(run))
        lease = await self._claim(run.run_id)
        await self._append(lease, self._drafts(3, 200), spend=Spend(1, 10, 20, 30), lazy=number % 2 == 0)
        if number % 3 == 0:
            lease = await self._ask_a_person(lease)
        large = await self._ledger.put_blob(bytes([number]) * BLOB_BYTES)
        self._say(Kept(large))
        await self._append(lease, (self._draft(f'{{"blob":"{large}"}}'.encode()), *self._drafts(1, 3_000)))
        if number % 4 == 0:
            await self._have_a_child(run, lease)
        await self._append(lease, self._drafts(2, 6_000), state="succeeded", spend=Spend(1))

    async def _ask_a_person(self, lease: Lease) -> Lease:
        run_id = lease.run_id
        question = InboxItem(run_id, "step:1", "approval", "tester", "owner", b"{}", self._clock.now_us())
        await self._append(lease, self._drafts(1, 50), state="waiting", release=True, inbox_open=(question,))
        answer = NewSignal(self._new_id(SIGNAL), run_id, "answer", "owner", b'{"approved":true}')
        await self._told(run_id, self._ledger.signal(answer))
        lease = await self._claim(run_id)
        await self._append(lease, self._drafts(1, 50), consumed=(answer.id,), inbox_close=("step:1",))
        return lease

    async def _have_a_child(self, parent: NewRun, lease: Lease) -> None:
        child = self._new_run(50, parent)
        self._commits[child.run_id] = 0
        await self._append(lease, self._drafts(1, 100), children=(child,))
        await self._see(child.run_id)
        child_lease = await self._claim(child.run_id)
        news = NewSignal(self._new_id(SIGNAL), parent.run_id, "child_ended", "owner", b"{}")
        await self._append(child_lease, self._drafts(1, 100), state="succeeded", signals=(news,), of=parent.run_id)
        await self._append(lease, self._drafts(1, 20), consumed=(news.id,))

    async def _claim(self, run_id: str) -> Lease:
        claim = self._ledger.claim("ann", limit=1, lease_s=600, max_running=100, run_id=run_id)
        taken: list[Claimed] = await self._told(run_id, claim)
        return taken[0].lease

    async def _append(self, lease: Lease, drafts: tuple[Draft, ...], of: str = "", **rest: Any) -> None:
        await self._told(lease.run_id, self._ledger.append(Append(lease, drafts, **rest)))
        if of:  # the commit changed another run too
            await self._see(of)

    async def _told(self, run_id: str, call: Awaitable[Any]) -> Any:
        """What the call answered, once its acknowledgement is noted and the run's new picture is taken."""
        commit = self._commits[run_id] = self._commits.get(run_id, 0) + 1
        answer = await call
        self._say(Acked(run_id, commit))
        await self._look(run_id)
        return answer

    async def _see(self, run_id: str) -> None:
        """Counts and acknowledges a commit that another run's append made to this one."""
        self._commits[run_id] += 1
        self._say(Acked(run_id, self._commits[run_id]))
        await self._look(run_id)

    async def _look(self, run_id: str) -> None:
        commit = self._commits[run_id]
        picture = await take(self._ledger, run_id)
        self._say(Seen(run_id, commit, msgspec.Raw(picture)))

    def _say(self, line: Line) -> None:
        os.write(self._acknowledgements, msgspec.json.encode(line) + b"\n")

    def _new_run(self, number: int, parent: NewRun | None = None) -> NewRun:
        run_id = self._new_id(RUN)
        session_id = parent.session_id if parent else self._new_id(SESSION)
        return NewRun(
            run_id,
            session_id,
            "tester",
            "1.0.0",
            "snap",
            "owner",
            self._draft(b'{"agent":"tester"}'),
            parent.root_run_id if parent else run_id,
            parent_run_id=parent.run_id if parent else "",
            depth=1 if parent else 0,
            key=f"key-{number}" if parent is None else "",
            fingerprint="same",
        )

    def _new_id(self, prefix: str) -> str:
        return new_id(prefix, self._clock.now_us(), self._clock.entropy(10))

    def _drafts(self, count: int, size: int) -> tuple[Draft, ...]:
        return tuple(self._draft(b'"' + b"x" * size + b'"') for _ in range(count))

    def _draft(self, body: bytes) -> Draft:
        return Draft("logged", self._clock.now_us(), "owner", body)


class RelaxedLedger(SqliteLedger):
    """Acknowledges what the disk may not have yet."""

    def _open_desk(self) -> SqliteDesk:
        desk = super()._open_desk()
        desk.connection.execute("PRAGMA synchronous = NORMAL")
        return desk


class UnsyncedBlobs(FileBlobs):
    """Names a blob before its bytes are on disk."""

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class NamelessBlobs(FileBlobs):
    """Writes bytes that are on disk under a name that may not be."""

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return digest


WEAKNESSES = ("synchronous=NORMAL", "blob bytes not synced", "blob name not synced")


def open_ledger(folder: Path, clock: SystemClock, weakness: str = "") -> SqliteLedger:
    """The ledger as it is, or with one promise broken."""
    make = RelaxedLedger if weakness == "synchronous=NORMAL" else SqliteLedger
    ledger = make(folder / DATABASE, clock=clock, blobs=folder / BLOBS)
    if weakness == "blob bytes not synced":
        ledger._blobs = UnsyncedBlobs(folder / BLOBS, clock)
    elif weakness == "blob name not synced":
        ledger._blobs = NamelessBlobs(folder / BLOBS, clock)
    return ledger


async def work(folder: Path, acknowledgements: int, weakness: str) -> None:
    """Two lives of one ledger: some runs one by one, some at once, with checkpoints in between; no clean end."""
    clock = SystemClock()
    for life in range(2):
        ledger = open_ledger(folder, clock, weakness)
        await ledger.open()
        fleet = Fleet(ledger, acknowledgements, clock)
        numbers = range(life * RUNS // 2, (life + 1) * RUNS // 2)
        await fleet.story(numbers[0])
        _checkpoint(folder)
        async with asyncio.TaskGroup() as group:
            for number in numbers[1:]:
                group.create_task(fleet.story(number))
        _checkpoint(folder)
        if life == 0:
            await ledger.close()


def _checkpoint(folder: Path) -> None:
    # By a connection of its own, as another process would: the log is folded into the file and begins anew.
    connection = sqlite3.connect(folder / DATABASE)
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    connection.close()


if __name__ == "__main__":
    target = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    asyncio.run(work(Path(sys.argv[1]), target, sys.argv[3] if len(sys.argv) > 3 else ""))
    os._exit(0)
