"""`atlas budget`: caps and pools, and the proof that they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal

if TYPE_CHECKING:
    from atlas.control.costs import Standing


@command(
    "budget",
    examples="""
    atlas budget
    atlas budget prove
    atlas budget prove --schedules 500 --processes 10 --seed 7
    """,
)
@click.argument("what", type=click.Choice(["show", "prove"]), default="show")
@click.option(
    "--schedules",
    type=click.IntRange(0, 10**7),
    default=10_000,
    show_default=True,
    metavar="N",
    help="For 'prove': schedules in this program, every twentieth on SQLite.",
)
@click.option(
    "--processes",
    type=click.IntRange(0, 10**5),
    default=200,
    show_default=True,
    metavar="N",
    help="For 'prove': schedules with real processes that are killed.",
)
@click.option("--seed", type=int, metavar="N", help="For 'prove': draw the schedules of an earlier proof again.")
@pass_terminal
def budget(terminal: Terminal, what: str, schedules: int, processes: int, seed: int | None) -> int:
    """Show every cap and pool, or prove that none can be overrun.

    'show' lists the caps of the vault and of each agent, and the pools of the runs that have not ended. 'prove' plays random
    schedules on the ledger's own code: fifty children of one tree with pools at three levels, random prices, lost
    processes, retries and late settlements; after every admission, what is spent and reserved is compared with every cap.
    It works in temporary folders and touches no vault. Exit code 5 when a cap was passed.
    """
    if what == "prove":
        return _prove(terminal, schedules, processes, seed)
    return terminal.run(_show(terminal))


async def _show(terminal: Terminal) -> int:
    from atlas.cli.commands.costs import print_caps

    async with terminal.open() as host:
        caps, pools = await host.books.standings(), await host.books.pools()
    if terminal.is_json:
        terminal.emit({"caps": caps, "pools": pools})
        return 0
    found: tuple[Standing, ...] = (*caps, *pools)
    if not found:
        terminal.note("no caps: write budget: in atlas.config.yaml or in an agent.yaml")
    print_caps(terminal, found)
    return 0


def _prove(terminal: Terminal, schedules: int, processes: int, seed: int | None) -> int:
    from atlas.cli.failure import DONE, FAILED
    from atlas.cli.fields import report_lines
    from atlas.testing.budget_proof import prove

    report = prove(schedules=schedules, processes=processes, seed=seed, report=terminal.note)
    if terminal.is_json:
        terminal.emit(report)
    else:
        for line in report_lines(report):
            terminal.say(line)
    return DONE if report.ok else FAILED
