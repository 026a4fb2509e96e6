"""`atlas fork`: a new run from a point of an old one."""

from __future__ import annotations

import click

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal


@command(
    "fork",
    examples="""
    atlas fork @last
    atlas fork run_0193a1b2c3d47abc --at 12
    atlas fork @last --no-run --json
    """,
)
@click.argument("run")
@click.option(
    "--at",
    type=click.IntRange(min=1),
    metavar="SEQ",
    help="The event to continue from; left out, the last one possible.",
)
@click.option("--run/--no-run", "is_run", default=True, help="Drive the new run (the default), or only queue it.")
@pass_terminal
def fork(terminal: Terminal, run: str, at: int | None, is_run: bool) -> int:
    """Begin a new run from a point of an old one.

    The new run executes the agent's code as it is now. What the old run had recorded up to SEQ is answered from the
    record and not repeated; no approval is inherited. 'atlas show RUN --events' lists the events with their SEQ.
    """
    return terminal.run(_fork(terminal, run, at, is_run))


async def _fork(terminal: Terminal, word: str, at: int | None, is_run: bool) -> int:
    from atlas.cli.drive import drive_run
    from atlas.cli.text import short

    async with terminal.open() as host:
        source = await host.find_run(word)
        submitted = await host.fork(source.run_id, at)
        if is_run:
            if not terminal.is_json:
                terminal.note(f"forked {short(source.run_id)} as {short(submitted.run_id)}")
            return await drive_run(terminal, host, submitted.run_id)
        report = await host.report(submitted.run_id)
    if terminal.is_json:
        terminal.emit(report)
    else:
        terminal.say(submitted.run_id)
        terminal.note(f"queued; {terminal.command('up')} drives queued runs")
    return 0
