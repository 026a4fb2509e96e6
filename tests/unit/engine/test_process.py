"""Processes: told apart, and ended with all they started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from atlas.engine.process import is_alive, kill, process_of, this_host
from atlas.kernel.errors import NotFound

TREE = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"], {options})
print(child.pid, flush=True)
time.sleep(60)
"""


@contextmanager
def tree(options: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process in a session of its own, and its child's pid."""
    popen = subprocess.Popen(
        [sys.executable, "-c", TREE.format(options=options)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert popen.stdout is not None
    with popen.stdout:
        lines = {popen.stdout.readline().strip(), popen.stdout.readline().strip()}
        child = int((lines - {"up"}).pop())
        try:
            yield popen, child
        finally:
            for pid in (popen.pid, child):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            popen.wait()


def test_this_process_is_alive_and_named_the_same_each_time() -> None:
    me = process_of(os.getpid())
    assert (me.pid, me.host) == (os.getpid(), this_host())
    assert me == process_of(os.getpid())
    assert is_alive(me)


def test_process_that_does_not_exist_is_not_found() -> None:
    with pytest.raises(NotFound, match="no process 4194304"):
        process_of(4_194_304)  # the largest pid Linux gives is one less


def test_later_process_with_the_same_pid_is_another_one_and_is_not_killed() -> None:
    with tree() as (popen, _child):
        real = process_of(popen.pid)
        stale = msgspec.structs.replace(real, started_us=real.started_us - 10_000)
        assert not is_alive(stale)
        asyncio.run(kill(stale))
        assert popen.poll() is None
        assert is_alive(real)


def test_process_of_another_host_counts_as_alive_and_is_not_touched() -> None:
    with tree() as (popen, _child):
        foreign = msgspec.structs.replace(process_of(popen.pid), host="elsewhere")
        assert is_alive(foreign)
        asyncio.run(kill(foreign))
        assert popen.poll() is None


def test_zombie_is_not_alive() -> None:
    popen = subprocess.Popen([sys.executable, "-c", ""])
    process = process_of(popen.pid)
    os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process)
    asyncio.run(kill(process))
    assert popen.wait() == 0


@pytest.mark.parametrize("options", ["", "start_new_session=True", "process_group=0"])
def test_kill_ends_the_process_and_its_children_in_whatever_group(options: str) -> None:
    with tree(options) as (popen, child):
        process, grandchild = process_of(popen.pid), process_of(child)
        asyncio.run(kill(process))
        assert not is_alive(process)
        assert not is_alive(grandchild)
        assert popen.wait() == -signal.SIGKILL
        asyncio.run(kill(process))


def test_stopped_process_can_be_killed() -> None:
    with tree() as (popen, _child):
        process = process_of(popen.pid)
        os.kill(popen.pid, signal.SIGSTOP)
        asyncio.run(kill(process))
        assert not is_alive(process)


def test_killing_a_process_that_leads_no_group_leaves_its_group_alone() -> None:
    popen = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = process_of(popen.pid)
    asyncio.run(kill(process))
    assert popen.wait() == -signal.SIGKILL
