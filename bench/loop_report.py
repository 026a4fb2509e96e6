"""The tables and aims of the tool loop, from what was measured. Pure, as report.py is.

results["loop"]["cases"][case][side] = [sample, ...]      one sample per repetition, in the order they were taken
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, Final, TypeAlias

Sample: TypeAlias = Mapping[str, Any]
Loop: TypeAlias = Mapping[str, Any]

OURS: Final = "atlas"
FRAMEWORKS: Final = {
    "langgraph": ("LangGraph", "langgraph"),
    "pydantic_ai": ("pydantic-ai", "pydantic-ai-slim"),
    "openai_agents": ("openai-agents", "openai-agents"),
    "agno": ("agno", "agno"),
}
"""Each peer's side: its name, and the package whose version says which it is."""
NAMES: Final = {
    OURS: "Atlas, durable, tool in a worker process",
    "atlas_builtin": "Atlas, durable, built-in tool",
    **{side: f"{name}, nothing durable" for side, (name, _) in FRAMEWORKS.items()},
}


WIRES: Final = {"streamed": "replies streamed", "whole": "replies in one piece"}
"""The two ways a model answers, each a case; all sides take the same one."""


def seen(loop: Loop, case: str, side: str, read: Callable[[Sample], float]) -> list[float]:
    """One number per repetition."""
    return [read(sample) for sample in loop["cases"][case][side]]


def step_cpu(loop: Loop) -> Callable[[Sample], float]:
    """Reads CPU milliseconds per step of warm runs, all processes counted."""
    steps = int(loop["steps"]) * int(loop["runs"])
    return lambda sample: float(sample["runs_cpu_ms"]) / steps


def step_wall(loop: Loop) -> Callable[[Sample], float]:
    """Reads milliseconds by the clock per step of warm runs."""
    steps = int(loop["steps"]) * int(loop["runs"])
    return lambda sample: float(sample["runs_wall_ms"]) / steps


def whole_cpu(loop: Loop) -> Callable[[Sample], float]:
    """Reads CPU milliseconds per step of a process that does one run, its start and its end included."""
    return lambda sample: float(sample["cpu_ms"]) / int(loop["steps"])


def run_cpu(loop: Loop) -> Callable[[Sample], float]:
    """Reads CPU milliseconds per run of a crowd."""
    return lambda sample: float(sample["runs_cpu_ms"]) / int(loop["crowd_runs"])


def best_peer(loop: Loop, case: str, read: Callable[[Sample], float]) -> tuple[str, list[float]]:
    """The side that is cheapest in the median, ours apart, and its numbers."""
    sides = {side: seen(loop, case, side, read) for side in FRAMEWORKS}
    side = min(sides, key=lambda one: median(sides[one]))
    return side, sides[side]


def failed(loop: Loop, side: str) -> int:
    """Runs of the crowds that did not come to their answer, in the worst crowd."""
    return int(max(seen(loop, "crowd", side, lambda sample: float(sample["failed"]))))
