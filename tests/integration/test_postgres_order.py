"""Positions are dense and in commit order, whoever writes and however long a transaction stays open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import psycopg
import pytest

from atlas.kernel.chain import GENESIS, seal
from atlas.kernel.event import Event
from atlas.kernel.run import Append, Lease, RunQuery
from atlas.ledger.postgres_link import Link
from atlas.ledger.statement import load_statements
from atlas.testing.ledger_rig import Scene
from integration.postgres_stage import open_scene

SQL = load_statements("postgres")
PROCESSES = 4
RUNS = 60


async def follow(scene: Scene, until: int) -> list[Event]:
    """What a reader of the feed sees that starts now and never looks back, up to `until` events."""
    seen: list[Event] = []
    while len(seen) < until:
        new = await scene.ledger.feed(seen[-1].position if seen else 0, 3)
        seen += new
        if not new:
            await asyncio.sleep(0.005)
    return seen


def test_a_transaction_held_open_makes_no_reader_skip_an_event(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene, open_scene(pg_database, tmp_path) as other:
            run, lease = await scene.hold()
            with psycopg.connect(pg_database, autocommit=True) as slow:
                slow.execute("SET search_path = atlas")
                slow.execute(SQL["begin"])
                slow.execute(SQL["lock_writes"])
                [(position,)] = slow.execute("SELECT max(position) + 1 FROM event").fetchall()
                event = seal(scene.note("slow"), "run_slow", 1, position, GENESIS, bytes(16))
                slow.execute(SQL["insert_events"], [[value] for value in msgspec.structs.astuple(event)])

                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(follow(other, 3))
                    quick = scene.ledger.append(Append(lease, (scene.note("quick"),)))
                    done, _ = await asyncio.wait([asyncio.ensure_future(quick)], timeout=0.3)
                    assert not done, "an event was committed around one that was still open"
                    assert not reading.done()
                    slow.execute("COMMIT")
                    await quick
            assert [event.position for event in reading.result()] == [1, 2, 3]
            assert [event.run_id for event in reading.result()] == [run.run_id, "run_slow", run.run_id]

    asyncio.run(check())


def test_a_transaction_rolled_back_leaves_no_gap(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene:
            _, lease = await scene.hold()
            with psycopg.connect(pg_database, autocommit=True) as slow:
                slow.execute("SET search_path = atlas")
                slow.execute(SQL["begin"])
                slow.execute(SQL["lock_writes"])
                event = seal(scene.note("gone"), "run_gone", 1, 2, GENESIS, bytes(16))
                slow.execute(SQL["insert_events"], [[value] for value in msgspec.structs.astuple(event)])
                slow.execute("ROLLBACK")
            await scene.ledger.append(Append(lease, (scene.note("next"),)))
            assert [event.position for event in await scene.ledger.feed(0, 0)] == [1, 2]

    asyncio.run(check())


def test_a_row_locked_by_hand_does_not_stop_the_queue(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene:
            first, second = await scene.submit(), await scene.submit()
            with psycopg.connect(pg_database) as admin:
                admin.execute("SELECT 1 FROM atlas.run WHERE run_id = %s FOR UPDATE", (first.run_id,))
                assert await scene.claim_ids(limit=5) == [second.run_id]
            assert await scene.claim_ids(limit=5) == [first.run_id]

    asyncio.run(check())


@pytest.mark.slow
def test_a_process_that_stops_inside_a_transaction_does_not_stop_the_others(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene:
            run, lease = await scene.hold()
            stopped = Link(pg_database, SQL, 10.0).connect("writer")
            try:
                stopped.execute(SQL["begin"])
                stopped.execute(SQL["lock_writes"])
                # The server ends the idle session after five seconds, before our own wait for the lock is over.
                await scene.ledger.append(Append(lease, (scene.note("went on"),)))
            finally:
                with contextlib.suppress(psycopg.Error):
                    stopped.close()
            assert await scene.texts(run.run_id) == ["went on"]

    asyncio.run(check())


def test_processes_share_the_work_without_gap_or_double_claim(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene:
            command = [sys.executable, __file__, pg_database, str(tmp_path)]
            paths = os.pathsep.join(path for path in sys.path if path)
            workers = [
                subprocess.Popen([*command, f"worker-{number}"], env=os.environ | {"PYTHONPATH": paths})
                for number in range(PROCESSES)
            ]
            try:
                for _ in range(RUNS):
                    await scene.submit()
                seen = await follow(scene, RUNS * 4)
                codes = [await asyncio.to_thread(worker.wait, 60) for worker in workers]
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()
            assert codes == [0] * PROCESSES
            assert [event.position for event in seen] == list(range(1, RUNS * 4 + 1))
            assert await scene.ledger.head() == RUNS * 4
            page = await scene.ledger.runs(RunQuery(limit=1000))
            assert [(row.state, row.generation, row.head_seq) for row in page.runs] == [("succeeded", 1, 4)] * RUNS
            await scene.check_chains([row.run_id for row in page.runs])
            owners = {tuple(await scene.texts(row.run_id)) for row in page.runs}
            assert all(len({text.partition(":")[0] for text in texts}) == 1 for texts in owners)
            assert len(owners) > 1, "one process did all the work"

    asyncio.run(check())


async def _work(url: str, folder: Path, owner: str) -> None:
    """Claims and ends runs until every run there will be has ended."""
    async with open_scene(url, folder) as scene, scene.ledger.wake() as wake:
        while True:
            claimed = await scene.claim(owner, limit=3, max_running=1000)
            async with asyncio.TaskGroup() as group:
                for one in claimed:
                    group.create_task(_drive(scene, one.lease, owner))
            ended = await scene.ledger.runs(RunQuery(states=("succeeded",), limit=RUNS))
            if len(ended.runs) == RUNS:
                return
            if not claimed:
                await wake.wait(5.0)


async def _drive(scene: Scene, lease: Lease, owner: str) -> None:
    await scene.ledger.append(Append(lease, (scene.note(f"{owner}:begun"),)))
    await scene.ledger.append(Append(lease, (scene.note(f"{owner}:more"),), lazy=True))
    await scene.ledger.append(Append(lease, (scene.note(f"{owner}:done"),), state="succeeded"))


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
