"""A clock that stands still until it is told to move."""

from __future__ import annotations

import hashlib
import itertools
from typing import Final

START_US: Final = 1_767_225_600_000_000  # 2026-01-01 00:00 UTC


class FakeClock:
    """Time that only `advance` moves, and bytes that differ with every call but are the same in every test."""

    def __init__(self, start_us: int = START_US, seed: int = 0) -> None:
        self._now_us = start_us
        self._seed = seed
        self._calls = itertools.count()

    def now_us(self) -> int:
        """The time it was set to."""
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Moves the time on."""
        self._now_us += int(seconds * 1_000_000)

    def entropy(self, size: int) -> bytes:
        """The next `size` bytes of a fixed sequence."""
        return hashlib.shake_128(f"{self._seed}/{next(self._calls)}".encode()).digest(size)
