"""A conversation with everything in it, and models that never send it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from atlas.kernel.model import Image, Message, Request, Text, Thinking, ToolCall, ToolResult, ToolSpec
from atlas.models.anthropic import AnthropicModel
from atlas.models.http import Http
from atlas.models.openai import OpenAIModel
from atlas.testing.clock import FakeClock

BLOBS = {"pic": b"\x89PNG", "pdf": b"%PDF", "txt": "grüße".encode(), "bin": b"\x00"}
SCHEMA = msgspec.Raw(b'{"type": "object", "properties": {"x": {"type": "string"}}}')
TOOL = ToolSpec("look", "Looks.", SCHEMA)

FULL = Request(
    "m",
    ("You are kind.", "You are brief."),
    (
        Message("user", (Text("Look at this."), Image("image/png", "pic"))),
        Message(
            "assistant",
            (Thinking("Hm.", "sig"), Text("I look."), ToolCall("c1", "look", '{"x": 1}'), ToolCall("c2", "look", "{}")),
        ),
        Message("user", (Text("Hurry."), ToolResult("c1", "a cat"), ToolResult("c2", "nothing", is_error=True))),
    ),
    (TOOL,),
    max_output_tokens=100,
    cache_at=2,
    temperature=0.5,
)


class Loads:
    """Gives blobs and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, digest: str) -> bytes:
        self.count += 1
        return BLOBS[digest]


def openai_model(load: Loads | None = None, **settings: Any) -> OpenAIModel:
    settings.setdefault("base_url", "http://127.0.0.1:1/v1")
    return OpenAIModel(Http(), FakeClock(), load or Loads(), **settings)


def anthropic_model(load: Loads | None = None, **settings: Any) -> AnthropicModel:
    settings.setdefault("base_url", "http://127.0.0.1:1")
    return AnthropicModel(Http(), FakeClock(), load or Loads(), **settings)


def body(model: OpenAIModel | AnthropicModel, request: Request) -> dict[str, Any]:
    """The request as it would be sent, decoded."""
    decoded: dict[str, Any] = json.loads(asyncio.run(model.body(request)))
    return decoded


def asked(*messages: Message, **fields: Any) -> Request:
    return Request("m", (), messages, **fields)


def user(*parts: Any) -> Message:
    return Message("user", parts)


def assistant(*parts: Any) -> Message:
    return Message("assistant", parts)
