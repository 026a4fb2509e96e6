"""The `providers` extra against a server on loopback that speaks Gemini's wire: real HTTP, real streams, real refusals."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import msgspec
import pytest

from atlas.kernel.config import Models, Provider
from atlas.kernel.contract import Tiers
from atlas.kernel.model import (
    Delta,
    Image,
    Message,
    ModelError,
    Reply,
    Request,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from atlas.models.anthropic import AnthropicModel
from atlas.models.http import Http
from atlas.models.pydantic_ai import PydanticAIModel
from atlas.models.pydantic_ai_message import MARK
from atlas.models.router import Retry, Router
from atlas.models.scripted import script_from
from atlas.testing.clock import FakeClock

T = TypeVar("T")
KEY = "key-that-nobody-may-see"
MODEL = "google:gemini-3-flash-preview"
SCHEMA = msgspec.Raw(b'{"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}')
LOOK = ToolSpec("look", "Looks.", SCHEMA)
HELLO = Request(MODEL, ("You are kind.", "You are brief."), (Message("user", (Text("Hello"),)),), max_output_tokens=77)


class Refusal(msgspec.Struct, frozen=True):
    status: int
    word: str
    message: str
    headers: dict[str, str] = {}


class Gemini(ThreadingHTTPServer):
    """The server: answers with what it is given, in order, and keeps what it was asked.

    From the standard library, because Google's client names itself twice and stricter servers refuse that.
    """

    daemon_threads = True

    def __init__(self, *answers: Any) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.answers = list(answers)
        self.seen: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: set[str] = set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        raise AssertionError from sys.exception()


class Exchange(BaseHTTPRequestHandler):
    """One request."""

    server: Gemini
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.server.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.paths.append(self.path)
        self.server.keys.add(self.headers["x-goog-api-key"])
        answer = self.server.answers.pop(0)
        match answer:
            case Refusal(status, word, message, headers):
                self._whole(status, {"error": {"code": status, "message": message, "status": word}}, headers)
            case dict():
                self._whole(200, answer, {})
            case _:
                self._stream(answer)

    def _whole(self, status: int, value: Any, headers: dict[str, str]) -> None:
        data = json.dumps(value).encode()
        self._begin(status, {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers})
        self.wfile.write(data)

    def _stream(self, answer: list[Any]) -> None:
        self._begin(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        for piece in answer:
            if piece is None:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            data = b"data: " + json.dumps(piece).encode() + b"\r\n\r\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def chunk(*parts: dict[str, Any], finish: str = "", usage: tuple[int, int, int] | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    found: dict[str, Any] = {"candidates": [candidate], "modelVersion": "gemini-3-flash-preview", "responseId": "r1"}
    if finish:
        candidate["finishReason"] = finish
    if usage is not None:
        sent, answered, cached = usage
        found["usageMetadata"] = {
            "promptTokenCount": sent,
            "candidatesTokenCount": answered,
            "cachedContentTokenCount": cached,
            "totalTokenCount": sent + answered,
        }
    return found


def with_server(server: Gemini, work: Callable[[PydanticAIModel], Awaitable[T]], *, stream: bool = True) -> T:
    async def main() -> T:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        model = PydanticAIModel(load, name="other", base_url=url, key=KEY, stream=stream)
        try:
            return await work(model)
        finally:
            await model.close()

    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        return asyncio.run(main())
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        assert server.keys == {KEY}


async def load(digest: str) -> bytes:
    return b"\x89PNG"


def ask(server: Gemini, request: Request = HELLO, *, stream: bool = True) -> tuple[Reply, list[Delta]]:
    deltas: list[Delta] = []
    reply = with_server(server, lambda model: model.ask(request, deltas.append), stream=stream)
    return reply, deltas


WORDS = [chunk({"text": "Hel"}), chunk({"text": "lo."}, finish="STOP", usage=(40, 7, 30))]


def test_an_answer_streams_with_its_usage() -> None:
    server = Gemini(WORDS)
    reply, deltas = ask(server)
    assert reply.parts == (Text("Hello."),)
    assert (reply.stop, reply.usage) == ("end", Usage(40, 7, 30))
    assert [delta.text for delta in deltas] == ["Hel", "lo."]
    assert [path.rpartition("/")[2] for path in server.paths] == [
        "gemini-3-flash-preview:streamGenerateContent?alt=sse"
    ]
    sent = server.seen[0]
    said = json.dumps(sent["systemInstruction"])
    assert "You are kind." in said
    assert "You are brief." in said
    assert sent["contents"] == [{"role": "user", "parts": [{"text": "Hello"}]}]
    assert sent["generationConfig"]["maxOutputTokens"] == 77


def test_a_whole_answer_is_said_in_one_piece() -> None:
    reply, deltas = ask(Gemini(chunk({"text": "Hello."}, finish="MAX_TOKENS", usage=(4, 2, 0))), stream=False)
    assert (reply.parts, reply.stop, reply.usage) == ((Text("Hello."),), "length", Usage(4, 2))
    assert deltas == [Delta("text", "Hello.")]


def test_calls_and_thoughts_go_back_with_what_the_provider_signed() -> None:
    call = {"functionCall": {"name": "look", "args": {"x": "a"}, "id": "c1"}, "thoughtSignature": "c2lnbmVk"}
    other = {"functionCall": {"name": "look", "args": {"x": "b"}, "id": "c2"}}
    first = [chunk({"text": "Hm.", "thought": True}), chunk(call, other, finish="STOP", usage=(10, 5, 0))]
    server = Gemini(first, WORDS)

    async def work(model: PydanticAIModel) -> Reply:
        question = Message("user", (Text("Look."), Image("image/png", "pic")))
        request = Request(MODEL, (), (question,), (LOOK,))
        reply = await model.ask(request, lambda delta: None)
        results = Message("user", (ToolResult("c1", "a cat"), ToolResult("c2", "no light", is_error=True)))
        again = Request(MODEL, (), (question, Message("assistant", reply.parts), results), (LOOK,))
        await model.ask(again, lambda delta: None)
        return reply

    reply = with_server(server, work)
    assert reply.stop == "tool_call"
    assert [part for part in reply.parts if isinstance(part, ToolCall)] == [
        ToolCall("c1", "look", '{"x":"a"}'),
        ToolCall("c2", "look", '{"x":"b"}'),
    ]
    thoughts = [part for part in reply.parts if isinstance(part, Thinking)]
    assert thoughts[0].text == "Hm."
    assert all(part.signature.startswith(MARK) for part in thoughts if part.signature)
    declared = server.seen[0]["tools"][0]["functionDeclarations"][0]
    assert (declared["name"], declared["description"]) == ("look", "Looks.")
    assert "inlineData" in json.dumps(server.seen[0]["contents"])
    _, answered, results = server.seen[1]["contents"]
    returned = [part for part in answered["parts"] if "functionCall" in part]
    assert [part["functionCall"]["args"] for part in returned] == [{"x": "a"}, {"x": "b"}]
    assert [part.get("thoughtSignature") for part in returned] == ["c2lnbmVk", None]
    outcomes = [part["functionResponse"] for part in results["parts"]]
    assert [outcome["name"] for outcome in outcomes] == ["look", "look"]
    assert "a cat" in json.dumps(outcomes[0])
    assert "no light" in json.dumps(outcomes[1])


def test_what_it_signed_is_not_sent_over_another_wire() -> None:
    signed = Thinking("Hm.", f'{MARK}{{"provider":"google"}}')
    request = Request("m", (), (Message("user", (Text("a"),)), Message("assistant", (signed, Text("b")))))
    model = AnthropicModel(Http(), FakeClock(), load, base_url="http://127.0.0.1:1")
    assert b"google" not in asyncio.run(model.body(request))


@pytest.mark.parametrize("tools", [(), (LOOK,)])
def test_an_answer_of_a_given_shape_is_enforced_or_asked_for_in_words(tools: tuple[ToolSpec, ...]) -> None:
    server = Gemini([chunk({"text": '{"x": "y"}'}, finish="STOP", usage=(4, 2, 0))])
    reply, _ = ask(server, Request(MODEL, ("Kind.",), HELLO.messages, tools, output_schema=SCHEMA))
    assert reply.parts == (Text('{"x": "y"}'),)
    is_enforced = server.seen[0]["generationConfig"].get("responseMimeType") == "application/json"
    assert is_enforced is not bool(tools)
    if tools:
        assert '"x"' in json.dumps(server.seen[0]["systemInstruction"]).replace("\\", "")


@pytest.mark.parametrize(
    "answer, kind",
    [
        (Refusal(400, "INVALID_ARGUMENT", "the field is not known"), "invalid"),
        (
            Refusal(
                400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8)."
            ),
            "overflow",
        ),
        (Refusal(401, "UNAUTHENTICATED", f"bad key {KEY}"), "auth"),
        (Refusal(403, "PERMISSION_DENIED", "not yours"), "auth"),
        (Refusal(404, "NOT_FOUND", "no such model"), "auth"),
        (Refusal(429, "RESOURCE_EXHAUSTED", "slow down", {"Retry-After": "7"}), "rate_limit"),
        (Refusal(500, "INTERNAL", "oh"), "server"),
        (Refusal(503, "UNAVAILABLE", "overloaded"), "server"),
        ([chunk({"text": "Hel"}), None], "connection"),
        ([chunk({"text": ""}, finish="STOP", usage=(3, 0, 0))], "empty"),
    ],
)
def test_what_goes_wrong_is_sorted_and_never_names_the_key(answer: Any, kind: str) -> None:
    server = Gemini(answer)
    with pytest.raises(ModelError) as caught:
        ask(server)
    assert caught.value.kind == kind
    assert KEY not in caught.value.message
    assert caught.value.retry_after_s == (7.0 if kind == "rate_limit" else 0.0)
    assert len(server.seen) == 1  # the router tries again, nobody else


def test_no_part_of_the_key_stays_where_a_message_is_cut() -> None:
    for before in range(330, 510, 10):  # the key is longer than a step, so that one of them is cut inside it
        with pytest.raises(ModelError) as caught:
            ask(Gemini(Refusal(401, "UNAUTHENTICATED", "." * before + KEY + "." * 1_000)))
        assert KEY[:4] not in caught.value.message
        assert len(caught.value.message) < 520


@pytest.mark.parametrize("name", ["nobody:model", "model-alone", "mistral:small"])
def test_a_provider_that_cannot_be_had_is_left_to_the_next_candidate(name: str) -> None:
    providers = {
        "other": Provider(kind="pydantic-ai", base_url="http://127.0.0.1:9"),
        "demo": Provider(kind="scripted", script="s"),
    }
    config = Models(providers=providers, tiers=Tiers(fast=(f"other:{name}", "demo:one")))

    async def main() -> tuple[str, str]:
        script = script_from({"replies": [{"text": "x"}]})
        router = Router(
            config, clock=FakeClock(), load_blob=load, load_script=lambda path: script, retry=Retry(first_wait_s=0.001)
        )
        try:
            await router.ask(f"other:{name}", HELLO, lambda delta: None)
        except ModelError as error:
            kind = error.kind
        asked = await router.ask("fast", HELLO, lambda delta: None)
        await router.close()
        return kind, asked.model

    assert asyncio.run(main()) == ("auth", "demo:one")


def test_it_is_imported_only_when_it_is_asked() -> None:
    code = "import sys, atlas.app, atlas.models.router; sys.exit('pydantic_ai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
