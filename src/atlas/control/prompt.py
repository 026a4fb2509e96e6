"""Prompt agents: Markdown and a contract, executed by the kernel's turn against a model and tools.

    execute    begin -> (plan -> ask the model | run its tools)* -> answer

The loop is code like an agent's own: every model call and every tool call is an effect of the run, so intents, receipts,
policy, approvals, cancelling, recovery and replay are the driver's, unchanged. A turn that is executed again is
answered from the record and rebuilds no request; a model call that was lost is asked again with the recorded one.
"""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

import msgspec

from atlas.control.history import History, bodies, load
from atlas.control.payload import unpack
from atlas.control.recall import Recall, user_text
from atlas.control.world import Effected
from atlas.kernel.code import (
    Answer,
    CallMade,
    Cancel,
    Code,
    Finished,
    FromCode,
    Job,
    Perform,
    Performed,
    Probe,
    Probed,
    ToCode,
)
from atlas.kernel.context import Built, Limits, Live, Session, build, fenced, message_tokens, shorten
from atlas.kernel.contract import Contract
from atlas.kernel.digest import Done as DoneTurn
from atlas.kernel.digest import close, title_of
from atlas.kernel.errors import AtlasError, Cancelled, ErrorRecord, Fault, NotFound, RunFailed, from_record
from atlas.kernel.event import (
    NO_SPEND,
    Body,
    EffectClass,
    EffectIntended,
    EffectKind,
    EffectRefused,
    Payload,
    Process,
    Spend,
    TurnClosed,
)
from atlas.kernel.model import Asked, Attempt, ModelError, OnDelta, Request, Text, ToolCall, ToolResult, ToolSpec
from atlas.kernel.port import Clock, Ledger
from atlas.kernel.run import RunQuery
from atlas.kernel.state import State
from atlas.kernel.turn import Ask, Finish, Note, RunTools, Turn, advised, answered, noted, plan, received, windowed

RECALL_LIMIT: Final = 1_000
MAX_REPAIRS: Final = 2
_ENCODER: Final = msgspec.json.Encoder()


class Asker(Protocol):
    """Asks models by tier or name."""

    async def ask(self, choice: str, request: Request, on_delta: OnDelta) -> Asked:
        """The reply of the first candidate that gives one; ModelError when none does."""
        ...


class Outcome(msgspec.Struct, frozen=True):
    """What a tool call came to."""

    text: str
    is_error: bool = False


class Tool(msgspec.Struct, frozen=True):
    """A tool as the loop needs it."""

    spec: ToolSpec
    effect_class: EffectClass
    perform: Callable[[bytes, str], Awaitable[Outcome]]
    idempotent: bool = False


class Desk(msgspec.Struct, frozen=True):
    """An agent's contract, persona and tools for one turn."""

    contract: Contract
    system: tuple[str, ...]
    tools: Mapping[str, Tool]


