"""What a turn leaves behind: a title, and the session as the next turn sees it. Bounded, pure, no model asked."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from atlas.kernel.context import Session
from atlas.kernel.turn import Note

INDEX_LINES: Final = 24
RECENT_TURNS: Final = 2
WORDS_KEPT: Final = 900
TITLE_LENGTH: Final = 200
NOTES_KEPT: Final = 24


class Done(msgspec.Struct, frozen=True):
    """A turn that is over, in the words that were said."""

    number: int
    user: str
    answer: str
    tools: tuple[str, ...] = ()
    failed: int = 0
    notes: tuple[Note, ...] = ()
    outcome: str = "succeeded"


def title_of(done: Done) -> str:
    """One line that says what happened: what was asked, what was done about it, what came out."""
    used = ", ".join(f"{name} x{times}" if times > 1 else name for name, times in Counter(done.tools).most_common(4))
    parts = [f't{done.number} "{_short(done.user, 80)}"']
    if used:
        parts.append(used + (f" ({done.failed} failed)" if done.failed else ""))
    parts.append(f"-> {_short(done.answer, 60)}" if done.answer else f"-> {done.outcome}")
    return _short(" ".join(parts), TITLE_LENGTH)


def close(before: Session, done: Done) -> Session:
    """The session after this turn; as large at turn 1,000 as at turn 50."""
    words = f"t{done.number} user: {_kept(done.user, done.number, 0)}"
    if done.answer:
        words += f"\nt{done.number} you: {_kept(done.answer, done.number, None)}"
    return Session(
        turns=done.number,
        index=(*before.index, title_of(done))[-INDEX_LINES:],
        recent=(*before.recent, words)[-RECENT_TURNS:],
        notes=_carried(before.notes, done.notes),
    )


def _carried(before: tuple[str, ...], notes: tuple[Note, ...]) -> tuple[str, ...]:
    """Open notes go on; closed ones end; a new text for the same note replaces the old."""
    lines = {_note_key(line): line for line in before}
    for note in notes:
        key = _note_key(note.line)
        lines.pop(key, None)
        if note.is_open:
            lines[key] = note.line
    return tuple(lines.values())[-NOTES_KEPT:]


def _note_key(line: str) -> str:
    return line.replace("[ ] ", "").replace("[x] ", "").split(":", 1)[0]


def _kept(text: str, turn: int, step: int | None) -> str:
    if len(text) <= WORDS_KEPT:
        return text
    handle = f"t{turn}" if step is None else f"t{turn}.{step}"
    return f"{text[:WORDS_KEPT]} [... recall(handle='{handle}') shows all {len(text)} characters]"


def _short(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."
