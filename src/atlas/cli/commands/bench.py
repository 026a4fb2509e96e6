"""`atlas bench`: run the measurements of the source tree."""

from __future__ import annotations

from atlas.cli.command import command
from atlas.cli.terminal import Terminal, pass_terminal


@command(
    "bench",
    examples="""
    atlas bench
    atlas bench --json
    """,
)
@pass_terminal
def bench(terminal: Terminal) -> int:
    """Measure speed and size against a peer.

    The measurements are part of the source repository (bench/run.py); a plain installation does not carry them.
    """
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
