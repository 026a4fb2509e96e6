"""The loop of a prompt agent: one turn, from what was said to the answer.

    execute    begin -> (plan -> ask the model | run its tools)* -> answer

The loop is code like an agent's own: every model call and every tool call is an effect of the run, so intents, receipts,
policy, approvals, cancelling, recovery and replay are the driver's, unchanged. A turn that is executed again is
answered from the record and rebuilds no request; a model call that was lost is asked again with the recorded one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final

import msgspec
from msgspec.structs import replace

from atlas.control.account import error_text, given, session_before, user_text
from atlas.control.answer import MAX_REPAIRS, asked_again, bare_json, complaint_about
from atlas.control.calls import MAX_TRIES, Calls, InDoubt, Wanted, settled_by
from atlas.control.course import Course
from atlas.control.critic import CriticDesk
from atlas.control.delta import wordless
from atlas.control.desk import Checked, Desk, PastCall
from atlas.control.history import History, bodies, load
from atlas.control.hookset import perform
from atlas.control.order import in_order
from atlas.control.payload import pack, unpack
from atlas.control.service import Services
from atlas.control.steering import Steering, sent_back
from atlas.control.world import Effected, bug
from atlas.kernel import guard
from atlas.kernel.batch import Claim, claim, claim_of
from atlas.kernel.code import Cancel, Finished, FromCode, Job, Need, Noted, Perform, Steered, ToCode
from atlas.kernel.context import Builder, Built, Live, Session
from atlas.kernel.errors import AtlasError, Cancelled, Fault, RunFailed
from atlas.kernel.event import CallAnswered, EffectIntended, Process
from atlas.kernel.hold import Hold
from atlas.kernel.hook import HookFailure, Hooks, TurnView
from atlas.kernel.media import Given
from atlas.kernel.model import PASSED_ON, Request, Tab, ToolCall, ToolResult
from atlas.kernel.token import (
    DEFAULT_RATE,
    HIGHEST_RATE,
    LOWEST_RATE,
    Heard,
    Limits,
    lightened,
    limits_of,
    lowered,
    size_of,
)
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
    shown_again,
    unanswered,
    windowed,
)

_BYTES_PER_TOKEN: Final = 3
_UNANSWERED: Final = frozenset({"tier_empty", "model_unknown", *(f"model_{kind}" for kind in PASSED_ON)})
"""Why a contract's fallback is asked instead."""
_ENCODER: Final = msgspec.json.Encoder()