class Prompts:
    """The `Executor` of prompt agents."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        asker: Asker,
        recall: Recall,
        desk: Callable[[Job], Awaitable[Desk]],
        check: Callable[[Tool, str], str],
        complain: Callable[[dict[str, Any], Any], str | None],
        on_delta: Callable[[str], OnDelta],
    ) -> None:
        self.ledger = ledger
        self.clock = clock
        self.asker = asker
        self.recall = recall
        self.desk = desk
        self.check = check
        self.complain = complain
        self.on_delta = on_delta
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
        code = PromptCode(self, job, receive)
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
        code = PromptCode(self, job, asked.put_nowait)
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


class PromptCode:
    """One turn under way: the `Code` its driver holds."""

    task: asyncio.Task[None]

    def __init__(self, prompts: Prompts, job: Job, receive: Callable[[FromCode], None]) -> None:
        self._prompts = prompts
        self._job = job
        self._receive = receive
        self._waiting: dict[int, asyncio.Future[ToCode]] = {}
        self._last_id = 0
        self._cancelled: Cancel | None = None
        self._is_stopped = False
        self._limits = Limits()
        self._history: History
        self._desk: Desk
        self._session = Session()
        self._live_blob = ("", "")
        self._repairs = 0
        self._wanted = 0
        self._intents: Mapping[str, EffectIntended] = {}

    @property
    def process(self) -> Process | None:
        """None: a turn runs inside the driver's own process; its tools do not."""
        return None

    def send(self, message: ToCode) -> None:
        """Delivers at once."""
        if isinstance(message, Cancel):
            self._cancelled = message
            self.task.cancel()
            return
        waiting = self._waiting.pop(message.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    async def stop(self) -> None:
        """Ends the turn now; a reply that was on its way is not recorded."""
        self._is_stopped = True
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})

    async def reach(self, step: int, intents: Mapping[str, EffectIntended]) -> Built | None:
        """The request of a step as it was built, when the turn comes that far."""
        self._wanted, self._intents = step, intents
        if f"model:{step}" not in intents:
            return None
        try:
            await self._execute()
        except _Reached as reached:
            return reached.built
        return None

    async def run(self) -> None:
        """Executes the turn and says how it ended."""
        try:
            finished = await self._execute()
        except AtlasError as error:
            finished = Finished(error=error.record())
        except asyncio.CancelledError:
            if self._is_stopped or self._cancelled is None:
                raise
            finished = Finished(error=Cancelled(self._cancelled.reason or "the run was cancelled").record())
        except Exception as error:  # noqa: BLE001 - a turn is code like an agent's: its bugs end its run and no other
            finished = Finished(error=_bug(error))
        if not self._is_stopped:
            self._receive(finished)

    async def _execute(self) -> Finished:
        turn = await self._begin()
        while True:
            match plan(turn):
                case Ask(step=step):
                    turn = await self._ask(turn, step)
                case RunTools(step=step, calls=calls):
                    turn = await self._run_tools(turn, step, calls)
                case Finish(text=text, error=None):
                    complaint = self._complaint(text)
                    if complaint is None or self._repairs == MAX_REPAIRS:
                        return self._finished(text, complaint)
                    self._repairs += 1
                    turn = advised(
                        turn, f"Your answer does not fit: {complaint}. Answer again with nothing but the JSON."
                    )
                case Finish(error=error):
                    return Finished(error=error)

    def _complaint(self, text: str) -> str | None:
        """What is wrong with an answer that has to be JSON of a certain shape."""
        schema = self._desk.contract.output.schema
        if not schema:
            return None
        try:
            value = msgspec.json.decode(bare_json(text))
        except msgspec.DecodeError as error:
            return f"it is not JSON ({error})"
        return self._prompts.complain(schema, value)

    def _finished(self, text: str, complaint: str | None) -> Finished:
        if complaint is not None:
            error = RunFailed(f"the model's answer breaks output.schema: {complaint}", code="output_invalid")
            return Finished(error=error.record())
        if self._desk.contract.output.schema:
            return Finished(msgspec.Raw(bare_json(text)))
        return Finished(msgspec.Raw(_ENCODER.encode({"text": text})))

    async def _begin(self) -> Turn:
        prompts, job = self._prompts, self._job
        self._history = await load(prompts.ledger, job.run_id)
        self._desk = await prompts.desk(job)
        row = await prompts.ledger.run(job.run_id)
        self._session = await prompts.session_before(job.session_id, row.turn)
        limit = self._desk.contract.context.max_tokens
        if limit:
            self._limits = _scaled(limit)
        return Turn(row.turn, user_text(job.input))

    # Asking

    async def _ask(self, turn: Turn, step: int) -> Turn:
        effect = f"model:{step}"
        turn = windowed(turn, self._limits.window)
        if step == self._wanted:
            raise _Reached(build(turn, await self._live(effect), self._limits))
        if effect in self._history.answers:
            raw = await self._call(effect, "model", "", b"null", "read_only", _never)
        else:
            live = await self._live(effect)
            built = build(turn, live, self._limits)
            request = _ENCODER.encode(built.request)
            args = _ENCODER.encode(
                {
                    "step": step,
                    "live": await self._keep_live(live),
                    "request": hashlib.sha256(request).hexdigest(),
                    "tokens": built.tokens,
                    "blocks": [[one.block, one.grade, one.tokens] for one in built.choices],
                }
            )
            self._check_rebuilt(effect, args)
            raw = await self._call(
                effect, "model", live.model, args, "read_only", lambda _: self._perform_ask(built.request)
            )
        reply = msgspec.json.decode(raw, type=Asked).reply
        return answered(turn, reply, message_tokens(reply.parts, _RATE))

    async def _live(self, effect: str) -> Live:
        """The live inputs of a request: recorded ones when it was sent before, else as they are now."""
        sent = self._history.state.open.get(effect) or self._intents.get(effect)
        if sent is not None:
            recorded = msgspec.json.decode(await unpack(self._prompts.ledger, sent.args))
            return msgspec.json.decode(await self._prompts.ledger.get_blob(recorded["live"]), type=Live)
        desk = self._desk
        schema = desk.contract.output.schema
        return Live(
            model=desk.contract.model.preference,
            system=desk.system,
            tools=tuple(tool.spec for tool in desk.tools.values()),
            session=self._session,
            bytes_per_token=_RATE,
            output_schema=msgspec.Raw(_ENCODER.encode(schema)) if schema else None,
        )

    async def _keep_live(self, live: Live) -> str:
        """Records the live inputs; the same ones are written once."""
        raw = _ENCODER.encode(live)
        digest = hashlib.sha256(raw).hexdigest()
        if self._live_blob[0] != digest:
            self._live_blob = (digest, await self._prompts.ledger.put_blob(raw))
        return self._live_blob[1]

    def _check_rebuilt(self, effect: str, args: bytes) -> None:
        lost = self._history.state.open.get(effect)
        if lost is not None and lost.args_hash != hashlib.sha256(args).hexdigest():
            raise Fault(
                f"the request of {effect} cannot be built again as it was sent",
                hint="It was built by another version of Atlas; fork the run to go on from before it.",
                code="request_not_reproducible",
            )

    async def _perform_ask(self, request: Request) -> Effected:
        asked = await self._prompts.asker.ask(request.model, request, self._prompts.on_delta(self._job.run_id))
        label = f"{asked.model} (scripted)" if asked.reply.is_scripted else asked.model
        return Effected(_ENCODER.encode(asked), spend_of(asked.attempts), label)

    # Tools

    async def _run_tools(self, turn: Turn, step: int, calls: tuple[ToolCall, ...]) -> Turn:
        results: list[ToolResult] = []
        for number, call in enumerate(calls, start=1):
            note = note_of(call)
            if note is not None:
                turn = noted(turn, note)
            text, is_error = ("noted", False) if note is not None else await self._run_tool(step, number, call)
            handle = f"t{turn.number}.{step}.{number}"
            shown = shorten(text, handle, self._limits.result, _RATE)
            results.append(fenced(ToolResult(call.id, shown, is_error), handle))
        spoken = message_tokens((*turn.spoken, *results), _RATE)
        return received(turn, tuple(results), spoken)

    async def _run_tool(self, step: int, number: int, call: ToolCall) -> tuple[str, bool]:
        tool = self._desk.tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(self._desk.tools))
            return f"There is no tool {call.name!r}. There are: {known}.", True
        complaint = self._prompts.check(tool, call.args)
        if complaint:
            return complaint, True
        args = call.args.encode() or b"{}"
        effect = f"tool:{step}.{number}:{call.name}"

        async def perform(key: str) -> Effected:
            outcome = await tool.perform(args, key)
            return Effected(_ENCODER.encode(outcome))

        try:
            raw = await self._call(effect, "tool", call.name, args, tool.effect_class, perform, tool.idempotent)
        except AtlasError as error:
            return f"{error.message}" + (f" ({error.hint})" if error.hint else ""), True
        outcome = msgspec.json.decode(raw, type=Outcome)
        return outcome.text, outcome.is_error

    # Effects

    async def _call(
        self,
        effect: str,
        kind: EffectKind,
        name: str,
        args: bytes,
        effect_class: EffectClass,
        perform: Callable[[str], Awaitable[Effected]],
        idempotent: bool = False,
    ) -> bytes:
        """The outcome of an effect: from the record, or performed once its intent is durable."""
        self._last_id += 1
        number = self._last_id
        waiting: asyncio.Future[ToCode] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        args_hash = hashlib.sha256(args).hexdigest()
        self._receive(CallMade(number, effect, kind, name, msgspec.Raw(args), args_hash, effect_class, idempotent))
        match await waiting:
            case Answer(result=result, error=None):
                return bytes(result)
            case Answer(error=ErrorRecord() as error):
                raise from_record(error)
            case Perform(effect_key=key):
                return await self._perform(number, key, perform)
            case Probe():
                self._receive(Probed(number, "unknown", message="tools of a prompt agent cannot be probed yet"))
                raise Cancelled("the effect is in doubt")
        raise Fault(f"nothing was said about {effect}", code="no_answer")

    async def _perform(self, number: int, key: str, perform: Callable[[str], Awaitable[Effected]]) -> bytes:
        began_us = self._prompts.clock.now_us()
        try:
            done = await perform(key)
        except AtlasError as error:
            spent = spend_of(error.attempts) if isinstance(error, ModelError) else NO_SPEND
            took_us = self._since(began_us)
            self._receive(Performed(number, error=error.record(), duration_us=took_us, spend=spent))
            raise
        took_us = self._since(began_us)
        result = msgspec.Raw(done.result)
        self._receive(Performed(number, result, duration_us=took_us, spend=done.spend, model=done.model))
        return done.result

    def _since(self, began_us: int) -> int:
        return self._prompts.clock.now_us() - began_us


