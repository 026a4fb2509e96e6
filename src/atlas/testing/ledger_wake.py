"""The ledger's contract: who waits for a commit hears of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from atlas.kernel.port import Wake
from atlas.kernel.run import Append
from atlas.testing.ledger_rig import Scene, case, peer_case

SOON_S = 5.0  # longer than any wake takes; a wake that is missed waits it out and fails
QUIET_S = 0.15


@case
async def nothing_committed_wakes_nobody(scene: Scene) -> None:
    async with scene.ledger.wake(every_commit=True) as wake:
        started = time.monotonic()
        assert not await wake.wait(QUIET_S)
        assert time.monotonic() - started >= QUIET_S * 0.9
        assert not await wake.wait(0)


@case
async def reading_and_claiming_nothing_wakes_nobody(scene: Scene) -> None:
    async with scene.ledger.wake(every_commit=True) as wake:
        await scene.claim()
        await scene.ledger.head()
        await scene.ledger.expire("nobody")
        assert not await wake.wait(QUIET_S)


@case
async def a_commit_before_the_wait_is_not_missed(scene: Scene) -> None:
    async with scene.ledger.wake() as wake:
        await scene.submit()
        assert await wake.wait(0)
        assert not await wake.wait(QUIET_S), "one commit, one wake"


@case
async def commits_before_the_subscription_do_not_count(scene: Scene) -> None:
    await scene.submit()
    async with scene.ledger.wake() as wake:
        assert not await wake.wait(QUIET_S)


async def woken_by(wake: Wake, action: Callable[[], Coroutine[Any, Any, object]]) -> bool:
    """Whether an action wakes somebody who is already waiting."""
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wake.wait(SOON_S))
        await asyncio.sleep(0)
        await action()
    return waiting.result()


@case
async def everything_that_makes_work_wakes(scene: Scene) -> None:
    run, lease = await scene.hold()
    later = await scene.submit()

    async def change() -> None:
        await scene.ledger.append(Append(lease, state="waiting", release=True))

    async def signal() -> None:
        await scene.ledger.signal(scene.new_signal(run.run_id))

    async def end() -> None:
        await scene.end(await scene.take(later.run_id))

    async with scene.ledger.wake() as wake:
        for action in (change, signal, end, scene.submit, scene.hold):
            assert await woken_by(wake, action), action
            while await wake.wait(0):  # some of them commit more than once
                pass


@case
async def events_alone_wake_only_those_who_want_every_commit(scene: Scene) -> None:
    _, lease = await scene.hold()
    async with scene.ledger.wake() as wake, scene.ledger.wake(every_commit=True) as every:
        await scene.ledger.append(Append(lease, (scene.note("x"),)))
        assert await every.wait(SOON_S)
        assert not await wake.wait(QUIET_S)


@case
async def every_subscriber_is_woken(scene: Scene) -> None:
    async with scene.ledger.wake() as first, scene.ledger.wake() as second, scene.ledger.wake() as third:
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(wake.wait(SOON_S)) for wake in (first, second, third)]
            await asyncio.sleep(0)
            await scene.submit()
        assert [task.result() for task in waits] == [True, True, True]


@case
async def a_cancelled_wait_leaves_the_subscription_whole(scene: Scene) -> None:
    async with scene.ledger.wake() as wake:
        waiting = asyncio.ensure_future(wake.wait(SOON_S))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        await scene.submit()
        assert await wake.wait(0)


async def answer(asker: Scene, answerer: Scene, rounds: int) -> None:
    """Two sides take turns, each waiting for the other's commit; a single missed wake stops them."""
    run, lease = await asker.hold()
    ready = asyncio.Event()

    async def ask() -> None:
        async with asker.ledger.wake(every_commit=True) as wake:
            await ready.wait()
            for number in range(rounds):
                await asker.ledger.append(Append(lease, (asker.note(str(number)),)))
                while len(await asker.ledger.signals(run.run_id)) <= number:
                    assert await wake.wait(SOON_S), f"the answer to {number} was missed"

    async def reply() -> None:
        async with answerer.ledger.wake(every_commit=True) as wake:
            ready.set()
            for number in range(rounds):
                while (await answerer.ledger.run(run.run_id)).head_seq < number + 2:
                    assert await wake.wait(SOON_S), f"question {number} was missed"
                await answerer.ledger.signal(answerer.new_signal(run.run_id))

    async with asyncio.TaskGroup() as group:
        group.create_task(ask())
        group.create_task(reply())


@case
async def no_commit_is_missed_between_waits(scene: Scene) -> None:
    await answer(scene, scene, 50)


@peer_case
async def no_commit_of_another_ledger_is_missed(scene: Scene, other: Scene) -> None:
    await answer(scene, other, 30)


@peer_case
async def a_commit_of_another_ledger_wakes_soon(scene: Scene, other: Scene) -> None:
    async with other.ledger.wake() as wake:
        while await wake.wait(0.2):
            pass
        assert await woken_by(wake, scene.submit)
