"""Answers from bytes: however they are cut, and whatever liberties the server takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas.kernel.model import Delta, ModelError, Reply, Request, Text, Thinking, ToolCall, Usage
from atlas.models.anthropic_reply import AnthropicReading
from atlas.models.openai_reply import OpenAIReading
from atlas.models.sse import Events
from atlas.testing.provider_wire import Act, ActCall, ActUsage, Billed, Wire, bill, render
from unit.models.conversation import asked, user

READINGS = {"openai": OpenAIReading, "anthropic": AnthropicReading}
REQUEST = Request("m", (), (user(Text("hello")),), step=3, attempt=2)
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)


class Heard:
    """Deltas as they come."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)

    def text(self, kind: str) -> str:
        return "".join(delta.text for delta in self.deltas if delta.kind == kind)


def read(wire: str, chunks: Iterator[bytes] | list[bytes], heard: Heard | None = None) -> Reply:
    """The reply in a stream that came in these chunks."""
    reading, events = READINGS[wire](REQUEST, heard or Heard(), "lab"), Events()
    for chunk in chunks:
        for data in events.feed(chunk):
            reading.event(data)
    assert reading.is_done
    return reading.reply()


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    data = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"

ACT = Act(
    thinking="först tänka",
    signature="sig",
    redacted="r",
    text="sedan säga 🙂",
    tool_calls=(ActCall("look", '{"x": "é"}'), ActCall("see", '{"y": [1, 2]}')),
    usage=ActUsage(100, 20, 60, 10),
    piece=3,
)


def expected(wire: str) -> Reply:
    parts: list[Any] = [Thinking("först tänka", "sig" if wire == "anthropic" else "")]
    if wire == "anthropic":
        parts.append(Thinking("", redacted="r"))
    parts += [
        Text("sedan säga 🙂"),
        ToolCall("call_1", "look", '{"x": "é"}'),
        ToolCall("call_2", "see", '{"y": [1, 2]}'),
    ]
    return Reply(tuple(parts), "tool_call", Usage(100, 20, 60, 10), "m")


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10**6])
def test_a_stream_cut_at_any_byte_gives_the_same_reply_and_the_same_deltas(wire: Wire, size: int) -> None:
    stream, heard = render(wire, ACT, "m", bill(ACT, 0), stream=True), Heard()
    reply = read(wire, [stream[start : start + size] for start in range(0, len(stream), size)], heard)
    assert reply == expected(wire)
    assert heard.text("text") == "sedan säga 🙂"
    assert heard.text("thinking") == "först tänka"
    assert [delta.text for delta in heard.deltas if delta.kind == "tool"] == ["look", "see"]
    assert {(delta.step, delta.attempt) for delta in heard.deltas} == {(3, 2)}


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_a_whole_answer_says_what_its_stream_says(wire: Wire) -> None:
    reading = READINGS[wire](REQUEST, Heard(), "lab")
    reading.whole(render(wire, ACT, "m", bill(ACT, 0), stream=False))
    assert reading.is_done
    assert reading.reply() == expected(wire)


@settings(max_examples=60)
@given(
    st.sampled_from(["openai", "anthropic"]),
    TEXT,
    TEXT,
    st.lists(st.tuples(st.text("ab", min_size=1), TEXT), max_size=3),
    st.integers(1, 9),
    st.integers(1, 40),
)
def test_any_answer_survives_any_cut(
    wire: Wire, text: str, thinking: str, calls: list[tuple[str, str]], piece: int, size: int
) -> None:
    act = Act(
        text=text, thinking=thinking, signature="s", tool_calls=tuple(ActCall(n, a) for n, a in calls), piece=piece
    )
    stream = render(wire, act, "m", Billed(5, 6, 0, 0), stream=True)
    reply = read(wire, [stream[start : start + size] for start in range(0, len(stream), size)])
    assert "".join(part.text for part in reply.parts if isinstance(part, Text)) == text
    assert "".join(part.text for part in reply.parts if isinstance(part, Thinking)) == thinking
    args = [part.args for part in reply.parts if isinstance(part, ToolCall)]
    assert args == [given if given.strip() else "{}" for _, given in calls]


@pytest.mark.parametrize(
    "wire, said, stop",
    [
        ("openai", "stop", "end"),
        ("openai", "length", "length"),
        ("openai", "content_filter", "filter"),
        ("openai", "sensitive", "filter"),
        ("openai", "eos_token", "end"),
        ("openai", "tool_calls", "end"),
        ("anthropic", "end_turn", "end"),
        ("anthropic", "stop_sequence", "end"),
        ("anthropic", "max_tokens", "length"),
        ("anthropic", "model_context_window_exceeded", "length"),
        ("anthropic", "refusal", "refusal"),
        ("anthropic", "tool_use", "end"),
    ],
)
def test_stop_reasons_mean_the_same_on_both_wires(wire: Wire, said: str, stop: str) -> None:
    act = Act(text="so", stop=said)
    assert read(wire, [render(wire, act, "m", Billed(1, 1, 0, 0), stream=True)]).stop == stop


