"""A disk that fails, a file that is damaged, a lock that is held: a clear error, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from atlas.kernel.chain import check_chain
from atlas.kernel.errors import AtlasError, Conflict, Fault, LedgerCorrupt, LedgerUnavailable
from atlas.kernel.event import NULL, Draft, RunCreated, draft
from atlas.kernel.run import Append, Lease, NewRun, RunQuery
from atlas.ledger.sqlite import SqliteLedger
from atlas.ledger.sqlite_desk import SqliteDesk
from atlas.testing.clock import FakeClock

CHILD = Path(__file__).with_name("sqlite_child.py")


def make(folder: Path, **options: Any) -> SqliteLedger:
    return SqliteLedger(folder / "ledger.db", clock=FakeClock(), blobs=folder / "blobs", **options)


def new_run(number: int) -> NewRun:
    run_id = f"run_{number:032x}"
    created = draft(RunCreated("tester", "1.0.0", NULL, "snap", "ses_1", "seed"), 1, "owner")
    return NewRun(run_id, f"ses_{number}", "tester", "1.0.0", "snap", "owner", created, run_id)


async def with_ledger(ledger: SqliteLedger, work: Callable[[SqliteLedger], Coroutine[Any, Any, Any]]) -> Any:
    await ledger.open()
    try:
        return await work(ledger)
    finally:
        await ledger.close()


def fill(folder: Path, runs: int = 3) -> None:
    async def work(ledger: SqliteLedger) -> None:
        for number in range(runs):
            await ledger.submit(new_run(number))

    asyncio.run(with_ledger(make(folder), work))


async def outcome(pending: Awaitable[Any]) -> str:
    try:
        await pending
    except AtlasError as error:
        return error.reason
    return "ok"


def refusal(ledger: SqliteLedger) -> AtlasError:
    with pytest.raises(AtlasError) as caught:
        asyncio.run(with_ledger(ledger, SqliteLedger.head))
    assert caught.value.hint
    return caught.value


def child(command: list[str], *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [*command, sys.executable, str(CHILD), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture
def own_mounts() -> list[str]:
    """A command that gives a process mounts of its own."""
    command = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], check=False).returncode != 0:
        pytest.skip("this machine does not let a test have mounts of its own")
    return command


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path, own_mounts: list[str]) -> None:
    report = child(own_mounts, "fill", str(tmp_path))
    assert (report["error"]["class"], report["error"]["code"]) == ("LedgerUnavailable", "disk_full")
    assert report["error"]["hint"]
    assert report["acknowledged"] > 10
    # Two events come from making the run and from going on after there was room again.
    assert report["events"] == report["after"] == report["acknowledged"] + 2
    assert report["finding"] == ""
    assert (report["blob"]["class"], report["blob"]["code"]) == ("LedgerUnavailable", "disk_full")
    assert (report["blob_after"], report["leftovers"]) == (64, [])


def test_a_disk_that_refuses_to_write_is_told_and_loses_nothing(tmp_path: Path) -> None:
    report = child([], "limit", str(tmp_path))
    assert (report["error"]["class"], report["error"]["code"]) == ("LedgerUnavailable", "io_error")
    assert report["acknowledged"] > 10
    assert report["events"] == report["after"] == report["acknowledged"] + 2
    assert report["finding"] == ""


def test_a_read_only_disk_is_told(tmp_path: Path, own_mounts: list[str]) -> None:
    report = child(own_mounts, "read_only", str(tmp_path))
    assert report["error"]["class"] == "LedgerUnavailable"
    assert report["error"]["code"] in ("read_only", "cannot_open")
    assert (report["events"], report["finding"]) == (2, "")


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A ledger whose write lock another process holds until its input is closed."""
    fill(tmp_path)
    command = [sys.executable, str(CHILD), "lock", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield tmp_path, process
        if process.stdin is not None:
            process.stdin.close()


def test_a_lock_held_by_another_process_is_told_and_passes(locked: tuple[Path, subprocess.Popen[str]]) -> None:
    folder, process = locked

    async def work(ledger: SqliteLedger) -> None:
        assert await ledger.head() == 3, "reading goes on"
        started = time.monotonic()
        pending = [asyncio.ensure_future(ledger.submit(new_run(10 + number))) for number in range(8)]
        await asyncio.wait(pending)
        assert time.monotonic() - started < 8 * 1.0, "the whole group waited once"
        errors = [task.exception() for task in pending]
        assert all(isinstance(error, LedgerUnavailable) for error in errors)
        assert {error.reason for error in errors if isinstance(error, AtlasError)} == {"ledger_locked"}
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        assert (await ledger.submit(new_run(20))).is_new
        assert await ledger.head() == 4

    asyncio.run(with_ledger(make(folder, busy_s=1.0), work))


def test_a_short_lock_is_waited_for(locked: tuple[Path, subprocess.Popen[str]]) -> None:
    folder, process = locked

    async def work(ledger: SqliteLedger) -> None:
        pending = asyncio.ensure_future(ledger.submit(new_run(10)))
        await asyncio.sleep(0.3)
        assert not pending.done()
        assert process.stdin is not None
        process.stdin.close()
        assert (await pending).is_new

    asyncio.run(with_ledger(make(folder, busy_s=20), work))


class SmallLedger(SqliteLedger):
    """A ledger whose file can hardly grow."""

    def _open_desk(self) -> SqliteDesk:
        desk = super()._open_desk()
        [(pages,)] = desk.connection.execute("PRAGMA page_count")
        desk.connection.execute(f"PRAGMA max_page_count = {pages + 8}")
        return desk


def test_what_does_not_fit_takes_along_what_was_built_on_it(tmp_path: Path) -> None:
    async def work(ledger: SqliteLedger) -> None:
        taken = await ledger.claim("ann", limit=2, lease_s=60, max_running=10)
        mine, other = (claimed.lease for claimed in taken)
        large, small = Draft("logged", 1, "owner", b"x" * 100_000), Draft("logged", 1, "owner", b"{}")
        batches = [Append(mine, (small,)), Append(mine, (large,)), Append(mine, (small,)), Append(other, (small,))]
        answers = [await outcome(one) for one in [ledger.append(batch) for batch in batches]]
        assert answers == ["ok", "disk_full", "append_lost", "ok"]
        assert await outcome(ledger.append(Append(mine, (small,)))) == "ok"
        row, events = await ledger.run(mine.run_id), await ledger.events(mine.run_id)
        assert check_chain(row.run_id, events, row.head_seq, row.head_hash) is None
        assert len(events) == 3

    fill(tmp_path)
    asyncio.run(with_ledger(SmallLedger(tmp_path / "ledger.db", clock=FakeClock(), blobs=tmp_path / "blobs"), work))


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    error = refusal(make(tmp_path / "nowhere"))
    assert (type(error), error.reason) == (LedgerUnavailable, "cannot_open")
    assert str(tmp_path / "nowhere" / "ledger.db") in error.where


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"Dear diary, " * 1000)
    error = refusal(make(tmp_path))
    assert type(error) is LedgerCorrupt
    assert (tmp_path / "ledger.db").read_bytes() == b"Dear diary, " * 1000, "it is left as it was"


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        other.execute("CREATE TABLE recipe (name TEXT)")
    other.close()
    error = refusal(make(tmp_path))
    assert (type(error), error.reason) == (Conflict, "not_a_ledger")
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("recipe",)]
    other.close()


