"""When an answer has been silent for too long: one timer, however often something is heard.

Setting and cancelling a timer for each piece of an answer costs more than reading the piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf


class Watch:
    """Calls `ring` once when nothing was heard for as long as was allowed, and at that moment, not later.

    Its timer is never behind the earliest moment at which that can be, so that hearing something only notes the time:
    a timer that runs out looks at what was heard since and is set anew. One left over when the watch ends runs out.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._until_s = inf
        self._silence_s = inf
        self._timer: asyncio.TimerHandle | None = None
        self._looks_s = inf

    def start(self, first_s: float, silence_s: float) -> None:
        """Allows `first_s` until something is heard and `silence_s` after each time that something is."""
        now_s = self._loop.time()
        self._until_s, self._silence_s = now_s + first_s, silence_s
        self._look_at(now_s + min(first_s, silence_s))

    def heard(self) -> None:
        """Something came."""
        self._until_s = self._loop.time() + self._silence_s

    def end(self) -> None:
        """Nothing is waited for."""
        self._until_s = self._silence_s = inf

    def close(self) -> None:
        """Nothing will be waited for any more."""
        self.end()
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, when_s: float) -> None:
        if when_s < self._looks_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._looks_s = self._loop.call_at(when_s, self._look), when_s

    def _look(self) -> None:
        self._timer, self._looks_s = None, inf
        now_s = self._loop.time()
        if now_s >= self._until_s:
            self.end()
            self._ring()
        else:
            # Whatever is heard from here on allows at least `silence_s` from now.
            self._look_at(min(self._until_s, now_s + self._silence_s))
