"""Messages in pydantic-ai's words and back, with everything that a provider signed kept for its next request.

What a provider signs (a thought, a call) it wants back unchanged. It is carried in the signature of a `Thinking`, under
a mark of ours, so that it is recorded like the rest of the reply and no other wire takes it for its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from atlas.kernel.model import Image, LoadBlob, Message, Part, Request, Text, Thinking, ToolCall, ToolResult
from atlas.models.wire import as_object, unique_ids

if TYPE_CHECKING:
    from pydantic_ai import messages as wire

MARK: Final = "pydantic-ai:"


class Signed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a provider wants back: with the thought it stands in, or with the call that follows it."""

    provider: str = ""
    signature: str = ""
    details: dict[str, Any] = msgspec.field(default_factory=dict)
    id: str = ""
    is_call: bool = False


async def to_messages(request: Request, load_blob: LoadBlob, name: str) -> list[wire.ModelMessage]:
    """The conversation, oldest first."""
    from pydantic_ai import messages as wire

    names = {part.id: part.name for message in request.messages for part in message.parts if isinstance(part, ToolCall)}
    messages: list[wire.ModelMessage] = []
    for message in request.messages:
        if message.role == "user":
            messages.append(wire.ModelRequest(parts=await _said(message, names, load_blob)))
        elif parts := list(_answered(message)):
            provider = next((part.provider_name for part in parts if part.provider_name), None)
            messages.append(wire.ModelResponse(parts=parts, provider_name=provider))
    return messages


def to_parts(response: wire.ModelResponse, step: int) -> tuple[tuple[Part, ...], int]:
    """The parts of an answer in their order, and how many of them are calls."""
    from pydantic_ai import messages as wire

    written = [part for part in response.parts if isinstance(part, wire.ToolCallPart)]
    calls = iter(unique_ids([(part.tool_call_id, part.tool_name, part.args_as_json_str()) for part in written], step))
    found: list[Part] = []
    for part in response.parts:
        provider = getattr(part, "provider_name", None) or response.provider_name or ""
        match part:
            case wire.TextPart() if part.content:
                found.append(Text(part.content))
            case wire.ThinkingPart():
                found.append(Thinking(part.content, _signature(part, provider)))
            case wire.ToolCallPart():
                if part.provider_details:
                    signed = Signed(provider, details=part.provider_details, is_call=True)
                    found.append(Thinking("", _marked(signed)))
                found.append(next(calls))
            case _:
                pass  # what was not asked for: pictures, calls of the provider's own tools
    return tuple(found), len(written)


async def _said(message: Message, names: dict[str, str], load_blob: LoadBlob) -> list[wire.ModelRequestPart]:
    """Results first, as every provider wants them, then the words and files."""
    from pydantic_ai import messages as wire

    results: list[wire.ModelRequestPart] = []
    content: list[wire.UserContent] = []
    for part in message.parts:
        match part:
            case ToolResult():
                outcome: Any = "failed" if part.is_error else "success"
                results.append(
                    wire.ToolReturnPart(
                        tool_name=names.get(part.id, "unknown"),
                        content=part.text,
                        tool_call_id=part.id,
                        outcome=outcome,
                    )
                )
            case Text():
                content.append(part.text)
            case Image():
                data = await load_blob(part.blob)
                content.append(wire.BinaryContent(data=data, media_type=part.media_type))
            case Thinking() | ToolCall():
                pass  # a user neither thinks nor calls
    match content:
        case []:
            pass
        case [str(text)]:
            results.append(wire.UserPromptPart(content=text))
        case _:
            results.append(wire.UserPromptPart(content=content))
    return results


def _answered(message: Message) -> Any:
    """The model's parts, each with what its provider signed; thoughts that another one signed are left out."""
    from pydantic_ai import messages as wire

    waiting = Signed()
    for part in message.parts:
        match part:
            case Text() if part.text:
                yield wire.TextPart(content=part.text)
            case Thinking(signature=signature) if signature.startswith(MARK):
                signed = msgspec.json.decode(signature.removeprefix(MARK), type=Signed)
                if signed.is_call:
                    waiting = signed
                    continue
                yield wire.ThinkingPart(
                    content=part.text,
                    id=signed.id or None,
                    signature=signed.signature or None,
                    provider_name=signed.provider or None,
                    provider_details=signed.details or None,
                )
            case ToolCall():
                yield wire.ToolCallPart(
                    tool_name=part.name,
                    args=as_object(part.args),
                    tool_call_id=part.id,
                    provider_name=waiting.provider or None,
                    provider_details=waiting.details or None,
                )
                waiting = Signed()
            case _:
                pass


def _signature(part: wire.ThinkingPart, provider: str) -> str:
    if not (part.signature or part.provider_details or part.id):
        return ""
    return _marked(Signed(provider, part.signature or "", part.provider_details or {}, part.id or ""))


def _marked(signed: Signed) -> str:
    return MARK + msgspec.json.encode(signed).decode()
