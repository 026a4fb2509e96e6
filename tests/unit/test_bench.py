"""The arithmetic, the pages and the model of the benchmark; nothing here judges a time."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    """A module of the bench folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", ROOT / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The one module of the folder that another one under test imports by its name.
loop_report = sys.modules["loop_report"] = load("loop_report")
report = load("report")


def sample(steps: int = 20, step_ms: float = 0.5, **changes: Any) -> dict[str, Any]:
    """A measurement that fits every case: an empty run of 4 ms, then a run with steps of `step_ms` each."""
    marks = [[100.0, 1.0], [104.0, 1.01], [108.0 + steps * step_ms, 1.02 + steps * step_ms / 500]]
    whole = {"cpu_ms": 30.0, "wall_ms": 60.0, "peak_mb": 40.0, "bytes": 1000.0 + 10 * steps, "marks": marks}
    return {**whole, "load_ms": 4.0, "load_cpu_ms": 3.0, "vault_ms": 9.0, "vault_cpu_ms": 8.0, **changes}


def results() -> dict[str, Any]:
    """Results that reach every aim, the peer's just so: its step costs ten times ours."""
    cases: dict[str, Any] = {}
    for steps in (0, 20, 100, 300):
        sides = {
            "atlas": [sample(steps) for _ in range(3)],
            "langgraph": [sample(steps, 5.0, cpu_ms=300.0, bytes=1000.0 + steps * steps) for _ in range(3)],
            "langgraph_counted": [sample(steps, 4.0) for _ in range(3)],
        }
        cases |= {f"{name}-{steps}": json.loads(json.dumps(sides)) for name in ("once", "steps", "large")}
    both = {side: [sample() for _ in range(3)] for side in ("atlas", "langgraph")}
    cases |= {name: json.loads(json.dumps(both)) for name in ("load", "crowd")}
    cases["worker"] = {"full": [sample(cpu_ms=330.0)] * 3, "empty": [sample(cpu_ms=30.0)] * 3}
    names = ("python", "import_atlas", "import_api", "help", "import_langgraph")
    cases["start"] = {name: [sample() for _ in range(3)] for name in names}
    machine = {"cores": 2, "processor": "none", "platform": "none", "load_1min": 0.1, "load_after": 0.2}
    head = {"day": "2026-01-01", "repetitions": 3, "crowd_runs": 10, "worker_steps": 300}
    return {**head, "machine": machine, "versions": {"Atlas": "1"}, "loop": loop(machine), "cases": cases}


def loop(machine: dict[str, Any]) -> dict[str, Any]:
    """A tool loop whose aims are reached exactly: the cheapest peer's step costs eight times ours."""
    ours = {"cpu_ms": 500.0, "runs_cpu_ms": 200.0, "runs_wall_ms": 400.0, "peak_all_mb": 90.0, "failed": 0}
    peer = {**ours, "runs_cpu_ms": 1600.0}
    cases: dict[str, Any] = {}
    for case in (*loop_report.WIRES, "once", "crowd"):
        sides = {side: peer if side in loop_report.FRAMEWORKS else ours for side in loop_report.NAMES}
        dear = {side: {**sample, "runs_cpu_ms": 9999.0} for side, sample in sides.items() if side == "langgraph"}
        cases[case] = {side: [dict(sample)] * 3 for side, sample in {**sides, **dear}.items()}
    head = {"day": "2026-01-01", "steps": 20, "crowd_steps": 5, "repetitions": 3, "runs": 10, "crowd_runs": 1000}
    return {**head, "machine": machine, "versions": {"Atlas": "1"}, "cases": cases}


def changed_loop(case: str, side: str, **changes: Any) -> dict[str, Any]:
    """Those results with one side of one case of the tool loop changed."""
    seen = results()
    seen["loop"]["cases"][case][side] = [{**each, **changes} for each in seen["loop"]["cases"][case][side]]
    return seen


