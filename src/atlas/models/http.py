"""The one pooled HTTP client, and what can go wrong on the way to a provider.

Made inside the running loop when first used. It trusts no proxy from the environment, keeps no cookies and follows
no redirect: a key goes to the address it was given for and nowhere else.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from atlas.kernel.model import ModelError, Usage

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from yarl import URL

KEEP_ALIVE_S = 55.0
# Larger bodies are handed over as a file, which aiohttp writes in pieces.
WHOLE_BODY = 2**20


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
        return f"Target(name={self.name!r}, url={self.url!r})"


class Http:
    """Posts to providers over pooled connections; close it in the loop that used it."""

    def __init__(self, patience: Patience = PATIENCE) -> None:
        self._patience = patience
        self._session: ClientSession | None = None
        self._urls: dict[str, URL] = {}

    @asynccontextmanager
    async def post(self, target: Target, body: bytes, used: Callable[[], Usage]) -> AsyncIterator[Exchange]:
        """An answer to read inside the context; ModelError when there is none or it breaks off.

        The error carries what `used` says, unless nothing was sent. Leaving the context before the end of the answer,
        by an error or a cancellation, closes the connection.
        """
        limit = asyncio.timeout(self._patience.first_byte_s)
        try:
            async with limit:
                async with await self._send(target, body, used) as response:
                    yield Exchange(response, target.name, limit, self._patience.silence_s, used)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ModelError("timeout", f"{target.name} was silent for too long", usage=used()) from None

    async def close(self) -> None:
        """Closes every connection."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _send(self, target: Target, body: bytes, used: Callable[[], Usage]) -> ClientResponse:
        import aiohttp

        url = self._urls.get(target.url) or self._parsed(target.url)
        data = body if len(body) <= WHOLE_BODY else io.BytesIO(body)
        try:
            return await self._opened().post(url, data=data, headers=target.headers, allow_redirects=False)
        except aiohttp.ConnectionTimeoutError:
            waited = f"{self._patience.connect_s:g} s"
            raise ModelError("timeout", f"{target.name} could not be reached within {waited}") from None
        except aiohttp.ClientConnectorError as error:
            hint = "Is the provider's address right, and is it reachable from here?"
            raise ModelError("connection", f"no connection to {target.name}: {error}", hint=hint) from None
        except aiohttp.InvalidURL:
            raise ModelError("invalid", f"the address of {target.name} is not valid") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _broken(target.name, error, used()) from None

    def _opened(self) -> ClientSession:
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                # No limit here: how many calls a provider takes at once is the router's to say.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._patience.connect_s),
                trust_env=False,
                raise_for_status=False,
            )
        return self._session

    def _parsed(self, text: str) -> URL:
        from yarl import URL

        try:
            url = URL(text)
        except ValueError:
            raise ModelError("invalid", f"{text!r} is not an address") from None
        return self._urls.setdefault(text, url)


class Exchange:
    """An answer that is arriving."""

    def __init__(
        self, response: ClientResponse, name: str, limit: asyncio.Timeout, silence_s: float, used: Callable[[], Usage]
    ) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._content = response.content
        self._name = name
        self._limit = limit
        self._silence_s = silence_s
        self._used = used
        self._now = asyncio.get_running_loop().time

    async def read(self) -> bytes:
        """The next bytes, or none at the end."""
        from aiohttp import ClientError

        try:
            chunk = await self._content.readany()
        except (ClientError, OSError) as error:
            raise _broken(self._name, error, self._used()) from None
        self._limit.reschedule(self._now() + self._silence_s)
        return chunk

    async def rest(self, limit: int) -> bytes:
        """What is left of the answer, its first `limit` bytes at most."""
        pieces, size = [], 0
        while size < limit and (chunk := await self.read()):
            pieces.append(chunk)
            size += len(chunk)
        return b"".join(pieces)[:limit]

    async def linger(self, seconds: float) -> None:
        """Waits a moment for the end of an answer that has said all, so that its connection can be used again."""
        from aiohttp import ClientError

        try:
            async with asyncio.timeout(seconds):
                while not self._content.at_eof():
                    await self._content.readany()
        except (TimeoutError, ClientError, OSError):
            return  # the context closes the connection; the answer is whole


def _broken(name: str, error: Exception, usage: Usage) -> ModelError:
    from aiohttp import ClientResponseError

    if isinstance(error, ClientResponseError):
        return ModelError("server", f"{name} does not speak HTTP properly: {error.message}", usage=usage)
    why = str(error) or type(error).__name__
    return ModelError("connection", f"the connection to {name} broke: {why}", usage=usage)
