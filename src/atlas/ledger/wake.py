"""Wakes: who waits for a commit hears of it, whichever thread, loop or process made it.

A hub counts commits and wakes the waiters of this process. `Peers` carries the news between processes on one
machine: a process that waits binds a datagram socket in a folder beside the database, and who commits sends one
datagram to each of the others. Datagrams are hints. What makes a wake certain is the count, and for commits of
other processes a check of the database once a second while somebody waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import stat
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

CHECK_S: Final = 1.0
_SOCKET_PATH_MAX: Final = 107
_SOCKET_NAME_MAX: Final = 28  # <pid>-<12 hex digits>.w.sock
_WORK: Final = ".w.sock"
_EVERY: Final = ".e.sock"
_FRESH_NS: Final = 100_000_000
_BIND_TRIES: Final = 100

Waiter = asyncio.Future[None]


class Hub:
    """Counts commits; a waiter registered before a commit is woken by it, one that comes later sees the count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._waiters: set[Waiter] = set()
        self._checked_s = 0.0

    @property
    def count(self) -> int:
        """Commits so far; only ever grows."""
        return self._count

    def bump(self) -> None:
        """Records a commit and wakes everybody who waits; from any thread."""
        # Under the lock a waiter has either been registered, then it is in the set that is taken here, or it has
        # not, then `register` will see the new count. Nothing lies between.
        with self._lock:
            self._count += 1
            if not self._waiters:
                return
            waiters, self._waiters = self._waiters, set()
        loops: dict[asyncio.AbstractEventLoop, list[Waiter]] = {}
        for waiter in waiters:
            loops.setdefault(waiter.get_loop(), []).append(waiter)
        for loop, mine in loops.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits there any more
                loop.call_soon_threadsafe(_release, mine)

    def register(self, seen: int, loop: asyncio.AbstractEventLoop) -> Waiter | None:
        """A future that the next commit resolves, or None when there was one since `seen`."""
        with self._lock:
            if self._count != seen:
                return None
            waiter: Waiter = loop.create_future()
            self._waiters.add(waiter)
            return waiter

    def forget(self, waiter: Waiter) -> None:
        """Drops a waiter that nobody awaits any more."""
        with self._lock:
            self._waiters.discard(waiter)

    def take_check(self) -> bool:
        """Whether the caller should look at the database now; at most one of all waiters in `CHECK_S` does."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._checked_s < CHECK_S * 0.9:
                return False
            self._checked_s = now_s
            return True


class Subscription:
    """One reader's place in the count of commits."""

    def __init__(self, hub: Hub, check: Callable[[], Awaitable[None]] | None) -> None:
        self._hub = hub
        self._check = check
        self._seen = hub.count

    async def wait(self, timeout_s: float) -> bool:
        """True as soon as anything was committed since the last call, False after `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            waiter = self._hub.register(self._seen, loop)
            if waiter is None:
                self._seen = self._hub.count
                return True
            try:
                left_s = deadline_s - loop.time()
                if left_s <= 0:
                    return False
                await asyncio.wait((waiter,), timeout=left_s if self._check is None else min(left_s, CHECK_S))
            finally:
                self._hub.forget(waiter)
            if self._check is not None and not waiter.done() and self._hub.take_check():
                await self._check()


class Listener:
    """A socket of this process, at which other processes announce their commits; bumps the hub for each.

    Neither `bind` nor `close` ever fails: where sockets cannot be made, the check in `Subscription.wait` remains.
    Both are called by one thread only.
    """

    def __init__(self, path: Path, hub: Hub) -> None:
        self._path = path
        self._hub = hub
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def bind(self) -> None:
        """Listens from here on."""
        if self._socket is not None:
            return
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            _bind_in_folder(listener, self._path)
        except OSError:
            listener.close()
            return
        self._socket = listener
        self._is_closing = False
        self._thread = threading.Thread(target=self._listen, name="atlas-ledger-wake", args=(listener,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening and takes the socket away."""
        if self._socket is None or self._thread is None:
            return
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)  # ends the recv that the thread sits in
        self._thread.join()
        self._socket.close()
        self._socket = None
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _listen(self, listener: socket.socket) -> None:
        while True:
            listener.recv(1)
            if self._is_closing:
                return
            with contextlib.suppress(BlockingIOError):
                while listener.recv(1, socket.MSG_DONTWAIT):
                    pass
            self._hub.bump()


class Peers:
    """The other processes that wait on the same database, and the sockets at which this one waits.

    There are two kinds of socket, by name: one hears of every commit, one only of commits that make work, so that
    a process that only looks for work sleeps through the steps of another's runs.
    """

    def __init__(self, database: Path, nonce: str, work: Hub, every: Hub) -> None:
        folder = wake_folder(database)
        mine = f"{os.getpid()}-{nonce}"
        self._folder = str(folder)
        self._mine = mine
        self.work = Listener(folder / f"{mine}{_WORK}", work)
        self.every = Listener(folder / f"{mine}{_EVERY}", every)
        self._sender: socket.socket | None = None
        self._paths: list[str] = []
        self._listed_ns = -1

    def announce(self, *, has_work: bool) -> None:
        """Tells the others that something was committed; called by the writer thread only."""
        for path in self._list():
            if has_work or path.endswith(_EVERY):
                self._send(path)

    def close(self) -> None:
        """Takes every socket of this process away, and the folder when it was the last one."""
        self.work.close()
        self.every.close()
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)  # refused while a socket is in it
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _send(self, path: str) -> None:
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        try:
            self._sender.sendto(b"c", path)
        except BlockingIOError:
            pass  # its queue is full of news it has not looked at yet, so it will look after this commit
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):  # its process is gone
                os.unlink(path)
            self._listed_ns = -1
        except OSError:
            self._listed_ns = -1

    def _list(self) -> list[str]:
        """The sockets of the others; read again when the folder has changed."""
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
            if changed_ns != self._listed_ns:
                now_ns = time.time_ns()
                names = os.listdir(self._folder)
                self._paths = [f"{self._folder}/{name}" for name in names if self._is_peer(name)]
                # A socket made within the same tick of the file system's clock would not change the time again,
                # so a list is kept only once the folder has been quiet for longer than any tick.
                self._listed_ns = changed_ns if now_ns - changed_ns > _FRESH_NS else -1
        except OSError:
            self._paths = []
            self._listed_ns = -1
        return self._paths

    def _is_peer(self, name: str) -> bool:
        return name.endswith((_WORK, _EVERY)) and not name.startswith(self._mine)


def wake_folder(database: Path) -> Path:
    """Where the sockets of a database are; the same in every process, and short enough for a socket's address."""
    folder = Path(os.path.realpath(database.parent)) / "wake"
    if len(os.fsencode(folder)) + 1 + _SOCKET_NAME_MAX <= _SOCKET_PATH_MAX:
        return folder
    short = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    from tempfile import gettempdir  # pulls in archivers; most ledgers need no short path

    return Path(gettempdir()) / f"atlas-{os.getuid()}-{short}"


def _bind_in_folder(listener: socket.socket, path: Path) -> None:
    # Before there is a socket in it, another process that ends may take the empty folder away. Each process ends
    # once, so a few tries are enough.
    for _ in range(_BIND_TRIES):
        with contextlib.suppress(FileNotFoundError):
            _make_private(path.parent)
            listener.bind(str(path))
            return
    raise FileNotFoundError(f"{path.parent} cannot be made, or is taken away again and again")


def _make_private(folder: Path) -> None:
    """Makes the folder, or refuses one that another user could have put there."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, mode=0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")


def _release(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
