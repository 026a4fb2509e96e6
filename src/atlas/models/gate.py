"""A provider's gate: how many calls it takes at once, and whether it is being left alone after failures.

Times are the loop's, which never jump.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from atlas.kernel.model import ModelError, ModelErrorKind

# The provider itself failed; anything else it says shows that it is there.
_OUTAGES = frozenset({"server", "timeout", "connection"})


class LeftAlone(ModelError):
    """The provider failed several times in a row and nobody asks it now; no call was made."""


class Breaker:
    """Opens when a provider failed `threshold` times in a row; after `recovery_s` one call may try."""

    def __init__(self, threshold: int, recovery_s: float) -> None:
        self._threshold = threshold
        self._recovery_s = recovery_s
        self._failures = 0
        self._open_until: float | None = None
        self._is_probing = False

    def away_s(self, now: float) -> float:
        """0 when a call may go; else in how many seconds to ask again."""
        if self._open_until is None:
            return 0.0
        if now < self._open_until:
            return self._open_until - now
        return self._recovery_s if self._is_probing else 0.0

    def admit(self, now: float) -> float:
        """As `away_s`; when the breaker was open and a call may go, it is the probe."""
        away_s = self.away_s(now)
        if not away_s:
            self._is_probing = self._open_until is not None
        return away_s

    def succeeded(self) -> None:
        """The provider answered: closes it."""
        self._failures = 0
        self._open_until = None
        self._is_probing = False

    def failed(self, now: float) -> None:
        """The provider failed: opens it after enough of them, or again when this was the probe."""
        self._failures += 1
        if self._is_probing or self._failures >= self._threshold:
            self._open_until = now + self._recovery_s
        self._is_probing = False

    def given_up(self) -> None:
        """A call ended without showing anything: another one may be the probe."""
        self._is_probing = False


class Gate:
    """A provider's lane and breaker. Calls pass first come, first served."""

    def __init__(self, max_in_flight: int, threshold: int, recovery_s: float) -> None:
        self._lane = asyncio.Semaphore(max_in_flight)
        self._breaker = Breaker(threshold, recovery_s)
        self._news: asyncio.Event | None = None

    def passed(self, name: str, patience_s: float) -> Passage:
        """Inside, the caller is one of at most `max_in_flight`, and must say how its call ended.

        LeftAlone when the breaker stays open for longer than `patience_s`.
        """
        return Passage(self, name, patience_s)

    async def enter(self, name: str, patience_s: float) -> None:
        """Takes a place in the lane, which must be left again; none when it raises.

        Nobody who waits for the breaker holds a place: others may not be willing to wait for it.
        """
        now = asyncio.get_running_loop().time
        until_s = now() + patience_s
        while True:
            while away_s := self._breaker.away_s(now()):
                left_s = until_s - now()
                if left_s <= 0:
                    raise LeftAlone("server", f"{name} failed too often and is left alone", retry_after_s=away_s)
                await self._change(min(away_s, left_s))
            await self._lane.acquire()
            if not self._breaker.admit(now()):
                return
            self._lane.release()  # it opened, or another one became the probe, while this one stood in line

    def away_s(self) -> float:
        """For how long the provider is being left alone; 0 when it may be asked."""
        return self._breaker.away_s(asyncio.get_running_loop().time())

    def leave(self) -> None:
        """Gives the place back."""
        self._lane.release()

    def succeeded(self) -> None:
        """The call was answered."""
        self._breaker.succeeded()
        self._tell()

    def failed(self, kind: ModelErrorKind) -> None:
        """The call failed; only an outage is held against the provider."""
        if kind in _OUTAGES:
            self._breaker.failed(asyncio.get_running_loop().time())
        else:
            self._breaker.succeeded()
        self._tell()

    def given_up(self) -> None:
        """The call was cancelled."""
        self._breaker.given_up()
        self._tell()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def _change(self, seconds: float) -> None:
        """Returns when some call ended, or after a while."""
        if self._news is None:
            self._news = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return


class Passage:
    """A call that goes through a gate."""

    def __init__(self, gate: Gate, name: str, patience_s: float) -> None:
        self._gate = gate
        self._name = name
        self._patience_s = patience_s

    def __aenter__(self) -> Coroutine[Any, Any, None]:
        return self._gate.enter(self._name, self._patience_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave()
