"""The runtime of prompt agents: starts turns, closes them, and shows what a model saw at any past step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from atlas.control.account import done_of, session_before
from atlas.control.desk import Desk
from atlas.control.generate import Generator, need_of
from atlas.control.history import History, bodies, load
from atlas.control.hookset import HookSet
from atlas.control.loop import PromptCode
from atlas.control.payload import pack, unpack
from atlas.control.service import Asker, Services
from atlas.kernel.code import (
    Answer,
    CallMade,
    Code,
    FromCode,
    Job,
)
from atlas.kernel.context import Built
from atlas.kernel.contract import Context, Contract
from atlas.kernel.digest import close, title_of
from atlas.kernel.errors import AtlasError, NotFound
from atlas.kernel.event import (
    Body,
    EffectIntended,
    EffectRefused,
    RunCreated,
    TurnClosed,
)
from atlas.kernel.model import OnDelta, ToolCall, ToolResult
from atlas.kernel.port import Clock, Ledger
from atlas.kernel.state import State
from atlas.kernel.token import limits_of


class Prompts:
    """The `Executor` of prompt agents."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        asker: Asker,
        desk: Callable[[Job], Awaitable[Desk]],
        contract_of: Callable[[RunCreated], Awaitable[Contract]],
        complain: Callable[[dict[str, Any], Any], str | None],
        on_delta: Callable[[str], OnDelta],
        window: Callable[[str], Awaitable[int]],
        hooks: HookSet,
    ) -> None:
        self.ledger = ledger
        self.complain = complain
        self._contract_of = contract_of
        generate = Generator(asker, complain).generate
        self._services = Services(ledger, clock, asker, desk, complain, on_delta, generate, need_of, window, hooks)
        self._group = asyncio.TaskGroup()
        self._running: set[PromptCode] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()
        await self._group.__aexit__(None, None, None)

    async def start(self, job: Job, receive: Callable[[FromCode], None]) -> Code:
        """Begins the turn as a task."""
        code = PromptCode(self._services, job, receive)
        self._running.add(code)
        code.task = self._group.create_task(code.run(), name=job.run_id)
        code.task.add_done_callback(lambda _: self._running.discard(code))
        return code

    async def drain(self) -> None:
        """Stops every turn."""
        for code in list(self._running):
            await code.stop()

    async def closing(self, state: State, history: History, outcome: str) -> tuple[Body, ...]:
        """What a turn leaves to the next one of its session, from its record alone; a child leaves nothing."""
        row = await self.ledger.run(state.run_id)
        if row.turn == 0:
            return ()
        before = await session_before(self.ledger, row.session_id, row.turn)
        done = await done_of(self.ledger, row.turn, history, outcome)
        exchanges = limits_of(await self._context_of(state.created)).exchanges
        raw = _ENCODER.encode(close(before, done, exchanges))
        return (TurnClosed(row.turn, title_of(done), await pack(self.ledger, raw)),)

    async def _context_of(self, created: RunCreated) -> Context:
        """What the run's contract says of context; nothing when it is gone, because a run must be able to end."""
        try:
            return (await self._contract_of(created)).context
        except AtlasError:
            return Context()

    async def request_at(self, job: Job, step: int) -> Built:
        """Exactly what the model was sent at a step of a recorded run, and why each part was there.

        The turn is executed again against its record, up to the point where that request was built.
        """
        history = await load(self.ledger, job.run_id)
        asked: asyncio.Queue[FromCode] = asyncio.Queue()
        code = PromptCode(self._services, job, asked.put_nowait)
        intents = await self._intents(job.run_id)
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(self._answer_from(history, asked, code))
            reaching = group.create_task(code.reach(step, intents))
            await asyncio.wait({reaching})
            answering.cancel()
        built = reaching.result()
        if built is None:
            steps = [int(name.split(":")[1]) for name in intents if name.startswith("model:")]
            hint = f"Its requests are {min(steps)} to {max(steps)}." if steps else "It never asked its model."
            raise NotFound(f"run {job.run_id} has no request {step}", hint=hint)
        return built

    async def check_args(self, job: Job, name: str, args: bytes) -> str | None:
        """What is wrong with arguments for a tool of the agent; None when they fit."""
        desk = await self._services.desk(job)
        found = desk.check(ToolCall("edited", name, args.decode()))
        return found.text if isinstance(found, ToolResult) else None

    async def _intents(self, run_id: str) -> dict[str, EffectIntended]:
        events = await self.ledger.events(run_id)
        return {body.effect: body for _, body in bodies(events) if isinstance(body, EffectIntended)}

    async def _answer_from(self, history: History, asked: asyncio.Queue[FromCode], code: PromptCode) -> None:
        while True:
            message = await asked.get()
            if isinstance(message, CallMade):
                recorded = history.answers[message.effect]
                if isinstance(recorded, EffectRefused):
                    code.send(Answer(message.id, error=recorded.error))
                else:
                    code.send(Answer(message.id, await unpack(self.ledger, recorded.result), recorded.error))


_ENCODER: Final = msgspec.json.Encoder()
