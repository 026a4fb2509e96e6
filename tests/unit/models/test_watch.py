"""The watch over an answer: it rings when nothing was heard for too long, and sets a timer only when one has run out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from atlas.models.watch import Watch


class CountingLoop(asyncio.SelectorEventLoop):
    """A loop that counts the timers set in it."""

    timers = 0

    def call_at(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.timers += 1
        return super().call_at(*args, **kwargs)


def in_loop(work: Callable[[CountingLoop], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)

        async def limited() -> None:
            async with asyncio.timeout(10):
                await work(loop)

        runner.run(limited())


def test_it_rings_once_when_nothing_came_at_all() -> None:
    async def work(loop: CountingLoop) -> None:
        rung, began = list[float](), loop.time()
        watch = Watch(lambda: rung.append(loop.time() - began))
        watch.start(0.05, 0.02)
        await asyncio.sleep(0.2)
        assert len(rung) == 1
        assert 0.05 <= rung[0] < 0.15

    in_loop(work)


def test_silence_is_counted_from_what_was_heard_last() -> None:
    async def work(loop: CountingLoop) -> None:
        rung = list[float]()
        watch = Watch(lambda: rung.append(loop.time()))
        watch.start(1.0, 0.1)
        for _ in range(8):
            await asyncio.sleep(0.03)
            watch.heard()
        last = loop.time()
        assert not rung
        await asyncio.sleep(0.2)
        assert len(rung) == 1
        assert 0.1 <= rung[0] - last < 0.18

    in_loop(work)


def test_a_silence_behind_a_late_first_byte_is_not_overslept() -> None:
    async def work(loop: CountingLoop) -> None:
        rung = list[float]()
        watch = Watch(lambda: rung.append(loop.time()))
        watch.start(2.0, 0.05)
        await asyncio.sleep(0.08)  # the timer has been set anew, and something comes long before the first byte is due
        watch.heard()
        heard = loop.time()
        await asyncio.sleep(0.2)
        assert len(rung) == 1
        assert 0.05 <= rung[0] - heard < 0.15

    in_loop(work)


def test_what_is_short_after_something_long_is_not_overslept() -> None:
    async def work(loop: CountingLoop) -> None:
        rung = list[float]()
        watch = Watch(lambda: rung.append(loop.time()))
        watch.start(60.0, 60.0)
        watch.end()
        began = loop.time()
        watch.start(0.03, 60.0)
        await asyncio.sleep(0.1)
        assert len(rung) == 1
        assert 0.03 <= rung[0] - began < 0.1

    in_loop(work)


def test_a_watch_that_ended_does_not_ring() -> None:
    async def work(loop: CountingLoop) -> None:
        rung = list[int]()
        ended, closed = Watch(lambda: rung.append(1)), Watch(lambda: rung.append(2))
        for watch in (ended, closed):
            watch.start(0.02, 0.02)
        ended.end()
        ended.heard()
        closed.close()
        await asyncio.sleep(0.08)
        assert not rung

    in_loop(work)


def test_one_timer_serves_exchange_after_exchange() -> None:
    async def work(loop: CountingLoop) -> None:
        watch = Watch(lambda: None)
        before = loop.timers
        for _ in range(50):
            watch.start(300.0, 90.0)
            for _ in range(20):
                watch.heard()
            watch.end()
        assert loop.timers - before == 1
        watch.close()

    in_loop(work)
