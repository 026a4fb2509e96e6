"""Turns the samples of a run into medians, ratios and aims, and those into the terminal's and the docs' tables.

    results["cases"][case][side] = [sample, ...]      one sample per repetition, in the order they were taken

Pure: reads nothing, measures nothing, so that the page in docs can be written again from the stored results. The tool
loop is measured by itself and has results of its own; without them its tables and aims are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias

import loop_report

Sample: TypeAlias = Mapping[str, Any]
Results: TypeAlias = Mapping[str, Any]

SIZES: Final = (20, 100, 300)
OURS: Final = "atlas"
PEER: Final = "langgraph"
SMALL_PEER: Final = "langgraph_counted"
HOW: Final = (
    "Every number is the median of its repetitions, with the lowest and the highest behind it. Every measurement is a "
    "fresh process; the kernel's account of its CPU time is used, in which threads, workers and exit are contained. "
    "Atlas and LangGraph take turns, so what disturbs the machine disturbs both: read the ratios, which say how many "
    "times dearer LangGraph is. Both write to SQLite with WAL and `synchronous=FULL`; LangGraph runs with "
    '`durability="sync"`.'
)


class Figure(NamedTuple):
    """A median and the range of the repetitions behind it."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        """As tables show it."""
        return f"{number(self.median, digits)} ({number(self.low, digits)}-{number(self.high, digits)})"


class Table(NamedTuple):
    """A table with what a reader must know to read it."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Aim(NamedTuple):
    """What was set out to be reached, what was measured, and whether the one reaches the other."""

    what: str
    target: str
    measured: str
    is_met: bool


# Arithmetic


def figure(values: Iterable[float]) -> Figure:
    """The median of the values and their range."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no samples")
    return Figure(median(ordered), ordered[0], ordered[-1])


def ratio(peer: Sequence[float], ours: Sequence[float]) -> Figure:
    """How many times dearer the peer is: ratio of the medians, and the range over pairs measured one after the other."""
    pairs = [one / other for one, other in zip(peer, ours, strict=True)]
    return Figure(median(peer) / median(ours), min(pairs), max(pairs))


def step_cost(sample: Sample, steps: int, clock: int = 0) -> float:
    """Milliseconds per step: a run with steps minus an empty run right before it in the same process.

    A sample has three marks: before the empty run, between the two, after the full one. `clock` 0 is CPU time in
    milliseconds, 1 is the wall clock in seconds.
    """
    before, between, after = (mark[clock] for mark in sample["marks"])
    return float((after - between) - (between - before)) / steps * (1 if clock == 0 else 1000)


def growth(bytes_by_steps: Mapping[int, float]) -> float:
    """How a step's bytes grow: bytes per step over the last stretch, divided by those over the first; 1 is linear."""
    (a, first), (b, middle), (c, last) = sorted(bytes_by_steps.items())
    return ((last - middle) / (c - b)) / ((middle - first) / (b - a))


def values(results: Results, case: str, side: str, read: Callable[[Sample], float]) -> list[float]:
    """One number per repetition."""
    return [read(sample) for sample in results["cases"][case][side]]


def cpu_per(count: int) -> Callable[[Sample], float]:
    """Reads CPU time of all processes, per step or per run."""
    return lambda sample: float(sample["cpu_ms"]) / count


def per_step(steps: int, clock: int = 0) -> Callable[[Sample], float]:
    """Reads the cost of a step."""
    return lambda sample: step_cost(sample, steps, clock)


def field(name: str) -> Callable[[Sample], float]:
    """Reads one number."""
    return lambda sample: float(sample[name])


# Tables


def tables(results: Results) -> list[Table]:
    """Everything that was measured."""
    return [
        step_table(results),
        wall_table(results),
        large_table(results),
        bytes_table(results),
        crowd_table(results),
        load_table(results),
        start_table(results),
        worker_table(results),
        *loop_tables(results),
        *gate_tables(results),
    ]


