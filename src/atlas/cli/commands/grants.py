"""`atlas grants`: what people let be repeated without being asked, and taking it back."""

from __future__ import annotations

import click
import msgspec

from atlas.cli.command import Group
from atlas.cli.terminal import Terminal, pass_terminal


class Listed(msgspec.Struct, frozen=True):
    """A grant as it is listed."""

    id: str
    agent: str
    principal: str
    kind: str
    name: str
    args: str
    session_id: str
    run_id: str
    granted_by: str
    granted_at: str


@click.group(
    "grants",
    cls=Group,
    invoke_without_command=True,
    examples="""
    atlas grants
    atlas grants revoke g-5f2c81d09a3e
    """,
)
@pass_terminal
def grants(terminal: Terminal) -> int | None:
    """List calls that need not be asked about again, and revoke one.

    'atlas approve --remember' adds them. A grant is for one agent, principal and session or run, and for exactly the
    arguments that were shown; it never passes a deny. They are in grants.yaml of the vault.
    """
    from atlas.cli.text import clean, one_line, short

    if click.get_current_context().invoked_subcommand is not None:
        return None
    found = _listed(terminal)
    if terminal.is_json:
        terminal.emit({"grants": found})
        return 0
    for each in found:
        scope = f"run {short(each.run_id)}" if each.run_id else f"session {clean(each.session_id)}"
        whom = "" if each.principal == "owner" else f" for {clean(each.principal)}"
        terminal.say(f"{terminal.style(each.id, bold=True)}  {clean(each.name)} {one_line(each.args, 100)}")
        terminal.say(f"  {clean(each.agent)}{whom}, {scope}, by {clean(each.granted_by)} {each.granted_at}")
    if not found:
        terminal.note("there are no grants")
    return 0


@grants.command("revoke", examples="atlas grants revoke g-5f2c81d09a3e")
@click.argument("grant_id", metavar="ID")
@pass_terminal
def revoke(terminal: Terminal, grant_id: str) -> int:
    """Take a grant back: from the next call on a person is asked again, also in runs under way."""
    terminal.require_person()
    found = terminal.program.grants(terminal.vault).revoke(grant_id)
    if terminal.is_json:
        terminal.emit({"id": found.id, "revoked": True})
    else:
        terminal.say(f"revoked {found.id}: {found.name} of {found.agent}")
    return 0


def _listed(terminal: Terminal) -> list[Listed]:
    from atlas.control.trace import timestamp

    return [
        Listed(
            one.id,
            one.agent,
            one.principal,
            one.kind,
            one.name,
            one.shown,
            one.session_id,
            one.run_id,
            one.granted_by,
            timestamp(one.granted_us),
        )
        for one in terminal.program.grants(terminal.vault).all()
    ]