class _Reached(Exception):
    """The turn came to the request that was looked for."""

    def __init__(self, built: Built) -> None:
        super().__init__()
        self.built = built


def spend_of(attempts: tuple[Attempt, ...]) -> Spend:
    """What all tries used together, failed ones included."""
    return Spend(
        tokens_in=sum(one.usage.tokens_in for one in attempts),
        tokens_out=sum(one.usage.tokens_out for one in attempts),
        cost_micro_usd=sum(one.cost_micro_usd for one in attempts),
    )


def note_of(call: ToolCall) -> Note | None:
    """The note that a call takes, when it is one and is well-formed."""
    if call.name != "note":
        return None
    try:
        value: Any = msgspec.json.decode(call.args)
        status = value.pop("status", "open")
        return msgspec.convert({**value, "is_open": status != "done"}, Note)
    except (msgspec.MsgspecError, AttributeError, TypeError):
        return None


def _bug(error: Exception) -> ErrorRecord:
    detail = "".join(traceback.format_exception(error)[-8:])
    hint = "This is a bug in Atlas; please report it."
    return Fault(f"{type(error).__name__}: {error}", hint=hint, detail=detail).record()


def bare_json(text: str) -> bytes:
    """The answer without the fence that models like to put around JSON."""
    bare = text.strip()
    if bare.startswith("```"):
        bare = bare.partition("\n")[2].rpartition("```")[0]
    return bare.encode()


async def _never(key: str) -> Effected:
    raise Fault("a recorded model call was about to be asked again", code="asked_twice")


def _scaled(total: int) -> Limits:
    """The parts of a request in the proportions of the default ones."""
    share = total / Limits().total
    usual = Limits()
    return Limits(
        total, *(int(part * share) for part in (usual.window, usual.result, usual.user, usual.tail, usual.session))
    )


_RATE: Final = 3.6
