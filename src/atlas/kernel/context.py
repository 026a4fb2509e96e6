"""What a model is shown: bounded, rebuilt for every request, and never lossy without a way back.

    build(turn, live, limits)   one request from the turn's state and live inputs; pure, so that the same
                                inputs always give the same bytes
    Builder(limits)             the same for the requests of a turn, at the cost of what is new in each

The order serves providers' prompt caches: what is the same for the whole turn stands first (tools, persona, the
session, the user's words), then the exchanges of the turn, append-only until the window is halved, then what changes
every time. The stable part is fitted as if the window and the tail were full, so that neither can ever change it. Text
that others wrote is fenced here, once, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from atlas.kernel.block import Block, Choice, Grade, View, fit, least, view
from atlas.kernel.errors import LimitRefused
from atlas.kernel.excerpt import FENCE_SIZE, boundary, fence, shorten
from atlas.kernel.exchange import Exchange
from atlas.kernel.media import TEXT, Given
from atlas.kernel.model import Image, Message, Part, Request, Text, ToolResult, ToolSpec
from atlas.kernel.token import DEFAULT_RATE, MAX_OUTPUT, Calibration, Limits, count, size_of, text_size
from atlas.kernel.turn import Note, Turn, windowed

BUILDER_VERSION: Final = 4
TURNS: Final = "turns"
NOTES: Final = "notes"
EARLIER: Final = "Earlier turns, newest last"
"""How the text begins that holds what earlier turns left to this one."""
_FRAME: Final = 64
"""Bytes around a text in a request: the message, the part, and what separates it from the next."""
_GRADES: Final[tuple[tuple[Grade, int], ...]] = (("excerpt", 2), ("digest", 6))
"""What part of a block the views between the whole of it and its handle show."""
_ENCODER: Final = msgspec.json.Encoder()


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was said in an earlier turn, word for word; long texts are shortened to what their handles bring back."""

    turn: int
    user: str
    answer: str = ""

    @property
    def text(self) -> str:
        """As the model sees it: the user's words, and fenced its own, in which it may have quoted anybody."""
        turn = f"t{self.turn}"
        answer = f"\n{turn} you:\n{fence(self.answer, turn)}" if self.answer else ""
        return f"{turn} user: {self.user}{answer}"


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """What earlier turns leave to this one: bounded, however many there were."""

    turns: int = 0
    index: tuple[str, ...] = ()
    recent: tuple[Said, ...] = ()
    notes: tuple[Note, ...] = ()
    calibration: Calibration = Calibration()


class LiveFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of the working set as it is now: its first lines as `read_file` counts them, or why there are none."""

    path: str
    lines: tuple[str, ...] = ()
    is_whole: bool = True
    problem: str = ""


class Live(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every input of a request that is not in the run's events; recorded beside the intent that used it.

    `files` are the working set, `added` titles and texts that hooks put into this request. `context_window` is how many
    tokens the model can read and write; 0 when nobody knows.
    """

    model: str
    system: tuple[str, ...]
    tools: tuple[ToolSpec, ...] = ()
    files: tuple[LiveFile, ...] = ()
    added: tuple[tuple[str, str], ...] = ()
    session: Session = Session()
    bytes_per_token: float = DEFAULT_RATE
    max_output_tokens: int = MAX_OUTPUT
    context_window: int = 0
    output_schema: dict[str, Any] | None = None
    builder: int = BUILDER_VERSION


class Built(msgspec.Struct, frozen=True):
    """A request, its bytes as `neutral` gives them, and why each part of it is there.

    `measure` are the bytes that a provider's count of tokens is held against; 0 with pictures, which bytes do not measure.
    """

    request: Request
    raw: bytes
    choices: tuple[Choice, ...]
    tokens: int
    measure: int


def build(turn: Turn, live: Live, limits: Limits) -> Built:
    """The request for the turn's next step; LimitRefused when what must be shown does not fit."""
    return Builder(limits).build(turn, live)


