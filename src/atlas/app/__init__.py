"""The composition root: the only place that builds adapters and wires them.

open_host    a vault folder -> ledger, workers, agents, driver -> Host
Program      what the command line is given
main         the `atlas` command
"""

from __future__ import annotations

import os

from atlas.app.build import build_ledger, inline_of
from atlas.app.clock import SystemClock
from atlas.app.host import open_ephemeral, open_host
from atlas.app.program import Program

__all__ = ["Program", "SystemClock", "build_ledger", "inline_of", "main", "open_ephemeral", "open_host"]


def main() -> None:
    """The `atlas` command. Ctrl-C is a clean end at any moment, also while the command is still loading."""
    import sys

    from atlas.cli.interrupt import interrupted

    try:
        from atlas.cli import root

        code = root.main(prog_name="atlas", standalone_mode=False, obj=Program(os.environ))
    except KeyboardInterrupt:
        code = interrupted(sys.argv[1:])
    sys.exit(code)
