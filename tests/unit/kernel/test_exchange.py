"""An exchange that is too large for its window: what gives way, in which order, and how it is found again."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atlas.kernel.context import Built, Live, build
from atlas.kernel.contract import Context
from atlas.kernel.model import Message, Part, Reply, Text, Thinking, ToolCall, ToolResult, ToolSpec, Usage
from atlas.kernel.token import Limits, limits_of
from atlas.kernel.turn import Turn, advised, answered, received, windowed

LIMITS = Limits()
LIVE = Live("balanced", ("You are the advisor.",), (ToolSpec("recall", "Brings back.", msgspec.Raw(b"{}")),))
FENCE = re.compile(r"\[data (\w+) from [^\n]*\]\n(.*)\n\[end \1\]", re.DOTALL)
UNSHOWN = re.compile(
    r"\[(\d+) more calls? of this step .*?recall\(handle='t1\.1\.(\d+)'\)(?: to recall\(handle='t1\.1\.(\d+)'\))?"
)


def stepped(words: tuple[Part, ...], args: list[str], results: list[str], limits: Limits) -> Turn:
    calls = tuple(ToolCall(f"c{number}", "fetch", one) for number, one in enumerate(args))
    turn = answered(Turn(1, "go"), Reply((*words, *calls), "tool_call", Usage(), "one:model"))
    told = tuple(ToolResult(call.id, text) for call, text in zip(calls, results, strict=True))
    return received(turn, told, limits.at(3.0))


def shown(built: Built) -> tuple[list[ToolCall], list[ToolResult], list[str]]:
    """The calls and results of the last step as the model sees them, and what else it is told."""
    said, told = built.request.messages[-2:]
    assert (said.role, told.role) == ("assistant", "user")
    calls = [part for part in said.parts if isinstance(part, ToolCall)]
    results = [part for part in told.parts if isinstance(part, ToolResult)]
    assert list(told.parts[: len(results)]) == results, "providers want the results first"
    return calls, results, [part.text for part in told.parts if isinstance(part, Text)]


def check_step(built: Built, results: list[str]) -> int:
    """How many calls are shown; each has its result, and all that is not shown can be found again."""
    calls, told, others = shown(built)
    assert [call.id for call in calls] == [one.id for one in told] == [f"c{number}" for number in range(len(calls))]
    for number, (one, text) in enumerate(zip(told, results, strict=False), start=1):
        match = FENCE.fullmatch(one.text)
        assert match is not None
        assert match[2] == text or f"recall(handle='t1.1.{number}'" in match[2]
    for call in calls:
        assert isinstance(msgspec.json.decode(call.args), dict)
    if len(calls) == len(results):
        assert others == []
        return len(calls)
    [line] = others
    match = UNSHOWN.match(line)
    assert match is not None, line
    assert int(match[1]) == len(results) - len(calls)
    assert (int(match[2]), int(match[3] or match[2])) == (len(calls) + 1, len(results))
    return len(calls)


@settings(max_examples=120, deadline=None)
@example(total=5_930, calls=127, sizes=[40, 0, 40, 40], args=30, words=0, thoughts=0, letters="x", persona=1)
@given(
    total=st.integers(1_000, 40_000),
    calls=st.integers(1, 400),
    sizes=st.lists(st.sampled_from([0, 1, 9, 40, 200, 900, 7_000]), min_size=1, max_size=9),
    args=st.sampled_from([2, 30, 500, 9_000]),
    words=st.sampled_from([0, 300, 60_000]),
    thoughts=st.sampled_from([0, 300, 60_000]),
    letters=st.sampled_from(["x", '"\n', "€ "]),
    persona=st.sampled_from([1, 20]),
)
def test_whatever_a_step_did_the_next_request_fits_and_says_how_to_find_the_rest(
    total: int, calls: int, sizes: list[int], args: int, words: int, thoughts: int, letters: str, persona: int
) -> None:
    limits = limits_of(Context(max_tokens=total))
    results = [letters * (sizes[number % len(sizes)] // len(letters)) for number in range(calls)]
    written = [msgspec.json.encode({"name": "y" * args}).decode()] * calls
    said: tuple[Part, ...] = (Thinking("t" * thoughts, "signed"),) if thoughts else ()
    said += (Text("w" * words),) if words else ()
    live = msgspec.structs.replace(LIVE, system=("You are the advisor. " * persona,))
    turn = stepped(said, written, results, limits)
    built = build(turn, live, limits)
    assert built.tokens <= total
    assert check_step(built, results) >= 1
    narrow = windowed(turn, limits.at(3.0).window)
    assert windowed(narrow, limits.at(3.0).window) == narrow
    again = build(narrow, live, limits)
    assert again.tokens <= total
    assert check_step(again, results) >= 1


@pytest.mark.parametrize("calls, total", [(120, 16_000), (300, 16_000), (16, 4_000), (40, 4_000)])
def test_many_calls_of_one_step_do_not_end_the_turn(calls: int, total: int) -> None:
    limits = limits_of(Context(max_tokens=total))
    results = [f"doc {number}\n" * 700 for number in range(calls)]
    turn = stepped((), ["{}"] * calls, results, limits)
    assert check_step(build(turn, LIVE, limits), results) > min(calls, 40) // 3
    [exchange] = windowed(turn, limits.at(3.0).window).window
    assert exchange.size <= limits.at(3.0).window


def test_results_give_way_to_their_handles_from_the_last_on_before_a_call_does() -> None:
    results = [f"doc {number}\n" * 700 for number in range(50)]
    _, told, others = shown(build(stepped((), ["{}"] * 50, results, LIMITS), LIVE, LIMITS))
    is_bare = ["doc" not in one.text for one in told]
    assert len(told) == 50
    assert others == []
    assert is_bare == sorted(is_bare)
    assert 0 < sum(is_bare) < 50


def test_a_step_that_is_narrowed_twice_still_names_every_call_that_is_not_shown() -> None:
    results = ["a line\n" * 100] * 300
    turn = stepped((Text("All at once."),), ["{}"] * 300, results, LIMITS)
    seen = []
    for limit in (21_000, 9_000, 8_990, 3_000, 1_200):
        turn = windowed(turn, limit)
        assert turn.window_size <= limit
        seen.append(check_step(build(turn, LIVE, LIMITS), results))
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] >= 1


@pytest.mark.parametrize("size", [10_000, 30_000, 60_000])
def test_thoughts_that_do_not_fit_go_as_a_whole(size: int) -> None:
    thought = Thinking("t" * size, "signed")
    built = build(stepped((thought, Text("Let me see.")), ["{}"], ["found"], LIMITS), LIVE, LIMITS)
    said = built.request.messages[-2]
    kept = [part for part in said.parts if isinstance(part, Thinking)]
    assert kept == ([thought] if size == 10_000 else [])
    assert Text("Let me see.") in said.parts
    assert check_step(built, ["found"]) == 1


def test_an_answer_of_thoughts_alone_leaves_a_message_that_says_something() -> None:
    thought = Thinking("t" * 60_000, "signed")
    turn = advised(answered(Turn(1, "go"), Reply((thought,), "end", Usage(), "one:model")), "Not yet.")
    said = build(turn, LIVE, LIMITS).request.messages[-2]
    assert said == Message("assistant", (Text("(nothing)"),))
