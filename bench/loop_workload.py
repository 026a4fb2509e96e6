"""The tool loop: what every framework is asked to do, how it is called and what is counted, so that only they differ.

Imports little: what is imported here is in the whole-process numbers of every side. CPU time is that of the process
and of everything it started, living or dead; the model's server was started by somebody else and is not in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

INSTRUCTIONS: Final = "You look numbers up with your tool, one after the other, and say when you are done."
QUESTION: Final = "Look the numbers up."
ANSWER: Final = "All numbers were looked up."
WARM_RUNS: Final = 3
_CPU_CLOCK: Final = 2


class Options(NamedTuple):
    """One measurement, as run.py asks for it: the only argument of a side, as JSON."""

    case: str
    url: str
    steps: int
    runs: int
    folder: str = ""
    is_builtin: bool = False
    is_streamed: bool = False


class Loop(Protocol):
    """An agent that is ready."""

    async def run(self) -> str:
        """The answer of one run from its beginning."""
        ...


Opened = AbstractAsyncContextManager[Loop]


def lookup(number: int) -> str:
    """Looks a number up."""
    return f"The square of {number} is {number * number}."


async def loop(agent: Loop, runs: int) -> dict[str, Any]:
    """Runs that warm up, then runs one after the other that are measured."""
    for _ in range(WARM_RUNS):
        check(await agent.run())
    began, began_s = cpu_ms(), time.perf_counter()
    for _ in range(runs):
        check(await agent.run())
    return {"runs_cpu_ms": cpu_ms() - began, "runs_wall_ms": (time.perf_counter() - began_s) * 1000}


async def crowd(agent: Loop, runs: int) -> dict[str, Any]:
    """One run that warms up, then all runs at the same time; those that do not come to the answer are counted."""
    check(await agent.run())
    failures: list[str] = []

    async def one() -> None:
        try:
            answer = await agent.run()
        except Exception as error:  # noqa: BLE001 - whatever a framework raises, the run has failed
            failures.append(f"{type(error).__name__}: {error}"[:200])
            return
        if answer.strip() != ANSWER:
            failures.append(answer[:200])

    began, began_s = cpu_ms(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(runs):
            group.create_task(one())
    taken = {"runs_cpu_ms": cpu_ms() - began, "runs_wall_ms": (time.perf_counter() - began_s) * 1000}
    return {**taken, "peak_all_mb": peak_mb(), "failed": len(failures), "failure": next(iter(failures), "")}


async def once(agent: Loop, runs: int) -> dict[str, Any]:
    """One run in a process that does nothing else."""
    check(await agent.run())
    return {}


CASES: Final = {"loop": loop, "crowd": crowd, "once": once}


def serve(open_: Callable[[Options], Opened]) -> None:
    """Does the one case that the command line asks for; the last line printed is the answer."""
    options = Options(**json.loads(sys.argv[1]))

    async def measured() -> dict[str, Any]:
        async with open_(options) as agent:
            return await CASES[options.case](agent, options.runs)

    print(json.dumps(asyncio.run(measured())))


def check(answer: str) -> None:
    """Fails when the run did not come to the answer: a wrong one has no speed."""
    if answer.strip() != ANSWER:
        raise SystemExit(f"not the answer: {answer!r}")


def cpu_ms() -> float:
    """CPU time of this process, of the children it has waited for and of everything below it that lives."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(time.clock_gettime(_clock_of(pid)) for pid in descendants())
    return (time.process_time() + ended.ru_utime + ended.ru_stime + living) * 1000


def peak_mb() -> float:
    """The largest resident size of this process and of everything below it that lives, added up."""
    return sum(_high_water_kb(pid) for pid in ("self", *map(str, descendants()))) / 1024


def descendants() -> list[int]:
    """Every process below this one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, new = [], [os.getpid()]
    while new:
        new = [child for pid in new for child in children.get(pid, ())]
        found += new
    return found


def _clock_of(pid: int) -> int:
    """The number of another process's CPU clock, as Linux counts them."""
    return (~pid << 3) | _CPU_CLOCK


def _high_water_kb(pid: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
