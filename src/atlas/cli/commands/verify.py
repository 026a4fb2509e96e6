"""`atlas verify`: recompute the hash chains."""

from __future__ import annotations

import click

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal
from atlas.cli.text import clean, count


@command(
    "verify",
    examples="""
    atlas verify @last
    atlas verify --all
    """,
)
@click.argument("run", required=False)
@click.option("--all", "is_all", is_flag=True, help="Every run of the vault; also what happens without RUN.")
@pass_terminal
def verify(terminal: Terminal, run: str | None, is_all: bool) -> int:
    """Recompute the hash chains of recorded runs.

    Names the first event that was altered, is missing or was cut off, and then ends with exit code 5. Events whose
    content was erased on purpose still verify; they are counted.
    """
    if run is not None and is_all:
        raise click.UsageError("Give either RUN or --all, not both.", click.get_current_context())
    return terminal.run(_verify(terminal, run))


async def _verify(terminal: Terminal, word: str | None) -> int:
    from atlas.cli.failure import DONE, FAILED

    async with terminal.open() as host:
        run_id = None if word is None else (await host.find_run(word)).run_id
        report = await host.verify(run_id)
    if terminal.is_json:
        terminal.emit(report)
        return DONE if report.ok else FAILED
    erased = f", {report.erased:,} erased" if report.erased else ""
    terminal.say(
        f"{terminal.state('ok' if report.ok else 'fail')}  {count(report.runs, 'run')}, {count(report.events, 'event')}{erased}"
    )
    for finding in report.findings:
        terminal.say(f"  {finding.kind}: {clean(finding.message)}")
        terminal.say(f"    in {finding.run_id}, event {finding.seq}")
    return DONE if report.ok else FAILED
