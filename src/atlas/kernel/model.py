"""Models as the kernel sees them: a request, a reply, what it used, and how asking can fail.

Nothing here belongs to one provider. A wire adapter turns a `Request` into its provider's bytes and the
provider's stream into `Delta`s and one `Reply`; the same request always gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from atlas.kernel.errors import ErrorRecord, Unavailable

IMAGE_TOKENS: Final = 1_600
"""What providers count for a large picture, and for a page of a PDF."""

MAX_LEVELS: Final = 100
"""How deep JSON that a model wrote may nest. What walks it may count on that: most of it would overflow the stack."""

_TEXTS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)


class Text(msgspec.Struct, frozen=True, tag="text", gc=False):
    """Words."""

    text: str


class Image(msgspec.Struct, frozen=True, tag="image", gc=False):
    """A picture or a file, kept once under its digest; its bytes are filled in when it is sent.

    `tokens` is what it weighs in a count; providers do not say before they are asked.
    """

    media_type: str
    blob: str
    name: str = ""
    tokens: int = IMAGE_TOKENS


class Thinking(msgspec.Struct, frozen=True, tag="thinking", gc=False):
    """What the model thought aloud; given back unchanged because providers sign it."""

    text: str
    signature: str = ""
    redacted: str = ""


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call", gc=False):
    """The model wants a tool. `args` is JSON as the model wrote it, valid or not."""

    id: str
    name: str
    args: str


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result", gc=False):
    """What a tool call came to."""

    id: str
    text: str
    is_error: bool = False


Part: TypeAlias = Text | Image | Thinking | ToolCall | ToolResult


class Message(msgspec.Struct, frozen=True, cache_hash=True):
    """One side's turn in the exchange. Tool results are the user's.

    Its hash is kept, so that adapters find the bytes they once made of it without walking it again.
    """

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model sees it; `schema` is a JSON Schema object."""

    name: str
    description: str
    schema: msgspec.Raw


class Request(msgspec.Struct, frozen=True):
    """Everything a model is sent.

    `system` parts and messages stand in a stable order; `cache_at` counts the leading messages that the next
    request will share, so that an adapter can mark them for the provider's prompt cache (the system text and the
    tools are always marked). `step` is the number of this model call in its turn, from 1 (0 when it stands alone), and
    `attempt` the number of this try at it. Neither is sent: a scripted model finds its place by them, and deltas carry
    them.
    """

    model: str
    system: tuple[str, ...]
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int = 4096
    output_schema: msgspec.Raw | None = None
    cache_at: int = 0
    tool_choice: Literal["auto", "none", "required"] = "auto"
    temperature: float | None = None
    step: int = 0
    attempt: int = 1


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens as the provider counted them; `is_estimated` when it did not say.

    `tokens_in` counts the whole request: `cached_in` (read from the provider's cache) and `cache_write_in` (written
    to it) are parts of it, whatever the wire says.
    """

    tokens_in: int = 0
    tokens_out: int = 0
    cached_in: int = 0
    cache_write_in: int = 0
    is_estimated: bool = False


StopReason: TypeAlias = Literal["end", "tool_call", "length", "refusal", "filter"]


class Reply(msgspec.Struct, frozen=True):
    """A model's whole answer. `model` is what answered, `is_scripted` whether it was a script.

    `remark` is what a reader must be told about the model wherever it is named.
    """

    parts: tuple[Part, ...]
    stop: StopReason
    usage: Usage
    model: str
    is_scripted: bool = False
    remark: str = ""


class Delta(msgspec.Struct, frozen=True):
    """A piece of an answer as it streams; `step` and `attempt` are the request's. Ephemeral: shown, never recorded."""

    kind: Literal["text", "thinking", "tool"]
    text: str
    attempt: int = 1
    step: int = 0


ModelErrorKind: TypeAlias = Literal[
    "overflow", "auth", "rate_limit", "server", "timeout", "connection", "empty", "refused", "invalid", "budget"
]

