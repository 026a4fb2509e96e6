"""`atlas show`: everything about one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, assert_never

import click
import msgspec

from atlas.cli.command import command
from atlas.cli.failure import DONE
from atlas.cli.item import items_of_tree, question
from atlas.cli.shape import (
    EffectShape,
    EventShape,
    LogShape,
    PrintedShape,
    RunShape,
    effect_duration_us,
    effect_shape,
    event_shape,
    run_shape,
)
from atlas.cli.terminal import Terminal, pass_terminal
from atlas.cli.text import clean, count, duration, local_time, money, one_line, short
from atlas.control.history import bodies
from atlas.control.payload import unpack
from atlas.control.trace import EffectTrace, effects_of, timestamp
from atlas.kernel.budget import usd
from atlas.kernel.context import Built
from atlas.kernel.errors import ErrorRecord
from atlas.kernel.event import Critical, Event, InputFile, Logged, OutputCaptured, RunCreated, RunEnded
from atlas.kernel.hold import Pool
from atlas.kernel.model import Image, Part, Text, Thinking, ToolCall, ToolResult
from atlas.kernel.port import Ledger
from atlas.kernel.run import PARKED, TERMINAL, RunRow

if TYPE_CHECKING:
    from atlas.control.report import RunReport

MAX_LINES = 40
MAX_TEXT = 10_000
NULL = msgspec.Raw(b"null")


class Detail(msgspec.Struct, frozen=True):
    """A run with all that is known about it."""

    run: RunShape
    duration_ms: int
    input: msgspec.Raw
    output: msgspec.Raw
    text: str
    error: ErrorRecord | None
    unresolved: tuple[str, ...]
    effects: tuple[EffectShape, ...]
    printed: tuple[PrintedShape, ...]
    logs: tuple[LogShape, ...]
    files: tuple[InputFile, ...] = ()
    pools: tuple[Pool, ...] = ()
    critical: Critical | None = None
    model: str = ""
    models: tuple[str, ...] = ()
    events: tuple[EventShape, ...] | msgspec.UnsetType = msgspec.UNSET


class Seen(Built, frozen=True):
    """A request with the model that answered it; "" while none has."""

    answered_by: str = ""


@command(
    "show",
    examples="""
    atlas show @last
    atlas show run_0193a1b2c3d47abc --events
    atlas show @last --request 2
    atlas show @last --follow
    """,
)
@click.argument("run")
@click.option("--events", is_flag=True, help="List every event with its number.")
@click.option("--request", type=int, metavar="STEP", help="Show what the model saw at this step, and why.")
@click.option(
    "--follow", is_flag=True, help="Print events as they happen until the run rests; with --json one per line."
)
@pass_terminal
def show(terminal: Terminal, run: str, events: bool, request: int | None, follow: bool) -> int:
    """Show one run: input, output, effects, printed text.

    RUN is an id, the beginning of one, or @last for the newest. The state 'lost' means that the process that had the run
    is silent and its lease has lapsed; the next driver continues it.
    """
    if (request is not None) + events + follow > 1:
        raise click.UsageError("Give one of --events, --request and --follow.")
    if request is not None:
        return terminal.run(_show_request(terminal, run, request))
    return terminal.run(_follow(terminal, run) if follow else _show(terminal, run, events))


async def _show_request(terminal: Terminal, word: str, step: int) -> int:
    async with terminal.open() as host:
        row = await host.find_run(word)
        built = await host.request(row.run_id, step)
        effects = effects_of(bodies(await host.ledger.events(row.run_id)))
    # A tier says little: what the model that answered cannot take was not put before it, and its label says so.
    answered_by = next((effect.model for effect in effects if effect.effect == f"model:{step}"), "")
    if terminal.is_json:
        terminal.emit(Seen(**msgspec.structs.asdict(built), answered_by=answered_by))
        return DONE
    terminal.say(f"step {step} of {short(row.run_id)}: {built.tokens} tokens by estimate, to {built.request.model}")
    if answered_by:
        terminal.say(f"answered by {clean(answered_by)}")
    for choice in built.choices:
        terminal.say(f"  {choice.tokens:>6}  {choice.grade:<8}  {choice.block}")
    for tool in built.request.tools:
        terminal.say(f"\n--- tool {tool.name}\n{clean(tool.description)}\n{clean(bytes(tool.schema).decode())}")
    for text in built.request.system:
        terminal.say(f"\n--- system\n{clean(text)}")
    for message in built.request.messages:
        terminal.say(f"\n--- {message.role}")
        for part in message.parts:
            terminal.say(clean(_part_text(part)))
    return DONE


def _part_text(part: Part) -> str:
    match part:
        case ToolCall():
            return f"call {part.name}({part.args})"
        case Image():
            return f"[{part.media_type} {part.name} {part.blob}]"
        case Thinking():
            return f"(thinking) {part.text}"
        case Text() | ToolResult():
            return part.text
    assert_never(part)


async def _show(terminal: Terminal, word: str, with_events: bool) -> int:
    async with terminal.open() as host:
        row = await host.find_run(word)
        report = await host.report(row.run_id)
        events = await host.ledger.events(row.run_id)
        detail = await _detail(host.ledger, row, report, events, host.clock.now_us())
        effects = effects_of(bodies(events))
        items = await items_of_tree(host, row.run_id) if row.state in PARKED else []
    if terminal.is_json:
        shown = tuple(event_shape(event) for event in events) if with_events else msgspec.UNSET
        terminal.emit(msgspec.structs.replace(detail, events=shown))
        return 0
    _print_head(terminal, row, detail)
    _print_value(terminal, "input", detail.input)
    if report.state == "succeeded":
        _print_value(terminal, "output", detail.output)
    if detail.error is not None:
        _print_error(terminal, detail.error)
    if effects:
        _print_effects(terminal, effects)
    _print_text(terminal, "printed", "".join(part.text for part in detail.printed))
    _print_text(terminal, "logged", "\n".join(_log_line(log) for log in detail.logs))
    if items:
        _section(terminal, "waits for")
    for item in items:
        for line in question(terminal, item):
            terminal.say(f"  {line}")
    if with_events:
        _section(terminal, "events")
        began_us = events[0].time_us
        for event in events:
            terminal.say(_event_line(terminal, event, began_us))
    return 0


async def _follow(terminal: Terminal, word: str) -> int:
    from atlas.cli.drive import summary

    async with terminal.open() as host:
        row = await host.find_run(word)
        seen = 0
        # Following ends wherever the run was ever parked; it goes on until the run rests now.
        while not _is_all(row, seen):
            async for event, _ in host.follow(row.run_id, seen):
                seen = event.seq
                if terminal.is_json:
                    terminal.emit_line(event_shape(event))
                else:
                    terminal.say(_event_line(terminal, event, row.created_us))
            row = await host.find_run(row.run_id)
        if not terminal.is_json:
            terminal.note(summary(terminal, await host.report(row.run_id)))
    return 0


def _is_all(row: RunRow, seen: int) -> bool:
    return seen >= row.head_seq and (row.state in TERMINAL or (row.state in PARKED and not row.owner))


async def _detail(ledger: Ledger, row: RunRow, report: RunReport, events: list[Event], now_us: int) -> Detail:
    given = NULL
    files: tuple[InputFile, ...] = ()
    pools: tuple[Pool, ...] = ()
    critical: Critical | None = None
    model = ""
    unresolved: tuple[str, ...] = ()
    printed: list[PrintedShape] = []
    logs: list[LogShape] = []
    for event, body in bodies(events):
        match body:
            case RunCreated():
                given, files = await unpack(ledger, body.input), body.files
                pools, critical, model = body.pools, body.critical, body.model
            case OutputCaptured():
                printed.append(PrintedShape(body.stream, body.text))
            case Logged():
                fraction = body.fraction if body.fraction >= 0 else None
                logs.append(LogShape(timestamp(event.time_us), body.level, body.message, fraction))
            case RunEnded():
                unresolved = body.unresolved
            case _:
                pass
    shapes = []
    for effect in effects_of(bodies(events)):
        shapes.append(effect_shape(effect, await unpack(ledger, effect.args), await unpack(ledger, effect.result)))
    return Detail(
        run=run_shape(row, now_us),
        duration_ms=report.duration_ms,
        input=given,
        output=report.output,
        text=report.text,
        error=report.error,
        unresolved=unresolved,
        effects=tuple(shapes),
        printed=tuple(printed),
        logs=tuple(logs),
        files=files,
        pools=pools,
        critical=critical,
        model=model,
        models=report.models,
    )


def _log_line(log: LogShape) -> str:
    return f"{log.level}: {log.message}" if log.fraction is None else f"{log.fraction:.0%} {log.message}"


def _print_head(terminal: Terminal, row: RunRow, detail: Detail) -> None:
    run = detail.run
    took = f"{'took' if run.ended_at else 'so far'} {duration(detail.duration_ms * 1000)}"
    used = (
        money(run.cost_usd),
        count(run.tokens.tokens_in + run.tokens.tokens_out, "token"),
        count(run.steps, "step"),
        count(run.events, "event"),
    )
    facts = [
        ("run", run.run_id),
        ("agent", f"{run.agent} {run.version}"),
        ("state", terminal.state(run.state)),
        ("session", f"{run.session_id}" + (f", turn {run.turn}" if run.turn else "")),
        ("parent", run.parent_run_id),
        ("model", clean(detail.model)),
        ("answered", clean(", ".join(detail.models))),
        ("key", clean(run.key)),
        *(("file", f"{clean(one.name)} ({one.media_type}, {one.size} bytes) {one.blob}") for one in detail.files),
        ("began", f"{local_time(row.created_us)}, {took}"),
        ("used", ", ".join(used)),
        ("budget", _budget(run.run_id, detail.pools)),
        ("critical", _critical(detail.critical)),
        ("in doubt", ", ".join(detail.unresolved)),
    ]
    for name, value in facts:
        if value:
            terminal.say(f"{terminal.style(f'{name:9}', dim=True)}{value}")


def _budget(run_id: str, pools: tuple[Pool, ...]) -> str:
    """What the run may use together with the tree it is in, its own part first."""
    lines: list[str] = []
    for pool in reversed(pools):
        parts = [usd(pool.micro_usd)] if pool.micro_usd is not None else []
        parts += [f"{pool.tokens:,} tokens"] if pool.tokens is not None else []
        whose = "with all it spawns" if pool.run_id == run_id else f"of {pool.run_id} and all below it"
        lines.append(f"{', '.join(parts)} {whose}")
    return "; ".join(lines)


def _critical(critical: Critical | None) -> str:
    if critical is None:
        return ""
    return f"every cap on money raised by {usd(critical.micro_usd)}, by {clean(critical.by)}: {clean(critical.why)}"


def _print_value(terminal: Terminal, title: str, value: msgspec.Raw) -> None:
    from atlas.cli.drive import output_text

    _print_text(terminal, title, output_text(value))


def _print_text(terminal: Terminal, title: str, text: str) -> None:
    """A section of lines; a long one is cut, and says how to get all of it."""
    if not text.strip():
        return
    _section(terminal, title)
    whole = clean(text).rstrip("\n")
    shown = "\n".join(whole.split("\n", MAX_LINES)[:MAX_LINES])[:MAX_TEXT]
    for line in shown.split("\n"):
        terminal.say(f"  {line}")
    if rest := whole[len(shown) :]:
        more = count(rest.count("\n"), "more line") if "\n" in rest else count(len(rest), "more character")
        terminal.say(f"  ... {more}; --json has all of it")


def _print_error(terminal: Terminal, error: ErrorRecord) -> None:
    from atlas.cli.failure import record_lines

    _section(terminal, "error")
    for line in record_lines(error):
        terminal.say(f"  {line}")
    if error.detail:
        for line in clean(error.detail).rstrip("\n").split("\n"):
            terminal.say(f"    {line}")


def _print_effects(terminal: Terminal, effects: list[EffectTrace]) -> None:
    from rich.table import Table
    from rich.text import Text

    from atlas.cli.text import STATE_COLORS

    _section(terminal, "effects")
    console = terminal.console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    # The only column that may be cut: the others take 62 columns at most.
    table.add_column("  EFFECT", no_wrap=True, overflow="ellipsis", max_width=max(12, console.width - 62))
    table.add_column("CLASS", no_wrap=True)
    table.add_column("INTENT", justify="right", no_wrap=True, min_width=6)
    table.add_column("RECEIPT", justify="right", no_wrap=True, min_width=7)
    table.add_column("OUTCOME", no_wrap=True, min_width=9)
    table.add_column("TIME", justify="right", no_wrap=True, min_width=6)
    for effect in effects:
        took_us = effect_duration_us(effect)
        what = f"{effect.name} {short(effect.child_run_id)}" if effect.child_run_id else effect.name
        table.add_row(
            f"  {one_line(what, 60)}",
            effect.effect_class if effect.kind in ("step", "tool") else effect.kind,
            f"#{effect.intended_seq}" if effect.intended_seq else "-",
            f"#{effect.settled_seq}" if effect.settled_seq else "-",
            Text(effect.status, style=STATE_COLORS.get(effect.status, "")),
            duration(took_us) if took_us else "-",
        )
    terminal.table(table, console)
    for effect in effects:
        for line in _decided(effect):
            terminal.say(f"  {one_line(f'{effect.name}: {line}', 200)}")


def _decided(effect: EffectTrace) -> Iterator[str]:
    """Who else had a word in it: a second opinion, what answered in a person's place, changed arguments."""
    if effect.opinion:
        yield f"second opinion: {effect.opinion}"
    if effect.answered_by.startswith(("mandate:", "grant:")):
        yield f"under {effect.answered_by}"
    if effect.is_edited:
        yield f"arguments were changed to {bytes(effect.args.json).decode('utf-8', 'replace')}"


def _event_line(terminal: Terminal, event: Event, began_us: int) -> str:
    from atlas.cli.describe import describe

    when = f"+{duration(max(0, event.time_us - began_us))}"
    text = "(erased)"
    for _, body in bodies([event]):
        text = describe(body)
    room = terminal.width - 35 if terminal.is_screen else len(text)
    return f"{event.seq:5}  {when:>8}  {terminal.style(f'{event.kind:16}', bold=True)}  {one_line(text, room)}"


def _section(terminal: Terminal, title: str) -> None:
    terminal.say()
    terminal.say(terminal.style(title, bold=True))
