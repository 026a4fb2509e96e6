"""What the test provider says, in the words of the two wires: an `Act` to bytes, and a request's mistakes to text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
Wire: TypeAlias = Literal["openai", "anthropic"]


class ActCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call; `args` is sent as it stands, and so is an `id` that is given, an empty one too."""

    name: str
    args: str = "{}"
    id: str | None = None


class ActUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is billed; `tokens_in` is the whole request, cached and written tokens included."""

    tokens_in: int = 0
    tokens_out: int = 0
    cached_in: int = 0
    cache_write_in: int = 0


class Act(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer, and how it misbehaves.

    `status`, `headers`, `body` and `content_type` replace what would be sent; `extra` lines go into the stream before
    its end. The bytes go out in pieces of `split`, nothing comes for `pause_s` after `pause_at` of them, and the
    connection is cut after `cut_at`. `hang` leaves it open after the last byte.
    """

    text: str = ""
    thinking: str = ""
    signature: str = ""
    redacted: str = ""
    refusal: str = ""
    tool_calls: tuple[ActCall, ...] = ()
    stop: str = ""
    usage: ActUsage | None = None
    omit_usage: bool = False
    omit_end: bool = False
    piece: int = 8
    status: int = 200
    headers: dict[str, str] = {}
    body: str | None = None
    content_type: str = ""
    extra: tuple[str, ...] = ()
    split: int = 0
    before_s: float = 0.0
    pause_at: int = 0
    pause_s: float = 0.0
    cut_at: int = -1
    hang: bool = False


class Billed(msgspec.Struct, frozen=True):
    """What the provider charges for one answer."""

    tokens_in: int
    tokens_out: int
    cached_in: int
    cache_write_in: int


def bill(act: Act, size: int) -> Billed:
    """The act's usage, or four bytes to a token."""
    if act.usage is not None:
        return Billed(*msgspec.structs.astuple(act.usage))
    said = len(act.text) + len(act.thinking) + sum(len(call.args) for call in act.tool_calls)
    return Billed(-(-size // 4), -(-said // 4), 0, 0)


def render(wire: Wire, act: Act, model: str, billed: Billed, stream: bool) -> bytes:
    """The body of the answer."""
    if act.body is not None:
        return act.body.encode()
    if wire == "openai":
        return b"".join(_openai_stream(act, model, billed)) if stream else _openai_whole(act, model, billed)
    return b"".join(_anthropic_stream(act, model, billed)) if stream else _anthropic_whole(act, model, billed)


def _ids(act: Act) -> list[str]:
    return [f"call_{number}" if call.id is None else call.id for number, call in enumerate(act.tool_calls, 1)]


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _event(data: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def _openai_stop(act: Act) -> str:
    return act.stop or ("tool_calls" if act.tool_calls else "stop")


def _openai_usage(billed: Billed) -> dict[str, Any]:
    return {
        "prompt_tokens": billed.tokens_in,
        "completion_tokens": billed.tokens_out,
        "total_tokens": billed.tokens_in + billed.tokens_out,
        "prompt_tokens_details": {"cached_tokens": billed.cached_in, "cache_write_tokens": billed.cache_write_in},
    }


def _openai_stream(act: Act, model: str, billed: Billed) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event({"id": "c1", "object": "chat.completion.chunk", "model": model, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(act.thinking, act.piece):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(act.text, act.piece):
        yield chunk({"content": piece})
    for piece in _pieces(act.refusal, act.piece):
        yield chunk({"refusal": piece})
    for index, (call, call_id) in enumerate(zip(act.tool_calls, _ids(act), strict=True)):
        start = {"name": call.name, "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": start}]})
    # The arguments of parallel calls arrive interleaved.
    queues = [_pieces(call.args, act.piece) for call in act.tool_calls]
    for turn in range(max(map(len, queues), default=0)):
        for index, queue in enumerate(queues):
            if turn < len(queue):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": queue[turn]}}]})
    yield from (f"data: {line}\n\n".encode() for line in act.extra)
    if act.omit_end:
        return
    yield chunk({}, _openai_stop(act))
    if not act.omit_usage:
        yield _event({"id": "c1", "model": model, "choices": [], "usage": _openai_usage(billed)})
    yield b"data: [DONE]\n\n"


def _openai_whole(act: Act, model: str, billed: Billed) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": act.text or None}
    if act.thinking:
        message["reasoning_content"] = act.thinking
    if act.refusal:
        message["refusal"] = act.refusal
    if act.tool_calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.args}}
            for call, call_id in zip(act.tool_calls, _ids(act), strict=True)
        ]
    answer: dict[str, Any] = {
        "id": "c1",
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _openai_stop(act)}],
    }
    if not act.omit_usage:
        answer["usage"] = _openai_usage(billed)
    return msgspec.json.encode(answer)


def _anthropic_stop(act: Act) -> str:
    return act.stop or ("tool_use" if act.tool_calls else "end_turn")


def _anthropic_usage(billed: Billed) -> dict[str, int]:
    return {
        "input_tokens": billed.tokens_in - billed.cached_in - billed.cache_write_in,
        "cache_read_input_tokens": billed.cached_in,
        "cache_creation_input_tokens": billed.cache_write_in,
    }


