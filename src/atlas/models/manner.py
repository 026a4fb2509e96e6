"""What a server was found to want for a model: it speaks the wire in its own manner, and says so only by refusing.

A refusal that names a manner is answered by asking again in it. The request that is recorded stays as it is: manners
belong to the wire below it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Final, TypeAlias, assert_never

from msgspec.structs import replace

from atlas.kernel.model import ModelError, Part, Reply, Request, Thinking, ToolResult
from atlas.models.final_tool import FinalTool, offered


class Manner(Enum):
    """One thing that a server wants otherwise than most do."""

    FINAL_TOOL = auto()
    """The shape of an answer is a tool's, not a format."""
    FREE_CHOICE = auto()
    """No tool is forced."""
    OTHER_LIMIT = auto()
    """`max_completion_tokens` in place of `max_tokens`, or the other way round."""
    BRIDGED = auto()
    """The model has a word between a tool's result and the user's."""
    THOUGHTLESS = auto()
    """Thoughts are not given back."""
    THOUGHTFUL = auto()
    """All that the model said is given back with thoughts, be it empty ones."""
    UNSTREAMED = auto()
    """The answer comes in one piece."""
    UNREASONED = auto()
    """The model is told not to reason where it is offered tools."""
    UNBOUND = auto()
    """Thoughts that were thought of another beginning are passed over by the server, and not refused."""


Manners: TypeAlias = frozenset[Manner]
NONE: Final[Manners] = frozenset()
TOOL_ONLY: Final[Manners] = frozenset({Manner.FINAL_TOOL})
IN_MESSAGES: Final[Manners] = frozenset({Manner.BRIDGED, Manner.THOUGHTLESS, Manner.THOUGHTFUL})
"""Those that change the bytes of messages."""
OF_CHAT: Final[Manners] = frozenset(Manner) - {Manner.UNBOUND}
"""Those of servers that speak chat completions."""
OF_MESSAGES: Final[Manners] = frozenset({Manner.FREE_CHOICE, Manner.UNBOUND, Manner.FINAL_TOOL})
"""Those of servers that speak messages."""

_NO: Final = r"\b.{0,60}?(?:unsupported|not supported|unrecognized|not permitted|not allowed|extra inputs)"
_COMPLAINTS: Final[Mapping[Manner, re.Pattern[str]]] = {
    manner: re.compile(pattern, re.IGNORECASE)
    for manner, pattern in {
        # Mistral's own server, and vLLM and llama.cpp with its templates.
        Manner.BRIDGED: r"unexpected role .?user.? after role .?tool|roles must alternate",
        # DeepSeek and Moonshot while they think, vLLM before it had `required`, Claude 5.5.
        Manner.FREE_CHOICE: r"tool.?choice",
        # OpenAI's newer models behind Azure and gateways; Azure's older ones.
        Manner.OTHER_LIMIT: rf"\buse .?max_(?:completion_)?tokens|max_(?:completion_)?tokens{_NO}"
        r"|(?:unrecognized|unsupported|unknown).{0,40}max_(?:completion_)?tokens",
        # OpenAI, of accounts that it has not verified.
        Manner.UNSTREAMED: r"verified to stream",
        # OpenAI's models since 5.4, which reason and call tools at once over another wire only.
        Manner.UNREASONED: r"reasoning_effort to .?none",
        # Claude since 5.1, of a thought whose beginning is no longer shown as it was.
        Manner.UNBOUND: r"bound to a different conversation",
        # Groq and Cerebras, of what another server thought; the same Claude behind OpenRouter.
        Manner.THOUGHTLESS: rf"\breasoning(?:_content|_details)?{_NO}|bound to a different conversation",
        # DeepSeek and Moonshot while they think, of words without calls, and of thoughts that there was no room for.
        Manner.THOUGHTFUL: r"reasoning_content.{0,60}(?:must be passed back|is missing)|missing .?reasoning_content",
        # OpenAI's and Anthropic's older models, DeepSeek, Groq, vLLM, llama.cpp, Gemini: no format, or not this one, or not
        # beside tools.
        Manner.FINAL_TOOL: r"response.?format|response mime type|json.?(?:schema|mode)|structured.?output|grammar|guided"
        r"|output.?(?:config|format)|schema is too complex",
    }.items()
}


class Learned:
    """What the refusals of one server taught about each of its models. `known`: what the wire can do otherwise."""

    def __init__(self, known: Manners) -> None:
        self._known = known
        self._manners: dict[str, Manners] = {}

    async def ask(self, request: Request, usual: Manners, ask: Callable[[Manners], Awaitable[Reply]]) -> Reply:
        """What `ask` gives in the usual manners and the model's; called again whenever a refusal names another one."""
        manners = usual | self._manners.get(request.model, NONE)
        while True:
            try:
                reply = await ask(manners)
            except ModelError as error:
                if (manner := _wanted(error, request, manners, self._known)) is None:
                    raise
                manners |= {manner}
            else:
                self._manners[request.model] = (manners - usual) | self._manners.get(request.model, NONE)
                return reply


def _wanted(error: ModelError, request: Request, manners: Manners, known: Manners) -> Manner | None:
    """The manner that a refusal asks for, when the request was not asked in it and nothing was billed."""
    if error.kind not in ("invalid", "server") or error.usage:
        return None
    named = (manner for manner, complaint in _COMPLAINTS.items() if complaint.search(error.message))
    return next((one for one in named if one in known - manners and _matters(one, request, manners)), None)


def in_manner(request: Request, manners: Manners) -> tuple[Request, FinalTool | None]:
    """The request as a server wants it, and the tool that its answer is given to."""
    asked, final = offered(request) if Manner.FINAL_TOOL in manners else (request, None)
    if Manner.FREE_CHOICE in manners and asked.tool_choice == "required":
        asked = replace(asked, tool_choice="auto")
    return asked, final


def _matters(manner: Manner, request: Request, manners: Manners) -> bool:
    """Whether the request would be another one in it."""
    match manner:
        case Manner.FINAL_TOOL:
            return request.output_schema is not None
        case Manner.FREE_CHOICE:
            return in_manner(request, manners)[0].tool_choice == "required"
        case Manner.UNREASONED:
            return bool(in_manner(request, manners)[0].tools)
        case Manner.BRIDGED:
            return _has(request, ToolResult)
        case Manner.THOUGHTLESS | Manner.UNBOUND:
            return _has(request, Thinking)
        case Manner.THOUGHTFUL:
            return any(message.role == "assistant" for message in request.messages)
        case Manner.OTHER_LIMIT | Manner.UNSTREAMED:
            return True
        case _:
            assert_never(manner)


def _has(request: Request, kind: type[Part]) -> bool:
    return any(isinstance(part, kind) for message in request.messages for part in message.parts)
