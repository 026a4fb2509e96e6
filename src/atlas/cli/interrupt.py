"""The end of a command that was interrupted. Imports nothing, because Ctrl-C may come while anything is half loaded."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Final

INTERRUPTED: Final = 130
ERROR: Final = '{"error":{"code":"interrupted","message":"interrupted before it was done","hint":"","where":""}}\n'


def interrupted(words: Sequence[str]) -> int:
    """Says so, as an object with --json, and returns the exit code; a further Ctrl-C cannot spoil that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    stream, text = (sys.stdout, ERROR) if "--json" in words else (sys.stderr, "interrupted\n")
    try:
        stream.write(text)
        stream.flush()
    except OSError:  # nobody reads it any more
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
    return INTERRUPTED
