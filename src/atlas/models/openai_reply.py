"""Reading a chat completions answer, streamed or whole, from servers that take liberties with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from atlas.kernel.model import Delta, ModelError, OnDelta, Part, Reply, Request, StopReason, Text, Thinking, Usage
from atlas.models.estimate import MOST_TOKENS, completed
from atlas.models.failure import complaint_from, stream_failure
from atlas.models.final_tool import FinalTool
from atlas.models.openai_thought import Details, Field, Way
from atlas.models.wire import settled_stop, unique_ids

_NOTHING = msgspec.Raw(b"null")
_STOPS: Mapping[str, StopReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "content_filter": "filter",
    "sensitive": "filter",
}
# The server gave up on its own answer: OpenRouter and Mistral, vLLM and SGLang, DeepSeek, Z.ai.
_GAVE_UP = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)
    extra_content: Any = None


class _Piece(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""


class _Words(msgspec.Struct, gc=False):
    """A message or a piece of one."""

    content: str | list[_Piece] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: _Words | None = None
    message: _Words | None = None
    finish_reason: str | None = None
    error: msgspec.Raw = _NOTHING


class _Answer(msgspec.Struct, gc=False):
    """A chunk of a stream, or a whole answer."""

    model: str | None = None
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = _NOTHING
    error: msgspec.Raw = _NOTHING


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = 0
    cache_write_tokens: int | None = 0


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int | None = 0
    total_tokens: Any = None  # whatever it is, the others count
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = 0


class _Draft:
    """A tool call whose arguments are still coming."""

    def __init__(self, given: str, name: str) -> None:
        self.id = given
        self.name = name
        self.args: list[str] = []
        self.signed: Any = None

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are JSON as far as they came."""
        try:
            msgspec.json.decode("".join(self.args))
        except msgspec.DecodeError:
            return False
        return True


_ANSWER = msgspec.json.Decoder(_Answer)
_USAGE = msgspec.json.Decoder(_Usage)


