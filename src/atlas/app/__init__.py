"""The composition root: the only place that builds adapters and wires them.

open_host    a vault folder -> ledger, workers, agents, driver -> Host
Program      what the command line is given
main         the `atlas` command
"""

from __future__ import annotations

TYPE_CHECKING = False  # what `typing` calls so, without the time that importing it takes
if TYPE_CHECKING:
    from typing import Any

    from atlas.app.build import build_ledger as build_ledger
    from atlas.app.build import inline_of as inline_of
    from atlas.app.clock import SystemClock as SystemClock
    from atlas.app.host import open_ephemeral as open_ephemeral
    from atlas.app.host import open_host as open_host
    from atlas.app.program import Program as Program

__all__ = ["Program", "SystemClock", "build_ledger", "inline_of", "main", "open_ephemeral", "open_host"]

_HOMES = {
    "Program": "program",
    "SystemClock": "clock",
    "build_ledger": "build",
    "inline_of": "build",
    "open_ephemeral": "host",
    "open_host": "host",
}


def main() -> None:
    """The `atlas` command. Ctrl-C is a clean end at any moment, also while the command is still loading.

    Only what comes before this function cannot be protected, so loading this module imports nothing.
    """
    import os
    import signal
    import sys

    from atlas.cli.interrupt import interrupted, leave

    # An exception that is raised while a compiled module loads can bring the interpreter down. Where the signal is
    # ignored, as a shell has it for what runs in the background, it stays so.
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, leave)
    from atlas.app.program import Program
    from atlas.cli import root

    try:
        if is_usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = root.main(prog_name="atlas", standalone_mode=False, obj=Program(os.environ))
        # All is done and said: what comes while the interpreter ends must not take the exit code away.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        code = interrupted(sys.argv[1:])
    sys.exit(code)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'atlas.app' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"atlas.app.{home}"), name)
