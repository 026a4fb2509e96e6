"""The one pooled HTTP client, and what can go wrong on the way to a provider.

Connections are made inside the running loop when first used. It trusts no proxy from the environment, keeps no cookies
and follows no redirect: a key goes to the address it was given for and nowhere else.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, unquote, urlsplit

import msgspec

from atlas.kernel.model import ModelError, Usage
from atlas.models.connection import Connection, Hear, NotHttp, Silent, new_buffer

if TYPE_CHECKING:
    from ssl import SSLContext

KEEP_ALIVE_S: Final = 55.0
_MARGIN_S: Final = 1.0
_TIMEOUT: Final = re.compile(r"\btimeout=([0-9]{1,9})\b", re.IGNORECASE | re.ASCII)
_CLOSING_S: Final = 1.0
_HAPPY_EYEBALLS_S: Final = 0.25
_IN_PATH: Final = "/%:@!$&'()*+,;=~"
_INFLATE: Final = 32 + zlib.MAX_WBITS  # gzip or zlib, whichever comes


class Patience(msgspec.Struct, frozen=True):
    """How long to wait for a connection, for the first byte of an answer, and between two pieces of it."""

    connect_s: float = 10.0
    first_byte_s: float = 300.0
    silence_s: float = 90.0


PATIENCE = Patience()


class Target(msgspec.Struct, frozen=True):
    """Where requests go and what they carry; `name` is the provider's, for messages, and `secret` is in no message."""

    name: str
    url: str
    headers: Mapping[str, str]
    secret: str = ""

    def __repr__(self) -> str:
        return f"Target(name={self.name!r}, url={shown(self.url)!r})"


def shown(url: str) -> str:
    """An address as people may see it: without its login and its query, which may hold a key."""
    scheme, slashes, rest = url.partition("://")
    where, mark, _ = rest.partition("?")
    login, at, host = where.partition("/")[0].rpartition("@")
    path = where[len(login + at + host) :]
    return f"{scheme}{slashes}{'***@' if at else ''}{host}{path}{'?***' if mark else ''}"


def login_of(url: str) -> str:
    """The login in an address as it is sent; empty when there is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if parts.username is None:
        return ""
    return b64encode(f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()).decode()


def host_of(url: str) -> str:
    """The host in an address; empty when there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def address(base_url: str, path: str, without: str = "") -> str:
    """The address of `path` below a base address that does not end in `without`; a query stays behind the path."""
    base, mark, query = base_url.partition("?")
    return base.rstrip("/").removesuffix(without) + path + mark + query


class Origin(msgspec.Struct, frozen=True):
    """What a connection goes to."""

    host: str
    port: int
    is_tls: bool


