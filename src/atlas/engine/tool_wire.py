"""What a driver and a process that holds tools say to each other; framed like all that goes to and from a worker."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from atlas.engine.wire import HEADER
from atlas.kernel.errors import Problem
from atlas.kernel.tool import ToolDefinition


class LoadTools(msgspec.Struct, frozen=True, tag="tools"):
    """The first message to a process that is to hold the tools of a folder.

    `line` is an open file of the process: what comes there is performed one call after the other, in its own thread.
    """

    folder: str
    memory_mb: int
    line: int


class CallTool(msgspec.Struct, frozen=True, omit_defaults=True, tag="call"):
    """Call it, now."""

    id: int
    name: str
    args: msgspec.Raw
    effect_key: str
    secrets: dict[str, str] = {}


class ProbeTool(msgspec.Struct, frozen=True, tag="probe"):
    """Find out whether such a call happened."""

    id: int
    name: str
    args: msgspec.Raw
    effect_key: str
    secrets: dict[str, str] = {}


class AskResources(msgspec.Struct, frozen=True, tag="resources"):
    """What would such a call touch?"""

    id: int
    name: str
    args: msgspec.Raw


class StopCall(msgspec.Struct, frozen=True, tag="stop"):
    """Nobody wants this call any more."""

    id: int


class ToolsLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The files were imported: what they declare, or what is wrong with them.

    `direct` names the tools that can be called on the line: those that are no coroutines.
    """

    definitions: tuple[ToolDefinition, ...] = ()
    problems: tuple[Problem, ...] = ()
    direct: frozenset[str] = frozenset()


class CallEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="ended"):
    """A call came back. `is_stopped`: because it was told to stop, and so without a result."""

    id: int
    text: str
    is_error: bool
    duration_us: int
    printed: str = ""
    is_stopped: bool = False


class ProbeEnded(msgspec.Struct, frozen=True, tag="probed"):
    """What a probe found."""

    id: int
    found: Literal["done", "not_done", "unknown"]
    text: str = ""
    message: str = ""


class ResourcesKnown(msgspec.Struct, frozen=True, tag="touched"):
    """What such a call would touch."""

    id: int
    resources: tuple[str, ...]


ToTools: TypeAlias = LoadTools | CallTool | ProbeTool | AskResources | StopCall
Reply: TypeAlias = CallEnded | ProbeEnded | ResourcesKnown
FromTools: TypeAlias = ToolsLoaded | Reply

TO_TOOLS: Final = msgspec.json.Decoder(ToTools)
ON_LINE: Final = msgspec.json.Decoder(CallTool)
FROM_TOOLS: Final = msgspec.json.Decoder(FromTools)

_ENCODER: Final = msgspec.json.Encoder()
_OPENING: Final = b'{"type":"tools"'
OPENING_BYTES: Final = HEADER + len(_OPENING)


def tool_frame(message: ToTools | FromTools) -> bytes:
    """The message as bytes, length first."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(HEADER, "big") + body


def begins_with_tools(data: bytes) -> bool:
    """Whether the first `OPENING_BYTES` that a process hears make it one that holds tools."""
    return data[HEADER:] == _OPENING
