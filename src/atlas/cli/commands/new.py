"""`atlas new`: a vault, or an agent in one."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import msgspec

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal


class Made(msgspec.Struct, frozen=True):
    """What was created; `files` are relative to `path`."""

    kind: str
    path: str
    files: tuple[str, ...]


@command(
    "new",
    examples="""
    atlas new --vault demo
    atlas new greeter --vault demo
    atlas new helper --template prompt
    atlas new mailer --template effects
    """,
)
@click.argument("name", required=False)
@click.option(
    "--template",
    type=click.Choice(["python", "prompt", "effects"]),
    default="python",
    show_default=True,
    help="What the agent starts from: code, a persona without code, or code whose steps reach the world.",
)
@pass_terminal
def new(terminal: Terminal, name: str | None, template: str) -> int:
    """Create a vault, or an agent in a vault.

    Without NAME: a vault at --vault, or in this folder, with three agents to try, 'summarizer', 'advisor' and
    'effects'. With NAME: an agent of that name in the vault, ready to run and to be edited. Nothing that exists is
    overwritten.
    """
    made = _new_vault(terminal) if name is None else _new_agent(terminal, name, template)
    if terminal.is_json:
        terminal.emit(made)
        return 0
    terminal.say(f"created the {made.kind} {made.path}")
    for file in made.files:
        terminal.say(f"  {file}")
    words = shlex.join(["run", "summarizer" if name is None else name, "Some words to try it with."])
    terminal.note(f"try it: {terminal.command(words)}")
    return 0


def _new_vault(terminal: Terminal) -> Made:
    path = Path(terminal.vault).expanduser() if terminal.vault is not None else Path.cwd()
    terminal.program.new_vault(path)
    agents = sorted(entry.parent for entry in path.glob("agents/*/agent.yaml"))
    return Made("vault", str(path), tuple(f"agents/{agent.name}" for agent in agents))


def _new_agent(terminal: Terminal, name: str, template: str) -> Made:
    folder = terminal.program.new_agent(terminal.program.vault_path(terminal.vault), name, template)
    files = sorted(entry for entry in folder.rglob("*") if entry.is_file())
    return Made("agent", str(folder), tuple(str(file.relative_to(folder)) for file in files))
