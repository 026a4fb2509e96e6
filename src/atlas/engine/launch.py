"""Starts a worker process with its socket, its pipes and the thread of life that ends it when the driver dies."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from atlas.kernel.principal import INSIDE

_BOOT: Final = str(Path(__file__).with_name("boot.py"))


class Launched(NamedTuple):
    """A started worker and the driver's ends of everything that leads to it."""

    popen: subprocess.Popen[bytes]
    sock: socket.socket
    life: int
    stdout: int
    stderr: int

    def abandon(self) -> None:
        """Ends it and closes everything; for a worker that nobody has begun to listen to."""
        self.popen.kill()
        self.popen.wait()
        self.sock.close()
        for pipe in (self.life, self.stdout, self.stderr):
            os.close(pipe)


def launch(
    folder: str, python: str, environ: Mapping[str, str], run_id: str = "", inherited: Sequence[int] = ()
) -> Launched:
    """Starts a worker in a session of its own; OSError when the system cannot start it, and then nothing is left open.

    It gets the open files `inherited` too, under the same numbers.
    """
    ours, theirs = socket.socketpair()
    life_read, life_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        popen = subprocess.Popen(
            [python, "-P", _BOOT, str(theirs.fileno()), str(life_read), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=out_write,
            stderr=err_write,
            cwd=folder,
            env=environ_of(environ, run_id),
            pass_fds=(theirs.fileno(), life_read, *inherited),
            start_new_session=True,
        )
    except OSError:
        ours.close()
        for pipe in (life_write, out_read, err_read):
            os.close(pipe)
        raise
    finally:
        theirs.close()
        for pipe in (life_read, out_write, err_write):
            os.close(pipe)
    ours.setblocking(False)
    return Launched(popen, ours, life_write, out_read, err_read)


def environ_of(environ: Mapping[str, str], run_id: str = "") -> dict[str, str]:
    """The environment of whatever acts in a run's name; it says so, with the run where only one is served.

    Atlas's own settings, the address of the ledger among them, are not the business of what a run starts.
    """
    public = {name: text for name, text in environ.items() if not name.startswith("ATLAS_")}
    return {**public, INSIDE: run_id or "-"}


def on_exit(popen: subprocess.Popen[bytes], exited: Callable[[], None]) -> None:
    """Calls `exited` on the running loop once the process has ended."""
    loop = asyncio.get_running_loop()
    if hasattr(os, "pidfd_open"):
        handle = os.pidfd_open(popen.pid)

        def readable() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            exited()

        loop.add_reader(handle, readable)
        return

    def wait() -> None:
        popen.wait()
        loop.call_soon_threadsafe(exited)

    threading.Thread(target=wait, name=f"atlas-wait-{popen.pid}", daemon=True).start()
