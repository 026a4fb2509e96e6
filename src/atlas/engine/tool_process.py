"""One process that holds tools, as its host sees it: calls under way, each ending exactly once.

A call ends by what the process says of it, or by the process's death. Whoever stops waiting for one, for being late or
for being cancelled, has it stopped: it is asked to stop, and the process is killed when it does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from atlas.engine import death
from atlas.engine.capture import Stream
from atlas.engine.launch import Launched
from atlas.engine.link import Link
from atlas.engine.tool_output import Page
from atlas.engine.tool_wire import (
    FROM_TOOLS,
    CallEnded,
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


class ToolProcess:
    """Holds the tools of one folder. `is_reserved` keeps it for one call that must not share it.

    It is asked nothing for `idle_s`: it ends. A call that must stop has `grace_s` to do so.
    """

    def __init__(self, launched: Launched, order: LoadTools, *, idle_s: float, grace_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._grace_s = grace_s
        self._idle: asyncio.TimerHandle | None = None
        self._oom_kills = death.oom_kills()
        self._stderr_tail = ""
        self._verdict: ErrorRecord | None = None
        self._last_id = 0
        self._calls: dict[int, asyncio.Future[Ending]] = {}
        self._stopping: dict[int, asyncio.TimerHandle] = {}
        self._stray = Page()
        self.is_reserved = False
        self.loaded: asyncio.Future[ToolsLoaded | Lost] = self._loop.create_future()
        self._link = Link(launched, self._heard, self._printed, self._exited)
        self.dead = self._link.dead
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
        self._last_id += 1
        number = self._last_id
        ending: asyncio.Future[Ending] = self._loop.create_future()
        if self.dead.done():
            return Lost(ErrorRecord("tool_process_lost", "the tool's process has ended"))
        self._calls[number] = ending
        self._cancel_idle()
        self._post(order(number))
        try:
            await asyncio.wait({ending}, timeout=timeout_s)
            if ending.done():
                return ending.result()
            self._stop(number, f"a call took longer than its {timeout_s:g} s and did not stop")
            await asyncio.wait({ending})
            return Late(ending.result())
        except asyncio.CancelledError:
            self._stop(number, "a call was cancelled and did not stop")
            # Whoever cancels it may rely on nothing of the call running after this; the grace period is the limit.
            await asyncio.wait({ending})
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

    def _stop(self, number: int, reason: str) -> None:
        if number in self._calls and number not in self._stopping:
            self._post(StopCall(number))
            verdict = ErrorRecord("tool_process_killed", f"the tool's process was killed: {reason}")
            self._stopping[number] = self._loop.call_later(self._grace_s, self.condemn, verdict)

    def _heard(self, body: bytes) -> None:
        try:
            message = FROM_TOOLS.decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Fault(f"the tool's process sent something unreadable: {error}", code="bad_frame") from error
        match message:
            case ToolsLoaded():
                self._stray = Page()
                if not self.loaded.done():
                    self.loaded.set_result(message)
                    self._rest()
            case CallEnded():
                self._end(message.id, self._with_stray(message))
            case ProbeEnded() | ResourcesKnown():
                self._end(message.id, message)

    def _with_stray(self, ended: CallEnded) -> CallEnded:
        """With what was printed past Python, by programs that the call started, when no other call can have been it."""
        stray = self._stray.text
        if len(self._calls) > 1 or not stray:
            return ended
        return msgspec.structs.replace(ended, printed=ended.printed + stray)

    def _end(self, number: int, ending: Ending) -> None:
        timer = self._stopping.pop(number, None)
        if timer is not None:
            timer.cancel()
        waiting = self._calls.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(ending)
        if not self._calls:
            self._stray = Page()
            self._rest()

    def _rest(self) -> None:
        self._cancel_idle()
        if not self.dead.done():
            idle = ErrorRecord("tool_process_ended", "the tool's process had nothing to do and was ended")
            self._idle = self._loop.call_later(self._idle_s, self.condemn, idle)

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _printed(self, stream: Stream, text: str, size: int) -> None:
        self._stray.add(text)
        if stream == "stderr":
            self._stderr_tail = (self._stderr_tail + text)[-_TAIL:]

    def _exited(self, status: int) -> None:
        self._cancel_idle()
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
