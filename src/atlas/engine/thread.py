"""Threads for functions of this process that may never return.

They are daemons, and their number is not limited: what hangs in one holds up no other call, no closing and no exit.
Those that are free are kept for the next call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")
_Inbox: TypeAlias = "SimpleQueue[Callable[[], None] | None]"

MOST_IDLE: Final = 32


class Threads:
    """Runs functions that raise nothing, each in a thread to itself and in a copy of its caller's context."""

    def __init__(self) -> None:
        self._idle: list[_Inbox] = []
        self._is_closed = False

    async def run(self, function: Callable[[], T]) -> T:
        """What the function returns; when this is cancelled, it goes on and nobody hears of it."""
        loop, context = asyncio.get_running_loop(), copy_context()
        done: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            result = context.run(function)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_settle, done, result)

        self._inbox().put(work)
        return await done

    def close(self) -> None:
        """Lets every thread end, those at work when they are done."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _inbox(self) -> _Inbox:
        # Threads only ever add here, and one thread, the loop's, takes: what is seen to be there can be taken.
        if self._idle:
            return self._idle.pop()
        inbox: _Inbox = SimpleQueue()
        threading.Thread(target=self._serve, args=(inbox,), name="tool", daemon=True).start()
        return inbox

    def _serve(self, inbox: _Inbox) -> None:
        while (work := inbox.get()) is not None:
            work()
            del work  # what it holds is the call's, and an idle thread may live for long
            if self._is_closed or len(self._idle) >= MOST_IDLE:
                return
            self._idle.append(inbox)


def _settle(done: asyncio.Future[Any], result: Any) -> None:
    if not done.done():
        done.set_result(result)
