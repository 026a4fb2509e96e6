"""`atlas doctor`: is this machine, this vault and this ledger fit?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal

if TYPE_CHECKING:
    from atlas.cli.diagnosis import Check


@command(
    "doctor",
    examples="""
    atlas doctor
    atlas doctor --vault demo --json
    """,
)
@pass_terminal
def doctor(terminal: Terminal) -> int:
    """Say what works here, what is missing, and the fix.

    Looks at Python and its packages, the vault and every agent's contract, the ledger, the disk, a worker process, and
    what was left behind. Changes nothing. Exit code 5 when something has to be fixed before agents can run.
    """
    from atlas.cli.diagnosis import diagnose
    from atlas.cli.failure import DONE, FAILED

    checks = terminal.run(diagnose(terminal.program, terminal.vault))
    is_ok = all(check.status != "fail" for check in checks)
    if terminal.is_json:
        terminal.emit({"ok": is_ok, "checks": checks})
    else:
        _print(terminal, checks, is_ok)
    return DONE if is_ok else FAILED


def _print(terminal: Terminal, checks: list[Check], is_ok: bool) -> None:
    from atlas.cli.text import count

    width = max(len(check.name) for check in checks)
    for check in checks:
        word = terminal.state(check.status) + " " * (4 - len(check.status))
        lead = " " * (width + 8)
        first, *rest = [*_wrapped(terminal, check.message, lead), *_wrapped(terminal, _fix(check), lead)]
        terminal.say(f"{word}  {check.name:{width}}  {first}")
        for line in rest:
            terminal.say(lead + line)
    fails = sum(check.status == "fail" for check in checks)
    warnings = sum(check.status == "warn" for check in checks)
    verdict = "ready" if is_ok else f"{count(fails, 'thing')} to fix"
    terminal.say(f"\n{verdict}" + (f", {count(warnings, 'warning')}" if warnings else ""))


def _fix(check: Check) -> str:
    return f"fix: {check.fix}" if check.fix else ""


def _wrapped(terminal: Terminal, text: str, lead: str) -> list[str]:
    from textwrap import wrap

    from atlas.cli.text import clean

    room = max(20, terminal.width - len(lead)) if terminal.is_screen else 10_000
    return wrap(clean(text), room, break_long_words=False, break_on_hyphens=False)
