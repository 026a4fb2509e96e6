"""An answer that streams, and the lines that come between its pieces."""

from __future__ import annotations

import pytest

from atlas.cli.stream import Stream
from atlas.cli.terminal import Terminal
from atlas.kernel.model import Delta
from unit.cli.fake_host import FakeProgram


@pytest.fixture
def terminal(program: FakeProgram) -> Terminal:
    made = Terminal(program, None, is_json=False)
    made.is_screen = True
    return made


def piece(text: str, attempt: int = 1) -> Delta:
    return Delta("text", text, attempt)


def shown(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    said = capsys.readouterr()
    return said.out, said.err


def test_a_line_is_broken_once_however_many_lines_come_between(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(terminal, lambda: None)
    stream.show(piece("half"))
    stream.break_line()
    stream.break_line()
    assert shown(capsys) == ("half", "\n")
    stream.show(piece(" and half"))
    stream.break_line()
    assert shown(capsys) == (" and half", "\n")
    assert stream.answer == "half and half"
    stream.end_line()
    assert shown(capsys) == ("", "")  # the cursor is at the start of a line already


def test_what_another_step_or_attempt_says_begins_a_line(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(terminal, lambda: None)
    for delta in (Delta("text", "I look."), Delta("text", "It is", 1, 2), Delta("text", "It is here.", 2, 2)):
        stream.show(delta)
    assert shown(capsys)[0] == "I look.\nIt is\nIt is here."
    assert stream.answer == "It is here."


def test_in_a_pipe_the_answer_is_whole_and_ends_its_line(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.is_screen = False
    stream = Stream(terminal, lambda: None)
    stream.show(piece("half"))
    stream.break_line()
    stream.show(piece(" and half"))
    stream.end_line()
    assert shown(capsys) == ("half and half\n", "")


def test_what_ends_with_a_line_needs_no_other(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    stream = Stream(terminal, lambda: None)
    stream.show(piece("whole\n"))
    stream.break_line()
    stream.end_line()
    assert shown(capsys) == ("whole\n", "")


def test_a_key_that_the_terminal_showed_is_followed_by_a_line_of_its_own(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(terminal, lambda: None)
    stream.echoed()
    stream.break_line()
    assert shown(capsys) == ("", "")  # the moving line below takes care of itself
    stream.show(piece("half"))
    stream.break_line()
    stream.echoed()
    stream.break_line()
    assert shown(capsys) == ("half", "\n\n")
    terminal.is_screen = False
    stream.show(piece("whole\n"))
    stream.echoed()
    stream.end_line()
    assert shown(capsys) == ("whole\n", "")
