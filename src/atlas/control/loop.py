"""The loop of a prompt agent: one turn, from what was said to the answer.

    execute    begin -> (plan -> ask the model | run its tools)* -> answer

The loop is code like an agent's own: every model call and every tool call is an effect of the run, so intents, receipts,
policy, approvals, cancelling, recovery and replay are the driver's, unchanged. A turn that is executed again is
answered from the record and rebuilds no request; a model call that was lost is asked again with the recorded one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from atlas.control.account import error_text, session_before, user_text
from atlas.control.desk import Checked, Desk
from atlas.control.history import History, load
from atlas.control.payload import unpack
from atlas.control.world import Effected, bug
from atlas.kernel import guard
from atlas.kernel.batch import Claim, claim, claim_of, ready
from atlas.kernel.code import (
    Answer,
    CallMade,
    Cancel,
    Finished,
    FromCode,
    Job,
    Perform,
    Performed,
    Probe,
    Probed,
    ToCode,
)
from atlas.kernel.context import Built, Live, Session, build
from atlas.kernel.errors import AtlasError, Cancelled, ErrorRecord, Fault, RunFailed, from_record
from atlas.kernel.event import (
    NO_SPEND,
    EffectClass,
    EffectIntended,
    EffectKind,
    Process,
    Spend,
)
from atlas.kernel.model import Asked, Attempt, ModelError, OnDelta, Request, ToolCall, ToolResult
from atlas.kernel.port import Clock, Ledger
from atlas.kernel.token import DEFAULT_RATE, Heard, Limits, limits_of, lowered
from atlas.kernel.tool import ToolFinding, ToolOutcome
from atlas.kernel.turn import (
    Ask,
    Finish,
    RunTools,
    Turn,
    advised,
    answered,
    note_of,
    note_problem,
    noted,
    plan,
    received,
    windowed,
)

MAX_REPAIRS: Final = 2
_ENCODER: Final = msgspec.json.Encoder()


class Asker(Protocol):
    """Asks models by tier or name."""

    async def ask(self, choice: str, request: Request, on_delta: OnDelta) -> Asked:
        """The reply of the first candidate that gives one; ModelError when none does."""
        ...


class Services(msgspec.Struct, frozen=True):
    """What a turn acts through."""

    ledger: Ledger
    clock: Clock
    asker: Asker
    desk: Callable[[Job], Awaitable[Desk]]
    complain: Callable[[dict[str, Any], Any], str | None]
    on_delta: Callable[[str], OnDelta]


class PromptCode:
    """One turn under way: the `Code` its driver holds."""

    task: asyncio.Task[None]

    def __init__(self, services: Services, job: Job, receive: Callable[[FromCode], None]) -> None:
        self._services = services
        self._job = job
        self._receive = receive
        self._waiting: dict[int, asyncio.Future[ToCode]] = {}
        self._last_id = 0
        self._cancelled: Cancel | None = None
        self._is_stopped = False
        self._limits = Limits()
        self._rate = DEFAULT_RATE
        self._history: History
        self._desk: Desk
        self._session = Session()
        self._live_blob = ("", "")
        self._repairs = 0
        self._guard = guard.GuardState()
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
            finished = Finished(error=bug(error).record())
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
        return self._services.complain(schema, value)

    def _finished(self, text: str, complaint: str | None) -> Finished:
        if complaint is not None:
            error = RunFailed(f"the model's answer breaks output.schema: {complaint}", code="output_invalid")
            return Finished(error=error.record())
        if self._desk.contract.output.schema:
            return Finished(msgspec.Raw(bare_json(text)))
        return Finished(msgspec.Raw(_ENCODER.encode({"text": text})))

    async def _begin(self) -> Turn:
        services, job = self._services, self._job
        self._history = await load(services.ledger, job.run_id)
        self._desk = await services.desk(job)
        row = await services.ledger.run(job.run_id)
        self._session = await session_before(services.ledger, job.session_id, row.turn)
        self._limits = limits_of(self._desk.contract.context)
        self._rate = self._session.calibration.rate
        return Turn(row.turn, user_text(job.input))

    # Asking

    async def _ask(self, turn: Turn, step: int) -> Turn:
        effect = f"model:{step}"
        turn = windowed(turn, self._limits.at(self._rate).window)
        if step == self._wanted:
            raise _Reached(build(turn, await self._live(effect), self._limits))
        if effect in self._history.answers:
            raw = await self._call(effect, "model", "", b"null", "read_only", _never)
        else:
            live = await self._live(effect)
            built = build(turn, live, self._limits)
            args = _ENCODER.encode(
                {
                    "step": step,
                    "live": await self._keep_live(live),
                    "request": hashlib.sha256(built.raw).hexdigest(),
                    "tokens": built.tokens,
                    "blocks": [[one.block, one.grade, one.tokens] for one in built.choices],
                }
            )
            self._check_rebuilt(effect, args)
            raw = await self._call(effect, "model", live.model, args, "read_only", lambda _: self._perform_ask(built))
        heard = msgspec.json.decode(raw, type=Heard)
        self._rate = lowered(self._rate, heard.sample)
        return answered(turn, heard.reply)

    async def _live(self, effect: str) -> Live:
        """The live inputs of a request: recorded ones when it was sent before, else as they are now."""
        sent = self._history.state.open.get(effect) or self._intents.get(effect)
        if sent is not None:
            recorded = msgspec.json.decode(await unpack(self._services.ledger, sent.args))
            return msgspec.json.decode(await self._services.ledger.get_blob(recorded["live"]), type=Live)
        desk = self._desk
        schema = desk.contract.output.schema
        return Live(
            model=desk.contract.model.preference,
            system=desk.system,
            tools=tuple(tool.spec for tool in desk.tools.values()),
            session=self._session,
            bytes_per_token=self._rate,
            output_schema=msgspec.Raw(_ENCODER.encode(schema)) if schema else None,
        )

    async def _keep_live(self, live: Live) -> str:
        """Records the live inputs; the same ones are written once."""
        raw = _ENCODER.encode(live)
        digest = hashlib.sha256(raw).hexdigest()
        if self._live_blob[0] != digest:
            self._live_blob = (digest, await self._services.ledger.put_blob(raw))
        return self._live_blob[1]

    def _check_rebuilt(self, effect: str, args: bytes) -> None:
        lost = self._history.state.open.get(effect)
        if lost is not None and lost.args_hash != hashlib.sha256(args).hexdigest():
            raise Fault(
                f"the request of {effect} cannot be built again as it was sent",
                hint="It was built by another version of Atlas; fork the run to go on from before it.",
                code="request_not_reproducible",
            )

    async def _perform_ask(self, built: Built) -> Effected:
        request = built.request
        asked = await self._services.asker.ask(request.model, request, self._services.on_delta(self._job.run_id))
        label = f"{asked.model} (scripted)" if asked.reply.is_scripted else asked.model
        heard = Heard(asked.reply, asked.model, asked.attempts, len(built.raw))
        return Effected(_ENCODER.encode(heard), spend_of(asked.attempts), label)

    # Tools

    async def _run_tools(self, turn: Turn, step: int, calls: tuple[ToolCall, ...]) -> Turn:
        """Runs the calls of a step, side by side where they do not touch the same things; results keep their order."""
        checks = [self._desk.check(call) for call in calls]
        seen = [_as_guarded(call, check) for call, check in zip(calls, checks, strict=True)]
        verdicts = guard.verdicts(self._guard, seen)
        outcomes: dict[int, ToolOutcome] = {}

        async def one(number: int) -> None:
            check, verdict = checks[number], verdicts[number]
            if isinstance(check, ToolResult):
                outcomes[number] = ToolOutcome(check.text, is_error=True)
            elif not isinstance(verdict, guard.Allow):
                outcomes[number] = ToolOutcome(verdict.text, is_error=isinstance(verdict, guard.Blocked))
            elif check.definition.name == "note":
                outcomes[number] = ToolOutcome("noted")
            else:
                outcomes[number] = await self._run_tool(f"tool:{step}.{number + 1}:{check.definition.name}", check)

        await _in_order([await self._claim(check) for check in checks], one)
        results = [outcomes[number] for number in range(len(calls))]
        return self._received(turn, step, calls, results, seen, verdicts)

    async def _claim(self, check: Checked | ToolResult) -> Claim:
        if isinstance(check, ToolResult):
            return Claim()
        touched = await self._desk.touched(check)
        if touched is not None:
            return claim_of(touched, check.definition.effect)
        return claim(check.definition, check.value)

    def _received(
        self,
        turn: Turn,
        step: int,
        calls: tuple[ToolCall, ...],
        outcomes: list[ToolOutcome],
        seen: list[guard.Call],
        verdicts: tuple[guard.Verdict, ...],
    ) -> Turn:
        results: list[ToolResult] = []
        reports: list[guard.Report] = []
        for number, (call, outcome) in enumerate(zip(calls, outcomes, strict=True)):
            handle = f"{turn.handle}.{step}.{number + 1}"
            note = None if outcome.is_error else note_of(call, handle)
            if note is not None and (problem := note_problem(note, self._session.notes, turn)):
                outcome = ToolOutcome(problem, is_error=True)
            elif note is not None:
                turn = noted(turn, note)
            results.append(ToolResult(call.id, outcome.text, outcome.is_error))
            reports.append(guard.Report(seen[number], outcome.text, outcome.is_error, verdicts[number], handle))
        turn = received(turn, tuple(results), self._limits.at(self._rate))
        return self._guarded(turn, reports)

    def _guarded(self, turn: Turn, reports: list[guard.Report]) -> Turn:
        """Ends a turn that goes round in circles, with a word of warning on the way there."""
        self._guard = guard.after_batch(self._guard, reports)
        stuck = guard.stuck(self._guard)
        if stuck is not None:
            error = RunFailed(stuck.reason, hint="See what it tried with 'atlas show'.", code="stuck")
            return replace(turn, finish=Finish(error=error.record()))
        warning = guard.advice(self._guard)
        return advised(turn, warning) if warning else turn

    async def _run_tool(self, effect: str, check: Checked) -> ToolOutcome:
        definition = check.definition

        async def perform(key: str) -> Effected:
            outcome = await self._desk.perform(check, key, self._rate)
            if outcome.in_doubt:
                raise _InDoubt(outcome.text)
            return Effected(_ENCODER.encode(outcome))

        async def probe(key: str) -> ToolFinding:
            return await self._desk.probe(check, key)

        try:
            raw = await self._call(
                effect,
                "tool",
                definition.name,
                check.args,
                definition.effect,
                perform,
                definition.idempotent,
                probe if definition.has_probe else None,
            )
        except AtlasError as error:
            return ToolOutcome(error_text(error.record()), is_error=True)
        return msgspec.json.decode(raw, type=ToolOutcome)

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
        probe: Callable[[str], Awaitable[ToolFinding]] | None = None,
    ) -> bytes:
        """The outcome of an effect: from the record, or performed once its intent is durable."""
        self._last_id += 1
        number = self._last_id
        waiting = self._expect(number)
        args_hash = hashlib.sha256(args).hexdigest()
        can_probe = probe is not None
        self._receive(
            CallMade(number, effect, kind, name, msgspec.Raw(args), args_hash, effect_class, idempotent, can_probe)
        )
        while True:
            match await waiting:
                case Answer(result=result, error=None):
                    return bytes(result)
                case Answer(error=ErrorRecord() as error):
                    raise from_record(error)
                case Perform(effect_key=key):
                    return await self._perform(number, key, perform)
                case Probe(effect_key=key):
                    waiting = self._expect(number)
                    self._receive(await _probed(number, key, probe))

    def _expect(self, number: int) -> asyncio.Future[ToCode]:
        waiting: asyncio.Future[ToCode] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        return waiting

    async def _perform(self, number: int, key: str, perform: Callable[[str], Awaitable[Effected]]) -> bytes:
        began_us = self._services.clock.now_us()
        try:
            done = await perform(key)
        except _InDoubt as doubt:
            # Nobody knows what became of it: a person is asked, and the turn waits for the answer.
            waiting = self._expect(number)
            self._receive(Probed(number, "unknown", message=str(doubt)))
            await waiting
            raise Fault("an effect in doubt was answered", code="doubt_answered") from doubt
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
        return self._services.clock.now_us() - began_us


class _InDoubt(Exception):
    """A tool began and nobody knows how far it got."""


class _Reached(Exception):
    """The turn came to the request that was looked for."""

    def __init__(self, built: Built) -> None:
        super().__init__()
        self.built = built


def _as_guarded(call: ToolCall, check: Checked | ToolResult) -> guard.Call:
    effect: EffectClass = "read_only" if isinstance(check, ToolResult) else check.definition.effect
    return guard.Call(call.name, call.args, effect)


async def _in_order(claims: list[Claim], perform: Callable[[int], Awaitable[None]]) -> None:
    """Performs all, each as soon as no earlier one that it conflicts with is unfinished."""
    started: set[int] = set()
    finished: set[int] = set()
    moved = asyncio.Event()

    async def one(number: int) -> None:
        await perform(number)
        finished.add(number)
        moved.set()

    async with asyncio.TaskGroup() as group:
        while len(finished) < len(claims):
            for number in ready(claims, started, finished):
                started.add(number)
                group.create_task(one(number))
            await moved.wait()
            moved.clear()


async def _probed(number: int, key: str, probe: Callable[[str], Awaitable[ToolFinding]] | None) -> Probed:
    if probe is None:
        return Probed(number, "unknown", message="the tool no longer has a probe")
    found = await probe(key)
    raw = msgspec.Raw(_ENCODER.encode(ToolOutcome(found.text)))
    return Probed(number, found.found, raw, found.message)


def spend_of(attempts: tuple[Attempt, ...]) -> Spend:
    """What all tries used together, failed ones included."""
    return Spend(
        tokens_in=sum(one.usage.tokens_in for one in attempts),
        tokens_out=sum(one.usage.tokens_out for one in attempts),
        cost_micro_usd=sum(one.cost_micro_usd for one in attempts),
    )


def bare_json(text: str) -> bytes:
    """The answer without the fence that models like to put around JSON."""
    bare = text.strip()
    if bare.startswith("```"):
        bare = bare.partition("\n")[2].rpartition("```")[0]
    return bare.encode()


async def _never(key: str) -> Effected:
    raise Fault("a recorded model call was about to be asked again", code="asked_twice")