def step_table(results: Results) -> Table:
    """The durable step, with the peer in its two shapes."""
    rows = []
    for steps in SIZES:
        ours = values(results, f"steps-{steps}", OURS, per_step(steps))
        peer = values(results, f"steps-{steps}", PEER, per_step(steps))
        small = values(results, f"steps-{steps}", SMALL_PEER, per_step(steps))
        whole = values(results, f"once-{steps}", OURS, cpu_per(steps))
        whole_peer = values(results, f"once-{steps}", PEER, cpu_per(steps))
        rows.append(
            (
                *(str(steps), figure(ours).text(), figure(peer).text(), ratio(peer, ours).text(1)),
                *(figure(small).text(), ratio(small, ours).text(1)),
                *(figure(whole).text(), figure(whole_peer).text(), ratio(whole_peer, whole).text(1)),
            )
        )
    note = (
        "A step alone is a run with steps minus an empty run in the same warm process. The whole process is everything "
        "from its start to its end, imports included, divided by the steps. LangGraph keeps every result in its state, "
        "as Atlas keeps every result in its ledger; `newest only` is its smallest state, a counter and the newest result."
    )
    header = (
        *("steps", "Atlas", "LangGraph", "ratio", "LangGraph, newest only", "ratio"),
        *("Atlas, whole process", "LangGraph, whole process", "ratio"),
    )
    return Table("Durable step, CPU ms", note, header, rows)


def wall_table(results: Results) -> Table:
    """What a step takes by the clock on the wall."""
    rows = []
    for steps in SIZES:
        ours = values(results, f"steps-{steps}", OURS, per_step(steps, 1))
        peer = values(results, f"steps-{steps}", PEER, per_step(steps, 1))
        rows.append((str(steps), figure(ours).text(), figure(peer).text(), ratio(peer, ours).text(1)))
    note = "The same runs. Atlas makes the intent durable before the step and the result before the next step begins."
    return Table("Durable step, wall ms", note, ("steps", "Atlas", "LangGraph", "ratio"), rows)


def large_table(results: Results) -> Table:
    """The same with results of one kilobyte: what the size of the history does to a step."""
    rows = []
    for steps in SIZES:
        case = f"large-{steps}"
        ours, peer = (values(results, case, side, per_step(steps)) for side in (OURS, PEER))
        stored, stored_peer = (values(results, case, side, field("bytes")) for side in (OURS, PEER))
        rows.append(
            (
                *(str(steps), figure(ours).text(), figure(peer).text(), ratio(peer, ours).text(1)),
                *(kilobytes(stored), kilobytes(stored_peer), ratio(stored_peer, stored).text(1)),
            )
        )
    header = ("steps", "Atlas CPU ms", "LangGraph CPU ms", "ratio", "Atlas KB", "LangGraph KB", "ratio")
    note = (
        "Every step returns 1,000 characters more. Both sides keep all results. The database holds two empty runs too."
    )
    return Table("Durable step with a result of 1 KB", note, header, rows)


def bytes_table(results: Results) -> Table:
    """The database after one run."""
    rows = []
    for steps in (0, *SIZES):
        case = f"once-{steps}"
        ours, peer, small = (values(results, case, side, field("bytes")) for side in (OURS, PEER, SMALL_PEER))
        rows.append((str(steps), kilobytes(ours), kilobytes(peer), ratio(peer, ours).text(1), kilobytes(small)))
    grown = [growth(stored_by_steps(results, side)) for side in (OURS, PEER, SMALL_PEER)]
    rows.append(("growth", number(grown[0]), number(grown[1]), "", number(grown[2])))
    note = (
        "Size of all files after one run, closed. Growth is bytes per step from 100 to 300 steps, divided by those from "
        "20 to 100: 1 is linear."
    )
    return Table("Database KB", note, ("steps", "Atlas", "LangGraph", "ratio", "LangGraph, newest only"), rows)


def crowd_table(results: Results) -> Table:
    """Many runs at once."""
    runs = int(results["crowd_runs"])
    rows = []
    for name, read, digits in (
        ("CPU ms per run", cpu_per(runs), 2),
        ("peak memory MB", field("peak_mb"), 0),
        ("wall s, all runs", lambda sample: float(sample["wall_ms"]) / 1000, 1),
    ):
        ours, peer = (values(results, "crowd", side, read) for side in (OURS, PEER))
        rows.append((name, figure(ours).text(digits), figure(peer).text(digits), ratio(peer, ours).text(1)))
    note = "Whole processes, imports included."
    return Table(f"{runs:,} concurrent runs of 5 steps in one process", note, ("", "Atlas", "LangGraph", "ratio"), rows)


