"""A run's questions as one Markdown page, and a page that a person has edited as answers. Pure: text in, text out.

Each question is a section that begins with a comment which says what it is bound to. A person ticks a box, may edit
the arguments and may give a reason; whatever else they write stays where it is. A page is derived: it can be
deleted, and comes back as long as something is asked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec

from atlas.control.report import InboxEntry

_HEAD: Final = re.compile(r"<!-- atlas inbox (\{.*\}) -->")
_MARK: Final = re.compile(r"<!-- atlas question (\{.*\}) -->")
_TICK: Final = re.compile(r"\s*[-*+] \[([xX ]?)\]\s*(approve|deny)\b.*")
_REASON: Final = re.compile(r"\s*reason:(.*)", re.IGNORECASE)
_NOTE: Final = "> Atlas: "
_LOST: Final = "did not count"
_GUIDE: Final = """\
Put an x into one of the boxes under each question and save this file. You may edit the arguments before you approve,
and write a reason behind `reason:`. 'atlas inbox' shows the same questions; whichever answer comes first counts.
"""

Asked: TypeAlias = tuple[str, int]
"""What a question is known by: the effect, and when it was asked."""


class Head(msgspec.Struct, frozen=True):
    """Which run a page is about, and what its text was when Atlas wrote it."""

    run: str
    text: str


class Mark(msgspec.Struct, frozen=True):
    """Which question a section is about, and the arguments that it was asked with."""

    effect: str
    asked: int
    args: str


class Section(msgspec.Struct, frozen=True):
    """One question on a page, with all that stands there."""

    mark: Mark
    lines: tuple[str, ...]

    @property
    def asked(self) -> Asked:
        """What the question is known by."""
        return self.mark.effect, self.mark.asked

    @property
    def ticks(self) -> tuple[str, ...]:
        """The boxes that are ticked."""
        found = (_TICK.fullmatch(line) for line in _outside_fences(self.lines))
        return tuple(match[2] for match in found if match is not None and match[1] in ("x", "X"))

    @property
    def reason(self) -> str:
        """What stands behind `reason:`."""
        found = (_REASON.fullmatch(line) for line in _outside_fences(self.lines))
        return next((match[1].strip() for match in found if match is not None), "")

    @property
    def is_lost(self) -> bool:
        """Whether it says that what is ticked here did not count."""
        return any(line.startswith(_NOTE) and _LOST in line for line in self.lines)

    def edited_args(self) -> bytes | None:
        """The arguments as JSON when the person changed them; ValueError, in words, when they cannot be read."""
        text = _fenced(self.lines)
        if text is None:
            raise ValueError("the block of arguments is missing; delete this file to get a fresh one")
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except RecursionError:
            raise ValueError("the arguments are nested too deeply") from None
        except json.JSONDecodeError as error:
            place = f"line {error.lineno} of the block, column {error.colno}"
            raise ValueError(f"the arguments are not JSON: {error.msg} ({place})") from None
        return None if _digest(value) == self.mark.args else msgspec.json.encode(value)

    def noted(self, note: str) -> Section:
        """The section with this note in the place of earlier ones."""
        kept = [line for line in self.lines if not line.startswith(_NOTE)]
        return msgspec.structs.replace(self, lines=(kept[0], *([_NOTE + _line(note)] if note else []), *kept[1:]))


class Page(msgspec.Struct, frozen=True):
    """A page as it is: its top and its questions."""

    head: Head
    top: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def is_untouched(self) -> bool:
        """Whether it is exactly as Atlas wrote it."""
        return self.head.text == _text_digest(self.top[1:], self.sections)

    def text(self) -> str:
        """The page as a file holds it."""
        return "\n".join([*self.top, *(line for one in self.sections for line in one.lines)]) + "\n"


def render(entries: Sequence[InboxEntry]) -> str:
    """The page of one run's questions."""
    first = entries[0]
    top = [
        f"# {_line(first.agent)} asks",
        "",
        f"- run: {first.run_id}",
        f"- for: {_line(first.principal)}",
        f"- cost so far: ${first.cost_usd:.4f}",
        "",
        *_GUIDE.splitlines(),
        "",
    ]
    sections = tuple(map(section_of, entries))
    return _with_head(first.run_id, top, sections).text()


def section_of(entry: InboxEntry) -> Section:
    """A question as it is first written."""
    value = json.loads(bytes(entry.args) or b"null")
    mark = Mark(entry.effect, entry.created_us, _digest(value))
    facts = [f"- why: {_line(entry.reason) or 'no rule gives a reason'}"]
    if entry.rule:
        facts.append(f"- rule: {_line(entry.rule)}" + (f" ({_line(entry.layer)})" if entry.layer else ""))
    if entry.second_person:
        facts.append(f"- second person: somebody else than {_line(entry.principal)} must approve this")
    facts.append(f"- asked: {_time(entry.created_us)}")
    if entry.expires_us:
        facts.append(f"- expires: {_time(entry.expires_us)}")
    if entry.escalated_to:
        facts.append(f"- escalated to: {_line(entry.escalated_to)}")
    if not entry.is_editable:
        facts.append("- these arguments cannot be changed; deny with a reason instead")
    lines = [
        _comment("question", mark),
        f"## {_line(entry.name)} ({entry.effect_class})",
        "",
        *facts,
        "",
        "```json",
        *_pretty(value).split("\n"),
        "```",
        "",
        "- [ ] approve",
        "- [ ] deny",
        "",
        "reason:",
        "",
    ]
    return Section(mark, tuple(lines))


