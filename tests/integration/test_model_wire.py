"""Both wires against a real server in another process: what it says right, and everything it can do wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import pytest

from atlas.kernel.config import Models, Price, Provider
from atlas.kernel.contract import Tiers
from atlas.kernel.model import (
    Asked,
    Attempt,
    Delta,
    Image,
    Message,
    Model,
    ModelError,
    Reply,
    Request,
    Tab,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from atlas.models.anthropic import AnthropicModel
from atlas.models.http import Http, Patience
from atlas.models.openai import OpenAIModel
from atlas.models.router import Retry, Router
from atlas.testing.clock import FakeClock
from atlas.testing.provider import ProviderProcess
from atlas.testing.provider_wire import Act, ActCall, ActUsage

T = TypeVar("T")
Wire: TypeAlias = str
MODELS = {"openai": OpenAIModel, "anthropic": AnthropicModel}
SCHEMA = msgspec.Raw(b'{"type": "object", "properties": {"x": {"type": "string"}}}')
REQUEST = Request(
    "m1",
    ("You are kind.",),
    (
        Message("user", (Text("Look."),)),
        Message("assistant", (Thinking("Hm.", "sig"), ToolCall("c1", "look", '{"x": "a"}'))),
        Message("user", (ToolResult("c1", "a cat"), Text("And now?"))),
    ),
    (ToolSpec("look", "Looks.", SCHEMA),),
    cache_at=2,
    step=2,
)
CALLS = (ActCall("look", '{"x": "first"}'), ActCall("look", '{"x": "second"}'))
IMPATIENT = Patience(connect_s=1.0, first_byte_s=0.3, silence_s=0.3)
QUICK = Retry(first_wait_s=0.001, longest_wait_s=0.002)
both_wires = pytest.mark.parametrize("wire", ["openai", "anthropic"])


@pytest.fixture(scope="module")
def first() -> Iterator[ProviderProcess]:
    with ProviderProcess() as process:
        yield process


@pytest.fixture(scope="module")
def second() -> Iterator[ProviderProcess]:
    with ProviderProcess() as process:
        yield process


async def no_blob(digest: str) -> bytes:
    raise AssertionError(digest)


async def with_model(
    wire: Wire, url: str, act: Callable[[Model], Awaitable[T]], patience: Patience | None = None, **settings: Any
) -> T:
    """What `act` gives with a model whose connections are closed after it."""
    http = Http(patience or Patience())
    base_url = f"{url}/v1" if wire == "openai" else url
    try:
        return await act(MODELS[wire](http, FakeClock(), no_blob, base_url=base_url, **{"key": "the-key"} | settings))
    finally:
        await http.close()


def ask(
    wire: Wire,
    server: ProviderProcess,
    *acts: Act,
    request: Request = REQUEST,
    deltas: list[Delta] | None = None,
    patience: Patience | None = None,
    **settings: Any,
) -> Reply:
    server.plan(*acts)
    heard = deltas if deltas is not None else []
    return asyncio.run(
        with_model(wire, server.url, lambda model: model.ask(request, heard.append), patience, **settings)
    )


def fail(wire: Wire, server: ProviderProcess, act: Act, **more: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(wire, server, act, **more)
    return caught.value


# What is said right


def signature(wire: Wire) -> str:
    return "signed" if wire == "anthropic" else ""


ANSWERS: list[tuple[str, Act, Callable[[Wire], tuple[Any, ...]], str]] = [
    ("text", Act(text="A cat, I think."), lambda wire: (Text("A cat, I think."),), "end"),
    (
        "parallel tools",
        Act(text="I look twice.", tool_calls=CALLS, piece=2),
        lambda wire: (
            Text("I look twice."),
            ToolCall("call_1", "look", '{"x": "first"}'),
            ToolCall("call_2", "look", '{"x": "second"}'),
        ),
        "tool_call",
    ),
    (
        "thinking",
        Act(thinking="Let me see.", signature="signed", text="A cat."),
        lambda wire: (Thinking("Let me see.", signature(wire)), Text("A cat.")),
        "end",
    ),
    ("structured", Act(text='{"animal": "cat"}'), lambda wire: (Text('{"animal": "cat"}'),), "end"),
]


@both_wires
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("split", [0, 1], ids=["", "byte by byte"])
@pytest.mark.parametrize("act, parts, stop", [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_answers_arrive_whole(
    first: ProviderProcess, wire: Wire, stream: bool, split: int, act: Act, parts: Any, stop: str
) -> None:
    request = msgspec.structs.replace(REQUEST, output_schema=SCHEMA if "{" in act.text else None)
    act = msgspec.structs.replace(act, usage=ActUsage(100, 20, 60, 30), split=split)
    deltas: list[Delta] = []
    reply = ask(wire, first, act, request=request, deltas=deltas, stream=stream)
    assert reply == Reply(parts(wire), stop, Usage(100, 20, 60, 30), "m1")  # type: ignore[arg-type]
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == act.text
    assert "".join(delta.text for delta in deltas if delta.kind == "thinking") == act.thinking
    (seen,) = first.record().seen
    assert seen.is_whole
    assert bool(json.loads(seen.body).get("stream")) is stream


WANTING = msgspec.structs.replace(REQUEST, tools=(), messages=REQUEST.messages[:1], output_schema=SCHEMA)
SHAPED = Act(text="Here:", tool_calls=(ActCall("final_answer", '{"x": "a cat"}'),), piece=3)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_the_messages_wire_answers_in_a_shape_by_calling_a_final_tool(first: ProviderProcess, stream: bool) -> None:
    deltas: list[Delta] = []
    reply = ask("anthropic", first, SHAPED, request=WANTING, deltas=deltas, stream=stream)
    assert (reply.parts, reply.stop) == ((Thinking("Here:"), Text('{"x": "a cat"}')), "end")
    assert "".join(delta.text for delta in deltas) == 'Here:{"x": "a cat"}'
    assert {delta.kind for delta in deltas} == {"text"}


def complaining(message: str, status: int = 400) -> Act:
    return Act(status=status, body=json.dumps({"error": {"message": message}}), content_type="application/json")


@pytest.mark.parametrize(
    "refusal",
    [
        complaining("This response_format type is unavailable now"),
        complaining("The provided JSON schema contains features not supported by xgrammar."),
        complaining("Cannot use custom grammar constraints with tools.", 500),
        complaining("json mode cannot be combined with tool/function calling"),
        complaining("Function calling with a response mime type: 'application/json' is unsupported"),
    ],
)
def test_a_server_that_takes_no_answer_format_is_given_a_final_tool_and_not_asked_for_one_again(
    first: ProviderProcess, refusal: Act
) -> None:
    async def twice(model: Model) -> tuple[Reply, Reply]:
        return await model.ask(WANTING, lambda delta: None), await model.ask(WANTING, lambda delta: None)

    first.plan(refusal, SHAPED)
    for reply in asyncio.run(with_model("openai", first.url, twice)):
        assert (reply.parts, reply.stop) == ((Thinking("Here:"), Text('{"x": "a cat"}')), "end")
    sent = first.bodies()
    assert ["response_format" in body for body in sent] == [True, False, False]
    assert [body.get("tool_choice") for body in sent] == [None, "required", "required"]


def test_a_format_does_not_keep_the_models_of_other_servers_from_calling_tools(first: ProviderProcess) -> None:
    wanting = msgspec.structs.replace(WANTING, tools=REQUEST.tools)
    calling = Act(tool_calls=(ActCall("look", '{"x": "first"}'),))
    assert ask("openai", first, calling, request=wanting).parts == (ToolCall("call_1", "look", '{"x": "first"}'),)
    (sent,) = first.bodies()
    assert "response_format" not in sent
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["look", "final_answer"]
    assert ask("openai", first, SHAPED, request=wanting).parts[-1] == Text('{"x": "a cat"}')
    ask("openai", first, Act(text='{"x": "a cat"}'), request=WANTING)
    (sent,) = first.bodies()
    assert (sent["response_format"]["json_schema"]["schema"], "tools" in sent) == (json.loads(bytes(SCHEMA)), False)


HISTORY = msgspec.structs.replace(
    REQUEST,
    messages=(
        Message("user", (Text("Look."),)),
        Message("assistant", (Thinking("Hm."), ToolCall("c1", "look", "{}"))),
        Message("user", (ToolResult("c1", "a cat"), Text("And now?"))),
        Message("assistant", (ToolCall("c2", "look", "{}"),)),
        Message("user", (ToolResult("c2", "a dog"),)),
        Message("user", (Text("Go on."),)),
    ),
    tool_choice="required",
)
OTHER_LIMIT = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
NO_REASONING = (
    "Function tools with reasoning_effort are not supported for m1 in /v1/chat/completions. "
    "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
)
NO_STREAM = (
    "Your organization must be verified to stream this model. Please go to: "
    "https://platform.openai.com/settings/organization/general and click on Verify Organization."
)
MANNERS: list[tuple[str, Callable[[dict[str, Any]], object], object, object]] = [
    (
        "Unexpected role 'user' after role 'tool'",
        lambda body: [message["role"] for message in body["messages"]],
        ["system", "user", "assistant", "tool", "user", "assistant", "tool", "user"],
        ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant", "user"],
    ),
    ("Thinking mode does not support this tool_choice", lambda body: body.get("tool_choice"), "required", None),
    (OTHER_LIMIT, lambda body: [name for name in body if "max" in name], ["max_tokens"], ["max_completion_tokens"]),
    (
        "property 'reasoning_content' is unsupported",
        lambda body: [m for m in body["messages"] if "reasoning_content" in m] != [],
        True,
        False,
    ),
    (NO_REASONING, lambda body: body.get("reasoning_effort"), None, "none"),
    (NO_STREAM, lambda body: [name for name in body if "stream" in name], ["stream", "stream_options"], []),
]


NO_FORCE = 'tool_choice: type "tool" and "any" are not supported for this model.'
BOUND = (
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. "
    'Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)


def test_a_claude_that_takes_no_forced_tool_is_offered_the_tool_from_then_on(first: ProviderProcess) -> None:
    async def twice(model: Model) -> list[Reply]:
        return [await model.ask(WANTING, lambda delta: None) for _ in range(2)]

    first.plan(complaining(NO_FORCE), SHAPED)
    for reply in asyncio.run(with_model("anthropic", first.url, twice)):
        assert reply.parts[-1] == Text('{"x": "a cat"}')
    assert [body.get("tool_choice") for body in first.bodies()] == [{"type": "any"}, None, None]


def test_a_claude_whose_thoughts_are_bound_to_dropped_steps_is_told_to_pass_over_them(first: ProviderProcess) -> None:
    async def twice(model: Model) -> list[Reply]:
        return [await model.ask(REQUEST, lambda delta: None) for _ in range(2)]

    first.plan(complaining(BOUND), Act(text="ok"))
    assert [reply.parts for reply in asyncio.run(with_model("anthropic", first.url, twice))] == [(Text("ok"),)] * 2
    dropping = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert [body.get("thinking") for body in first.bodies()] == [None, dropping, dropping]
    headers = [{name.lower(): value for name, value in seen.headers.items()} for seen in first.record().seen]
    beta = "thinking-binding-controls-2026-08-01"
    assert [one.get("anthropic-beta") for one in headers] == [None, beta, beta]
    thoughts = [[block["type"] for block in body["messages"][1]["content"]] for body in first.bodies()]
    assert thoughts == [["thinking", "tool_use"]] * 3  # those that are still good are used


def test_thoughts_that_a_router_passes_on_to_a_claude_are_left_out_once_it_refuses_them(first: ProviderProcess) -> None:
    raw = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": BOUND}})
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw, "provider_name": "Anthropic"}}
    refusal = Act(status=400, body=json.dumps({"error": error}), content_type="application/json")
    assert ask("openai", first, refusal, Act(text="ok"), request=HISTORY).parts == (Text("ok"),)
    assert ["reasoning_content" in str(body) for body in first.bodies()] == [True, False]


@pytest.mark.parametrize(
    "complaint, look, before, after", MANNERS, ids=["order", "choice", "limit", "thoughts", "reasoning", "stream"]
)
def test_what_a_server_wants_is_learnt_from_its_refusal_once_for_each_model(
    first: ProviderProcess, complaint: str, look: Callable[[dict[str, Any]], object], before: object, after: object
) -> None:
    other = msgspec.structs.replace(HISTORY, model="m2")

    async def thrice(model: Model) -> list[Reply]:
        return [await model.ask(request, lambda delta: None) for request in (HISTORY, HISTORY, other)]

    first.plan(complaining(complaint), Act(text="ok", usage=ActUsage(30, 5)))
    for reply in asyncio.run(with_model("openai", first.url, thrice)):
        assert (reply.parts, reply.usage) == ((Text("ok"),), Usage(30, 5))
    assert [look(body) for body in first.bodies()] == [before, after, after, before]


def test_a_model_that_reasons_and_calls_tools_only_one_at_a_time_still_reasons_without_tools(
    first: ProviderProcess,
) -> None:
    async def twice(model: Model) -> list[Reply]:
        return [await model.ask(request, lambda delta: None) for request in (HISTORY, toolless)]

    toolless = msgspec.structs.replace(HISTORY, tools=(), tool_choice="auto")
    first.plan(complaining(NO_REASONING), Act(text="ok"))
    asyncio.run(with_model("openai", first.url, twice))
    assert [body.get("reasoning_effort") for body in first.bodies()] == [None, "none", None]


def test_a_model_that_cannot_stop_reasoning_is_one_that_takes_no_tools(first: ProviderProcess) -> None:
    never = complaining("Unsupported value: 'reasoning_effort' does not support 'none' with this model.")
    first.plan(complaining(NO_REASONING), never)
    with pytest.raises(ModelError) as caught:
        asyncio.run(with_model("openai", first.url, lambda model: model.ask(HISTORY, lambda delta: None)))
    assert (caught.value.kind, len(first.bodies())) == ("auth", 2)
    assert "can call tools" in caught.value.hint


@pytest.mark.parametrize(
    "complaint",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "Missing `reasoning_content` field in the assistant message at message index 3.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 3",
    ],
)
def test_a_server_that_wants_a_thought_with_all_that_was_said_is_given_one(
    first: ProviderProcess, complaint: str
) -> None:
    words = Message("assistant", (Thinking("So."), Text("A cat.")))
    request = msgspec.structs.replace(HISTORY, messages=(*HISTORY.messages, words, Message("user", (Text("Sure?"),))))
    assert ask("openai", first, complaining(complaint), Act(text="ok"), request=request).parts == (Text("ok"),)
    said = [[m.get("reasoning_content") for m in b["messages"] if m["role"] == "assistant"] for b in first.bodies()]
    assert said == [["Hm.", None, None], ["Hm.", " ", "So."]]


def test_a_model_that_used_up_its_reply_by_reasoning_was_cut_off_and_did_not_refuse(first: ProviderProcess) -> None:
    words = "Could not finish the message because max_tokens or model output limit was reached. "
    refusal = complaining(f"{words}Please try again with higher max_tokens.")
    reply = ask("openai", first, refusal)
    assert (reply.parts, reply.stop, len(first.bodies())) == ((), "length", 1)
    assert (reply.usage.tokens_out, reply.usage.is_estimated) == (REQUEST.max_output_tokens, True)


def test_a_server_that_wants_several_things_is_given_each_in_turn(first: ProviderProcess) -> None:
    refusals = [complaining(complaint) for complaint, *_ in MANNERS]
    assert ask("openai", first, *refusals, Act(text="ok"), request=HISTORY).parts == (Text("ok"),)
    last = first.bodies()[-1]
    assert [look(last) for _, look, _, _ in MANNERS] == [after for *_, after in MANNERS]


def test_a_server_that_takes_neither_a_format_nor_a_forced_tool_is_offered_the_tool(first: ProviderProcess) -> None:
    refusals = complaining("This response_format type is unavailable now"), complaining(MANNERS[1][0])
    assert ask("openai", first, *refusals, SHAPED, request=WANTING).parts[-1] == Text('{"x": "a cat"}')
    assert [body.get("tool_choice") for body in first.bodies()] == [None, "required", None]


def test_a_refusal_that_stays_is_asked_again_only_once(first: ProviderProcess) -> None:
    error = fail("openai", first, complaining(OTHER_LIMIT))
    assert (error.kind, error.usage, len(first.bodies())) == ("invalid", None, 2)


def test_a_complaint_in_an_answer_that_was_billed_is_not_asked_again(first: ProviderProcess) -> None:
    act = Act(text="some", extra=(json.dumps({"error": {"message": OTHER_LIMIT}}),))
    assert fail("openai", first, act).usage is not None
    assert len(first.bodies()) == 1


def test_a_server_that_turns_down_the_final_tool_too_is_believed(first: ProviderProcess) -> None:
    error = fail("openai", first, complaining("neither json_schema nor tools"), request=WANTING)
    assert error.kind == "invalid"
    assert len(first.bodies()) == 2


@both_wires
def test_the_same_request_is_the_same_bytes_every_time(first: ProviderProcess, wire: Wire) -> None:
    first.plan(Act(text="ok"))
    for _ in range(2):
        asyncio.run(with_model(wire, first.url, lambda model: model.ask(REQUEST, lambda delta: None)))
    one, two = first.record().seen
    assert one.body == two.body


@both_wires
def test_key_and_version_are_sent_as_headers(first: ProviderProcess, wire: Wire) -> None:
    ask(wire, first, Act(text="x"))
    (seen,) = first.record().seen
    headers = {name.lower(): value for name, value in seen.headers.items()}
    if wire == "openai":
        assert headers["authorization"] == "Bearer the-key"
        assert seen.path == "/v1/chat/completions"
    else:
        assert (headers["x-api-key"], headers["anthropic-version"]) == ("the-key", "2023-06-01")
        assert seen.path == "/v1/messages"
    assert "cookie" not in headers


@both_wires
def test_a_server_that_streams_though_it_should_not_is_understood_and_the_other_way_round(
    first: ProviderProcess, wire: Wire
) -> None:
    from atlas.testing.provider_wire import Billed, render

    for stream in (True, False):
        other = render(wire, Act(text="hi"), "m1", Billed(3, 4, 0, 0), not stream).decode()  # type: ignore[arg-type]
        kind = "application/json; charset=utf-8" if stream else "text/event-stream"
        reply = ask(wire, first, Act(body=other, content_type=kind), stream=stream)
        assert (reply.parts, reply.usage) == ((Text("hi"),), Usage(3, 4))


@both_wires
def test_one_connection_serves_call_after_call(first: ProviderProcess, wire: Wire) -> None:
    first.plan(Act(text="ok"))

    async def talk(model: Model) -> None:
        for _ in range(10):
            await model.ask(REQUEST, lambda delta: None)

    asyncio.run(with_model(wire, first.url, talk))
    record = first.record()
    assert (len(record.seen), record.connections) == (10, 1)


@both_wires
def test_proxies_of_the_environment_are_not_used(
    first: ProviderProcess, wire: Wire, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    assert ask(wire, first, Act(text="ok")).parts == (Text("ok"),)


@both_wires
def test_large_requests_and_large_answers_pass(first: ProviderProcess, wire: Wire) -> None:
    picture = bytes(range(256)) * 12_000

    async def load(digest: str) -> bytes:
        return picture

    async def talk() -> Reply:
        http = Http()
        base_url = f"{first.url}/v1" if wire == "openai" else first.url
        try:
            model = MODELS[wire](http, FakeClock(), load, base_url=base_url)
            request = Request("m", (), (Message("user", (Image("image/png", "p"),)),))
            return await model.ask(request, lambda delta: None)
        finally:
            await http.close()

    text = "long " * 600_000
    first.plan(Act(text=text, piece=10**9, usage=ActUsage(1, 1)))
    assert asyncio.run(talk()).parts == (Text(text),)
    (seen,) = first.record().seen
    assert len(seen.body) > 4_000_000


# What is done wrong


@both_wires
@pytest.mark.parametrize("cut_at", [0, 1, 150, 700])
def test_a_connection_that_breaks_in_the_middle_tells_what_is_known(
    first: ProviderProcess, wire: Wire, cut_at: int
) -> None:
    error = fail(wire, first, Act(text="word " * 100, usage=ActUsage(100, 50, 60), cut_at=cut_at, piece=20))
    assert error.kind == "connection"
    assert error.usage is not None
    assert error.usage.is_estimated
    if wire == "anthropic" and cut_at == 700:
        assert (error.usage.tokens_in, error.usage.cached_in) == (100, 60)
        assert error.usage.tokens_out > 1


@both_wires
def test_a_stream_that_just_ends_is_no_answer(first: ProviderProcess, wire: Wire) -> None:
    error = fail(wire, first, Act(text="half an ans", omit_end=True))
    assert error.kind == "connection"
    assert error.usage is not None


@both_wires
@pytest.mark.parametrize("stream", [True, False])
def test_a_whole_answer_that_is_cut_is_a_broken_connection(first: ProviderProcess, wire: Wire, stream: bool) -> None:
    assert fail(wire, first, Act(text="word " * 50, cut_at=90), stream=stream).kind == "connection"


@both_wires
def test_malformed_events_and_malformed_answers_are_the_servers_fault(first: ProviderProcess, wire: Wire) -> None:
    error = fail(wire, first, Act(text="hello", extra=("{oops",)))
    assert (error.kind, "oops" in error.message) == ("server", True)
    assert error.usage is not None
    for body in ("{oops", "[]", "{}", ""):
        assert fail(wire, first, Act(body=body), stream=False).kind == "server"


@both_wires
@pytest.mark.parametrize("stream", [True, False])
def test_malformed_and_doubly_named_calls_reach_the_caller(first: ProviderProcess, wire: Wire, stream: bool) -> None:
    args = '{"x": oops' if stream or wire == "openai" else '{"x": 1}'
    reply = ask(
        wire, first, Act(tool_calls=(ActCall("look", args, "same"), ActCall("look", "{}", "same"))), stream=stream
    )
    assert reply.parts == (ToolCall("same", "look", args), ToolCall("same_2", "look", "{}"))


@both_wires
def test_a_malformed_call_does_not_get_the_next_request_refused(first: ProviderProcess, wire: Wire) -> None:
    bad = Message("assistant", (ToolCall("c1", "look", '{"x": "say "bye""}'),))
    request = msgspec.structs.replace(REQUEST, messages=(bad, Message("user", (ToolResult("c1", "no"),))))
    assert ask(wire, first, Act(text="ok"), request=request).parts == (Text("ok"),)


@both_wires
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("act", [Act(), Act(text=" \n"), Act(thinking="only this", signature="s")])
def test_an_empty_answer_is_an_error_with_its_bill(first: ProviderProcess, wire: Wire, stream: bool, act: Act) -> None:
    error = fail(wire, first, msgspec.structs.replace(act, usage=ActUsage(30, 5)), stream=stream)
    assert (error.kind, error.usage) == ("empty", Usage(30, 5))


@both_wires
def test_an_answer_cut_before_its_first_word_is_cut_and_not_empty(first: ProviderProcess, wire: Wire) -> None:
    reply = ask(wire, first, Act(stop="length" if wire == "openai" else "max_tokens"))
    assert (reply.parts, reply.stop) == ((), "length")


@both_wires
@pytest.mark.parametrize(
    "status, headers, kind, retry_after_s",
    [
        (429, {"Retry-After": "3"}, "rate_limit", 3.0),
        (
            429,
            {"Retry-After": "Thu, 01 Jan 2026 00:00:09 GMT", "Date": "Thu, 01 Jan 2026 00:00:00 GMT"},
            "rate_limit",
            9.0,
        ),
        (429, {}, "rate_limit", 0.0),
        (529, {}, "server", 0.0),
        (503, {"Retry-After": "1"}, "server", 1.0),
        (401, {}, "auth", 0.0),
    ],
)
def test_refusals_are_classified_and_say_when_to_come_again(
    first: ProviderProcess, wire: Wire, status: int, headers: dict[str, str], kind: str, retry_after_s: float
) -> None:
    error = fail(wire, first, Act(status=status, headers=headers, body='{"error": {"message": "no, the-key"}}'))
    assert (error.kind, error.retry_after_s, error.usage) == (kind, retry_after_s, None)
    assert "no, ***" in error.message
    assert "the-key" not in str(error)


@both_wires
def test_a_login_in_the_address_is_not_in_what_a_server_quotes(first: ProviderProcess, wire: Wire) -> None:
    url = first.url.replace("://", "://ada:love@")
    sent = b64encode(b"ada:love").decode()
    first.plan(Act(status=401, body=f'{{"error": {{"message": "no, Basic {sent}"}}}}'))

    async def turned_down(model: Model) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await model.ask(REQUEST, lambda delta: None)
        return caught.value

    error = asyncio.run(with_model(wire, url, turned_down, key=""))
    assert "no, Basic ***" in error.message


KEY = "the-key"


def quoting(before: int) -> str:
    return "-" * before + KEY + "-" * 1_000


@both_wires
@pytest.mark.parametrize(
    "say, lead",
    [
        (lambda text: Act(status=400, body=json.dumps({"error": {"message": text}})), len("openai answered 400: ")),
        (lambda text: Act(status=500, body=text), len("openai answered 500: ")),
        (
            lambda text: Act(extra=(json.dumps({"type": "error", "error": {"message": text}}),)),
            len("openai broke off: "),
        ),
        (lambda text: Act(extra=(text,)), 380),
        (lambda text: Act(body=text, content_type="application/json"), 380),
        (lambda text: Act(body=text, content_type="text/html"), 380),
    ],
    ids=["complaint", "page", "stream", "event", "answer", "kind"],
)
def test_no_part_of_the_key_stays_where_a_message_is_cut(
    first: ProviderProcess, wire: Wire, say: Callable[[str], Act], lead: int
) -> None:
    end = 500 - lead
    for before in range(end - len(KEY) - 5, end + 1):
        message = fail(wire, first, say(quoting(before))).message
        assert "-t" not in message, message
        assert len(message) <= 500


@both_wires
def test_redirects_are_not_followed(first: ProviderProcess, second: ProviderProcess, wire: Wire) -> None:
    second.plan(Act(text="stolen"))
    error = fail(wire, first, Act(status=307, headers={"Location": f"{second.url}/v1/messages"}))
    assert (error.kind, second.url in error.message) == ("connection", True)
    assert second.record().seen == ()


@both_wires
@pytest.mark.parametrize(
    "act",
    [
        Act(text="late", before_s=30),
        Act(text="late", pause_at=0, pause_s=30),
        Act(text="word " * 50, pause_at=400, pause_s=30),
    ],
    ids=["before the headers", "before the first byte", "in the middle"],
)
def test_silence_is_given_up_on(first: ProviderProcess, wire: Wire, act: Act) -> None:
    began = time.monotonic()
    error = fail(wire, first, act, patience=IMPATIENT)
    assert time.monotonic() - began < 20
    assert (error.kind, "silent" in error.message) == ("timeout", True)
    assert error.usage is not None


@both_wires
def test_a_slow_stream_that_keeps_talking_is_not_silent(first: ProviderProcess, wire: Wire) -> None:
    # Together it takes longer than any single silence may.
    patience = Patience(connect_s=10.0, first_byte_s=3.0, silence_s=3.0)
    reply = ask(
        wire, first, Act(text="word " * 20, piece=5, pause_at=300, pause_s=1.6, before_s=1.6), patience=patience
    )
    assert reply.parts == (Text("word " * 20),)


@both_wires
def test_a_server_that_never_closes_its_stream_is_not_waited_for(first: ProviderProcess, wire: Wire) -> None:
    began = time.monotonic()
    assert ask(wire, first, Act(text="done", hang=True)).parts == (Text("done"),)
    assert time.monotonic() - began < 20


FINISHED = '{"choices":[{"index":0,"delta":{"content":"ab"},"finish_reason":"stop"}]}'
SAID: dict[Wire, tuple[tuple[str, ...], str]] = {
    "openai": ((FINISHED,), '{"choices":[{"index":0,"delta":{}}]}'),
    "anthropic": (
        (
            '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"ab"}}',
            '{"type":"message_delta","delta":{"stop_reason":"end_turn"}}',
        ),
        '{"type":"ping"}',
    ),
}
"""All that an answer needs, and what says nothing."""


async def streamed(wire: Wire, events: Iterable[str], pause_s: float) -> Reply:
    """What is made of these events, which begin to come at once and then with pauses."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        with suppress(ConnectionError):
            for event in events:
                writer.write(f"data: {event}\n\n".encode())
                await writer.drain()
                await asyncio.sleep(pause_s)
        writer.close()
        over.set()

    over = asyncio.Event()
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(20):
            reply = await with_model(wire, url, lambda model: model.ask(REQUEST, lambda delta: None))
            await over.wait()
    return reply