def load_table(results: Results) -> Table:
    """A new process reads the state of a run that is in the database."""
    rows = []
    for name, key in (("wall ms", "load_ms"), ("CPU ms", "load_cpu_ms")):
        ours, peer = (values(results, "load", side, field(key)) for side in (OURS, PEER))
        whole = figure(values(results, "load", OURS, field(key.replace("load", "vault"))))
        rows.append((name, figure(ours).text(), figure(peer).text(), ratio(peer, ours).text(1), whole.text()))
    header = ("", "Atlas", "LangGraph", "ratio", "Atlas, whole vault")
    note = (
        "After imports, from opening the database to the state in memory; the file is in the page cache on both sides. "
        "Atlas folds every event of the run, LangGraph reads its newest checkpoint. The whole vault is more than the "
        "ledger: its configuration, the worker pool and the driver are made ready too."
    )
    return Table("Cold load of a run of 300 steps", note, header, rows)


def start_table(results: Results) -> Table:
    """What a process costs before it does anything."""
    names = {
        "python": "python, nothing imported",
        "import_atlas": "`import atlas`",
        "import_api": "`from atlas import Atlas, AgentBase`",
        "help": "`atlas --help`",
        "import_langgraph": "`import langgraph.graph, langgraph.checkpoint.sqlite`",
    }
    bare = median(values(results, "start", "python", field("cpu_ms")))
    rows = []
    for side, name in names.items():
        cpu = figure(values(results, "start", side, field("cpu_ms")))
        rows.append((name, cpu.text(0), number(cpu.median - bare, 0)))
    header = ("", "CPU ms", "above bare python")
    return Table("Start, CPU ms of a whole process", "Bytecode is compiled.", header, rows)


def worker_table(results: Results) -> Table:
    """The step of an agent whose code runs in a worker process."""
    steps = int(results["worker_steps"])
    cost = figure(worker_costs(results))
    start = figure(values(results, "worker", "empty", field("cpu_ms")))
    note = (
        "CPU of driver and worker together: a process with a run of "
        f"{steps} steps minus a process with an empty run. LangGraph has no such step."
    )
    rows = [("CPU ms per step", cost.text()), ("whole process with an empty run, CPU ms", start.text(0))]
    return Table("Step in a worker process", note, ("", "Atlas"), rows)


def loop_tables(results: Results) -> list[Table]:
    """The tool loop, when it was measured."""
    loop = results.get("loop")
    return [] if loop is None else [loop_table(loop), loop_crowd_table(loop)]


def gate_tables(results: Results) -> list[Table]:
    """What rules and budgets add to an effect, when it was measured."""
    gate = results.get("gate")
    if gate is None:
        return []
    note = (
        "CPU time of one effect in milliseconds, the best of several rounds in one process. Rules: 1,000, two of which "
        "match. Budget: an intent with a reservation under nine caps and a receipt with its settlement on SQLite, less the "
        "same two commits without."
    )
    rows = [(name, number(float(gate[key]), 3)) for name, key in _GATE.items()]
    return [Table("What the gate adds to an effect", note, ("part", "ms of CPU"), rows)]


_GATE: Final = {"rules": "policy_ms", "budget": "budget_ms", "both": "gate_ms"}


def loop_table(loop: Results) -> Table:
    """A step of the loop on every side."""
    cpu, wall, whole = loop_report.step_cpu(loop), loop_report.step_wall(loop), loop_report.whole_cpu(loop)
    rows = []
    for side, name in loop_report.NAMES.items():
        row = [name]
        for wire in loop_report.WIRES:
            taken = loop_report.seen(loop, wire, side, cpu)
            times = ratio(taken, loop_report.seen(loop, wire, OURS, cpu)).text(1)
            is_best = side == loop_report.best_peer(loop, wire, cpu)[0]
            row += [figure(taken).text(), f"{times} (best peer)" if is_best else times]
        row.append(figure(loop_report.seen(loop, "streamed", side, wall)).text())
        row.append(figure(loop_report.seen(loop, "once", side, whole)).text() if side in loop["cases"]["once"] else "")
        rows.append(tuple(row))
    note = (
        f"{place(loop)} One local server plays the model: {loop['steps'] - 1} tool calls, then the answer; its process "
        f"counts for nobody. Every other process counts. {loop['runs']} runs one after the other in a warm process, their "
        "submitting and ending included, divided by all steps; once with every reply streamed, once with every reply in "
        "one piece, and all sides alike. Atlas keeps every step in SQLite with `synchronous=FULL`; the peers keep nothing, "
        "and are used through their ordinary API with telemetry and tracing off. The ratio says how many times as dear as "
        "Atlas a side is. The whole process is one run with replies in one piece, from the start of the process to its "
        "end, imports included."
    )
    header = (
        "",
        *("CPU ms per step, streamed", "ratio", "CPU ms per step, in one piece", "ratio"),
        *("wall ms per step, streamed", "whole process, CPU ms per step"),
    )
    return Table(f"Tool loop of {loop['steps']} steps", note, header, rows)