def parse(text: str) -> Page | None:
    """The page that `text` is, whatever a person did between its comments; None when those cannot be read."""
    # By line feeds alone: other characters that end lines may stand inside the arguments.
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n").split("\n")
    head = _decoded(_HEAD, lines[0], Head)
    if head is None:
        return None
    starts = [number for number, line in enumerate(lines) if line.startswith("<!-- atlas question ")]
    if not starts:
        return None
    marks = [_decoded(_MARK, lines[number], Mark) for number in starts]
    ends = [*starts[1:], len(lines)]
    sections: list[Section] = []
    for mark, start, end in zip(marks, starts, ends, strict=True):
        if mark is None:
            return None
        sections.append(Section(mark, tuple(lines[start:end])))
    return Page(head, tuple(lines[: starts[0]]), tuple(sections))


def revise(page: Page, keep: Callable[[Section], Section | None], new: Iterable[InboxEntry]) -> Page | None:
    """The page with each section kept, changed or dropped as `keep` says and new questions at its end; None when empty."""
    kept = [section for section in map(keep, page.sections) if section is not None]
    sections = (*kept, *map(section_of, new))
    if not sections:
        return None
    if page.is_untouched:
        return _with_head(page.head.run, page.top[1:], sections)
    return msgspec.structs.replace(page, sections=sections)


def lost_note(verdict: str) -> str:
    """What a section says whose answer came second."""
    return (
        f"this was answered already ({verdict}); what is ticked here {_LOST}. Delete this file when you have read it."
    )


def unreadable(text: str) -> str:
    """The text with one line on top that says what to do."""
    note = f"{_NOTE}this page cannot be read any more: its comment lines were changed. Delete it to get a fresh one."
    lines = [line for line in text.removesuffix("\n").split("\n") if not line.startswith(_NOTE)]
    return "\n".join([note, *lines]) + "\n"


def _with_head(run_id: str, top: Sequence[str], sections: tuple[Section, ...]) -> Page:
    head = Head(run_id, _text_digest(top, sections))
    return Page(head, (_comment("inbox", head), *top), sections)


def _text_digest(top: Sequence[str], sections: Iterable[Section]) -> str:
    text = "\n".join([*top, *(line for one in sections for line in one.lines)])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _comment(kind: str, value: Head | Mark) -> str:
    # Whatever an agent called its effect, it must not end the comment.
    written = (
        msgspec.json.encode(value).decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("--", "-\\u002d")
    )
    return f"<!-- atlas {kind} {written} -->"


def _decoded(pattern: re.Pattern[str], line: str, kind: type[Any]) -> Any:
    match = pattern.fullmatch(line.strip())
    if match is None:
        return None
    try:
        return msgspec.json.decode(match[1], type=kind)
    except msgspec.MsgspecError:
        return None


def _outside_fences(lines: Sequence[str]) -> list[str]:
    """The lines that are not part of a fenced block: a box inside the arguments is not a box."""
    found: list[str] = []
    is_inside = False
    for line in lines:
        if line.lstrip().startswith("```"):
            is_inside = not is_inside
        elif not is_inside:
            found.append(line)
    return found


def _fenced(lines: Sequence[str]) -> str | None:
    """What stands in the first fenced block."""
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    return "\n".join(lines[fences[0] + 1 : fences[1]]) if len(fences) >= 2 else None


def _line(text: str) -> str:
    """What others wrote, as one line that begins no comment, box or heading of its own."""
    return " ".join(text.split()).replace("<!--", "< !--").replace("`", "'")[:500]


def _pretty(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # Half a character, which a file cannot hold, is left as the escape it was written with.
    return text if text.isascii() or not re.search("[\ud800-\udfff]", text) else json.dumps(value, indent=2)


def _digest(value: Any) -> str:
    raw = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(raw.encode()).hexdigest()


def _time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _no_constant(word: str) -> None:
    raise json.JSONDecodeError(f"{word} is not JSON", word, 0)


def by_run(entries: Iterable[InboxEntry]) -> Mapping[str, list[InboxEntry]]:
    """Approvals that are asked for, by run, oldest first."""
    found: dict[str, list[InboxEntry]] = {}
    for entry in entries:
        if entry.kind == "approval":
            found.setdefault(entry.run_id, []).append(entry)
    return found