class Builder:
    """Builds requests, each exactly as `build` does. It keeps what the last one was made of, for the next."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._frame: _Frame | None = None
        self._head: _Head | None = None
        self._window = _Window()

    def build(self, turn: Turn, live: Live) -> Built:
        """The request for the turn's next step; LimitRefused when what must be shown does not fit."""
        frame = self._framed(turn, live)
        rate, sizes = live.bytes_per_token, frame.sizes
        turn = windowed(turn, frame.window)
        head = self._headed(turn, frame)
        shown = self._window
        shown.follow(turn)
        volatile = tuple(_volatile_blocks(turn, live, sizes))
        room = frame.free - turn.window_size - head.size
        tail = _fitted(volatile, room, frame, self._limits, "or have hooks add less") if volatile else ()
        messages, encoded = (head.message, *shown.messages), (head.encoded, *shown.encoded)
        cache_at = len(messages)
        if words := "\n\n".join([one.text for one in tail]):
            messages = _with_tail(messages, words)
            cache_at = len(messages) - 1
            encoded = (*encoded[:cache_at], _ENCODER.encode(messages[-1]))
        step = turn.step + 1
        raw = b"".join((frame.before, b",".join(encoded), _end(cache_at, step)))
        if len(raw) + frame.weight > sizes.total:
            raise LimitRefused(
                f"the request has about {count(len(raw) + frame.weight, rate)} tokens and {self._limits.total} are allowed",
                hint=f"{_remedy(frame.live, self._limits)}.",
                code="context_too_small",
            )
        steps = Choice("steps of this turn", "full", count(turn.window_size, rate))
        return Built(
            replace(frame.request, messages=messages, cache_at=cache_at, step=step),
            raw,
            (*frame.choices, *head.choices, steps, *_choices(volatile, tail, rate)),
            count(len(raw) + frame.weight, rate),
            0 if frame.pictures else len(raw),
        )

    def _framed(self, turn: Turn, live: Live) -> _Frame:
        """The frame of the last request when it serves this one too: the number of the step may not be longer."""
        frame, step = self._frame, turn.step + 1
        files = (*turn.files, *turn.recalled)
        is_same = frame is not None and (frame.live, frame.files, frame.digits) == (live, files, len(str(step)))
        # Schemas that are equal may be written differently; a turn has one and the same.
        if frame is None or not is_same or frame.live.output_schema is not live.output_schema:
            frame = self._frame = _frame_of(files, step, live, self._limits)
        return frame

    def _headed(self, turn: Turn, frame: _Frame) -> _Head:
        """The head of the last request when nothing that stands in it, and no room for it, has changed."""
        room = frame.free - max(turn.window_size, frame.window) - frame.kept_back
        key = (frame, room, turn.number, turn.user, turn.dropped, turn.dropped_count)
        if self._head is None or self._head.key != key:
            self._head = _head_of(turn, frame, self._limits, room, key)
        return self._head


class _Frame(msgspec.Struct, frozen=True, eq=False):
    """What is around the messages of a request: the request without any, its bytes up to them, and the room it leaves.

    `weight` is what pictures weigh beyond their bytes, `window` what exchanges may have, `kept_back` is for the tail.
    """

    live: Live
    files: tuple[Given, ...]
    digits: int
    request: Request
    before: bytes
    sizes: Limits
    stable_sizes: Limits
    pictures: tuple[Part, ...]
    weight: int
    free: int
    window: int
    kept_back: int
    choices: tuple[Choice, ...]


