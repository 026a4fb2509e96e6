"""Several real processes on one file."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from atlas.kernel.chain import check_chain
from atlas.kernel.event import NULL, RunCreated, draft
from atlas.kernel.run import NewRun, RunQuery
from atlas.ledger.sqlite import SqliteLedger
from atlas.ledger.wake import wake_folder
from atlas.testing.clock import FakeClock

CHILD = Path(__file__).with_name("sqlite_child.py")


def make(folder: Path) -> SqliteLedger:
    return SqliteLedger(folder / "ledger.db", clock=FakeClock(), blobs=folder / "blobs")


def new_run(number: int) -> NewRun:
    run_id = f"run_{number:032x}"
    created = draft(RunCreated("tester", "1.0.0", NULL, "snap", "ses_1", "seed"), 1, "owner")
    return NewRun(run_id, f"ses_{number}", "tester", "1.0.0", "snap", "owner", created, run_id)


async def with_ledger(folder: Path, work: Callable[[SqliteLedger], Coroutine[Any, Any, Any]]) -> Any:
    ledger = make(folder)
    await ledger.open()
    try:
        return await work(ledger)
    finally:
        await ledger.close()


def start(name: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(CHILD), name, str(folder)], stdout=subprocess.PIPE, text=True)


def test_four_processes_claim_and_append_on_one_file(tmp_path: Path) -> None:
    async def submit(ledger: SqliteLedger) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(ledger.submit(new_run(number)))

    asyncio.run(with_ledger(tmp_path, submit))
    children = [start("work", tmp_path) for _ in range(4)]
    answers = [json.loads(child.communicate(timeout=100)[0]) for child in children]
    assert [child.returncode for child in children] == [0] * 4
    claimed = [run_id for answer in answers for run_id in answer["claimed"]]
    assert sorted(claimed) == sorted(new_run(number).run_id for number in range(60)), "each run claimed exactly once"

    async def check(ledger: SqliteLedger) -> None:
        feed = await ledger.feed(0, 0)
        assert [event.position for event in feed] == list(range(1, 60 * 14 + 1))
        page = await ledger.runs(RunQuery(limit=100, states=("succeeded",)))
        assert len(page.runs) == 60
        for row in page.runs:
            mine = await ledger.events(row.run_id)
            assert check_chain(row.run_id, mine, row.head_seq, row.head_hash) is None
            assert mine == [event for event in feed if event.run_id == row.run_id]

    asyncio.run(with_ledger(tmp_path, check))


def test_a_new_file_is_made_by_processes_that_start_at_once(tmp_path: Path) -> None:
    children = [start("work", tmp_path) for _ in range(6)]
    for child in children:
        assert json.loads(child.communicate(timeout=100)[0]) == {"claimed": []}
        assert child.returncode == 0


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    for _ in range(4):
        with start("acknowledge", tmp_path) as child:
            assert child.stdout is not None
            run_id = child.stdout.readline().strip()
            lines = [child.stdout.readline() for _ in range(20)]
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.read().splitlines(keepends=True)
        acknowledged = int([line for line in lines if line.endswith("\n")][-1])

        async def check(ledger: SqliteLedger, run_id: str = run_id, acknowledged: int = acknowledged) -> None:
            row, events = await ledger.run(run_id), await ledger.events(run_id)
            assert len(events) >= acknowledged > 1
            assert len(events) % 2 == 1, "a batch of two is there whole or not at all"
            assert check_chain(run_id, events, row.head_seq, row.head_hash) is None

        asyncio.run(with_ledger(tmp_path, check))


@pytest.mark.parametrize("depth", [0, 12])
def test_a_commit_wakes_another_process_at_once(tmp_path: Path, depth: int) -> None:
    # Deep folders have addresses too long for a socket; then the sockets are elsewhere, and still found.
    folder = tmp_path.joinpath(*["a_rather_long_name"] * depth)
    folder.mkdir(parents=True, exist_ok=True)

    async def work(ledger: SqliteLedger) -> None:
        with start("hear", folder) as child:
            assert child.stdout is not None
            assert await asyncio.to_thread(child.stdout.readline) == "listening\n"
            await asyncio.sleep(0.3)
            await ledger.submit(new_run(1))
            answer = json.loads(await asyncio.to_thread(child.stdout.read))
        assert (answer["woken"], answer["claimed"]) == (True, 1)
        assert 0.2 < answer["waited_s"] < 30, "by this commit, and by the socket"

    asyncio.run(with_ledger(folder, work))
    assert list(wake_folder(folder / "ledger.db").glob("*.sock")) == [], "nobody leaves a socket behind"


def test_sockets_of_killed_processes_are_cleared_away(tmp_path: Path) -> None:
    async def work(ledger: SqliteLedger) -> None:
        with start("wait", tmp_path) as child:
            assert child.stdout is not None
            await asyncio.to_thread(child.stdout.readline)
            child.kill()
        sockets = wake_folder(tmp_path / "ledger.db")
        assert len(list(sockets.glob("*.sock"))) == 1
        await ledger.submit(new_run(1))
        await ledger.submit(new_run(2))
        assert list(sockets.glob("*.sock")) == []

    asyncio.run(with_ledger(tmp_path, work))


def test_a_commit_that_nobody_announced_is_found(tmp_path: Path) -> None:
    async def work(ledger: SqliteLedger) -> None:
        with start("wait", tmp_path) as child:
            assert child.stdout is not None
            assert await asyncio.to_thread(child.stdout.readline) == "listening\n"
            for path in wake_folder(tmp_path / "ledger.db").glob("*.sock"):
                path.unlink()
            await ledger.submit(new_run(1))
            answer = json.loads(await asyncio.to_thread(child.stdout.read))
        assert (answer["woken"], answer["claimed"]) == (True, 1)
        assert answer["waited_s"] < 20

    asyncio.run(with_ledger(tmp_path, work))
