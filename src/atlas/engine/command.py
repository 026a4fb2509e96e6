"""Runs a shell command to its end: bounded in time and output, and nothing of it is left when this returns.

The command leads a process group of its own. A small watcher in that group waits on a pipe that only this process
holds open, so that the group ends with this process too, however it dies.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping
from typing import Final

from atlas.engine import process
from atlas.engine.launch import environ_of, on_exit
from atlas.kernel.hook_shipped import OracleRun

OUTPUT_LIMIT: Final = 1024 * 1024
TIMED_OUT: Final = 124
_CHUNK: Final = 64 * 1024
_READS: Final = 64
# The watcher reads from the pipe of life, which the command itself must not hold.
_SHELL: Final = 'exec 3<&0 </dev/null; ( read -r _ <&3; kill -9 0 ) >/dev/null 2>&1 & exec 3<&-; exec /bin/sh -c "$1"'


async def run_command(command: str, folder: str, timeout_s: float, environ: Mapping[str, str]) -> OracleRun:
    """The exit code and what was printed; OSError when it cannot be started. Cancelling it ends the command."""
    life_read, life_write = os.pipe()
    out_read, out_write = os.pipe()
    try:
        popen = subprocess.Popen(  # noqa: ASYNC220 - starting is quick; nobody waits for its end here
            ["/bin/sh", "-c", _SHELL, "sh", command],
            stdin=life_read,
            stdout=out_write,
            stderr=subprocess.STDOUT,
            cwd=folder or None,
            env=environ_of(environ),
            start_new_session=True,
        )
    except OSError:
        os.close(life_write)
        os.close(out_read)
        raise
    finally:
        os.close(life_read)
        os.close(out_write)
    output = _Output(out_read)
    try:
        is_in_time = await _ended_in(popen, timeout_s)
    finally:
        status = _reaped(popen)
        output.close()
        os.close(life_write)
    if not is_in_time:
        return OracleRun(TIMED_OUT, f"{output.text}\n(stopped: it took longer than {timeout_s:g} s)")
    return OracleRun(status if status >= 0 else 128 - status, output.text)


async def _ended_in(popen: subprocess.Popen[bytes], timeout_s: float) -> bool:
    ended = asyncio.Event()
    on_exit(popen, ended.set)
    try:
        async with asyncio.timeout(timeout_s):
            await ended.wait()
    except TimeoutError:
        return False
    return True


def _reaped(popen: subprocess.Popen[bytes]) -> int:
    """Ends the group and returns the command's status; what it left running ends with it."""
    # Nobody has waited for the leader yet, so the number of the group is its own.
    process.kill_group(popen.pid)
    return popen.wait()


class _Output:
    """What is printed into a pipe: its beginning and its end, and how much lies between them."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._head = b""
        self._tail = b""
        self._left_out = 0
        os.set_blocking(pipe, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pipe, self._readable)

    @property
    def text(self) -> str:
        """All that is kept of it."""
        gap = f"\n[{self._left_out} bytes in between were not kept]\n".encode() if self._left_out else b""
        return (self._head + gap + self._tail).decode(errors="replace")

    def close(self) -> None:
        """Takes what is there and reads no more; a process that escaped its group may hold the pipe open."""
        self._loop.remove_reader(self._pipe)
        # A pipe holds 64 KB, so a few reads get all that was written before this call.
        for _ in range(_READS):
            if not self._read():
                break
        os.close(self._pipe)

    def _readable(self) -> None:
        if self._read() == 0:
            self._loop.remove_reader(self._pipe)

    def _read(self) -> int | None:
        """How much came: nothing at the end, None when there is nothing yet."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return None
        room = OUTPUT_LIMIT // 2 - len(self._head)
        self._head += data[:room]
        kept = self._tail + data[max(room, 0) :]
        self._left_out += max(0, len(kept) - OUTPUT_LIMIT // 2)
        self._tail = kept[-(OUTPUT_LIMIT // 2) :]
        return len(data)
