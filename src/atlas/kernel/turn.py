"""A turn of a prompt agent: what has been said so far and what comes next. Pure.

    plan(turn)                 ask the model, run tools, or be done
    answered(turn, reply)      the model spoke
    received(turn, results)    its tools answered
    advised(turn, text)        the host has something to say before the next request
    windowed(turn, limit)      the turn as the next request may show it

A turn is a bounded working set: when its exchanges outgrow the window, whole ones are dropped down to half of it,
each leaving one line with the handle that brings it back. Between two such moments the window only grows at its end.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.kernel.errors import ErrorRecord
from atlas.kernel.excerpt import one_line, shorten
from atlas.kernel.exchange import NOTHING, Exchange, performed, squeezed
from atlas.kernel.media import Given
from atlas.kernel.model import Message, Part, Reply, Text, Thinking, ToolCall, ToolResult
from atlas.kernel.token import Limits, size_of

MAX_DROPPED_LINES: Final = 32
MAX_CONTINUATIONS: Final = 16
MAX_SILENCES: Final = 3
MAX_OPEN_NOTES: Final = 40
NOTE_TOOL: Final = "note"
NOTE_SIZE: Final = 400
KEY_LENGTH: Final = 60
LINE_LENGTH: Final = 140
MAX_ID: Final = 1_024
_MAX_NAME: Final = 128
_LONGER: Final = "Raise model.max_output_tokens in the agent's contract, or ask for less; a model's thoughts count too."
CUT_OFF: Final = "Your answer was cut off. Go on exactly where it stopped; do not repeat anything."
_THOUGHT_CUT_OFF: Final = (
    "Your reply was cut off at the limit of its length before you said anything. Think less, and answer now."
)
_CALL_CUT_OFF: Final = (
    "Your reply was cut off at the limit of its length, so its last call may not be what you meant; where its arguments "
    "were not complete it was not made. Make it again in smaller parts."
)

NoteKind: TypeAlias = Literal["requirement", "plan", "mission", "report", "fact"]


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something to carry until it is closed."""

    kind: NoteKind
    key: str
    text: str
    is_open: bool = True

    @property
    def name(self) -> str:
        """What tells it from other notes: the same name again changes or closes it."""
        return f"{self.kind}:{self.key}"

    @property
    def line(self) -> str:
        """As the model sees it; no line of its text begins where another note, or anything else, would."""
        is_task = self.kind not in ("fact", "mission")
        mark = "[x] " if not self.is_open else "[ ] " if is_task else ""
        text = "\n  ".join(self.text.splitlines())
        return f"- {mark}{self.kind} {self.key}: {text}"


class _NoteArgs(msgspec.Struct, frozen=True):
    kind: NoteKind
    key: str
    text: str
    status: Literal["open", "done"] = "open"


class Finish(msgspec.Struct, frozen=True):
    """The turn is over: the answer, or why there is none."""

    text: str = ""
    error: ErrorRecord | None = None


class Turn(msgspec.Struct, frozen=True):
    """The state of a turn. `number` is 0 for a child run, which is no turn of its session.

    `files` came with the user's words; `recalled` are pictures of earlier turns that it brought back, newest last.
    """

    number: int
    user: str
    files: tuple[Given, ...] = ()
    recalled: tuple[Given, ...] = ()
    step: int = 0
    window: tuple[Exchange, ...] = ()
    window_size: int = 0
    dropped: tuple[str, ...] = ()
    dropped_count: int = 0
    spoken: tuple[Part, ...] = ()
    pending: tuple[ToolCall, ...] = ()
    notes: dict[str, Note] = {}
    advice: tuple[str, ...] = ()
    partial: str = ""
    continuations: int = 0
    silences: int = 0
    finish: Finish | None = None

    @property
    def handle(self) -> str:
        """The handle of the turn."""
        return f"t{self.number}"


class Ask(msgspec.Struct, frozen=True):
    """Ask the model for step `step`."""

    step: int


class RunTools(msgspec.Struct, frozen=True):
    """Run the calls of step `step`."""

    step: int
    calls: tuple[ToolCall, ...]


