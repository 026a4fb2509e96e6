"""The chat completions wire: what OpenAI, and nearly every server that serves open models, speaks.

The body is joined from bytes that were made once per message, tool list and system text. `Request.output_schema`
becomes a native `response_format`, and a final tool where that would keep a model from calling others, or is turned down. A message's tool results
come out before its other parts, because this wire wants them right after the calls they answer.
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
    Reply,
    Request,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from atlas.kernel.port import Clock
from atlas.models.encoding import Encodings
from atlas.models.estimate import estimate
from atlas.models.http import Http, Target, address, host_of, login_of
from atlas.models.manner import IN_MESSAGES, NONE, OF_CHAT, TOOL_ONLY, Learned, Manner, Manners, in_manner
from atlas.models.openai_reply import OpenAIReading
from atlas.models.openai_thought import given_back, signed_calls
from atlas.models.strict import is_strict
from atlas.models.wire import as_name, as_object, converse

BASE_URL = "https://api.openai.com/v1"
_LIMITS = ("max_tokens", "max_completion_tokens")
_USED_UP = "model output limit was reached"
_NO_THOUGHT = {"reasoning_content": " "}  # an empty one is none to Moonshot
_json = msgspec.json.encode
_BRIDGE = _json({"role": "assistant", "content": "I see."})


class OpenAIModel:
    """Asks the models of one server that speaks chat completions.

    OpenAI's own servers want `max_completion_tokens` and take no foreign fields; all others get `max_tokens`, and
    their own thoughts back with the tool calls they led to.
    """

    def __init__(
        self,
        http: Http,
        clock: Clock,
        load_blob: LoadBlob,
        *,
        name: str = "openai",
        base_url: str = BASE_URL,
        key: str = "",
        stream: bool = True,
    ) -> None:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "atlas-agents"}
        headers["Accept"] = "text/event-stream" if stream else "application/json"
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._is_openai = host_of(base_url).endswith((".openai.com", ".openai.azure.com"))
        self._target = Target(name, address(base_url, "/chat/completions"), headers, key or login_of(base_url))
        self._http = http
        self._clock = clock
        self._load_blob = load_blob
        self._stream = stream
        self._encodings = Encodings()
        self._learned = Learned(OF_CHAT)

    async def ask(self, request: Request, on_delta: OnDelta) -> Reply:
        """The reply, with deltas on the way; raises ModelError."""
        # Beside tools OpenAI alone takes a format for the answer: Ollama, vLLM and others write nothing else then, and call none.
        usual = NONE if self._is_openai or not request.tools else TOOL_ONLY
        return await self._learned.ask(request, usual, lambda manners: self._ask(request, manners, on_delta))

    async def _ask(self, request: Request, manners: Manners, on_delta: OnDelta) -> Reply:
        asked, final = in_manner(request, manners)
        body = await self.body(asked, manners)
        reading = OpenAIReading(asked, on_delta, self._target.name, final)
        try:
            return await converse(self._http, self._target, body, reading, self._clock)
        except ModelError as error:
            if error.kind != "invalid" or _USED_UP not in error.message:
                raise
        # OpenAI does not call it a reply when its models that reason use all of it up before they say a word.
        used = msgspec.structs.replace(estimate(asked), tokens_out=asked.max_output_tokens)
        return Reply((), "length", used, request.model)

    async def close(self) -> None:
        """Nothing: the connections belong to the pool."""

    async def body(self, request: Request, manners: Manners = NONE) -> bytes:
        """The bytes that are sent: the same for equal requests in the same manners."""
        try:
            head = [self._settings(request, manners)]
            messages = [self._system(request.system)] if request.system else []
            messages += await self._messages(request.messages, manners & IN_MESSAGES)
        except UnicodeEncodeError:
            raise ModelError("invalid", "the request holds text that is not valid Unicode") from None
        if request.tools:
            head.append(self._tools(request.tools))
        if request.output_schema is not None:
            head.append(self._format(request.output_schema))
        return b"".join((b"{", b",".join(head), b',"messages":[', b",".join(messages), b"]}"))

    def _settings(self, request: Request, manners: Manners) -> bytes:
        limit = _LIMITS[self._is_openai is not (Manner.OTHER_LIMIT in manners)]
        fields: dict[str, Any] = {"model": request.model, limit: request.max_output_tokens}
        if self._stream and Manner.UNSTREAMED not in manners:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if request.temperature is not None:
            fields["temperature"] = request.temperature
        if request.tools and request.tool_choice != "auto":
            fields["tool_choice"] = request.tool_choice
        if request.tools and Manner.UNREASONED in manners:
            fields["reasoning_effort"] = "none"
        return _json(fields)[1:-1]

    def _system(self, system: tuple[str, ...]) -> bytes:
        return self._encodings.get(system, lambda: _json({"role": "system", "content": "\n\n".join(system)}))

    def _tools(self, tools: tuple[ToolSpec, ...]) -> bytes:
        return self._encodings.tools(tools, lambda: b'"tools":' + _json([_function(tool) for tool in tools]))

    def _format(self, schema: msgspec.Raw) -> bytes:
        def make() -> bytes:
            wanted = {"name": "output", "schema": schema, "strict": is_strict(msgspec.json.decode(schema))}
            return b'"response_format":' + _json({"type": "json_schema", "json_schema": wanted})

        return self._encodings.get(("output", bytes(schema)), make)

    async def _messages(self, messages: tuple[Message, ...], manners: Manners) -> list[bytes]:
        keys = [(message, manners) for message in messages] if manners else messages
        found = self._encodings.find_all(keys)
        for number, data in enumerate(found):
            if data is None:
                found[number] = self._encodings.keep(keys[number], await self._message(messages[number], manners))
        return _bridged(messages, found) if Manner.BRIDGED in manners else list(filter(None, found))

    async def _message(self, message: Message, manners: Manners) -> bytes:
        """The wire messages that `message` becomes, joined by commas."""
        if message.role == "assistant":
            return _json(self._assistant(message, manners))
        results, content = [], []
        for part in message.parts:
            match part:
                case ToolResult():
                    results.append(_json({"role": "tool", "tool_call_id": part.id, "content": part.text}))
                case Text():
                    content.append({"type": "text", "text": part.text})
                case Image():
                    content.append(await self._file(part))
                case Thinking() | ToolCall():
                    pass  # a user neither thinks nor calls
        if results and content and Manner.BRIDGED in manners:
            results.append(_BRIDGE)
        match content:
            case []:
                pass
            case _ if all(part["type"] == "text" for part in content):  # some servers take words as one text only
                results.append(_json({"role": "user", "content": "\n\n".join(part["text"] for part in content)}))
            case _:
                results.append(_json({"role": "user", "content": content}))
        return b",".join(results)

    def _assistant(self, message: Message, manners: Manners) -> dict[str, Any]:
        text = "".join(part.text for part in message.parts if isinstance(part, Text))
        thoughts = () if self._is_openai or Manner.THOUGHTLESS in manners else message.parts
        signed = signed_calls(thoughts)
        calls = [
            {
                "id": part.id,
                "type": "function",
                "function": {"name": as_name(part.name), "arguments": as_object(part.args)},
            }
            | ({"extra_content": signed[part.id]} if part.id in signed else {})
            for part in message.parts
            if isinstance(part, ToolCall)
        ]
        wire: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
        if calls:
            wire |= {"tool_calls": calls} | given_back(thoughts)
        if Manner.THOUGHTFUL in manners:
            wire |= _NO_THOUGHT | given_back(thoughts)
        return wire

    async def _file(self, image: Image) -> dict[str, Any]:
        data = await self._load_blob(image.blob)
        if image.media_type.startswith("text/"):
            return {"type": "text", "text": f"{image.name or 'file'}:\n{data.decode('utf-8', 'replace')}"}
        url = f"data:{image.media_type};base64,{base64.b64encode(data).decode()}"
        if image.media_type.startswith("image/"):
            return {"type": "image_url", "image_url": {"url": url}}
        if image.media_type == "application/pdf":
            return {"type": "file", "file": {"filename": image.name or "file.pdf", "file_data": url}}
        raise ModelError(
            "invalid", f"{self._target.name} cannot be sent {image.media_type} ({image.name or image.blob})"
        )


def _function(tool: ToolSpec) -> dict[str, Any]:
    declared = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": declared}


def _bridged(messages: tuple[Message, ...], encoded: list[bytes | None]) -> list[bytes]:
    """The messages, with a word of the model where a user's would follow a tool's."""
    bridged, last = list[bytes](), ""
    for message, data in zip(messages, encoded, strict=True):
        if data:
            begins, ends = _roles(message)
            bridged += [_BRIDGE, data] if (last, begins) == ("tool", "user") else [data]
            last = ends
    return bridged


def _roles(message: Message) -> tuple[str, str]:
    """The wire's roles that `message` begins and ends with."""
    if message.role == "assistant":
        return "assistant", "assistant"
    results = [isinstance(part, ToolResult) for part in message.parts]
    return "tool" if any(results) else "user", "tool" if all(results) else "user"
