"""An attempt's inbox: what is dealt with at once, and what is left to the attempt's own task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from atlas.control.mail import ROUND, Begun, Mail, Work
from atlas.control.world import Message, Stop, Tick
from atlas.kernel.code import Noted
from atlas.kernel.errors import Fault

AT_ONCE = (Noted,)


class Desk:
    """Deals with messages, and writes down in which task it did."""

    def __init__(self, gate: Awaitable[object] | None = None) -> None:
        self.mail = Mail(self.work, AT_ONCE)
        self.done: list[tuple[Message, bool]] = []
        self._gate = gate
        self.task: asyncio.Task[None] | None = None

    async def work(self, kinds: tuple[type, ...] | None = AT_ONCE) -> bool:
        while (message := self.mail.next(kinds)) is not None:
            if self._gate is not None:
                await self._gate
            if isinstance(message, Noted) and message.level == "bad":
                raise ValueError(message.message)
            self.done.append((message, asyncio.current_task() is self.task))
        return not self.mail

    async def run(self) -> None:
        self.task = asyncio.current_task()
        while True:
            await self.work(None)
            await self.mail.arrived()


def at_desk(play: Callable[[Desk], Awaitable[None]], gate: Callable[[], Awaitable[object]] | None = None) -> None:
    async def main() -> None:
        desk = Desk(None if gate is None else gate())
        task = asyncio.ensure_future(desk.run())
        await asyncio.sleep(0)
        try:
            await play(desk)
        finally:
            task.cancel()
            await asyncio.wait({task})

    asyncio.run(main())


def test_what_needs_no_waiting_is_done_when_post_returns() -> None:
    async def play(desk: Desk) -> None:
        desk.mail.post(Noted("a"))
        assert desk.done == [(Noted("a"), False)]
        desk.mail.post(Noted("b"))
        assert [message for message, _ in desk.done] == [Noted("a"), Noted("b")]

    at_desk(play)


def test_what_is_the_tasks_own_affair_waits_for_the_task_and_keeps_its_place() -> None:
    async def play(desk: Desk) -> None:
        desk.mail.post(Tick())
        desk.mail.post(Noted("behind it"))
        assert desk.done == []
        await asyncio.sleep(0)
        assert desk.done == [(Tick(), True), (Noted("behind it"), True)]

    at_desk(play)


def test_work_that_has_to_wait_is_finished_by_the_task_and_in_order() -> None:
    opened: list[asyncio.Future[None]] = []

    def gate() -> Awaitable[None]:
        opened.append(asyncio.get_running_loop().create_future())
        return opened[0]

    async def play(desk: Desk) -> None:
        desk.mail.post(Noted("waits"))
        desk.mail.post(Noted("next"))
        await asyncio.sleep(0)
        assert desk.done == []
        opened[0].set_result(None)
        await asyncio.sleep(0.01)
        assert desk.done == [(Noted("waits"), True), (Noted("next"), True)]

    at_desk(play, gate)


def test_the_loop_has_a_round_now_and_then() -> None:
    async def play(desk: Desk) -> None:
        for number in range(ROUND + 2):
            desk.mail.post(Noted(str(number)))
        assert len(desk.done) == ROUND - 1
        await asyncio.sleep(0)
        assert [message for message, _ in desk.done] == [Noted(str(number)) for number in range(ROUND + 2)]

    at_desk(play)


def test_an_error_is_the_tasks_and_not_that_of_whoever_brought_the_news() -> None:
    async def main() -> None:
        desk = Desk()
        task = asyncio.ensure_future(desk.run())
        await asyncio.sleep(0)
        desk.mail.post(Noted("broken", "bad"))
        with pytest.raises(ValueError, match="broken"):
            await task

    asyncio.run(main())


def test_work_that_awaits_what_was_cancelled_does_not_leave_the_task_waiting() -> None:
    async def main() -> None:
        cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        desk = Desk(cancelled)
        task = asyncio.ensure_future(desk.run())
        await asyncio.sleep(0)
        desk.mail.post(Noted("news"))
        with pytest.raises(Fault, match="cancelled"):
            await task

    asyncio.run(main())


def test_nothing_is_done_for_a_task_that_is_gone() -> None:
    async def main() -> None:
        desk = Desk()
        task = asyncio.ensure_future(desk.run())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        desk.mail.post(Noted("late"))
        assert desk.done == []

    asyncio.run(main())


def test_messages_are_kept_and_taken_by_kind() -> None:
    desk = Desk()
    for message in (Tick(), Noted("a"), Stop(), Noted("b")):
        desk.mail.post(message)
    assert desk.mail.take((Noted,)) == [Noted("a"), Noted("b")]
    desk.mail.keep((Stop,))
    assert [desk.mail.next(), desk.mail.next()] == [Stop(), None]


def test_what_is_thrown_at_begun_work_reaches_it() -> None:
    seen: list[str] = []

    async def work() -> bool:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return True

    async def main() -> None:
        async def rest(begun: Begun) -> None:
            await begun

        coroutine: Work = work()
        task = asyncio.ensure_future(rest(Begun(coroutine)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]
