"""A conversation at the terminal: each line is a turn of one session.

    run        what was left unfinished -> (a line -> a turn -> its answer)* -> the way back
    turn       submit -> drive -> (questions -> drive)* -> result

Ctrl-C ends the turn and not the chat; Ctrl-D ends the chat and loses nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from atlas.cli.backstage import Backstage
from atlas.cli.drive import output_text, summary
from atlas.cli.failure import DONE, exit_code, record_lines
from atlas.cli.item import Item, items_of_tree, question
from atlas.cli.stream import Stream
from atlas.cli.terminal import Terminal
from atlas.cli.text import clean, one_line
from atlas.cli.value import standard_input, text_value
from atlas.kernel.errors import AtlasError, Conflict
from atlas.kernel.run import PARKED, RunQuery, RunState

if TYPE_CHECKING:
    from atlas.control.host import Host
    from atlas.control.report import RunReport

_UNENDED: Final[tuple[RunState, ...]] = ("queued", "running", "waiting", "in_doubt")
_STOPPED: Final = "stopped in the chat"


class Chat:
    """One person, one agent, one session; a new session unless one is named."""

    def __init__(self, terminal: Terminal, agent: str, session: str) -> None:
        self._terminal = terminal
        self._agent = agent
        self._session = session
        self._code = DONE
        self._lines = standard_input("A chat reads what is said from there, a line for each turn.")
        self._is_person = self._lines.isatty() and not terminal.is_json
        self._has_editing = self._is_person and terminal.is_screen
        self._backstage = Backstage(terminal.open)

    def run(self) -> int:
        """Talks until the person leaves; the exit code."""
        with self._backstage:
            self._backstage.do(self._check)
            for run_id in self._backstage.do(self._unfinished):
                self._note("the last turn was not finished; it goes on now")
                if not self._finish(run_id):
                    return self._leave()
            self._greet()
            while (line := self._read("> ")) is not None:
                if line.strip() and not self._turn(line):
                    break
            return self._leave()

    async def _check(self, host: Host) -> None:
        """NotFound before anybody has typed a word in vain."""
        host.vault.contract(self._agent)
        if self._session:
            session = await host.ledger.session(self._session)
            if session.agent != self._agent:
                raise Conflict(
                    f"session {self._session} is one with {session.agent}",
                    hint=f"Use 'atlas chat {session.agent} --session {self._session}'.",
                    code="other_agent",
                )

    async def _unfinished(self, host: Host) -> list[str]:
        if not self._session:
            return []
        page = await host.runs(RunQuery(session_id=self._session, states=_UNENDED, roots_only=True, limit=500))
        return [row.run_id for row in reversed(page.runs)]

    # A turn

    def _turn(self, line: str) -> bool:
        """One turn; False when the chat cannot go on after it."""
        try:
            run_id = self._backstage.do(lambda host: self._submit(host, line))
        except AtlasError as error:
            if not self._is_person:
                raise
            self._complain(error)
            return True
        return self._finish(run_id)

    async def _submit(self, host: Host, line: str) -> str:
        submitted = await host.submit(self._agent, text_value(line), session_id=self._session)
        self._session = (await host.find_run(submitted.run_id)).session_id
        return submitted.run_id

    def _finish(self, run_id: str) -> bool:
        """Takes a turn to its end, with the person's answers to what it asks; False when one is left open."""
        while True:
            report, is_shown = self._drive(run_id)
            self._tell(report, is_shown)
            if report.state not in PARKED:
                return True
            if not self._answer_all(run_id):
                return False

    def _drive(self, run_id: str) -> tuple[RunReport, bool]:
        """Drives a run until it rests; Ctrl-C cancels it, and a second one leaves it to another process."""
        stream = Stream(self._terminal, lambda: None)
        driven = self._backstage.begin(lambda host: _drive(host, run_id, stream))
        try:
            return driven.result()
        except KeyboardInterrupt:
            if self._is_person and not stream.is_mid_line:
                self._terminal.note()  # the terminal has written ^C
            stream.end_line()
            if not self._is_person:
                self._backstage.do(lambda host: host.abort())
                raise
        try:
            self._backstage.do(lambda host: host.cancel(run_id, _STOPPED))
            return driven.result()
        except KeyboardInterrupt:
            self._backstage.do(lambda host: host.abort())
            raise

    def _tell(self, report: RunReport, is_shown: bool) -> None:
        terminal = self._terminal
        if report.state != "succeeded":
            self._code = exit_code(report.state)
        if terminal.is_json:
            terminal.emit_line(report)
            return
        if report.state == "succeeded" and not is_shown:
            terminal.answer(f"{output_text(report.output)}\n")
        if report.error is not None and report.state != "cancelled":
            for line in record_lines(report.error):
                terminal.note(line)
        terminal.note(terminal.style(summary(terminal, report), dim=True))

    # Questions

    def _answer_all(self, run_id: str) -> bool:
        """Asks the person whatever the run asks; False when something is left open."""
        for item in self._backstage.do(lambda host: items_of_tree(host, run_id)):
            if not self._is_person:
                for line in [] if self._terminal.is_json else question(self._terminal, item):
                    self._terminal.note(line)
                return False
            if not (self._approve(item) if item.kind == "approval" else self._settle(item)):
                return False
        return True

    def _approve(self, item: Item) -> bool:
        args = one_line(bytes(item.args).decode("utf-8", "replace"), 200)
        self._note(f"{clean(item.name)} ({item.effect_class}) {args}")
        if item.reason:
            self._note(f"  because: {clean(item.reason)}")
        while (line := self._read("allow it? y or n, and why if you like: ")) is not None:
            word, _, reason = line.strip().partition(" ")
            if word.lower() in ("y", "yes", "n", "no"):
                self._decide(item, word.lower().startswith("y"), reason.strip())
                return True
        return False

    def _decide(self, item: Item, approved: bool, reason: str) -> None:
        try:
            self._backstage.do(lambda host: host.answer(item.run_id, item.effect, approved, reason))
        except AtlasError as error:  # somebody else was first, or has to answer; the run knows how to go on
            self._complain(error)

    def _settle(self, item: Item) -> bool:
        """What became of an effect is looked up first, so it is settled with the commands that say how."""
        for line in question(self._terminal, item):
            self._note(line)
        return self._read("press Enter when you have settled it in another terminal: ") is not None

    # The person

    def _greet(self) -> None:
        if self._is_person:
            self._note(f"talking with {self._agent}; Ctrl-C stops a turn, Ctrl-D leaves")

    def _read(self, prompt: str) -> str | None:
        """A line, or None at the end. Ctrl-C drops what was typed and asks again."""
        while True:
            try:
                return self._line(prompt)
            except KeyboardInterrupt:
                if not self._is_person:
                    raise
                self._note("\nnothing was sent; Ctrl-D leaves")

    def _line(self, prompt: str) -> str | None:
        if self._has_editing:
            import readline  # noqa: F401 - gives `input` a history and arrow keys

            try:
                return input(prompt)
            except EOFError:
                self._terminal.note()
                return None
        if self._is_person:
            sys.stderr.write(prompt)
            sys.stderr.flush()
        line = self._lines.readline()
        return line.rstrip("\n") if line else None

    def _leave(self) -> int:
        if self._session:
            self._note(f"go on with: {self._terminal.command(f'chat {self._agent} --session {self._session}')}")
        return DONE if self._is_person else self._code

    def _complain(self, error: AtlasError) -> None:
        for text in record_lines(error.record()):
            self._terminal.note(text)

    def _note(self, text: str) -> None:
        if not self._terminal.is_json:
            self._terminal.note(self._terminal.style(text, dim=True))


async def _drive(host: Host, run_id: str, stream: Stream) -> tuple[RunReport, bool]:
    """Where the run came to rest, and whether its answer has been shown."""
    with host.deltas.watch(run_id, stream.show):
        await host.drive(run_id)
    report = await host.report(run_id)
    is_shown = bool(stream.answer) and stream.answer.strip() == report.text.strip()
    stream.end_line()
    return report, is_shown
