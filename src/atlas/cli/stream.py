"""An answer on standard output while the model still speaks."""

from __future__ import annotations

from collections.abc import Callable

from atlas.cli.terminal import Terminal
from atlas.kernel.model import Delta


class Stream:
    """Prints pieces as they come; knows what the last answer so far is, so that it is not printed twice."""

    def __init__(self, terminal: Terminal, before_first: Callable[[], None]) -> None:
        self._terminal = terminal
        self._before_first = before_first
        self._call = (0, 0)
        self._has_begun = False
        self.is_mid_line = False
        self.answer = ""

    def show(self, delta: Delta) -> None:
        """One piece. What an earlier step or a failed attempt said is left standing above a line of its own."""
        if delta.kind != "text" or self._terminal.is_json:
            self.end_line()
            return
        if (delta.step, delta.attempt) != self._call and self.answer:
            self.end_line()
        self._call = (delta.step, delta.attempt)
        if not self._has_begun:
            self._before_first()
            self._has_begun = True
        self.answer += delta.text
        self.is_mid_line = not self.answer.endswith("\n")
        self._terminal.answer(delta.text)

    def echoed(self) -> None:
        """The terminal has shown a key that was pressed, wherever the cursor stood."""
        self.is_mid_line = self.is_mid_line or (self._has_begun and self._terminal.is_screen)

    def break_line(self) -> None:
        """Gives what comes between two pieces a line of its own where both are read; the answer itself stays as it is."""
        if self.is_mid_line and self._terminal.is_mixed:
            self._terminal.note()
            self.is_mid_line = False

    def end_line(self) -> None:
        """Ends what was printed; what follows is another answer."""
        if self.is_mid_line:
            self._terminal.answer("\n")
        self.is_mid_line = False
        self.answer = ""
