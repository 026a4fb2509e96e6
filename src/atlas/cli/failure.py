"""Errors as a person or a program reads them, and the exit codes."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import msgspec

from atlas.cli.interrupt import INTERRUPTED as INTERRUPTED
from atlas.cli.interrupt import interrupted
from atlas.cli.program import Program
from atlas.cli.terminal import UNWRITABLE, ReaderGone, wants_color
from atlas.cli.text import clean, is_unicode, json_text
from atlas.kernel.errors import AtlasError, ErrorRecord, Fault, Invalid, Problem
from atlas.kernel.run import RunState

DONE: Final = 0
INVALID: Final = 2
REFUSED: Final = 3
WAITING: Final = 4
FAILED: Final = 5
NOT_AVAILABLE_YET: Final = "not_available_yet"

_STATE_EXIT: Final[dict[RunState, int]] = {
    "queued": WAITING,
    "running": WAITING,
    "waiting": WAITING,
    "in_doubt": WAITING,
    "succeeded": DONE,
    "refused": REFUSED,
    "failed": FAILED,
    "cancelled": FAILED,
}


class Described(msgspec.Struct, frozen=True):
    """An error as --json prints it."""

    code: str
    message: str
    hint: str
    where: str
    problems: tuple[Problem, ...] | msgspec.UnsetType = msgspec.UNSET


def exit_code(state: RunState) -> int:
    """The exit code that says where a run came to rest."""
    return _STATE_EXIT[state]


def explain(error: BaseException, words: Sequence[str], program: Program | None) -> int:
    """Prints what went wrong, never as a traceback unless asked, and returns the exit code."""
    cause = _cause(error)
    color = None if wants_color(program.environ if program is not None else os.environ) else False
    if isinstance(cause, KeyboardInterrupt | click.Abort):
        return interrupted(words)
    if isinstance(cause, ReaderGone):
        _silence()
        return DONE
    told = _translate(cause, words, program)
    is_heard = told.reason != UNWRITABLE
    if not is_heard:
        _silence()
    with suppress(OSError):  # nobody hears it: the exit code has to do
        if "--debug" in words:
            click.echo("".join(traceback.format_exception(cause)), err=True, nl=False)
        if "--json" not in words or not is_heard or not _say_json(told):
            for line in error_lines(told):
                click.echo(line, err=True, color=color)
    # What is described and not built is refused: nothing is wrong with the request, and trying again will not help.
    return REFUSED if told.reason == NOT_AVAILABLE_YET else told.exit_code


def _say_json(told: AtlasError) -> bool:
    """Whether standard output took the error."""
    problems = told.problems if isinstance(told, Invalid) and told.problems else msgspec.UNSET
    described = Described(told.reason, told.message, told.hint, told.where, problems)
    stream = sys.stdout
    text = json_text({"error": described}, is_indented=stream.isatty(), is_ascii=not is_unicode(stream))
    try:
        click.echo(text)
    except OSError:
        _silence()
        return False
    return True


def _silence() -> None:
    """Lets standard output lead nowhere: what it did not take would be flushed again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def error_lines(error: AtlasError) -> Iterator[str]:
    """The error, its place, its hint, and every problem it lists."""
    problems = error.problems if isinstance(error, Invalid) else ()
    if len(problems) < 2:
        yield from record_lines(error.record())
        return
    yield _head(error.reason, error.message)
    for number, problem in enumerate(problems, 1):
        yield f"  {number}. {clean(problem.message)} [{problem.code}]"
        if problem.where:
            yield f"     at {clean(problem.where)}"
        if problem.hint:
            yield f"     hint: {clean(problem.hint)}"
    if error.hint and error.hint != problems[0].hint:
        yield f"  hint: {clean(error.hint)}"


def record_lines(record: ErrorRecord) -> Iterator[str]:
    """One recorded error: what, where, and what to do next."""
    yield _head(record.code, record.message)
    if record.where:
        yield f"  at {clean(record.where)}"
    if record.hint:
        yield f"  hint: {clean(record.hint)}"


def _head(code: str, message: str) -> str:
    return f"{click.style(f'error[{code}]', fg='red', bold=True)}: {clean(message)}"


def _cause(error: BaseException) -> BaseException:
    """The error to tell about: task groups wrap what their tasks raise, and one of those is the reason."""
    while isinstance(error, BaseExceptionGroup):
        known = [each for each in error.exceptions if isinstance(each, AtlasError)]
        error = known[0] if known else error.exceptions[0]
    return error


def _translate(error: BaseException, words: Sequence[str], program: Program | None) -> AtlasError:
    match error:
        case AtlasError():
            return error
        case click.exceptions.NoArgsIsHelpError(ctx=click.Context(command=click.Group() as group) as ctx):
            names = ", ".join(group.list_commands(ctx))
            hint = f"'{ctx.command_path} --help' explains them."
            return Invalid(f"'{ctx.command_path}' needs a command: {names}.", hint=hint, code="usage")
        case click.UsageError():
            path = error.ctx.command_path if error.ctx is not None else "atlas"
            return Invalid(error.format_message(), hint=f"'{path} --help' explains the command.", code="usage")
        case click.ClickException():
            return Invalid(error.format_message(), code="usage")
    place = _write_details(error, _vault_word(words), program)
    asked = "" if "--debug" in words else " Run the command again with --debug to see them here."
    return Fault(f"{type(error).__name__}: {error}", hint=f"The details are in {place}.{asked}")


def _vault_word(words: Sequence[str]) -> str | None:
    """What --vault says, read from the words because the error may have come before they were parsed."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == "--vault":
            return following
        if word.startswith("--vault="):
            return word.removeprefix("--vault=")
    return None


def _write_details(error: BaseException, vault: str | None, program: Program | None) -> Path:
    """The file that now holds the traceback: in the vault when there is one, else among temporary files."""
    folder = Path(tempfile.gettempdir())
    try:
        if program is not None:
            inside = program.vault_path(vault) / ".atlas"
            folder = inside / "faults" if inside.is_dir() else folder
            folder.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(".txt", "atlas-fault-", folder)
    except (AtlasError, OSError):
        handle, name = tempfile.mkstemp(".txt", "atlas-fault-")
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(_redacted(error, vault, program))
    return Path(name)


def _redacted(error: BaseException, vault: str | None, program: Program | None) -> str:
    """The traceback without any secret of the vault; without its words when it cannot be told what the secrets are."""
    from atlas.kernel.redact import Redactor

    text = "".join(traceback.format_exception(error))
    if program is None:
        return text
    try:
        store = program.secrets(vault)
        return Redactor((name, store.get(name) or "") for name in store.names()).text(text)
    except AtlasError:
        return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__ + "\n"
