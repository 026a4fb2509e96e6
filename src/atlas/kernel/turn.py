"""A turn of a prompt agent: what has been said so far and what comes next. Pure.

    plan(turn)                 ask the model, run tools, or be done
    answered(turn, reply)      the model spoke
    received(turn, results)    its tools answered
    advised(turn, text)        the host has something to say before the next request

A turn is a bounded working set: when its exchanges outgrow the window, whole ones are dropped down to half of it,
each leaving one line with the handle that brings it back.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.kernel.errors import ErrorRecord
from atlas.kernel.model import Message, Part, Reply, Text, Thinking, ToolCall, ToolResult

MAX_DROPPED_LINES: Final = 40
LINE_LENGTH: Final = 140


class Note(msgspec.Struct, frozen=True):
    """Something to carry until it is closed."""

    kind: Literal["requirement", "plan", "mission", "report", "fact"]
    key: str
    text: str
    is_open: bool = True

    @property
    def line(self) -> str:
        """As the model sees it."""
        mark = "" if self.kind in ("fact", "mission") else ("[ ] " if self.is_open else "[x] ")
        return f"- {mark}{self.kind} {self.key}: {self.text}"


class Exchange(msgspec.Struct, frozen=True):
    """One step: what the model said and what came back. `line` stands for it once it is dropped."""

    step: int
    messages: tuple[Message, ...]
    tokens: int
    line: str


class Finish(msgspec.Struct, frozen=True):
    """The turn is over: the answer, or why there is none."""

    text: str = ""
    error: ErrorRecord | None = None


class Turn(msgspec.Struct, frozen=True):
    """The state of a turn."""

    number: int
    user: str
    step: int = 0
    window: tuple[Exchange, ...] = ()
    dropped: tuple[str, ...] = ()
    dropped_count: int = 0
    spoken: tuple[Part, ...] = ()
    pending: tuple[ToolCall, ...] = ()
    notes: dict[str, Note] = {}
    advice: tuple[str, ...] = ()
    partial: str = ""
    finish: Finish | None = None


class Ask(msgspec.Struct, frozen=True):
    """Ask the model for step `step`."""

    step: int


class RunTools(msgspec.Struct, frozen=True):
    """Run these calls of step `step`; results in this order."""

    step: int
    calls: tuple[ToolCall, ...]


Plan: TypeAlias = Ask | RunTools | Finish


def plan(turn: Turn) -> Plan:
    """What comes next."""
    if turn.finish is not None:
        return turn.finish
    if turn.pending:
        return RunTools(turn.step, turn.pending)
    return Ask(turn.step + 1)


def answered(turn: Turn, reply: Reply, tokens: int) -> Turn:
    """The turn after the model spoke; `tokens` is what its words weigh in the next request."""
    step = turn.step + 1
    calls = tuple(part for part in reply.parts if isinstance(part, ToolCall))
    text = "".join(part.text for part in reply.parts if isinstance(part, Text))
    spoken = replace(turn, step=step, advice=(), spoken=reply.parts)
    match reply.stop:
        case "refusal" | "filter":
            words = text.strip() or "the model gave no reason"
            return replace(
                spoken, finish=Finish(text, ErrorRecord(f"model_{reply.stop}", f"the model declined: {words[:500]}"))
            )
        case "length" if not calls:
            kept = replace(spoken, partial=turn.partial + text)
            return advised(
                _kept(
                    kept,
                    Exchange(step, (Message("assistant", _words(reply.parts)),), tokens, _line(kept, "cut off", text)),
                ),
                "Your answer was cut off. Go on exactly where it stopped; do not repeat anything.",
            )
        case _ if calls:
            return replace(spoken, pending=calls, partial="")
    return replace(spoken, finish=Finish(turn.partial + text))


def received(turn: Turn, results: tuple[ToolResult, ...], tokens: int) -> Turn:
    """The turn after its tools answered."""
    messages = (Message("assistant", turn.spoken), Message("user", results))
    names = ", ".join(f"{call.name}({_short(call.args, 40)})" for call in turn.pending)
    outcome = "; ".join(("error: " if one.is_error else "") + _short(one.text, 40) for one in results)
    exchange = Exchange(turn.step, messages, tokens, _line(turn, names, outcome))
    return replace(_kept(turn, exchange), pending=(), spoken=())


def advised(turn: Turn, text: str) -> Turn:
    """The turn with something the host says before the next request; a finished turn goes on."""
    if turn.finish is None:
        return replace(turn, advice=(*turn.advice, text))
    words = Message("assistant", _words(turn.spoken) or (Text(turn.finish.text or "(nothing)"),))
    exchange = Exchange(turn.step, (words,), len(turn.finish.text) // 3 + 20, _line(turn, "answer", turn.finish.text))
    return replace(_kept(turn, exchange), finish=None, partial="", advice=(*turn.advice, text))


def windowed(turn: Turn, limit: int) -> Turn:
    """The turn with its window within `limit` tokens: when it is above, whole exchanges go until half is left."""
    total = sum(exchange.tokens for exchange in turn.window)
    if total <= limit:
        return turn
    kept = list(turn.window)
    lines: list[str] = []
    while len(kept) > 1 and total > limit // 2:
        gone = kept.pop(0)
        total -= gone.tokens
        lines.append(gone.line)
    return replace(
        turn,
        window=tuple(kept),
        dropped=(*turn.dropped, *lines)[-MAX_DROPPED_LINES:],
        dropped_count=turn.dropped_count + len(lines),
    )


def noted(turn: Turn, note: Note) -> Turn:
    """The turn with a note added, changed or closed."""
    return replace(turn, notes={**turn.notes, f"{note.kind}:{note.key}": note})


def _kept(turn: Turn, exchange: Exchange) -> Turn:
    return replace(turn, window=(*turn.window, exchange))


def _line(turn: Turn, what: str, outcome: str) -> str:
    return f"t{turn.number}.{turn.step} {_short(what, 60)} -> {_short(outcome, 70)}"[:LINE_LENGTH]


def _short(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def _words(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(part for part in parts if isinstance(part, Text | Thinking))
