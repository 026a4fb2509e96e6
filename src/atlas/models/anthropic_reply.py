"""Reading a messages answer, streamed or whole: blocks in their order, thoughts with their signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from atlas.kernel.model import (
    Delta,
    OnDelta,
    Part,
    Reply,
    Request,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from atlas.models.estimate import completed, estimate, tokens
from atlas.models.failure import complaint_from, stream_failure
from atlas.models.final_tool import FinalTool
from atlas.models.wire import settled_stop, unique_ids

_NOTHING = msgspec.Raw(b"null")
_EMPTY = msgspec.Raw(b"{}")
_STOPS: Mapping[str, StopReason] = {
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",  # the server wants to be asked to go on
    "refusal": "refusal",
}


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Block(msgspec.Struct, gc=False):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str | None = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = _NOTHING


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Message(msgspec.Struct, gc=False):
    model: str | None = ""
    content: list[_Block] = msgspec.field(default_factory=list)
    stop_reason: str | None = None
    usage: msgspec.Raw = _NOTHING
    error: msgspec.Raw = _NOTHING


class _Event(msgspec.Struct, gc=False):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: msgspec.Raw = _NOTHING
    error: msgspec.Raw = _NOTHING


class _Draft:
    """A block whose text is still coming."""

    def __init__(self, block: _Block) -> None:
        self.block = block
        self.pieces: list[str] = [text] if (text := block.text or block.thinking) else []
        self.signature = [block.signature or ""]

    @property
    def text(self) -> str:
        return "".join(self.pieces)


_EVENT = msgspec.json.Decoder(_Event)
_MESSAGE = msgspec.json.Decoder(_Message)
_USAGE = msgspec.json.Decoder(_Usage)


class AnthropicReading:
    """Collects an answer block by block."""

    def __init__(self, request: Request, on_delta: OnDelta, name: str, final: FinalTool | None = None) -> None:
        self.is_done = False
        self.is_whole = False
        self._final = final
        self._spoken = None if final is None else final.spoken
        self._request = request
        self._on_delta = on_delta
        self._name = name
        self._model = request.model
        self._drafts: list[_Draft] = []
        self._by_index: dict[int, _Draft] = {}  # a server that gives two blocks the same one means the last
        self._stop = ""
        self._said = _Usage()

    def event(self, data: bytes) -> bool:
        """Takes one event of a stream; whether it held a piece of the answer."""
        event = _EVENT.decode(data)
        match event.type:
            case "content_block_delta" if event.delta is not None:
                self._grow(event.index, event.delta)
                return True
            case "content_block_start" if event.content_block is not None:
                self._begin(event.index, event.content_block)
                return True
            case "message_start" if event.message is not None:
                self._model = event.message.model or self._model
                self._count(event.message.usage)
            case "message_delta":
                if event.delta is not None and event.delta.stop_reason:
                    self._stop = event.delta.stop_reason
                    self.is_whole = True
                self._count(event.usage)
            case "message_stop":
                self.is_done = True
            case "error":
                complaint = complaint_from(msgspec.json.decode(event.error))
                raise stream_failure(self._name, complaint, self.used() if self._has_begun else None)
            case _:
                pass  # pings, and kinds that a later version adds
        return False

    def whole(self, data: bytes) -> None:
        """Takes an answer that came in one piece."""
        message = _MESSAGE.decode(data)
        if message.error != _NOTHING:
            raise stream_failure(self._name, complaint_from(msgspec.json.decode(message.error)), None)
        if message.stop_reason is None and not message.content:
            raise msgspec.DecodeError("an answer without content")
        self._model = message.model or self._model
        self._stop = message.stop_reason or ""
        self._count(message.usage)
        for index, block in enumerate(message.content):
            self._begin(index, block)
        self.is_done = True

    def used(self) -> Usage:
        """As the server said; what it did not say is estimated from what was sent and what came."""
        said = self._said
        size = sum(len(piece.encode(errors="surrogatepass")) for d in self._drafts for piece in d.pieces)
        cached, written = max(0, said.cache_read_input_tokens or 0), max(0, said.cache_creation_input_tokens or 0)
        total = max(0, said.input_tokens or 0) + cached + written
        if not total:
            return estimate(self._request, size)
        if (self.is_whole or self.is_done) and said.output_tokens is not None:
            return completed(Usage(total, max(0, said.output_tokens), cached, written), self._request, size)
        # Cut off: the count at the start of a stream is a placeholder, so what arrived is counted too.
        return Usage(total, max(said.output_tokens or 0, tokens(size)), cached, written, is_estimated=True)

    def reply(self) -> Reply:
        """The answer, its blocks in the order in which they began."""
        calls = [(d.block.id, d.block.name, _args(d)) for d in self._drafts if d.block.type == "tool_use"]
        unique = iter(unique_ids(calls, self._request.step))
        parts = [part for draft in self._drafts if (part := _part(draft, unique)) is not None]
        stop = settled_stop(_STOPS.get(self._stop, "end"), len(calls))
        reply = Reply(tuple(parts), stop, self.used(), self._model)
        return reply if self._final is None else self._final.settled(reply)

    @property
    def _has_begun(self) -> bool:
        return self._said != _Usage() or bool(self._drafts)

    def _count(self, said: msgspec.Raw) -> None:
        """Later counts replace earlier ones, as far as they say something; those that make no sense say nothing."""
        if said == _NOTHING:
            return
        try:
            usage = _USAGE.decode(said)
        except msgspec.DecodeError:
            return
        old = self._said
        self._said = _Usage(
            usage.input_tokens or old.input_tokens,
            old.output_tokens if usage.output_tokens is None else usage.output_tokens,
            usage.cache_read_input_tokens or old.cache_read_input_tokens,
            usage.cache_creation_input_tokens or old.cache_creation_input_tokens,
        )

    def _begin(self, index: int, block: _Block) -> None:
        draft = self._by_index[index] = _Draft(block)
        self._drafts.append(draft)
        if block.type == "tool_use":
            if block.name != self._spoken:
                self._say("tool", block.name)
            elif block.input not in (_NOTHING, _EMPTY):
                self._say("text", _args(draft))
        elif draft.pieces:
            self._say("text" if block.type == "text" else "thinking", draft.text)

    def _grow(self, index: int, delta: _Delta) -> None:
        draft = self._by_index.get(index)
        if draft is None:
            raise msgspec.DecodeError("a delta for a block that never began")
        match delta.type:
            case "text_delta":
                draft.pieces.append(delta.text)
                self._say("text", delta.text)
            case "thinking_delta":
                draft.pieces.append(delta.thinking)
                self._say("thinking", delta.thinking)
            case "input_json_delta":
                draft.pieces.append(delta.partial_json)
                if draft.block.name == self._spoken:
                    self._say("text", delta.partial_json)
            case "signature_delta":
                draft.signature.append(delta.signature)
            case _:
                pass

    def _say(self, kind: Literal["text", "thinking", "tool"], text: str) -> None:
        self._on_delta(Delta(kind, text, self._request.attempt, self._request.step))


def _args(draft: _Draft) -> str:
    """The call's arguments as the model wrote them: streamed, or whole with the block."""
    return draft.text or ("" if draft.block.input == _NOTHING else bytes(draft.block.input).decode())


def _part(draft: _Draft, calls: Iterator[ToolCall]) -> Part | None:
    match draft.block.type:
        case "text":
            return Text(draft.text) if draft.pieces else None
        case "thinking":
            return Thinking(draft.text, "".join(draft.signature))
        case "redacted_thinking":
            return Thinking("", redacted=draft.block.data)
        case "tool_use":
            return next(calls)
        case _:
            return None  # what the server did with tools of its own
