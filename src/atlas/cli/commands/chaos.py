"""`atlas chaos`: kill processes on purpose and count what was lost."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import click

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal


@command(
    "chaos",
    examples="""
    atlas chaos --kills 20
    atlas chaos --kills 200 --ledger sqlite --json
    atlas chaos --kills 20 --seed 7
    atlas chaos --prompt --kills 200
    """,
)
@click.option(
    "--kills",
    type=click.IntRange(1, 100_000),
    metavar="N",
    default=50,
    show_default=True,
    help="How often to kill, on each store.",
)
@click.option(
    "--ledger",
    type=click.Choice(["sqlite", "postgres", "both"]),
    default="both",
    show_default=True,
    help="Which store to do it on.",
)
@click.option("--seed", type=int, metavar="N", help="Make the choices of an earlier storm again.")
@click.option("--prompt", "is_prompt", is_flag=True, help="Kill prompt agents at every commit, then at random.")
@click.option(
    "--every",
    type=click.IntRange(1, 100),
    metavar="N",
    default=1,
    show_default=True,
    help="With --prompt: kill at every N-th commit only.",
)
@pass_terminal
def chaos(terminal: Terminal, kills: int, ledger: str, seed: int | None, is_prompt: bool, every: int) -> int:
    """Kill drivers and workers on purpose and count the damage.

    Drives an agent whose effects append to a file outside its vault, kills processes at random moments and at every
    named boundary, and compares the file with the record: effects lost, effects done twice, effects in doubt that should
    not be. Works in a temporary folder and touches no vault of yours. Exit code 5 when anything is wrong.

    With --prompt the agents are prompt agents with ten steps of tools, on SQLite, against a model provider on this
    machine: besides their effects, what that provider was asked is compared, byte for byte, and every run is replayed
    with the network refused.
    """
    from atlas.cli.failure import DONE, FAILED

    if is_prompt:
        report = _storm("chaos_prompt").main(kills=kills, seed=seed, report=terminal.note, stride=every)
    else:
        report = _storm("chaos").main(kills=kills, ledger=ledger, seed=seed, report=terminal.note)
    if terminal.is_json:
        terminal.emit(report)
    else:
        _print(terminal, report)
    return DONE if report.ok else FAILED


def _storm(name: str) -> ModuleType:
    from importlib import import_module

    from atlas.kernel.errors import Unavailable

    try:
        return import_module(f"atlas.testing.{name}")
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"the part that does this cannot be loaded: {error}", hint="Install atlas-agents again."
        ) from None


def _print(terminal: Terminal, report: object) -> None:
    """Every field of the report, tables indented below their name."""
    import msgspec

    for line in _lines(msgspec.to_builtins(report), ""):
        terminal.say(line)


def _lines(fields: dict[str, object], indent: str) -> Iterator[str]:
    from atlas.cli.text import clean

    width = max(len(name) for name in fields)
    for name, value in fields.items():
        title = name.replace("_", " ")
        match value:
            case dict() if value:
                yield f"{indent}{title}"
                yield from _lines(value, indent + "  ")
            case list() | tuple():
                yield f"{indent}{title:{width}}  {clean(', '.join(str(each) for each in value)) or 'none'}"
            case bool():
                yield f"{indent}{title:{width}}  {'yes' if value else 'no'}"
            case _:
                yield f"{indent}{title:{width}}  {clean(str(value))}"
