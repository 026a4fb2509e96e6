"""What a turn leaves behind: a title, and the session as the next turn sees it. Bounded, pure, no model asked."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from atlas.kernel.context import Said, Session
from atlas.kernel.excerpt import one_line, shorten
from atlas.kernel.token import Sample, learnt
from atlas.kernel.turn import MAX_OPEN_NOTES, Note

INDEX_LINES: Final = 20
SAID_SIZE: Final = 1_200
TITLE_LENGTH: Final = 170


class Done(msgspec.Struct, frozen=True):
    """A turn that is over, in the words that were said.

    `step` is the one that answered; `is_pieced` says that it only ended an answer which was cut off before.
    """

    number: int
    user: str
    answer: str = ""
    step: int = 0
    is_pieced: bool = False
    tools: tuple[str, ...] = ()
    failed: int = 0
    notes: tuple[Note, ...] = ()
    samples: tuple[Sample, ...] = ()
    outcome: str = "succeeded"


def title_of(done: Done) -> str:
    """One line that says what happened: what was asked, what was done about it, what came out."""
    used = ", ".join(f"{name} x{times}" if times > 1 else name for name, times in Counter(done.tools).most_common(4))
    parts = [f't{done.number} "{one_line(done.user, 80)}"']
    if used:
        parts.append(used + (f" ({done.failed} failed)" if done.failed else ""))
    if done.outcome != "succeeded":
        parts.append(f"-> {done.outcome}")
    elif done.answer:
        parts.append(f"-> {one_line(done.answer, 60)}")
    return one_line(" ".join(parts), TITLE_LENGTH)


def close(before: Session, done: Done, exchanges: int) -> Session:
    """The session after this turn; as large at turn 1,000 as at turn 50."""
    turn = f"t{done.number}"
    place = turn if done.is_pieced else f"{turn}.{done.step}"
    said = Said(
        done.number,
        shorten(done.user, f"{turn}.0", SAID_SIZE),
        shorten(done.answer, place, SAID_SIZE, is_part=done.is_pieced),
    )
    return Session(
        turns=done.number,
        index=(*before.index, title_of(done))[-INDEX_LINES:],
        recent=(*before.recent, said)[-exchanges:] if exchanges else (),
        notes=carried(before.notes, done.notes),
        calibration=learnt(before.calibration, done.samples),
    )


def carried(before: tuple[Note, ...], notes: tuple[Note, ...]) -> tuple[Note, ...]:
    """Open notes go on, closed ones end, a new text for the same note replaces the old; the newest stand last.

    One more than may be open was refused when it was taken, and is not carried either.
    """
    kept = {note.name: note for note in before}
    for note in notes:
        kept.pop(note.name, None)
        if note.is_open and len(kept) < MAX_OPEN_NOTES:
            kept[note.name] = note
    return tuple(kept.values())