def changed(case: str, side: str, **changes: Any) -> dict[str, Any]:
    """Those results with one side of one case changed."""
    seen = results()
    for each in seen["cases"][case][side]:
        each |= changes
    return seen


def test_a_figure_is_the_median_with_its_range() -> None:
    assert report.figure([3.0, 1.0, 100.0]) == (3.0, 1.0, 100.0)
    assert report.figure([3.0, 1.0, 100.0]).text(1) == "3.0 (1.0-100.0)"


def test_no_samples_are_no_figure() -> None:
    with pytest.raises(ValueError, match="no samples"):
        report.figure([])


def test_a_ratio_compares_medians_and_ranges_over_neighbours() -> None:
    assert report.ratio([10.0, 20.0, 90.0], [1.0, 4.0, 3.0]) == (20.0 / 3.0, 5.0, 30.0)


def test_a_ratio_refuses_sides_that_were_not_measured_in_pairs() -> None:
    with pytest.raises(ValueError, match="zip"):
        report.ratio([1.0, 2.0], [1.0])


def test_a_step_costs_the_full_run_minus_the_empty_one() -> None:
    assert report.step_cost(sample(20, 2.0), 20) == pytest.approx(2.0)
    assert report.step_cost(sample(20, 2.0), 20, clock=1) == pytest.approx(4.0)


def test_growth_is_one_for_a_line_and_more_for_a_square() -> None:
    assert report.growth({20: 1000 + 20 * 7, 100: 1000 + 100 * 7, 300: 1000 + 300 * 7}) == pytest.approx(1.0)
    assert report.growth({20: 400, 100: 10_000, 300: 90_000}) == pytest.approx(400 / 120)


def test_a_worker_step_is_the_difference_of_two_processes() -> None:
    assert report.worker_costs(results()) == [1.0, 1.0, 1.0]


def test_aims_that_are_reached_exactly_are_met() -> None:
    assert [aim.what for aim in report.aims(results()) if not aim.is_met] == []


@pytest.mark.parametrize(
    "change, missed",
    [
        pytest.param(
            lambda: changed("steps-100", "atlas", **sample(100, 1.1)),
            "durable step, dearest of 20 / 100 / 300",
            id="a dear step",
        ),
        pytest.param(
            lambda: changed("steps-300", "atlas", **sample(300, 0.6)),
            "durable step, 300 steps : 20 steps",
            id="a step that grows",
        ),
        pytest.param(
            lambda: changed("steps-20", "langgraph", **sample(20, 4.9)),
            "LangGraph : Atlas at 20 steps, step alone",
            id="a cheap peer",
        ),
        pytest.param(
            lambda: changed("once-20", "langgraph", cpu_ms=299.0),
            "LangGraph : Atlas at 20 steps, whole process",
            id="a cheap process of the peer",
        ),
        pytest.param(lambda: changed("once-300", "atlas", bytes=4500.0), "database growth", id="bytes that grow"),
        pytest.param(lambda: changed("crowd", "atlas", cpu_ms=51.0), "10 concurrent runs", id="a dear crowd"),
        pytest.param(lambda: changed("crowd", "atlas", peak_mb=151.0), "10 concurrent runs, memory", id="a large one"),
        pytest.param(
            lambda: changed("load", "atlas", load_ms=5.1), "cold load of a run of 300 steps", id="a slow load"
        ),
        pytest.param(
            lambda: changed("start", "import_atlas", cpu_ms=61.0), "`import atlas`, whole process", id="a slow import"
        ),
        pytest.param(lambda: changed("start", "help", cpu_ms=101.0), "`atlas --help`, whole process", id="a slow help"),
        pytest.param(
            lambda: changed_loop("streamed", "agno", runs_cpu_ms=1590.0),
            "agno, the best peer : Atlas, step of a tool loop, replies streamed, further aim",
            id="a peer that is a little cheaper than the further aim",
        ),
        pytest.param(
            lambda: changed_loop("crowd", "atlas", failed=1),
            "1,000 concurrent prompt runs, failed",
            id="a run of a crowd that failed",
        ),
    ],
)
def test_a_miss_is_said_and_nothing_else_is(change: Callable[[], dict[str, Any]], missed: str) -> None:
    assert [aim.what for aim in report.aims(change()) if not aim.is_met] == [missed]


