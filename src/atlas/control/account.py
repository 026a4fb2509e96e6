"""A run told as a list of entries: the user's words, each step of the model, each tool call. What recall reads from."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from atlas.control.branch import Stretch, stretches_before
from atlas.control.history import History, bodies, created_of
from atlas.control.payload import unpack
from atlas.kernel.context import Session
from atlas.kernel.digest import Done, title_of
from atlas.kernel.errors import ErrorRecord
from atlas.kernel.event import (
    NULL,
    CallAnswered,
    EffectReceived,
    EffectRefused,
    Event,
    InputFile,
    Payload,
    RunCreated,
    TurnClosed,
    TurnSteered,
)
from atlas.kernel.excerpt import boundary, one_line
from atlas.kernel.gate import Recorded
from atlas.kernel.media import TEXT, Given
from atlas.kernel.model import Asked, Reply, Text, ToolCall
from atlas.kernel.port import Ledger
from atlas.kernel.recall import Handle, Provenance
from atlas.kernel.run import RunQuery
from atlas.kernel.token import Heard, Sample
from atlas.kernel.turn import NOTE_TOOL, Note, note_of

RECALL_TOOL: Final = "recall"
_GLANCE: Final = 240
_ANSWER: Final = 800
_LOOK_BACK: Final = 100
_FEW: Final = 8
_MANY: Final = 100


class Entry(msgspec.Struct, frozen=True):
    """One thing that was recorded; `label` names who said it, `calls` what the model asked for in this step.

    `blob` holds the text of a file that was given; `picture` is one that has no text. `changed` is what the model got
    in place of a result, by `changed_by`. `is_steering`: a hook said it, or the host did about an answer.
    """

    handle: Handle
    provenance: Provenance
    label: str
    text: str = ""
    payload: Payload = NULL
    blob: str = ""
    picture: Given | None = None
    calls: tuple[ToolCall, ...] = ()
    changed: Payload = NULL
    changed_by: str = ""
    is_steering: bool = False
    seq: int = 0
    at: int = 0


class Account:
    """The entries of one run, in the order in which they were recorded."""

    def __init__(
        self, ledger: Ledger, turn: int, entries: Sequence[Entry], title: str, refused: Container[Handle] = ()
    ) -> None:
        self._ledger = ledger
        self._turn = turn
        self._refused = refused
        self.entries = tuple(entries)
        self.title = title

    @property
    def is_retelling(self) -> bool:
        """Whether the run looked back and did nothing else: what it says, others said before."""
        results = [entry for entry in self.entries if entry.handle.step and entry.handle.call]
        used = {entry.label for entry in results if not entry.is_steering}
        return RECALL_TOOL in used and used <= {RECALL_TOOL, NOTE_TOOL}

    async def text(self, handle: Handle) -> str | None:
        """Exactly what was recorded under the handle; None when nothing was."""
        if handle.step is None:
            return await self._overview()
        if handle.step and handle.call is None:
            return await self._step(handle.step)
        for entry in self.entries:
            if entry.handle == handle:
                return await self.whole(entry)
        return self._unperformed(handle)

    async def whole(self, entry: Entry) -> str:
        """The entry's text; the model's words are text already, a tool's result or a file may lie in a blob.

        Of a result that was changed it is what the model got, so that a place in one is the same place in the other,
        and then the original.
        """
        if entry.blob:
            return (await self._ledger.get_blob(entry.blob)).decode()
        text = entry.text if entry.payload is NULL else result_text(await unpack(self._ledger, entry.payload))
        if entry.changed is NULL:
            return text
        got = result_text(await unpack(self._ledger, entry.changed))
        return f"{got}\n[Changed by {entry.changed_by}. Before that it was:]\n{text}"

    async def searched(self, entry: Entry) -> str:
        """The entry's text as search knows it: without what the model asked recall, which would find itself.

        Of a step this is how the text of its handle begins, so that a place in one is the same place in the other.
        """
        calls = (_written(call) for call in entry.calls if call.name != RECALL_TOOL)
        return "\n".join(filter(None, (await self.whole(entry), *calls)))

    def picture(self, handle: Handle) -> Given | None:
        """What was given under the handle, if it is to be looked at rather than read."""
        return next((entry.picture for entry in self.entries if entry.handle == handle), None)

    def provenance(self, handle: Handle) -> str:
        """Who is behind what the handle shows."""
        found = next((entry.provenance for entry in self.entries if entry.handle == handle), None)
        call = self._call(handle) if found is None else None
        is_note = call is not None and call.name == NOTE_TOOL and handle not in self._refused
        return found or ("noted" if is_note else "recorded")

    def notes(self) -> tuple[Note, ...]:
        """The notes that the run took, in order."""
        found = (
            note_of(call, f"{entry.handle}.{number}")
            for entry in self.entries
            for number, call in enumerate(entry.calls, start=1)
            if Handle(self._turn, entry.handle.step, number) not in self._refused
        )
        return tuple(note for note in found if note is not None)

    async def _step(self, step: int) -> str | None:
        """What the model said and asked for in a step, then what each call came to."""
        said = next((one for one in self.entries if one.handle == Handle(self._turn, step)), None)
        if said is None:
            return None
        looks = (_written(call) for call in said.calls if call.name == RECALL_TOOL)
        parts = [*filter(None, (await self.searched(said), *looks))]
        results = (one for one in self.entries if one.handle.step == step and one.handle.call)
        for result in sorted(results, key=lambda one: one.handle.call or 0):
            parts += (f"[{result.handle} {result.label}]", await self.whole(result))
        return "\n".join(parts)

    async def _overview(self) -> str:
        """One line for each entry, with the handle that shows it whole."""
        lines = [self.title] if self.title else []
        last = max((one.handle.step or 0 for one in self.entries), default=0)
        for entry in self.entries:
            text = await self.whole(entry)
            calls = " ".join(f"{call.name}({one_line(call.args, 80)})" for call in entry.calls)
            most = _ANSWER if entry.handle == Handle(self._turn, last) else _GLANCE
            size = f" [{len(text.encode())} bytes]" if len(text) > most else ""
            lines.append(f"{entry.handle} {entry.label}: {one_line(f'{text} {calls}', most)}{size}")
        return "\n".join(lines)

    def _unperformed(self, handle: Handle) -> str | None:
        """A call that was answered without being performed: a note, an unknown tool, arguments that do not fit."""
        call = self._call(handle)
        return None if call is None else _written(call)

    def _call(self, handle: Handle) -> ToolCall | None:
        """The call as the model made it, whatever became of it."""
        for entry in self.entries:
            if entry.handle == Handle(handle.turn, handle.step) and handle.call and handle.call <= len(entry.calls):
                return entry.calls[handle.call - 1]
        return None


def _written(call: ToolCall) -> str:
    """A call as it is read: its name and its arguments, exactly as the model wrote them."""
    return f"{call.name}({call.args})"


async def events_of(ledger: Ledger, run_id: str, after: int = 0) -> list[Event]:
    """The events of a run after one of them; those of a fork begin with what it continues."""
    events = await ledger.events(run_id, after=after)
    return events if after else [*events[:1], *await _continued(ledger, events), *events[1:]]


async def _continued(ledger: Ledger, events: list[Event]) -> list[Event]:
    fork = created_of(events[0]).fork if events and events[0].salt else None
    if fork is None:
        return []
    earlier = await ledger.events(fork.run_id, limit=fork.seq)
    return [*await _continued(ledger, earlier), *earlier[1:]]


async def read(ledger: Ledger, turn: int, events: Iterable[Event]) -> Account:
    """The account of a run, or of the part of it that `events` are."""
    entries: list[Entry] = []
    asked: set[Handle] = set()
    refused: set[Handle] = set()
    title = ""
    for event, body in bodies(events):
        if isinstance(body, CallAnswered) or (isinstance(body, TurnSteered) and body.moment == "authorize_tool"):
            refused.add(Handle(turn, body.step, body.call))
        match body:
            case RunCreated():
                text = said_text(await unpack(ledger, body.input), body.files, turn)
                entry = Entry(Handle(turn, 0), "user", "user", text, seq=event.seq, at=event.position)
                entries += (entry, *_given_entries(body.files, turn, event))
            case EffectReceived() | EffectRefused():
                handle = handle_of(body.effect, turn)
                if handle is not None:
                    if (
                        handle.call is None and handle in asked
                    ):  # a step that was asked again: only what it came to counts
                        entries = [one for one in entries if one.handle != handle]
                    asked.add(handle)
                    entries.append(await _effect(ledger, handle, body, event))
            case TurnSteered() if body.decision in ("continue", "deny", "stop"):
                entries += await _steering(
                    ledger, body, Handle(turn, body.step, body.call or _free(entries, body)), event
                )
            case TurnSteered() if body.decision == "change":
                place = _place(entries, Handle(turn, body.step, body.call))
                if place is not None:
                    entries[place] = replace(entries[place], changed=body.detail, changed_by=body.by)
            case CallAnswered():
                handle, place = Handle(turn, body.step, body.call), _place(entries, Handle(turn, body.step))
                name = "" if place is None else entries[place].calls[body.call - 1].name
                entries.append(Entry(handle, "observed", name, "", body.text, seq=event.seq, at=event.position))
            case TurnClosed():
                title = body.title
            case _:
                pass
    if not title and entries and entries[0].provenance == "user":
        title = title_of(Done(turn, entries[0].text))
    return Account(ledger, turn, entries, title, refused)


def _place(entries: Sequence[Entry], handle: Handle) -> int | None:
    """Where the last entry of a handle stands; sought from the end, because what is said of one follows it closely."""
    return next((place for place in reversed(range(len(entries))) if entries[place].handle == handle), None)


async def done_of(ledger: Ledger, turn: int, history: History, outcome: str) -> Done:
    """What happened in a turn, from its record alone."""
    tools: list[str] = []
    notes: list[Note] = []
    samples: list[Sample] = []
    failed = last = 0
    answer, is_pieced, was_cut = "", False, False
    for effect, recorded in history.answers.items():
        handle = handle_of(effect, turn)
        if handle is None:
            continue
        is_error = isinstance(recorded, EffectRefused) or recorded.error is not None
        if handle.call is not None:
            name = effect.rpartition(":")[2]
            if name not in (RECALL_TOOL, NOTE_TOOL):
                tools.append(name)
                failed += is_error or await _says_error(ledger, recorded)
        elif isinstance(recorded, EffectReceived) and not is_error:
            heard = _HEARD.decode(await unpack(ledger, recorded.result))
            samples.append(heard.sample)
            text = "".join([part.text for part in heard.reply.parts if isinstance(part, Text)])
            answer, is_pieced, last = (answer + text if was_cut else text), was_cut, handle.step or 0
            was_cut = heard.reply.stop == "length"
            notes += _notes_in(heard.reply, handle, history)
    created = history.state.created
    user = said_text(await unpack(ledger, created.input), created.files, turn)
    return Done(turn, user, answer, last, is_pieced, tuple(tools), failed, tuple(notes), tuple(samples), outcome)


def _notes_in(reply: Reply, step: Handle, history: History) -> list[Note]:
    """The notes that a reply took: well-formed, and neither refused nor denied."""
    if reply.stop in ("refusal", "filter"):
        return []
    calls = [part for part in reply.parts if isinstance(part, ToolCall)]
    made = [
        note_of(call, f"{step}.{number}")
        for number, call in enumerate(calls, start=1)
        if history.has_made(step.step or 0, number)
    ]
    return [note for note in made if note is not None]


async def session_before(ledger: Ledger, session_id: str, turn: int) -> Session:
    """What earlier turns leave to this one; loads one event, not a history."""
    for stretch in await stretches_before(ledger, session_id, turn):
        session = await _left_in(ledger, stretch, turn, _FEW if stretch.session_id == session_id else _MANY)
        if session is not None:
            return session
    return Session()


async def _left_in(ledger: Ledger, stretch: Stretch, turn: int, limit: int) -> Session | None:
    """What the last turn of a stretch that left something did leave; `limit` runs are looked up at a time."""
    before = ""
    while True:
        page = await ledger.runs(RunQuery(session_id=stretch.session_id, roots_only=True, before=before, limit=limit))
        # Later turns may wait in the queue already, or lie behind the one at which it was left; they are listed first.
        earlier = sorted((row for row in page.runs if row.turn <= stretch.last), key=lambda row: row.turn, reverse=True)
        for row in earlier:
            session = await session_left(ledger, row.run_id, row.head_seq)
            if session is not None:
                return session
        before = page.next
        if not before or (earlier and earlier[0].turn < turn - _LOOK_BACK):
            return None


async def session_left(ledger: Ledger, run_id: str, last_seq: int) -> Session | None:
    """What a turn that is over left to the next one; reads its last events only."""
    for _, body in bodies(await ledger.events(run_id, after=max(0, last_seq - 3))):
        if isinstance(body, TurnClosed):
            return msgspec.json.decode(await unpack(ledger, body.session), type=Session)
    return None


async def _says_error(ledger: Ledger, recorded: Recorded) -> bool:
    """Whether a tool that answered said that it failed."""
    if not isinstance(recorded, EffectReceived):
        return True
    return _OUTCOME.decode(await unpack(ledger, recorded.result)).is_error


class _Outcome(msgspec.Struct):
    is_error: bool = False


_HEARD: Final = msgspec.json.Decoder(Heard)
_OUTCOME: Final = msgspec.json.Decoder(_Outcome)


def revises(events: Iterable[Event]) -> bool:
    """Whether one of the events changes what another one before it is read as."""
    return any(isinstance(body, TurnSteered) and body.decision == "change" for _, body in bodies(events))


def _free(entries: Iterable[Entry], fact: TurnSteered) -> int:
    """The place behind the calls of a step, or the files of the beginning: what was said about the whole stands there."""
    mine = [one for one in entries if one.handle.step == fact.step and not one.is_steering]
    return 1 + max((max(len(one.calls), one.handle.call or 0) for one in mine), default=0)


async def _steering(ledger: Ledger, fact: TurnSteered, handle: Handle, event: Event) -> list[Entry]:
    """What was said to the model, or why a turn ended: all that is behind it, and the words where that lacks them."""
    at = Entry(handle, "observed", fact.by, fact.text, is_steering=True, seq=event.seq, at=event.position)
    if fact.detail == NULL:
        return [at]
    detail = replace(at, text="", payload=fact.detail)
    # Words that were too long to be shown stand whole at the beginning of what is behind them.
    if result_text(await unpack(ledger, fact.detail)).startswith(fact.text[:_GLANCE]):
        return [detail]
    return [detail, replace(at, handle=replace(handle, call=(handle.call or 0) + 1))]


async def _effect(ledger: Ledger, handle: Handle, body: EffectReceived | EffectRefused, event: Event) -> Entry:
    is_model = handle.call is None
    label = "you" if is_model else body.effect.rpartition(":")[2]
    provenance: Provenance = "claimed" if is_model else "noted" if label == NOTE_TOOL else "observed"
    if isinstance(body, EffectRefused) or body.error is not None:
        text = error_text(body.error) if body.error is not None else ""
        return Entry(handle, provenance, label, text, seq=event.seq, at=event.position)
    if not is_model:
        return Entry(handle, provenance, label, "", body.result, seq=event.seq, at=event.position)
    reply = msgspec.json.decode(await unpack(ledger, body.result), type=Asked).reply
    words = "".join(part.text for part in reply.parts if isinstance(part, Text))
    calls = tuple(part for part in reply.parts if isinstance(part, ToolCall))
    return Entry(handle, provenance, label, words, calls=calls, seq=event.seq, at=event.position)


def handle_of(effect: str, turn: int) -> Handle | None:
    """The handle of an effect of a turn: `model:3` is a step, `tool:3.2:name` a call."""
    kind, _, rest = effect.partition(":")
    step, _, call = rest.partition(":")[0].partition(".")
    if kind == "model" and step.isdigit() and not call:
        return Handle(turn, int(step))
    if kind == "tool" and step.isdigit() and call.isdigit():
        return Handle(turn, int(step), int(call))
    return None


def origin(handle: Handle) -> str:
    """Who is behind what search found under a handle; its form tells, because it finds no notes beside what took them."""
    match handle:
        case Handle(step=None):
            return "recorded"
        case Handle(step=0, call=None):
            return "user"
        case Handle(call=None):
            return "claimed"
    return "observed"


def user_text(raw: msgspec.Raw, files: Sequence[InputFile] = ()) -> str:
    """What the user said, from a run's input; nothing when only files were given."""
    value = msgspec.json.decode(raw)
    if files and value == {}:
        return ""
    if isinstance(value, dict) and set(value) == {"text"}:
        return str(value["text"])
    return value if isinstance(value, str) else msgspec.json.format(bytes(raw), indent=1).decode()


