"""A turn as a fold: what comes next, what is kept, and what is dropped with a way back."""

from __future__ import annotations

import msgspec
import pytest

from atlas.kernel.model import Part, Reply, StopReason, Text, Thinking, ToolCall, ToolResult, Usage
from atlas.kernel.token import Limits, size_of, text_size
from atlas.kernel.turn import (
    MAX_CONTINUATIONS,
    MAX_DROPPED_LINES,
    MAX_ID,
    MAX_OPEN_NOTES,
    MAX_SILENCES,
    NOTE_SIZE,
    Ask,
    Finish,
    Note,
    RunTools,
    Turn,
    advised,
    answered,
    note_of,
    note_problem,
    noted,
    plan,
    received,
    windowed,
)

SIZES = Limits().at(3.0)


def reply(*parts: Part, stop: StopReason = "end") -> Reply:
    return Reply(parts, stop, Usage(), "one:model")


def calling(*names: str) -> Reply:
    return reply(*(ToolCall(f"c{number}", name, "{}") for number, name in enumerate(names)), stop="tool_call")


def stepped(turn: Turn, text: str, sizes: Limits = SIZES) -> Turn:
    return received(answered(turn, calling("fetch")), (ToolResult("c0", text),), sizes)


def test_a_turn_asks_runs_tools_asks_again_and_ends() -> None:
    turn = Turn(1, "go")
    assert plan(turn) == Ask(1)
    turn = answered(turn, calling("fetch"))
    match plan(turn):
        case RunTools(step=1, calls=(call,)):
            assert call.name == "fetch"
        case other:
            pytest.fail(f"{other}")
    turn = received(turn, (ToolResult("c0", "found"),), SIZES)
    assert plan(turn) == Ask(2)
    assert plan(answered(turn, reply(Text("done")))) == Finish("done")


def test_a_cut_off_answer_goes_on_and_comes_out_whole() -> None:
    turn = answered(Turn(1, "go"), reply(Text("one "), stop="length"))
    assert plan(turn) == Ask(2)
    roles = [message.role for exchange in turn.window for message in exchange.messages]
    assert roles == ["assistant", "user"]
    assert plan(answered(turn, reply(Text("two")))) == Finish("one two")


def test_an_answer_that_never_ends_is_ended_with_what_there_is() -> None:
    turn = Turn(1, "go")
    for _ in range(MAX_CONTINUATIONS + 1):
        assert plan(turn) == Ask(turn.step + 1)
        turn = answered(turn, reply(Text("more "), stop="length"))
    finish = plan(turn)
    assert isinstance(finish, Finish)
    assert finish.error is not None
    assert finish.error.code == "answer_endless"
    assert finish.error.message == f"the answer was cut off {MAX_CONTINUATIONS + 1} times and never came to an end"
    assert "model.max_output_tokens" in finish.error.hint
    assert finish.text.startswith("more more")


@pytest.mark.parametrize("before", [[], [Text("some ")]], ids=["at once", "in the middle"])
@pytest.mark.parametrize("parts", [(), (Thinking("hm"),)], ids=["hidden", "shown"])
def test_replies_that_are_all_thoughts_end_and_say_which_setting_allows_more(
    before: list[Part], parts: tuple[Part, ...]
) -> None:
    turn = Turn(1, "go")
    for text in before:
        turn = answered(turn, reply(text, stop="length"))
    for _ in range(MAX_SILENCES):
        turn = answered(turn, reply(*parts, stop="length"))
    finish = plan(turn)
    assert isinstance(finish, Finish)
    assert finish.error is not None
    assert finish.error.code == "answer_endless"
    assert (
        finish.error.message == f"the model used up the length of its reply {MAX_SILENCES} times before it said a word"
    )
    assert "thoughts count too" in finish.error.hint
    assert "model.max_output_tokens" in finish.error.hint


def test_a_reply_that_was_cut_off_while_thinking_is_asked_for_again_a_few_times() -> None:
    silent = reply(Thinking("hm"), stop="length")
    turn = Turn(1, "go")
    for _ in range(MAX_SILENCES - 1):
        turn = answered(turn, silent)
        assert plan(turn) == Ask(turn.step + 1)
        assert "Think less" in turn.advice[0]
    assert plan(answered(turn, reply(Text("at last")))) == Finish("at last")
    # Whoever has said something meanwhile begins anew, and goes on from there.
    turn = answered(answered(turn, reply(Text("one "), stop="length")), silent)
    assert plan(turn) == Ask(turn.step + 1)
    assert plan(answered(turn, reply(Text("two")))) == Finish("one two")


