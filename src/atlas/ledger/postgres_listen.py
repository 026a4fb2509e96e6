"""Hears of other processes' commits: one listening session for each process, in a thread of its own.

The server delivers every notification that was committed while the session stood. For the time it does not stand,
whoever waits looks for himself once a second, and when it stands again everybody is woken once.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Final

import psycopg

from atlas.kernel.errors import AtlasError
from atlas.ledger.postgres_link import Connection, Link

WORK: Final = "atlas_work"
EVENTS: Final = "atlas_events"
_PAUSE_S: Final = 1.0


class PostgresListener:
    """Calls `heard` for commits of other processes, with whether they made work; `nonce` marks our own."""

    def __init__(self, link: Link, nonce: str, heard: Callable[[bool], None]) -> None:
        self._link = link
        self._nonce = nonce.encode()
        self._heard = heard
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._is_closing = False
        self._wake_r, self._wake_w = -1, -1
        self.is_listening = False

    def start(self) -> None:
        """Listens from here on, or, when the server is away, as soon as it is back; blocks until one of both."""
        with self._lock:
            if self._thread is None and not self._is_closing:
                self._wake_r, self._wake_w = os.pipe()
                self._thread = threading.Thread(target=self._run, name="atlas-ledger-listener", daemon=True)
                self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """Stops listening."""
        with self._lock:
            self._is_closing = True
            if self._thread is None:
                return
            os.write(self._wake_w, b"q")
            self._thread.join()
            self._thread = None
            os.close(self._wake_r)
            os.close(self._wake_w)

    def _run(self) -> None:
        try:
            while not self._is_closing:
                connection = self._connect()
                self._ready.set()
                if connection is None:
                    self._wait(_PAUSE_S)
                    continue
                try:
                    self._listen(connection)
                except psycopg.Error:
                    pass  # lost: connected again above
                finally:
                    self.is_listening = False
                    connection.close()
        finally:
            self._ready.set()

    def _connect(self) -> Connection | None:
        try:
            connection = self._link.connect("reader")
        except AtlasError:
            return None
        try:
            connection.execute(f"LISTEN {WORK}")
            connection.execute(f"LISTEN {EVENTS}")
        except psycopg.Error:
            connection.close()
            return None
        self.is_listening = True
        # Whatever was committed while nobody listened was not heard.
        self._heard(True)
        return connection

    def _listen(self, connection: Connection) -> None:
        session = connection.pgconn
        while not self._is_closing:
            self._wait(None, session.socket)
            session.consume_input()
            channels = set()
            while (note := session.notifies()) is not None:
                if note.extra != self._nonce:
                    channels.add(note.relname.decode())
            if channels:
                self._heard(WORK in channels)

    def _wait(self, seconds: float | None, *sockets: int) -> None:
        """Returns when one of the sockets has something to say, when this is to be closed, or when time is up."""
        poll = select.poll()  # unlike select() it takes descriptors of any number
        for descriptor in (self._wake_r, *sockets):
            poll.register(descriptor, select.POLLIN)
        poll.poll(None if seconds is None else seconds * 1000)