def _frame_of(files: tuple[Given, ...], step: int, live: Live, limits: Limits) -> _Frame:
    rate = live.bytes_per_token
    sizes = limits.at(rate)
    request = Request(
        model=live.model,
        system=live.system,
        messages=(),
        tools=live.tools,
        max_output_tokens=live.max_output_tokens,
        output_schema=None if live.output_schema is None else msgspec.Raw(_ENCODER.encode(live.output_schema)),
        step=step,
    )
    empty = neutral(request)
    fixed = len(empty) + _FRAME
    pictures = _pictures(files)
    images = [part for part in pictures if isinstance(part, Image)]
    weight = int(sum(part.tokens for part in images) * rate)
    free = sizes.total - fixed - (size_of(pictures) + weight if pictures else 0)
    given = (Choice(f"given {part.name}", "full", part.tokens) for part in images)
    return _Frame(
        live=live,
        files=files,
        digits=len(str(step)),
        request=request,
        before=empty.removesuffix(_end(0, step)),
        sizes=sizes,
        # The rate may fall within a turn; what its beginning made of the session stays as it is while there is room.
        stable_sizes=limits.at(max(rate, live.session.calibration.rate)),
        pictures=pictures,
        weight=weight,
        free=free,
        # A large persona narrows the window; what is kept back for it and for the tail never goes to the stable part.
        window=max(0, min(sizes.window, free * 3 // 5)),
        kept_back=max(0, min(sizes.tail, free // 8)),
        choices=(Choice("persona and tools", "full", count(fixed, rate)), *given),
    )


class _Head(msgspec.Struct, frozen=True):
    """The first message of a request, with its bytes; `size` is the room that it takes."""

    key: tuple[object, ...]
    message: Message
    encoded: bytes
    size: int
    choices: tuple[Choice, ...]


def _head_of(turn: Turn, frame: _Frame, limits: Limits, room: int, key: tuple[object, ...]) -> _Head:
    stable = tuple(_stable_blocks(turn, frame.live.session, frame.stable_sizes))
    views = _fitted(stable, room, frame, limits, "or shorten the persona")
    message = _head_message(stable, views, frame.pictures)
    size = sum(one.size + _FRAME for one in views)
    choices = tuple(_choices(stable, views, frame.live.bytes_per_token))
    return _Head(key, message, _ENCODER.encode(message), size, choices)


def _fitted(blocks: tuple[Block, ...], room: int, frame: _Frame, limits: Limits, remedy: str) -> tuple[View, ...]:
    """The views in which the blocks fit into `room` bytes; LimitRefused says what takes the rest, and what helps."""
    rate, frames = frame.live.bytes_per_token, _FRAME * len(blocks)
    needed = least(blocks) + frames
    if needed > room:
        given = "pictures and pages of PDFs, " if frame.pictures else ""
        remedy = f"give it fewer pictures and pages, {remedy}" if given else remedy
        raise LimitRefused(
            f"what must be shown needs about {count(needed, rate)} tokens; the rest of the request ({given}persona, "
            f"tools, the turn's steps) takes about {count(frame.sizes.total - room, rate)} of {limits.total} tokens "
            f"and leaves {int(max(room, 0) / rate)}",
            hint=f"{_remedy(frame.live, limits)}, {remedy}.",
            code="context_too_small",
        )
    return fit(blocks, room - frames)


def _remedy(live: Live, limits: Limits) -> str:
    """What makes more room: where the model's own window is what limits a request, a contract cannot widen it."""
    is_narrowed = live.context_window and limits.total + limits.output >= live.context_window
    return "Choose a model that can read more" if is_narrowed else "Raise context.max_tokens in agent.yaml"


class _Window:
    """The exchanges that the last request showed, as messages and as their bytes."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.encoded: list[bytes] = []
        self._exchanges: tuple[Exchange, ...] = ()
        self._turn = 0

    def follow(self, turn: Turn) -> None:
        """Shows the exchanges of the turn: only those are made that are new, unless others were dropped."""
        known = len(self._exchanges)
        if (self._turn, self._exchanges) != (turn.number, turn.window[:known]):
            known, self._exchanges, self.messages, self.encoded = 0, (), [], []
        new = [_fenced(one, turn, exchange) for exchange in turn.window[known:] for one in exchange.messages]
        encoded = [_ENCODER.encode(message) for message in new]
        self.messages += new
        self.encoded += encoded
        self._turn, self._exchanges = turn.number, turn.window


class _Neutral(msgspec.Struct, frozen=True):
    model: str
    tools: tuple[ToolSpec, ...]
    system: tuple[str, ...]
    output_schema: msgspec.Raw | None
    max_output_tokens: int
    tool_choice: str
    temperature: float | None
    messages: tuple[Message, ...]
    cache_at: int
    step: int


def neutral(request: Request) -> bytes:
    """The request as it is measured and recorded: JSON in the order in which providers cache it, what is new last."""
    parts = {name: getattr(request, name) for name in _Neutral.__struct_fields__}
    return _ENCODER.encode(_Neutral(**parts))


def _end(cache_at: int, step: int) -> bytes:
    """What follows the last message in the bytes of a request."""
    return f'],"cache_at":{cache_at},"step":{step}}}'.encode()


def _stable_blocks(turn: Turn, session: Session, sizes: Limits) -> Iterator[Block]:
    """What stays the same from request to request of a turn, until the window is halved."""
    if session.index:
        title = f"{EARLIER}; recall(handle='{TURNS}') lists all {session.turns}:"
        yield _lines("earlier turns", title, session.index, 30, TURNS, sizes.session * 2 // 5, is_data=True)
    if session.recent:
        said = tuple(one.text for one in session.recent)
        handle = f"t{session.recent[0].turn}"
        title = f"The last exchanges, word for word (recall(handle='{handle}') and later ones show the steps between):"
        yield _lines("last exchanges", title, said, 50, handle, sizes.session * 2 // 5)
    yield from _note_blocks(session.notes, "Open notes", "", sizes.session * 2 // 5)
    for given in turn.files:
        if given.file.media_type == TEXT:
            yield _given_block(given, sizes.user)
    yield _user_block(turn, sizes.user)
    if turn.dropped:
        title = f"Steps of this turn that are no longer shown, {turn.dropped_count} in all (recall(handle='{turn.handle}')):"
        yield _lines("dropped steps", title, turn.dropped, 60, turn.handle, sizes.session, is_data=True)


def _volatile_blocks(turn: Turn, live: Live, sizes: Limits) -> Iterator[Block]:
    """What may change with each request: live files, notes of this turn, what hooks add, the host's advice."""
    for file in live.files:
        yield _file_block(file, sizes.tail // 2)
    yield from _note_blocks(tuple(turn.notes.values()), "Notes of this turn", "turn ", sizes.tail // 2)
    for title, text in live.added:
        yield Block(f"added: {title}", (view("full", f"{title}\n{text}"),), is_mandatory=True)
    if turn.advice:
        yield Block("advice", (view("full", "\n".join(turn.advice)),), is_mandatory=True)


def _note_blocks(notes: tuple[Note, ...], title: str, name: str, limit: int) -> Iterator[Block]:
    """What the model set itself to do, in its own words; and fenced the facts it noted, in which it may have quoted anybody."""
    tasks = tuple(one.line for one in notes if one.kind != "fact")
    facts = tuple(one.line for one in notes if one.kind == "fact")
    if tasks:
        yield _lines(f"{name}notes", f"{title} (recall(handle='{NOTES}') shows all):", tasks, 80, NOTES, limit)
    if facts:
        told = f"{title}, the facts (recall(handle='{NOTES}') shows all):"
        yield _lines(f"{name}facts", told, facts, 80, NOTES, limit, is_data=True)


def _user_block(turn: Turn, limit: int) -> Block:
    """The user's words: whole where they fit, never left out."""
    handle = f"{turn.handle}.0"
    views = [view("full", turn.user)]
    for grade, most in _GRADES:
        short = shorten(turn.user, handle, limit // most)
        if short is not turn.user:
            views.append(view(grade, short))
    if views[0].size > limit:
        views.pop(0)
    return Block("user", _falling(views), handle=handle, is_mandatory=True)


def _given_block(given: Given, limit: int) -> Block:
    """A text that was given: the whole of it, or its beginning and the handle that goes on from there."""
    title, data = f"{given.line}:\n", given.head.encode()
    views = [view("full", title + fence(given.head, given.handle))] if len(data) == given.file.size else []
    if views and views[0].size > limit:
        views.pop()
    for grade, most in (("excerpt", 1), *_GRADES):
        cut = boundary(data, min(limit // most, given.file.size - 1))
        rest = f"\n[recall(handle='{given.handle}', start={cut}) goes on]"
        views.append(view(grade, title + fence(data[:cut].decode(), given.handle) + rest))
    views.append(view("handle", f"{given.line} is attached; recall(handle='{given.handle}') shows it."))
    return Block(f"given {given.file.name}", _falling(views), 85, given.handle)


def _pictures(files: tuple[Given, ...]) -> tuple[Part, ...]:
    """What was given or recalled and is no text, each with a line that names it; never left out: too many are refused."""
    parts: list[Part] = []
    for given in files:
        file = given.file
        if file.media_type != TEXT:
            parts += (Text(f"{given.line}:"), Image(file.media_type, file.blob, file.name, file.tokens))
    return tuple(parts)


def _lines(
    name: str, title: str, lines: tuple[str, ...], priority: int, handle: str, limit: int, *, is_data: bool = False
) -> Block:
    """As many lines as `limit` allows, of which the newest are kept longest; in the end the title, with the handle."""
    newest = _newest(lines, limit - text_size(title) - FENCE_SIZE - len(name))
    views = []
    for grade, part in (("excerpt", 1), *_GRADES):
        if kept := newest[len(newest) - len(newest) // part :]:
            body = "\n".join(kept)
            text = f"{title}\n{fence(body, name) if is_data else body}"
            views.append(view("full" if len(kept) == len(lines) else grade, text))
    views.append(view("handle", title))
    return Block(name, _falling(views), priority, handle)


def _newest(lines: tuple[str, ...], limit: int) -> tuple[str, ...]:
    """The last lines that fit into `limit` bytes together."""
    first = len(lines)
    while first and (limit := limit - text_size(lines[first - 1]) - 2) >= 0:
        first -= 1
    return lines[first:]


def _file_block(file: LiveFile, limit: int) -> Block:
    """A file as it is now: the whole of it, or its first lines and where `read_file` goes on."""
    path, title, lines = file.path, f"{file.path} as it is now", file.lines
    if file.problem:
        return Block(f"file {path}", (view("full", f"{title}: {file.problem}"),), 70, path)
    views = []
    for grade, part in (("excerpt", 1), *_GRADES):
        first = _first(lines, limit // part - text_size(title) - FENCE_SIZE - len(path))
        body = "\n".join(first)
        text = f"{title}:\n{fence(body, path)}"
        if file.is_whole and len(first) == len(lines):
            views = [view("full", text)]
        elif first:
            views.append(view(grade, f"{text}\n[read_file(path='{path}', start={len(first) + 1}) goes on]"))
    views.append(view("handle", f"{path} is open; read_file(path='{path}') shows it."))
    return Block(f"file {path}", _falling(views), 70, path)


def _first(lines: tuple[str, ...], limit: int) -> tuple[str, ...]:
    """The first lines that fit into `limit` bytes together."""
    last = 0
    while last < len(lines) and (limit := limit - text_size(lines[last]) - 2) >= 0:
        last += 1
    return lines[:last]


def _falling(views: Sequence[View]) -> tuple[View, ...]:
    """The views that are each smaller than the one before."""
    kept: list[View] = []
    for one in views:
        if not kept or one.size < kept[-1].size:
            kept.append(one)
    return tuple(kept)


def _head_message(blocks: tuple[Block, ...], views: tuple[View, ...], pictures: tuple[Part, ...]) -> Message:
    """The session, what was given and the user's words, in parts that stay whole when a later one changes."""
    parts: list[Part] = []
    before: list[str] = []
    for block, one in zip(blocks, views, strict=True):
        if block.name not in ("user", "dropped steps"):
            before.append(one.text)
            continue
        if before:
            parts.append(Text("\n\n".join(before)))
            before = []
        if block.name == "user":
            parts += pictures
        if one.text or not parts:
            parts.append(Text(one.text))
    return Message("user", tuple(parts))


def _fenced(message: Message, turn: Turn, exchange: Exchange) -> Message:
    """Tools' results as the model sees them: data, whatever they say. Any other message as it is."""
    if not isinstance(message.parts[0], ToolResult):
        return message
    parts: list[Part] = []
    for number, part in enumerate(message.parts, start=1):
        if isinstance(part, ToolResult):
            source = f"{turn.handle}.{exchange.step}.{number}"
            part = ToolResult(part.id, fence(part.text, source), part.is_error)
        parts.append(part)
    return Message(message.role, tuple(parts))


def _with_tail(messages: tuple[Message, ...], tail: str) -> tuple[Message, ...]:
    """The tail rides on the last message of the user, behind everything that the next request repeats."""
    last = messages[-1]
    if last.role == "user":
        return (*messages[:-1], Message("user", (*last.parts, Text(tail))))
    return (*messages, Message("user", (Text(tail),)))


def _choices(blocks: tuple[Block, ...], views: tuple[View, ...], rate: float) -> Iterator[Choice]:
    for block, one in zip(blocks, views, strict=True):
        yield Choice(block.name, one.grade, count(one.size, rate))