@both_wires
def test_a_server_that_pings_when_all_is_said_is_not_waited_for(wire: Wire) -> None:
    said, ping = SAID[wire]
    reply = asyncio.run(streamed(wire, chain(said, repeat(ping)), 0.05))
    assert reply.parts == (Text("ab"),)


def test_an_answer_whose_every_piece_is_called_the_last_is_heard_to_its_end() -> None:
    # Together the pieces take longer than what is left of a whole answer may.
    reply = asyncio.run(streamed("openai", repeat(FINISHED, 4), 0.4))
    assert reply.parts == (Text("ab" * 4),)


@both_wires
@pytest.mark.parametrize("stream", [True, False])
def test_usage_that_is_not_told_is_estimated(first: ProviderProcess, wire: Wire, stream: bool) -> None:
    usage = ask(wire, first, Act(text="x" * 30, omit_usage=True), stream=stream).usage
    assert usage.is_estimated
    assert usage.tokens_out == 10
    assert 20 < usage.tokens_in < 100


@both_wires
@pytest.mark.parametrize("kind", ["text/html", "text/plain", ""])
def test_a_page_instead_of_an_answer_is_the_servers_fault(first: ProviderProcess, wire: Wire, kind: str) -> None:
    error = fail(wire, first, Act(body="<html>please log in</html>", content_type=kind or "x/y"))
    assert error.kind == "server"
    assert "please log in" in error.message


