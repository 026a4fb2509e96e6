"""One HTTP/1.1 connection to a provider: sends a request, and takes its answer apart as it arrives.

No more of HTTP than a model call needs, because every layer is paid for with every token: no redirects, no cookies, no
proxies. Bytes become the answer's where they arrive. A stream of events is also heard there, and whoever waits for it
is woken at its end; any other answer is read, and its reader woken when there is something to read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from math import inf
from typing import Final, TypeAlias, TypeVar, cast, overload

from atlas.models.watch import Watch

HEAD_LIMIT: Final = 64 * 1024
UNREAD_LIMIT: Final = 256 * 1024
_LINE_LIMIT: Final = 8 * 1024
_BUFFER: Final = 32 * 1024
_TOGETHER: Final = 64 * 1024  # up to this size a body is copied behind its head rather than sent by itself
_LENGTH: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_SIZE: Final = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;.*?)?\r\n", re.DOTALL)
_T = TypeVar("_T")

Hear: TypeAlias = Callable[[bytes], bool]
"""Takes the next bytes of an answer, never raises; whether what follows does not matter any more."""


class NotHttp(Exception):
    """What came is not an answer in HTTP/1."""


class Silent(Exception):
    """Nothing came for too long."""


class Headers(Mapping[str, str]):
    """The headers of an answer; the case of a name does not matter. `by_name`: the same under lower-case names."""

    def __init__(self, lines: list[str]) -> None:
        self.by_name: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise NotHttp(f"a header that is none: {line[:80]!r}")
            name, value = name.lower(), value.strip()
            self.by_name[name] = f"{self.by_name[name]}, {value}" if name in self.by_name else value

    def __getitem__(self, name: str) -> str:
        return self.by_name[name.lower()]

    @overload
    def get(self, name: str, /) -> str | None: ...
    @overload
    def get(self, name: str, /, default: _T) -> str | _T: ...
    def get(self, name: str, /, default: _T | None = None) -> str | _T | None:
        """The value of a header, else the default."""
        return self.by_name.get(name.lower(), default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)


_NO_HEADERS: Final = Headers([])


class _Place(Enum):
    """Where in an answer the next byte stands."""

    IDLE = auto()
    HEAD = auto()
    LENGTH = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    UNTIL_CLOSED = auto()
    DONE = auto()


def new_buffer() -> memoryview:
    """Where what arrives is put. Made once: one for every read costs more than reading, one for each connection much memory."""
    return memoryview(bytearray(_BUFFER))


class Connection(asyncio.BufferedProtocol):
    """Carries one exchange after the other.

    `status`, `headers` and `content_type`, without its parameters, are those of the answer that is arriving. All that a loop
    reads may go through one `buffer`: what is put into it is taken out before anything else is read.
    """

    def __init__(self, buffer: memoryview) -> None:
        self.status = 0
        self.headers = _NO_HEADERS
        self.content_type = ""
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = buffer
        self._place = _Place.IDLE
        self._kept = b""
        self._left = 0
        self._pieces: list[bytes] = []
        self._unread = 0
        self._is_paused = False
        self._is_kept_alive = True
        self._error: Exception | None = None
        self._wanted: Hear | None = None
        self._hear: Hear | None = None
        self._watch = Watch(lambda: self._stop(Silent()))
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_free(self) -> bool:
        """Whether it can carry another exchange: it is open, and nothing of the last one can still be on it."""
        is_over = self._place in (_Place.IDLE, _Place.DONE)
        is_clean = not self._kept and not self._is_paused
        return is_over and self._is_kept_alive and is_clean and not self.closed.done()

    @property
    def is_done(self) -> bool:
        """Whether the whole answer has arrived."""
        return self._place is _Place.DONE

    def send(
        self, head: bytes, body: bytes, hear: Hear | None = None, first_byte_s: float = inf, silence_s: float = inf
    ) -> None:
        """Begins an exchange; an answer that is a stream of events is given to `hear` where it arrives.

        The answer breaks off with Silent when nothing of it came for `first_byte_s`, or then for `silence_s`.
        """
        self.status, self.headers, self.content_type = 0, _NO_HEADERS, ""
        self._place, self._error = _Place.HEAD, None
        self._wanted, self._hear = hear, None
        self._pieces.clear()
        self._unread = 0
        self._watch.start(first_byte_s, silence_s)
        if self._transport is None or self.closed.done():
            self._fail(ConnectionResetError("the connection was closed"))
        elif len(body) <= _TOGETHER:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    async def answered(self) -> None:
        """Returns when the head of the answer is there, or all of an answer that is heard where it arrives.

        OSError, NotHttp or Silent when it never will be.
        """
        while not self.status:
            await self._more()

    async def heard(self) -> None:
        """Returns when `hear` wants no more of the answer, or has heard its end.

        OSError, NotHttp or Silent when the answer breaks off before.
        """
        while self._hear is not None and not self.is_done:
            await self._more()

    async def read(self) -> bytes:
        """The next bytes of the answer, or none at its end; OSError, NotHttp or Silent when it breaks off."""
        while not self._pieces:
            if self.is_done:
                return b""
            await self._more()
        data = self._taken()
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def end(self) -> None:
        """The exchange is over, as far as it went."""
        self._wanted = self._hear = None
        self._watch.end()

    def abort(self) -> None:
        """Closes it at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        # Loops other than asyncio's own have transports that are none of its classes.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed; an answer whose end nothing else marks is whole now."""
        self._watch.close()
        if not self.closed.done():
            self.closed.set_result(None)
        if self._place is _Place.UNTIL_CLOSED and exc is None and self._error is None:
            self._place = _Place.DONE
        elif self._place not in (_Place.IDLE, _Place.DONE):
            self._fail(exc or ConnectionResetError("the server closed the connection"))
        self._wake()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what arrives."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So much arrived."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Takes apart what arrived, as far as it goes."""
        data, self._kept = (self._kept + data if self._kept else data), b""
        try:
            while data:
                rest = self._take(data)
                if rest is None:
                    self._kept = data
                    break
                data = rest
        except NotHttp as error:
            self._stop(error)
        if self._pieces:  # a head alone is not the first byte: servers send it before the model has begun
            self._watch.heard()
        if self._hear is not None:
            self._give(self._hear)
            return
        if self._unread > UNREAD_LIMIT and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def _give(self, hear: Hear) -> None:
        """Has what came heard; who waits is woken when that was the last."""
        if self._pieces and hear(self._taken()):
            self._hear = None
        if self._hear is None or self._error is not None or self.is_done:
            self._wake()

    def _take(self, data: bytes) -> bytes | None:
        """What is left of the data after its next part; None when that part is not all there yet."""
        match self._place:
            case _Place.LENGTH | _Place.CHUNK:
                return self._body(data)
            case _Place.CHUNK_SIZE:
                return self._chunk_size(data)
            case _Place.CHUNK_END:
                return self._chunk_end(data)
            case _Place.HEAD:
                return self._head(data)
            case _Place.TRAILER:
                return self._trailer(data)
            case _Place.UNTIL_CLOSED:
                self._add(data)
                return b""
            case _Place.IDLE | _Place.DONE:
                self._is_kept_alive = False  # nobody asked for it, so nobody knows what it belongs to
                return b""

    def _head(self, data: bytes) -> bytes | None:
        if not data.startswith(b"HTTP/1."[: len(data)]):
            raise NotHttp(f"it says {data[:40]!r}")
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > HEAD_LIMIT:
                raise NotHttp("its headers have no end")
            return None
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        version, _, said = first.partition(" ")
        if not said[:3].isascii() or not said[:3].isdigit():
            raise NotHttp(f"it says {first[:40]!r}")
        status, headers = int(said[:3]), Headers(lines)
        if status >= 200:  # what is below announces the answer
            self.status, self.headers = status, headers
            self._frame(version == "HTTP/1.1")
            self.content_type = headers.by_name.get("content-type", "").partition(";")[0].strip().lower()
            is_packed = headers.by_name.get("content-encoding", "").lower() not in ("", "identity")
            if status == 200 and self.content_type == "text/event-stream" and not is_packed:
                self._hear = self._wanted
        return data[end + 4 :]

    def _frame(self, is_new: bool) -> None:
        """How the end of the answer will be known, and whether the connection lives on behind it."""
        headers = self.headers.by_name
        said = headers.get("connection")
        tokens = {token.strip() for token in said.lower().split(",")} if said else ()
        self._is_kept_alive = "close" not in tokens and (is_new or "keep-alive" in tokens)
        coding, length = headers.get("transfer-encoding", "").lower(), headers.get("content-length", "")
        if self.status in (204, 304):
            self._place = _Place.DONE
        elif coding:
            if coding.rpartition(",")[2].strip() != "chunked":
                raise NotHttp(f"its transfer encoding is {coding[:40]!r}")
            self._place = _Place.CHUNK_SIZE
            self._is_kept_alive = self._is_kept_alive and not length
        elif length:
            if not _LENGTH.fullmatch(length):
                raise NotHttp(f"its content length is {length[:40]!r}")
            self._left = int(length)
            self._place = _Place.LENGTH if self._left else _Place.DONE
        else:
            self._place = _Place.UNTIL_CLOSED
            self._is_kept_alive = False

    def _body(self, data: bytes) -> bytes:
        piece = data if len(data) <= self._left else data[: self._left]
        self._add(piece)
        self._left -= len(piece)
        if not self._left:
            self._place = _Place.DONE if self._place is _Place.LENGTH else _Place.CHUNK_END
        return data[len(piece) :]

    def _chunk_size(self, data: bytes) -> bytes | None:
        """Takes every chunk that is all there, and the beginning of the one that is not."""
        at, total = 0, len(data)
        while (line := _SIZE.match(data, at)) is not None:
            size, begin = int(line[1], 16), line.end()
            end = begin + size
            if not size or total < end + 2:
                self._left = size
                self._place = _Place.CHUNK if size else _Place.TRAILER
                return data[begin:]
            if not data.startswith(b"\r\n", end):
                raise NotHttp("a chunk is longer than it says")
            self._pieces.append(data[begin:end])
            self._unread += size
            at = end + 2
        line_end = data.find(b"\r\n", at)
        if line_end >= 0:
            raise NotHttp(f"a chunk of {data[at:line_end].partition(b';')[0].strip()[:40]!r} bytes")
        if total - at > _LINE_LIMIT:
            raise NotHttp("a line without an end")
        return data[at:] if at else None

    def _chunk_end(self, data: bytes) -> bytes | None:
        if len(data) < 2:
            return None
        if data[:2] != b"\r\n":
            raise NotHttp("a chunk is longer than it says")
        self._place = _Place.CHUNK_SIZE
        return data[2:]

    def _trailer(self, data: bytes) -> bytes | None:
        line, rest = _line(data)
        if rest is not None and not line:
            self._place = _Place.DONE
        return rest

    def _add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._unread += len(piece)

    def _taken(self) -> bytes:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._unread = 0
        return data

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._is_kept_alive = False

    def _stop(self, error: Exception) -> None:
        """Breaks the answer off here."""
        self._fail(error)
        self.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _line(data: bytes) -> tuple[bytes, bytes | None]:
    """The first line and what follows it; None follows when the line is not all there."""
    end = data.find(b"\r\n")
    if end < 0:
        if len(data) > _LINE_LIMIT:
            raise NotHttp("a line without an end")
        return b"", None
    return data[:end], data[end + 2 :]
