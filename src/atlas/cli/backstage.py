"""An open vault on an event loop in a thread of its own, so that the main thread can wait for a person.

The main thread is the one that a terminal's line editing and Ctrl-C belong to; runs are driven here meanwhile.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from atlas.control.host import Host

T = TypeVar("T")


class Backstage:
    """Open inside its block; leaving it parks what is under way."""

    def __init__(self, open_: Callable[[], AbstractAsyncContextManager[Host]]) -> None:
        self._open = open_
        self._thread = threading.Thread(target=self._run, name="atlas", daemon=True)
        self._opened: concurrent.futures.Future[Host] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop
        self._left: asyncio.Event

    def __enter__(self) -> Self:
        self._thread.start()
        self._opened.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._left.set)
        self._thread.join()

    def begin(self, work: Callable[[Host], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Starts `work` over there; the future has what it comes to."""
        return asyncio.run_coroutine_threadsafe(work(self._opened.result()), self._loop)

    def do(self, work: Callable[[Host], Coroutine[Any, Any, T]]) -> T:
        """What `work` comes to."""
        return self.begin(work).result()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)  # the main thread waits for it

    async def _serve(self) -> None:
        self._loop, self._left = asyncio.get_running_loop(), asyncio.Event()
        async with self._open() as host:
            self._opened.set_result(host)
            await self._left.wait()
