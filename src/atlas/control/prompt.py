"""The runtime of prompt agents: starts turns, closes them, and shows what a model saw at any past step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from atlas.control.desk import Desk
from atlas.control.history import History, bodies, load
from atlas.control.loop import Asker, PromptCode, Services, note_of
from atlas.control.payload import unpack
from atlas.control.recall import user_text
from atlas.kernel.code import (
    Answer,
    CallMade,
    Code,
    FromCode,
    Job,
)
from atlas.kernel.context import Built, Session
from atlas.kernel.digest import Done as DoneTurn
from atlas.kernel.digest import close, title_of
from atlas.kernel.errors import NotFound
from atlas.kernel.event import (
    Body,
    EffectIntended,
    EffectRefused,
    Payload,
    TurnClosed,
)
from atlas.kernel.model import Asked, OnDelta, Text, ToolCall
from atlas.kernel.port import Clock, Ledger
from atlas.kernel.run import RunQuery
from atlas.kernel.state import State
from atlas.kernel.turn import Note


class Prompts:
    """The `Executor` of prompt agents."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        asker: Asker,
        desk: Callable[[Job], Awaitable[Desk]],
        complain: Callable[[dict[str, Any], Any], str | None],
        on_delta: Callable[[str], OnDelta],
    ) -> None:
        self.ledger = ledger
        self.complain = complain
        self._services = Services(ledger, clock, asker, desk, self.session_before, complain, on_delta)
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

    async def closing(self, state: State, outcome: str) -> tuple[Body, ...]:
        """What a turn leaves to the next one of its session, from its events alone; a child leaves nothing."""
        row = await self.ledger.run(state.run_id)
        if row.turn == 0:
            return ()
        history = await load(self.ledger, state.run_id)
        before = await self.session_before(row.session_id, row.turn)
        user = user_text(await unpack(self.ledger, history.state.created.input))
        tools, failed, answer, notes = await self._what_happened(history)
        done = DoneTurn(row.turn, user, answer, tools, failed, notes, outcome)
        raw = _ENCODER.encode(close(before, done))
        return (TurnClosed(row.turn, title_of(done), Payload(msgspec.Raw(raw), size=len(raw))),)

    async def session_before(self, session_id: str, turn: int) -> Session:
        """What earlier turns leave to this one; loads one event, not a history."""
        if turn <= 1:
            return Session()
        page = await self.ledger.runs(RunQuery(session_id=session_id, roots_only=True, limit=50))
        for row in page.runs:
            if row.turn < turn:
                for _, body in bodies(await self.ledger.events(row.run_id, after=max(0, row.head_seq - 3))):
                    if isinstance(body, TurnClosed):
                        return msgspec.json.decode(await unpack(self.ledger, body.session), type=Session)
        return Session()

    async def request_at(self, job: Job, step: int) -> Built:
        """Exactly what the model was sent at a step of a recorded run, and why each part was there.

        The turn is executed again against its record, up to the point where that request was built.
        """
        history = await load(self.ledger, job.run_id)
        asked: asyncio.Queue[FromCode] = asyncio.Queue()
        code = PromptCode(self._services, job, asked.put_nowait)
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(self._answer_from(history, asked, code))
            reaching = group.create_task(code.reach(step, await self._intents(job.run_id)))
            await asyncio.wait({reaching})
            answering.cancel()
        built = reaching.result()
        if built is None:
            raise NotFound(f"run {job.run_id} has no request {step}", hint="See 'atlas show RUN --events'.")
        return built

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

    async def _what_happened(self, history: History) -> tuple[tuple[str, ...], int, str, tuple[Note, ...]]:
        tools: list[str] = []
        failed = 0
        answer = ""
        notes: dict[str, Note] = {}
        for effect, recorded in history.answers.items():
            if effect.startswith("tool:"):
                tools.append(effect.rsplit(":", 1)[-1])
                failed += recorded.error is not None
            elif effect.startswith("model:") and recorded.error is None and not isinstance(recorded, EffectRefused):
                reply = msgspec.json.decode(await unpack(self.ledger, recorded.result), type=Asked).reply
                answer = "".join(part.text for part in reply.parts if isinstance(part, Text)) or answer
                for part in reply.parts:
                    note = note_of(part) if isinstance(part, ToolCall) else None
                    if note is not None:
                        notes[f"{note.kind}:{note.key}"] = note
        return tuple(tools), failed, answer, tuple(notes.values())


_ENCODER: Final = msgspec.json.Encoder()
