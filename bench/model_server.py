"""The model of the tool loop: a server that speaks chat completions, in a process of its own that nobody is billed for.

The model's name says what it does: `lookup-20` calls the tool `lookup` in 19 replies and answers in the 20th, `read_file-5`
reads a file in 4. It goes by the last call in the request, so it serves any number of conversations at once and keeps
nothing. Prints its address when it is ready and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any, Final

ANSWER: Final = "All numbers were looked up."
BACKLOG: Final = 4096
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


async def serve() -> None:
    """Serves on loopback until standard input ends."""
    server = await asyncio.start_server(_converse, "127.0.0.1", 0, backlog=BACKLOG, limit=2**20)
    host, port = server.sockets[0].getsockname()[:2]
    os.write(1, f"http://{host}:{port}/v1\n".encode())
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def look() -> None:
        if not os.read(0, 1024):
            ended.set()

    loop.add_reader(0, look)
    await ended.wait()
    server.close()


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one request after the other on a connection."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            found = _LENGTH.search(head)
            body = await reader.readexactly(int(found[1]) if found else 0)
            for piece in _pieces(json.loads(body), len(body)):
                writer.write(piece)
            await writer.drain()
    writer.close()


def _pieces(asked: dict[str, Any], size: int) -> Iterator[bytes]:
    """The answer as it is sent; of a stream, every event is sent by itself."""
    head = {"id": "chatcmpl-1", "created": 1, "model": asked["model"]}
    message, finish = _reply(asked)
    usage = {"prompt_tokens": size // 4, "completion_tokens": 20, "total_tokens": size // 4 + 20}
    if not asked.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        data = json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
        return
    yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = {**head, "object": "chat.completion.chunk"}
    for delta in _deltas(message):
        yield _event(json.dumps({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
    yield _event(json.dumps({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield _event(json.dumps({**chunk, "choices": [], "usage": usage}))
    yield _event("[DONE]")
    yield b"0\r\n\r\n"


def _reply(asked: dict[str, Any]) -> tuple[dict[str, Any], str]:
    tool, _, steps = asked["model"].rpartition("-")
    number = _last_number(asked["messages"]) + 1
    if number >= int(steps):
        return {"role": "assistant", "content": ANSWER}, "stop"
    args = {"path": "numbers.txt", "start": number, "lines": 1} if tool == "read_file" else {"number": number}
    function = {"name": tool, "arguments": json.dumps(args)}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"


def _last_number(messages: list[dict[str, Any]]) -> int:
    """The number in the last call; fails when that call was not answered, as a real server does."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    if not calls:
        return 0
    if calls[-1]["id"] not in {message.get("tool_call_id") for message in messages}:
        raise ValueError("a tool call has no answer")
    args = json.loads(calls[-1]["function"]["arguments"])
    return int(args.get("number") or args["start"])


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if message["content"] else None}
    for word in (message["content"] or "").split(" "):
        if word:
            yield {"content": f"{word} "}
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        begun = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [begun]}
        for start in range(0, len(function["arguments"]), 8):
            piece = function["arguments"][start : start + 8]
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _event(data: str) -> bytes:
    body = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


if __name__ == "__main__":
    asyncio.run(serve())