@both_wires
def test_nobody_listening_is_no_connection_and_no_bill(wire: Wire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    def talk(model: Model) -> Awaitable[Reply]:
        return model.ask(REQUEST, lambda delta: None)

    with pytest.raises(ModelError) as caught:
        asyncio.run(with_model(wire, f"http://127.0.0.1:{port}", talk))
    assert (caught.value.kind, caught.value.usage) == ("connection", None)


@both_wires
def test_a_server_that_does_not_speak_http_is_reported(wire: Wire) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HELLO WORLD\r\n\r\n")
        await writer.drain()
        writer.close()

    async def talk() -> ModelError:
        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ModelError) as caught:
                await with_model(wire, f"http://127.0.0.1:{port}", lambda model: model.ask(REQUEST, lambda delta: None))
            return caught.value

    assert asyncio.run(talk()).kind in ("server", "connection")


@both_wires
@pytest.mark.parametrize("error", [OSError("no terminal"), ValueError("no window")], ids=["OSError", "ValueError"])
def test_what_whoever_listens_raises_reaches_whoever_asked_as_it_is(
    first: ProviderProcess, wire: Wire, error: Exception
) -> None:
    first.plan(Act(text="word " * 50, pause_at=1200, pause_s=60), Act(text="again"))

    def show(delta: Delta) -> None:
        raise error

    async def talk() -> None:
        http = Http()
        base_url = f"{first.url}/v1" if wire == "openai" else first.url
        model = MODELS[wire](http, FakeClock(), no_blob, base_url=base_url)
        with pytest.raises(type(error)) as caught:
            await model.ask(REQUEST, show)
        assert caught.value is error
        assert (http.in_use, http.kept) == (0, 0), "half an answer is still on it"
        assert (await model.ask(REQUEST, lambda delta: None)).parts == (Text("again"),)
        await http.close()

    asyncio.run(talk())


