"""Why a worker died or had to, in words a person can act on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

from atlas.engine.wire import OUT_OF_MEMORY
from atlas.kernel.errors import ErrorRecord, Fault

_MEMORY_HINT: Final = "Hold less in memory at a time, or raise the agent's memory limit."
# What native code and the interpreter print when an allocation fails and they cannot go on.
_MEMORY_SIGNS: Final = ("MemoryError", "std::bad_alloc", "Cannot allocate memory", "out of memory")
_SIGN_REACH: Final = 500
_HINTS: Final = {
    "SIGSEGV": "Native code crashed; the captured stderr names the line of Python that called it.",
    "SIGABRT": "Native code gave up; the captured stderr says why.",
    "SIGKILL": "Something outside Atlas killed it: a person, a supervisor, or the system short of memory.",
    "SIGTERM": "Something outside Atlas ended it: a person or a supervisor.",
}
CUT_OFF: Final = ErrorRecord(
    "worker_crashed",
    "the agent's process closed its connection to Atlas and went on",
    "Does the agent's code close file descriptors it did not open?",
)


def cause(status: int, oom_kills_before: int, stderr_tail: str) -> ErrorRecord:
    """Why a process that ended in the middle of a run did, from its exit status."""
    tail = stderr_tail.strip()
    if status == OUT_OF_MEMORY or any(sign in tail[-_SIGN_REACH:] for sign in _MEMORY_SIGNS):
        return ErrorRecord("memory_limit", "the agent's process ran out of memory", _MEMORY_HINT, detail=tail)
    if status >= 0:
        return ErrorRecord(
            "worker_exited",
            f"the agent's process exited with status {status} in the middle of a run",
            "Return from execute(), or raise, instead of ending the process.",
            detail=tail,
        )
    name = _signal_name(-status)
    if name == "SIGKILL" and oom_kills() > oom_kills_before:
        message = "the agent's process was killed because the machine ran out of memory"
        return ErrorRecord("memory_limit", message, _MEMORY_HINT, detail=tail)
    # A crash is the code's own doing and would happen again; whoever was killed can be started once more.
    code = "worker_killed" if name in ("SIGKILL", "SIGTERM") else "worker_crashed"
    return ErrorRecord(code, f"the agent's process was ended by {name}", _HINTS.get(name, ""), detail=tail)


def flood(limit: int) -> ErrorRecord:
    """It printed or logged more than it may."""
    return ErrorRecord(
        "output_flood",
        f"the agent printed and logged more than {limit} bytes in one run",
        "Print less, or write to a file.",
    )


def bad_frame(fault: Fault) -> ErrorRecord:
    """It sent bytes that are not a message."""
    return ErrorRecord(
        "bad_frame",
        f"the agent's process sent something unreadable: {fault.message}",
        "Does the agent's code write to file descriptors it did not open?",
    )


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since boot; 0 where it does not say."""
    try:
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        return 0
    return 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
