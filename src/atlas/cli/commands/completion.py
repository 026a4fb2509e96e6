"""`atlas completion`: the script that teaches a shell our words."""

from __future__ import annotations

import click

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal

SHELLS = ("bash", "zsh", "fish")


@command(
    "completion",
    examples="""
    eval "$(atlas completion bash)"
    atlas completion zsh > ~/.zfunc/_atlas
    atlas completion fish > ~/.config/fish/completions/atlas.fish
    """,
)
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@pass_terminal
def completion(terminal: Terminal, shell: str | None) -> int:
    """Print the completion script for your shell.

    Put the line for your shell into its start-up file (~/.bashrc or ~/.zshrc). SHELL is bash, zsh or fish; left out, it
    is the one you use.
    """
    from click.shell_completion import get_completion_class

    name = shell or terminal.program.environ.get("SHELL", "").rpartition("/")[2]
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        raise click.UsageError(f"Say which shell: {', '.join(SHELLS)}.", click.get_current_context())
    root = click.get_current_context().find_root().command
    made = kind(root, {}, "atlas", "_ATLAS_COMPLETE")
    script = made.source_template % made.source_vars()
    if terminal.is_json:
        terminal.emit({"shell": name, "script": script})
    else:
        terminal.say(script.rstrip("\n"))
    return 0