def loop_crowd_table(loop: Results) -> Table:
    """Many prompt runs at once."""
    runs, cpu = int(loop["crowd_runs"]), loop_report.run_cpu(loop)
    ours = loop_report.seen(loop, "crowd", OURS, cpu)
    rows = []
    for side in (OURS, *loop_report.FRAMEWORKS):
        taken = loop_report.seen(loop, "crowd", side, cpu)
        peak = figure(loop_report.seen(loop, "crowd", side, field("peak_all_mb")))
        wall = figure(loop_report.seen(loop, "crowd", side, lambda sample: float(sample["runs_wall_ms"]) / 1000))
        rows.append(
            (
                loop_report.NAMES[side],
                *(str(loop_report.failed(loop, side)), figure(taken).text(), ratio(taken, ours).text(1)),
                *(peak.text(0), wall.text(1)),
            )
        )
    note = (
        "All runs are begun at once on one event loop, with the limits that each framework comes with; of Atlas "
        "`max_concurrent_agents` and the provider's `max_in_flight` are raised. A failed run did not come to its answer, "
        "and what it did until then is in its side's CPU time. Memory is the peak of all processes together."
    )
    header = ("", "failed", "CPU ms per run", "ratio", "peak memory MB", "wall s, all runs")
    return Table(f"{runs:,} concurrent prompt runs of {loop['crowd_steps']} steps", note, header, rows)


# Aims


def aims(results: Results) -> list[Aim]:
    """What Atlas set out to reach; a miss is shown as it is."""
    return [*ledger_aims(results), *loop_aims(results), *gate_aims(results)]


def gate_aims(results: Results) -> list[Aim]:
    """What rules and budgets may add to an effect: an amount, not a ratio, because no peer has them."""
    gate = results.get("gate")
    if gate is None:
        return []
    cost, limit = float(gate["gate_ms"]), float(gate["limit_ms"])
    what = "CPU that policy and budget add to an effect with 1,000 rules"
    return [Aim(what, f"at most {limit:g} ms", f"{number(cost, 3)} ms", cost <= limit)]


def loop_aims(results: Results) -> list[Aim]:
    """What the tool loop is to reach."""
    loop = results.get("loop")
    if loop is None:
        return []
    cpu = loop_report.step_cpu(loop)
    found = []
    for wire, name in loop_report.WIRES.items():
        side, peer = loop_report.best_peer(loop, wire, cpu)
        times = ratio(peer, loop_report.seen(loop, wire, OURS, cpu)).median
        what = f"{loop_report.FRAMEWORKS[side][0]}, the best peer : Atlas, step of a tool loop, {name}"
        found.append(Aim(what, "at least 4", number(times, 1), times >= 4))
        found.append(Aim(f"{what}, further aim", "at least 8", number(times, 1), times >= 8))
    lost = loop_report.failed(loop, OURS)
    runs = int(loop["crowd_runs"])
    return [*found, Aim(f"{runs:,} concurrent prompt runs, failed", "none", str(lost), lost == 0)]


