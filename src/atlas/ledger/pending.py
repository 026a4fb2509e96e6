"""What a transaction has still to write: rows that move several times in it are written once, with what they add up to.

Nothing that a commit reads depends on them: events are read by nobody, a run's head and what is held on meters are
known without (see `known`), and totals are for those who look on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atlas.kernel.event import Event
from atlas.ledger.budget import Sums, plus

Row = tuple[Any, ...]


class Pending:
    """Collects events, heads of runs, totals and meters until they are taken."""

    __slots__ = ("_heads", "_meters", "_totals", "events")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._heads: dict[int | str, Row] = {}
        self._totals: dict[Row, Sequence[int]] = {}
        self._meters: dict[tuple[str, str], Sums] = {}

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.events or self._heads or self._totals or self._meters)

    def touch(self, rowid: int | str, seq: int, link: bytes, now_us: int, spend: Sequence[int]) -> None:
        """Moves the head of a run's chain, and adds to what the run spent."""
        old = self._heads.get(rowid)
        self._heads[rowid] = (seq, link, now_us, *(spend if old is None else map(int.__add__, old[3:], spend)))

    def add_total(self, key: Row, used: Sequence[int]) -> None:
        """Adds to a total of the day."""
        old = self._totals.get(key)
        self._totals[key] = used if old is None else tuple(map(int.__add__, old, used))

    def add_meters(self, changes: Mapping[tuple[str, str], Sums]) -> None:
        """Moves meters, each named by scope and bucket."""
        meters = self._meters
        for key, change in changes.items():
            meters[key] = plus(meters[key], change) if key in meters else change

    def take_events(self) -> list[Event]:
        """The events, in order; they are somebody else's to write now, as is all that is taken."""
        events, self.events = self.events, []
        return events

    def take_heads(self) -> list[Row]:
        """For each run: the key of its row, sequence number, hash, time, and what is added to its spend."""
        heads, self._heads = self._heads, {}
        return [(rowid, *values) for rowid, values in heads.items()]

    def take_totals(self) -> list[Row]:
        """For each total: its key, and what is added."""
        totals, self._totals = self._totals, {}
        return [(*key, *used) for key, used in totals.items()]

    def take_meters(self) -> list[Row]:
        """For each meter: scope, bucket, and what is added."""
        meters, self._meters = self._meters, {}
        return [(*key, *change) for key, change in meters.items()]