class Http:
    """Posts to providers over pooled connections; close it in the loop that used it."""

    def __init__(self, patience: Patience = PATIENCE) -> None:
        self._patience = patience
        self._buffer = new_buffer()
        self._known: dict[str, tuple[Target, Origin, bytes]] = {}
        self._open: set[Connection] = set()
        self._idle: dict[Origin, list[tuple[Connection, float]]] = {}
        self._tls: SSLContext | None = None
        self.in_use = 0
        """Connections that carry an exchange now."""

    @property
    def kept(self) -> int:
        """Connections that wait for the next exchange."""
        return sum(map(len, self._idle.values()))

    def post(self, target: Target, body: bytes, used: Callable[[], Usage], hear: Hear | None = None) -> Exchange:
        """An answer to read inside the context; ModelError when there is none or it breaks off.

        The error carries what `used` says, unless nothing was sent. An answer that is a stream of events is given to
        `hear` where it arrives. Leaving the context before the end of the answer, by an error or a cancellation,
        closes the connection.
        """
        return Exchange(self, target, body, used, hear)

    async def begin(self, target: Target, body: bytes, used: Callable[[], Usage], hear: Hear | None) -> Connection:
        """A connection on which the request is sent; whoever begins gives it back."""
        origin, head = self._prepared(target)
        first_byte_s = self._patience.first_byte_s
        connection = self._waiting(origin)
        if connection is None:
            connection, took_s = await self._made(origin, target.name, used)
            first_byte_s -= took_s
        self.in_use += 1
        connection.send(b"%b%d\r\n\r\n" % (head, len(body)), body, hear, first_byte_s, self._patience.silence_s)
        return connection

    def give_back(self, target: Target, connection: Connection) -> None:
        """Keeps the connection for the next exchange when this one has come to its end on it, else closes it."""
        self.in_use -= 1
        connection.end()
        if not connection.is_free:
            connection.abort()
            return
        now_s = asyncio.get_running_loop().time()
        waiting = self._idle.setdefault(self._prepared(target)[0], [])
        while waiting and now_s >= waiting[0][1]:
            waiting.pop(0)[0].abort()
        waiting.append((connection, now_s + _kept_for_s(connection)))

    async def close(self) -> None:
        """Closes every connection."""
        self._idle.clear()
        closing = [connection.closed for connection in self._open]
        for connection in self._open:
            connection.abort()
        if closing:
            await asyncio.wait(closing, timeout=_CLOSING_S)

    def _prepared(self, target: Target) -> tuple[Origin, bytes]:
        """Where the target is and what a request to it begins with; made once."""
        known = self._known.get(target.url)
        if known is None or known[0] is not target:
            known = self._known[target.url] = (target, *_request_to(target))
        return known[1], known[2]

    def _waiting(self, origin: Origin) -> Connection | None:
        """A connection that can be used again; the one used last, so that those too many grow old."""
        waiting = self._idle.get(origin, [])
        now_s = asyncio.get_running_loop().time()
        while waiting:
            connection, until_s = waiting.pop()
            if connection.is_free and now_s < until_s:
                return connection
            connection.abort()
        return None

    async def _made(self, origin: Origin, name: str, used: Callable[[], Usage]) -> tuple[Connection, float]:
        """A new connection and how long it took, which counts as waiting for the first byte too."""
        now = asyncio.get_running_loop().time
        began_s, limit = now(), asyncio.timeout(self._patience.first_byte_s)
        try:
            async with limit:
                connection = await self._connected(origin, name)
        except TimeoutError:
            if not limit.expired():
                raise
            raise _broken(name, Silent(), used()) from None
        return connection, now() - began_s

    async def _connected(self, origin: Origin, name: str) -> Connection:
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(self._patience.connect_s)
        options: dict[str, Any] = {"ssl": self._context() if origin.is_tls else None}
        if isinstance(loop, asyncio.BaseEventLoop):  # other loops do not take it
            options["happy_eyeballs_delay"] = _HAPPY_EYEBALLS_S
        try:
            async with limit:
                _, connection = await loop.create_connection(
                    lambda: Connection(self._buffer), origin.host, origin.port, **options
                )
        except TimeoutError:
            if not limit.expired():
                raise
            waited = f"{self._patience.connect_s:g} s"
            raise ModelError("timeout", f"{name} could not be reached within {waited}") from None
        except OSError as error:
            raise ModelError("connection", f"no connection to {name}: {_said(error)}", hint=_hint(error)) from None
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    def _context(self) -> SSLContext:
        if self._tls is None:
            import ssl

            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


