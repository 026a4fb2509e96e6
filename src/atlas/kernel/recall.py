"""Handles and passages: how anything a session recorded is named, found and brought back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import msgspec

PASSAGE_BYTES: Final = 1_500
_HANDLE: Final = re.compile(r"t(\d+)(?:\.(\d+)(?:\.(\d+))?)?")


class Handle(msgspec.Struct, frozen=True):
    """`t12` is a turn, `t12.3` its third step, `t12.3.2` that step's second tool call, `t12.0` the user's words."""

    turn: int
    step: int | None = None
    call: int | None = None

    def __str__(self) -> str:
        parts = [f"t{self.turn}", *(str(one) for one in (self.step, self.call) if one is not None)]
        return ".".join(parts)


def parse_handle(text: str) -> Handle | None:
    """The handle, or None when `text` is none."""
    match = _HANDLE.fullmatch(text.strip())
    if match is None:
        return None
    turn, step, call = (None if one is None else int(one) for one in match.groups())
    return Handle(turn or 0, step, call)


class Passage(msgspec.Struct, frozen=True):
    """A piece of something recorded, as search knows it; `start` is where it begins in the whole."""

    handle: str
    start: int
    title: str
    text: str
    at: int


class Found(msgspec.Struct, frozen=True):
    """A hit."""

    handle: str
    start: int
    title: str
    snippet: str


class Index(Protocol):
    """Finds words in what sessions recorded. Derived: it can be deleted and is built again."""

    def seen(self, session_id: str) -> dict[str, int]:
        """How far each run of the session is indexed."""
        ...

    def add(self, session_id: str, run_id: str, seq: int, passages: Iterable[Passage]) -> None:
        """Indexes passages of a run up to an event."""
        ...

    def find(self, session_id: str, words: str, limit: int) -> list[Found]:
        """The passages that share most with the words, best first."""
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


def passages(handle: str, title: str, text: str, at: int) -> Iterator[Passage]:
    """`text` in pieces that overlap a little, so that nothing is cut apart unfindably."""
    step = PASSAGE_BYTES - 150
    for start in range(0, max(len(text), 1), step):
        yield Passage(handle, start, title, text[start : start + PASSAGE_BYTES], at)
        if start + PASSAGE_BYTES >= len(text):
            return