Plan: TypeAlias = Ask | RunTools | Finish


def plan(turn: Turn) -> Plan:
    """What comes next."""
    if turn.finish is not None:
        return turn.finish
    return RunTools(turn.step, turn.pending) if turn.pending else Ask(turn.step + 1)


def answered(turn: Turn, reply: Reply) -> Turn:
    """The turn after the model spoke. A cut-off answer goes on, a refusal ends it as what it is."""
    step = turn.step + 1
    parts = tuple([_named(part) if isinstance(part, ToolCall) else part for part in reply.parts])
    calls = tuple([part for part in parts if isinstance(part, ToolCall)])
    text = "".join([part.text for part in parts if isinstance(part, Text)])
    spoken = replace(turn, step=step, advice=(), spoken=parts)
    match reply.stop:
        case "refusal" | "filter":
            words = text.strip() or "the model gave no reason"
            error = ErrorRecord(f"model_{reply.stop}", f"the model declined: {words[:500]}")
            return replace(spoken, finish=Finish(text, error))
        case "length" if not calls:
            return _cut_off(spoken, text)
        case "length":
            return replace(
                spoken, pending=_begun(calls), partial="", continuations=0, silences=0, advice=(_CALL_CUT_OFF,)
            )
        case _ if calls:
            return replace(spoken, pending=calls, partial="", continuations=0, silences=0)
    return replace(spoken, finish=Finish(turn.partial + text))


def unanswered(turn: Turn) -> Turn:
    """The turn after a model that was cut off had nothing to add: it was cut off at the end, and what it said is all."""
    return replace(turn, step=turn.step + 1, advice=(), spoken=(), finish=Finish(turn.partial))


def received(turn: Turn, results: tuple[ToolResult, ...], sizes: Limits) -> Turn:
    """The turn after its tools answered; `sizes` are limits in bytes.

    Results share half of the window. A step of so many calls that it does not fit all the same is squeezed where the window
    is cut, so that however many there were, the next request can be made.
    """
    handle = f"{turn.handle}.{turn.step}"
    names = ", ".join([f"{call.name}({one_line(call.args, 40)})" for call in turn.pending])
    outcome = "; ".join([("error: " if one.is_error else "") + one_line(one.text, 40) for one in results])
    exchange = performed(turn.step, turn.spoken, results, handle, _line(turn, names, outcome), sizes)
    return _kept(turn, exchange, pending=(), spoken=())


def advised(turn: Turn, text: str) -> Turn:
    """The turn with something the host says before the next request; a finished turn goes on."""
    if turn.finish is None:
        return replace(turn, advice=(*turn.advice, text))
    words = _words(turn.spoken) or (Text(turn.finish.text) if turn.finish.text else NOTHING,)
    exchange = _exchange(turn, words, text, "answer", turn.finish.text)
    return _kept(turn, exchange, finish=None, partial="", continuations=0, silences=0, spoken=())


def shown_again(turn: Turn, picture: Given, limit: int) -> Turn | None:
    """The turn with a picture before the model again; None when there is no room for it in `limit` tokens.

    Pictures that were brought back before give way, the oldest first; what was given with this turn stays.
    """
    if picture in (*turn.files, *turn.recalled):
        return turn
    room = limit - sum(one.file.tokens for one in turn.files)
    kept: list[Given] = []
    for one in (picture, *reversed(turn.recalled)):
        room -= one.file.tokens
        if room < 0:
            break
        kept.append(one)
    return replace(turn, recalled=tuple(reversed(kept))) if kept else None


def windowed(turn: Turn, limit: int) -> Turn:
    """The turn with its window within `limit` bytes: where it goes above, whole exchanges go until half is left.

    The last exchange always stays: without it the model would not know what it just did. One that is too large by itself
    is shortened. A window that was kept for a wider limit comes out as if this one had held from its beginning, so that it
    too only grows at its end.
    """
    if turn.window_size <= limit:
        return turn
    size, gone = 0, 0
    for last, exchange in enumerate(turn.window):
        size += exchange.size
        if size > limit:
            while gone < last and size > limit // 2:
                size -= turn.window[gone].size
                gone += 1
    lines = (exchange.line for exchange in turn.window[:gone])
    window = turn.window[gone:]
    if window and size > limit:
        window = (squeezed(window[-1], f"{turn.handle}.{window[-1].step}", limit),)
        size = window[0].size
    return replace(
        turn,
        window=window,
        window_size=size,
        dropped=(*turn.dropped, *lines)[-MAX_DROPPED_LINES:],
        dropped_count=turn.dropped_count + gone,
    )


