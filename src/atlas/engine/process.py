"""Processes of this host that can be told from later ones with the same pid, and ended for sure.

A takeover kills what a dead or stale owner left running. It must neither hit a stranger that got an old pid nor
take a process of another machine or container for a dead one of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from atlas.kernel.errors import NotFound
from atlas.kernel.event import Process
from atlas.kernel.principal import INSIDE

_PROC: Final = Path("/proc")
_DEAD: Final = frozenset("ZXx")


class _Stat(NamedTuple):
    """One line of the process table."""

    state: str
    parent: int
    group: int
    session: int
    started_us: int


def this_host() -> str:
    """Names this boot of this machine and, in a container, this container: where a pid means one process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        import platform

        boot, space = platform.node(), platform.system()
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:16]


def process_of(pid: int) -> Process:
    """The process that has this pid now, or NotFound."""
    stat = _stat(pid)
    if stat is None:
        raise NotFound(f"there is no process {pid}")
    return Process(this_host(), pid, stat.started_us)


def is_alive(process: Process) -> bool:
    """False when exactly this process surely executes no more; a process of another host nobody here can see is alive."""
    if process.host != this_host():
        return True
    stat = _stat(process.pid)
    return stat is not None and stat.started_us == process.started_us and stat.state not in _DEAD


async def kill(process: Process) -> None:
    """Ends the process, its session and its descendants; returns when none of them executes.

    A process that has the pid but not the start time is another one and stays untouched, and so does a process of
    another host.
    """
    if process.host != this_host() or not is_alive(process):
        return
    pids = family(process.pid)
    handles = [handle for handle in (_open(pid) for pid in pids) if handle is not None]
    try:
        # The pid is looked at again now that handles pin it: from here on it cannot become a stranger's.
        if not is_alive(process):
            return
        kill_group(process.pid)
        for pid, handle in handles:
            _signal(pid, handle)
        for pid, handle in handles:
            await _gone(pid, handle)
    finally:
        for _pid, handle in handles:
            if handle >= 0:
                os.close(handle)


async def kill_tools_of(driver: Process) -> None:
    """Ends the processes in which a driver has tools executed, when it is another one of this host and still lives.

    Those of a dead driver are dead. A driver that is alive and yet lost a run was asleep, and its tools go on without it.
    """
    if driver.host != this_host() or driver.pid == os.getpid() or not is_alive(driver):
        return
    for pid in family(driver.pid):
        stat = _stat(pid)
        if stat is not None and stat.parent == driver.pid and _is_for_tools(pid):
            await kill(Process(driver.host, pid, stat.started_us))


def _is_for_tools(pid: int) -> bool:
    """Whether it serves tools: its environment says that it acts for runs, and for none in particular."""
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{INSIDE}=-".encode() in environ.split(b"\0")


def kill_group(leader: int) -> None:
    """SIGKILLs the group of a process that leads one; nothing when it is gone already."""
    try:
        if os.getpgid(leader) == leader:
            os.killpg(leader, signal.SIGKILL)
        else:
            os.kill(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def family(pid: int) -> list[int]:
    """The process itself, those of the session and group it leads, and all descendants of those."""
    table = {other: stat for other in _pids() if (stat := _stat(other)) is not None}
    found = {pid}
    grows = True
    while grows:
        more = {
            other
            for other, stat in table.items()
            if other not in found and (stat.parent in found or stat.group == pid or stat.session == pid)
        }
        grows = bool(more)
        found |= more
    return [pid, *sorted(found - {pid})]


def _pids() -> Iterable[int]:
    if _PROC.is_dir():
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    import psutil

    return psutil.pids()


def _stat(pid: int) -> _Stat | None:
    try:
        line = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None if (_PROC / "self").exists() else _portable_stat(pid)
    # The name in parentheses may itself hold spaces and parentheses; everything after the last one is plain.
    words = line[line.rindex(b")") + 2 :].split()
    # Ticks since boot, not a wall-clock time: setting the clock does not change who a process is.
    started_us = int(words[19]) * 1_000_000 // os.sysconf("SC_CLK_TCK")
    return _Stat(words[0].decode(), int(words[1]), int(words[2]), int(words[3]), started_us)


def _portable_stat(pid: int) -> _Stat | None:
    import psutil

    try:
        found = psutil.Process(pid)
        state = "Z" if found.status() == psutil.STATUS_ZOMBIE else "R"
        started_us = round(found.create_time() * 1_000_000)
        return _Stat(state, found.ppid(), os.getpgid(pid), os.getsid(pid), started_us)
    except (psutil.Error, ProcessLookupError, PermissionError):
        return None


def _open(pid: int) -> tuple[int, int] | None:
    """The pid with a handle that always means this process; -1 where the system has none; None when it is gone."""
    if not hasattr(os, "pidfd_open"):
        return pid, -1
    try:
        return pid, os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _signal(pid: int, handle: int) -> None:
    try:
        if handle >= 0:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


async def _gone(pid: int, handle: int) -> None:
    if handle < 0:
        import psutil

        await asyncio.to_thread(psutil.wait_procs, [psutil.Process(pid)] if psutil.pid_exists(pid) else [], 10)
        return
    if select.select([handle], [], [], 0)[0]:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
