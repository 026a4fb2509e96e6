"""`atlas costs`: what was spent, by day, agent, model or run, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from atlas.cli.command import command, not_empty
from atlas.cli.terminal import Terminal, pass_terminal

if TYPE_CHECKING:
    from atlas.control.costs import By, CostRow, Costs, Standing

_COLUMNS = (
    "name",
    "agent",
    "state",
    "cost_usd",
    "estimated_usd",
    "tokens_in",
    "tokens_out",
    "cached_in",
    "saved_usd",
    "steps",
)
_BAR = 24
_LEAST_BAR = 6


@command(
    "costs",
    examples="""
    atlas costs
    atlas costs --by model --since 2026-11-01
    atlas costs @last
    atlas costs --by agent --csv > costs.csv
    """,
)
@click.argument("run", required=False, default="")
@click.option(
    "--by",
    type=click.Choice(["day", "agent", "model", "run"]),
    default="day",
    show_default=True,
    help="What to add up.",
)
@click.option(
    "--since",
    default="30d",
    show_default=True,
    metavar="DAY",
    callback=not_empty,
    help="From this day on: 2026-11-01, or 7d for a week with today.",
)
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, metavar="N", help="Runs to list.")
@click.option("--csv", "is_csv", is_flag=True, help="Print the rows as CSV.")
@pass_terminal
def costs(terminal: Terminal, run: str, by: By, since: str, limit: int, is_csv: bool) -> int:
    """Show what was spent, and what is left under every cap.

    With a RUN: that run and everything it spawned. Days are those of time_zone in atlas.config.yaml, and a call counts
    on the day it was begun. A ~ marks what is in part estimated: the answer that would have told the cost never came, so all
    that was reserved for it is counted.
    """
    if is_csv and terminal.is_json:
        raise click.UsageError("Give --json or --csv, not both.")
    context = click.get_current_context()
    if run and any(
        context.get_parameter_source(name) is not ParameterSource.DEFAULT for name in ("by", "since", "limit")
    ):
        raise click.UsageError("--by, --since and --limit do not go with a RUN.")
    return terminal.run(_tree(terminal, run, is_csv) if run else _costs(terminal, by, since, limit, is_csv))


async def _costs(terminal: Terminal, by: By, since: str, limit: int, is_csv: bool) -> int:
    async with terminal.open() as host:
        found = await host.books.costs(by, since, limit)
    if terminal.is_json:
        terminal.emit(found)
    elif is_csv:
        _csv(terminal, found.rows)
    else:
        print_costs(terminal, found)
    return 0


async def _tree(terminal: Terminal, text: str, is_csv: bool) -> int:
    from atlas.cli.text import clean, short

    async with terminal.open() as host:
        row = await host.find_run(text)
        total, *rows = await host.books.tree(row)
    if terminal.is_json:
        terminal.emit({"total": total, "runs": rows})
    elif is_csv:
        _csv(terminal, rows)
    else:
        base = rows[0].depth
        names = [f"{'  ' * (one.depth - base)}{short(one.name)}  {clean(one.agent)}" for one in rows]
        width, money_width = max(map(len, names)), max(len(_money(one)) for one in (total, *rows))
        for name, one in zip(names, rows, strict=True):
            terminal.say(f"{name:<{width}}  {_money(one):>{money_width}}  {_tokens(one)}  {terminal.state(one.state)}")
        terminal.say(f"{'total':<{width}}  {_money(total):>{money_width}}  {_tokens(total)}")
    return 0


def print_costs(terminal: Terminal, found: Costs) -> None:
    """One line for each row, with a bar where there is room for one; then the total, the forecast and the caps."""
    from atlas.cli.text import clean, money

    total, rows = found.total, found.rows
    highest = max((row.cost_usd for row in rows), default=0.0)
    width = min(40, max([len(clean(row.name)) for row in rows] + [10]))
    money_width = max(len(_money(row)) for row in (total, *rows))
    taken = width + money_width + max(len(_tokens(row)) for row in (total, *rows)) + 6
    room = min(_BAR, terminal.width - taken) if terminal.is_screen else _BAR
    room = room if highest and room >= _LEAST_BAR else 0
    for row in rows:
        bar = f"{_bar(row.cost_usd, highest, room, terminal.is_unicode):<{room}}  " if room else ""
        terminal.say(f"{clean(row.name)[:width]:<{width}}  {_money(row):>{money_width}}  {bar}{_tokens(row)}")
    if not rows:
        terminal.note(f"nothing was spent since {found.since}")
    gap = " " * (room + 2) if room else ""
    terminal.say(f"{'total':<{width}}  {_money(total):>{money_width}}  {gap}{_tokens(total)}")
    if total.saved_usd:
        terminal.say(f"saved by providers' caches: {money(total.saved_usd)} ({total.cached_in:,} tokens)")
    if total.estimated_usd:
        terminal.say(f"~ {money(total.estimated_usd)} of this is estimated: nobody said what those calls used")
    outlook = found.outlook
    terminal.say(f"{outlook.month}: {money(outlook.spent_usd)} so far, about {money(outlook.forecast_usd)} at its end")
    print_caps(terminal, found.caps)
    for alert in found.alerts:
        terminal.say(
            f"{terminal.style('alert', 'yellow')}  {clean(alert.cap)}: {alert.fraction:.0%} reached ({alert.period or 'tree'})"
        )


def print_caps(terminal: Terminal, caps: Sequence[Standing]) -> None:
    """One line for each cap: used, reserved, left, debt, and where it will end."""
    from atlas.cli.text import clean, money

    width = max((len(clean(one.cap)) for one in caps), default=0)
    for one in caps:
        parts: list[str] = []
        if one.limit_usd is not None:
            parts.append(f"{money(one.spent_usd)} of {money(one.limit_usd)} spent")
            parts.append(f"{money(one.reserved_usd)} reserved")
            parts.append(f"{money(one.left_usd or 0.0)} left")
        if one.limit_tokens is not None:
            parts.append(f"{one.spent_tokens:,} of {one.limit_tokens:,} tokens, {one.reserved_tokens:,} reserved")
        if one.forecast_usd is not None:
            parts.append(f"about {money(one.forecast_usd)} at its end")
        line = f"{clean(one.cap):<{width}}  {', '.join(parts)}"
        debt = f"  debt {money(one.debt_usd)}: closed until it is raised or its period ends" if one.debt_usd else ""
        terminal.say(line + (terminal.style(debt, "red") if debt else ""))


def _csv(terminal: Terminal, rows: Sequence[CostRow]) -> None:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        writer.writerow([_cell(getattr(row, column)) for column in _COLUMNS])
    terminal.say(text.getvalue().rstrip("\n"))


def _cell(value: object) -> object:
    """A value as a spreadsheet may have it: money to the micro-dollar, and no text that it would compute."""
    if isinstance(value, float):
        return f"{value:.6f}"
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _money(row: CostRow) -> str:
    from atlas.cli.text import money

    return f"{'~' if row.estimated_usd else ''}{money(row.cost_usd)}"


def _tokens(row: CostRow) -> str:
    cached = f" ({row.cached_in:,} cached)" if row.cached_in else ""
    return f"{row.tokens_in:,} in{cached}, {row.tokens_out:,} out"


def _bar(value: float, highest: float, width: int, is_unicode: bool) -> str:
    length = round(value / highest * width)
    return ("█" if is_unicode else "#") * (max(length, 1) if value else 0)