@both_wires
def test_a_model_that_takes_its_time_behind_the_head_is_waited_for(first: ProviderProcess, wire: Wire) -> None:
    patience = Patience(connect_s=10.0, first_byte_s=20.0, silence_s=1.0)
    assert ask(wire, first, Act(text="late", pause_at=0, pause_s=1.5), patience=patience).parts == (Text("late"),)


# Cancelling


@both_wires
def test_cancelling_in_the_middle_of_a_stream_gives_the_connection_back(first: ProviderProcess, wire: Wire) -> None:
    first.plan(Act(text="word " * 50, pause_at=1200, pause_s=60), Act(text="again"))

    async def talk() -> None:
        http, heard = Http(), asyncio.Event()
        base_url = f"{first.url}/v1" if wire == "openai" else first.url
        model = MODELS[wire](http, FakeClock(), no_blob, base_url=base_url)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(model.ask(REQUEST, lambda delta: heard.set()))
            await heard.wait()
            assert http.in_use == 1
            call.cancel()
        assert (http.in_use, http.kept) == (0, 0), "half an answer is still on it"
        assert (await model.ask(REQUEST, lambda delta: None)).parts == (Text("again"),)
        assert (http.in_use, http.kept) == (0, 1)
        await http.close()

    asyncio.run(talk())
    for _ in range(100):
        if first.record().open == 0:
            break
        time.sleep(0.02)
    record = first.record()
    assert (record.open, [seen.is_whole for seen in record.seen]) == (0, [False, True])