class PromptCode:
    """One turn under way: the `Code` its driver holds."""

    task: asyncio.Task[None]

    def __init__(self, services: Services, job: Job, receive: Callable[[FromCode], None]) -> None:
        self._services = services
        self._job = job
        self._receive = receive
        self._calls = Calls(services.clock, receive)
        self._cancelled: Cancel | None = None
        self._is_stopped = False
        self._limits = Limits()
        self._rate = DEFAULT_RATE
        self._history: History
        self._desk: Desk
        self._builder: Builder
        self._session = Session()
        self._system: tuple[str, ...] = ()
        self._window = 0
        self._kept: tuple[Live, str] | None = None
        self._repairs = 0
        self._model = ""
        self._fallback = ""
        self._tried = 0
        self._guard = guard.GuardState()
        self._steering: Steering | None = None
        self._wanted = ""
        self._intents: Mapping[str, EffectIntended] = {}

    @property
    def process(self) -> Process | None:
        """None: a turn runs inside the driver's own process; its tools do not."""
        return None

    def send(self, message: ToCode) -> None:
        """Delivers at once."""
        if isinstance(message, Cancel):
            self._cancelled, self._calls.is_cancelled = message, True
            self.task.cancel()
            return
        self._calls.hear(message)

    async def stop(self) -> None:
        """Ends the turn now; a reply that was on its way is not recorded."""
        self._is_stopped = True
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})

    async def reach(self, step: int, intents: Mapping[str, EffectIntended]) -> Built | None:
        """The request of a step as it was built, when the turn comes that far; of several tries the last one's."""
        first = f"model:{step}"
        asked = [effect for effect in intents if effect == first or effect.startswith(f"{first}:")]
        if not asked:
            return None
        self._wanted, self._intents = asked[-1], intents
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
        except asyncio.CancelledError as error:
            if self._cancelled is not None and not self._is_stopped:
                finished = Finished(error=Cancelled(self._cancelled.reason or "the run was cancelled").record())
            elif self._is_stopped or self.task.cancelling():
                raise
            else:  # nobody cancelled the turn: something that it awaited was
                finished = Finished(error=bug(error).record())
        except BaseException as error:  # noqa: BLE001 - a turn is code like an agent's: its bugs end its run and no other
            finished = Finished(error=bug(error).record())
        if not self._is_stopped:
            self._receive(finished)

    async def _execute(self) -> Finished:
        turn = await self._begin()
        if self._steering is not None:
            turn = await self._steering.begin(turn)
        while True:
            match plan(turn):
                case Ask(step=step):
                    turn = await self._ask(turn, step)
                case RunTools(step=step, calls=calls):
                    turn = await self._run_tools(turn, step, calls)
                case Finish(text=text, error=None):
                    complaint = complaint_about(text, self._desk.contract.output.schema, self._services.complain)
                    onward = await self._not_yet(turn, text, complaint)
                    if onward is None:
                        return self._finished(text, complaint)
                    turn = onward
                case Finish(error=error):
                    return Finished(error=error)

    async def _not_yet(self, turn: Turn, text: str, complaint: str | None) -> Turn | None:
        """The turn as it goes on because its answer is not good enough; None when this is the end of it."""
        if complaint is None and self._steering is not None:
            accepted = await self._steering.accept(turn, text)
            return None if accepted is turn else accepted
        if complaint is None or self._repairs == MAX_REPAIRS:
            return None
        self._repairs += 1
        again = asked_again(complaint, self._desk.contract.output.schema)
        return await sent_back(turn, again, self._course())

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
        model = self._desk.contract.model
        self._model, self._fallback = self._history.state.created.model or model.preference, model.fallback or ""
        row = await services.ledger.run(job.run_id)
        self._session = await session_before(services.ledger, job.session_id, row.turn)
        # What was edited since its first request counts from the next turn on.
        first = await self._sent_live("") if self._history.answers or self._history.state.open else None
        self._system = self._desk.system if first is None else first.system
        self._window = await self._narrowest() if first is None else first.context_window
        self._limits = limits_of(self._desk.contract.context, self._window, model.max_output_tokens)
        self._builder = Builder(self._limits)
        self._rate = self._session.calibration.rate
        self._steering = self._steered_by(row.turn)
        files = self._history.state.created.files
        head_bytes = int(self._limits.user * HIGHEST_RATE)
        return Turn(
            row.turn,
            user_text(job.input, files),
            await given(services.ledger, files, row.turn, head_bytes) if files else (),
        )

    async def _narrowest(self) -> int:
        """How many tokens every model that may answer can take, as far as is known; 0 when nothing is."""
        windows = [await self._services.window(one) for one in (self._model, self._fallback) if one]
        return min(filter(None, windows), default=0)

    async def _sent_live(self, effect: str) -> Live | None:
        """What the request of an effect was built from, or without one the first of the turn; None when it was not sent.

        The first need not be `model:1`: that may have been refused, and a fork begins with a later one.
        """
        ledger = self._services.ledger
        for _, body in bodies(await ledger.events(self._job.run_id)):
            if isinstance(body, EffectIntended) and body.effect.startswith("model:") and effect in ("", body.effect):
                recorded = msgspec.json.decode(await unpack(ledger, body.args))
                return msgspec.json.decode(await ledger.get_blob(recorded["live"]), type=Live)
        return None

    def _steered_by(self, turn: int) -> Steering | None:
        """The hooks and the critic of the turn; None when it has none, and then they cost nothing."""
        contract, history = self._desk.contract, self._history
        # A turn that is only looked at again takes every decision from its record.
        is_live = history.state.ended is None and not self._wanted
        hooks = self._services.hooks.make(contract) if is_live else ()
        if not (hooks or history.steered or contract.soft_timeout_s):
            return None
        course = self._course()
        critic = None
        if contract.soft_timeout_s:
            critic = CriticDesk(contract, course, self._clocked(history.state.active_us), self._ask_critic)
        view = TurnView(self._job.run_id, self._job.agent, turn)
        return Steering(Hooks(hooks, self._report_failure, perform), course, view, critic, self._services.hooks.clean)

    def _course(self) -> Course:
        return Course(self._services.ledger, self._history, self._intents, self._receive)

    def _clocked(self, active_us: int) -> Callable[[], int]:
        """Counts on from what the run's earlier attempts took: time in which nobody executes it does not count."""
        began_us = self._services.clock.now_us()
        return lambda: active_us + self._since(began_us)

    def _report_failure(self, failure: HookFailure) -> None:
        self._receive(Noted(f"hook {failure.hook} failed at {failure.moment}: {failure.message}", "warning"))

    # Asking

    async def _ask(self, turn: Turn, step: int) -> Turn:
        if self._steering is not None:
            turn = await self._steering.before(turn, step, self._guard)
            if turn.finish is not None:
                return turn
        turn = windowed(turn, self._limits.at(self._rate).window)
        self._tried = 0
        try:
            raw = await self._reply(turn, step)
        except AtlasError as error:
            if turn.partial and error.reason == "model_empty":
                return unanswered(turn)
            raise
        heard = msgspec.json.decode(raw, type=Heard)
        self._rate = lowered(self._rate, heard.sample)
        turn = answered(turn, heard.reply)
        return turn if self._steering is None else await self._steering.heard(turn, heard.reply)

    async def _reply(self, turn: Turn, step: int) -> bytes:
        """What the model says at a step, as a new effect each time.

        A try that was lost and may have been billed is made again as it was, and so is a request that was too long, in fewer
        bytes. What no model could answer is asked of the contract's fallback, which the rest of the turn stays with.
        """
        tries = lost = 0
        again = ""
        for number in count(1):
            effect = f"model:{step}" if number == 1 else f"model:{step}:{number}"
            try:
                return await self._ask_once(turn, step, effect, lost, again, is_last=tries == MAX_TRIES - 1)
            except AtlasError as error:
                is_complete = turn.partial and error.reason == "model_empty"
                if error.reason in _UNANSWERED and self._fallback and not is_complete:
                    self._model, self._fallback, tries, lost, again = self._fallback, "", 0, 0, ""
                    continue
                tries += 1
                is_too_long = error.reason == "model_overflow" and self._rate > LOWEST_RATE
                if tries == MAX_TRIES or not (is_too_long or error.reason == "model_budget"):
                    raise
                if is_too_long:
                    self._rate, again = lightened(self._rate), ""
                else:
                    lost, again = lost + 1, effect
        raise AssertionError

    async def _ask_once(self, turn: Turn, step: int, effect: str, lost: int, again: str, *, is_last: bool) -> bytes:
        if effect in self._history.answers and effect != self._wanted:
            return await self._calls.make(Wanted(effect, "model", "", b"null"), _never)
        live = (await self._sent_live(again) if again else None) or await self._live(effect)
        built = self._builder.build(turn, live)
        if effect == self._wanted:
            sent = self._intents.get(effect)
            raise _Reached(replace(built, request=granted(built.request, sent.hold if sent is not None else None)))
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
        need = Need(live.model, _most_tokens(built), live.max_output_tokens, self._fallback)
        return await self._calls.make(
            Wanted(effect, "model", live.model, args, need=need),
            lambda leave, tab: self._perform_ask(built, leave.hold, tab, lost, is_last=is_last),
        )

    async def _live(self, effect: str) -> Live:
        """The live inputs of a request: recorded ones when it was sent before, else as they are now."""
        sent = self._history.state.open.get(effect) or self._intents.get(effect)
        if sent is not None:
            recorded = msgspec.json.decode(await unpack(self._services.ledger, sent.args))
            return msgspec.json.decode(await self._services.ledger.get_blob(recorded["live"]), type=Live)
        desk = self._desk
        schema = desk.contract.output.schema
        return Live(
            model=self._model,
            system=self._system,
            tools=tuple(tool.spec for tool in desk.tools.values()),
            files=await desk.files(),
            added=() if self._steering is None else self._steering.added,
            session=self._session,
            bytes_per_token=self._rate,
            max_output_tokens=self._limits.output,
            context_window=self._window,
            output_schema=schema or None,
        )

    async def _keep_live(self, live: Live) -> str:
        """Records the live inputs; the same ones are written once."""
        if self._kept is None or self._kept[0] != live:
            self._kept = (live, await self._services.ledger.put_blob(_ENCODER.encode(live)))
        return self._kept[1]

    def _check_rebuilt(self, effect: str, args: bytes) -> None:
        lost = self._history.state.open.get(effect)
        if lost is not None and lost.args_hash != hashlib.sha256(args).hexdigest():
            raise Fault(
                f"the request of {effect} cannot be built again as it was sent",
                hint="It was built by another version of Atlas; fork the run to go on from before it.",
                code="request_not_reproducible",
            )

    async def _perform_ask(self, built: Built, hold: Hold | None, tab: Tab, lost: int, *, is_last: bool) -> Effected:
        # A candidate whose answer was lost is not asked twice in a row when there is another.
        tab.first, tab.tried = lost, self._tried
        request = granted(built.request, hold)
        on_delta = self._services.on_delta(self._job.run_id)
        if request.output_schema is not None:  # a shape is no words: it is shown when it is whole and fits
            on_delta = wordless(on_delta)
        try:
            asked = await self._services.asker.ask(request.model, request, on_delta, tab)
        except AtlasError as error:
            if is_last:
                raise settled_by(error, tab) from error
            raise
        finally:
            self._tried = tab.tried + len(tab.attempts)
        heard = Heard(asked.reply, asked.model, asked.attempts, built.measure)
        return Effected(_ENCODER.encode(heard), model=asked.label)

    async def _ask_critic(self, effect: str, model: str, args: bytes) -> bytes:
        """What the critic's model says: on record, or asked now; a question that was lost is asked again as it was."""
        lost = self._history.state.open.get(effect)
        if lost is not None:
            args = bytes(await unpack(self._services.ledger, lost.args))
        return await self._calls.make(
            Wanted(effect, "model", model, args, need=self._services.need(args)),
            lambda leave, tab: self._services.generate(args, leave.hold, tab),
        )

    # Tools

    async def _run_tools(self, turn: Turn, step: int, calls: tuple[ToolCall, ...]) -> Turn:
        """Runs the calls of a step, side by side where they do not touch the same things; results keep their order."""
        checks = [self._checked(call, step, number) for number, call in enumerate(calls, start=1)]
        seen = [_as_guarded(call, check) for call, check in zip(calls, checks, strict=True)]
        verdicts = list(guard.verdicts(self._guard, seen))
        for number, (check, verdict) in enumerate(zip(checks, verdicts, strict=True)):
            before = self._history.told.get((step, number + 1))
            if before is not None and _said_instead(check, verdict) is None:
                text = msgspec.json.decode(await unpack(self._services.ledger, before), type=str)
                checks[number] = ToolResult(calls[number].id, text, is_error=True)
        outcomes: dict[int, ToolOutcome] = {}
        told = {
            number: said
            for number, (check, verdict) in enumerate(zip(checks, verdicts, strict=True))
            if (said := _said_instead(check, verdict)) is not None
        }
        # Before anything is performed: a turn that is cut short leaves no note that was refused.
        await self._record_told(step, told)

        async def one(number: int) -> None:
            call, check, verdict = calls[number], checks[number], verdicts[number]
            effect = f"tool:{step}.{number + 1}:{call.name}"
            if isinstance(check, ToolResult):
                outcomes[number] = ToolOutcome(check.text, is_error=True)
            elif not isinstance(verdict, guard.Allow):
                outcomes[number] = ToolOutcome(verdict.text, is_error=isinstance(verdict, guard.Blocked))
            elif self._steering is not None and (no := await self._steering.authorize(effect, call, number + 1)):
                verdicts[number], outcomes[number] = no, ToolOutcome(no.text, is_error=True)
            elif call.name == "note":
                outcomes[number] = ToolOutcome("noted")
            else:
                outcomes[number] = await self._run_tool(effect, check)
                if self._steering is not None:
                    outcomes[number] = await self._steering.transform(call, number + 1, outcomes[number])

        await in_order([await self._claim(check) for check in checks], one)
        results = [outcomes[number] for number in range(len(calls))]
        turn = self._received(turn, step, calls, results, seen, verdicts, told)
        await self._record_told(step, told)
        if self._steering is None:
            return turn
        has_run = any(
            not (one.is_wrong or isinstance(verdict, guard.Blocked))
            for one, verdict in zip(seen, verdicts, strict=True)
        )
        return await self._steering.after_tools(turn, has_run=has_run)

    def _checked(self, call: ToolCall, step: int, number: int) -> Checked | ToolResult:
        """The call, ready to be performed, or what is wrong with it; that is nothing where it was performed already."""
        check = self._desk.check(call)
        is_past = isinstance(check, ToolResult) and f"tool:{step}.{number}:{call.name}" in self._history.answers
        return PastCall.of(call) if is_past else check

    async def _record_told(self, step: int, told: Mapping[int, str]) -> None:
        """Keeps what was said to calls that were not performed: their handles bring it back."""
        for number, text in told.items():
            if (step, number + 1) not in self._history.told:
                said = await pack(self._services.ledger, _ENCODER.encode(text))
                self._history.told[step, number + 1] = said
                self._receive(Steered(CallAnswered(step, number + 1, said)))

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
        verdicts: list[guard.Verdict],
        told: dict[int, str],
    ) -> Turn:
        results: list[ToolResult] = []
        reports: list[guard.Report] = []
        for number, (call, outcome) in enumerate(zip(calls, outcomes, strict=True)):
            handle = f"{turn.handle}.{step}.{number + 1}"
            note = None if outcome.is_error else note_of(call, handle)
            if note is not None and (problem := note_problem(note, self._session.notes, turn)):
                outcome = ToolOutcome(problem, is_error=True)
                told[number] = problem
            elif note is not None:
                turn = noted(turn, note)
            elif outcome.picture is not None:
                turn, outcome = self._look_again(turn, outcome, outcome.picture)
            results.append(ToolResult(call.id, outcome.text, outcome.is_error))
            reports.append(guard.Report(seen[number], outcome.text, outcome.is_error, verdicts[number], handle))
        turn = received(turn, tuple(results), self._limits.at(self._rate))
        return self._guarded(turn, reports)

    def _look_again(self, turn: Turn, outcome: ToolOutcome, picture: Given) -> tuple[Turn, ToolOutcome]:
        """Puts a picture that was recalled before the model, beside the user's words, for the rest of the turn."""
        standing = size_of((self._system, [tool.spec for tool in self._desk.tools.values()]))
        # Half of what persona and tools leave, so that the user's words and the last steps always have room beside it.
        limit = max(0, self._limits.total - int(standing / self._rate)) // 2
        shown = shown_again(turn, picture, limit)
        if shown is None:
            text = f"{outcome.text}\nIt weighs {picture.file.tokens} tokens, more than there is room for ({limit})."
            return turn, replace(outcome, text=text, is_error=True)
        return shown, replace(outcome, text=f"{outcome.text}\nIt stands before the user's words from now on.")

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

        async def perform(leave: Perform, tab: Tab) -> Effected:
            edited = None if leave.args is None else self._edited(check, leave.args)
            if isinstance(edited, ToolOutcome):
                return Effected(_ENCODER.encode(edited))
            outcome = await self._desk.perform(edited or check, leave.effect_key, self._limits.recall, self._rate)
            if outcome.in_doubt:
                raise InDoubt(outcome.text)
            if edited is not None:
                told = f"(The arguments were changed before it was done, to {edited.args.decode()})\n"
                outcome = replace(outcome, text=told + outcome.text)
            return Effected(_ENCODER.encode(outcome))

        async def probe(key: str) -> ToolFinding:
            begun = self._history.state.open.get(effect)
            looked = self._edited(check, begun.args.json) if begun is not None and begun.is_edited else check
            if isinstance(looked, ToolOutcome):
                return ToolFinding("unknown", message=looked.text)
            return await self._desk.probe(looked, key)

        wanted = Wanted(
            effect,
            "tool",
            definition.name,
            check.args,
            definition.effect,
            definition.idempotent,
            self._desk.fingerprint(definition.name),
        )
        try:
            raw = await self._calls.make(wanted, perform, probe if definition.has_probe else None)
        except AtlasError as error:
            return ToolOutcome(error_text(error.record()), is_error=True)
        return msgspec.json.decode(raw, type=ToolOutcome)

    def _edited(self, check: Checked, args: msgspec.Raw) -> Checked | ToolOutcome:
        """The call with the arguments that a person or a second opinion put in their place."""
        changed = self._desk.check(ToolCall("edited", check.definition.name, bytes(args).decode()))
        return ToolOutcome(changed.text, is_error=True) if isinstance(changed, ToolResult) else changed

    def _since(self, began_us: int) -> int:
        return self._services.clock.now_us() - began_us


