"""The messages wire: what Anthropic and the servers that imitate it speak.

The body is joined from bytes that were made once per message, tool list and system text; the marks for the prompt
cache (system, tools, the message at `cache_at`) are set into those bytes. `Request.output_schema` becomes a native format
where Anthropic itself can enforce it, and a final tool everywhere else: not every server knows the format.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from atlas.kernel.model import (
    Image,
    LoadBlob,
    Message,
    ModelError,
    OnDelta,
    Part,
    Reply,
    Request,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from atlas.kernel.port import Clock
from atlas.models.anthropic_reply import AnthropicReading
from atlas.models.encoding import Encodings
from atlas.models.http import Http, Target, address, host_of, login_of
from atlas.models.manner import NONE, OF_MESSAGES, TOOL_ONLY, Learned, Manner, Manners, in_manner
from atlas.models.strict import is_strict
from atlas.models.wire import as_id, as_name, as_object, converse

BASE_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"
_MARK = b',"cache_control":{"type":"ephemeral"}'
# A thought is signed together with all that stood before it. What a bounded request leaves out is missing from that, and
# without this the whole request is refused; these models think like that of themselves.
_UNBOUND = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
_UNBOUND_HEADERS = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_json = msgspec.json.encode


class AnthropicModel:
    """Asks the models of one server that speaks the messages wire."""

    def __init__(
        self,
        http: Http,
        clock: Clock,
        load_blob: LoadBlob,
        *,
        name: str = "anthropic",
        base_url: str = BASE_URL,
        key: str = "",
        stream: bool = True,
    ) -> None:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "atlas-agents"}
        headers |= {"Accept": "text/event-stream" if stream else "application/json", "anthropic-version": VERSION}
        if key:
            headers["x-api-key"] = key
        self._target = Target(
            name, address(base_url, "/v1/messages", without="/v1"), headers, key or login_of(base_url)
        )
        self._unbound = msgspec.structs.replace(self._target, headers=headers | _UNBOUND_HEADERS)
        self._learned = Learned(OF_MESSAGES)
        self._is_anthropic = host_of(base_url).endswith(".anthropic.com")
        self._http = http
        self._clock = clock
        self._load_blob = load_blob
        self._stream = stream
        self._encodings = Encodings()

    async def ask(self, request: Request, on_delta: OnDelta) -> Reply:
        """The reply, with deltas on the way; raises ModelError."""
        usual = self._usual(request)
        return await self._learned.ask(request, usual, lambda manners: self._ask(request, manners, on_delta))

    async def _ask(self, request: Request, manners: Manners, on_delta: OnDelta) -> Reply:
        asked, final = in_manner(request, manners)
        body = await self.body(asked, manners)
        target = self._unbound if Manner.UNBOUND in manners else self._target
        reading = AnthropicReading(asked, on_delta, target.name, final)
        return await converse(self._http, target, body, reading, self._clock)

    async def close(self) -> None:
        """Nothing: the connections belong to the pool."""

    async def body(self, request: Request, manners: Manners = NONE) -> bytes:
        """The bytes that are sent: the same for equal requests in the same manners."""
        request, _ = in_manner(request, manners | self._usual(request))
        try:
            head = [self._settings(request, manners)]
            if any(request.system):
                head.append(self._system(request.system))
            if request.tools:
                head.append(self._tools(request.tools))
            if request.output_schema is not None:
                head.append(self._format(request.output_schema))
            messages = await self._messages(request)
        except UnicodeEncodeError:
            raise ModelError("invalid", "the request holds text that is not valid Unicode") from None
        return b"".join((b"{", b",".join(head), b',"messages":[', b",".join(messages), b"]}"))

    def _usual(self, request: Request) -> Manners:
        """What the model is asked in unless a refusal taught otherwise."""
        return NONE if request.output_schema is not None and self._format(request.output_schema) else TOOL_ONLY

    def _settings(self, request: Request, manners: Manners) -> bytes:
        fields: dict[str, Any] = {"model": request.model, "max_tokens": request.max_output_tokens}
        if self._stream:
            fields["stream"] = True
        if request.temperature is not None:
            fields["temperature"] = request.temperature
        if request.tools and request.tool_choice != "auto":
            fields["tool_choice"] = {"type": _CHOICES[request.tool_choice]}
        if Manner.UNBOUND in manners:
            fields["thinking"] = _UNBOUND
        return _json(fields)[1:-1]

    def _system(self, system: tuple[str, ...]) -> bytes:
        def make() -> bytes:
            blocks = _json([{"type": "text", "text": text} for text in system if text])
            return b"".join((b'"system":', blocks[:-2], _MARK, b"}]"))

        return self._encodings.get(system, make)

    def _format(self, schema: msgspec.Raw) -> bytes:
        """The field that has an answer of this shape enforced; nothing where it cannot be."""

        def make() -> bytes:
            is_native = self._is_anthropic and is_strict(msgspec.json.decode(schema))
            wanted = {"format": {"type": "json_schema", "schema": schema}}
            return b'"output_config":' + _json(wanted) if is_native else b""

        return self._encodings.get(("output", bytes(schema)), make)

    def _tools(self, tools: tuple[ToolSpec, ...]) -> bytes:
        def make() -> bytes:
            wire = [{"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in tools]
            return b"".join((b'"tools":', _json(wire)[:-2], _MARK, b"}]"))

        return self._encodings.tools(tools, make)

    async def _messages(self, request: Request) -> list[bytes]:
        messages = []
        for number, data in enumerate(self._encodings.find_all(request.messages), 1):
            message = request.messages[number - 1]
            if data is None:
                data = self._encodings.keep(message, await self._message(message))
            if not data:
                continue
            if number == request.cache_at and not isinstance(message.parts[-1], Thinking):
                # Every message ends in `}]}`, the end of its last block; thoughts may not be marked.
                data = b"".join((data[:-3], _MARK, b"}]}"))
            messages.append(data)
        return messages

    async def _message(self, message: Message) -> bytes:
        """The wire message; nothing when no part of it may be sent."""
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        others = [part for part in message.parts if not isinstance(part, ToolResult)]
        blocks = [await self._block(part) for part in (*results, *others)]  # results must come first
        content = [block for block in blocks if block is not None]
        return _json({"role": message.role, "content": content}) if content else b""

    async def _block(self, part: Part) -> dict[str, Any] | None:
        match part:
            case Text():
                return {"type": "text", "text": part.text} if part.text.strip() else None  # empty ones are refused
            case Thinking(redacted=redacted) if redacted:
                return {"type": "redacted_thinking", "data": redacted}
            case Thinking():
                # Without its signature a thought is refused; with a colon in it another provider signed it.
                whole = {"type": "thinking", "thinking": part.text, "signature": part.signature}
                return whole if part.signature and ":" not in part.signature else None
            case ToolCall():
                return {
                    "type": "tool_use",
                    "id": as_id(part.id),
                    "name": as_name(part.name),
                    "input": msgspec.Raw(as_object(part.args).encode()),
                }
            case ToolResult():
                result: dict[str, Any] = {"type": "tool_result", "tool_use_id": as_id(part.id)}
                if part.text.strip():
                    result["content"] = part.text
                if part.is_error:
                    result["is_error"] = True
                return result
            case Image():
                return await self._file(part)

    async def _file(self, image: Image) -> dict[str, Any]:
        data = await self._load_blob(image.blob)
        source = {"type": "base64", "media_type": image.media_type, "data": base64.b64encode(data).decode()}
        if image.media_type.startswith("image/"):
            return {"type": "image", "source": source}
        if image.media_type.startswith("text/"):
            source = {"type": "text", "media_type": "text/plain", "data": data.decode("utf-8", "replace")}
        elif image.media_type != "application/pdf":
            what = f"{image.media_type} ({image.name or image.blob})"
            raise ModelError("invalid", f"{self._target.name} cannot be sent {what}")
        return {"type": "document", "source": source} | ({"title": image.name} if image.name else {})