class OpenAIReading:
    """Collects an answer piece by piece."""

    def __init__(self, request: Request, on_delta: OnDelta, name: str, final: FinalTool | None = None) -> None:
        self.is_done = False
        self.is_whole = False
        self._final = final
        self._spoken = None if final is None else final.spoken
        self._request = request
        self._on_delta = on_delta
        self._name = name
        self._model = request.model
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._field: Field = "reasoning_content"
        self._details = Details()
        self._refusal: list[str] = []
        self._drafts: list[_Draft] = []
        self._by_index: dict[int, _Draft] = {}
        self._finish = ""
        self._usage: Usage | None = None

    def event(self, data: bytes) -> bool:
        """Takes one chunk of a stream; whether it held a piece of the answer."""
        if data == b"[DONE]":
            self.is_done = True
            return False
        return self._take(_ANSWER.decode(data))

    def whole(self, data: bytes) -> None:
        """Takes an answer that came in one piece."""
        answer = _ANSWER.decode(data)
        self._take(answer)
        if not answer.choices:
            raise msgspec.DecodeError("an answer without choices")
        self.is_done = True

    def used(self) -> Usage:
        """As the server said, else estimated from what was sent and what came."""
        pieces = (*self._text, *self._thinking, *(piece for draft in self._drafts for piece in draft.args))
        size = sum(len(piece.encode(errors="surrogatepass")) for piece in pieces)
        return completed(self._usage or Usage(), self._request, size)

    def reply(self) -> Reply:
        """The answer, thoughts first and calls last; ModelError when the server gave it up half-way."""
        if self._finish in _GAVE_UP:
            raise ModelError("server", f"{self._name} gave up on its answer: {self._finish}", usage=self.used())
        parts: list[Part] = []
        written = [(draft.id, draft.name, "".join(draft.args)) for draft in self._drafts]
        calls = unique_ids(written, self._request.step)
        signed = {call.id: draft.signed for call, draft in zip(calls, self._drafts, strict=True) if draft.signed}
        if (details := self._details.whole()) or self._thinking or signed:
            # The words of the details, wherever they came too: what is taken out of them is taken out of both.
            thought = self._details.text or "".join(self._thinking)
            parts.append(Thinking(thought, Way(self._field, details, signed).signature))
        text = "".join(self._text or self._refusal)
        if text:
            parts.append(Text(text))
        parts += calls
        stop = "refusal" if self._refusal else settled_stop(_STOPS.get(self._finish, "end"), len(calls))
        reply = Reply(tuple(parts), stop, self.used(), self._model)
        return reply if self._final is None else self._final.settled(reply)

    def _take(self, answer: _Answer) -> bool:
        is_more = False
        if answer.error != _NOTHING:
            raise self._failure(answer.error)
        if answer.model:
            self._model = answer.model
        if answer.usage != _NOTHING:
            self._usage = _usage(answer.usage) or self._usage
        for choice in answer.choices or ():
            if choice.index:
                continue  # one answer was asked for
            if choice.error != _NOTHING:
                raise self._failure(choice.error)
            if choice.delta is not None:
                is_more = self._hear(choice.delta) or is_more
                for piece in choice.delta.tool_calls or ():
                    self._add(piece, self._known(piece))
            elif choice.message is not None:
                is_more = self._hear(choice.message) or is_more
                for whole in choice.message.tool_calls or ():
                    self._add(whole, None)
            if choice.finish_reason:
                self._finish = choice.finish_reason
                self.is_whole = True
        return is_more

    def _hear(self, words: _Words) -> bool:
        """Takes the words; whether there were any, or calls."""
        detailed = self._details.hear(words.reasoning_details) if words.reasoning_details else ""
        if thought := words.reasoning_content or words.reasoning or detailed:
            if words.reasoning and not words.reasoning_content:
                self._field = "reasoning"
            self._thinking.append(thought)
            self._say("thinking", thought)
        if content := words.content:
            text = content if isinstance(content, str) else "".join(p.text for p in content if p.type == "text")
            self._text.append(text)
            self._say("text", text)
        if words.refusal:
            self._refusal.append(words.refusal)
            self._say("text", words.refusal)
        return bool(thought or content or words.refusal or words.tool_calls)

    def _say(self, kind: Literal["text", "thinking", "tool"], text: str) -> None:
        self._on_delta(Delta(kind, text, self._request.attempt, self._request.step))

    def _add(self, call: _Call, known: _Draft | None) -> None:
        """Adds a piece to the call it belongs to: a new one also for another call under a known index or id."""
        name, args = call.function.name or "", call.function.arguments or ""
        if isinstance(args, dict):  # some servers send the object instead of its text
            args = msgspec.json.encode(args).decode()
        if known is None or _is_another(call, args, known):
            known = _Draft(call.id or "", name)
            self._drafts.append(known)
            if call.index is not None:
                self._by_index[call.index] = known
            if name != self._spoken:
                self._say("tool", name)
        elif name and not known.name:
            known.name = name
        known.signed = call.extra_content or known.signed
        if args:
            known.args.append(args)
            if known.name == self._spoken:
                self._say("text", args)

    def _known(self, call: _Call) -> _Draft | None:
        if call.index is not None:
            return self._by_index.get(call.index)
        # Without an index an id or a name begins a call, and a piece without either goes on with the last one.
        if call.id or call.function.name:
            return next((draft for draft in self._drafts if call.id and draft.id == call.id), None)
        return self._drafts[-1] if self._drafts else None

    def _failure(self, error: msgspec.Raw) -> ModelError:
        begun = bool(self._text or self._thinking or self._drafts)
        complaint = complaint_from(msgspec.json.decode(error))
        return stream_failure(self._name, complaint, self.used() if begun else self._usage)


def _is_another(call: _Call, args: str, known: _Draft) -> bool:
    """Whether a piece begins a call: servers give several the same index or id, and others repeat both in each piece."""
    if call.id and known.id and call.id != known.id:
        return True
    return bool(call.function.name) and args.lstrip().startswith("{") and known.is_whole


def _usage(data: msgspec.Raw) -> Usage | None:
    """What the server counted; None when it cannot be made sense of."""
    try:
        said = _USAGE.decode(data)
    except msgspec.DecodeError:
        return None
    details = said.prompt_tokens_details or _Details()
    tokens_in = max(0, said.prompt_tokens)
    tokens_out = max(0, said.completion_tokens or 0)
    # xAI and Gemini count thoughts in the total only.
    if isinstance(said.total_tokens, int) and tokens_in and said.total_tokens <= MOST_TOKENS:
        tokens_out = max(tokens_out, said.total_tokens - tokens_in)
    cached = min(tokens_in, max(0, details.cached_tokens or said.prompt_cache_hit_tokens or 0))
    written = min(tokens_in - cached, max(0, details.cache_write_tokens or 0))
    return Usage(tokens_in, tokens_out, cached, written)
