"""The waterfall: scaled, aligned, and honest about waiting, at any width and in plain ASCII."""

from __future__ import annotations

from typing import Any

import pytest
from click import unstyle
from rich.cells import cell_len

from atlas.cli.terminal import Terminal
from atlas.cli.waterfall import draw
from atlas.control.trace import Span

S = 1_000_000


def span(name: str, begin: int, end: int, *children: Span, status: str = "completed", asked: int | None = None) -> Span:
    created = begin if asked is None else asked
    active = ((begin * S, end * S),)
    return Span("step", name, status, "run_1", "", created * S, begin * S, end * S, active, "", children)


@pytest.fixture
def terminal(program: Any, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "80")
    made = Terminal(program, None, False)
    made.is_unicode = True
    return made


def test_bars_are_scaled_to_the_whole_and_start_where_they_began(terminal: Terminal) -> None:
    root = span("root", 0, 10, span("first", 0, 5), span("second", 5, 10))
    top, first, second = (line.partition("s ")[2] for line in draw(terminal, root, None))
    assert set(top) == {"━"}
    assert abs(len(first) * 2 - len(top)) <= 1
    assert second.index("━") == len(first)


def test_waiting_is_dots_and_work_is_solid(terminal: Terminal) -> None:
    root = span("root", 0, 10, span("asked", 8, 10, asked=0))
    bar = list(draw(terminal, root, None))[1].partition("s ")[2]
    assert bar.startswith("····")
    assert bar.endswith("━━")


@pytest.mark.parametrize("columns", [40, 46, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    deep = span("x" * 90, 0, 10)
    for _ in range(6):
        deep = span("level", 0, 10, deep, span("y" * 30, 9, 10, status="cancelled"))
    assert max(len(unstyle(line)) for line in draw(terminal, deep, None)) <= columns


def test_something_too_short_to_see_is_still_drawn(terminal: Terminal) -> None:
    instant = Span("step", "blink", "completed", "run_1", "", 3 * S, 3 * S, 3 * S + 1, ((3 * S, 3 * S + 1),))
    line = list(draw(terminal, span("root", 0, 1_000, instant), None))[1]
    assert line.rstrip().endswith("━")


def test_a_moment_without_length_has_its_mark(terminal: Terminal) -> None:
    refused = Span("step", "wipe", "refused", "run_1", "", 0, 0, 0, ())
    line = list(draw(terminal, span("root", 0, 10, refused), None))[1]
    assert line.endswith(" ·")


def test_plain_ascii_where_the_stream_has_no_lines(terminal: Terminal) -> None:
    terminal.is_unicode = False
    assert all(line.isascii() for line in draw(terminal, span("root", 0, 2, span("a", 0, 1), span("b", 1, 2)), None))


def test_a_long_list_is_cut_and_says_how_to_see_all(terminal: Terminal) -> None:
    root = span("root", 0, 10, *(span(f"s{n}", n, n + 1) for n in range(10)))
    lines = list(draw(terminal, root, 4))
    assert len(lines) == 6
    assert unstyle(lines[-1]).endswith("6 more lines; --all draws them")
    assert len(list(draw(terminal, root, None))) == 11


def test_bars_line_up_whatever_the_script_of_the_names(terminal: Terminal) -> None:
    root = span("root", 0, 10, span("漢字の名前", 0, 10), span("plain", 0, 10))
    columns = {cell_len(unstyle(line).partition("━")[0]) for line in draw(terminal, root, None)}
    assert len(columns) == 1


def test_names_cannot_steer_the_terminal(terminal: Terminal) -> None:
    [line] = draw(terminal, span("a\x1b[2Jb", 0, 1, status="odd"), None)
    assert "\x1b[2J" not in line
