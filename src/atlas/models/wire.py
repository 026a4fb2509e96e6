"""One call over HTTP, the same for both wires: send, read the stream or the whole, and judge what came.

What a wire says is read by a `Reading`; this module only knows that an answer is a stream of events or one JSON
document, that its end must be said and not just happen, and that an answer without words or calls is none.
"""

from __future__ import annotations

import asyncio
import re
from contextvars import copy_context
from hashlib import blake2s
from typing import Final, Protocol

import msgspec

from atlas.kernel.model import ModelError, Part, Reply, StopReason, Text, ToolCall, Usage
from atlas.kernel.port import Clock
from atlas.models.failure import http_failure, malformed, shortened
from atlas.models.http import Exchange, Http, Target
from atlas.models.sse import Events

ERROR_BODY_LIMIT = 64 * 1024
ERROR_BODY_S = 1.0
REPLY_LIMIT = 64 * 2**20
LINGER_S = 0.2
END_S = 1.0
NAME_LIMIT: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Reading(Protocol):
    """An answer being read in one wire's words."""

    is_done: bool  # the provider said that nothing follows
    is_whole: bool  # nothing of the answer is missing, whether or not something follows

    def event(self, data: bytes) -> bool:
        """Takes one event of a stream; whether it held a piece of the answer.

        msgspec.DecodeError when it is not what the wire allows.
        """
        ...

    def whole(self, data: bytes) -> None:
        """Takes an answer that came in one piece."""
        ...

    def used(self) -> Usage:
        """What the call used so far: as the provider said, else estimated."""
        ...

    def reply(self) -> Reply:
        """The answer."""
        ...


async def converse(http: Http, target: Target, body: bytes, reading: Reading, clock: Clock) -> Reply:
    """The provider's answer to `body`; raises ModelError, whose message never holds the key.

    A stream that has said all is an answer, however it ends or does not: another would be billed too.
    """
    stream = _Stream(reading, target)
    try:
        async with (
            asyncio.timeout(None) as stream.limit,
            http.post(target, body, reading.used, stream.hear) as exchange,
        ):
            match exchange.content_type if exchange.status == 200 else None:
                case "text/event-stream":
                    await exchange.heard()
                    stream.end()
                    await exchange.linger(LINGER_S)
                case "application/json":  # also when a stream was asked for: some servers cannot
                    await _whole(exchange, reading, target)
                case _:
                    raise await _refusal(exchange, target, clock)
    except TimeoutError:
        if not stream.is_whole:
            raise
    except ModelError as error:
        if not stream.is_whole:
            raise _keyless(error, target) from None
    return judged(reading.reply(), target.name)


def _keyless(error: ModelError, target: Target) -> ModelError:
    """The error without the key: providers quote the one they do not like. It goes before the message is cut."""
    said = error.message.replace(target.secret, "***") if target.secret else error.message
    error.message = shortened(said)
    error.args = (error.message,)
    return error


class _Stream:
    """A streamed answer, read event by event.

    `is_whole`: nothing of it is missing and nothing was wrong with it. `limit` ends the wait for what may follow then.
    """

    def __init__(self, reading: Reading, target: Target) -> None:
        self._reading = reading
        self._target = target
        self._events = Events()
        self._size = 0
        self._failure: BaseException | None = None
        self.limit: asyncio.Timeout | None = None
        self.is_whole = False
        # Listeners are called in the context of whoever asks, not of whoever opened the connection.
        self._context = copy_context()

    def hear(self, chunk: bytes) -> bool:
        """Reads the events that these bytes complete; whether nothing that follows matters.

        It is called where the bytes arrive: what is wrong with them, and whatever those raise who are told of the
        answer, waits for `end`.
        """
        self._size += len(chunk)
        try:
            if self._size > REPLY_LIMIT:
                used = self._reading.used()
                raise ModelError("server", f"{self._target.name} sent more than {REPLY_LIMIT} bytes", usage=used)
            is_more = self._context.run(self._read, self._events.feed(chunk))
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is waited for
            self._failure = error
            self.is_whole = False
            return True
        # Servers end every piece as if it were the last, and others ping when all is said: only a piece gives them time.
        if self._reading.is_whole and (is_more or not self.is_whole):
            self.is_whole = True
            self._expect_end()
        return self._reading.is_done

    def end(self) -> None:
        """Nothing follows; ModelError when the answer is not whole."""
        if self._failure is not None:
            raise self._failure
        reading = self._reading
        if not reading.is_done:
            self._read(self._events.close())
        if not (reading.is_done or reading.is_whole):
            raise ModelError(
                "connection", f"{self._target.name} stopped in the middle of its answer", usage=reading.used()
            )

    def _expect_end(self) -> None:
        """What is left may take a moment more, from now on."""
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time() + END_S)

    def _read(self, events: list[bytes]) -> bool:
        """Reads events; whether any of them held a piece of the answer."""
        reading, is_more = self._reading, False
        for data in events:
            if reading.is_done:
                break  # what follows the end is no part of the answer, however the network cuts it
            try:
                is_more = reading.event(data) or is_more
            except _UNREADABLE:
                raise _unreadable(self._target, "an event", data, reading) from None
        return is_more


