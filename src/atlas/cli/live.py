"""What a person sees on standard error while a run is driven: logs, progress and printed text, as they are recorded."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import click

from atlas.cli.item import first_number
from atlas.cli.terminal import Terminal
from atlas.cli.text import clean, count, duration, one_line, short
from atlas.kernel.event import (
    AttemptStarted,
    Body,
    EffectAsked,
    EffectDoubted,
    EffectReceived,
    Event,
    Logged,
    OutputCaptured,
    RunEnded,
    TurnSteered,
)

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

BAR = 20
NAMED_CHILDREN = 10
MESSAGE = 200


class LiveView:
    """Lines above, and on a terminal one moving line below that says how far the run is.

    The first few spawned runs are named as they start and end, further ones only counted. When quiet: no line at all.
    """

    def __init__(self, terminal: Terminal, run_id: str, agent: str, *, is_quiet: bool = False) -> None:
        self._terminal = terminal
        self._run_id = run_id
        self._agent = agent
        self._rest: dict[tuple[str, str], str] = {}
        self._agents: dict[str, str] = {}
        self._began_us: dict[str, int] = {}
        self._named: set[str] = set()
        self._counted: set[str] = set()
        self._ended: Counter[str] = Counter()
        self._is_quiet = is_quiet
        self._steps = 0
        self._progress = ""
        self._began = time.monotonic()
        self._status: Status | None = None
        self._held: list[str] = []
        self.is_speaking = False
        """Whether an agent is in the middle of saying something: lines then wait for its end."""
        self.before_line: Callable[[], None] = lambda: None
        """Called before a line that nothing keeps apart from what an agent is saying."""

    def __enter__(self) -> LiveView:
        """Shows the moving line where there is a terminal to move on."""
        if sys.stderr.isatty() and not self._terminal.is_json and not self._is_quiet:
            console = self._terminal.console(err=True)
            self._status = console.status(self, spinner="dots" if self._terminal.is_unicode else "line")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Prints what was held back and takes the moving line away."""
        self._release()
        for (run_id, _), text in sorted(self._rest.items()):
            self._line(run_id, f"| {text}")
        self._rest.clear()
        if self._counted:
            self.say(click.style(f"  and {self._crowd()}", dim=True))
        self.hide()

    def hide(self) -> None:
        """Takes the moving line away for good."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def say(self, text: str) -> None:
        """A line of the command's own."""
        if self._status is None:
            self.before_line()
            self._terminal.note(text)
        else:
            from rich.text import Text

            self._status.console.print(Text.from_ansi(text), soft_wrap=True)

    def show(self, event: Event, body: Body, agent: str) -> None:
        """One event of a run of `agent`."""
        if self._is_quiet:
            return
        self._agents[event.run_id] = agent
        match body:
            case AttemptStarted():
                self._attempt(event, body)
            case Logged():
                self._logged(event, body)
            case OutputCaptured():
                self._printed(event, body)
            case EffectAsked():
                self._asked(event, f"{body.name} waits for a person ({body.effect_class})", "approve", body.effect)
            case EffectDoubted():
                self._asked(event, f"{body.effect} is in doubt: {body.reason}", "inbox done", body.effect)
            case TurnSteered(decision="deny" | "continue" | "nudge"):
                self._line(event.run_id, f"{body.by}: {one_line(body.text, MESSAGE)}")
            case EffectReceived() if event.run_id == self._run_id:
                self._steps += 1
                self._release()
            case RunEnded() if event.run_id != self._run_id:
                self._child_ended(event, body)
            case _:
                pass

    def _asked(self, event: Event, text: str, command: str, effect: str) -> None:
        self._line(event.run_id, text)
        if event.run_id != self._run_id:
            # What the run itself asks is said when it rests; one that waits for its child may not rest before.
            words = self._terminal.command(f"{command} {first_number(event.run_id, effect)}")
            self._line(event.run_id, f"answer it from another terminal: {words}")

    def _attempt(self, event: Event, body: AttemptStarted) -> None:
        self._began_us.setdefault(event.run_id, event.time_us)
        if body.attempt > 1:
            self._line(event.run_id, f"attempt {body.attempt}: recorded steps are answered from the record")
        elif event.run_id != self._run_id:
            self._child_started(event.run_id)

    def _child_started(self, run_id: str) -> None:
        if len(self._named) < NAMED_CHILDREN:
            self._named.add(run_id)
            self._line(run_id, f"started as {short(run_id)}")
            return
        if not self._counted:
            self._line(run_id, "further runs are only counted")
        self._counted.add(run_id)

    def _child_ended(self, event: Event, body: RunEnded) -> None:
        if event.run_id in self._counted:
            self._ended[body.state] += 1
            return
        took_us = event.time_us - self._began_us.get(event.run_id, event.time_us)
        self._line(event.run_id, f"{body.state} after {duration(max(0, took_us))}")

    def _crowd(self) -> str:
        """How the runs that are only counted stand."""
        states = "".join(f", {number:,} {state}" for state, number in sorted(self._ended.items()))
        return f"{count(len(self._counted), 'more spawned run')}{states}"

    def _logged(self, event: Event, body: Logged) -> None:
        if body.fraction < 0:
            mark = "" if body.level == "info" else f"{body.level}: "
            self._line(event.run_id, f"{mark}{body.message}")
        elif self._status is None or event.run_id != self._run_id:
            self._line(event.run_id, f"{body.fraction:4.0%} {body.message}")
        else:
            filled = round(BAR * min(1.0, body.fraction))
            bar = "━" * filled + "╌" * (BAR - filled) if self._terminal.is_unicode else "#" * filled
            self._progress = f"  {bar} {body.fraction:.0%} {one_line(body.message, MESSAGE)}"

    def _printed(self, event: Event, body: OutputCaptured) -> None:
        # Text comes in pieces; a line is shown when it is whole.
        key = (event.run_id, body.stream)
        *lines, rest = (self._rest.pop(key, "") + body.text).split("\n")
        for line in lines:
            self._line(event.run_id, f"| {line}")
        if rest:
            self._rest[key] = rest

    def _line(self, run_id: str, text: str) -> None:
        who = "" if run_id == self._run_id else f"[{self._agents[run_id]}] "
        self._held.append(click.style(f"  {who}{clean(text)}", dim=True))
        if not self.is_speaking:
            self._release()

    def _release(self) -> None:
        self.is_speaking = False
        held, self._held = self._held, []
        for line in held:
            self.say(line)

    def __rich__(self) -> Text:
        """The moving line, asked for each time it moves: on one line, and nothing in it is markup."""
        from rich.text import Text

        return Text(self._headline(), no_wrap=True, overflow="ellipsis")

    def _headline(self) -> str:
        passed = duration(int((time.monotonic() - self._began) * 1_000_000))
        crowd = f"  {self._crowd()}" if self._counted else ""
        return f"{self._agent}  {passed}  {count(self._steps, 'step')}{self._progress}{crowd}"
