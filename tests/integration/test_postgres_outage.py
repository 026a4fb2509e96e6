"""The server may die, or the line to it be cut, at any moment: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atlas.kernel.errors import LedgerUnavailable
from atlas.kernel.run import Append
from atlas.testing.ledger_rig import Scene
from integration.postgres_stage import Cut, open_line, open_scene, own_server


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_commit_whose_answer_was_lost_happens_once(cut: Cut, pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        with open_line(pg_database) as (line, url):
            async with open_scene(url, tmp_path) as scene:
                run, lease = await scene.hold()
                await scene.ledger.append(Append(lease, (scene.note("one"),)))
                line.cut = cut
                answer = await scene.ledger.append(Append(lease, (scene.note("two"), scene.note("three"))))
                assert line.cuts == 1
                assert answer.seq == 4
                await scene.ledger.append(Append(lease, (scene.note("four"),)))
                assert await scene.texts(run.run_id) == ["one", "two", "three", "four"]
                await scene.check_chains([run.run_id])

    asyncio.run(check())


@pytest.mark.parametrize("cut", ["before", "after"])
def test_other_calls_survive_a_cut_too(cut: Cut, pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        with open_line(pg_database) as (line, url):
            async with open_scene(url, tmp_path) as scene:
                line.cut = cut
                run = await scene.submit(key="once", fingerprint="same")
                line.cut = cut
                lease = await scene.take(run.run_id)
                assert lease.generation == 1
                line.cut = cut
                signal = scene.new_signal(run.run_id)
                assert await scene.ledger.signal(signal)
                line.cut = cut
                assert len(await scene.ledger.renew([lease], 60.0)) == 1
                assert line.cuts == 4
                assert [found.id for found in await scene.ledger.signals(run.run_id)] == [signal.id]
                assert (await scene.ledger.run(run.run_id)).generation == 1

    asyncio.run(check())


def test_an_outcome_nobody_can_tell_is_called_unknown_and_not_failed(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        with open_line(pg_database) as (line, url):
            async with open_scene(url, tmp_path, patience_s=0.3) as scene:
                run, lease = await scene.hold()
                line.cut, line.is_down = "after", True
                with pytest.raises(LedgerUnavailable) as caught:
                    await scene.ledger.append(Append(lease, (scene.note("perhaps"),)))
                assert caught.value.reason == "outcome_unknown"
                with pytest.raises(LedgerUnavailable) as caught:
                    await scene.ledger.append(Append(lease, (scene.note("not sent"),)))
                assert caught.value.reason == "unreachable"
                line.is_down = False
                await scene.ledger.append(Append(lease, (scene.note("later"),)))
                assert await scene.texts(run.run_id) == ["perhaps", "later"]

    asyncio.run(check())


def test_nothing_takes_effect_behind_an_append_that_was_lost(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        with open_line(pg_database) as (line, url):
            async with open_scene(url, tmp_path, patience_s=1.0) as scene:
                run, lease = await scene.hold()
                other, other_lease = await scene.hold()
                line.cut, line.is_down = "before", True
                lost = scene.ledger.append(Append(lease, (scene.note("receipt"),)))
                while line.cuts == 0:
                    await asyncio.sleep(0.005)
                # Handed over while the one before is being given up; the server is back before their turn comes.
                behind = scene.ledger.append(Append(lease, (scene.note("built on the receipt"),)))
                aside = scene.ledger.append(Append(other_lease, (scene.note("independent"),)))
                with pytest.raises(LedgerUnavailable):
                    await lost
                line.is_down = False
                with pytest.raises(LedgerUnavailable):
                    await behind
                assert (await aside).seq == 2
                await scene.ledger.append(Append(lease, (scene.note("knowingly"),)))
                assert await scene.texts(run.run_id) == ["knowingly"]
                assert await scene.texts(other.run_id) == ["independent"]

    asyncio.run(check())


def test_a_server_killed_under_load_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    kills = 3

    async def write(scene: Scene, told: dict[str, list[str]], stop: asyncio.Event) -> None:
        run, lease = await scene.hold()
        said = told[run.run_id] = []
        while not stop.is_set():
            text = str(len(said))
            await scene.ledger.append(Append(lease, (scene.note(text),), lazy=len(said) % 3 == 0))
            said.append(text)

    async def check() -> None:
        told: dict[str, list[str]] = {}
        stop = asyncio.Event()
        with own_server() as server:
            async with open_scene(server.url, tmp_path, patience_s=60.0) as scene:
                async with asyncio.TaskGroup() as group:
                    for _ in range(8):
                        group.create_task(write(scene, told, stop))
                    for _ in range(kills):
                        before = sum(map(len, told.values()))
                        while sum(map(len, told.values())) < before + 100:
                            await asyncio.sleep(0.01)
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.start)
                    stop.set()
            async with open_scene(server.url, tmp_path) as scene:
                assert len(told) == 8
                for run_id, said in told.items():
                    assert await scene.texts(run_id) == said
                await scene.check_chains(list(told))
                positions = [event.position for event in await scene.ledger.feed(0, 0)]
                assert positions == list(range(1, len(positions) + 1))

    asyncio.run(check())


def test_a_read_waits_for_a_server_that_restarts(tmp_path: Path) -> None:
    async def check() -> None:
        with own_server() as server:
            async with open_scene(server.url, tmp_path, patience_s=60.0) as scene:
                run = await scene.submit()
                await asyncio.to_thread(server.kill)
                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(scene.state(run.run_id))
                    await asyncio.to_thread(server.start)
                assert reading.result() == "queued"

    asyncio.run(check())


def test_a_ledger_closes_at_once_while_the_server_is_away(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        with open_line(pg_database) as (line, url):
            async with open_scene(url, tmp_path, patience_s=600.0) as scene:
                _, lease = await scene.hold()
                line.cut, line.is_down = "before", True
                waiting = scene.ledger.append(Append(lease, (scene.note("lost"),)))
                while line.cuts == 0:
                    await asyncio.sleep(0.01)
            with pytest.raises(LedgerUnavailable):
                await waiting

    asyncio.run(check())
