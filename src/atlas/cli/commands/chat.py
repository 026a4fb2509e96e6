"""`atlas chat`: one session, turn by turn."""

from __future__ import annotations

import click

from atlas.cli.command import command, not_empty
from atlas.cli.commands.run import complete_agent
from atlas.cli.terminal import Terminal, pass_terminal


@command(
    "chat",
    examples="""
    atlas chat advisor
    atlas chat advisor --session ses_0193a1b2c3d47abc
    printf 'hello\\nand now?\\n' | atlas chat advisor --json
    """,
)
@click.argument("agent", shell_complete=complete_agent)
@click.option("--session", metavar="ID", default="", callback=not_empty, help="Go on with this session.")
@pass_terminal
def chat(terminal: Terminal, agent: str, session: str) -> int:
    """Talk with an agent, turn by turn.

    Each line is a turn of one session. The answer streams to standard output, and a line says what the turn cost. When
    the agent wants to do something that needs a person, you are asked here.

    Press Ctrl-C to stop a turn and keep talking, Ctrl-D to leave; the last line then says how to go on. With --json
    each line of standard input is a turn and gives one line of JSON.
    """
    from atlas.cli.chat import Chat

    return Chat(terminal, agent, session).run()