class _Reached(Exception):
    """The turn came to the request that was looked for."""

    def __init__(self, built: Built) -> None:
        super().__init__()
        self.built = built


def _as_guarded(call: ToolCall, check: Checked | ToolResult) -> guard.Call:
    if isinstance(check, ToolResult):
        return guard.Call(call.name, call.args, is_wrong=True)
    return guard.Call(call.name, call.args, check.definition.effect)


def _said_instead(check: Checked | ToolResult, verdict: guard.Verdict) -> str | None:
    """What a call is answered with that is not performed; None for one that may be."""
    if isinstance(check, ToolResult):
        return check.text
    return None if isinstance(verdict, guard.Allow) else verdict.text


def granted(request: Request, hold: Hold | None) -> Request:
    """The request as it is sent: to the model that was granted, with the limit to its answer that was granted."""
    if hold is None or not hold.model:
        return request
    return replace(request, model=hold.model, max_output_tokens=hold.max_output_tokens)


def _most_tokens(built: Built) -> int:
    """How many tokens a request may be counted as: rather too many, because it is what gets reserved."""
    return max(built.tokens, -(-len(built.raw) // _BYTES_PER_TOKEN))


async def _never(leave: Perform, tab: Tab) -> Effected:
    raise Fault("a recorded model call was about to be asked again", code="asked_twice")
