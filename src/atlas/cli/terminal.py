"""Where a command speaks: results go to standard output, everything about them to standard error.

With --json a command writes its one object to standard output and nothing else there. Colours only where a
person looks: on a terminal, unless NO_COLOR is set.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TextIO, TypeVar

import click

from atlas.cli.program import Program
from atlas.cli.text import STATE_COLORS, clean, is_unicode, json_text
from atlas.kernel.errors import Unavailable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from atlas.control.host import Host

P = ParamSpec("P")
R = TypeVar("R")

PIPE_WIDTH = 200
MIN_WIDTH = 40
TABLE_WIDTH = 78
UNWRITABLE = "output_unwritable"


class ReaderGone(Exception):
    """Whoever read standard output has left (`atlas runs | head`), as is their right."""


def unwritten(error: OSError) -> ReaderGone | Unavailable:
    """What to raise for what standard output did not take."""
    if isinstance(error, BrokenPipeError):
        return ReaderGone()
    return Unavailable(
        f"standard output cannot be written: {error.strerror}",
        hint="Check the file or disk it goes to. What was recorded stays: see 'atlas runs'.",
        code=UNWRITABLE,
    )


class Terminal:
    """One invocation: its program, the options every command has, and its two streams."""

    def __init__(self, program: Program, vault: str | None, is_json: bool) -> None:
        self.program = program
        self.vault = vault
        self.is_json = is_json
        self._color = None if wants_color(program.environ) else False
        # Asked now: while a moving line is shown, another object stands in for the stream.
        self.is_unicode = is_unicode(sys.stdout)
        self.is_screen = sys.stdout.isatty()
        """Whether a person looks at standard output, so that its width matters."""
        self._is_one_file = _is_same_file(sys.stdout, sys.stderr)

    @property
    def is_mixed(self) -> bool:
        """Whether what is said about a result comes between its lines: on a terminal, or in a log of both streams."""
        return self.is_screen or self._is_one_file

    def open(self) -> AbstractAsyncContextManager[Host]:
        """The use cases over the chosen vault."""
        return self.program.open(self.vault)

    def require_person(self) -> None:
        """Raises PolicyRefused when this command acts in a run's name: then it decides nothing."""
        from atlas.kernel.principal import INSIDE, refuse_inside

        refuse_inside(self.program.environ.get(INSIDE, ""))

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """The result of `work` on an event loop of its own."""
        try:
            import asyncio

            return asyncio.run(work)
        finally:
            work.close()  # never begun when Ctrl-C came first; one that has ended does not mind

    def say(self, text: str = "") -> None:
        """One line of result, on standard output."""
        self._write(text, is_line=True, color=self._color)

    def answer(self, text: str) -> None:
        """A piece of what an agent said, on standard output, at once: exact in a pipe or a file, visible on a terminal.

        A terminal must not obey what an agent wrote, and a program must get every character of it.
        """
        # `color` keeps click from taking escape sequences out.
        self._write(clean(text) if self.is_screen else text, is_line=False, color=True)

    def _write(self, text: str, *, is_line: bool, color: bool | None) -> None:
        try:
            click.echo(text, nl=is_line, color=color)
        except OSError as error:
            raise unwritten(error) from error

    def note(self, text: str = "") -> None:
        """One line about the result, on standard error; nobody has to read it."""
        with suppress(OSError):
            click.echo(text, err=True, color=self._color)

    def emit(self, value: object) -> None:
        """`value` as one JSON document on standard output: indented for a person, one line for a pipe."""
        self.say(json_text(value, is_indented=self.is_screen, is_ascii=not self.is_unicode))

    def emit_line(self, value: object) -> None:
        """`value` as one line of JSON on standard output, of which there are several."""
        self.say(json_text(value, is_ascii=not self.is_unicode))

    def style(self, text: str, color: str = "", *, bold: bool = False, dim: bool = False) -> str:
        """`text` in a colour; the stream decides whether it shows."""
        return click.style(text, fg=color or None, bold=bold or None, dim=dim or None)

    def state(self, word: str) -> str:
        """A state in its colour."""
        return self.style(word, STATE_COLORS.get(word, ""))

    def command(self, words: str) -> str:
        """An `atlas` command to copy, with this invocation's vault."""
        vault = f" --vault {shlex.quote(self.vault)}" if self.vault is not None else ""
        return f"atlas {words}{vault}"

    def console(self, *, err: bool = False) -> Console:
        """A rich console on one of the streams; a pipe is as wide as its content."""
        from rich.console import Console

        stream = sys.stderr if err else sys.stdout
        return Console(
            file=stream,
            width=None if stream.isatty() else PIPE_WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
            no_color=self._color is False,
            _environ=self.program.environ,
        )

    def table(self, table: Table, console: Console) -> None:
        """A rich table on standard output, without the spaces that end its lines.

        On a narrow terminal its lines go on in the next one: columns that are squeezed or cut off tell nothing.
        """
        console.width = max(console.width, TABLE_WIDTH)
        try:
            with console.capture() as capture:
                console.print(table)
        except OSError as error:  # what is captured is not written, but the empty text that takes its place is
            raise unwritten(error) from error
        for line in capture.get().splitlines():
            self.say(line.rstrip())

    @property
    def width(self) -> int:
        """The columns to draw in."""
        import shutil

        return max(MIN_WIDTH, shutil.get_terminal_size((80, 24)).columns)


def _is_same_file(one: TextIO, other: TextIO) -> bool:
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError):  # no file at all, as where a program runs a command inside itself
        return False


def wants_color(environ: Mapping[str, str]) -> bool:
    """False when the person said NO_COLOR or the terminal cannot."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def pass_terminal(function: Callable[Concatenate[Terminal, P], R]) -> Callable[P, R]:
    """Gives a command its terminal as first argument."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        context = click.get_current_context()
        meta = context.meta
        terminal = Terminal(context.obj, meta.get("atlas.vault"), bool(meta.get("atlas.json")))
        return function(terminal, *args, **kwargs)

    return update_wrapper(call, function)
