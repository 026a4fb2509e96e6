"""A gate on the way to a server: lets an answer through up to a certain word and holds the rest until it is opened."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

PATIENCE_S = 60.0


class Gate:
    """Stands at `url` before the server at `behind`. Closed, it holds what comes after the event with `word` in it."""

    def __init__(self, behind: str, word: str = "") -> None:
        host, _, port = behind.removeprefix("http://").partition(":")
        self._behind = (host, int(port))
        self._word = word.encode()
        self._open = threading.Event()
        self._held = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def wait(self) -> None:
        """Returns when the rest of an answer stands at the gate."""
        assert self._held.wait(PATIENCE_S), "no answer came to the gate"

    @property
    def is_holding(self) -> bool:
        """Whether an answer is only half through."""
        return self._held.is_set() and not self._open.is_set()

    def open(self) -> None:
        """Lets everything through from here on."""
        self._open.set()

    def cut(self) -> None:
        """Breaks every connection, as a server does that dies."""
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._behind)
                except ConnectionRefusedError:
                    client.close()
                    continue
                self._sockets += [client, server]
                self._start(self._pass, client, server)
                self._start(self._hold, server, client)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        self._end(source, target)

    def _hold(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            seen = b""
            while data := source.recv(65536):
                seen += data
                end = self._end_of_part(seen) - (len(seen) - len(data))
                if end <= 0:
                    target.sendall(data)
                    continue
                self._held.set()  # before the first part is out: whoever has seen that may rely on it
                target.sendall(data[:end])
                self._open.wait(PATIENCE_S)
                target.sendall(data[end:])
        self._end(source, target)

    def _end_of_part(self, seen: bytes) -> int:
        """Where the event with the word ends; 0 when it has not come yet, or has gone through before."""
        at = seen.find(self._word) if self._word and not self._held.is_set() else -1
        return seen.find(b"\n\n", at) + 2 if at >= 0 and seen.find(b"\n\n", at) >= 0 else 0

    def _end(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
