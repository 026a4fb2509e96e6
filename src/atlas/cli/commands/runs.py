"""`atlas runs`: a page of runs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, get_args

import click

from atlas.cli.command import command, not_empty
from atlas.cli.commands.run import complete_agent
from atlas.cli.terminal import Terminal, pass_terminal
from atlas.kernel.run import RunQuery, RunRow, RunState

if TYPE_CHECKING:
    from rich.text import Text

    from atlas.kernel.run import RunPage


@command(
    "runs",
    examples="""
    atlas runs
    atlas runs --agent summarizer --state failed --state in_doubt
    atlas runs --all --limit 100 --json
    """,
)
@click.option(
    "--agent",
    default="",
    metavar="NAME",
    callback=not_empty,
    help="Only runs of this agent.",
    shell_complete=complete_agent,
)
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    type=click.Choice(get_args(RunState)),
    help=f"Only runs in this state; may be given several times. One of {', '.join(get_args(RunState))}.",
)
@click.option("--session", default="", metavar="ID", callback=not_empty, help="Only turns of this session.")
@click.option("--limit", type=click.IntRange(1, 1000), metavar="N", default=20, show_default=True, help="At most N.")
@click.option(
    "--before",
    default="",
    metavar="CURSOR",
    callback=not_empty,
    help="The next page: the value that the page before ended with.",
)
@click.option("--all", "is_all", is_flag=True, help="Also runs that other runs spawned.")
@pass_terminal
def runs(
    terminal: Terminal,
    agent: str,
    states: tuple[RunState, ...],
    session: str,
    limit: int,
    before: str,
    is_all: bool,
) -> int:
    """List runs, newest first.

    Runs that other runs spawned are left out unless you say --all. A run is shown as 'lost' when the process that had
    it is silent and its lease has lapsed: nothing is wrong with the run, and the next driver continues it. --state
    finds it by the state it was in, running or waiting.
    """
    query = RunQuery(agent=agent, states=states, session_id=session, roots_only=not is_all, before=before, limit=limit)
    return terminal.run(_runs(terminal, query))


async def _runs(terminal: Terminal, query: RunQuery) -> int:
    async with terminal.open() as host:
        page = await host.runs(query)
        now_us = host.clock.now_us()
    if terminal.is_json:
        from atlas.cli.shape import RunsShape, run_shape

        terminal.emit(RunsShape(tuple(run_shape(row, now_us) for row in page.runs), page.next))
    elif not page.runs:
        terminal.note("no runs" + (" match" if query != RunQuery(roots_only=True, limit=query.limit) else " yet"))
    else:
        _print(terminal, page, query, now_us)
    return 0


def _print(terminal: Terminal, page: RunPage, query: RunQuery, now_us: int) -> None:
    from rich.table import Table

    console = terminal.console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("RUN", no_wrap=True, min_width=20)
    # The only column that may be cut: the others take 68 columns at most.
    table.add_column("AGENT", no_wrap=True, overflow="ellipsis", max_width=max(10, console.width - 68))
    table.add_column("STATE", no_wrap=True, min_width=9)
    table.add_column("STEPS", no_wrap=True, justify="right", min_width=5)
    table.add_column("COST", no_wrap=True, justify="right", min_width=2)
    table.add_column("TIME", no_wrap=True, justify="right", min_width=6)
    table.add_column("BEGAN", no_wrap=True, justify="right", min_width=7)
    for row in page.runs:
        table.add_row(*_cells(row, now_us))
    terminal.table(table, console)
    if page.next:
        words = ["runs", *_filters(query), "--before", page.next]
        terminal.note(f"more: {terminal.command(shlex.join(words))}")


def _cells(row: RunRow, now_us: int) -> list[str | Text]:
    from rich.text import Text

    from atlas.cli.shape import shown_state
    from atlas.cli.text import STATE_COLORS, ago, clean, duration, money, short
    from atlas.control.trace import cost_usd

    state = shown_state(row, now_us)
    end_us = row.ended_us or (now_us if state == "running" else row.updated_us)
    return [
        short(row.run_id),
        clean("  " * row.depth + row.agent),
        Text(state, style=STATE_COLORS.get(state, "")),
        f"{row.spend.steps:,}",
        money(cost_usd([row.spend])),
        duration(max(0, end_us - row.created_us)) if row.state != "queued" else "-",
        ago(row.created_us, now_us),
    ]


def _filters(query: RunQuery) -> list[str]:
    words: list[str] = []
    for option, value in (("--agent", query.agent), ("--session", query.session_id)):
        words += [option, value] if value else []
    for state in query.states:
        words += ["--state", state]
    words += [] if query.roots_only else ["--all"]
    return [*words, "--limit", str(query.limit)]
