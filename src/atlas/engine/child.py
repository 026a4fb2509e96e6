"""One worker process as its driver sees it: what it says, what it prints, and what became of it.

Everything happens in callbacks of the driver's loop, so there is no task to leak: a message arrives, a pipe has
text, the process has exited. A run ends exactly once: by the worker's `Finished`, or by the worker's death.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from atlas.engine import death
from atlas.engine.capture import Stream
from atlas.engine.launch import Launched
from atlas.engine.link import Link
from atlas.engine.wire import (
    FROM_WORKER,
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
        self._grace_s = grace_s
        self._on_idle = on_idle
        self._is_ready = False
        self._verdict: ErrorRecord | None = None
        self._pong: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._oom_kills = death.oom_kills()
        self.execution: Execution | None = None
        self.is_dismissed = False
        self._link = Link(launched, self._heard, self._printed, self._silent, self._exited)
        self.process, self.dead = self._link.process, self._link.dead

    # What the pool and an execution ask of it

    def begin(self, job: Job, receive: Callable[[FromCode], None]) -> Execution:
        """Gives it the job. `receive` is not called before the caller next lets the loop turn."""
        self._link.start_anew()  # what was printed while nobody ran belongs to nobody
        self.execution = Execution(self, job, receive)
        self.post(job)
        if not self._is_ready:
            late = ErrorRecord("startup_failed", f"the agent did not start within {job.startup_timeout_s:g} s")
            self._after(job.startup_timeout_s, lambda: self._condemn(late))
        return self.execution

    def post(self, message: ToWorker) -> None:
        """Sends, now or as soon as the socket takes it."""
        self._link.post(frame(message))

    async def is_well(self, patience_s: float) -> bool:
        """Whether its loop answers."""
        if self._link.is_silent:
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
        self._after(self._grace_s, self._link.kill)

    async def kill(self) -> None:
        """Ends it and all it started; returns when none of them runs."""
        await self._link.killed()

    # What it says

    def _heard(self, body: bytes) -> None:
        try:
            message = FROM_WORKER.decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Fault(str(error), code="bad_frame") from error
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
        self._link.collect()
        execution = self.execution
        if execution is None or execution.is_stopped or self._verdict is not None:
            return  # it is being killed, and its death is the end
        self._cancel_timer()
        self.execution = None
        if self._is_ready:
            self._on_idle(self)
        else:
            self._after(self._grace_s, self._link.kill)  # it is on its way out
        execution.receive(message)

    # Its end

    def _condemn(self, verdict: ErrorRecord) -> None:
        """Kills it for a reason; the run ends with that reason once it is dead."""
        if self._verdict is None:
            self._verdict = verdict
            self._link.kill()

    def _silent(self) -> None:
        self._answer_ping(False)
        self._after(self._grace_s, lambda: self._condemn(death.CUT_OFF))  # unless it is on its way out

    def _exited(self, status: int) -> None:
        self._cancel_timer()
        execution, self.execution = self.execution, None
        if execution is not None and not execution.is_stopped:
            fault = self._link.fault
            verdict = self._verdict or (death.bad_frame(fault) if fault is not None else None)
            verdict = verdict or death.cause(status, self._oom_kills, execution.stderr_tail)
            execution.receive(Finished(error=verdict))

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
