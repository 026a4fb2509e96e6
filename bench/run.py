"""Measures Atlas against LangGraph with its SQLite checkpointer, and against four frameworks in a tool loop.

Usage: run.py [--quick] [--only tool_loop|gate] [--json [PATH]] [--page]

A full run stores bench/results.json and writes docs/reference/benchmarks.md from it. `--json` stores nothing there: the
results go to PATH, or to stdout instead of the tables. `--quick` repeats less and stores nothing by itself. `--only`
measures one part and takes the rest from the stored results. `--page` measures nothing and writes the page again from
the stored results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import loop_run
from gate import measure_gate
from measure import adopt_orphans, machine, measure
from peer import REPOSITORY, pinned, python_of_peer
from report import OURS, PEER, SIZES, SMALL_PEER, aims, as_markdown, as_text
from workload import Options

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PAGE = REPOSITORY / "docs" / "reference" / "benchmarks.md"
# Beside the repository's own files, because a temporary folder may be memory, where fsync is free.
SCRATCH = HERE / ".cache"
LARGE = 1000


class Plan(NamedTuple):
    """How often, and how much."""

    repetitions: int
    crowds: int
    starts: int
    runs: int
    worker_steps: int = 300


FULL = Plan(repetitions=7, crowds=3, starts=21, runs=1000)
QUICK = Plan(repetitions=3, crowds=1, starts=7, runs=1000)


class Command(NamedTuple):
    """What one side of a case runs: a side's script with options, or a plain command."""

    side: str
    program: tuple[str, ...]
    options: Options | None = None


class Case(NamedTuple):
    """Sides that take turns."""

    name: str
    sides: tuple[Command, ...]
    repetitions: int


class Bench:
    """One run of the benchmark."""

    def __init__(self, plan: Plan, peer: Path) -> None:
        self.plan = plan
        self.ours = Path(sys.executable)
        self.peer = peer

    def cases(self) -> Iterator[Case]:
        """Everything that is measured."""
        plan = self.plan
        starts = (
            Command("python", (str(self.ours), "-c", "pass")),
            Command("import_atlas", (str(self.ours), "-c", "import atlas")),
            Command("import_api", (str(self.ours), "-c", "from atlas import Atlas, AgentBase")),
            Command("help", (str(self.ours.with_name("atlas")), "--help")),
            Command("import_langgraph", (str(self.peer), "-c", "import langgraph.graph, langgraph.checkpoint.sqlite")),
        )
        yield Case("start", starts, plan.starts)
        for steps in SIZES:
            yield self.case(f"steps-{steps}", Options("steps", steps=steps), has_small=True)
        for steps in (0, *SIZES):
            yield self.case(f"once-{steps}", Options("once", steps=steps), has_small=True)
        for steps in SIZES:
            yield self.case(f"large-{steps}", Options("steps", steps=steps, size=LARGE))
        yield self.case("load", Options("load", steps=SIZES[-1]))
        worker = Options("once", is_in_worker=True)
        workers = (
            Command("full", self.script(OURS), worker._replace(steps=plan.worker_steps)),
            Command("empty", self.script(OURS), worker),
        )
        yield Case("worker", workers, plan.repetitions)
        crowd = self.case("crowd", Options("crowd", steps=5, runs=plan.runs))
        yield crowd._replace(repetitions=plan.crowds)

    def case(self, name: str, options: Options, *, has_small: bool = False) -> Case:
        """The same on both sides, and with the peer's smallest state."""
        sides = [Command(side, self.script(side), options) for side in (OURS, PEER)]
        if has_small:
            sides.append(Command(SMALL_PEER, self.script(PEER), options._replace(is_counted=True)))
        return Case(name, tuple(sides), self.plan.repetitions)

    def script(self, side: str) -> tuple[str, str]:
        """The program of one side."""
        return (str(self.ours if side == OURS else self.peer), str(HERE / f"{side}_side.py"))

    def measure(self) -> dict[str, Any]:
        """Takes turns: every repetition measures every side of a case once, one after the other."""
        measured: dict[str, Any] = {}
        for case in self.cases():
            say(f"  {case.name}: {case.repetitions} x {', '.join(one.side for one in case.sides)}")
            samples: dict[str, list[dict[str, Any]]] = {command.side: [] for command in case.sides}
            if case.name == "start":
                for command in case.sides:
                    once(command)  # not counted: compiles bytecode and fills the page cache
            for _ in range(case.repetitions):
                for command in case.sides:
                    samples[command.side].append(once(command))
            measured[case.name] = samples
        return measured