@pytest.mark.parametrize("finish", ["error", "abort", "insufficient_system_resource", "network_error"])
def test_half_an_answer_that_the_server_gave_up_is_no_answer_and_has_its_bill(finish: str) -> None:
    act = Act(text="The first half", stop=finish, usage=ActUsage(100, 20))
    stream, whole = (render("openai", act, "m", bill(act, 0), streamed) for streamed in (True, False))
    reading = OpenAIReading(REQUEST, Heard(), "lab")
    reading.whole(whole)
    for attempt in (reading.reply, lambda: read("openai", [stream])):
        with pytest.raises(ModelError) as caught:
            attempt()
        assert (caught.value.kind, caught.value.usage) == ("server", Usage(100, 20))


def test_a_complaint_inside_a_choice_ends_the_answer() -> None:
    failed = {"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": {"code": 429, "message": "slow"}}
    line = b"data: " + json.dumps({"choices": [failed]}).encode() + b"\n\n"
    with pytest.raises(ModelError, match="slow") as caught:
        read("openai", [chunk({"content": "The first half"}), line, DONE])
    assert caught.value.kind == "rate_limit"


def test_a_call_makes_the_stop_a_call_and_a_cut_stays_a_cut() -> None:
    for said, stop in (("stop", "tool_call"), ("length", "length")):
        act = Act(tool_calls=(ActCall("look"),), stop=said)
        assert read("openai", [render("openai", act, "m", Billed(1, 1, 0, 0), stream=True)]).stop == stop


def test_openai_refusal_is_a_refusal_with_its_words() -> None:
    reply = read("openai", [render("openai", Act(refusal="I cannot."), "m", Billed(1, 1, 0, 0), stream=True)])
    assert (reply.stop, reply.parts) == ("refusal", (Text("I cannot."),))


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize(
    "ids, unique",
    [
        (("a", "a", "a"), ("a", "a_2", "a_3")),
        (("", "", "x"), ("call_3_1", "call_3_2", "x")),
        (("a", "a_2", "a"), ("a", "a_2", "a_3")),
    ],
)
def test_ids_that_are_missing_or_repeated_are_made_unique(
    wire: Wire, ids: tuple[str, ...], unique: tuple[str, ...]
) -> None:
    act = Act(tool_calls=tuple(ActCall("look", '{"n": 1}', one) for one in ids))
    reply = read(wire, [render(wire, act, "m", Billed(1, 1, 0, 0), stream=True)])
    assert tuple(part.id for part in reply.parts if isinstance(part, ToolCall)) == unique


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_malformed_arguments_are_passed_on_as_they_are(wire: Wire) -> None:
    act = Act(tool_calls=(ActCall("look", '{"x": oops'),))
    (call,) = read(wire, [render(wire, act, "m", Billed(1, 1, 0, 0), stream=True)]).parts
    assert call == ToolCall("call_1", "look", '{"x": oops')


def test_calls_may_come_without_an_index_or_all_under_the_same_one() -> None:
    one = {"id": "a", "function": {"name": "look", "arguments": "{}"}}
    two = {"id": "b", "function": {"name": "see", "arguments": '{"y"'}}
    rest = {"function": {"arguments": ": 1}"}}
    calls = (ToolCall("a", "look", "{}"), ToolCall("b", "see", '{"y": 1}'))
    without = [chunk({"tool_calls": [one, two]}), chunk({"tool_calls": [rest]}), chunk({}, "stop"), DONE]
    assert read("openai", without).parts == calls
    same = [chunk({"tool_calls": [{"index": 0, **each}]}) for each in (one, two, rest)]
    assert read("openai", [*same, chunk({}, "stop"), DONE]).parts == calls


@pytest.mark.parametrize("where", [{"index": 0, "id": "a"}, {"index": 0, "id": ""}, {"index": 0}, {"id": "a"}])
@pytest.mark.parametrize("names", ["look look", "look see"])
def test_whole_calls_under_the_same_index_or_id_are_calls_of_their_own(where: dict[str, Any], names: str) -> None:
    calls = [
        {**where, "function": {"name": name, "arguments": json.dumps({"x": number})}}
        for number, name in enumerate(names.split())
    ]
    for chunks in ([chunk({"tool_calls": calls})], [chunk({"tool_calls": [call]}) for call in calls]):
        reply = read("openai", [*chunks, chunk({}, "tool_calls"), DONE])
        found = [(part.name, part.args) for part in reply.parts if isinstance(part, ToolCall)]
        assert found == [(name, f'{{"x": {number}}}') for number, name in enumerate(names.split())]
        assert len({part.id for part in reply.parts if isinstance(part, ToolCall)}) == 2


