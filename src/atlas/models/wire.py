"""One call over HTTP, the same for both wires: send, read the stream or the whole, and judge what came.

What a wire says is read by a `Reading`; this module only knows that an answer is a stream of events or one JSON
document, that its end must be said and not just happen, and that an answer without words or calls is none.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from atlas.kernel.model import ModelError, Part, Reply, StopReason, Text, ToolCall, Usage
from atlas.kernel.port import Clock
from atlas.models.failure import http_failure, malformed
from atlas.models.http import Exchange, Http, Target
from atlas.models.sse import Events

ERROR_BODY_LIMIT = 64 * 1024
REPLY_LIMIT = 64 * 2**20
LINGER_S = 0.2


class Reading(Protocol):
    """An answer being read in one wire's words."""

    is_done: bool  # the provider said that nothing follows
    is_whole: bool  # nothing of the answer is missing, whether or not something follows

    def event(self, data: bytes) -> None:
        """Takes one event of a stream; msgspec.DecodeError when it is not what the wire allows."""
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
    """The provider's answer to `body`; raises ModelError, whose message never holds the key."""
    try:
        async with http.post(target, body, reading.used) as exchange:
            await _receive(exchange, reading, target.name, clock)
    except ModelError as error:
        if target.secret and target.secret in error.message:  # providers quote the key they do not like
            error.message = error.message.replace(target.secret, "***")
            error.args = (error.message,)
        raise
    return judged(reading.reply(), target.name)


async def _receive(exchange: Exchange, reading: Reading, name: str, clock: Clock) -> None:
    if exchange.status != 200:
        data = await exchange.rest(ERROR_BODY_LIMIT)
        raise http_failure(name, exchange.status, exchange.headers, data, clock.now_us())
    kind = exchange.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    match kind:
        case "text/event-stream":
            await _stream(exchange, reading, name)
        case "application/json":  # also when a stream was asked for: some servers cannot
            await _whole(exchange, reading, name)
        case _:
            start = await exchange.rest(200)
            raise malformed(name, f"{kind or 'an unnamed kind of content'} instead of an answer", start)


async def _stream(exchange: Exchange, reading: Reading, name: str) -> None:
    events, size = Events(), 0
    while not reading.is_done:
        chunk = await exchange.read()
        size += len(chunk)
        if size > REPLY_LIMIT:
            raise ModelError("server", f"{name} sent more than {REPLY_LIMIT} bytes", usage=reading.used())
        for data in events.feed(chunk) if chunk else events.close():
            try:
                reading.event(data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise malformed(name, "an event that cannot be read", data, reading.used()) from None
        if not chunk:
            break
    if not (reading.is_done or reading.is_whole):
        raise ModelError("connection", f"{name} stopped in the middle of its answer", usage=reading.used())
    await exchange.linger(LINGER_S)


async def _whole(exchange: Exchange, reading: Reading, name: str) -> None:
    data = await exchange.rest(REPLY_LIMIT)
    try:
        reading.whole(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise malformed(name, "an answer that cannot be read", data, reading.used()) from None


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
