"""A driver in thirty lines: lets steps be performed, records what comes back, answers from the record ever after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from atlas.engine.agent import AgentContext
from atlas.kernel.code import (
    Answer,
    CallMade,
    Code,
    Executor,
    Finished,
    FromCode,
    Job,
    Perform,
    Performed,
    Printed,
    Probe,
    Probed,
    ToCode,
    ValueTaken,
)
from atlas.kernel.errors import ErrorRecord


def make_job(input: Any = None, **changes: Any) -> Job:
    """A job with sensible values."""
    job = Job(
        run_id="run_1",
        root_run_id="run_0",
        parent_run_id="run_0",
        session_id="ses_1",
        principal="owner",
        agent="demo",
        version="1.0.0",
        attempt=1,
        folder="",
        snapshot="s1",
        input=msgspec.Raw(msgspec.json.encode({} if input is None else input)),
        seed="seed",
        values={},
        deadline_us=(time.time_ns() // 1000) + 60_000_000,
        tokens_left=1000,
        may_spawn=True,
    )
    return msgspec.structs.replace(job, **changes)


class FakeDriver:
    """Drives one run; running it again replays it. `spawned` plays the child agents, `doubted` effects are probed."""

    def __init__(self, executor: Executor, *, spawned: Callable[[str, Any], Any] | None = None) -> None:
        self.executor = executor
        self.spawned = spawned
        self.doubted: set[str] = set()
        self.refused: dict[str, ErrorRecord] = {}
        self.held: set[str] = set()
        self.record: dict[str, Answer] = {}
        self.values: dict[str, list[int]] = {}
        self.messages: list[FromCode] = []
        self.calls: dict[int, CallMade] = {}
        self.code: Code
        self.finished: asyncio.Future[Finished]
        self._heard = asyncio.Event()

    async def start(self, job: Job) -> Code:
        """Begins an attempt; what was said in earlier ones is forgotten, what was recorded is not."""
        self.messages, self.calls = [], {}
        self.finished = asyncio.get_running_loop().create_future()
        self.code = await self.executor.start(msgspec.structs.replace(job, values=self.values), self.receive)
        return self.code

    async def run(self, job: Job, timeout_s: float = 30.0) -> Finished:
        """One attempt from its beginning to its end."""
        await self.start(job)
        async with asyncio.timeout(timeout_s):
            return await self.finished

    async def output(self, job: Job) -> Any:
        """The output of an attempt that must succeed."""
        finished = await self.run(job)
        assert finished.error is None, finished.error
        return msgspec.json.decode(finished.output)

    async def error(self, job: Job) -> ErrorRecord:
        """The error of an attempt that must fail."""
        finished = await self.run(job)
        assert finished.error is not None, bytes(finished.output)
        return finished.error

    async def heard(self, wanted: Callable[[FromCode], bool], timeout_s: float = 20.0) -> FromCode:
        """The first message that is wanted, as soon as it has come."""
        async with asyncio.timeout(timeout_s):
            while True:
                found = [message for message in self.messages if wanted(message)]
                if found:
                    return found[0]
                self._heard.clear()
                await self._heard.wait()

    def of(self, *kinds: type) -> list[Any]:
        """What was said of these kinds, in order."""
        return [message for message in self.messages if isinstance(message, kinds)]

    def text(self, stream: str = "stdout") -> str:
        """What was printed."""
        return "".join(message.text for message in self.of(Printed) if message.stream == stream)

    def send(self, message: ToCode) -> None:
        """On the next turn of the loop, as a real driver's answer would come."""
        asyncio.get_running_loop().call_soon(self.code.send, message)

    def receive(self, message: FromCode) -> None:
        """Everything the code says."""
        self.messages.append(message)
        self._heard.set()
        match message:
            case CallMade():
                self.calls[message.id] = message
                if message.name not in self.held:
                    self.send(self._reply(message))
            case Performed():
                self.record[self.calls[message.id].effect] = Answer(0, message.result, message.error)
            case Probed(found="done"):
                self.record[self.calls[message.id].effect] = Answer(0, message.result)
                self.send(Answer(message.id, message.result))
            case Probed(found="not_done"):
                self.send(Perform(message.id, self.key(message.id)))
            case Probed():
                self.send(Answer(message.id, error=ErrorRecord("in_doubt", message.message)))
            case ValueTaken():
                self.values.setdefault(message.name, []).append(message.value)
            case Finished():
                self.finished.set_result(message)

    def key(self, call_id: int) -> str:
        """The effect key of a call."""
        return f"key of {self.calls[call_id].effect}"

    def _reply(self, call: CallMade) -> ToCode:
        known = self.record.get(call.effect)
        if known is not None:
            return Answer(call.id, known.result, known.error)
        if call.name in self.refused:
            return Answer(call.id, error=self.refused[call.name])
        if call.kind == "spawn":
            return self._child(call)
        if call.effect in self.doubted:
            return Probe(call.id, self.key(call.id))
        return Perform(call.id, self.key(call.id))

    def _child(self, call: CallMade) -> Answer:
        assert self.spawned is not None
        args = msgspec.json.decode(call.args)
        result = self.spawned(args["agent"], args["input"])
        if isinstance(result, ErrorRecord):
            answer = Answer(call.id, error=result)
        else:
            answer = Answer(call.id, msgspec.Raw(msgspec.json.encode(result)))
        self.record[call.effect] = answer
        return answer


Body = Callable[[AgentContext], Awaitable[Any]]
Open = Callable[..., AbstractAsyncContextManager[FakeDriver]]
