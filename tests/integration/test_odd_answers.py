"""Answers over a real socket that are cut, late or malformed in ways that no provider intends."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from contextvars import ContextVar

import pytest

from atlas.kernel.model import Delta, Message, ModelError, Part, Request, Text, Usage
from atlas.models.http import Http
from atlas.models.openai import OpenAIModel
from atlas.testing.clock import FakeClock

REQUEST = Request("m", (), (Message("user", (Text("hi"),)),))
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SAID = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"
ASKER: ContextVar[str] = ContextVar("asker", default="nobody")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def no_blobs(digest: str) -> bytes:
    raise AssertionError(digest)


class Odd:
    """A server that answers every request with these pieces, each sent by itself; it may close the connection then."""

    def __init__(self, *pieces: bytes, closes: bool = False, pause_s: float = 0.02) -> None:
        self._pieces = pieces
        self._closes = closes
        self._pause_s = pause_s
        self.usage = Usage()
        self.heard: list[str] = []
        self.contexts: list[str] = []
        self._open = 0
        self._closed = asyncio.Condition()

    async def ask(self, *, times: int = 1) -> tuple[Part, ...]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        http = Http()
        model = OpenAIModel(http, FakeClock(), no_blobs, base_url=f"http://127.0.0.1:{port}/v1", key="sk-123456")

        def on_delta(delta: Delta) -> None:
            self.heard.append(getattr(delta, "text", ""))
            self.contexts.append(ASKER.get())

        async def one(name: str) -> tuple[Part, ...]:
            ASKER.set(name)
            reply = await model.ask(REQUEST, on_delta)
            self.usage = reply.usage
            return reply.parts

        try:
            parts: tuple[Part, ...] = ()
            for number in range(times):
                parts = await asyncio.create_task(one(f"asker {number}"))
            return parts
        finally:
            await http.close()
            server.close()
            async with self._closed:
                await self._closed.wait_for(lambda: not self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                for piece in self._pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(self._pause_s)
                if self._closes:
                    writer.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        async with self._closed:
            self._open -= 1
            self._closed.notify_all()


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(b'data: {"choices":[{"index":0,"delta":{"content":" LATE"}}]}\n\n', id="words"),
        pytest.param(b"data:\n\n", id="nothing"),
    ],
)
def test_what_follows_the_end_is_no_part_of_the_answer_however_it_is_cut(late: bytes) -> None:
    for pieces in (
        (STREAM + chunk(SAID) + chunk(DONE) + chunk(late) + END,),
        (STREAM + chunk(SAID) + chunk(DONE), chunk(late) + END),
        (STREAM + chunk(SAID + DONE + late), END),
    ):
        odd = Odd(*pieces)
        assert asyncio.run(odd.ask()) == (Text("hi"),)
        assert odd.heard == ["hi"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            STREAM + chunk(b'data: {"choices":[],"usage":' + b"[" * 20_000 + b"\n\n") + END,
            id="an event nested without end",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20012\r\n\r\n"
            b'{"choices": ' + b"[" * 20_000,
            id="an answer nested without end",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n{}",
            id="a length of five thousand digits",
        ),
    ],
)
def test_nonsense_is_the_providers_fault_and_no_bug(answer: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        asyncio.run(Odd(answer).ask())
    assert caught.value.kind in ("server", "connection")


FINISHED = (
    b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
)


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(STREAM + chunk(FINISHED), id="without its end"),
        pytest.param(STREAM + chunk(FINISHED) + b"zz\r\n", id="with a broken end"),
        pytest.param(STREAM + chunk(FINISHED) + b"6\r\ndata:", id="with half an end"),
        pytest.param(STREAM.replace(b"Transfer-Encoding: chunked", b"X: y") + FINISHED, id="until it is closed"),
    ],
)
def test_a_stream_that_said_all_is_a_whole_answer_however_it_ends(answer: bytes, is_closed: bool) -> None:
    odd = Odd(answer, closes=is_closed)
    began_s = time.monotonic()
    assert asyncio.run(odd.ask(times=2)) == (Text("hi"),)
    assert time.monotonic() - began_s < 20
    assert odd.usage == Usage(3, 1)


def test_what_comes_late_behind_the_last_word_is_waited_for_as_long_as_something_comes() -> None:
    said, used = FINISHED.split(b"\n\n")[:2]
    more = [chunk(b'data: {"choices":[{"index":0,"delta":{"content":" %d"}}]}\n\n' % number) for number in range(8)]
    odd = Odd(STREAM + chunk(said + b"\n\n"), *more, chunk(used + b"\n\n"), pause_s=0.2)
    assert asyncio.run(odd.ask()) == (Text("hi 0 1 2 3 4 5 6 7"),)
    assert odd.usage == Usage(3, 1)


REFUSED = b"HTTP/1.1 429 No\r\nContent-Type: application/json\r\nRetry-After: 7\r\n"


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "without an end"])
@pytest.mark.parametrize(
    "head, body, said",
    [
        (b"Content-Length: 500\r\n\r\n", b'{"error": {"message": "no, sk-12345', '"no,'),
        (b"\r\n", b'{"error": {"message": "slow, sk-123456"}}', "answered 429: slow, ***"),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"", "without a reason"),
        (b"Content-Length: 500000\r\n\r\n", b"x" * 70_000, "xxx"),
    ],
    ids=["half", "all", "nonsense", "much"],
)
def test_a_refusal_is_what_its_status_says_whatever_becomes_of_its_body(
    head: bytes, body: bytes, said: str, is_cut: bool
) -> None:
    odd = Odd(REFUSED + head + body, closes=is_cut)
    began_s = time.monotonic()
    with pytest.raises(ModelError, match=re.escape(said)) as caught:
        asyncio.run(odd.ask())
    error = caught.value
    assert (error.kind, error.retry_after_s, error.usage) == ("rate_limit", 7.0, None)
    assert "sk-" not in error.message
    assert time.monotonic() - began_s < 20


def test_a_listener_is_called_in_the_context_of_whoever_asks() -> None:
    odd = Odd(STREAM + chunk(SAID) + chunk(DONE) + END)
    asyncio.run(odd.ask(times=2))
    assert odd.contexts == ["asker 0", "asker 1"]
