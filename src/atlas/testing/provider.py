"""A model provider on this machine that speaks both wires, for tests: real HTTP, real streams, and real misbehaviour.

    POST .../chat/completions | .../messages     the next act of the plan answers
    PUT /plan    acts, and whether they are taken in order or by the assistant messages in the request
    GET /seen    every request's exact bytes and what it was billed          DELETE /seen   forgets them

It refuses what the real servers refuse (unanswered tool calls, empty blocks, too many cache marks), so a client that
passes here has not merely been humoured. Run it with `python -m atlas.testing.provider`; it ends with its input.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from atlas.testing.provider_wire import Act, Billed, Wire, bill, mistakes, render

if TYPE_CHECKING:
    from aiohttp import web


class Plan(msgspec.Struct, frozen=True):
    """The answers to give; the last one repeats."""

    acts: tuple[Act, ...] = (Act(text="ok"),)
    by: Literal["order", "turn"] = "order"


class Seen(msgspec.Struct, frozen=True):
    """One request as it arrived, and how its answer ended."""

    wire: Wire
    path: str
    headers: dict[str, str]
    body: bytes
    billed: Billed | None
    is_whole: bool


class Record(msgspec.Struct, frozen=True):
    """What the provider has seen; `most_open` is the largest number of calls it was answering at once."""

    seen: tuple[Seen, ...]
    open: int
    most_open: int
    connections: int


class ProviderServer:
    """The provider itself; `url` is its address once it has started."""

    def __init__(self) -> None:
        self.url = ""
        self._plan = Plan()
        self._taken = 0
        self._seen: list[Seen] = []
        self._open = 0
        self._most_open = 0
        self._connections: set[object] = set()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        from aiohttp import web

        app = web.Application(client_max_size=2**30)
        app.router.add_put("/plan", self._take_plan)
        app.router.add_get("/seen", self._show)
        app.router.add_delete("/seen", self._forget)
        app.router.add_post("/{prefix:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def plan(self, *acts: Act, by: Literal["order", "turn"] = "order") -> None:
        """Answers with these from now on."""
        self._plan = Plan(acts, by)
        self._taken = 0

    def record(self) -> Record:
        """What has been seen so far."""
        return Record(tuple(self._seen), self._open, self._most_open, len(self._connections))

    async def _take_plan(self, request: web.Request) -> web.Response:
        plan = msgspec.json.decode(await request.read(), type=Plan)
        self.plan(*plan.acts, by=plan.by)
        return _reply(204, b"")

    async def _show(self, request: web.Request) -> web.Response:
        return _reply(200, msgspec.json.encode(self.record()))

    async def _forget(self, request: web.Request) -> web.Response:
        self._seen.clear()
        self._connections.clear()
        self._most_open = self._open
        return _reply(204, b"")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self._connections.add(request.transport)
        wire: Wire = "anthropic" if request.path.endswith("/messages") else "openai"
        body = await request.read()
        asked: dict[str, Any] = msgspec.json.decode(body)
        headers = dict(request.headers)
        act = self._next(asked)
        if wrong := mistakes(wire, asked, {name.lower(): value for name, value in headers.items()}):
            act = Act(status=400, body=_complaint(wrong), content_type="application/json")
        billed = bill(act, len(body)) if act.status == 200 else None
        self._open += 1
        self._most_open = max(self._most_open, self._open)
        is_whole = False
        try:
            response = await _perform(request, wire, act, asked, billed)
            is_whole = act.cut_at < 0
            return response
        finally:
            self._open -= 1
            self._seen.append(Seen(wire, request.path, headers, body, billed, is_whole))

    def _next(self, asked: dict[str, Any]) -> Act:
        acts = self._plan.acts
        if self._plan.by == "turn":
            turns = [message for message in asked["messages"] if message["role"] == "assistant"]
            return acts[min(len(turns), len(acts) - 1)]
        self._taken += 1
        return acts[min(self._taken, len(acts)) - 1]


async def _perform(
    request: web.Request, wire: Wire, act: Act, asked: dict[str, Any], billed: Billed | None
) -> web.StreamResponse:
    from aiohttp import web

    stream = bool(asked.get("stream"))
    data = render(wire, act, asked["model"], billed or Billed(0, 0, 0, 0), stream)
    kind = act.content_type or ("text/event-stream" if stream else "application/json")
    await asyncio.sleep(act.before_s)
    response = web.StreamResponse(status=act.status, headers={"Content-Type": kind, **act.headers})
    await response.prepare(request)
    size = act.split or max(1, len(data))
    end = len(data) if act.cut_at < 0 else act.cut_at
    cuts = sorted({*range(0, end, size), min(act.pause_at, end), end})
    for start, stop in itertools.pairwise(cuts):
        if act.pause_s and start == act.pause_at:
            await asyncio.sleep(act.pause_s)
        await response.write(data[start:stop])
        if act.split:
            await asyncio.sleep(0)
    if act.pause_s and act.pause_at >= end:
        await asyncio.sleep(act.pause_s)
    if act.cut_at >= 0 and request.transport is not None:
        request.transport.abort()
        return response
    if act.hang:
        await asyncio.sleep(3600)
    await response.write_eof()
    return response


def _reply(status: int, data: bytes) -> web.Response:
    from aiohttp import web

    return web.Response(status=status, body=data, content_type="application/json")


def _complaint(message: str) -> str:
    error = {"type": "invalid_request_error", "message": message}
    return msgspec.json.encode({"type": "error", "error": error}).decode()


class ProviderProcess:
    """The provider in a process of its own; ends with the block."""

    def __init__(self) -> None:
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "atlas.testing.provider"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        if not self.url:
            raise RuntimeError("the test provider did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.wait(timeout=10)
            process.stdout.close()

    def plan(self, *acts: Act, by: Literal["order", "turn"] = "order") -> None:
        """Answers with these from now on, and forgets what it has seen."""
        self._call("DELETE", "/seen")
        self._call("PUT", "/plan", msgspec.json.encode(Plan(acts, by)))

    def record(self) -> Record:
        """What has been seen since the plan was made."""
        return msgspec.json.decode(self._call("GET", "/seen"), type=Record)

    def bodies(self) -> Sequence[dict[str, Any]]:
        """The requests as JSON."""
        return [msgspec.json.decode(seen.body) for seen in self.record().seen]

    def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        from http.client import HTTPConnection

        connection = HTTPConnection(self.url.removeprefix("http://"), timeout=10)
        try:
            connection.request(method, path, body)
            return connection.getresponse().read()
        finally:
            connection.close()


async def serve() -> None:
    """Serves until standard input ends; the first line of standard output is the address."""
    async with ProviderServer() as server:
        os.write(1, f"{server.url}\n".encode())
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def look() -> None:
            if not os.read(0, 1024):
                ended.set()

        loop.add_reader(0, look)
        await ended.wait()
        loop.remove_reader(0)


if __name__ == "__main__":
    asyncio.run(serve())
