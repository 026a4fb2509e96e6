"""The root command: its parts are imported only when they are used, and no error leaves it as a traceback.

main       words -> exit code; the one boundary of the terminal
Root       the table of commands, with the line `atlas --help` shows for each
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import MutableMapping, Sequence
from typing import Any, Final

import click

from atlas.cli.command import Group, print_line

# Section -> command -> (function, short help). Reading this instead of the commands keeps `atlas --help` fast.
SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Start": {
        "new": ("new:new", "Create a vault, or an agent in a vault."),
        "run": ("run:run", "Run an agent and print what it returns."),
        "chat": ("chat:chat", "Talk with an agent, turn by turn."),
        "up": ("up:up", "Drive queued runs until you stop it."),
    },
    "Look": {
        "runs": ("runs:runs", "List runs, newest first."),
        "show": ("show:show", "Show one run: input, output, effects, printed text."),
        "trace": ("trace:trace", "Draw a run and everything it spawned over time."),
        "costs": ("costs:costs", "Show what was spent, and what is left under every cap."),
        "budget": ("budget:budget", "Show every cap and pool, or prove that none can be overrun."),
    },
    "Decide": {
        "inbox": ("inbox:inbox", "List what waits for a person, and settle effects in doubt."),
        "approve": ("inbox:approve", "Allow an effect that asks for a person."),
        "deny": ("inbox:deny", "Refuse an effect that asks for a person."),
        "grants": ("grants:grants", "List calls that need not be asked about again, and revoke one."),
        "mandate": ("mandate:mandate", "List mandates, and revoke one at once."),
        "cancel": ("cancel:cancel", "Stop a run and everything it spawned."),
        "fork": ("fork:fork", "Begin a new run from a point of an old one."),
        "secrets": ("secrets:secrets", "Keep values that agents know by name only."),
    },
    "Check": {
        "policy": ("policy:policy", "Check the rules, and say which of them decided what."),
        "verify": ("verify:verify", "Recompute the hash chains of recorded runs."),
        "replay": ("replay:replay", "Decide a recorded run again, offline, and compare."),
        "models": ("models:models", "List models and providers, and fetch a small local model."),
        "doctor": ("doctor:doctor", "Say what works here, what is missing, and the fix."),
        "chaos": ("chaos:chaos", "Kill drivers and workers on purpose and count the damage."),
        "bench": ("bench:bench", "Measure speed and size against a peer, or what long sessions cost."),
        "completion": ("completion:completion", "Print the completion script for your shell."),
    },
}
_TABLE: Final = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class Root(Group):
    """Commands by name, imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of the help."""
        return list(_TABLE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        entry = _TABLE.get(cmd_name)
        if entry is None:
            return None
        from importlib import import_module

        module, _, function = entry[0].partition(":")
        found = getattr(import_module(f"atlas.cli.commands.{module}"), function)
        return found if isinstance(found, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion for a mistyped name."""
        if args[0] in _TABLE or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        close = get_close_matches(args[0], _TABLE, n=1)
        tail = f" Did you mean {close[0]}?" if close else ""
        raise click.UsageError(f"There is no command {args[0]!r}.{tail}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the table, section by section."""
        width = max(len(name) for name in _TABLE)
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", help_text) for name, (_, help_text) in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Command names with their short help, without importing any; then the options."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=entry[1]) for name, entry in _TABLE.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the words; ends the process with the exit code, or returns it when not `standalone_mode`."""
        words = list(sys.argv[1:] if args is None else args)
        _fill_closed_streams()
        _show_other_letters()
        code = self._guarded(words, prog_name or "atlas", complete_var, extra)
        if standalone_mode:
            sys.exit(code)
        return code

    def _guarded(
        self, words: list[str], prog_name: str, complete_var: str | None, extra: MutableMapping[str, Any]
    ) -> int:
        try:
            result = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
            return result if isinstance(result, int) else 0
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the terminal's boundary
            from atlas.cli.failure import explain

            return explain(error, words, extra.get("obj"))


def _fill_closed_streams() -> None:
    """Lets a standard stream that the caller closed lead nowhere.

    The next file to be opened would get its number otherwise, and with it what a child process prints. Standard input
    stays closed for who reads it, and so says that it is.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is the stream's own
            os.set_inheritable(number, True)
            if name != "stdin":
                setattr(sys, name, os.fdopen(number, "w"))


def _show_other_letters() -> None:
    """Lets standard output show what its encoding lacks as escapes, as standard error does: no answer fails for a letter."""
    from atlas.cli.text import is_unicode

    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict" and not is_unicode(stream):
        stream.reconfigure(errors="backslashreplace")


@click.group(
    "atlas",
    cls=Root,
    invoke_without_command=True,
    context_settings={"max_content_width": 100},
    examples="""
    atlas new --vault demo
    atlas run summarizer "Some words to shorten." --vault demo
    atlas trace @last --vault demo
    """,
)
@click.option("--version", is_flag=True, help="Print the version and exit.")
@click.pass_context
def root(ctx: click.Context, version: bool) -> None:
    """Atlas runs agents that live in a folder you own, the vault.

    Every step of a run is recorded before it is acted on, so a crash loses nothing and repeats nothing. Where a command
    takes a RUN, give an id, the beginning of one, or @last.

    Exit codes: 0 done, 2 invalid or not found, 3 refused, 4 waits for a person, 5 failed, 130 interrupted.
    """
    if version:
        from importlib.metadata import version as installed

        number = installed("atlas-agents")
        print_line(f'{{"version":"{number}"}}' if ctx.meta.get("atlas.json") else f"atlas {number}")
        ctx.exit(0)
    if ctx.invoked_subcommand is None:
        print_line(ctx.get_help())
