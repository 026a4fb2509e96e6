"""The code's side of the conversation with its driver: numbers calls and hands each answer to the call that waits.

One conversation per job. Whatever carries the messages is a `Channel`: a socket in a worker process, plain calls
inside the driver's own process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from atlas.kernel.code import Answer, CallMade, Cancel, FromCode, Perform, Performed, Probe, Probed, ToCode
from atlas.kernel.errors import ErrorRecord
from atlas.kernel.redact import Redactor

Reply: TypeAlias = Perform | Probe | Answer

NOT_PERFORMED: Final = ErrorRecord(
    "step_not_performed",
    "the code stopped waiting before this step began; it did not happen",
    hint="A timeout around context.step, or a task that was cancelled, ends the wait.",
)


class Channel(Protocol):
    """Carries messages from the code to its driver, in order."""

    def send(self, message: FromCode) -> None:
        """Hands the message over; from any thread."""
        ...

    def poll(self) -> None:
        """Takes in what has arrived already, for code that never awaits."""
        ...


class Conversation:
    """Gives every reply to the call that asked for it, and accounts for replies that nobody waits for any more.

    `redactor` knows the secrets that the code was given: what it says of a step is what it goes on with, so that both
    are the same as when it runs again.
    """

    __slots__ = ("_channel", "_closed", "_last_id", "_loop", "_waiting", "cancelled", "on_cancel", "redactor")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._closed = False
        self.cancelled: Cancel | None = None
        self.on_cancel: Callable[[], object] | None = None
        self.redactor = Redactor()

    def say(self, message: FromCode) -> None:
        """Sends; nothing once the conversation is closed."""
        if not self._closed:
            self._channel.send(message)

    def next_id(self) -> int:
        """A number no other call of this job has."""
        self._last_id += 1
        return self._last_id

    def ask(self, call: CallMade) -> asyncio.Future[Reply]:
        """Sends the call; the future brings the first reply. The wait is registered first: a reply may come at once."""
        waiting = self.expect(call.id)
        self.say(call)
        return waiting

    def expect(self, call_id: int) -> asyncio.Future[Reply]:
        """The next reply to a call that was asked before."""
        waiting: asyncio.Future[Reply] = self._loop.create_future()
        if self._closed:
            waiting.cancel()
        else:
            self._waiting[call_id] = waiting
        return waiting

    def forget(self, call_id: int, waiting: asyncio.Future[Reply]) -> None:
        """Nobody waits for this call any more; a reply that came in the meantime is accounted for."""
        self._waiting.pop(call_id, None)
        if waiting.done() and not waiting.cancelled():
            self._unheard(waiting.result())

    def deliver(self, message: ToCode) -> None:
        """Takes one message from the driver; on the loop, in order."""
        if self._closed:
            return
        if isinstance(message, Cancel):
            if self.cancelled is None:
                self.cancelled = message
                if self.on_cancel is not None:
                    self.on_cancel()
            return
        waiting = self._waiting.pop(message.id, None)
        if waiting is None or waiting.done():
            self._unheard(message)
        else:
            waiting.set_result(message)

    def poll(self) -> None:
        """Takes in what has arrived already."""
        self._channel.poll()

    def close(self) -> None:
        """Nothing is said or heard from here on; whoever still waits is cancelled."""
        self._closed = True
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    def _unheard(self, message: Reply) -> None:
        # A step that was allowed but never begun did surely not happen. Saying so keeps it out of doubt.
        if isinstance(message, Perform):
            self.say(Performed(message.id, error=NOT_PERFORMED))
        elif isinstance(message, Probe):
            self.say(Probed(message.id, "unknown", message="the code stopped waiting for this step"))
