"""The process that holds one agent's code: loads it once, then executes one job after the other.

It talks to its driver over a socket only; stdin is empty, stdout and stderr belong to the agent. The driver may
kill it at any instruction, so it holds nothing that matters.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import resource
import signal
import socket
import sys
import threading
import time
from typing import Final, TextIO, assert_never

from atlas.engine.agent import AgentBase
from atlas.engine.conversation import Conversation
from atlas.engine.execution import call_hook, cancelled, create, execute
from atlas.engine.load import load_class
from atlas.engine.tool_wire import OPENING_BYTES, begins_with_tools
from atlas.engine.wire import (
    OUT_OF_MEMORY,
    TO_WORKER,
    Frames,
    FromWorker,
    Leaving,
    Ping,
    Pong,
    Ready,
    Shutdown,
    ToWorker,
    frame,
)
from atlas.kernel.code import Answer, Cancel, Finished, FromCode, Job, Perform, Probe
from atlas.kernel.errors import RunFailed
from atlas.kernel.principal import INSIDE

_READ: Final = 64 * 1024
_SWEEP_S: Final = 1.0
_THREADS_S: Final = 0.1


def serve(fd: int) -> None:
    """Serves jobs from the socket until told to stop; returns when the process should exit.

    What the process is for, an agent's code or tools, its first message says.
    """
    # A handler that does nothing, not SIG_IGN: programs that the agent starts must not inherit deafness to Ctrl-C.
    signal.signal(signal.SIGINT, lambda *_: None)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    with socket.socket(fileno=fd) as sock:
        if begins_with_tools(sock.recv(OPENING_BYTES, socket.MSG_PEEK | socket.MSG_WAITALL)):
            from atlas.engine.tool_server import ToolServer

            asyncio.run(ToolServer(sock, limit_memory).serve())
        else:
            asyncio.run(Worker(sock).serve())


class Worker:
    """One process's work. Writing blocks (the driver always reads); reading never does."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = Frames()
        self._orders: asyncio.Queue[Job | Shutdown] = asyncio.Queue()
        self._writing = threading.Lock()
        self._conversation: Conversation | None = None
        self._agent: AgentBase | None = None
        self._kept: set[asyncio.Task[object]] = set()
        self._kept_threads: set[threading.Thread] = set()
        self._has_left_threads = False
        self._shutdown_hook = ""
        self._folder = ""

    async def serve(self) -> None:
        """Executes jobs until a shutdown, or until this process is not fit for another job."""
        asyncio.get_running_loop().add_reader(self._sock, self.poll)
        while isinstance(order := await self._orders.get(), Job):
            if not await self._job(order):
                break
        if self._agent is not None:
            try:
                await call_hook(self._agent, self._shutdown_hook, self._folder)
            except RunFailed as error:
                sys.stderr.write(f"{error.message}\n{error.detail}\n")
        if self._has_left_threads:
            # An ordinary exit would wait for them, and they would go on meanwhile.
            _flush(sys.stdout)
            _flush(sys.stderr)
            os._exit(0)

    # The channel

    def send(self, message: FromCode) -> None:
        """Writes one frame; from any thread."""
        self._write(message)

    def poll(self) -> None:
        """Reads what has arrived and gives it to whom it is for."""
        try:
            self._read()
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # a lost message would leave the agent's code waiting for ever

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
                self._take(TO_WORKER.decode(body))
            if len(data) < _READ:
                return

    def _take(self, message: ToWorker) -> None:
        match message:
            case Perform() | Probe() | Answer() | Cancel():
                if self._conversation is not None:
                    self._conversation.deliver(message)
            case Ping():
                self._write(Pong())
            case Job():
                # From here on a Cancel is meant for this job, even while the agent is still loading.
                self._conversation = Conversation(self)
                self._orders.put_nowait(message)
            case Shutdown():
                self._orders.put_nowait(message)
            case _:
                assert_never(message)

    def _write(self, message: FromWorker | FromCode) -> None:
        data = frame(message)
        with self._writing:
            self._sock.sendall(data)

    # One job

    async def _job(self, job: Job) -> bool:
        """Executes the job; whether another one may follow in this process."""
        assert self._conversation is not None
        conversation = self._conversation
        limit_memory(job.memory_mb)
        os.environ[INSIDE] = job.run_id  # what this job starts acts in its run's name
        try:
            _enter(job.folder)
            agent = await self._ready(job)
        except RunFailed as error:
            return self._finish(conversation, Finished(error=error.record()), is_fit=False)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(execute(agent, job, conversation))
            conversation.on_cancel = task.cancel
            if conversation.cancelled is not None:
                task.cancel()
        is_clean = await self._sweep()
        finished = task.result() if not task.cancelled() else cancelled(conversation)
        is_fit = is_clean and (finished.error is None or finished.error.code != "memory_limit")
        return self._finish(conversation, finished, is_fit)

    async def _ready(self, job: Job) -> AgentBase:
        if self._agent is None:
            agent = create(load_class(job.folder), job.folder)
            await call_hook(agent, job.startup, job.folder)
            self._agent, self._shutdown_hook, self._folder = agent, job.shutdown, job.folder
            self._kept = asyncio.all_tasks()
            self._kept_threads = set(threading.enumerate())
            self._write(Ready())
        return self._agent

    async def _sweep(self) -> bool:
        """Ends what the run left running on the loop; False when something of it goes on all the same."""
        left = asyncio.all_tasks() - self._kept
        for task in left:
            task.cancel()
        pending: set[asyncio.Task[object]] = set()
        if left:
            done, pending = await asyncio.wait(left, timeout=_SWEEP_S)
            for task in done:
                if not task.cancelled():
                    task.exception()  # seen, so that asyncio does not complain about it later
        self._has_left_threads = _is_any_busy(set(threading.enumerate()) - self._kept_threads, _THREADS_S)
        return not pending and not self._has_left_threads

    def _finish(self, conversation: Conversation, finished: Finished, is_fit: bool) -> bool:
        _flush(sys.stdout)
        _flush(sys.stderr)
        conversation.close()
        self._conversation = None
        if not is_fit:
            self._write(Leaving())
        self._write(finished)
        return is_fit


