"""What happens to an attempt, in order; dealt with at once where that needs no waiting.

A message for a resting attempt is worked on by whoever posts it, so that a call of the code whose answer is at hand
costs no round of the loop. Whatever has to wait, or is the task's own affair, is left to the attempt's task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Final, TypeAlias

from atlas.control.world import Message
from atlas.kernel.errors import Fault

ROUND: Final = 16
"""As many messages in a row are dealt with at once before the loop has a round: other runs want to go on too."""

Work: TypeAlias = Coroutine[Any, Any, bool]


class Begun:
    """Work that has run until it first had to wait; awaiting this does the rest of it.

    Its first part runs in somebody else's task, so it must not depend on which task it is in. `is_over` when there is
    no rest.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._awaited: Any = None
        self.is_over = False
        self.result = False
        try:
            self._awaited = work.send(None)
        except StopIteration as end:
            self._end(end)

    def __await__(self) -> Generator[Any, Any, bool]:
        while not self.is_over:
            try:
                try:
                    news = yield self._awaited
                except BaseException as error:  # noqa: BLE001 - what is thrown at waiting work is for the work itself
                    self._awaited = self._work.throw(error)
                else:
                    self._awaited = self._work.send(news)
            except StopIteration as end:
                self._end(end)
        return self.result

    def _end(self, end: StopIteration) -> None:
        self.is_over, self.result = True, bool(end.value)


class Mail:
    """An attempt's inbox. `work` deals with what is in it as far as it can, and says whether it is at rest then."""

    def __init__(self, work: Callable[[], Work], at_once: tuple[type, ...]) -> None:
        self._work = work
        self._at_once = at_once
        self._messages: deque[Message] = deque()
        self._waiter: asyncio.Future[Begun | None] | None = None
        self._posts = 0

    def __len__(self) -> int:
        return len(self._messages)

    def post(self, message: Message) -> None:
        """Puts something into the inbox; on the driver's loop only."""
        self._messages.append(message)
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        self._waiter = None
        self._posts += 1
        if self._posts % ROUND == 0 or not isinstance(message, self._at_once):
            waiter.set_result(None)
            return
        try:
            begun = Begun(self._work())
        except asyncio.CancelledError:
            waiter.set_exception(Fault("what an attempt waited for was cancelled", code="wait_cancelled"))
            return
        except Exception as error:  # noqa: BLE001 - it is raised in the attempt's own task, not where the news came from
            waiter.set_exception(error)
            return
        if begun.is_over and begun.result:
            self._waiter = waiter
        else:
            waiter.set_result(begun)

    async def arrived(self) -> None:
        """Returns when something has happened that whoever posted it did not finish."""
        if self._messages:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        begun = await self._waiter
        if begun is not None:
            await begun

    def next(self, kinds: tuple[type, ...] | None = None) -> Message | None:
        """The first message, taken out; None when there is none, or when it is none of these kinds."""
        if not self._messages or (kinds is not None and not isinstance(self._messages[0], kinds)):
            return None
        return self._messages.popleft()

    def take(self, kinds: tuple[type, ...]) -> list[Message]:
        """Every message of these kinds, taken out."""
        taken = [message for message in self._messages if isinstance(message, kinds)]
        self._keep(message for message in self._messages if not isinstance(message, kinds))
        return taken

    def keep(self, kinds: tuple[type, ...]) -> None:
        """Forgets everything else."""
        self._keep(message for message in self._messages if isinstance(message, kinds))

    def _keep(self, messages: Iterable[Message]) -> None:
        self._messages = deque(messages)
