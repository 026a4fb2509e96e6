"""`atlas secrets`: values that agents know by name only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from atlas.cli.command import Group
from atlas.cli.terminal import Terminal, pass_terminal

if TYPE_CHECKING:
    from atlas.kernel.port import Secrets


class Known(msgspec.Struct, frozen=True):
    """A secret as it is listed: never its value, nor how long that is."""

    name: str
    source: str


@click.group(
    "secrets",
    cls=Group,
    examples="""
    atlas secrets set GITHUB_TOKEN
    pass show github | atlas secrets set GITHUB_TOKEN
    atlas secrets list
    atlas secrets rm GITHUB_TOKEN
    """,
)
def secrets() -> None:
    """Keep values that agents know by name only.

    A value is looked for in the environment, in .env.local of the vault, in the system's keyring and in a file of yours
    that nobody else can read, in this order. An agent gets those that its contract names, and no model ever does.
    """


@secrets.command(
    "set",
    examples="""
    atlas secrets set GITHUB_TOKEN
    pass show github | atlas secrets set GITHUB_TOKEN
    """,
)
@click.argument("name")
@pass_terminal
def set_(terminal: Terminal, name: str) -> int:
    """Keep a value under a name.

    The value is asked for without being shown, or read from standard input: on a command line others could see it.
    """
    from atlas.kernel.redact import check_name

    check_name(name)
    terminal.require_person()
    store = _store(terminal)
    where = store.set(name, _value(name))
    answering = store.source(name)
    if terminal.is_json:
        terminal.emit(Known(name, where))
        return 0
    terminal.say(f"{name} is kept in the {where}")
    if answering != where:
        terminal.note(f"the {answering} has a value too, and is asked first")
    return 0


@secrets.command("list", examples="atlas secrets list --json")
@pass_terminal
def list_(terminal: Terminal) -> int:
    """List the names that have a value, and where it comes from."""
    store = _store(terminal)
    known = [Known(name, store.source(name)) for name in store.names()]
    if terminal.is_json:
        terminal.emit({"secrets": known})
    elif not known:
        terminal.note(f"there are none; keep one with {terminal.command('secrets set NAME')}")
    width = max((len(one.name) for one in known), default=0)
    for one in known if not terminal.is_json else ():
        terminal.say(f"{one.name:{width}}  {one.source}")
    return 0


@secrets.command("rm", examples="atlas secrets rm GITHUB_TOKEN")
@click.argument("name")
@pass_terminal
def rm(terminal: Terminal, name: str) -> int:
    """Forget a value that Atlas keeps."""
    from atlas.kernel.errors import NotFound

    terminal.require_person()
    store = _store(terminal)
    is_removed = store.remove(name)
    left = store.source(name)
    if not is_removed:
        hint = f"It comes from the {left}; remove it there." if left else "See 'atlas secrets list'."
        raise NotFound(f"Atlas keeps no secret {name}", hint=hint, code="secret_missing")
    if terminal.is_json:
        terminal.emit({"name": name, "removed": True, "source": left})
        return 0
    terminal.say(f"{name} is forgotten")
    if left:
        terminal.note(f"the {left} still has a value of that name")
    return 0


@secrets.command("prove", examples="atlas secrets prove --json")
@pass_terminal
def prove(terminal: Terminal) -> int:
    """Plant secrets wherever they could leak, and look for them in everything that is kept.

    Runs agents whose arguments, outputs, exceptions, logs and file names hold secrets, with tools in worker processes and
    a model provider on this machine that echoes them, in a temporary vault. Then searches the vault, the ledger, blobs,
    indexes, pages and all that was printed for every value in every form. Exit code 5 when one is found.
    """
    from atlas.cli.failure import DONE, FAILED
    from atlas.testing.canary import main

    report = main(report=terminal.note)
    if terminal.is_json:
        terminal.emit(report)
    else:
        for name, value in msgspec.to_builtins(report).items():
            text = ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
            terminal.say(f"{name.replace('_', ' '):16}{text}")
    return DONE if report.ok else FAILED


def _store(terminal: Terminal) -> Secrets:
    return terminal.program.secrets(terminal.vault)


def _value(name: str) -> str:
    """What is typed unseen, or all of standard input without its last line break."""
    from atlas.cli.value import standard_input

    stream = standard_input(f"Pipe the value of {name} into it.")
    if stream.isatty():
        return str(click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True, err=True))
    try:
        return stream.buffer.read().decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise click.UsageError("The value is not UTF-8 text.") from None