async def _whole(exchange: Exchange, reading: Reading, target: Target) -> None:
    data = await exchange.rest(REPLY_LIMIT)
    try:
        reading.whole(data)
    except _UNREADABLE:
        raise _unreadable(target, "an answer", data, reading) from None


async def _refusal(exchange: Exchange, target: Target, clock: Clock) -> ModelError:
    """What is wrong with an answer that holds no reply."""
    if exchange.status != 200:  # says enough by itself, and nobody bills for a refusal that breaks off
        data = _clean(await exchange.beginning(ERROR_BODY_LIMIT, ERROR_BODY_S), target)
        return http_failure(target.name, exchange.status, exchange.headers, data, clock.now_us())
    data = _clean(await exchange.rest(ERROR_BODY_LIMIT), target)
    return malformed(target.name, f"{exchange.content_type or 'an unnamed kind of content'} instead of an answer", data)


def _unreadable(target: Target, what: str, data: bytes, reading: Reading) -> ModelError:
    return malformed(target.name, f"{what} that cannot be read", _clean(data, target), reading.used())


def _clean(data: bytes, target: Target) -> bytes:
    """The bytes without the key, nor a beginning of it where they break off.

    A message shows a part of them, and a part of a key is found no more.
    """
    if not (secret := target.secret.encode()):
        return data
    data = data.replace(secret, b"***")
    half = next((size for size in range(len(secret) - 1, 3, -1) if data.endswith(secret[:size])), 0)
    return data[: len(data) - half]


def judged(reply: Reply, name: str) -> Reply:
    """The reply, unless it ends of itself without a word or a call: then the call must be made again."""
    if reply.stop in ("end", "tool_call") and not any(_says_something(part) for part in reply.parts):
        raise ModelError("empty", f"{name} gave an empty answer", usage=reply.usage)
    return reply


def _says_something(part: Part) -> bool:
    match part:
        case Text(text=text):
            return bool(text.strip())
        case _:
            return isinstance(part, ToolCall)


def settled_stop(stop: StopReason, calls: int) -> StopReason:
    """`stop` as the calls bear it out: servers say `stop` and call, or the other way round."""
    if calls and stop == "end":
        return "tool_call"
    return "end" if stop == "tool_call" and not calls else stop


def as_object(args: str) -> str:
    """A call's arguments as the JSON object that servers want to see again; what is none is shown as it was written."""
    try:
        if isinstance(msgspec.json.decode(args), dict):
            return args
    except (msgspec.DecodeError, RecursionError):
        pass
    return msgspec.json.encode({"malformed": args}).decode()


def as_name(name: str) -> str:
    """A tool's name in a history as every server takes it, whatever a model made up."""
    return _NOT_IN_NAMES.sub("_", name)[:NAME_LIMIT] or "_"


def as_id(given: str) -> str:
    """A call's id in the letters of names; what is changed carries its digest, so that two ids never become one."""
    if given and as_name(given) == given:
        return given
    digest = blake2s(given.encode(), digest_size=8).hexdigest()
    return f"{as_name(given)[: NAME_LIMIT - 1 - len(digest)]}_{digest}"


def unique_ids(calls: list[tuple[str, str, str]], step: int) -> list[ToolCall]:
    """The calls (id, name, args) with ids that differ, some servers repeat them or give none, and args that are there."""
    seen: set[str] = set()
    found = []
    for number, (given, name, args) in enumerate(calls, 1):
        base = given or f"call_{step}_{number}"
        unique, copy = base, 1
        while unique in seen:
            copy += 1
            unique = f"{base}_{copy}"
        seen.add(unique)
        found.append(ToolCall(unique, name, args if args.strip() else "{}"))
    return found
