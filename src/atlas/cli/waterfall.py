"""Spans as lines of text: a tree on the left, bars over time on the right where there is room. Needs no colour and 40 columns."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final

import msgspec
from rich.cells import cell_len, set_cell_size

from atlas.cli.terminal import Terminal
from atlas.cli.text import count, duration, one_line
from atlas.control.trace import Span

STATUS: Final = 9
TIME: Final = 7
MIN_LABEL: Final = 16
MIN_BAR: Final = 12


class Glyphs(msgspec.Struct, frozen=True):
    """The characters to draw with."""

    work: str
    wait: str
    branch: str
    last: str
    through: str


LINES: Final = Glyphs("━", "·", "├─ ", "└─ ", "│  ")
ASCII: Final = Glyphs("=", ".", "|- ", "`- ", "|  ")


def draw(terminal: Terminal, root: Span, limit: int | None) -> Iterator[str]:
    """One line per span, scaled to the time from the root's creation to its end; at most `limit` children of each."""
    glyphs = LINES if terminal.is_unicode else ASCII
    rows = list(_rows(root, "", "", glyphs, limit))
    room = terminal.width - STATUS - TIME - 3
    longest = max(cell_len(label) for label, span in rows if span is not None)
    label_width = min(longest, max(MIN_LABEL, room // 2))
    bar_width = room - label_width
    if bar_width < MIN_BAR:  # a bar that goes on in the next line says nothing
        label_width, bar_width = min(longest, room), 0
    for label, span in rows:
        if span is None:
            yield terminal.style(label, dim=True)
            continue
        took = duration(max(0, span.ended_us - span.started_us))
        status = terminal.state(span.status) + " " * (STATUS - len(span.status))
        bar = _bar(span, root.created_us, root.ended_us, bar_width, glyphs) if bar_width else ""
        yield f"{_fit(label, label_width)} {status} {took:>{TIME}} {bar}".rstrip()


def _rows(span: Span, lead: str, indent: str, glyphs: Glyphs, limit: int | None) -> Iterator[tuple[str, Span | None]]:
    note = f" ({span.note})" if span.note else ""
    yield f"{lead}{one_line(span.name + note, 100)}", span
    shown = span.children if limit is None else span.children[:limit]
    hidden = len(span.children) - len(shown)
    for number, child in enumerate(shown, 1):
        is_last = number == len(shown) and not hidden
        branch, below = (glyphs.last, "   ") if is_last else (glyphs.branch, glyphs.through)
        yield from _rows(child, indent + branch, indent + below, glyphs, limit)
    if hidden:
        yield f"{indent}{glyphs.last}{count(hidden, 'more line')}; --all draws them", None


def _bar(span: Span, begin_us: int, end_us: int, width: int, glyphs: Glyphs) -> str:
    """Waiting from its creation to its end, and work wherever something was under way."""
    scale = width / max(1, end_us - begin_us)
    cells = [" "] * width
    for glyph, (from_us, until_us) in (
        (glyphs.wait, (span.created_us, span.ended_us)),
        *((glyphs.work, part) for part in span.active),
    ):
        first = min(width - 1, max(0, int((from_us - begin_us) * scale)))
        after = min(width, max(first + 1, ceil((until_us - begin_us) * scale)))
        cells[first:after] = glyph * (after - first)
    return "".join(cells).rstrip()


def _fit(label: str, width: int) -> str:
    """`label` in exactly `width` columns; some scripts take two per character."""
    return set_cell_size(label, width) if cell_len(label) <= width else set_cell_size(label, width - 1) + "…"
