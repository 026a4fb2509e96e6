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
        """Shows the run's deltas inside the block; what `show` raises is raised when the block has ended."""
        problems: list[Exception] = []

        def shown(delta: Delta) -> None:
            if problems:
                return
            try:
                show(delta)
            except Exception as error:  # noqa: BLE001 - who only watches cannot end a run that is paid for
                problems.append(error)

        watchers = self._watchers.setdefault(run_id, [])
        watchers.append(shown)
        try:
            yield
        finally:
            watchers.remove(shown)
            if not watchers:
                self._watchers.pop(run_id, None)
        if problems:
            raise problems[0]

    def of(self, run_id: str) -> OnDelta:
        """Where a run's deltas go."""

        def pass_on(delta: Delta) -> None:
            for show in self._watchers.get(run_id, ()):
                show(delta)

        return pass_on


def wordless(on_delta: OnDelta) -> OnDelta:
    """Passes everything on but the pieces of the answer itself."""

    def pass_on(delta: Delta) -> None:
        if delta.kind != "text":
            on_delta(delta)

    return pass_on