def once(command: Command) -> dict[str, Any]:
    """One measurement in a folder of its own."""
    with scratch() as folder:
        if command.options is None:
            return measure(command.program, folder).as_dict()
        options = command.options._replace(folder=str(folder))
        if options.case == "load":  # there must be a run to load; another process makes it, which is not measured
            measure((*command.program, asked(options._replace(case="once"))), folder)
        return measure((*command.program, asked(options)), folder).as_dict()


def asked(options: Options) -> str:
    """The options as a side reads them."""
    return json.dumps(options._asdict())


@contextmanager
def scratch() -> Iterator[Path]:
    """A copy of the bench vault on the disk of the repository, removed afterwards."""
    folder = SCRATCH / "vault"
    shutil.rmtree(SCRATCH, ignore_errors=True)
    shutil.copytree(HERE / "vault", folder)
    (folder / "empty").mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)


def measure_loop(is_quick: bool, peer: Path) -> dict[str, Any]:
    """The tool loop by itself."""
    plan = loop_run.QUICK if is_quick else loop_run.FULL
    return loop_run.LoopBench(plan, peer, scratch, say).measure()


def run(is_quick: bool) -> dict[str, Any]:
    """Sets the peer up, measures, and returns everything that was seen."""
    plan = QUICK if is_quick else FULL
    peer = python_of_peer()
    adopt_orphans()
    loop = measure_loop(is_quick, peer)
    before = machine()
    say(f"measuring on {before['cores']} cores, load {before['load_1min']}")
    cases = Bench(plan, peer).measure()
    sample = cases["once-0"]
    if {each["synchronous"] for each in sample[PEER]} != {2}:
        raise SystemExit("the peer does not run with synchronous=FULL; the comparison would be unfair")
    return {
        "format": 1,
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "repetitions": plan.repetitions,
        "crowd_runs": plan.runs,
        "worker_steps": plan.worker_steps,
        "machine": {**before, "load_after": machine()["load_1min"]},
        "versions": {
            "Atlas": version("atlas-agents"),
            "LangGraph": pinned("langgraph"),
            "its SQLite checkpointer": pinned("langgraph-checkpoint-sqlite"),
            "Python": before["python"],
            "SQLite": sample[OURS][0]["sqlite"],
        },
        "loop": loop,
        "gate": measure_gate(),
        "cases": cases,
    }


def run_part(part: str, is_quick: bool) -> dict[str, Any]:
    """The stored results with one part measured anew."""
    stored: dict[str, Any] = json.loads(RESULTS.read_text())
    if part == "gate":
        return {**stored, "gate": measure_gate()}
    peer = python_of_peer()
    adopt_orphans()
    return {**stored, "loop": measure_loop(is_quick, peer)}


def main() -> None:
    """Measures, prints, stores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; stores nothing by itself")
    parser.add_argument("--only", choices=("tool_loop", "gate"), help="measure this part; the rest is as stored")
    parser.add_argument("--json", nargs="?", const="-", metavar="PATH", help="results as JSON, to a file or to stdout")
    parser.add_argument("--page", action="store_true", help="only write the page from the stored results")
    options = parser.parse_args()
    if options.page:
        write_page(json.loads(RESULTS.read_text()))
        return
    results = run_part(options.only, options.quick) if options.only else run(options.quick)
    if options.json == "-":
        print(as_json(results))
        return
    print(as_text(results))
    if options.json:
        Path(options.json).write_text(as_json(results) + "\n")
    elif not options.quick:
        RESULTS.write_text(as_json(results) + "\n")
        write_page(results)
        say(f"stored: {RESULTS.relative_to(REPOSITORY)}, {PAGE.relative_to(REPOSITORY)}")


def as_json(results: dict[str, Any]) -> str:
    """Everything that was seen, one case per line."""
    judged = [aim._asdict() for aim in aims(results)]
    cases = ",\n".join(f" {json.dumps(name)}: {json.dumps(sides)}" for name, sides in results["cases"].items())
    kept = {name: value for name, value in results.items() if name not in ("cases", "aims")}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in kept.items()]
    lines += [f'"aims": {json.dumps(judged)}', f'"cases": {{\n{cases}\n}}']
    return "{\n" + ",\n".join(lines) + "\n}"


def write_page(results: dict[str, Any]) -> None:
    """Writes the page in docs."""
    PAGE.write_text(as_markdown(results))


def say(text: str) -> None:
    """Progress, apart from what is printed as the result."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
