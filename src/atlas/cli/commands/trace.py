"""`atlas trace`: a tree of runs over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal

if TYPE_CHECKING:
    from atlas.control.trace import Trace


@command(
    "trace",
    examples="""
    atlas trace @last
    atlas trace run_0193a1b2c3d47abc --json
    """,
)
@click.argument("run")
@click.option("--all", "is_all", is_flag=True, help="Draw every step of a run that has very many.")
@click.option("--spans", is_flag=True, help="With --json: add the nested spans that the picture is drawn from.")
@pass_terminal
def trace(terminal: Terminal, run: str, is_all: bool, spans: bool) -> int:
    """Draw a run and everything it spawned over time.

    Each line is a run or a step: what became of it, how long it took, and when. A solid bar is work, dots are waiting.
    With --json: trace_id, chain, started_at, completed_at, status, steps, total_tokens and total_cost_usd.
    """
    return terminal.run(_trace(terminal, run, is_all, spans))


async def _trace(terminal: Terminal, word: str, is_all: bool, with_spans: bool) -> int:
    import msgspec

    from atlas.control.trace import read_trace

    async with terminal.open() as host:
        row = await host.find_run(word)
        traced = await read_trace(host.ledger, row, host.clock.now_us())
    if terminal.is_json:
        shape = msgspec.to_builtins(traced.trace)
        terminal.emit({**shape, "spans": traced.span} if with_spans else shape)
        return 0
    from atlas.cli.waterfall import draw

    terminal.say(_headline(terminal, traced.trace))
    terminal.say()
    for line in draw(terminal, traced.span, None if is_all else 100):
        terminal.say(line)
    return 0


def _headline(terminal: Terminal, trace: Trace) -> str:
    from atlas.cli.text import count, money

    facts = [
        trace.trace_id,
        terminal.state(trace.status),
        count(len(trace.steps), "run"),
        count(trace.total_tokens, "token"),
        money(trace.total_cost_usd),
    ]
    return "  ".join(facts)