# The router over real servers


def router(first: ProviderProcess, second: ProviderProcess, retry: Retry = QUICK, **more: Any) -> Router:
    models = Models(
        providers={
            "one": Provider(kind="openai", base_url=f"{first.url}/v1", max_in_flight=4),
            "two": Provider(kind="anthropic", base_url=second.url),
        },
        tiers=Tiers(fast=("one:m1", "two:m2")),
        prices={"one:m1": Price(1.0, 10.0), "two:m2": Price(2.0, 20.0)},
    )
    return Router(
        models, clock=FakeClock(), load_blob=no_blob, load_script=lambda path: pytest.fail("none"), retry=retry, **more
    )


async def closing(door: Router, act: Callable[[], Awaitable[T]]) -> T:
    try:
        return await act()
    finally:
        await door.close()


def route(door: Router, deltas: list[Delta] | None = None, **more: Any) -> Asked:
    heard = deltas if deltas is not None else []
    return asyncio.run(closing(door, lambda: door.ask("fast", REQUEST, heard.append, **more)))


def test_failover_goes_from_wire_to_wire_and_adds_up(first: ProviderProcess, second: ProviderProcess) -> None:
    first.plan(
        Act(status=500, body="{}"), Act(text="half", usage=ActUsage(9, 9), omit_end=True), Act(status=429, body="{}")
    )
    second.plan(Act(text="whole", usage=ActUsage(1000, 100)))
    deltas: list[Delta] = []
    found = route(router(first, second), deltas)
    assert (found.model, found.reply.parts) == ("two:m2", (Text("whole"),))
    codes = [attempt.error.code if attempt.error else "" for attempt in found.attempts]
    assert codes == ["model_server", "model_connection", "model_rate_limit", ""]
    assert found.attempts[1].usage.is_estimated
    assert found.attempts[1].cost_micro_usd > 0
    assert found.attempts[3].cost_micro_usd == 4000
    assert {delta.attempt for delta in deltas} == {2, 4}
    assert len(first.record().seen) == 3


