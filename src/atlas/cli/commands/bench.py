"""`atlas bench`: run the measurements of the source tree, or prove that context stays bounded."""

from __future__ import annotations

import click

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal


@command(
    "bench",
    examples="""
    atlas bench
    atlas bench context
    atlas bench context --turns 200 --seed 7 --json
    """,
)
@click.argument("what", type=click.Choice(["speed", "context"]), default="speed")
@click.option(
    "--turns",
    type=click.IntRange(100, 100_000),
    metavar="N",
    default=1000,
    show_default=True,
    help="How long the session of 'context' is.",
)
@click.option("--seed", type=int, metavar="N", help="Draw what an earlier 'context' drew.")
@pass_terminal
def bench(terminal: Terminal, what: str, turns: int, seed: int | None) -> int:
    """Measure speed and size against a peer, or what long sessions cost.

    'speed' runs the measurements of the source repository (bench/run.py); a plain installation does not carry them.
    'context' drives one long session through a real host with a scripted model: how large requests get, and whether 200
    facts planted in it are found again. Offline, in a temporary folder. Exit code 5 when a promise was broken.
    """
    return _context(terminal, turns, seed) if what == "context" else _speed(terminal)


def _context(terminal: Terminal, turns: int, seed: int | None) -> int:
    from atlas.cli.failure import DONE, FAILED
    from atlas.cli.fields import report_lines
    from atlas.testing.context_bench import run

    report = terminal.run(run(terminal.program.rehearse, turns, seed, terminal.note))
    if terminal.is_json:
        terminal.emit(report)
    else:
        for line in report_lines(report):
            terminal.say(line)
    return DONE if report.ok else FAILED


def _speed(terminal: Terminal) -> int:
    import subprocess
    import sys
    from pathlib import Path

    from atlas.kernel.errors import NotFound

    script = Path(__file__).resolve().parents[4] / "bench" / "run.py"
    if not script.is_file():
        raise NotFound(
            "the measurements are not part of this installation",
            hint="Clone the source repository and run 'make bench' there; they are in bench/run.py.",
            code="bench_not_installed",
        )
    words = [sys.executable, str(script), *(["--json"] if terminal.is_json else [])]
    done = subprocess.run(words, cwd=script.parents[1], check=False)
    return 0 if done.returncode == 0 else 5