@pytest.mark.parametrize("stop", ["refusal", "filter"])
def test_a_refusal_ends_the_turn_as_what_it_is(stop: StopReason) -> None:
    finish = plan(answered(Turn(1, "go"), reply(Text("I will not."), stop=stop)))
    assert isinstance(finish, Finish)
    assert finish.error is not None
    assert (finish.error.code, "I will not." in finish.error.message) == (f"model_{stop}", True)


def test_advice_after_an_answer_sends_the_turn_on_with_both_in_view() -> None:
    turn = advised(answered(Turn(1, "go"), reply(Thinking("hm", "signed"), Text("done"))), "Not yet.")
    assert plan(turn) == Ask(2)
    [exchange] = turn.window
    assert exchange.messages[0].parts == (Thinking("hm", "signed"), Text("done"))
    assert exchange.messages[1].parts == (Text("Not yet."),)
    assert turn.advice == ()


def test_advice_before_an_answer_is_said_once() -> None:
    turn = advised(Turn(1, "go"), "Careful.")
    assert turn.advice == ("Careful.",)
    assert answered(turn, calling("fetch")).advice == ()


def test_the_window_only_grows_until_it_is_halved() -> None:
    turn, limit = Turn(7, "go"), 20_000
    shown: tuple[object, ...] = ()
    halvings = 0
    for step in range(1, 200):
        before = shown
        turn = windowed(stepped(turn, f"result {step} " * 60), limit)
        shown = turn.window
        if before and shown[: len(before)] != before:
            halvings += 1
            assert turn.window_size <= limit // 2
        assert turn.window_size <= limit
        assert turn.window[-1].step == step
    assert 2 < halvings < 30
    assert turn.dropped_count + len(turn.window) == 199


def test_each_dropped_exchange_leaves_one_line_with_its_handle() -> None:
    turn = Turn(7, "go")
    for _ in range(60):
        turn = windowed(stepped(turn, "word " * 400), 9_000)
    assert len(turn.dropped) == MAX_DROPPED_LINES < turn.dropped_count
    first = turn.window[0].step
    lines = [line.split()[0] for line in turn.dropped]
    assert lines == [f"t7.{step}" for step in range(first - MAX_DROPPED_LINES, first)]
    assert "fetch({})" in turn.dropped[-1]


def test_the_last_exchange_stays_even_when_it_alone_is_too_large() -> None:
    turn = windowed(stepped(stepped(Turn(1, "go"), "a" * 3_000), "b" * 3_000), 1_000)
    assert [exchange.step for exchange in turn.window] == [2]