def test_the_nearer_aim_of_the_tool_loop_is_a_quarter() -> None:
    missed = [aim.what for aim in report.aims(changed_loop("whole", "agno", runs_cpu_ms=799.0)) if not aim.is_met]
    assert missed == [
        "agno, the best peer : Atlas, step of a tool loop, replies in one piece",
        "agno, the best peer : Atlas, step of a tool loop, replies in one piece, further aim",
    ]


def test_the_best_peer_is_the_one_with_the_cheapest_median() -> None:
    seen = changed_loop("streamed", "pydantic_ai", runs_cpu_ms=1000.0)["loop"]
    assert loop_report.best_peer(seen, "streamed", loop_report.step_cpu(seen)) == ("pydantic_ai", [5.0, 5.0, 5.0])


def test_results_without_a_tool_loop_have_no_table_of_it() -> None:
    seen = {name: value for name, value in results().items() if name != "loop"}
    assert "Tool loop" not in report.as_markdown(seen)
    assert len(report.aims(seen)) == len(report.aims(results())) - 5


def test_both_pages_show_every_table_and_every_aim() -> None:
    seen = results()
    text, markdown = report.as_text(seen), report.as_markdown(seen)
    for table in report.tables(seen):
        assert table.title in text
        assert f"## {table.title}" in markdown
        assert all(len(row) == len(table.header) for row in table.rows)
    for aim in report.aims(seen):
        assert aim.what in markdown
        assert aim.what.replace("`", "") in text


def test_the_page_in_docs_is_what_the_stored_results_say() -> None:
    stored = json.loads((ROOT / "bench" / "results.json").read_text())
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text()
    assert page == report.as_markdown(stored), "write it again with: python bench/run.py --page"


def test_every_package_of_the_peer_is_pinned() -> None:
    lines = (ROOT / "bench" / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in pins)
    wanted = {"langgraph-checkpoint-sqlite", *(package for _, package in loop_report.FRAMEWORKS.values())}
    assert wanted <= {line.partition("==")[0] for line in pins}


@pytest.mark.parametrize("stream", [True, False])
def test_the_model_calls_its_tool_in_all_steps_but_the_last(stream: bool) -> None:
    command = [sys.executable, str(ROOT / "bench" / "model_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        address = server.stdout.readline().decode().strip().removeprefix("http://").removesuffix("/v1")
        connection = HTTPConnection(address, timeout=10)
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
        numbers = []
        while "tool_calls" in (said := asked(connection, messages, stream)):
            call = said["tool_calls"][0]
            numbers.append(json.loads(call["function"]["arguments"])["number"])
            messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": "found"}]
        connection.close()
        server.stdin.close()
    assert numbers == [1, 2, 3, 4]
    assert said["content"].strip() == "All numbers were looked up."


def asked(connection: HTTPConnection, messages: list[dict[str, Any]], stream: bool) -> dict[str, Any]:
    """What the model of the bench says, put together again when it came in pieces."""
    body = {"model": "lookup-5", "messages": messages, "stream": stream}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    data = connection.getresponse().read().decode()
    if not stream:
        message: dict[str, Any] = json.loads(data)["choices"][0]["message"]
        return message
    events = [line.removeprefix("data: ") for line in data.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    pieces = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    if not pieces:
        return {"role": "assistant", "content": "".join(delta.get("content") or "" for delta in deltas)}
    function = {"name": "lookup", "arguments": "".join(piece["function"]["arguments"] for piece in pieces)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": pieces[0]["id"], "function": function}]}


def test_cpu_time_holds_what_living_children_used() -> None:
    workload = load("loop_workload")
    before = workload.cpu_ms()
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = workload.cpu_ms() - before
        assert workload.peak_mb() > 0
    assert living >= 250
