"""Requests as bytes: what each wire is sent, and that equal requests give equal bytes."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.model import Image, Message, ModelError, Part, Request, Text, Thinking, ToolCall, ToolResult
from atlas.models.anthropic import AnthropicModel
from atlas.models.manner import Manners
from atlas.models.openai import OpenAIModel
from atlas.models.openai_reply import OpenAIReading
from atlas.testing.provider_wire import mistakes
from unit.models.conversation import FULL, Loads, anthropic_model, asked, assistant, body, openai_model, user

MARK = {"cache_control": {"type": "ephemeral"}}


# Chat completions


def test_openai_body_has_everything_in_its_place() -> None:
    sent = body(openai_model(), FULL)
    picture = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert sent == {
        "model": "m",
        "max_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks.",
                    "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
                },
            }
        ],
        "messages": [
            {"role": "system", "content": "You are kind.\n\nYou are brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look at this."},
                    {"type": "image_url", "image_url": {"url": picture}},
                ],
            },
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}},
                    {"id": "c2", **call},
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
            {"role": "tool", "tool_call_id": "c2", "content": "nothing"},
            {"role": "user", "content": "Hurry."},
        ],
    }
    assert mistakes("openai", sent, {}) == ""


def test_openai_without_a_stream_asks_for_none() -> None:
    sent = body(openai_model(stream=False), FULL)
    assert "stream" not in sent
    assert "stream_options" not in sent


@pytest.mark.parametrize(
    "base_url, field",
    [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://lab.openai.azure.com/v1", "max_completion_tokens"),
        ("http://127.0.0.1:8000/v1", "max_tokens"),
        ("https://notopenai.com/v1", "max_tokens"),
    ],
)
def test_output_limit_goes_by_the_name_the_server_knows(base_url: str, field: str) -> None:
    sent = body(openai_model(base_url=base_url), asked(user(Text("hi")), max_output_tokens=7))
    assert {name: sent[name] for name in sent if name.startswith("max")} == {field: 7}


@pytest.mark.parametrize("closed", [True, False])
def test_openai_is_told_the_output_schema_and_strictly_where_it_can_be(closed: bool) -> None:
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": not closed}
    request = asked(user(Text("hi")), output_schema=msgspec.Raw(json.dumps(schema).encode()))
    sent = body(openai_model(), request)
    assert sent["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": schema, "strict": closed},
    }


@pytest.mark.parametrize(
    "base_url, is_given_back", [("http://127.0.0.1/v1", True), ("https://api.openai.com/v1", False)]
)
def test_thoughts_that_led_to_calls_go_back_to_servers_that_send_them(base_url: str, is_given_back: bool) -> None:
    messages = [
        assistant(Thinking("because"), ToolCall("c", "look", "{}")),
        user(ToolResult("c", "x")),
        assistant(Thinking("signed elsewhere", "sig"), ToolCall("d", "look", "{}")),
        user(ToolResult("d", "x")),
        assistant(Thinking("done"), Text("done")),
    ]
    sent = body(openai_model(base_url=base_url), asked(*messages))["messages"]
    assert [message.get("reasoning_content") for message in sent] == [
        "because" if is_given_back else None,
        *[None] * 4,
    ]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_a_thought_goes_back_by_the_name_it_came_by(field: str) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
    reading = OpenAIReading(asked(), lambda delta: None, "lab")
    for delta in ({field: "be"}, {field: "cause"}, {"tool_calls": [call]}):
        reading.event(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())
    request = asked(Message("assistant", reading.reply().parts), user(ToolResult("c", "x")))
    said = body(openai_model(), request)["messages"][0]
    assert {name: said[name] for name in said if name.startswith("reasoning")} == {field: "because"}
    assert "because" not in json.dumps(body(anthropic_model(), request)), "another wire has not signed it"


def text_detail(text: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning.text", "index": 0, "format": "x", "text": text, **more}


SIGNED = {"type": "reasoning.encrypted", "index": 1, "id": "c", "data": "SIG"}


@pytest.mark.parametrize("with_words", [True, False])
def test_details_of_a_thought_go_back_in_one_piece_each_and_unchanged(with_words: bool) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
    reading = OpenAIReading(asked(), lambda delta: None, "lab")
    details = [text_detail("be"), text_detail("cause"), text_detail(None, signature="s"), SIGNED]
    for detail in details:
        words = {"reasoning": detail["text"]} if with_words and detail.get("text") else {}
        delta = {**words, "reasoning_details": [detail]}
        reading.event(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())
    reading.event(json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}).encode())
    parts = msgspec.json.decode(msgspec.json.encode(reading.reply().parts), type=tuple[Part, ...])
    assert isinstance(parts[0], Thinking)
    assert parts[0].text == "because"
    request = asked(Message("assistant", parts), user(ToolResult("c", "x")))
    said = body(openai_model(), request)["messages"][0]
    assert {name: said[name] for name in said if name.startswith("reasoning")} == {
        "reasoning_details": [text_detail("because", signature="s"), SIGNED]
    }
    assert "SIG" not in json.dumps(body(anthropic_model(), request)), "another wire has not signed it"


@pytest.mark.parametrize("stream", [True, False])
def test_what_gemini_signs_a_call_with_goes_back_with_that_call(stream: bool) -> None:
    signed = {"google": {"thought_signature": "SIG"}}
    first = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}, "extra_content": signed}
    second = {"index": 1, "id": "c", "function": {"name": "look", "arguments": '{"x": 1}'}}
    reading = OpenAIReading(asked(), lambda delta: None, "lab")
    if stream:
        for call in (first, second):
            reading.event(json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}).encode())
    else:
        reading.whole(json.dumps({"choices": [{"message": {"tool_calls": [first, second]}}]}).encode())
    parts = msgspec.json.decode(msgspec.json.encode(reading.reply().parts), type=tuple[Part, ...])
    request = asked(Message("assistant", parts), user(ToolResult("c", "x"), ToolResult("c_2", "y")))
    said = body(openai_model(), request)["messages"][0]
    assert [(call["id"], call.get("extra_content")) for call in said["tool_calls"]] == [("c", signed), ("c_2", None)]
    assert set(said) == {"role", "content", "tool_calls"}
    for other in (anthropic_model(), openai_model(base_url="https://api.openai.com/v1")):
        assert "SIG" not in json.dumps(body(other, request)), "another server has not signed it"


def test_two_thoughts_are_not_taken_for_one() -> None:
    details = [text_detail("a"), text_detail("b", index=1), {"type": "reasoning.summary", "index": 1, "summary": "c"}]
    reading = OpenAIReading(asked(), lambda delta: None, "lab")
    message = {"content": "d", "reasoning_details": details, "tool_calls": [{"function": {"name": "look"}}]}
    reading.whole(json.dumps({"choices": [{"message": message}]}).encode())
    said = body(openai_model(), asked(Message("assistant", reading.reply().parts)))["messages"][0]
    assert said["reasoning_details"] == details


@pytest.mark.parametrize("details", ["none", [7], [{"text": 7}], {}])
def test_details_that_are_none_are_not_heard(details: Any) -> None:
    reading = OpenAIReading(asked(), lambda delta: None, "lab")
    message = {"content": "hi", "reasoning_details": details}
    reading.whole(json.dumps({"choices": [{"message": message}]}).encode())
    assert reading.reply().parts[-1] == Text("hi")


def test_words_alone_are_sent_to_chat_completions_as_one_text() -> None:
    parts = (Text("Hello."), Text("Look at this."), Image("text/plain", "txt", "a.txt"))
    (message,) = body(openai_model(), asked(user(*parts)))["messages"]
    assert message == {"role": "user", "content": "Hello.\n\nLook at this.\n\na.txt:\ngrüße"}


def test_openai_files_are_sent_as_the_wire_has_them() -> None:
    parts = (Image("application/pdf", "pdf", "a.pdf"), Image("text/plain", "txt", "a.txt"))
    (message,) = body(openai_model(), asked(user(*parts)))["messages"]
    data = "data:application/pdf;base64," + base64.b64encode(b"%PDF").decode()
    assert message["content"] == [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": data}},
        {"type": "text", "text": "a.txt:\ngrüße"},
    ]


# Messages


def test_anthropic_body_has_everything_in_its_place_and_its_marks() -> None:
    sent = body(anthropic_model(), FULL)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"\x89PNG").decode()}
    assert sent == {
        "model": "m",
        "max_tokens": 100,
        "stream": True,
        "temperature": 0.5,
        "system": [{"type": "text", "text": "You are kind."}, {"type": "text", "text": "You are brief.", **MARK}],
        "tools": [
            {
                "name": "look",
                "description": "Looks.",
                "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}},
                **MARK,
            }
        ],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Look at this."}, {"type": "image", "source": source}],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "look", "input": {"x": 1}},
                    {"type": "tool_use", "id": "c2", "name": "look", "input": {}, **MARK},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "a cat"},
                    {"type": "tool_result", "tool_use_id": "c2", "content": "nothing", "is_error": True},
                    {"type": "text", "text": "Hurry."},
                ],
            },
        ],
    }
    assert mistakes("anthropic", sent, {"anthropic-version": "2023-06-01"}) == ""


@pytest.mark.parametrize("cache_at, marked", [(0, []), (1, [0]), (2, [1]), (3, [2]), (9, [])])
def test_only_the_message_at_the_shared_end_is_marked(cache_at: int, marked: list[int]) -> None:
    request = asked(user(Text("a")), assistant(Text("b")), user(Text("c")), cache_at=cache_at)
    messages = body(anthropic_model(), request)["messages"]
    assert [index for index, message in enumerate(messages) if "cache_control" in json.dumps(message)] == marked


def test_a_message_that_ends_in_a_thought_is_not_marked() -> None:
    request = asked(user(Text("a")), assistant(Text("b"), Thinking("c", "sig")), user(Text("d")), cache_at=2)
    assert "cache_control" not in json.dumps(body(anthropic_model(), request)["messages"])


def test_anthropic_is_sent_nothing_that_it_refuses() -> None:
    request = Request(
        "m",
        ("", "kind"),
        (
            user(Text("a"), Text("  ")),
            assistant(Thinking("unsigned"), Text("b")),
            user(Text("c")),
            assistant(Thinking("unsigned, and alone")),
            user(Text("d")),
            assistant(Thinking("", redacted="secret"), ToolCall("c", "look", "{}")),
            user(ToolResult("c", "")),
        ),
    )
    sent = body(anthropic_model(), request)
    assert mistakes("anthropic", sent, {"anthropic-version": "2023-06-01"}) == ""
    assert [message["role"] for message in sent["messages"]] == [
        "user",
        "assistant",
        "user",
        "user",
        "assistant",
        "user",
    ]
    assert sent["messages"][4]["content"][0] == {"type": "redacted_thinking", "data": "secret"}
    assert sent["system"] == [{"type": "text", "text": "kind", **MARK}]


def test_anthropic_files_are_sent_as_the_wire_has_them() -> None:
    parts = (Image("application/pdf", "pdf", "a.pdf"), Image("text/markdown", "txt"))
    (message,) = body(anthropic_model(), asked(user(*parts)))["messages"]
    pdf = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(b"%PDF").decode()}
    assert message["content"] == [
        {"type": "document", "source": pdf, "title": "a.pdf"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "grüße"}},
    ]


@pytest.mark.parametrize("choice, openai, anthropic", [("none", "none", "none"), ("required", "required", "any")])
def test_tool_choice_is_said_in_each_wires_word(choice: Any, openai: str, anthropic: str) -> None:
    request = msgspec.structs.replace(FULL, tool_choice=choice)
    assert body(openai_model(), request)["tool_choice"] == openai
    assert body(anthropic_model(), request)["tool_choice"] == {"type": anthropic}
    assert "tool_choice" not in body(openai_model(), msgspec.structs.replace(request, tools=()))


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:1", "http://127.0.0.1:1/", "http://127.0.0.1:1/v1"])
def test_anthropic_address_may_be_written_with_or_without_its_version(base_url: str) -> None:
    assert anthropic_model(base_url=base_url)._target.url == "http://127.0.0.1:1/v1/messages"


# Both


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:1/v1?api-version=7", "http://127.0.0.1:1/v1/?api-version=7"])
def test_a_query_of_the_address_stays_behind_the_path(base_url: str) -> None:
    chat, messages = openai_model(base_url=base_url), anthropic_model(base_url=base_url)
    assert chat._target.url == "http://127.0.0.1:1/v1/chat/completions?api-version=7"
    assert messages._target.url == "http://127.0.0.1:1/v1/messages?api-version=7"


@pytest.mark.parametrize("args", ["{oops", "[1]", "7", "", "null", "[" * 20_000])
def test_arguments_that_are_no_object_go_back_as_one_that_shows_what_was_written(args: str) -> None:
    request = asked(assistant(ToolCall("c", "look", args)), user(ToolResult("c", "bad")))
    assert body(anthropic_model(), request)["messages"][0]["content"][0]["input"] == {"malformed": args}
    call = body(openai_model(), request)["messages"][0]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"malformed": args}


@pytest.mark.parametrize("make", [openai_model, anthropic_model])
def test_a_kind_of_file_that_no_model_reads_is_refused_before_anything_is_sent(make: Any) -> None:
    with pytest.raises(ModelError, match="application/zip") as caught:
        body(make(), asked(user(Image("application/zip", "bin", "a.zip"))))
    assert caught.value.kind == "invalid"


@pytest.mark.parametrize("make", [openai_model, anthropic_model])
def test_text_that_is_not_unicode_is_refused_before_anything_is_sent(make: Any) -> None:
    with pytest.raises(ModelError, match="Unicode") as caught:
        body(make(), asked(user(Text("half a pair: \ud800"))))
    assert caught.value.kind == "invalid"


@pytest.mark.parametrize(
    "name, sent",
    [("functions.note", "functions_note"), ("", "_"), ("é" * 99, "_" * 64)],
    ids=["dotted", "none", "long"],
)
def test_a_tool_that_a_model_made_up_is_named_in_the_history_as_servers_allow(name: str, sent: str) -> None:
    request = asked(assistant(ToolCall("c", name, "{}")), user(ToolResult("c", "no such tool")))
    assert body(anthropic_model(), request)["messages"][0]["content"][0]["name"] == sent
    assert body(openai_model(), request)["messages"][0]["tool_calls"][0]["function"]["name"] == sent


def test_ids_are_sent_to_anthropic_in_its_letters_and_stay_different() -> None:
    ids = ["functions.look:0", "functions_look_0", "functions look 0", "x" * 99, "x" * 98, "c1"]
    calls, results = [ToolCall(one, "look", "{}") for one in ids], [ToolResult(one, "") for one in ids]
    said, heard = body(anthropic_model(), asked(assistant(*calls), user(*results)))["messages"]
    sent = [block["id"] for block in said["content"]]
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", one) for one in sent)
    assert len(set(sent)) == len(ids)
    assert [block["tool_use_id"] for block in heard["content"]] == sent
    assert (sent[1], sent[5]) == ("functions_look_0", "c1")


PARTS = st.one_of(
    st.builds(Text, st.text(st.characters(codec="utf-8"))),
    st.builds(ToolResult, st.text("abc", min_size=1), st.text(st.characters(codec="utf-8")), st.booleans()),
    st.builds(ToolCall, st.text("abc", min_size=1), st.text("xyz"), st.text('{}[]":1 a')),
    st.builds(Thinking, st.text("tu"), st.text("s"), st.text("r")),
    st.builds(Image, st.just("image/png"), st.just("pic")),
)
MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(PARTS, max_size=4).map(tuple)), max_size=6
).map(tuple)


@given(MESSAGES, st.integers(0, 7), st.lists(st.text(st.characters(codec="utf-8")), max_size=2).map(tuple))
def test_body_is_json_and_the_same_bytes_from_a_warm_and_from_a_new_model(
    messages: tuple[Message, ...], cache_at: int, system: tuple[str, ...]
) -> None:
    request = Request("m", system, messages, cache_at=cache_at)
    # Step and attempt are about the call, not about what is asked.
    again = msgspec.structs.replace(request, step=9, attempt=3)
    for make in (openai_model, anthropic_model):
        warm = make()
        first = asyncio.run(warm.body(request))
        json.loads(first)
        assert asyncio.run(warm.body(again)) == first
        assert asyncio.run(make().body(msgspec.json.decode(msgspec.json.encode(request), type=Request))) == first


class CountingOpenAI(OpenAIModel):
    """Counts the messages it encodes."""

    encoded = 0

    async def _message(self, message: Message, manners: Manners) -> bytes:
        self.encoded += 1
        return await super()._message(message, manners)


class CountingAnthropic(AnthropicModel):
    """Counts the messages it encodes."""

    encoded = 0

    async def _message(self, message: Message) -> bytes:
        self.encoded += 1
        return await super()._message(message)


@pytest.mark.parametrize("base", [CountingOpenAI, CountingAnthropic])
def test_a_conversation_encodes_each_message_once(base: Any) -> None:
    from atlas.models.http import Http
    from atlas.testing.clock import FakeClock

    model, messages, loads = None, [user(Text("start"), Image("image/png", "pic"))], Loads()
    model = base(Http(), FakeClock(), loads, base_url="http://127.0.0.1:1")

    async def talk() -> None:
        for number in range(50):
            # Built anew each time, as it is when it comes from the record: equal, not the same object.
            fresh = msgspec.json.decode(msgspec.json.encode(messages), type=list[Message])
            await model.body(asked(*fresh, cache_at=len(fresh)))
            messages.append(assistant(Text(f"reply {number}")))
            messages.append(user(Text(f"question {number}")))

    asyncio.run(talk())
    assert model.encoded == 99
    assert loads.count == 1
