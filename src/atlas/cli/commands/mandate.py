"""`atlas mandate`: the authority that was written down, and taking it back."""

from __future__ import annotations

import click
import msgspec

from atlas.cli.command import Group
from atlas.cli.terminal import Terminal, pass_terminal


class Listed(msgspec.Struct, frozen=True):
    """A mandate as it is listed."""

    id: str
    granted_by: str
    tools: tuple[str, ...]
    agents: tuple[str, ...]
    limits: tuple[str, ...]
    expires_at: str
    revoked: bool


@click.group(
    "mandate",
    cls=Group,
    invoke_without_command=True,
    examples="""
    atlas mandate
    atlas mandate revoke small-refunds
    atlas mandate revoke mailer/newsletter
    """,
)
@pass_terminal
def mandate(terminal: Terminal) -> int | None:
    """List mandates, and revoke one at once.

    A mandate answers in a person's place when a rule asks, within its bounds, and never passes a deny. It is written in
    mandates.yaml of the vault or of an agent.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return None
    found = _listed(terminal)
    if terminal.is_json:
        terminal.emit({"mandates": found})
        return 0
    for each in found:
        state = "revoked" if each.revoked else f"until {each.expires_at}" if each.expires_at else "no expiry"
        limits = ", ".join(each.limits) or "no limits"
        terminal.say(f"{each.id}  {', '.join(each.tools)}  by {each.granted_by}  {limits}  {state}")
    if not found:
        terminal.note("there are no mandates")
    return 0


@mandate.command("revoke", examples="atlas mandate revoke small-refunds")
@click.argument("mandate_id", metavar="ID")
@pass_terminal
def revoke(terminal: Terminal, mandate_id: str) -> int:
    """Make a mandate void from the next effect on, also for runs under way.

    Writes 'revoked: true' into its file. What was done under it stays done, and named by it.
    """
    terminal.require_person()
    path = terminal.program.revoke_mandate(terminal.vault, mandate_id)
    if terminal.is_json:
        terminal.emit({"id": mandate_id, "revoked": True, "file": path})
    else:
        terminal.say(f"revoked {mandate_id} in {path}")
    return 0


def _listed(terminal: Terminal) -> list[Listed]:
    keys = ("usd_per_use", "usd_per_day", "usd_total", "uses_per_day")
    return [
        Listed(
            name,
            found.granted_by,
            found.tools,
            found.agents,
            tuple(f"{key} {value:g}" for key in keys if (value := getattr(found, key)) is not None),
            found.expires_at or "",
            found.revoked,
        )
        for name, found in terminal.program.policy_files(terminal.vault).all_mandates().items()
    ]
