"""`atlas cancel`: stop a run."""

from __future__ import annotations

import click
import msgspec

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal
from atlas.cli.text import short


class Cancellation(msgspec.Struct, frozen=True):
    """Where a cancelled run stands."""

    run_id: str
    state: str


@command(
    "cancel",
    examples="""
    atlas cancel @last
    atlas cancel run_0193a1b2c3d47abc --reason "wrong input"
    """,
)
@click.argument("run")
@click.option("--reason", default="", help="Why; it becomes part of the record.")
@pass_terminal
def cancel(terminal: Terminal, run: str, reason: str) -> int:
    """Stop a run and everything it spawned.

    The run begins nothing new and gets a few seconds to finish what is under way. An effect whose outcome stays
    unknown is listed in the inbox.
    """
    return terminal.run(_cancel(terminal, run, reason))


async def _cancel(terminal: Terminal, word: str, reason: str) -> int:
    from atlas.kernel.errors import Conflict
    from atlas.kernel.run import TERMINAL

    async with terminal.open() as host:
        row = await host.find_run(word)
        if row.state in TERMINAL and row.state != "cancelled":
            raise Conflict(f"run {row.run_id} has ended: {row.state}", code="run_ended")
        state = await host.cancel(row.run_id, reason)
    if terminal.is_json:
        terminal.emit(Cancellation(row.run_id, state))
    elif state == "cancelled":
        terminal.say(f"{terminal.state(state)}  {short(row.run_id)}")
    else:
        terminal.say(f"asked to stop, now {terminal.state(state)}  {short(row.run_id)}")
    return 0