def test_a_call_whose_name_and_id_are_repeated_in_each_piece_is_one_call() -> None:
    pieces = ["", '{"x"', ': {"y":', " 1}}", "", "\n"]
    chunks = [
        chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": piece}}]})
        for piece in pieces
    ]
    reply = read("openai", [*chunks, chunk({}, "tool_calls"), DONE])
    assert reply.parts == (ToolCall("a", "look", '{"x": {"y": 1}}\n'),)


def test_blocks_under_the_same_index_are_all_kept_in_the_order_they_began() -> None:
    said = {"type": "text", "text": ""}
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": 0, "content_block": said},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I look."}},
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"x": 1}'}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    reply = read("anthropic", [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events])
    assert reply.parts == (Text("I look."), ToolCall("a", "look", '{"x": 1}'))


def test_nameless_beginnings_of_calls_are_told_apart_by_their_names() -> None:
    pieces = [{"function": {"name": name, "arguments": "{}"}} for name in ("look", "see")]
    reply = read("openai", [chunk({"tool_calls": [piece]}) for piece in pieces] + [chunk({}, "stop"), DONE])
    assert reply.parts == (ToolCall("call_3_1", "look", "{}"), ToolCall("call_3_2", "see", "{}"))


def test_arguments_may_be_an_object_and_content_a_list() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "look", "arguments": {"x": 1}}}
    words = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "hi"}]
    reply = read("openai", [chunk({"content": words}), chunk({"tool_calls": [call]}), chunk({}, "stop"), DONE])
    assert reply.parts == (Text("hi"), ToolCall("a", "look", '{"x":1}'))


def test_nulls_and_other_choices_are_not_heard() -> None:
    nulls = {"content": None, "reasoning_content": None, "refusal": None, "tool_calls": None, "role": None}
    other = b'data: {"choices": [{"index": 1, "delta": {"content": "no"}}], "usage": null, "error": null}\n\n'
    reply = read(
        "openai", [chunk(nulls), other, b'data: {"choices": null}\n\n', chunk({"content": "yes"}, "stop"), DONE]
    )
    assert reply.parts == (Text("yes"),)


