"""Measures requests as they are sent: bytes, tokens, what consecutive ones share, and what a transcript would have been.

Tokens are counted by a rule of its own that knows nothing of how Atlas estimates them, the way a provider does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median
from typing import Final

import msgspec

from atlas.kernel.context import neutral
from atlas.kernel.model import Request

_TOKEN: Final = re.compile(rb" ?[A-Za-z]{1,6}|[0-9]{1,3}|[\x80-\xff]{1,3}|[^\sA-Za-z0-9\x80-\xff]|\s")
_ENCODER: Final = msgspec.json.Encoder()


class Seen(msgspec.Struct, frozen=True):
    """One request; `shared` is the part of it that it begins with in common with the one before it in its turn."""

    turn: int
    step: int
    size: int
    tokens: int
    transcript: int
    shared: float | None


class Meter:
    """Remembers numbers, not requests; of those only the last."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._last = (0, b"")
        self._said = 0

    def asked(self, turn: int, request: Request) -> int:
        """Measures a request of a turn; how many tokens it has."""
        raw = neutral(request)
        tokens = count_tokens(raw)
        bare = len(raw) - len(_ENCODER.encode(request.messages))
        last_turn, before = self._last
        shared = shared_prefix(before, raw) / min(len(before), len(raw)) if last_turn == turn else None
        self._last = (turn, raw)
        self.seen.append(Seen(turn, request.step, len(raw), tokens, bare + self._said, shared))
        return tokens

    def said(self, value: object) -> None:
        """Something that a transcript would repeat in every later request."""
        self._said += len(_ENCODER.encode(value)) + 1

    def of(self, first: int, last: int) -> list[Seen]:
        """The requests of these turns, both included."""
        return [one for one in self.seen if first <= one.turn <= last]


def count_tokens(raw: bytes) -> int:
    """Tokens as the scripted provider counts them: pieces of words, of numbers, and every sign."""
    return len(_TOKEN.findall(raw))


def shared_prefix(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def slope(points: Iterable[tuple[float, float]]) -> float:
    """How fast y grows with x, by least squares."""
    pairs = list(points)
    mean_x = sum(x for x, _ in pairs) / len(pairs)
    mean_y = sum(y for _, y in pairs) / len(pairs)
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    return sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread if spread else 0.0


def per_turn(seen: Iterable[Seen]) -> dict[int, float]:
    """The median size of the requests of each turn."""
    sizes: dict[int, list[int]] = {}
    for one in seen:
        sizes.setdefault(one.turn, []).append(one.size)
    return {turn: median(some) for turn, some in sizes.items()}
