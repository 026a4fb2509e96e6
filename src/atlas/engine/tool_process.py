"""One process that holds tools, as its host sees it: calls under way, each ending exactly once.

A call ends by what the process says of it, or by the process's death. One that is late or that nobody waits for any more
is asked to stop, and the process is killed when it does not. One call at a time may go over the line, where the process
performs it without waking another of its threads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from atlas.engine import death
from atlas.engine.capture import Stream
from atlas.engine.launch import Launched
from atlas.engine.link import Link, Outgoing
from atlas.engine.tool_output import Page
from atlas.engine.tool_wire import (
    FROM_TOOLS,
    CallEnded,
    CallTool,
    LoadTools,
    ProbeEnded,
    Reply,
    ResourcesKnown,
    StopCall,
    ToolsLoaded,
    ToTools,
    tool_frame,
)
from atlas.kernel.errors import ErrorRecord, Fault

_TAIL: Final = 2_000


class Lost(msgspec.Struct, frozen=True):
    """The process ended before the call did; `error` says why."""

    error: ErrorRecord


Ending: TypeAlias = Reply | Lost


class Late(msgspec.Struct, frozen=True):
    """The call took too long and has been stopped; `ending` is how it ended then."""

    ending: Ending


class _Call(msgspec.Struct):
    """A call under way: who is told how it ends, how long it may take, and what was done about it since."""

    ending: asyncio.Future[Ending | Late]
    timeout_s: float
    deadline: float
    is_on_line: bool = False
    is_late: bool = False
    stopping: asyncio.TimerHandle | None = None


class ToolProcess:
    """Holds the tools of one folder. `is_reserved` keeps it for one call that must not share it.

    It is asked nothing for `idle_s`: it ends. A call that must stop has `grace_s` to do so. `line` is the end of a pipe
    whose other end the process has as `order` says.
    """

    def __init__(self, launched: Launched, line: int, order: LoadTools, *, idle_s: float, grace_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._grace_s = grace_s
        self._idle_since = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._oom_kills = death.oom_kills()
        self._stderr_tail = ""
        self._verdict: ErrorRecord | None = None
        self._last_id = 0
        self._calls: dict[int, _Call] = {}
        self._stopping = 0
        self._direct: frozenset[str] = frozenset()
        self._is_line_free = True
        self._stray = Page()
        self.is_reserved = False
        self.is_loaded = False
        self.loaded: asyncio.Future[ToolsLoaded | Lost] = self._loop.create_future()
        self._link = Link(launched, self._heard, self._printed, self._silent, self._exited)
        self.dead = self._link.dead
        os.set_blocking(line, False)
        self._line_file, self._line = line, Outgoing(line)
        self._post(order)

    @property
    def is_fit(self) -> bool:
        """Whether it may get calls: it lives, and none of its calls is about to be its end."""
        return not self.dead.done() and self._verdict is None and not self._stopping

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return not self._calls

    async def ask(self, order: Callable[[int], ToTools], timeout_s: float) -> Ending | Late:
        """How the call that `order` makes ends. Cancelling it stops the call, and returns when it has stopped."""
        if self.dead.done():
            return Lost(ErrorRecord("tool_process_lost", "the tool's process has ended"))
        self._last_id += 1
        number = self._last_id
        call = _Call(self._loop.create_future(), timeout_s, self._loop.time() + timeout_s)
        if not self._calls:
            # What programs of earlier calls printed since is nobody's, and least of all the next call's.
            self._link.collect()
            if not self._stray.is_empty:
                self._stray = Page()
        self._calls[number] = call
        self._wake_at(call.deadline)
        self._send(call, order(number))
        try:
            return await call.ending
        except asyncio.CancelledError:
            if number in self._calls:
                self._stop(number, call, "a call was cancelled and did not stop")
                # Whoever cancels it may rely on nothing of the call running after this; the grace period is the limit.
                call.ending = self._loop.create_future()
                await asyncio.wait({call.ending})
            raise

    def condemn(self, verdict: ErrorRecord) -> None:
        """Kills it for a reason."""
        if self._verdict is None:
            self._verdict = verdict
            self._link.kill()

    async def kill(self) -> None:
        """Ends it and all it started; returns when none of it runs."""
        await self._link.killed()

    def _post(self, message: ToTools) -> None:
        self._link.post(tool_frame(message))

    def _send(self, call: _Call, order: ToTools) -> None:
        if self._is_line_free and isinstance(order, CallTool) and order.name in self._direct:
            self._is_line_free, call.is_on_line = False, True
            self._line.post(tool_frame(order))
        else:
            self._post(order)

    def _stop(self, number: int, call: _Call, reason: str) -> None:
        if call.stopping is None:
            self._post(StopCall(number))
            verdict = ErrorRecord("tool_process_killed", f"the tool's process was killed: {reason}")
            call.stopping = self._loop.call_later(self._grace_s, self.condemn, verdict)
            self._stopping += 1

    def _heard(self, body: bytes) -> None:
        try:
            message = FROM_TOOLS.decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Fault(f"the tool's process sent something unreadable: {error}", code="bad_frame") from error
        match message:
            case CallEnded():
                self._end(message.id, self._with_stray(message))
            case ProbeEnded() | ResourcesKnown():
                self._end(message.id, message)
            case ToolsLoaded():
                self._stray = Page()
                self._direct = message.direct
                if not self.loaded.done():
                    self.is_loaded = not message.problems
                    self.loaded.set_result(message)
                    self._rest()

    def _with_stray(self, ended: CallEnded) -> CallEnded:
        """With what was printed past Python, by programs that the call started, when no other call can have been it."""
        if self._stray.is_empty or len(self._calls) > 1:
            return ended
        return msgspec.structs.replace(ended, printed=ended.printed + self._stray.text)

    def _end(self, number: int, ending: Ending) -> None:
        call = self._calls.pop(number, None)
        if call is None:
            return
        if call.stopping is not None:
            call.stopping.cancel()
            self._stopping -= 1
        if call.is_on_line:
            self._is_line_free = True
        if not call.ending.done():
            call.ending.set_result(Late(ending) if call.is_late else ending)
        if not self._calls:
            if not self._stray.is_empty:
                self._stray = Page()
            self._rest()

    # Time

    def _rest(self) -> None:
        if not self.dead.done():
            self._idle_since = self._loop.time()
            self._wake_at(self._idle_since + self._idle_s)

    def _wake_at(self, when: float) -> None:
        """Looks at the clock no later than `when`. One timer for all, because most calls end long before it is due."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._wake, when)

    def _wake(self, now: float) -> None:
        """Stops what is late, ends what has nothing to do; `now` is the time that it was to wake at."""
        self._timer = None
        if not self._calls:
            if self._idle_since + self._idle_s <= now:
                idle = ErrorRecord("tool_process_ended", "the tool's process had nothing to do and was ended")
                self.condemn(idle)
            else:
                self._wake_at(self._idle_since + self._idle_s)
            return
        for number, call in self._calls.items():
            if call.is_late:
                continue
            if call.deadline <= now:
                call.is_late = True
                self._stop(number, call, f"a call took longer than its {call.timeout_s:g} s and did not stop")
            else:
                self._wake_at(call.deadline)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _printed(self, stream: Stream, text: str, size: int) -> None:
        self._stray.add(text)
        if stream == "stderr":
            self._stderr_tail = (self._stderr_tail + text)[-_TAIL:]

    def _silent(self) -> None:
        self._link.kill()

    def _exited(self, status: int) -> None:
        self._cancel_timer()
        self._line.stop()
        os.close(self._line_file)
        fault = self._link.fault
        error = self._verdict or (fault.record() if fault is not None else None)
        lost = Lost(error or _reworded(death.cause(status, self._oom_kills, self._stderr_tail)))
        if not self.loaded.done():
            self.loaded.set_result(lost)
        for number in list(self._calls):
            self._end(number, lost)


def _reworded(cause: ErrorRecord) -> ErrorRecord:
    """The cause of death, said of a tool and not of an agent's run."""
    message = cause.message.replace("the agent's process", "the tool's process").replace(" in the middle of a run", "")
    hint = cause.hint.replace("from execute()", "from the tool")
    return msgspec.structs.replace(cause, message=message, hint=hint)