def test_retry_after_of_a_real_answer_is_kept(first: ProviderProcess, second: ProviderProcess) -> None:
    first.plan(Act(status=429, headers={"Retry-After": "0.4"}, body="{}"), Act(text="now"))
    began = time.monotonic()
    found = route(router(first, second))
    assert (found.model, len(found.attempts)) == ("one:m1", 2)
    assert time.monotonic() - began >= 0.4


def test_a_request_that_is_too_long_goes_nowhere_else(first: ProviderProcess, second: ProviderProcess) -> None:
    second.plan(Act(text="no"))
    first.plan(Act(status=400, body='{"error": {"message": "too long", "code": "context_length_exceeded"}}'))
    with pytest.raises(ModelError) as caught:
        route(router(first, second))
    assert caught.value.kind == "overflow"
    assert second.record().seen == ()


@pytest.mark.parametrize(
    "base_url, key",
    [("http://[127.0.0.1:1/v1", "k"), ("http://a..b/v1", "k"), ("nowhere", "k"), ("http://127.0.0.1:1/v1", "sk-1\n2")],
)
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_malformed_key_or_address_leaves_the_question_to_the_next_candidate(
    second: ProviderProcess, kind: Any, base_url: str, key: str
) -> None:
    second.plan(Act(text="yes"))
    models = Models(
        providers={
            "bad": Provider(kind=kind, base_url=base_url, key="secret:bad"),
            "two": Provider(kind="anthropic", base_url=second.url),
        },
        tiers=Tiers(fast=("bad:m", "two:m")),
        prices={"bad:m": Price(1.0, 10.0), "two:m": Price(2.0, 20.0)},
    )
    door = Router(
        models, clock=FakeClock(), load_blob=no_blob, load_script=lambda path: pytest.fail("none"), keys={"bad": key}
    )
    found = route(door)
    assert (found.model, found.attempts[0].cost_micro_usd) == ("two:m", 0)
    failed = found.attempts[0].error
    assert failed is not None
    assert failed.code == "model_auth"
    assert "sk-1" not in failed.message