RETRIED: Final[frozenset[ModelErrorKind]] = frozenset({"server", "rate_limit", "timeout", "connection", "empty"})
"""What the same model may do better the next time."""
PASSED_ON: Final[frozenset[ModelErrorKind]] = RETRIED | {"auth"}
"""What another model may do better; with anything else it would be asked the same."""


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One try at one model (`provider:model`): what it used and cost, and why it failed if it did.

    `is_price_guessed`: the model's price is unknown, and its maker's or the highest known one was taken.
    `saved_micro_usd` is what the provider's cache saved.
    """

    model: str
    usage: Usage = Usage()
    cost_micro_usd: int = 0
    latency_us: int = 0
    error: ErrorRecord | None = None
    is_price_guessed: bool = False
    saved_micro_usd: int = 0


class Tab:
    """What one question has used so far, and how much it may: every try is on it, failed and cancelled ones too.

    `allowance_micro_usd` is what was reserved for it; after the first, a try that could pass it is not made.
    `tokens_in` is what was reserved for reading the request once: a try whose answer is lost is taken to have read no
    less. `first`: which candidate is asked first, counted from 0; more when earlier questions were lost. `tried`: how
    often the same was asked before, so that whoever listens can tell the tries apart.
    """

    def __init__(self, allowance_micro_usd: int | None = None, tokens_in: int = 0, first: int = 0) -> None:
        self.attempts: list[Attempt] = []
        self.tokens_in = tokens_in
        self.first = first
        self.tried = 0
        self._allowance = allowance_micro_usd

    def covers(self, micro_usd: int) -> bool:
        """Whether there is room for a try that may cost so much; the first is what the allowance was made for."""
        return self._allowance is None or not self.attempts or self.cost_micro_usd + micro_usd <= self._allowance

    @property
    def cost_micro_usd(self) -> int:
        """What all tries cost together."""
        return sum(attempt.cost_micro_usd for attempt in self.attempts)

    @property
    def is_estimated(self) -> bool:
        """Whether a part of it is a guess, because a provider did not say what was used."""
        return any(attempt.usage.is_estimated for attempt in self.attempts)


class Asked(msgspec.Struct, frozen=True):
    """An answer, the model that gave it (`provider:model`), and every try it took; the last one succeeded."""

    reply: Reply
    model: str
    attempts: tuple[Attempt, ...]

    @property
    def label(self) -> str:
        """The model as people are shown it, with what they must know about it."""
        remark = "scripted" if self.reply.is_scripted else self.reply.remark
        return f"{self.model} ({remark})" if remark else self.model

    @property
    def cost_micro_usd(self) -> int:
        """What all tries cost together."""
        return sum(attempt.cost_micro_usd for attempt in self.attempts)


def is_too_deep(text: str) -> bool:
    """Whether JSON as a model wrote it, valid or not, nests deeper than `MAX_LEVELS`."""
    if text.count("[") + text.count("{") <= MAX_LEVELS:
        return False
    level = 0
    for char in _TEXTS.sub("", text):
        if char in "[{":
            level += 1
            if level > MAX_LEVELS:
                return True
        elif char in "]}":
            level -= 1
    return False


class ModelError(Unavailable):
    """Asking a model failed. `kind` says how; `usage` is what the provider billed all the same, if it said.

    `attempts` are the tries that were made, when more than one place was asked.
    """

    code = "model_error"

    def __init__(
        self,
        kind: ModelErrorKind,
        message: str,
        *,
        retry_after_s: float = 0.0,
        usage: Usage | None = None,
        hint: str = "",
        attempts: tuple[Attempt, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, code=f"model_{kind}")
        self.kind: ModelErrorKind = kind
        self.retry_after_s = retry_after_s
        self.usage = usage
        self.attempts = attempts


OnDelta: TypeAlias = Callable[[Delta], None]
LoadBlob: TypeAlias = Callable[[str], Awaitable[bytes]]


class Model(Protocol):
    """A way to ask models of one provider."""

    async def ask(self, request: Request, on_delta: OnDelta) -> Reply:
        """The reply, with deltas on the way; raises ModelError. `request.model` is the provider's own name."""
        ...

    async def close(self) -> None:
        """Gives back connections."""
        ...
