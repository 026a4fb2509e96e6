"""One measurement: a fresh process, and the CPU time and memory of it and of everything it started.

The kernel's own account is used (wait4), so a process cannot leave anything out: start-up, imports, threads, worker
processes and exit are in it. A process that outlives its parent comes to this one and is counted when it ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

TIMEOUT_S: Final = 900
ORPHAN_S: Final = 10
_PR_SET_CHILD_SUBREAPER: Final = 36
_KILOBYTE: Final = 1024 if sys.platform == "linux" else 1  # the unit in which the kernel says how large a process was


@dataclass(frozen=True)
class Sample:
    """What one process and its descendants took, and what the process said at its end."""

    cpu_ms: float
    wall_ms: float
    peak_mb: float
    answer: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """For the results file."""
        numbers = {"cpu_ms": self.cpu_ms, "wall_ms": self.wall_ms, "peak_mb": self.peak_mb}
        return {**{name: round(number, 3) for name, number in numbers.items()}, **self.answer}


def adopt_orphans() -> None:
    """Makes this process the parent of whatever a measured process leaves behind; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def environment() -> dict[str, str]:
    """What every measured process gets: nothing of ours but the path, so bytecode is compiled and kept."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": tempfile.gettempdir()}


def measure(
    command: Sequence[str | Path], folder: Path, extra: Mapping[str, str] | None = None, spared: int = 0
) -> Sample:
    """Runs the command to its end; fails loudly when it does. The process `spared` is ours and none of its making."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=folder,
            env={**environment(), **(extra or {})},
        )
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        wall_ms = (time.perf_counter() - began) * 1000
        process.returncode = os.waitstatus_to_exitcode(status)
        orphans_ms = _reap_orphans(spared)
        out.seek(0)
        err.seek(0)
        printed, complaint = out.read().decode(), err.read().decode()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{complaint[-4000:]}")
    cpu_ms = (usage.ru_utime + usage.ru_stime) * 1000 + orphans_ms
    return Sample(cpu_ms, wall_ms, usage.ru_maxrss * _KILOBYTE / 1024 / 1024, _answer(printed))


def _reap_orphans(spared: int) -> float:
    """CPU time of processes that outlived the measured one; those that stay are an error."""
    total_ms = 0.0
    deadline = time.monotonic() + ORPHAN_S
    while orphans := [child.pid for child in psutil.Process().children() if child.pid != spared]:
        ended = [usage for pid, _, usage in (os.wait4(orphan, os.WNOHANG) for orphan in orphans) if pid]
        total_ms += sum((usage.ru_utime + usage.ru_stime) * 1000 for usage in ended)
        if time.monotonic() > deadline:
            raise SystemExit("a measured process left a process behind that does not end")
        if len(ended) < len(orphans):
            time.sleep(0.01)  # the only wait here: these processes are nobody's to be notified about
    return total_ms


def _answer(printed: str) -> dict[str, Any]:
    last = printed.strip().rpartition("\n")[2]
    if not last.startswith("{"):
        return {}
    answer: dict[str, Any] = json.loads(last)
    return answer


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    return {
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": sys.version.split()[0],
        "platform": f"{os.uname().sysname} {os.uname().machine}",
        "processor": _processor(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