def said_text(raw: msgspec.Raw, files: Sequence[InputFile], turn: int) -> str:
    """What the user said, with a line for each file that came with it."""
    words = user_text(raw, files)
    lines = (f"[{one.line}]" for one in _named(files, turn))
    return "\n".join((*((words,) if words else ()), *lines))


async def given(ledger: Ledger, files: Sequence[InputFile], turn: int, head_bytes: int) -> tuple[Given, ...]:
    """The files of a turn; of a text the first `head_bytes`, because no request shows more."""
    found: list[Given] = []
    for one in _named(files, turn):
        if one.file.media_type == TEXT:
            data = await ledger.get_blob(one.file.blob)
            one = replace(one, head=data[: boundary(data, head_bytes)].decode())
        found.append(one)
    return tuple(found)


def _named(files: Sequence[InputFile], turn: int) -> Iterable[Given]:
    return (Given(file, str(Handle(turn, 0, number))) for number, file in enumerate(files, start=1))


def _given_entries(files: Sequence[InputFile], turn: int, event: Event) -> Iterable[Entry]:
    """The files as entries: a text can be recalled and searched, anything else is found by its name and shown again."""
    for number, one in enumerate(_named(files, turn), start=1):
        handle, file = Handle(turn, 0, number), one.file
        is_text = file.media_type == TEXT
        text, blob, picture = ("", file.blob, None) if is_text else (f"{one.line}, {file.blob}", "", one)
        yield Entry(
            handle, "observed", f"file {file.name}", text, blob=blob, picture=picture, seq=event.seq, at=event.position
        )


def result_text(raw: msgspec.Raw) -> str:
    """A tool's recorded result as text."""
    value = msgspec.json.decode(raw)
    return str(value["text"]) if isinstance(value, dict) and "text" in value else str(value)


def error_text(error: ErrorRecord) -> str:
    """An error as the model was told it."""
    return f"{error.message} ({error.hint})" if error.hint else error.message
