"""The tool host's contract: calls that are late, cancelled or lost, and what is certain about them afterwards."""

from __future__ import annotations

import asyncio

from atlas.testing.tool_host_rig import Scene, case, killing_case, together


@case
async def a_call_that_is_late_is_stopped_and_says_so(scene: Scene) -> None:
    late = await scene.call("tick", path=scene.path)
    assert late.is_error
    assert "0.3 s" in late.text
    assert not late.in_doubt, "it may be repeated, so nothing is in doubt"
    await scene.assert_stopped()


@case
async def a_late_call_that_must_not_be_repeated_is_in_doubt(scene: Scene) -> None:
    late = await scene.call("tick_once", path=scene.path)
    assert (late.is_error, late.in_doubt) == (True, True)
    await scene.assert_stopped()


@case
async def a_late_call_that_can_be_looked_up_is_not_in_doubt(scene: Scene) -> None:
    happened = await scene.call("late_written", "k1", path=scene.path, is_late=True)
    assert (happened.text, happened.is_error, happened.in_doubt) == ("written", False, False)
    failed = await scene.call("late_written", "k2", path=scene.path, is_late=False)
    assert (failed.is_error, failed.in_doubt) == (True, False)
    assert "It did not happen" in failed.text


@case
async def when_cancelling_is_over_nothing_of_the_call_runs(scene: Scene) -> None:
    await _cancel(scene, "tick_on")
    await scene.assert_stopped()
    assert (await scene.call("double", n=2)).text == "4"


@case
async def cancelling_one_call_leaves_the_others(scene: Scene) -> None:
    async with asyncio.TaskGroup() as group:
        cancelled = group.create_task(scene.call("tick_on", path=scene.path))
        others = [group.create_task(scene.call("double", n=n)) for n in range(5)]
        await scene.until_written()
        cancelled.cancel()
    assert [one.result().text for one in others] == ["0", "2", "4", "6", "8"]


@case
async def draining_twice_is_as_good_as_once(scene: Scene) -> None:
    await scene.call("double", n=1)
    await scene.host.drain()
    await scene.host.drain()


@case
async def draining_stops_a_coroutine(scene: Scene) -> None:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.call("tick_on", path=scene.path))
        await scene.until_written()
        await scene.host.drain()
        await scene.assert_stopped()
    assert running.result().is_error


@killing_case
async def a_call_that_does_not_listen_is_stopped_all_the_same(scene: Scene) -> None:
    late = await scene.call("tick_deaf", path=scene.path)
    assert (late.is_error, late.in_doubt) == (True, True)
    await scene.assert_stopped()


@killing_case
async def a_call_that_does_not_listen_can_be_cancelled(scene: Scene) -> None:
    await _cancel(scene, "tick_deaf_on")
    await scene.assert_stopped()
    assert (await scene.call("double", n=2)).text == "4"


@killing_case
async def a_repeatable_call_whose_process_died_is_made_again_with_the_same_key(scene: Scene) -> None:
    found = await scene.call("die_first", "k1", path=scene.path)
    assert (found.text, found.is_error) == ("alive", False)
    assert scene.written == "k1\nk1\n"


@killing_case
async def a_repeatable_call_that_kills_every_process_is_an_error_and_not_in_doubt(scene: Scene) -> None:
    found = await scene.call("die_always", path=scene.path)
    assert (found.is_error, found.in_doubt) == (True, False)
    assert scene.written == ".."


@killing_case
async def a_call_that_must_not_be_repeated_and_died_is_in_doubt_and_never_made_again(scene: Scene) -> None:
    found = await scene.call("die_once", path=scene.path)
    assert (found.is_error, found.in_doubt) == (True, True)
    assert scene.written == "."


@killing_case
async def a_call_that_died_and_can_be_looked_up_is_not_in_doubt(scene: Scene) -> None:
    happened = await scene.call("die_written", "k1", path=scene.path, is_late=True)
    assert (happened.text, happened.is_error, happened.in_doubt) == ("written", False, False)
    failed = await scene.call("die_written", "k2", path=scene.path, is_late=False)
    assert (failed.is_error, failed.in_doubt) == (True, False)
    assert scene.written == "k1\n"


@killing_case
async def a_probe_whose_process_dies_looks_again(scene: Scene) -> None:
    found = await scene.probe("looked_up", "k1", path=scene.path, deaths=1)
    assert (found.found, found.text) == ("done", "seen")
    assert scene.written == "."


@killing_case
async def a_probe_that_kills_every_process_cannot_tell(scene: Scene) -> None:
    assert (await scene.probe("looked_up", "k1", path=scene.path, deaths=9)).found == "unknown"
    assert scene.written == ".."


@killing_case
async def a_process_that_dies_takes_no_call_of_another_along(scene: Scene) -> None:
    calls = [scene.call("double", n=3), scene.call("die_once", path=scene.path), scene.call("double", n=4)]
    first, died, last = await together(calls)
    assert (first.text, died.in_doubt, last.text) == ("6", True, "8")


@killing_case
async def draining_stops_what_runs(scene: Scene) -> None:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.call("tick_deaf_on", path=scene.path))
        await scene.until_written()
        await scene.host.drain()
        await scene.assert_stopped()
    assert running.result().is_error


async def _cancel(scene: Scene, name: str) -> None:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.call(name, path=scene.path))
        await scene.until_written()
        running.cancel()
    assert running.cancelled()