def test_lane_holds_at_the_server(first: ProviderProcess, second: ProviderProcess) -> None:
    first.plan(Act(text="ok", before_s=0.01))
    door = router(first, second)

    async def many() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(40):
                group.create_task(door.ask("one:m1", REQUEST, lambda delta: None))

    asyncio.run(closing(door, many))
    record = first.record()
    assert (len(record.seen), record.most_open) == (40, 4)


def test_breaker_keeps_calls_from_a_dead_server_and_lets_one_try(
    first: ProviderProcess, second: ProviderProcess
) -> None:
    first.plan(*[Act(status=503, body="{}")] * 3, Act(text="back"))
    second.plan(Act(text="stand-in"))
    retry = Retry(tries=1, breaker_threshold=3, breaker_recovery_s=2.0)
    door = router(first, second, retry)

    async def talk() -> list[str]:
        models = []
        for _ in range(8):
            models.append((await door.ask("fast", REQUEST, lambda delta: None)).model)
        assert len(first.record().seen) == 3
        await asyncio.sleep(2.1)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(door.ask("fast", REQUEST, lambda delta: None)) for _ in range(5)]
        # One was the probe; those that came while it was under way did not wait for it.
        assert sorted(call.result().model for call in calls) == ["one:m1"] + ["two:m2"] * 4
        models.append((await door.ask("fast", REQUEST, lambda delta: None)).model)
        return models

    assert asyncio.run(closing(door, talk)) == ["two:m2"] * 8 + ["one:m1"]
    assert len(first.record().seen) == 5