@pytest.mark.parametrize(
    "said, usage",
    [
        ({"prompt_tokens": 9, "completion_tokens": 4}, Usage(9, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": None}, Usage(9, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}, Usage(9, 4, 5)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 50}}, Usage(9, 4, 9)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 3}, Usage(9, 4, 3)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 33}, Usage(9, 24)),
        ({"prompt_tokens": 9, "completion_tokens": None, "total_tokens": 33}, Usage(9, 24)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 11}, Usage(9, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": "13"}, Usage(9, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 10**12}, Usage(9, 4)),
        ({"prompt_tokens": 0, "completion_tokens": 4, "total_tokens": 13}, Usage(2, 4, is_estimated=True)),
        ({"prompt_tokens": 9, "completion_tokens": None}, Usage(9, 2, is_estimated=True)),
        ({"prompt_tokens": 9, "completion_tokens": 0}, Usage(9, 2, is_estimated=True)),
        ({"prompt_tokens": 0, "completion_tokens": 4}, Usage(2, 4, is_estimated=True)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": "many"}, None),
        ({}, None),
        ("none", None),
    ],
)
def test_usage_is_read_as_far_as_it_makes_sense_and_else_estimated(said: Any, usage: Usage | None) -> None:
    reply = read("openai", [chunk({"content": "abcdef"}, "stop"), chunk({}, usage=said), DONE])
    assert reply.usage == (usage or Usage(2, 2, is_estimated=True))  # "hello" and "abcdef", three bytes to a token


def test_anthropic_counts_the_whole_request_and_takes_the_last_count_of_the_answer() -> None:
    act = Act(text="x", usage=ActUsage(100, 7, 60, 30))
    assert read("anthropic", [render("anthropic", act, "m", bill(act, 0), stream=True)]).usage == Usage(100, 7, 60, 30)


@pytest.mark.parametrize("counted", [{"input_tokens": 0}, {}])
@pytest.mark.parametrize("stream", [True, False])
def test_anthropics_cached_tokens_count_when_nothing_else_was_read(stream: bool, counted: dict[str, int]) -> None:
    usage = {**counted, "output_tokens": 7, "cache_read_input_tokens": 5000}
    message = {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": usage}
    events = [
        {"type": "message_start", "message": {"content": [], "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]
    reading = AnthropicReading(REQUEST, Heard(), "lab")
    if stream:
        for event in events:
            reading.event(json.dumps(event).encode())
    else:
        reading.whole(json.dumps(message).encode())
    assert reading.reply().usage == Usage(5000, 7, 5000)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("said", [[], "none", {"input_tokens": "12"}, {"input_tokens": 10**30, "output_tokens": 1.5}])
def test_anthropics_usage_that_makes_no_sense_costs_no_answer(stream: bool, said: Any) -> None:
    message = {"model": None, "content": [{"type": "text", "text": "abcdef"}], "stop_reason": "end_turn", "usage": said}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"model": None, "content": [], "usage": said}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "abcdef"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": said},
        {"type": "message_stop"},
    ]
    reading = AnthropicReading(REQUEST, lambda delta: None, "a")
    if stream:
        for event in events:
            reading.event(json.dumps(event).encode())
    else:
        reading.whole(json.dumps(message).encode())
    assert reading.reply() == Reply((Text("abcdef"),), "end", Usage(2, 2, is_estimated=True), "m")


@pytest.mark.parametrize("said, usage", [((0, 0), (2, 10)), ((100, 0), (100, 10)), ((0, 7), (2, 10))])
@pytest.mark.parametrize("stream", [True, False])
def test_anthropics_imitators_that_count_nothing_are_not_believed(
    stream: bool, said: tuple[int, int], usage: tuple[int, int]
) -> None:
    act = Act(text="x" * 30, usage=ActUsage(*said))
    data = render("anthropic", act, "m", bill(act, 0), stream)
    if stream:
        assert read("anthropic", [data]).usage == Usage(*usage, is_estimated=True)
    else:
        reading = AnthropicReading(REQUEST, Heard(), "lab")
        reading.whole(data)
        assert reading.reply().usage == Usage(*usage, is_estimated=True)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_an_answer_that_breaks_off_tells_what_it_used(wire: Wire) -> None:
    act = Act(text="x" * 30, usage=ActUsage(100, 50, 60, 0), omit_end=True)
    reading, events = READINGS[wire](REQUEST, Heard(), "lab"), Events()
    for data in events.feed(render(wire, act, "m", bill(act, 0), stream=True)):
        reading.event(data)
    assert not reading.is_whole
    # Anthropic says at the start what came in; of the other wire nothing is known before the end.
    cut = Usage(100, 10, 60, is_estimated=True) if wire == "anthropic" else Usage(2, 10, is_estimated=True)
    assert reading.used() == cut


@pytest.mark.parametrize(
    "wire, line, kind",
    [
        ("openai", '{"error": {"message": "busy", "code": 429}}', "rate_limit"),
        ("openai", '{"error": {"message": "maximum context length is 5"}}', "overflow"),
        ("openai", '{"error": "just words"}', "server"),
        ("anthropic", '{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}', "server"),
        ("anthropic", '{"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}', "rate_limit"),
    ],
)
def test_complaint_in_the_middle_ends_the_answer_and_tells_what_it_used(wire: Wire, line: str, kind: str) -> None:
    act = Act(text="x" * 30, usage=ActUsage(100, 50), extra=(line,))
    with pytest.raises(ModelError) as caught:
        read(wire, [render(wire, act, "m", bill(act, 0), stream=True)])
    assert caught.value.kind == kind
    assert caught.value.usage is not None
    assert caught.value.usage.tokens_out == 10


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("data", [b"{", b"[]", b"7", b'{"choices": 7, "type": 7}', b"\xff"])
def test_what_the_wire_does_not_allow_is_an_error_of_decoding(wire: Wire, data: bytes) -> None:
    reading = READINGS[wire](REQUEST, Heard(), "lab")
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        reading.event(data)


def test_events_of_later_versions_are_passed_over() -> None:
    new = b'data: {"type": "novelty", "index": 4}\n\n'
    block = b'data: {"type": "content_block_start", "index": 9, "content_block": {"type": "server_tool_use", "id": "s"}}\n\n'
    delta = b'data: {"type": "content_block_delta", "index": 9, "delta": {"type": "odd_delta"}}\n\n'
    stream = render("anthropic", Act(text="hi"), "m", Billed(1, 1, 0, 0), stream=True)
    assert read("anthropic", [new, block, delta, stream]).parts == (Text("hi"),)


def test_anthropic_input_may_come_with_the_beginning_of_its_block() -> None:
    start = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "c", "name": "look", "input": {"x": 1}},
    }
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use"},
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    stream = b"".join(
        b"data: " + json.dumps(each).encode() + b"\n\n" for each in (start, end, {"type": "message_stop"})
    )
    reply = read("anthropic", [stream])
    assert reply.parts == (ToolCall("c", "look", '{"x": 1}'),)
    assert reply.usage == Usage(3, 4)


def test_request_is_not_needed_to_be_long_for_an_estimate() -> None:
    reading = OpenAIReading(asked(), Heard(), "lab")
    assert reading.used() == Usage(is_estimated=True)
