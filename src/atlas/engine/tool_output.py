"""What tools print, kept apart although many run in one process: each call has its own page, found by its context."""

from __future__ import annotations

import io
import sys
from contextvars import ContextVar
from typing import Any, Final, TextIO

PRINT_LIMIT: Final = 64 * 1024

_PAGE: ContextVar[Page | None] = ContextVar("atlas_tool_output", default=None)


class Page:
    """What one call printed, up to a limit; what is beyond it is counted."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._left_out = 0

    def add(self, text: str) -> None:
        """Appends; from any thread."""
        kept = text[: max(0, PRINT_LIMIT - self._size)]
        if kept:
            self._pieces.append(kept)
            self._size += len(kept)
        self._left_out += len(text) - len(kept)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was printed."""
        return not self._size

    @property
    def text(self) -> str:
        """All of it."""
        more = f"\n[and {self._left_out} more characters]" if self._left_out else ""
        return "".join(self._pieces) + more


def open_page() -> Page:
    """A page for whatever is printed from here on in this context, and in those that are copied from it."""
    fresh = Page()
    _PAGE.set(fresh)
    return fresh


def route_output() -> None:
    """From here on print goes to the page of its call, where there is one."""
    sys.stdout = _Router(sys.stdout)
    sys.stderr = _Router(sys.stderr)


class _Router(io.TextIOBase):
    """A text stream that writes to the page of whoever writes, else to the stream it stands for."""

    def __init__(self, behind: TextIO) -> None:
        self._behind = behind

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._behind.encoding

    @property
    def buffer(self) -> Any:
        return self._behind.buffer

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._behind.fileno()

    def flush(self) -> None:
        self._behind.flush()

    def write(self, text: str, /) -> int:
        current = _PAGE.get()
        if current is None:
            return self._behind.write(text)
        current.add(text)
        return len(text)