def test_cancelled_call_is_billed_by_estimate_and_leaves_the_lane(
    first: ProviderProcess, second: ProviderProcess
) -> None:
    first.plan(Act(text="word " * 50, pause_at=1200, pause_s=60))
    door, attempts = router(first, second), list[Attempt]()

    async def talk() -> None:
        for _ in range(8):  # twice as many as the lane holds
            tab, heard = Tab(), asyncio.Event()
            async with asyncio.TaskGroup() as group:
                call = group.create_task(door.ask("one:m1", REQUEST, lambda delta, heard=heard: heard.set(), tab))
                await heard.wait()
                call.cancel()
            attempts.extend(tab.attempts)
        assert door._http.in_use == 0

    asyncio.run(closing(door, talk))
    assert [attempt.error.code for attempt in attempts if attempt.error] == ["cancelled"] * 8
    # Nobody knows how much the provider had made of the answer: all that it might.
    assert {attempt.usage.tokens_out for attempt in attempts} == {REQUEST.max_output_tokens}
    assert all(attempt.usage.is_estimated for attempt in attempts)


def test_environment_alone_is_enough(first: ProviderProcess, second: ProviderProcess) -> None:
    first.plan(Act(text="from one", usage=ActUsage(10, 10)))
    second.plan(Act(text="from two", usage=ActUsage(10, 10)))
    environ = {
        "OPENAI_API_KEY": "k1",
        "OPENAI_BASE_URL": f"{first.url}/v1",
        "ANTHROPIC_API_KEY": "k2",
        "ANTHROPIC_BASE_URL": second.url,
    }
    door = Router(
        Models(), clock=FakeClock(), load_blob=no_blob, load_script=lambda path: pytest.fail("none"), environ=environ
    )

    async def talk() -> list[Asked]:
        return [await door.ask(name, REQUEST, lambda delta: None) for name in ("gpt-4o", "claude-sonnet-4-5")]

    one, two = asyncio.run(closing(door, talk))
    assert (one.model, two.model) == ("openai:gpt-4o", "anthropic:claude-sonnet-4-5")
    assert one.cost_micro_usd > 0
    assert two.cost_micro_usd == 180
    assert not any(attempt.is_price_guessed for attempt in (*one.attempts, *two.attempts))
    assert first.record().seen[0].headers["Authorization"] == "Bearer k1"