def test_flipped_bytes_are_told(tmp_path: Path) -> None:
    fill(tmp_path, 200)
    path = tmp_path / "ledger.db"
    data = bytearray(path.read_bytes())
    for page in range(1, len(data) // 4096):  # the first page stays, so that opening succeeds
        data[page * 4096 : page * 4096 + 100] = os.urandom(100)
    path.write_bytes(data)

    async def work(ledger: SqliteLedger) -> None:
        with pytest.raises(LedgerCorrupt) as caught:
            await ledger.feed(0, 1000)
        assert caught.value.hint
        with pytest.raises(LedgerCorrupt):
            await ledger.submit(new_run(1000))

    try:
        asyncio.run(with_ledger(make(tmp_path), work))
    except LedgerCorrupt as error:  # damage can also be found while opening
        assert error.hint  # noqa: PT017 - either place is right


def test_an_altered_body_is_named_by_the_chain(tmp_path: Path) -> None:
    fill(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.db") as tool:
        tool.execute("UPDATE event SET body = CAST('{}' || body AS BLOB) WHERE position = 2")
    tool.close()

    async def work(ledger: SqliteLedger) -> None:
        findings = []
        for number in range(3):
            row, events = await ledger.run(new_run(number).run_id), await ledger.events(new_run(number).run_id)
            findings.append(check_chain(row.run_id, events, row.head_seq, row.head_hash))
        assert [finding.kind if finding else "" for finding in findings] == ["", "altered", ""]

    asyncio.run(with_ledger(make(tmp_path), work))


def test_a_newer_ledger_names_the_version_that_wrote_it(tmp_path: Path) -> None:
    fill(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.db") as newer:
        newer.execute("PRAGMA user_version = 99")
        newer.execute("UPDATE meta SET value = '7.8.9' WHERE name = 'atlas_version'")
    newer.close()
    error = refusal(make(tmp_path))
    assert (type(error), error.reason) == (Conflict, "ledger_too_new")
    assert "7.8.9" in error.message
    assert "7.8.9" in error.hint


def test_a_schema_that_becomes_newer_under_an_open_ledger_is_noticed(tmp_path: Path) -> None:
    async def work(ledger: SqliteLedger) -> None:
        assert await ledger.head() == 3
        with sqlite3.connect(tmp_path / "ledger.db") as newer:
            newer.execute("PRAGMA user_version = 99")
            newer.execute("UPDATE meta SET value = '7.8.9' WHERE name = 'atlas_version'")
        newer.close()
        calls = [ledger.submit(new_run(10)), ledger.submit(new_run(11)), ledger.head(), ledger.runs(RunQuery())]
        for call in calls:
            with pytest.raises(Conflict, match=r"7\.8\.9") as caught:
                await call
            assert caught.value.reason == "ledger_too_new"

    fill(tmp_path)
    asyncio.run(with_ledger(make(tmp_path), work))
    with sqlite3.connect(tmp_path / "ledger.db") as newer:
        assert newer.execute("SELECT count(*) FROM run").fetchone() == (3,), "nothing was written"
    newer.close()


def test_a_ledger_that_failed_to_open_opens_when_the_cause_is_gone(tmp_path: Path) -> None:
    ledger = make(tmp_path / "later")
    refusal(ledger)
    (tmp_path / "later").mkdir()
    assert asyncio.run(with_ledger(ledger, SqliteLedger.head)) == 0


def test_a_ledger_is_refused_in_a_forked_child(tmp_path: Path) -> None:
    async def work(ledger: SqliteLedger) -> None:
        await ledger.submit(new_run(1))
        [claimed] = await ledger.claim("ann", limit=1, lease_s=60, max_running=10)
        assert faults_in_a_fork(ledger, claimed.lease) == ["ledger_forked"] * 3
        assert await ledger.head() == 1, "the parent goes on"

    asyncio.run(with_ledger(make(tmp_path), work))


def faults_in_a_fork(ledger: SqliteLedger, lease: Lease) -> list[str]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        faults = []
        calls: list[Coroutine[Any, Any, Any]] = [ledger.head(), ledger.close()]
        for call in calls:
            try:
                call.send(None)
            except Fault as fault:
                faults.append(fault.reason)
        try:
            ledger.append(Append(lease))
        except Fault as fault:
            faults.append(fault.reason)
        os.write(writing, json.dumps(faults).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as answer:
        os.close(writing)
        found: list[str] = json.load(answer)
    return found