class Exchange:
    """A request, and inside its context the answer as it arrives."""

    def __init__(
        self, http: Http, target: Target, body: bytes, used: Callable[[], Usage], hear: Hear | None = None
    ) -> None:
        self._http = http
        self._target = target
        self._body = body
        self._used = used
        self._hear = hear
        self._inflate: Callable[[bytes], bytes] | None = None

    async def __aenter__(self) -> Self:
        connection = await self._http.begin(self._target, self._body, self._used, self._hear)
        try:
            await connection.answered()
            self._inflate = self._unpacker(connection.headers.get("Content-Encoding", "identity").lower())
        except (NotHttp, Silent, OSError) as error:
            self._http.give_back(self._target, connection)
            raise _broken(self._target.name, error, self._used()) from None
        except BaseException:
            self._http.give_back(self._target, connection)
            raise
        self._connection = connection
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers
        self.content_type = connection.content_type
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.give_back(self._target, self._connection)

    async def heard(self) -> None:
        """Returns when `hear` wants no more of a stream of events, or has heard its end."""
        if self._inflate is None:
            try:
                await self._connection.heard()
            except (NotHttp, Silent, OSError) as error:
                raise _broken(self._target.name, error, self._used()) from None
        elif self._hear is not None:
            while (chunk := await self.read()) and not self._hear(chunk):
                pass

    async def read(self) -> bytes:
        """The next bytes, or none at the end."""
        try:
            chunk = await self._connection.read()
            while chunk and self._inflate is not None:
                unpacked = self._inflate(chunk)
                if unpacked:
                    return unpacked
                chunk = await self._connection.read()
        except (NotHttp, Silent, OSError, zlib.error) as error:
            raise _broken(self._target.name, error, self._used()) from None
        return chunk

    async def rest(self, limit: int) -> bytes:
        """What is left of the answer, its first `limit` bytes at most."""
        pieces: list[bytes] = []
        await self._collect(pieces, limit)
        return b"".join(pieces)[:limit]

    async def beginning(self, limit: int, seconds: float) -> bytes:
        """The same, as far as it comes within so many seconds; never fails."""
        pieces: list[bytes] = []
        with suppress(TimeoutError, ModelError):
            async with asyncio.timeout(seconds):
                await self._collect(pieces, limit)
        return b"".join(pieces)[:limit]

    async def _collect(self, pieces: list[bytes], limit: int) -> None:
        size = 0
        while size < limit and (chunk := await self.read()):
            pieces.append(chunk)
            size += len(chunk)

    async def linger(self, seconds: float) -> None:
        """Waits a moment for the end of an answer that has said all, so that its connection can be used again."""
        if self._connection.is_done:
            return
        try:
            async with asyncio.timeout(seconds):
                while await self._connection.read():
                    pass
        except (TimeoutError, NotHttp, Silent, OSError):
            return  # the context closes the connection; the answer is whole

    def _unpacker(self, encoding: str) -> Callable[[bytes], bytes] | None:
        """Nothing packed was asked for; a server that packs nevertheless is understood where Python can."""
        match encoding:
            case "identity" | "":
                return None
            case "gzip" | "x-gzip" | "deflate":
                return zlib.decompressobj(_INFLATE).decompress
        raise ModelError("server", f"{self._target.name} packed its answer with {encoding[:40]}", usage=self._used())


def _kept_for_s(connection: Connection) -> float:
    """How long a connection can be used again: a request that meets the server's closing of it is lost, and charged."""
    said = _TIMEOUT.search(connection.headers.get("Keep-Alive", ""))
    return KEEP_ALIVE_S if said is None else min(KEEP_ALIVE_S, int(said[1]) - _MARGIN_S)


def origin_of(name: str, url: str) -> Origin:
    """What a connection to an address goes to; ModelError when it leads nowhere. `name` is the provider's."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError:  # UnicodeError is one
        raise _no_address(name) from None
    if parts.scheme not in ("http", "https") or not host:
        raise _no_address(name)
    is_tls = parts.scheme == "https"
    return Origin(host, port or (443 if is_tls else 80), is_tls)


def _request_to(target: Target) -> tuple[Origin, bytes]:
    """Where it is, and the head of a request up to the length of its body."""
    origin, parts = origin_of(target.name, target.url), urlsplit(target.url)
    host, port = origin.host, parts.port
    named = f"[{host}]" if ":" in host else host
    headers = {"Host": named if port is None else f"{named}:{port}", **target.headers}
    if (login := login_of(target.url)) and "Authorization" not in headers:
        headers["Authorization"] = f"Basic {login}"
    if any(char in text for pair in headers.items() for text in pair for char in "\r\n\0"):
        hint = "Set the provider's key again, on one line."
        raise ModelError("auth", f"the key or a header of {target.name} holds a line break", hint=hint)
    path = quote(parts.path or "/", safe=_IN_PATH) + (
        f"?{quote(parts.query, safe=_IN_PATH + '?')}" if parts.query else ""
    )
    lines = (f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "Content-Length: ")
    return origin, "\r\n".join(lines).encode()


def _no_address(name: str) -> ModelError:
    return ModelError("auth", f"the address of {name} is not valid", hint="Write base_url as http(s)://host/path.")


def _broken(name: str, error: Exception, usage: Usage) -> ModelError:
    if isinstance(error, Silent):
        return ModelError("timeout", f"{name} was silent for too long", usage=usage)
    if isinstance(error, NotHttp):
        return ModelError("server", f"{name} does not speak HTTP properly: {error}", usage=usage)
    if isinstance(error, zlib.error):
        return ModelError("server", f"{name} sent what cannot be unpacked: {error}", usage=usage)
    return ModelError("connection", f"the connection to {name} broke: {_said(error)}", usage=usage)


def _hint(error: OSError) -> str:
    from ssl import SSLCertVerificationError  # asyncio has it loaded already

    if isinstance(error, SSLCertVerificationError):
        return "If you trust the server, put the file of its certificate's authority into SSL_CERT_FILE."
    return "Is the provider's address right, and is it reachable from here?"


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
