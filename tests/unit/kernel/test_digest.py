"""What a turn leaves behind is bounded, says what happened, and forgets no open note."""

from __future__ import annotations

import msgspec

from atlas.kernel.context import Session
from atlas.kernel.digest import INDEX_LINES, SAID_SIZE, TITLE_LENGTH, Done, carried, close, title_of
from atlas.kernel.model import Usage
from atlas.kernel.token import Sample, text_size
from atlas.kernel.turn import MAX_OPEN_NOTES, Note


def test_a_title_says_what_was_asked_done_and_found() -> None:
    done = Done(
        12, "Find the\n kettle, please", "It is under the stair.", 3, tools=("fetch", "grep", "fetch"), failed=1
    )
    assert title_of(done) == 't12 "Find the kettle, please" fetch x2, grep (1 failed) -> It is under the stair.'


def test_a_title_of_a_turn_that_failed_says_so() -> None:
    assert title_of(Done(3, "go", "half an ans", outcome="failed")) == 't3 "go" -> failed'


def test_a_title_has_one_line_of_bounded_length() -> None:
    title = title_of(Done(1_000_000, "word\n" * 500, "answer\n" * 500, tools=("a" * 300,) * 9))
    assert "\n" not in title
    assert len(title) <= TITLE_LENGTH


def test_a_session_is_as_large_at_turn_1000_as_at_turn_100() -> None:
    session = Session()
    sizes: dict[int, int] = {}
    for number in range(1, 1_001):
        notes = (Note("plan", f"part {number % 7}", "check it", is_open=number % 2 == 0),)
        session = close(session, Done(number, f"turn {number:04} " * 400, "answer " * 400, 4, notes=notes), 2)
        sizes[number] = len(msgspec.json.encode(session))
    assert sizes[1_000] <= sizes[100] * 1.01
    assert len(session.index) == INDEX_LINES
    assert [one.turn for one in session.recent] == [999, 1_000]


def test_the_last_exchanges_are_kept_word_for_word_or_shortened_with_their_handles() -> None:
    session = close(Session(), Done(5, "short words", "a long answer " * 500, 4), 2)
    [said] = session.recent
    assert said.user == "short words"
    assert "recall(handle='t5.4', start=" in said.answer
    assert text_size(said.answer) <= SAID_SIZE
    assert close(Session(), Done(5, "a", "b"), 0).recent == ()


def test_an_answer_in_pieces_is_brought_back_by_its_turn() -> None:
    [said] = close(Session(), Done(5, "go", "piece " * 1_000, 4, is_pieced=True), 2).recent
    assert "recall(handle='t5')" in said.answer


def test_open_notes_go_on_and_closed_ones_end() -> None:
    first = carried((), (Note("plan", "a", "one"), Note("fact", "b", "two")))
    second = carried(first, (Note("plan", "a", "one", is_open=False), Note("fact", "b", "changed")))
    assert second == (Note("fact", "b", "changed"),)
    third = carried(first, (Note("plan", "c", "three"),))
    assert third == (*first, Note("plan", "c", "three")), "what a turn does not mention goes on too"


def test_notes_of_different_kinds_with_one_key_are_two() -> None:
    assert len(carried((), (Note("plan", "a: b", "one"), Note("fact", "a: b", "two")))) == 2


def test_no_more_notes_are_carried_than_may_be_open() -> None:
    notes = tuple(Note("fact", f"n{number}", "x") for number in range(MAX_OPEN_NOTES + 5))
    assert carried((), notes) == notes[:MAX_OPEN_NOTES]


def test_the_session_learns_what_a_token_is() -> None:
    session = close(Session(), Done(1, "go", samples=(Sample("one:model", 4_500, Usage(1_000)),)), 2)
    assert session.calibration.rate == 4.3
