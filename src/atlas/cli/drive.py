"""Driving a run for a person: what they see meanwhile, what Ctrl-C does, and how the result is said.

drive_run      watch + drive -> result -> what dead processes left
Interrupts     the first Ctrl-C finishes the record, the second stops at once
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from atlas.cli.failure import INTERRUPTED, exit_code, record_lines
from atlas.cli.item import items_of_tree, question
from atlas.cli.live import LiveView
from atlas.cli.stream import Stream
from atlas.cli.terminal import Terminal
from atlas.cli.text import clean, count, duration, money, short
from atlas.cli.watch import Watch
from atlas.control.report import RunReport
from atlas.kernel.model import Delta
from atlas.kernel.run import PARKED, TERMINAL, RunRow, RunState

if TYPE_CHECKING:
    from atlas.control.host import Host

T = TypeVar("T")

FIRST_PRESS = "finishing the record; again to stop at once"


class Interrupts:
    """Ctrl-C, or a request to terminate, counted; a terminal that is closed asks once, however often it says so."""

    def __init__(self, host: Host, say: Callable[[str], None]) -> None:
        self.presses = 0
        self._host = host
        self._say = say
        self._second = asyncio.Event()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Takes the signals while the block runs."""
        loop = asyncio.get_running_loop()
        signals = {signal.SIGINT: self.press, signal.SIGTERM: self.press}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup: then the run goes on
            signals[signal.SIGHUP] = partial(
                self.hang_up, [one.fileno() for one in (sys.stdout, sys.stderr) if one.isatty()]
            )
        for number, heard in signals.items():
            loop.add_signal_handler(number, heard)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def hang_up(self, screens: Sequence[int]) -> None:
        """Asks to finish, once: the kernel and the shell both tell of a closed terminal. What is still said is lost."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for screen in screens:
            os.dup2(nowhere, screen)
        os.close(nowhere)
        if not self.presses:
            self.press()

    def press(self) -> None:
        """The first asks to finish, every later one to stop now."""
        self.presses += 1
        if self.presses == 1:
            self._say(FIRST_PRESS)
            self._host.stop()
        else:
            self._second.set()

    async def guard(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None when a second press ended it."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            abort = group.create_task(self._abort(task))
            await asyncio.wait({task})
            abort.cancel()
        return None if task.cancelled() else task.result()

    async def _abort(self, task: asyncio.Task[Any]) -> None:
        await self._second.wait()
        await self._host.abort()
        task.cancel()


async def drive_run(terminal: Terminal, host: Host, run_id: str, *, is_quiet: bool = False) -> int:
    """Drives the run until it rests, prints its result and returns the exit code."""
    row, began_us = await host.find_run(run_id), host.clock.now_us()
    view = LiveView(terminal, run_id, row.agent, is_quiet=is_quiet)
    stream = Stream(terminal, view.hide)
    view.before_line = stream.break_line

    def show(delta: Delta) -> None:
        stream.show(delta)
        view.is_speaking = stream.is_mid_line and terminal.is_screen

    def answer_key(text: str) -> None:
        stream.echoed()
        view.say(text)

    interrupts = Interrupts(host, answer_key)
    with interrupts.heard():
        if row.state not in TERMINAL:
            with view, host.deltas.watch(run_id, show):
                await interrupts.guard(_drive(terminal, host, row, view))
        report = await host.report(run_id)
        is_shown = bool(stream.answer) and stream.answer.strip() == report.text.strip()
        stream.end_line()
        await print_result(
            terminal,
            host,
            report,
            is_interrupted=interrupts.presses > 0,
            is_shown=is_shown,
            is_quiet=is_quiet,
        )
        await _print_alerts(terminal, host, began_us)
        if row.state not in TERMINAL and not interrupts.presses:
            await _finish_others(terminal, host, interrupts)
    return INTERRUPTED if interrupts.presses and not _rests(report.state) else exit_code(report.state)


async def _print_alerts(terminal: Terminal, host: Host, since_us: int) -> None:
    """What was spent has come near a cap meanwhile: said where it happens, once in each period."""
    if terminal.is_json:
        return
    for alert in await host.ledger.warned(since_us):
        terminal.note(alert_line(terminal, alert.cap, alert.fraction, alert.period))


def alert_line(terminal: Terminal, cap: str, fraction: float, period: str) -> str:
    """A threshold of a cap that was reached, in one line."""
    return f"{terminal.style('alert', 'yellow')}  {clean(cap)}: {fraction:.0%} reached ({period or 'tree'})"


async def print_result(
    terminal: Terminal,
    host: Host,
    report: RunReport,
    *,
    is_interrupted: bool = False,
    is_shown: bool = False,
    is_quiet: bool = False,
) -> None:
    """The output on standard output, unless it streamed there; error, summary and what to do next on standard error."""
    if terminal.is_json:
        terminal.emit(report)
        return
    if report.state == "succeeded" and not is_shown:
        terminal.answer(f"{output_text(report.output)}\n")
    if report.error is not None and report.state in TERMINAL:
        for line in record_lines(report.error):
            terminal.note(line)
    if not (is_quiet and report.state == "succeeded"):
        terminal.note(summary(terminal, report))
    if report.state in PARKED:
        for item in await items_of_tree(host, report.run_id):
            for line in question(terminal, item):
                terminal.note(line)
    elif is_interrupted and not _rests(report.state):
        terminal.note(f"nothing is lost: the run continues with {terminal.command('up --until-idle')}")


def output_text(output: msgspec.Raw) -> str:
    """An output as a person reads it: plain text when it is nothing but text, else indented JSON."""
    match msgspec.json.decode(output):
        case str() as text:
            return text
        case {"text": str() as text, **others} if not others:
            return text
        case _:
            return msgspec.json.format(bytes(output), indent=2).decode()


def summary(terminal: Terminal, report: RunReport) -> str:
    """One line: state, cost, tokens, steps, time, run id."""
    tokens = report.tokens.tokens_in + report.tokens.tokens_out
    facts = [
        money(report.cost_usd),
        count(tokens, "token"),
        count(report.steps, "step"),
        duration(report.duration_ms * 1000),
        *report.models,
        short(report.run_id),
    ]
    return "  ".join([terminal.state(report.state), *facts])


async def _drive(terminal: Terminal, host: Host, row: RunRow, view: LiveView) -> RunState:
    if terminal.is_json:
        return await host.drive(row.run_id)
    watch = Watch(host.ledger, row.root_run_id, await host.ledger.head())
    async with asyncio.TaskGroup() as group:
        showing = group.create_task(_show(watch, view))
        state = await host.drive(row.run_id)
        showing.cancel()
    # Whatever was committed before the run came to rest and not shown yet.
    async for event, body in watch.pending():
        view.show(event, body, watch.agents[event.run_id])
    return state


async def _show(watch: Watch, view: LiveView) -> None:
    async for event, body in watch.live():
        view.show(event, body, watch.agents[event.run_id])


async def _finish_others(terminal: Terminal, host: Host, interrupts: Interrupts) -> None:
    """Waits for runs that this process picked up besides its own."""
    if host.in_hand:
        terminal.note(f"waiting for {count(host.in_hand, 'other run')} picked up here; Ctrl-C leaves them queued")
    await interrupts.guard(host.finish_others())
    if interrupts.presses:
        terminal.note(f"what was left continues with {terminal.command('up --until-idle')}")


def _rests(state: RunState) -> bool:
    return state in TERMINAL or state in PARKED
