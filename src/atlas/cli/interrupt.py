"""The end of a command that was interrupted. Imports next to nothing, because Ctrl-C may come while all is half loaded."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # what `typing` calls so, without the time that importing it takes
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
ERROR = '{"error":{"code":"interrupted","message":"interrupted before it was done","hint":"","where":""}}\n'


def leave(number: int, frame: object) -> None:
    """Takes the signal while the command loads: nothing has begun yet, so there is nothing to tidy up."""
    os._exit(interrupted(sys.argv[1:]))


def interrupted(words: Sequence[str]) -> int:
    """Says so, as an object with --json, and returns the exit code; a further Ctrl-C cannot spoil that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    stream, text = (sys.stdout, ERROR) if "--json" in words else (sys.stderr, "interrupted\n")
    try:
        stream.write(text)
        stream.flush()
    except (OSError, AttributeError):  # nobody reads it any more, or nobody ever did
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
    return INTERRUPTED