@pytest.mark.parametrize(
    "words, calls, args, limit",
    [(12_000, 3, 10, 4_000), (0, 20, 3_000, 21_000), (9_000, 10, 2_000, 9_000), (30_000, 0, 0, 2_000)],
)
def test_an_exchange_that_is_larger_than_the_window_is_shortened_to_its_handles(
    words: int, calls: int, args: int, limit: int
) -> None:
    written = msgspec.json.encode({"text": '"x"\n' * (args // 4)}).decode()
    made = tuple(ToolCall(f"c{number}", "write", written) for number in range(calls))
    turn = answered(Turn(3, "go"), reply(Text("word " * (words // 5)), *made, stop="tool_call" if calls else "length"))
    if calls:
        turn = received(turn, tuple(ToolResult(one.id, "line\n" * 900) for one in made), SIZES)
    narrow = windowed(turn, limit)
    [exchange] = narrow.window
    assert narrow.window_size == exchange.size <= limit
    assert windowed(narrow, limit) == narrow
    said, told = exchange.messages
    for number, part in enumerate((*said.parts, *told.parts)):
        match part:
            case ToolResult():
                assert f"recall(handle='t3.1.{number - calls}'" in part.text
            case ToolCall():
                assert msgspec.json.decode(part.args)
                assert part.args == written or "recall(handle='t3.1')" in part.args
            case Text() if part in said.parts:
                assert len(part.text) == words or "recall(handle='t3.1')" in part.text


def test_many_large_results_share_half_of_the_window() -> None:
    names = ["fetch"] * 12
    results = tuple(ToolResult(f"c{number}", f"{number} " * 20_000) for number in range(11))
    small = ToolResult("c11", "small")
    turn = received(answered(Turn(1, "go"), calling(*names)), (*results, small), SIZES)
    [exchange] = turn.window
    assert exchange.size <= SIZES.window
    shown = [part for part in exchange.messages[1].parts if isinstance(part, ToolResult)]
    assert shown[-1] == small
    assert all(f"recall(handle='t1.1.{number + 1}'" in part.text for number, part in enumerate(shown[:-1]))


def test_one_large_result_keeps_its_head_and_tail() -> None:
    turn = stepped(Turn(1, "go"), "HEAD " + "x" * 100_000 + " TAIL")
    [part] = turn.window[0].messages[1].parts
    assert isinstance(part, ToolResult)
    assert part.text.startswith("HEAD")
    assert part.text.endswith("TAIL")
    assert text_size(part.text) <= SIZES.result


def test_long_arguments_are_shown_shortened_and_stay_json() -> None:
    args = msgspec.json.encode({"path": "a.py", "content": "line\n" * 5_000}).decode()
    turn = answered(Turn(1, "go"), reply(ToolCall("c0", "write", args), stop="tool_call"))
    assert turn.pending[0].args == args
    turn = received(turn, (ToolResult("c0", "written"),), SIZES)
    [part] = turn.window[0].messages[0].parts
    assert isinstance(part, ToolCall)
    shown = msgspec.json.decode(part.args)
    assert shown["path"] == "a.py"
    assert "recall(handle='t1.1')" in shown["content"]
    assert turn.window[0].size < SIZES.window


@pytest.mark.parametrize(
    "args", ["[" + "1," * 20_000 + "1]", "{broken " * 5_000, "[" * 8_000, '{"a":' * 300 + "1" + "}" * 300]
)
def test_arguments_of_any_shape_are_bounded(args: str) -> None:
    turn = answered(Turn(1, "go"), reply(ToolCall("c0", "write", args), stop="tool_call"))
    turn = received(turn, (ToolResult("c0", "no"),), SIZES)
    assert turn.window[0].size <= SIZES.window
    [part] = turn.window[0].messages[0].parts
    assert isinstance(part, ToolCall)
    msgspec.json.decode(part.args)


def test_names_and_ids_that_no_server_should_make_are_kept_short_and_apart() -> None:
    made = (
        ToolCall("c" * 60_000, "n" * 60_000, "{}"),
        ToolCall("c" * 60_001, "fetch", "{}"),
        ToolCall("c2", "f", "{}"),
    )
    turn = answered(Turn(1, "go"), reply(*made, stop="tool_call"))
    assert turn.pending == turn.spoken
    first, second, third = turn.pending
    assert max(map(len, (first.id, first.name, second.id))) <= MAX_ID
    assert first.id != second.id
    assert len(first.name) > len("n" * 64), "a name that was cut must not be a tool's"
    assert (second.name, third) == ("fetch", made[2])
    turn = received(turn, tuple(ToolResult(one.id, "no") for one in turn.pending), SIZES)
    assert turn.window[0].size < 6 * MAX_ID


def test_the_size_of_an_exchange_is_what_it_takes_in_a_request() -> None:
    turn = stepped(Turn(123, "go"), 'some "quoted" result\n' * 20)
    [exchange] = turn.window
    assert size_of(exchange.messages) < exchange.size <= size_of(exchange.messages) + 120


def note(kind: str = "plan", key: str = "a", text: str = "do it", **more: str) -> Note | None:
    args = msgspec.json.encode({"kind": kind, "key": key, "text": text, **more}).decode()
    return note_of(ToolCall("c", "note", args), "t4.2.1")


def test_a_note_is_taken_changed_and_closed_under_its_name() -> None:
    first, second, closed = note(), note(text="do it well"), note(status="done")
    assert first is not None
    assert second is not None
    assert closed is not None
    turn = noted(noted(Turn(1, "go"), first), second)
    assert [one.line for one in turn.notes.values()] == ["- [ ] plan a: do it well"]
    assert [one.line for one in noted(turn, closed).notes.values()] == ["- [x] plan a: do it"]


@pytest.mark.parametrize(
    "args", ["{}", "no json", '{"kind":"other","key":"a","text":"b"}', '{"kind":"plan","key":1,"text":""}']
)
def test_what_is_no_note_is_none(args: str) -> None:
    assert note_of(ToolCall("c", "note", args), "t1.1.1") is None
    assert note_of(ToolCall("c", "recall", '{"kind":"plan","key":"a","text":"b"}'), "t1.1.1") is None


def test_a_long_note_is_kept_short_with_the_call_that_has_all_of_it() -> None:
    taken = note(text="long " * 1_000, key="k" * 500)
    assert taken is not None
    assert text_size(taken.text) <= NOTE_SIZE
    assert "recall(handle='t4.2.1')" in taken.text
    assert len(taken.key) <= 60


def test_one_note_too_many_is_refused_and_closing_one_makes_room() -> None:
    carried = tuple(Note("fact", f"n{number}", "x") for number in range(MAX_OPEN_NOTES))
    assert str(MAX_OPEN_NOTES) in note_problem(Note("fact", "one more", "x"), carried, Turn(1, "go"))
    assert note_problem(Note("fact", "n0", "changed"), carried, Turn(1, "go")) == ""
    assert note_problem(Note("fact", "n0", "x", is_open=False), carried, Turn(1, "go")) == ""
    after = noted(Turn(1, "go"), Note("fact", "n0", "x", is_open=False))
    assert note_problem(Note("fact", "one more", "x"), carried, after) == ""
