"""One worker process as its driver sees it: what it says, what it prints, and what became of it.

Everything happens in callbacks of the driver's loop, so there is no task to leak: a message arrives, a pipe has
text, the process has exited. A run ends exactly once: by the worker's `Finished`, or by the worker's death.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

import msgspec

from atlas.engine import death, process
from atlas.engine.capture import Capture, Stream
from atlas.engine.launch import Launched, on_exit
from atlas.engine.wire import (
    FRAME_LIMIT,
    FROM_WORKER,
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
from atlas.kernel.code import CallMade, Finished, FromCode, Job, Noted, Printed, ToCode, ValueTaken
from atlas.kernel.errors import ErrorRecord, Fault
from atlas.kernel.event import Process

_READ: Final = 64 * 1024
_TAIL: Final = 2_000


class Execution:
    """One job in a worker process: the `Code` its driver holds."""

    def __init__(self, child: Child, job: Job, receive: Callable[[FromCode], None]) -> None:
        self.job = job
        self.receive = receive
        self.is_stopped = False
        self.said_bytes = 0
        self.stderr_tail = ""
        self._child = child

    @property
    def process(self) -> Process | None:
        """The worker."""
        return self._child.process

    def send(self, message: ToCode) -> None:
        """Delivers in order; nothing once the job has ended."""
        if self._child.execution is self:
            self._child.post(message)

    async def stop(self) -> None:
        """Kills the worker and all it started; returns when none of it runs.

        Until then `receive` may still get what the code had reported before: a step that was performed stays
        performed. It gets no new call and no `Finished`.
        """
        if self._child.execution is self:
            self.is_stopped = True
            await self._child.kill()


class Child:
    """A worker process: starting, busy with one execution, or idle. `dead` is done once it is reaped."""

    def __init__(self, launched: Launched, grace_s: float, on_idle: Callable[[Child], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._popen, self._sock, self._life, stdout, stderr = launched
        self._grace_s = grace_s
        self._on_idle = on_idle
        self._frames = Frames(FRAME_LIMIT)
        self._unsent = b""
        self._is_ready = False
        self._is_deaf = False
        self._verdict: ErrorRecord | None = None
        self._pong: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._oom_kills = death.oom_kills()
        self.execution: Execution | None = None
        self.is_dismissed = False
        self.dead: asyncio.Future[None] = self._loop.create_future()
        # These two open files and may fail, so they come before anything listens.
        self.process = process.process_of(self._popen.pid)
        on_exit(self._popen, self._exited)
        self._capture = Capture(stdout, stderr, self._printed)
        self._loop.add_reader(self._sock, self._readable)

    # What the pool and an execution ask of it

    def begin(self, job: Job, receive: Callable[[FromCode], None]) -> Execution:
        """Gives it the job. `receive` is not called before the caller next lets the loop turn."""
        self._capture.collect()  # what was printed while nobody ran belongs to nobody
        self._capture.reset()
        self.execution = Execution(self, job, receive)
        self.post(job)
        if not self._is_ready:
            late = ErrorRecord("startup_failed", f"the agent did not start within {job.startup_timeout_s:g} s")
            self._after(job.startup_timeout_s, lambda: self._condemn(late))
        return self.execution

    def post(self, message: ToWorker) -> None:
        """Sends, now or as soon as the socket takes it."""
        data = frame(message)
        if not self._unsent:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # it is dying; its exit is noticed on its own
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._sock, self._writable)
        self._unsent += data

    async def is_well(self, patience_s: float) -> bool:
        """Whether its loop answers."""
        if self._is_deaf or self.dead.done():
            return False
        self._pong = self._loop.create_future()
        self.post(Ping())
        try:
            async with asyncio.timeout(patience_s):
                return await self._pong
        except TimeoutError:
            return False
        finally:
            self._pong = None

    def dismiss(self) -> None:
        """Asks it to call its shutdown hook and exit, and kills it when it has not after the grace period."""
        self.is_dismissed = True
        self.post(Shutdown())
        self._after(self._grace_s, self._kill_group)

    async def kill(self) -> None:
        """Ends it and all it started; returns when none of them runs."""
        if not self.dead.done():
            await process.kill(self.process)
        await asyncio.shield(self.dead)

    # What it says

    def _readable(self) -> None:
        # Text in the pipes is older than the message that woke us, so it goes first.
        self._capture.collect()
        try:
            data = self._sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._heard(data)
        else:
            self._go_deaf()
            self._after(self._grace_s, lambda: self._condemn(death.CUT_OFF))  # unless it is on its way out

    def _heard(self, data: bytes) -> None:
        try:
            bodies = self._frames.feed(data)
        except Fault as error:
            self._go_deaf()
            self._condemn(death.bad_frame(error))
            return
        for body in bodies:
            try:
                message = FROM_WORKER.decode(body)
            except (msgspec.MsgspecError, RecursionError) as error:
                self._go_deaf()
                self._condemn(death.bad_frame(error))
                return
            self._take(message, len(body))

    def _take(self, message: FromWorker, size: int) -> None:
        match message:
            case Ready():
                self._is_ready = True
                self._cancel_timer()
            case Leaving():
                self._is_ready = False
            case Pong():
                self._answer_ping(True)
            case Finished():
                self._finished(message)
            case Noted() | ValueTaken():
                self._say(message, size)
            case _:
                self._say(message)

    def _say(self, message: FromCode, size: int = 0) -> None:
        """Passes it on. Only what nobody waits for has a size, because only that can come without end."""
        execution = self.execution
        if execution is None or self._verdict is not None or (execution.is_stopped and isinstance(message, CallMade)):
            return
        execution.said_bytes += size
        if execution.said_bytes > execution.job.output_limit_bytes:
            self._condemn(death.flood(execution.job.output_limit_bytes))
        else:
            execution.receive(message)

    def _printed(self, stream: Stream, text: str, size: int) -> None:
        if self.execution is not None:
            if stream == "stderr":
                self.execution.stderr_tail = (self.execution.stderr_tail + text)[-_TAIL:]
            if text:
                self._say(Printed(stream, text), size)

    def _finished(self, message: Finished) -> None:
        self._capture.collect()
        execution = self.execution
        if execution is None or execution.is_stopped or self._verdict is not None:
            return  # it is being killed, and its death is the end
        self._cancel_timer()
        self.execution = None
        if self._is_ready:
            self._on_idle(self)
        else:
            self._after(self._grace_s, self._kill_group)  # it is on its way out
        execution.receive(message)

    # Its end

    def _condemn(self, verdict: ErrorRecord) -> None:
        """Kills it for a reason; the run ends with that reason once it is dead."""
        if self._verdict is None:
            self._verdict = verdict
            self._kill_group()

    def _kill_group(self) -> None:
        # Not reaped before `_exited`, so the pid is its own until then.
        if not self.dead.done():
            process.kill_group(self.process.pid)

    def _exited(self) -> None:
        self._kill_group()  # what it left running dies with it
        status = self._popen.wait()
        self._hear_last_words()
        execution, self.execution = self.execution, None
        self._go_deaf()
        self._cancel_timer()
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._capture.close()
        os.close(self._life)
        self.dead.set_result(None)
        if execution is not None and not execution.is_stopped:
            verdict = self._verdict or death.cause(status, self._oom_kills, execution.stderr_tail)
            execution.receive(Finished(error=verdict))

    def _hear_last_words(self) -> None:
        """Takes in what it had said and printed before it died."""
        self._capture.collect()
        while not self._is_deaf:
            try:
                data = self._sock.recv(_READ)
            except OSError:
                return
            if not data:
                return
            self._heard(data)

    def _go_deaf(self) -> None:
        self._is_deaf = True
        self._loop.remove_reader(self._sock)
        self._answer_ping(False)

    # Small parts

    def _answer_ping(self, is_well: bool) -> None:
        if self._pong is not None and not self._pong.done():
            self._pong.set_result(is_well)

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_later(delay_s, then)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._loop.remove_writer(self._sock)
