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

from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.kernel.errors import ErrorRecord
from atlas.kernel.excerpt import FENCE_SIZE, one_line, shorten
from atlas.kernel.media import Given
from atlas.kernel.model import Message, Part, Reply, Text, Thinking, ToolCall, ToolResult
from atlas.kernel.token import Limits, is_within, size_of, text_size

MAX_DROPPED_LINES: Final = 32
MAX_CONTINUATIONS: Final = 16
MAX_OPEN_NOTES: Final = 40
NOTE_TOOL: Final = "note"
NOTE_SIZE: Final = 400
KEY_LENGTH: Final = 60
LINE_LENGTH: Final = 140
_LEAST_RESULT: Final = 256
CUT_OFF: Final = "Your answer was cut off. Go on exactly where it stopped; do not repeat anything."
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


class Exchange(msgspec.Struct, frozen=True):
    """One step: what the model said and what came back.

    `size` is its bytes in a request, `line` stands for it once it is dropped. Results are not fenced here.
    """

    step: int
    messages: tuple[Message, ...]
    size: int
    line: str


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
    calls = tuple([part for part in reply.parts if isinstance(part, ToolCall)])
    text = "".join([part.text for part in reply.parts if isinstance(part, Text)])
    spoken = replace(turn, step=step, advice=(), spoken=reply.parts)
    match reply.stop:
        case "refusal" | "filter":
            words = text.strip() or "the model gave no reason"
            error = ErrorRecord(f"model_{reply.stop}", f"the model declined: {words[:500]}")
            return replace(spoken, finish=Finish(text, error))
        case "length" if not calls:
            return _cut_off(spoken, text)
        case "length":
            return replace(spoken, pending=_begun(calls), partial="", continuations=0, advice=(_CALL_CUT_OFF,))
        case _ if calls:
            return replace(spoken, pending=calls, partial="", continuations=0)
    return replace(spoken, finish=Finish(turn.partial + text))


