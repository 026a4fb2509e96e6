"""`atlas cancel`: stop a run."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

import click
import msgspec

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal
from atlas.cli.text import local_time, short

if TYPE_CHECKING:
    from atlas.control.host import Host
    from atlas.kernel.run import RunRow, RunState

PATIENCE_S: Final = 1.0


class Cancellation(msgspec.Struct, frozen=True):
    """Where a cancelled run stands."""

    run_id: str
    state: str


@command(
    "cancel",
    examples="""
    atlas cancel @last
    atlas cancel run_0193a1b2c3d47abc --reason "wrong input"
    atlas cancel @last --wait 2
    """,
)
@click.argument("run")
@click.option("--reason", default="", help="Why; it becomes part of the record.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(PATIENCE_S, 86_400),
    metavar="S",
    help="Seconds to wait for another process that has the run. [default: a lease and the grace period]",
)
@pass_terminal
def cancel(terminal: Terminal, run: str, reason: str, wait_s: float | None) -> int:
    """Stop a run and everything it spawned.

    The run begins nothing new and gets a few seconds to finish what is under way. An effect whose outcome stays
    unknown is listed in the inbox. When another process has the run, that one ends it; the request is recorded, and
    holds even when this command has stopped waiting.
    """
    return terminal.run(_cancel(terminal, run, reason, wait_s))


async def _cancel(terminal: Terminal, word: str, reason: str, wait_s: float | None) -> int:
    from atlas.kernel.errors import Conflict
    from atlas.kernel.run import TERMINAL

    async with terminal.open() as host:
        row = await host.find_run(word)
        if row.state in TERMINAL and row.state != "cancelled":
            raise Conflict(f"run {row.run_id} has ended: {row.state}", code="run_ended")
        if wait_s is None:
            execution = host.config.execution
            wait_s = execution.lease_s + execution.cancel_grace_s  # a lease lasts a second at least
        state = await _wait(terminal, host, row.run_id, reason, wait_s)
    if terminal.is_json:
        terminal.emit(Cancellation(row.run_id, state))
    elif state == "cancelled":
        terminal.say(f"{terminal.state(state)}  {short(row.run_id)}")
    else:
        terminal.say(f"asked to stop, now {terminal.state(state)}  {short(row.run_id)}")
    return 0


async def _wait(terminal: Terminal, host: Host, run_id: str, reason: str, wait_s: float) -> RunState:
    """The state the run comes to rest in; Unavailable when another process keeps it longer than `wait_s`."""
    from atlas.kernel.errors import Unavailable

    async with asyncio.TaskGroup() as group:
        task = group.create_task(host.cancel(run_id, reason))
        await asyncio.wait({task}, timeout=PATIENCE_S)
        if not task.done() and (holder := await _other_holder(host, run_id)):
            terminal.note(f"waiting for {holder}")
        await asyncio.wait({task}, timeout=wait_s - PATIENCE_S)
        while not task.done():
            # A run that nobody else has is in this process's hands, and ends within its own grace period.
            if holder := await _other_holder(host, run_id):
                task.cancel()
                raise Unavailable(
                    f"run {run_id} is asked to stop and has not yet: {holder} has it",
                    hint="It ends as soon as that process hears it. End that process, or wait longer with --wait S.",
                    code="cancel_pending",
                )
            await asyncio.wait({task}, timeout=PATIENCE_S)
    return task.result()


async def _other_holder(host: Host, run_id: str) -> str:
    """Who else holds the run under a live lease, in words; empty when nobody does."""
    from atlas.control.drive import parse_owner
    from atlas.engine.process import process_of, this_host

    row: RunRow = await host.ledger.run(run_id)
    if not row.owner or row.lease_until_us <= host.clock.now_us():
        return ""
    until = f"lease until {local_time(row.lease_until_us)[-8:]}"
    owner = parse_owner(row.owner)
    if owner is None:
        return f"another process ({until})"
    if owner.process == process_of(os.getpid()):
        return ""
    where = "" if owner.process.host == this_host() else " of another machine"
    return f"process {owner.process.pid}{where} ({until})"
