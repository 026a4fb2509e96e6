"""`atlas replay`: decide again from the record."""

from __future__ import annotations

import click

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal
from atlas.cli.text import clean, count, one_line, short


@command(
    "replay",
    examples="""
    atlas replay @last
    atlas replay run_0193a1b2c3d47abc --json
    """,
)
@click.argument("run")
@pass_terminal
def replay(terminal: Terminal, run: str) -> int:
    """Decide a recorded run again, offline, and compare.

    Every decision of the run is made again from its events, and the agent's pinned code is run against the record.
    Nothing is performed and nothing is written. Exit code 5 when anything comes out differently.
    """
    return terminal.run(_replay(terminal, run))


async def _replay(terminal: Terminal, word: str) -> int:
    from atlas.cli.failure import DONE, FAILED

    async with terminal.open() as host:
        row = await host.find_run(word)
        report = await host.replay(row.run_id)
    if terminal.is_json:
        terminal.emit(report)
        return DONE if report.identical else FAILED
    found = len(report.mismatches)
    verdict = f"{found} came out differently" if found else "all identical"
    terminal.say(f"{count(report.decisions, 'decision')} of {short(report.run_id)}: {verdict}")
    for mismatch in report.mismatches:
        terminal.say(f"  event {mismatch.seq}")
        terminal.say(f"    recorded  {one_line(mismatch.recorded, 200)}")
        terminal.say(f"    decided   {one_line(mismatch.decided, 200)}")
    terminal.say(f"code against the record: {clean(report.code)}")
    return DONE if report.identical else FAILED