def received(turn: Turn, results: tuple[ToolResult, ...], sizes: Limits) -> Turn:
    """The turn after its tools answered; `sizes` are limits in bytes.

    Results share half of the window, so that however many calls a step makes, it and one more fit.
    """
    handle = f"{turn.handle}.{turn.step}"
    spoken = [_shown(part, handle, sizes.result) for part in turn.spoken]
    limit = _shares([one.text for one in results], sizes.window // 2, sizes.result)
    shown = [
        ToolResult(one.id, shorten(one.text, f"{handle}.{number}", limit), one.is_error)
        for number, one in enumerate(results, start=1)
    ]
    names = ", ".join([f"{call.name}({one_line(call.args, 40)})" for call in turn.pending])
    outcome = "; ".join([("error: " if one.is_error else "") + one_line(one.text, 40) for one in results])
    messages = (Message("assistant", tuple(spoken)), Message("user", tuple(shown)))
    exchange = Exchange(turn.step, messages, _fenced_size(messages, handle), _line(turn, names, outcome))
    return _kept(turn, exchange, pending=(), spoken=())


def advised(turn: Turn, text: str) -> Turn:
    """The turn with something the host says before the next request; a finished turn goes on."""
    if turn.finish is None:
        return replace(turn, advice=(*turn.advice, text))
    words = _words(turn.spoken) or (Text(turn.finish.text or "(nothing)"),)
    exchange = _exchange(turn, words, text, "answer", turn.finish.text)
    return _kept(turn, exchange, finish=None, partial="", continuations=0, spoken=())


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
        window = (_squeezed(window[-1], f"{turn.handle}.{window[-1].step}", limit),)
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
    if turn.continuations == MAX_CONTINUATIONS or not text:
        why = f"the answer was cut off {turn.continuations + 1} times and never came to an end"
        return replace(turn, finish=Finish(partial, ErrorRecord("answer_endless", why)))
    exchange = _exchange(turn, _words(turn.spoken), CUT_OFF, "cut off", text)
    return _kept(turn, exchange, partial=partial, continuations=turn.continuations + 1, spoken=())


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


def _squeezed(exchange: Exchange, handle: str, limit: int) -> Exchange:
    """The exchange in about `limit` bytes, its long texts shortened to what their handles bring back."""
    said, told = exchange.messages
    results = [part for part in told.parts if isinstance(part, ToolResult)]
    texts = [one for one in map(_text_of, (*said.parts, *results)) if one]
    share = _shares(texts, limit - exchange.size + sum(map(text_size, texts)), limit)
    spoken = [_cut(part, handle, share) for part in said.parts]
    heard = [_cut(part, f"{handle}.{number}", share) for number, part in enumerate(results, start=1)]
    messages = (Message(said.role, tuple(spoken)), Message(told.role, tuple(heard) or told.parts))
    return replace(exchange, messages=messages, size=_fenced_size(messages, handle))


def _text_of(part: Part) -> str:
    """What of a part may be long, and can be recalled."""
    match part:
        case Text() | ToolResult():
            return part.text
        case ToolCall():
            return part.args
    return ""


def _cut(part: Part, handle: str, limit: int) -> Part:
    match part:
        case Text():
            return Text(shorten(part.text, handle, limit, is_part=True))
        case ToolResult():
            return ToolResult(part.id, shorten(part.text, handle, limit, is_part=True), part.is_error)
        case ToolCall() if not is_within(part.args, limit):
            # Escapes of escapes: JSON in JSON takes up to twice the bytes.
            return ToolCall(part.id, part.name, _shortened(part.args, handle, limit // 2))
    return part


def _shortened(args: str, handle: str, limit: int) -> str:
    """Arguments as JSON, which they have to stay, that says no more than their beginning and end."""
    return msgspec.json.encode({"shortened": shorten(args, handle, limit, is_part=True)}).decode()


def _fenced_size(messages: tuple[Message, ...], handle: str) -> int:
    """The bytes of an exchange once its results are fenced."""
    results = sum(isinstance(part, ToolResult) for part in messages[-1].parts)
    return size_of(messages) + results * (FENCE_SIZE + len(handle) + 4)


def _shares(texts: list[str], room: int, most: int) -> int:
    """How much each text may have so that all fit into `room`: small ones leave what they do not need to others."""
    sizes = sorted(map(text_size, texts))
    for number, size in enumerate(sizes):
        share = room // (len(sizes) - number)
        if size > share:
            return max(min(share, most), _LEAST_RESULT)
        room -= size
    return most


def _shown(part: Part, handle: str, limit: int) -> Part:
    """A part of what the model said as it is shown to it again: the long texts among its arguments are shortened."""
    if not isinstance(part, ToolCall) or is_within(part.args, limit):
        return part
    try:
        value = msgspec.json.decode(part.args)
    except msgspec.DecodeError:
        value = {"malformed": part.args}
    share = max(limit // max(_leaves(value), 1), _LEAST_RESULT)
    args = msgspec.json.encode(_leaner(value, handle, share)).decode()
    if text_size(args) > 2 * limit:
        args = _shortened(part.args, handle, limit)
    return ToolCall(part.id, part.name, args)


def _leaner(value: Any, handle: str, limit: int) -> Any:
    match value:
        case str():
            return shorten(value, handle, limit, is_part=True)
        case dict():
            return {key: _leaner(one, handle, limit) for key, one in value.items()}
        case list():
            return [_leaner(one, handle, limit) for one in value]
        case _:
            return value


def _leaves(value: Any) -> int:
    match value:
        case dict():
            return sum(_leaves(one) for one in value.values())
        case list():
            return sum(_leaves(one) for one in value)
        case _:
            return 1


def _line(turn: Turn, what: str, outcome: str) -> str:
    return f"{turn.handle}.{turn.step} {one_line(what, 60)} -> {one_line(outcome, 70)}"[:LINE_LENGTH]


def _words(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(part for part in parts if isinstance(part, Text | Thinking))
