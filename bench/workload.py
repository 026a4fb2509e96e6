"""What both sides run, how they are called and how each reads its own clock, so that only the engines differ.

Imports little: what is imported here is in the whole-process numbers of both sides.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Options(NamedTuple):
    """One measurement, as run.py asks for it: the only argument of a side, as JSON."""

    case: str
    folder: str = ""
    steps: int = 0
    runs: int = 1
    size: int = 0
    is_counted: bool = False
    is_in_worker: bool = False


class Side(Protocol):
    """What an engine must be able to do; each answer goes into the results."""

    def once(self, steps: int) -> dict[str, Any]:
        """One run in a process that does nothing else."""
        ...

    def steps(self, steps: int) -> dict[str, Any]:
        """An empty run that warms up, an empty run that is measured, a full run that is measured."""
        ...

    def crowd(self, runs: int, steps: int) -> dict[str, Any]:
        """Many runs at the same time in one process."""
        ...

    def load(self, steps: int) -> dict[str, Any]:
        """Reads the state of the run that `once` left."""
        ...


class Marks:
    """CPU milliseconds and wall seconds at several moments."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, float]] = []
        self.add()

    def add(self) -> None:
        """Marks this moment."""
        self.taken.append((cpu_ms(), time.perf_counter()))


class Timing:
    """What passed between its making and `stop`."""

    def __init__(self) -> None:
        self._marks = Marks()

    def stop(self) -> None:
        """Takes the time."""
        self._marks.add()
        (cpu, wall), (cpu_end, wall_end) = self._marks.taken
        self.cpu_ms = cpu_end - cpu
        self.wall_ms = (wall_end - wall) * 1000


def tick(number: int, size: int) -> dict[str, Any]:
    """The step: next to no work; `size` characters of text come back with it."""
    return {"number": number, "square": number * number, "text": "x" * size}


def cpu_ms() -> float:
    """CPU time of this process and of the children it has waited for, in user and system mode."""
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used) * 1000


def stored_bytes(folder: Path) -> int:
    """The size of every file below the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def serve(make: Callable[[Options], Side]) -> None:
    """Does the one case that the command line asks for; the last line printed is the answer."""
    options = Options(**json.loads(sys.argv[1]))
    side = make(options)
    match options.case:
        case "once":
            answer = side.once(options.steps)
        case "steps":
            answer = side.steps(options.steps)
        case "crowd":
            answer = side.crowd(options.runs, options.steps)
        case "load":
            answer = side.load(options.steps)
        case _:
            raise SystemExit(f"no such case: {options.case}")
    print(json.dumps({**answer, "sqlite": sqlite3.sqlite_version}))