def _is_any_busy(threads: set[threading.Thread], patience_s: float) -> bool:
    """Whether one of `threads` still does something after a moment; nobody can end a thread from outside."""
    until = time.monotonic() + patience_s
    while any(thread.is_alive() and not _is_idle(thread) for thread in threads):
        if time.monotonic() > until:
            return True
        time.sleep(0.001)  # a pool's thread tells nobody that it has put its work down
    return False


def _is_idle(thread: threading.Thread) -> bool:
    """Whether it belongs to a pool and waits for work: such threads serve run after run and do nothing by themselves."""
    from concurrent.futures import thread as pool

    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None or frame.f_code is not pool._worker.__code__:
        return False
    known = frame.f_locals
    # The pool's loop has a work item in hand from taking it until it is done.
    return "work_item" not in known and known["work_queue"].empty()


def limit_memory(megabytes: int) -> None:
    """Allocations beyond the limit raise MemoryError from here on."""
    # RLIMIT_DATA counts writable private memory; RLIMIT_AS would also count what is merely mapped and break GPU code.
    _soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = megabytes * 1024 * 1024
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _enter(folder: str) -> None:
    """Makes the folder the current one: the last run may have gone elsewhere."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise RunFailed(f"the agent's folder cannot be entered: {error}", code="agent_import_failed") from error


def _flush(stream: TextIO | None) -> None:
    # The agent may have closed or replaced it; what cannot be flushed is not there to be lost.
    flush = getattr(stream, "flush", None)
    if flush is not None:
        try:
            flush()
        except (OSError, ValueError):
            return
