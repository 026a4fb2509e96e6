"""The scripted model: the answer is a function of the request, and everybody can see that it is a script."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from atlas.kernel.errors import Invalid
from atlas.kernel.model import Delta, ModelError, Reply, Request, Text, Thinking, ToolCall, ToolResult, Usage
from atlas.models.scripted import Script, ScriptedModel, script_from
from unit.models.conversation import asked, assistant, user

DEMO = {
    "replies": [
        {"tool_calls": [{"name": "record", "args": {"what": "a thing"}}], "usage": {"in": 120, "out": 15}},
        {"error": {"kind": "rate_limit", "retry_after_s": 1}},
        {"text": "done", "delay_ms": 20},
    ],
    "rules": [{"match": "kettle", "reply": {"text": "under the stair"}}],
}


def ask(data: dict[str, Any], request: Request, deltas: list[Delta] | None = None) -> Reply:
    return asyncio.run(ScriptedModel(script_from(data)).ask(request, (deltas if deltas is not None else []).append))


def at(step: int, attempt: int = 1, said: str = "hello") -> Request:
    return msgspec.structs.replace(asked(user(Text(said))), step=step, attempt=attempt)


def test_the_replies_come_by_step_and_the_last_repeats() -> None:
    first = ask(DEMO, at(1))
    assert first.parts == (ToolCall("call_1_1", "record", '{"what":"a thing"}'),)
    assert (first.stop, first.usage, first.is_scripted) == ("tool_call", Usage(120, 15), True)
    assert ask(DEMO, at(2, attempt=2)).parts == (Text("done"),)
    for step in (3, 50):
        assert ask(DEMO, at(step)).parts == (Text("done"),)
    assert ask(DEMO, at(0)).stop == "tool_call"


def test_errors_are_what_the_first_tries_at_the_next_reply_get() -> None:
    data = {"replies": [{"text": "a"}, {"error": {"kind": "server"}}, {"error": {"kind": "timeout"}}, {"text": "b"}]}
    for attempt, kind in ((1, "server"), (2, "timeout")):
        with pytest.raises(ModelError) as caught:
            ask(data, at(2, attempt))
        assert caught.value.kind == kind
    assert ask(data, at(2, 3)).parts == (Text("b"),)
    assert ask(data, at(1, 3)).parts == (Text("a"),)


def test_an_error_at_the_end_repeats() -> None:
    data = {"replies": [{"text": "a"}, {"error": {"kind": "overflow", "message": "full"}}]}
    for step, attempt in ((2, 1), (2, 7), (9, 1)):
        with pytest.raises(ModelError, match="full"):
            ask(data, at(step, attempt))


def test_error_carries_its_wait_and_its_bill() -> None:
    data = {"replies": [{"error": {"kind": "rate_limit", "retry_after_s": 1.5}, "usage": {"in": 9}}]}
    with pytest.raises(ModelError) as caught:
        ask(data, at(1))
    assert (caught.value.kind, caught.value.retry_after_s, caught.value.usage) == ("rate_limit", 1.5, Usage(9))


def test_the_same_request_always_gets_the_same_answer() -> None:
    model = ScriptedModel(script_from(DEMO))
    for step in (3, 1, 2, 1, 3, 1):
        request = at(step, 2)
        again = asyncio.run(model.ask(request, lambda delta: None))
        assert again == ask(DEMO, request)


@pytest.mark.parametrize(
    "messages",
    [
        (user(Text("where is the kettle?")),),
        (user(Text("one"), Text("the kettle")),),
        (user(Text("go")), assistant(ToolCall("c", "look", "{}")), user(ToolResult("c", "a kettle"))),
    ],
)
def test_a_rule_found_in_the_newest_words_wins_over_the_list(messages: Any) -> None:
    assert ask(DEMO, asked(*messages, step=1)).parts == (Text("under the stair"),)


def test_a_rule_does_not_look_at_older_words_or_at_the_models_own() -> None:
    old = (user(Text("the kettle")), assistant(Text("the kettle")), user(Text("thanks")))
    assert ask(DEMO, asked(*old, step=1)).stop == "tool_call"


def test_the_first_rule_that_matches_answers() -> None:
    data = {"rules": [{"match": "a", "reply": {"text": "1"}}, {"match": "ab", "reply": {"text": "2"}}]}
    assert ask(data, at(1, said="abc")).parts == (Text("1"),)
    with pytest.raises(ModelError, match="no rule") as caught:
        ask(data, at(1, said="xyz"))
    assert caught.value.kind == "invalid"


def test_the_text_streams_in_a_few_deltas_with_the_attempts_number() -> None:
    deltas: list[Delta] = []
    data = {"replies": [{"text": "a longer answer", "thinking": "hm", "tool_calls": [{"name": "look"}]}]}
    reply = ask(data, at(1, attempt=4), deltas)
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "a longer answer"
    assert 2 <= sum(delta.kind == "text" for delta in deltas) <= 5
    assert {(delta.step, delta.attempt) for delta in deltas} == {(1, 4)}
    assert reply.parts == (Thinking("hm"), Text("a longer answer"), ToolCall("call_1_1", "look", "{}"))


def test_arguments_written_as_text_are_passed_on_malformed() -> None:
    (call,) = ask({"replies": [{"tool_calls": [{"name": "look", "args": "{oops"}]}]}, at(1)).parts
    assert call == ToolCall("call_1_1", "look", "{oops")


def test_usage_that_is_not_written_is_estimated() -> None:
    usage = ask({"replies": [{"text": "abcdef"}]}, at(1)).usage
    assert usage == Usage(2, 2, is_estimated=True)


def test_a_delay_is_kept_and_a_stop_reason_can_be_given() -> None:
    began = time.monotonic()
    reply = ask({"replies": [{"text": "cut o", "stop": "length", "delay_ms": 60}]}, at(1))
    assert time.monotonic() - began >= 0.05
    assert reply.stop == "length"


@pytest.mark.parametrize(
    "data, complaint",
    [
        ({"replies": [{"txt": "hi"}]}, r"txt.*replies\[0\]"),
        ({"replys": []}, "replys"),
        ({"replies": [{"text": 7}]}, r"replies\[0\]\.text"),
        ({"replies": [{"error": {"kind": "sleepy"}}]}, "sleepy"),
        ({"replies": [{"text": "a"}, {"text": " "}]}, r"needs text.*replies\[1\]"),
        ({"replies": [{"text": "a", "error": {"kind": "server"}}]}, "says nothing else"),
        ({"replies": [{"text": "a", "usage": {"in": -1}}]}, r"usage"),
        ({"rules": [{"match": "", "reply": {"text": "a"}}]}, r"rules\[0\]\.match"),
        ({"rules": [{"match": "a", "reply": {}}]}, r"rules\[0\]\.reply"),
        ({}, "says nothing"),
        ([], "object"),
        (None, "object"),
    ],
)
def test_a_script_with_a_mistake_is_refused_with_its_place(data: Any, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint) as caught:
        script_from(data, "scripts/demo.yaml")
    assert caught.value.where == "scripts/demo.yaml"


def test_script_is_data() -> None:
    script = script_from(DEMO)
    assert msgspec.convert(msgspec.to_builtins(script), Script) == script
