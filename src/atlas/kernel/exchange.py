"""An exchange: one step of a turn as requests show it, and what gives way in one that is too large. Pure.

    performed(step, spoken, results, ...)    what the model said, and what its calls came to
    squeezed(exchange, handle, limit)        the same in fewer bytes

What gives way leaves the handle that brings it back. A call and its result stay or go together, because providers refuse
one without the other.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.kernel.excerpt import FENCE_SIZE, shorten
from atlas.kernel.model import Message, Part, Text, Thinking, ToolCall, ToolResult, is_too_deep
from atlas.kernel.token import Limits, is_within, size_of, text_size

NOTHING: Final = Text("(nothing)")
"""What stands for words where there are none: providers refuse a message without parts."""
_LEAST: Final = 256
"""What a text keeps as long as anything else can give way."""

_Pair: TypeAlias = tuple[ToolCall, ToolResult]


class Exchange(msgspec.Struct, frozen=True):
    """One step: what the model said and what came back.

    `size` is its bytes in a request, `line` stands for it once it is dropped. Results are not fenced here. `unshown` counts
    its last calls that only one line stands for.
    """

    step: int
    messages: tuple[Message, ...]
    size: int
    line: str
    unshown: int = 0


def performed(
    step: int, spoken: tuple[Part, ...], results: tuple[ToolResult, ...], handle: str, line: str, sizes: Limits
) -> Exchange:
    """The exchange of a step whose tools answered; `handle` is the step's.

    Results share half of the window, `sizes` being limits in bytes; none has less than a few lines.
    """
    limit = _share([one.text for one in results], sizes.window // 2, sizes.result)
    said = Message("assistant", tuple(_repeated(part, handle, sizes.result) for part in spoken))
    shown = [
        ToolResult(one.id, shorten(one.text, f"{handle}.{number}", limit), one.is_error)
        for number, one in enumerate(results, start=1)
    ]
    messages = (said, Message("user", tuple(shown)))
    return Exchange(step, messages, _fenced_size(messages, handle), line)


def squeezed(exchange: Exchange, handle: str, limit: int) -> Exchange:
    """The exchange within `limit` bytes, or as near as its first call and one line for all others come.

    First long texts are shortened. Then thoughts go as a whole: they are signed, so a part of one would be refused. Then
    results are left with nothing but their handles, from the last on, and in the end the last calls go altogether.
    """
    short = _shortened_texts(exchange, handle, limit)
    if short.size > limit and (bare := _thoughtless(exchange, handle)) is not exchange:
        exchange, short = bare, _shortened_texts(bare, handle, limit)
    return short if short.size <= limit else _fewer(exchange, short, handle, limit)


def _shortened_texts(exchange: Exchange, handle: str, limit: int) -> Exchange:
    """The exchange in about `limit` bytes, its long texts shortened to what their handles bring back."""
    said, told = exchange.messages
    results = [part for part in told.parts if isinstance(part, ToolResult)]
    texts = [one for one in map(_text_of, (*said.parts, *results)) if one]
    share = _share(texts, limit - exchange.size + sum(map(text_size, texts)), limit)
    heard = [_cut(part, f"{handle}.{number}", share) for number, part in enumerate(results, start=1)]
    spoken = tuple(_cut(part, handle, share) for part in said.parts)
    return _with(exchange, handle, spoken, (*heard, *told.parts[len(results) :]))


def _thoughtless(exchange: Exchange, handle: str) -> Exchange:
    said, told = exchange.messages
    spoken = tuple(part for part in said.parts if not isinstance(part, Thinking))
    return exchange if spoken == said.parts else _with(exchange, handle, spoken or (NOTHING,), told.parts)


def _fewer(exchange: Exchange, short: Exchange, handle: str, limit: int) -> Exchange:
    """The exchange when texts of a few lines are too long: results give way to their handles, calls to one line."""
    words = "".join([part.text for part in exchange.messages[0].parts if isinstance(part, Text)])
    pairs = _pairs(short)
    if not pairs:
        return short
    total = len(pairs) + exchange.unshown

    def shown(most: int) -> Exchange:
        spoken = (Text(shorten(words, handle, most, is_part=True)),) if words else ()
        unshown = total - len(pairs)
        rest = (Text(_unshown_line(handle, len(pairs) + 1, total)),) if unshown else ()
        parts = ((*spoken, *(call for call, _ in pairs)), (*(result for _, result in pairs), *rest))
        return replace(_with(exchange, handle, *parts), unshown=unshown)

    most = max(limit // 4, _LEAST)
    excess = shown(most).size - limit
    for place in reversed(range(len(pairs))):
        if excess > 0:
            whole, pairs[place] = pairs[place], _bare(pairs[place], handle, place + 1)
            excess -= size_of(whole) - size_of(pairs[place])
    if excess > 0 and total == len(pairs):
        # Longer than it can come out: each number in it has at least as many digits.
        excess += size_of(Text(_unshown_line(handle, total, 2 * total))) + 1
    while excess > 0 and len(pairs) > 1:
        excess -= size_of(pairs.pop()) + _fence_size(handle) - 1
    fewer = shown(most)
    return fewer if fewer.size <= limit else shown(0)


def _pairs(exchange: Exchange) -> list[_Pair]:
    """The calls that are shown, each with what came of it."""
    said, told = exchange.messages
    calls = [part for part in said.parts if isinstance(part, ToolCall)]
    results = [part for part in told.parts if isinstance(part, ToolResult)]
    return list(zip(calls, results, strict=True))


def _bare(pair: _Pair, handle: str, number: int) -> _Pair:
    """A call and its result with nothing but handles where these are shorter."""
    call, result = pair
    told = f"[recall(handle='{handle}.{number}') shows it]"
    if not is_within(result.text, len(told)):
        result = ToolResult(result.id, told, result.is_error)
    args = msgspec.json.encode({"shortened": f"recall(handle='{handle}')"}).decode()
    if text_size(args) < text_size(call.args):
        call = ToolCall(call.id, call.name, args)
    return call, result


def _unshown_line(handle: str, first: int, last: int) -> str:
    """What stands for the calls of a step from one to another."""
    one, many = f"recall(handle='{handle}.{first}')", f" to recall(handle='{handle}.{last}')"
    if first == last:
        return f"[1 more call of this step was made and is not shown: {one} brings back what came of it]"
    return f"[{last - first + 1} more calls of this step were made and are not shown: {one}{many} bring back what came of them]"


def _with(exchange: Exchange, handle: str, said: tuple[Part, ...], told: tuple[Part, ...]) -> Exchange:
    messages = (Message("assistant", said), Message("user", told))
    return replace(exchange, messages=messages, size=_fenced_size(messages, handle))


def _text_of(part: Part) -> str:
    """What of a part may be long, and can be recalled."""
    match part:
        case Text() | ToolResult():
            return part.text
        case ToolCall():
            return part.args
    return ""


def _cut(part: Part, handle: str, limit: int) -> Part:
    match part:
        case Text():
            return Text(shorten(part.text, handle, limit, is_part=True))
        case ToolResult():
            return ToolResult(part.id, shorten(part.text, handle, limit, is_part=True), part.is_error)
        case ToolCall() if not is_within(part.args, limit):
            # Escapes of escapes: JSON in JSON takes up to twice the bytes.
            return ToolCall(part.id, part.name, _shortened(part.args, handle, limit // 2))
    return part


def _shortened(args: str, handle: str, limit: int) -> str:
    """Arguments as JSON, which they have to stay, that says no more than their beginning and end."""
    return msgspec.json.encode({"shortened": shorten(args, handle, limit, is_part=True)}).decode()


def _fenced_size(messages: tuple[Message, ...], handle: str) -> int:
    """The bytes of an exchange once its results are fenced."""
    results = sum(isinstance(part, ToolResult) for part in messages[-1].parts)
    return size_of(messages) + results * _fence_size(handle)


def _fence_size(handle: str) -> int:
    return FENCE_SIZE + len(handle) + 4


def _share(texts: list[str], room: int, most: int) -> int:
    """How much each text may have so that all fit into `room`: small ones leave what they do not need to others."""
    sizes = sorted(map(text_size, texts))
    for number, size in enumerate(sizes):
        share = room // (len(sizes) - number)
        if size > share:
            return max(min(share, most), _LEAST)
        room -= size
    return most


def _repeated(part: Part, handle: str, limit: int) -> Part:
    """A part of what the model said as it is shown to it again: the long texts among its arguments are shortened."""
    if not isinstance(part, ToolCall) or (is_within(part.args, limit) and not is_too_deep(part.args)):
        return part
    value: Any = {"malformed": part.args}
    if not is_too_deep(part.args):
        with suppress(msgspec.DecodeError):
            value = msgspec.json.decode(part.args)
    share = max(limit // max(_leaves(value), 1), _LEAST)
    args = msgspec.json.encode(_leaner(value, handle, share)).decode()
    if text_size(args) > 2 * limit:
        args = _shortened(part.args, handle, limit)
    return ToolCall(part.id, part.name, args)


def _leaner(value: Any, handle: str, limit: int) -> Any:
    match value:
        case str():
            return shorten(value, handle, limit, is_part=True)
        case dict():
            return {key: _leaner(one, handle, limit) for key, one in value.items()}
        case list():
            return [_leaner(one, handle, limit) for one in value]
        case _:
            return value


def _leaves(value: Any) -> int:
    match value:
        case dict():
            return sum(_leaves(one) for one in value.values())
        case list():
            return sum(_leaves(one) for one in value)
        case _:
            return 1
