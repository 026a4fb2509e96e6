"""The process that holds a folder's tools: imports them once, then performs calls side by side until it is ended.

Coroutines run on its loop, other functions in threads. It is told what to do over a socket only, and whoever told it
may kill it at any instruction.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, assert_never

from atlas.engine.failure import clean
from atlas.engine.tool_call import find_out, is_stoppable, perform, resources_of
from atlas.engine.tool_load import Loaded, load_tools
from atlas.engine.tool_output import Page, page, route_output
from atlas.engine.tool_wire import (
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
        self._limit_memory(order.memory_mb)
        self._folder = order.folder
        self._loaded = load_tools(order.folder)
        route_output()
        self._write(ToolsLoaded(self._loaded.definitions, self._loaded.problems))

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
        tool = self._loaded.tools[order.name]
        redactor = Redactor(order.secrets.items())

        def printed_by(page: Page) -> str:
            # Here, because it was shortened here: half a value in the middle of a text is no longer found.
            return redactor.cut(clean(page.text))

        with page() as printed:
            try:
                outcome = await perform(tool, bytes(order.args), order.effect_key, self._folder, order.secrets)
                ended = CallEnded(order.id, outcome.text, outcome.is_error, outcome.duration_us, printed_by(printed))
            except asyncio.CancelledError:
                ended = CallEnded(order.id, "it was stopped", True, 0, printed_by(printed), is_stopped=True)
        for stream in (sys.stdout, sys.stderr):
            # A tool may have closed or replaced it; what cannot be flushed is not there to be lost.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        self._write(ended)

    def _write(self, message: FromTools) -> None:
        data = tool_frame(message)
        with self._writing:
            self._sock.sendall(data)

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
            if not data:
                # The driver is gone or has given this process up: nothing of it may go on.
                os.killpg(os.getpgrp(), signal.SIGKILL)
            for body in self._frames.feed(data):
                self._orders.put_nowait(TO_TOOLS.decode(body))