def ledger_aims(results: Results) -> list[Aim]:
    """What the durable run by itself is to reach."""
    ours = {steps: values(results, f"steps-{steps}", OURS, per_step(steps)) for steps in SIZES}
    peer = values(results, "steps-20", PEER, per_step(20))
    whole, whole_peer = (values(results, "once-20", side, cpu_per(20)) for side in (OURS, PEER))
    dearest = max(median(each) for each in ours.values())
    flat = median(ours[300]) / median(ours[20])
    grown = growth(stored_by_steps(results, OURS))
    runs = int(results["crowd_runs"])
    crowd = median(values(results, "crowd", OURS, cpu_per(runs)))
    peak = median(values(results, "crowd", OURS, field("peak_mb")))
    load = median(values(results, "load", OURS, field("load_ms")))
    imported = median(values(results, "start", "import_atlas", field("cpu_ms")))
    helped = median(values(results, "start", "help", field("cpu_ms")))
    alone, process = ratio(peer, ours[20]).median, ratio(whole_peer, whole).median
    return [
        Aim("durable step, dearest of 20 / 100 / 300", "at most 1 ms", f"{number(dearest)} ms", dearest <= 1),
        Aim("durable step, 300 steps : 20 steps", "at most 1.1", number(flat), flat <= 1.1),
        Aim("LangGraph : Atlas at 20 steps, step alone", "at least 10", number(alone, 1), alone >= 10),
        Aim("LangGraph : Atlas at 20 steps, whole process", "at least 10", number(process, 1), process >= 10),
        Aim("database growth", "linear (at most 1.1)", number(grown), grown <= 1.1),
        Aim(f"{runs:,} concurrent runs", "at most 5 ms CPU each", f"{number(crowd)} ms", crowd <= 5),
        Aim(f"{runs:,} concurrent runs, memory", "at most 150 MB", f"{number(peak, 0)} MB", peak <= 150),
        Aim("cold load of a run of 300 steps", "at most 5 ms", f"{number(load)} ms", load <= 5),
        Aim("`import atlas`, whole process", "at most 60 ms CPU", f"{number(imported, 0)} ms", imported <= 60),
        Aim("`atlas --help`, whole process", "at most 100 ms CPU", f"{number(helped, 0)} ms", helped <= 100),
    ]


def stored_by_steps(results: Results, side: str) -> dict[int, float]:
    """The database's size by the number of steps."""
    return {steps: median(values(results, f"once-{steps}", side, field("bytes"))) for steps in SIZES}


def worker_costs(results: Results) -> list[float]:
    """CPU per step in a worker, of processes measured one after the other."""
    steps = int(results["worker_steps"])
    full, empty = (values(results, "worker", side, field("cpu_ms")) for side in ("full", "empty"))
    return [(one - other) / steps for one, other in zip(full, empty, strict=True)]


# Pages


def as_text(results: Results) -> str:
    """For the terminal."""
    parts = [f"{place(results)}\n"]
    parts += [f"{table.title}\n{aligned([table.header, *table.rows])}" for table in tables(results)]
    verdicts = [("aim", "target", "measured", ""), *(aim_row(aim) for aim in aims(results))]
    return "\n".join([*parts, f"Aims\n{aligned(verdicts)}"])


def as_markdown(results: Results) -> str:
    """For docs/reference/benchmarks.md."""
    parts = [
        "# Benchmarks\n",
        "Generated by `make bench` from `bench/results.json`; do not edit.\n",
        f"{place(results)}\n",
        f"{HOW}\n",
        "## Aims\n",
        grid(("aim", "target", "measured", ""), [aim_row(aim) for aim in aims(results)]),
    ]
    for table in tables(results):
        parts += [f"## {table.title}\n", f"{table.note}\n", grid(table.header, table.rows)]
    return "\n".join(parts)


def place(results: Results) -> str:
    """Where and with what the numbers were taken."""
    machine, versions = results["machine"], results["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured on {results['day']}: {machine['cores']} cores ({machine['processor']}, {machine['platform']}), "
        f"load {machine['load_1min']} before and {machine['load_after']} after, {results['repetitions']} repetitions; "
        f"{named}."
    )


def aim_row(aim: Aim) -> tuple[str, str, str, str]:
    """One line of the aims."""
    return (aim.what, aim.target, aim.measured, "met" if aim.is_met else "missed")


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns for a terminal."""
    rows = [[cell.replace("`", "") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def kilobytes(stored: Sequence[float]) -> str:
    """A database's size; it does not vary enough to show a range."""
    return f"{median(stored) / 1024:,.0f}"


def number(value: float, digits: int = 2) -> str:
    """A number as tables show it."""
    return f"{value:,.{digits}f}"