def _anthropic_blocks(act: Act) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
    """Each block whole, as it begins, and the deltas that fill it."""
    if act.thinking:
        whole = {"type": "thinking", "thinking": act.thinking, "signature": act.signature}
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(act.thinking, act.piece)]
        deltas.append({"type": "signature_delta", "signature": act.signature})
        yield whole, {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if act.redacted:
        yield (block := {"type": "redacted_thinking", "data": act.redacted}), block, []
    if act.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(act.text, act.piece)]
        yield {"type": "text", "text": act.text}, {"type": "text", "text": ""}, deltas
    for call, call_id in zip(act.tool_calls, _ids(act), strict=True):
        head = {"type": "tool_use", "id": call_id, "name": call.name}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(call.args, act.piece)]
        yield {**head, "input": msgspec.Raw(call.args.encode())}, {**head, "input": {}}, deltas


def _anthropic_stream(act: Act, model: str, billed: Billed) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return _event({"type": kind, **fields}, kind)

    start: dict[str, Any] = {"id": "m1", "type": "message", "role": "assistant", "model": model, "content": []}
    if not act.omit_usage:
        start["usage"] = {**_anthropic_usage(billed), "output_tokens": 1}
    yield event("message_start", message=start)
    yield event("ping")
    for index, (_, begun, deltas) in enumerate(_anthropic_blocks(act)):
        yield event("content_block_start", index=index, content_block=begun)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    yield from (f"data: {line}\n\n".encode() for line in act.extra)
    if act.omit_end:
        return
    usage = {} if act.omit_usage else {"usage": {"output_tokens": billed.tokens_out}}
    yield event("message_delta", delta={"stop_reason": _anthropic_stop(act), "stop_sequence": None}, **usage)
    yield event("message_stop")


def _anthropic_whole(act: Act, model: str, billed: Billed) -> bytes:
    answer: dict[str, Any] = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [whole for whole, _, _ in _anthropic_blocks(act)],
        "stop_reason": _anthropic_stop(act),
    }
    if not act.omit_usage:
        answer["usage"] = {**_anthropic_usage(billed), "output_tokens": billed.tokens_out}
    return msgspec.json.encode(answer)


def mistakes(wire: Wire, request: dict[str, Any], headers: dict[str, str]) -> str:
    """Why a real server would refuse the request; nothing when it would not."""
    check = _openai_mistakes if wire == "openai" else _anthropic_mistakes
    return next(check(request, headers), "")


def _openai_mistakes(request: dict[str, Any], headers: dict[str, str]) -> Iterator[str]:
    if "max_tokens" in request and "max_completion_tokens" in request:
        yield "max_tokens and max_completion_tokens are both set"
    if request.get("stream_options") and not request.get("stream"):
        yield "stream_options is only allowed when stream is set"
    open_calls: set[str] = set()
    for index, message in enumerate(request["messages"]):
        role = message["role"]
        if role not in ("system", "user", "assistant", "tool"):
            yield f"messages[{index}].role: {role}"
        if role == "tool":
            if message["tool_call_id"] not in open_calls:
                yield f"messages[{index}]: tool_call_id {message['tool_call_id']} answers no call"
            open_calls.discard(message["tool_call_id"])
            continue
        if open_calls:
            yield f"messages[{index}]: calls without an answer: {sorted(open_calls)}"
        if role == "assistant":
            open_calls = {call["id"] for call in message.get("tool_calls", ())}
            for call in message.get("tool_calls", ()):
                if not _NAME.fullmatch(call["function"]["name"]):
                    yield f"messages[{index}]: {call['function']['name']!r} is not a name"
                if not _is_object(call["function"]["arguments"]):
                    yield f"messages[{index}]: the arguments of {call['id']} are no object in JSON"
        if message.get("content") is None and not message.get("tool_calls"):
            yield f"messages[{index}].content is missing"
    yield from (
        f"tool {t['function']['name']}: no schema" for t in request.get("tools", ()) if not t["function"]["parameters"]
    )


def _is_object(args: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(args), dict)
    except msgspec.DecodeError:
        return False


def _anthropic_mistakes(request: dict[str, Any], headers: dict[str, str]) -> Iterator[str]:
    if headers.get("anthropic-version") != "2023-06-01":
        yield "anthropic-version header is required"
    if not isinstance(request.get("max_tokens"), int):
        yield "max_tokens: Field required"
    if msgspec.json.encode(request).count(b'"cache_control"') > 4:
        yield "A maximum of 4 blocks with cache_control may be provided"
    if any(not block["text"] for block in request.get("system", ())):
        yield "system: text content blocks must be non-empty"
    open_calls: set[str] = set()
    for index, message in enumerate(request["messages"]):
        blocks = message["content"]
        if not blocks:
            yield f"messages.{index}: content must not be empty"
        answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if answered - open_calls:
            yield f"messages.{index}: unexpected tool_result {sorted(answered - open_calls)}"
        if open_calls - answered:
            yield f"messages.{index}: tool_use without tool_result {sorted(open_calls - answered)}"
        open_calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
        for block in blocks:
            if block["type"] == "text" and not block["text"].strip():
                yield f"messages.{index}: text content blocks must be non-empty"
            if block["type"] == "thinking" and not block.get("signature"):
                yield f"messages.{index}: thinking.signature: Field required"
            if block["type"] == "thinking" and "cache_control" in block:
                yield f"messages.{index}: thinking blocks cannot be cached"
            if block["type"] == "tool_use" and not (_NAME.fullmatch(block["id"]) and _NAME.fullmatch(block["name"])):
                yield f"messages.{index}: tool_use.id and tool_use.name must match {_NAME.pattern}"
            if block["type"] == "tool_use" and not isinstance(block["input"], dict):
                yield f"messages.{index}: tool_use.input must be an object"
