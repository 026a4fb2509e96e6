"""Pieces of answers on their way to whoever watches. Ephemeral: shown, never recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from atlas.kernel.model import Delta, OnDelta


class Deltas:
    """Who watches which run."""

    def __init__(self) -> None:
        self._watchers: dict[str, list[OnDelta]] = {}

    @contextmanager
    def watch(self, run_id: str, show: OnDelta) -> Iterator[None]:
        """Shows the run's deltas inside the block."""
        watchers = self._watchers.setdefault(run_id, [])
        watchers.append(show)
        try:
            yield
        finally:
            watchers.remove(show)
            if not watchers:
                self._watchers.pop(run_id, None)

    def of(self, run_id: str) -> OnDelta:
        """Where a run's deltas go."""

        def pass_on(delta: Delta) -> None:
            for show in self._watchers.get(run_id, ()):
                show(delta)

        return pass_on
