"""`atlas up`: drive queued runs in the foreground."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click
import msgspec

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal

if TYPE_CHECKING:
    from atlas.cli.watch import Watch
    from atlas.control.host import Host
    from atlas.kernel.event import Body, Event


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to a run; one line of --json."""

    time: str
    run_id: str
    agent: str
    what: str
    attempt: int = 0
    reason: str = ""


@command(
    "up",
    examples="""
    atlas up
    atlas up --until-idle
    atlas up --json | jq .what
    """,
)
@click.option("--until-idle", is_flag=True, help="Return when nothing is left to do now, instead of waiting for more.")
@pass_terminal
def up(terminal: Terminal, until_idle: bool) -> int:
    """Drive queued runs until you stop it.

    Picks up what crashed processes left, then every run that is due, and prints what starts and ends; with --json one
    object per line, and one whose "what" is "idle" or "interrupted" when nothing started or ended. Several may work on one vault. Ctrl-C once parks everything safely, twice stops at once.
    """
    return terminal.run(_up(terminal, until_idle))


async def _up(terminal: Terminal, until_idle: bool) -> int:
    from atlas.cli.drive import Interrupts
    from atlas.cli.failure import DONE, INTERRUPTED
    from atlas.cli.watch import Watch
    from atlas.control.trace import timestamp

    async with terminal.open() as host:
        if not until_idle:
            terminal.note(f"driving the runs of {terminal.program.vault_path(terminal.vault)}; Ctrl-C stops")
        interrupts = Interrupts(host, terminal.note)
        before = await host.ledger.head()
        watch = Watch(host.ledger, "", before)
        printer = Printer(terminal, watch)
        with interrupts.heard():
            await interrupts.guard(_drive(host, printer, until_idle))
        if terminal.is_json and not printer.printed:
            what = "interrupted" if interrupts.presses else "idle"
            terminal.emit(Change(timestamp(host.clock.now_us()), "", "", what))
    if not interrupts.presses:
        if watch.position == before and not terminal.is_json:
            terminal.note("nothing to do")
        return DONE
    word = "parked" if interrupts.presses == 1 else "stopped"
    terminal.note(f"{word}; everything continues with {terminal.command('up')}")
    return INTERRUPTED


class Printer:
    """One line when a run starts, parks or ends; everything else is in the record."""

    def __init__(self, terminal: Terminal, watch: Watch) -> None:
        self.watch = watch
        self.printed = 0
        self._terminal = terminal

    def show(self, event: Event, body: Body) -> None:
        """Prints what the event changed, if it is one of those."""
        change = _change(self.watch.agents[event.run_id], event, body)
        if change is None:
            return
        self.printed += 1
        terminal = self._terminal
        if terminal.is_json:
            terminal.emit_line(change)
            return
        from atlas.cli.text import local_time, one_line, short

        time = local_time(event.time_us)[-8:]
        state = terminal.state(change.what) + " " * (9 - len(change.what))
        tail = f"attempt {change.attempt}" if change.attempt > 1 else change.reason
        text = f"{change.agent}  {tail}" if tail else change.agent
        room = terminal.width - 43 if terminal.is_screen else len(text)
        terminal.say(f"{time}  {state}  {short(event.run_id)}  {one_line(text, room)}")


async def _drive(host: Host, printer: Printer, until_idle: bool) -> None:
    async with asyncio.TaskGroup() as group:
        showing = group.create_task(_show(printer))
        await host.drive_all(until_idle=until_idle)
        showing.cancel()
    async for event, body in printer.watch.pending():
        printer.show(event, body)


async def _show(printer: Printer) -> None:
    async for event, body in printer.watch.live():
        printer.show(event, body)


def _change(agent: str, event: Event, body: Body) -> Change | None:
    from atlas.control.trace import timestamp
    from atlas.kernel.event import AttemptStarted, RunEnded, RunParked

    parked = {"person": "waiting", "doubt": "in_doubt", "interrupted": "queued", "children": "waiting"}
    time = timestamp(event.time_us)
    match body:
        case AttemptStarted():
            return Change(time, event.run_id, agent, "running", attempt=body.attempt)
        case RunParked():
            return Change(time, event.run_id, agent, parked[body.reason], reason=body.reason)
        case RunEnded():
            reason = f"{body.error.code}: {body.error.message}" if body.error is not None else ""
            return Change(time, event.run_id, agent, body.state, reason=reason)
        case _:
            return None
