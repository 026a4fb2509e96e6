"""The process that holds a folder's tools: imports them once, then performs calls side by side until it is ended.

Coroutines run on its loop, other functions in threads: one of them reads the line and performs what comes there itself,
so that a short call wakes nobody else; what comes over the socket meanwhile runs beside it. Whoever tells it what to do
may kill it at any instruction.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn, TextIO, assert_never

from atlas.engine.failure import clean
from atlas.engine.tool_call import find_out, is_stoppable, perform, perform_here, resources_of
from atlas.engine.tool_load import Loaded, load_tools
from atlas.engine.tool_output import Page, open_page, route_output
from atlas.engine.tool_wire import (
    ON_LINE,
    TO_TOOLS,
    AskResources,
    CallEnded,
    CallTool,
    FromTools,
    LoadTools,
    ProbeEnded,
    ProbeTool,
    ResourcesKnown,
    StopCall,
    ToolsLoaded,
    ToTools,
    tool_frame,
)
from atlas.engine.wire import OUT_OF_MEMORY, Frames
from atlas.kernel.redact import Redactor
from atlas.kernel.tool import ToolOutcome

_READ: Final = 64 * 1024
THREADS: Final = 64


class ToolServer:
    """One process's work. Writing blocks (the driver always reads); reading never does."""

    def __init__(self, sock: socket.socket, limit_memory: Callable[[int], None]) -> None:
        self._sock = sock
        self._limit_memory = limit_memory
        self._frames = Frames()
        self._orders: asyncio.Queue[ToTools] = asyncio.Queue()
        self._writing = threading.Lock()
        self._running: dict[int, tuple[str, asyncio.Task[None]]] = {}
        self._loaded = Loaded({}, (), ())
        self._folder = ""
        self._is_copy = False

    async def serve(self) -> None:
        """Does what it is told; never returns, the driver ends it."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="tool"))
        loop.add_reader(self._sock, self._readable)
        async with asyncio.TaskGroup() as group:
            while True:
                self._obey(await self._orders.get(), group)

    def _obey(self, order: ToTools, group: asyncio.TaskGroup) -> None:
        match order:
            case LoadTools():
                self._load(order)
            case CallTool() | ProbeTool() | AskResources():
                task = group.create_task(self._answer(order))
                self._running[order.id] = (order.name, task)
                task.add_done_callback(lambda _: self._running.pop(order.id, None))
            case StopCall(id=number):
                name, running = self._running.get(number, ("", None))
                # What runs in a thread cannot be told to stop, and saying that it has would be a lie.
                if running is not None and is_stoppable(self._loaded.tools[name]):
                    running.cancel()
            case _:
                assert_never(order)

    def _load(self, order: LoadTools) -> None:
        os.set_inheritable(order.line, False)
        self._limit_memory(order.memory_mb)
        self._folder = order.folder
        self._loaded = load_tools(order.folder)
        route_output()
        # The thread that forks lives on in the child, and that is the one which serves the line.
        os.register_at_fork(after_in_child=lambda: self._leave(order.line))
        serving = (order.line, asyncio.get_running_loop())
        threading.Thread(target=self._serve_line, args=serving, name="tool-line", daemon=True).start()
        direct = frozenset(name for name, tool in self._loaded.tools.items() if not is_stoppable(tool))
        self._write(ToolsLoaded(self._loaded.definitions, self._loaded.problems, direct))

    async def _answer(self, order: CallTool | ProbeTool | AskResources) -> None:
        tool = self._loaded.tools[order.name]
        match order:
            case CallTool():
                await self._call(order)
            case ProbeTool():
                found = await find_out(tool, bytes(order.args), order.effect_key, order.secrets)
                self._write(ProbeEnded(order.id, found.found, found.text, found.message))
            case AskResources():
                self._write(ResourcesKnown(order.id, await resources_of(tool, bytes(order.args))))
            case _:
                assert_never(order)

    async def _call(self, order: CallTool) -> None:
        tool, printed = self._loaded.tools[order.name], open_page()
        try:
            outcome = await perform(tool, bytes(order.args), order.effect_key, self._folder, order.secrets)
        except asyncio.CancelledError:
            outcome = None
        self._tell(order, outcome, printed)

    def _leave(self, line: int) -> None:
        """In a process that a tool has forked off: it is no server, so it neither hears nor says anything more."""
        os.close(line)
        os.close(self._sock.detach())
        self._is_copy = True

    def _tell(self, order: CallTool, outcome: ToolOutcome | None, page: Page) -> None:
        """Says what a call came to and what it printed; no outcome: it was stopped."""
        if self._is_copy:
            os._exit(0)
        printed = page.text
        if printed:
            # Here, because it was shortened here: half a value in the middle of a text is no longer found.
            printed = Redactor(order.secrets.items()).cut(clean(printed))
        _flush(sys.stdout)
        _flush(sys.stderr)
        if outcome is None:
            self._write(CallEnded(order.id, "it was stopped", True, 0, printed, is_stopped=True))
        else:
            self._write(CallEnded(order.id, outcome.text, outcome.is_error, outcome.duration_us, printed))

    def _write(self, message: FromTools) -> None:
        data = tool_frame(message)
        with self._writing:
            self._sock.sendall(data)

    # The line

    def _serve_line(self, line: int, loop: asyncio.AbstractEventLoop) -> None:
        """Performs the calls that come on the line, one after the other; never returns."""
        frames = Frames()

        def await_there(work: Coroutine[Any, Any, ToolOutcome]) -> ToolOutcome:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        def call(order: CallTool) -> None:
            tool, printed = self._loaded.tools[order.name], open_page()
            args, secrets = bytes(order.args), order.secrets
            try:
                outcome = perform_here(tool, args, order.effect_key, self._folder, secrets, await_there)
            except asyncio.CancelledError:
                outcome = None
            self._tell(order, outcome, printed)

        try:
            while True:
                data = os.read(line, _READ) or _end()
                for body in frames.feed(data):
                    # In a context of its own, so that what one call sets there is not seen by the next.
                    contextvars.copy_context().run(call, ON_LINE.decode(body))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # a lost message would leave somebody waiting for ever
        except BaseException:  # noqa: BLE001 - nothing is left that could perform the next call
            try:
                traceback.print_exc()
            finally:
                os._exit(1)

    # The socket

    def _readable(self) -> None:
        try:
            self._read()
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # a lost message would leave somebody waiting for ever

    def _read(self) -> None:
        while True:
            try:
                data = self._sock.recv(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            for body in self._frames.feed(data or _end()):
                self._orders.put_nowait(TO_TOOLS.decode(body))
            if len(data) < _READ:
                return


def _end() -> NoReturn:
    """Ends everything here: the driver is gone or has given this process up, and nothing of it may go on."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
    raise SystemExit


def _flush(stream: TextIO | None) -> None:
    # A tool may have closed or replaced it; what cannot be flushed is not there to be lost.
    try:
        stream.flush()  # type: ignore[union-attr]
    except Exception:  # noqa: BLE001 - whatever a tool put there, the call has happened and its outcome is to be told
        return
