"""The machine's clock."""

from __future__ import annotations

import os


class SystemClock:
    """The machine's clock and randomness."""

    def now_us(self) -> int:
        """Integer UTC microseconds."""
        import time

        return time.time_ns() // 1000

    def entropy(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        return os.urandom(size)
