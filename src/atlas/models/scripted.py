"""A model that answers from a script: for demonstrations, tests and benchmarks, always labelled as scripted.

The answer is a function of the request alone, so a call that is made again after a crash gets the same one:

- the first rule whose `match` occurs in the last user message (its words and tool results) answers; what earlier turns
  left to this one is not searched, or a rule that answered once would answer every later turn too;
- else the reply list, by `Request.step`: call 1 of a turn gets the first reply, call 2 the second, and the last repeats;
- errors in the list are no replies of their own: they are what the first tries at the reply after them get, so
  `[error, text]` fails attempt 1 of step 1 and answers attempt 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from atlas.kernel.context import EARLIER
from atlas.kernel.contract import Finding, Step
from atlas.kernel.contract import Part as Section
from atlas.kernel.errors import Invalid
from atlas.kernel.model import (
    Delta,
    ModelError,
    ModelErrorKind,
    OnDelta,
    Part,
    Reply,
    Request,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from atlas.models.estimate import estimate

PIECES = 4

Count = Annotated[int, Meta(ge=0, le=10**9)]


class ScriptedCall(Section, frozen=True):
    """A tool call; `args` as text are passed on as they stand, valid or not."""

    name: str
    args: dict[str, Any] | str = field(default_factory=dict)


class ScriptedUsage(Section, frozen=True):
    """Tokens to report; left out, they are estimated."""

    tokens_in: Count = field(name="in", default=0)
    tokens_out: Count = field(name="out", default=0)
    cached_in: Count = field(name="cached", default=0)


class ScriptedError(Section, frozen=True):
    """A failure instead of an answer."""

    kind: ModelErrorKind
    retry_after_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    message: str = ""


class ScriptedReply(Section, frozen=True):
    """One answer: text, tool calls or both; or an error alone."""

    text: str = ""
    thinking: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    usage: ScriptedUsage | None = None
    error: ScriptedError | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0
    stop: StopReason | None = None


class Rule(Section, frozen=True):
    """An answer to requests in which a text occurs."""

    match: Annotated[str, Meta(min_length=1)]
    reply: ScriptedReply


class Script(Section, frozen=True):
    """What a scripted model says."""

    replies: tuple[ScriptedReply, ...] = ()
    rules: tuple[Rule, ...] = ()


def script_from(data: object, where: str = "") -> Script:
    """The script in already loaded data; Invalid with the path of what is wrong, unknown keys included."""
    try:
        script = msgspec.convert(data, Script)
    except msgspec.ValidationError as error:
        raise Invalid(f"the script is not valid: {error}", where=where, code="script") from None
    for finding in script_findings(script):
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in finding.path)
        raise Invalid(f"the script is not valid: {finding.message} - at `${path}`", where=where, code=finding.code)
    return script


def script_findings(script: Script) -> Iterator[Finding]:
    """What is wrong with a script whose every value is of the right type."""
    if not script.replies and not script.rules:
        yield Finding((), "script", "it says nothing: there are neither replies nor rules")
    for index, reply in enumerate(script.replies):
        yield from _findings(reply, ("replies", index))
    for index, rule in enumerate(script.rules):
        yield from _findings(rule.reply, ("rules", index, "reply"))


def _findings(reply: ScriptedReply, path: tuple[Step, ...]) -> Iterator[Finding]:
    if reply.error is not None and (reply.text or reply.thinking or reply.tool_calls):
        yield Finding(path, "script", "a reply with an error says nothing else")
    if reply.error is None and not (reply.text.strip() or reply.tool_calls):
        yield Finding(path, "script", "a reply needs text, tool_calls or an error")


class ScriptedModel:
    """Answers from a script."""

    def __init__(self, script: Script) -> None:
        self._rules = script.rules
        self._places = tuple(_places(script.replies))

    async def ask(self, request: Request, on_delta: OnDelta) -> Reply:
        """The scripted reply, its text in a few deltas; raises the scripted ModelError."""
        said = self._choose(request)
        if said.error is not None:
            await asyncio.sleep(said.delay_ms / 1000)
            kind = said.error.kind
            message = said.error.message or f"the script says so: {kind}"
            raise ModelError(kind, message, retry_after_s=said.error.retry_after_s, usage=_billed(said.usage))
        await _speak(said, request, on_delta)
        parts = _parts(said, request.step)
        stop = said.stop or ("tool_call" if said.tool_calls else "end")
        size = sum(len(text) for text in (said.text, said.thinking))
        size += sum(len(part.args) for part in parts if isinstance(part, ToolCall))
        return Reply(parts, stop, _billed(said.usage) or estimate(request, size), request.model, is_scripted=True)

    async def close(self) -> None:
        """Nothing is held."""

    def _choose(self, request: Request) -> ScriptedReply:
        if self._rules:
            heard = _last_words(request)
            for rule in self._rules:
                if rule.match in heard:
                    return rule.reply
        if not self._places:
            raise ModelError(
                "invalid", "no rule of the script matches, and it has no replies", hint="Add a reply or a rule to it."
            )
        if request.step > len(self._places):
            return self._places[-1][-1]
        tries = self._places[max(request.step, 1) - 1]
        return tries[min(request.attempt, len(tries)) - 1]


def _places(replies: tuple[ScriptedReply, ...]) -> Iterator[tuple[ScriptedReply, ...]]:
    """The list cut after each reply that is no error: what the tries at one step get, in order."""
    tries: list[ScriptedReply] = []
    for reply in replies:
        tries.append(reply)
        if reply.error is None:
            yield tuple(tries)
            tries = []
    if tries:
        yield tuple(tries)


def _last_words(request: Request) -> str:
    """The texts and tool results of the last message that is the user's, without what earlier turns left."""
    for message in reversed(request.messages):
        if message.role == "user":
            texts = (part.text for part in message.parts if isinstance(part, Text | ToolResult))
            return "\n".join(text for text in texts if not text.startswith(EARLIER))
    return ""


async def _speak(said: ScriptedReply, request: Request, on_delta: OnDelta) -> None:
    if said.thinking:
        on_delta(Delta("thinking", said.thinking, request.attempt, request.step))
    size = -(-len(said.text) // PIECES) or 1
    pieces = [said.text[start : start + size] for start in range(0, len(said.text), size)]
    pause_s = said.delay_ms / 1000 / (len(pieces) or 1)
    for piece in pieces or ("",):
        if pause_s:
            await asyncio.sleep(pause_s)
        if piece:
            on_delta(Delta("text", piece, request.attempt, request.step))
    for call in said.tool_calls:
        on_delta(Delta("tool", call.name, request.attempt, request.step))


def _parts(said: ScriptedReply, step: int) -> tuple[Part, ...]:
    parts: list[Part] = []
    if said.thinking:
        parts.append(Thinking(said.thinking))
    if said.text:
        parts.append(Text(said.text))
    for number, call in enumerate(said.tool_calls, 1):
        args = call.args if isinstance(call.args, str) else msgspec.json.encode(call.args).decode()
        parts.append(ToolCall(f"call_{step}_{number}", call.name, args))
    return tuple(parts)


def _billed(usage: ScriptedUsage | None) -> Usage | None:
    if usage is None:
        return None
    return Usage(usage.tokens_in, usage.tokens_out, min(usage.cached_in, usage.tokens_in))