def noted(turn: Turn, note: Note) -> Turn:
    """The turn with a note added, changed or closed."""
    others = {name: one for name, one in turn.notes.items() if name != note.name}
    return replace(turn, notes={**others, note.name: note})


def note_of(call: ToolCall, handle: str) -> Note | None:
    """The note that a call takes, when it is one and is well-formed; a long text is cut to what `handle` brings back."""
    if call.name != NOTE_TOOL:
        return None
    try:
        wanted = msgspec.json.decode(call.args, type=_NoteArgs)
    except msgspec.MsgspecError:
        return None
    text = shorten(wanted.text, handle, NOTE_SIZE, is_part=True)
    return Note(wanted.kind, one_line(wanted.key, KEY_LENGTH), text, wanted.status == "open")


def note_problem(note: Note, carried: tuple[Note, ...], turn: Turn) -> str:
    """Why the note cannot be taken; empty when it can. What is carried is bounded, and never forgotten silently."""
    is_open = {one.name: one.is_open for one in (*carried, *turn.notes.values())}
    if not note.is_open or is_open.get(note.name) or sum(is_open.values()) < MAX_OPEN_NOTES:
        return ""
    return f"There are {MAX_OPEN_NOTES} open notes already. Close or change one (status='done') before adding another."


def _cut_off(turn: Turn, text: str) -> Turn:
    partial = turn.partial + text
    silences = 0 if text else turn.silences + 1
    if turn.continuations == MAX_CONTINUATIONS or silences == MAX_SILENCES:
        why = f"the answer was cut off {turn.continuations + 1} times and never came to an end"
        if not text:
            why = f"the model used up the length of its reply {silences} times before it said a word"
        return replace(turn, finish=Finish(partial, ErrorRecord("answer_endless", why, _LONGER)))
    turn = replace(turn, continuations=turn.continuations + 1, silences=silences)
    if not text:  # thoughts that were cut off are signed by nobody, so they are not shown again
        return replace(turn, advice=(_THOUGHT_CUT_OFF,), spoken=())
    return _kept(turn, _exchange(turn, _words(turn.spoken), CUT_OFF, "cut off", text), partial=partial, spoken=())


def _named(call: ToolCall) -> ToolCall:
    """The call with a name and an id that every later request can carry; what is cut stays apart from any other."""
    if len(call.name) <= _MAX_NAME and len(call.id) <= MAX_ID:
        return call
    return ToolCall(_capped(call.id, MAX_ID), _capped(call.name, _MAX_NAME), call.args)


def _capped(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[: limit - len(digest)]}{digest}"


def _begun(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """The calls of a reply that was cut off. Arguments that never began are no empty ones: those might be meant."""
    *whole, last = calls
    return (*whole, replace(last, args="{")) if last.args.strip() in ("", "{}") else calls


def _exchange(turn: Turn, words: tuple[Part, ...], said: str, what: str, outcome: str) -> Exchange:
    messages = (Message("assistant", words), Message("user", (Text(said),)))
    return Exchange(turn.step, messages, size_of(messages), _line(turn, what, outcome))


def _kept(turn: Turn, exchange: Exchange, **changes: Any) -> Turn:
    """The turn with one more exchange in its window."""
    return replace(turn, window=(*turn.window, exchange), window_size=turn.window_size + exchange.size, **changes)


def _line(turn: Turn, what: str, outcome: str) -> str:
    return f"{turn.handle}.{turn.step} {one_line(what, 60)} -> {one_line(outcome, 70)}"[:LINE_LENGTH]


def _words(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(part for part in parts if isinstance(part, Text | Thinking))
