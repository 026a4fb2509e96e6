"""Measures the tool loop: Atlas, with every step durable, beside four frameworks that keep nothing.

All of them ask one model, a server on this machine in a process of its own that counts for nobody. Every measurement
is a fresh process; the sides take turns. No process can reach beyond this machine, and none sends telemetry.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from loop_report import FRAMEWORKS, OURS
from loop_workload import Options
from measure import machine, measure
from peer import REPOSITORY, pinned

HERE: Final = Path(__file__).resolve().parent
STEPS: Final = 20
CROWD_STEPS: Final = 5
ENVIRONMENT: Final = {
    "PYTHONPATH": str(REPOSITORY / "tests" / "netguard"),
    "AGNO_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}
VARIANTS: Final[dict[str, dict[str, bool]]] = {OURS: {}, "atlas_builtin": {"is_builtin": True}}

Scratch = Callable[[], AbstractContextManager[Path]]


class LoopPlan(NamedTuple):
    """How often, and how much."""

    repetitions: int
    runs: int
    crowds: int
    crowd_runs: int = 1000


FULL: Final = LoopPlan(repetitions=5, runs=50, crowds=1)
QUICK: Final = LoopPlan(repetitions=3, runs=10, crowds=1)


class LoopBench:
    """One measurement of the loop."""

    def __init__(self, plan: LoopPlan, peer: Path, scratch: Scratch, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._peer = peer
        self._scratch = scratch
        self._say = say
        self._server = 0

    def measure(self) -> dict[str, Any]:
        """Everything that was seen, with where and when."""
        plan, before = self._plan, machine()
        with model_server() as (url, self._server):
            whole = Options("loop", url, STEPS, plan.runs, is_streamed=False)
            crowded = Options("crowd", url, CROWD_STEPS, plan.crowd_runs, is_streamed=False)
            cases = {
                "streamed": self._case(whole._replace(is_streamed=True), plan.repetitions, (*VARIANTS, *FRAMEWORKS)),
                "whole": self._case(whole, plan.repetitions, (*VARIANTS, *FRAMEWORKS)),
                "once": self._case(whole._replace(case="once"), plan.repetitions, (OURS, *FRAMEWORKS)),
                "crowd": self._case(crowded, plan.crowds, (OURS, *FRAMEWORKS)),
            }
        versions = {"Atlas": version("atlas-agents")}
        versions |= {name: pinned(package) for name, package in FRAMEWORKS.values()}
        return {
            "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "steps": STEPS,
            "crowd_steps": CROWD_STEPS,
            **plan._asdict(),
            "machine": {**before, "load_after": machine()["load_1min"]},
            "versions": versions,
            "cases": cases,
        }

    def _case(self, options: Options, repetitions: int, sides: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
        """Takes turns: every repetition measures every side once, one after the other."""
        wire = "streamed" if options.is_streamed else "replies in one piece"
        self._say(f"  tool loop, {options.case}, {wire}: {repetitions} x {', '.join(sides)}")
        samples: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for _ in range(repetitions):
            for side in sides:
                samples[side].append(self._once(options, side))
        return samples

    def _once(self, options: Options, side: str) -> dict[str, Any]:
        python = sys.executable if side in VARIANTS else self._peer
        script = HERE / f"loop_{OURS if side in VARIANTS else side}.py"
        with self._scratch() as folder:
            mine = options._replace(folder=str(folder), **VARIANTS.get(side, {}))
            sample = measure((python, script, json.dumps(mine._asdict())), folder, ENVIRONMENT, self._server)
        return {
            name: round(value, 3) if isinstance(value, float) else value for name, value in sample.as_dict().items()
        }


@contextmanager
def model_server() -> Iterator[tuple[str, int]]:
    """The address of the model and its process, which ends with the block."""
    command = [sys.executable, str(HERE / "model_server.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        if not url:
            raise SystemExit("the model's server did not start")
        yield url, process.pid
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        process.stdout.close()
