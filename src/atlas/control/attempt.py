"""One driver's attempt at one run: carries out what `decide` says until the run rests.

    run        load -> (decide -> carry out -> observe)* -> parked, ended or lost

Everything that can happen (the code speaks, a commit became durable, a signal or the clock arrived) is a message
in one inbox, handled in order; so a run needs no locks. What a resting attempt can do without waiting is done by
whoever brings the message. Intents are awaited before the code may perform; receipts are not, because the ledger
keeps the order of appends and every later intent stands behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import assert_never

import msgspec

from atlas.control.admit import Admissions, failed, settled, unaffordable
from atlas.control.fact import intent_of, may_go_ahead, question_of, receipt_of, refusal_of
from atlas.control.family import Family
from atlas.control.history import Glance, History, glance_at, load, remember
from atlas.control.mail import Mail
from atlas.control.payload import pack, unpack
from atlas.control.question import Questions
from atlas.control.record import Record
from atlas.control.rest import NOT_HERE_US, Rest
from atlas.control.signal import CancelBody, answer_facts, resolve_facts
from atlas.control.takeover import take_over
from atlas.control.underway import UnderWay
from atlas.control.world import (
    Admitted,
    ChildRefused,
    ChildStarted,
    Durable,
    Granted,
    Judged,
    Lost,
    Message,
    NotAdmitted,
    Stop,
    Tick,
    World,
    bug,
)
from atlas.kernel.code import (
    Answer,
    CallMade,
    Cancel,
    Code,
    Finished,
    Noted,
    Perform,
    Performed,
    Printed,
    Probe,
    Probed,
    Steered,
    ValueTaken,
)
from atlas.kernel.decide import CancelCode, Command, Doubt, End, Park, Retry, StartCode, WakeAt, decide, is_under_way
from atlas.kernel.errors import (
    AtlasError,
    BudgetBusy,
    Fault,
    Invalid,
    LedgerCorrupt,
    LedgerUnavailable,
    NotFound,
    Refused,
    StaleLease,
    Unavailable,
)
from atlas.kernel.event import (
    NO_SPEND,
    AttemptStarted,
    CancelRequested,
    EffectAnswered,
    EffectDoubted,
    EffectReceived,
    EffectRefused,
    EffectResolved,
    Logged,
    OutputCaptured,
    ValueRecorded,
)
from atlas.kernel.gate import Ask, Consult, Examine, Intend, Recall, Refuse, Reject, Rejoin, Repeat
from atlas.kernel.run import Append, Appended, Claimed, RunState, Signal
from atlas.kernel.state import STEP_SPEND, with_live


class Attempt:
    """A run in the hands of this process."""

    def __init__(self, world: World, claimed: Claimed, tasks: asyncio.TaskGroup) -> None:
        self.run_id = claimed.lease.run_id
        self.lease = claimed.lease
        self._claimed = claimed
        self._world = world
        self._mail = Mail(lambda: self._advance(is_task=False), _AT_ONCE)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0
        self._code: Code | None = None
        self._history: History
        self._record: Record
        self._family: Family
        self._resting: Rest
        self._admissions: Admissions
        self._calls: UnderWay
        self._tasks = tasks
        self._unclaimed: set[str] = set()
        self._seen_signals: set[str] = set()
        self._is_retry = False
        self._questions = Questions(world, tasks, self.post)
        self.lost: AtlasError | None = None
        self._is_loaded = False
        self._rest: RunState | None = None

    @property
    def waits_for_children(self) -> bool:
        """True when only children can bring this run forward."""
        return self._is_loaded and self._record.state.is_waiting_for_children

    @property
    def seen(self) -> Glance:
        """What a result says of the run, as far as it has come."""
        return glance_at(self._history, self._record.state)

    def post(self, message: Message) -> None:
        """Tells the attempt what happened; on the driver's loop only."""
        self._mail.post(message)

    async def run(self) -> RunState | None:
        """Drives the run until it rests; its state then, or None when another owner has it now."""
        try:
            await self._load()
            while self._rest is None:
                if await self._advance(is_task=True):
                    await self._mail.arrived()
            return self._rest
        except (StaleLease, LedgerUnavailable) as error:
            self.lost = error
            return None  # nothing more can be written; whoever claims the run next goes on from what is durable
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await self._questions.stop()
            if self._is_loaded:
                self._record.hand_over()
                self._admissions.stop()
            if self._code is not None:
                await self._code.stop()
            if self._is_loaded:
                self._family.close()
            else:
                self._world.slots.give_back()

    async def _advance(self, *, is_task: bool) -> bool:
        """Handles what has arrived and does what is decided; True when something else has to happen first.

        Outside the attempt's own task it stops before anything that is for the task to do.
        """
        while self._rest is None:
            while (message := self._mail.next(None if is_task else _AT_ONCE)) is not None:
                await self._handle(message)
            if self._mail:
                return False
            if not is_task and is_under_way(self._record.state):
                return True  # the timer for its deadline is set
            commands = decide(self._record.state, self._world.clock.now_us(), self._world.authority)
            is_silent = False
            for command in commands:
                if not is_task and not isinstance(command, _AT_ONCE):
                    return False
                await self._carry_out(command)
                is_silent = is_silent or isinstance(command, _SILENT)
            if not self._mail and not is_silent:
                return self._rest is None
        return False

    async def fail(self, error: Exception) -> RunState | None:
        """Ends a run that met a bug of ours, so that it is not tried for ever; None when even that is impossible."""
        if self._rest is not None:
            return None
        if not self._is_loaded:
            self.lost = error if isinstance(error, AtlasError) else bug(error)
            await self._leave_for_later()
            return None
        try:
            await self._come_to_rest(End("failed", error=self._world.redact(bug(error).record())))
        except AtlasError:
            return None
        return self._rest

    async def _leave_for_later(self) -> None:
        """Gives back a run that cannot even be read; it is looked at again after a while."""
        due_us = self._world.clock.now_us() + NOT_HERE_US
        with suppress(AtlasError):
            await self._world.ledger.append(Append(self.lease, state="queued", release=True, due_us=due_us))

    async def _load(self) -> None:
        world = self._world
        self._history = await load(world.ledger, self.run_id)
        state = self._history.state
        await take_over(world, self._claimed, state)
        self._record = Record(world.ledger, world.clock, self.lease, with_live(state), self._lose)
        self._calls = UnderWay(self._record)
        self._family = Family(world, self._record, self._calls, self.post, self._send)
        self._resting = Rest(world, self._record, self._family)
        self._admissions = Admissions(world, self._record, self._tasks, self.post)
        self._unclaimed = set(self._history.answers) | set(state.open)
        self._is_loaded = True
        world.boundary("loaded")
        if state.ended is not None:
            # Claimed by its name just after it ended: it is given back as it is.
            await world.ledger.append(Append(lease=self.lease, release=True))
            self._rest = state.ended.state

    def _lose(self, error: AtlasError) -> None:
        self.post(Lost(error))

    # What arrives

    async def _handle(self, message: Message) -> None:
        record = self._record
        match message:
            case CallMade():
                await self._called(message)
            case Performed():
                await self._performed(message)
            case Probed():
                await self._probed(message)
            case Durable():
                self._go_on(message)
            case Admitted():
                record.accept(message.intent)
                self._go_on(Durable(message.call))
            case Judged(call=call):
                record.write(message.fact, settle=message.settle)
                self._calls.put_back(call)
            case NotAdmitted():
                self._not_admitted(message)
            case ChildStarted():
                await self._learn(await self._family.started(message.intent))
            case ChildRefused(call=call, error=Refused() as error):
                self._family.forget(call.effect)
                self._refuse(Refuse(call, "deny", error.record()))
            case ChildRefused(error=error):
                self._lose(error)
            case Signal():
                await self._signalled(message)
            case Finished():
                lost = message.error is not None and message.error.code == "worker_killed"
                record.observe(is_lost=lost) if lost else record.observe(finished=message)
            case ValueTaken():
                record.write(ValueRecorded(message.name, message.occurrence, message.value), lazy=True)
            case Noted():
                record.write(Logged(message.message, message.level, message.fraction), lazy=True)
            case Printed():
                record.write(OutputCaptured(message.stream, message.text), lazy=True)
            case Steered():
                remember(self._history, message.fact)
                record.write(message.fact, lazy=True)
            case Stop():
                record.observe(is_stopping=True)
                self._admissions.leave()
            case Lost():
                raise message.error
            case Tick():
                self._timer = None
            case Granted():
                self._family.resume()
            case _:
                assert_never(message)

    async def _called(self, call: CallMade) -> None:
        self._unclaimed.discard(call.effect)
        self._record.observe(unclaimed=len(self._unclaimed), quiet_since_us=self._world.clock.now_us())
        recorded = self._history.answers.get(call.effect)
        if recorded is not None:
            await self._recall(Recall(call, recorded))
        else:
            if call.need is None and self._is_asked_here(call):
                call = msgspec.structs.replace(call, need=self._world.need(bytes(call.args)))
            self._calls.wait(call)

    async def _performed(self, message: Performed) -> None:
        if (lapsed := self._questions.lapsed(message)) is not None:
            return await self._admissions.begin(lapsed, self._record.state.open[lapsed.effect], lapsed=message)
        call = self._calls.end(message.id)
        if call is None:
            return None
        effect = call.effect
        self._world.boundary("receipt.before")
        receipt = await receipt_of(self._world.ledger, effect, message)
        self._remember(receipt)
        settle = settled(self._record.state.open.get(effect), receipt, message)
        spend = STEP_SPEND if settle else STEP_SPEND.plus(message.spend)
        self._record.write(receipt, lazy=True, spend=spend, settle=settle)
        self._world.boundary("receipt.written")
        if self._questions.is_answered(message.id):
            self._send(Answer(message.id, message.result, message.error))
        if message.error is None or message.error.code != _NOT_PERFORMED:
            await self._learn(receipt)

    async def _probed(self, message: Probed) -> None:
        call = self._calls.begun(message.id)
        if call is None:
            return
        effect = call.effect
        match message.found:
            case "done":
                self._calls.end(message.id)
                result = await pack(self._world.ledger, message.result)
                receipt = EffectReceived(effect, result, source="probed")
                self._remember(receipt)
                settle = settled(self._record.state.open.get(effect), receipt)
                self._record.write(receipt, lazy=True, spend=STEP_SPEND, settle=settle)
                self._send(Answer(message.id, message.result))
            case "not_done":
                self._send(self._perform(message.id, effect))
            case "unknown":
                self._calls.put_back(call)
                self._doubt((effect,), message.message)
            case _:
                assert_never(message.found)

    def _go_on(self, message: Durable) -> None:
        call = message.call
        self._world.boundary("intent.durable")
        if self._is_asked_here(call):
            self._questions.ask(call, self._record.state.open[call.effect].hold)
            return
        key = self._effect_key(call.effect)
        self._send(Probe(call.id, key) if message.probe else self._perform(call.id, call.effect))
        self._world.boundary("perform.sent")

    def _is_asked_here(self, call: CallMade) -> bool:
        """Models are asked by the driver, which has the keys and the lanes; a turn is the driver's own code."""
        return call.kind == "model" and self._record.state.created.runtime != "prompt"

    async def _signalled(self, signal: Signal) -> None:
        if signal.id in self._seen_signals:
            return
        self._seen_signals.add(signal.id)
        record, state = self._record, self._record.state
        match signal.kind:
            case "cancel":
                cancel = msgspec.json.decode(signal.body, type=CancelBody)
                record.write(
                    CancelRequested(signal.principal, cancel.reason, signal.id),
                    consumed=(signal.id,),
                    signals=self._family.cancel_all(cancel.reason),
                )
            case "answer":
                await self._told(signal, answer_facts(state, signal))
            case "resolve":
                await self._told(signal, resolve_facts(state, signal))
            case "child_parked":
                self._family.parked(signal)
            case "child_ended":
                await self._learn(await self._family.ended(signal))
            case _:
                raise Fault(f"unknown signal kind {signal.kind}", code="signal_unknown")

    async def _told(self, signal: Signal, facts: Sequence[EffectAnswered | EffectResolved | EffectReceived]) -> None:
        """Records what a person said; what no longer fits is only consumed."""
        receipt = next((fact for fact in facts if isinstance(fact, EffectReceived)), None)
        spend = NO_SPEND if receipt is None else STEP_SPEND
        settle = () if receipt is None else settled(self._record.state.open.get(receipt.effect), receipt)
        closed = tuple({fact.effect for fact in facts})
        self._record.write(*facts, consumed=(signal.id,), inbox_close=closed, spend=spend, settle=settle)
        await self._learn(receipt)

    # What is decided

    async def _carry_out(self, command: Command) -> None:
        if isinstance(command, _RULED) and command.ruling is not None:
            await self._world.keep_policy(command.ruling.version)
        match command:
            case WakeAt():
                self._wake_at(command.time_us)
            case StartCode():
                await self._start_code()
            case Recall():
                await self._recall(command)
            case Intend() if command.call.kind == "spawn":
                await self._spawn(command)
            case Intend():
                await self._intend(command)
            case Consult():
                self._consult(command)
            case Repeat() | Examine():
                await self._repeat(command)
            case Rejoin():
                await self._family.rejoin(command.call)
            case Ask():
                await self._ask(command)
            case Refuse():
                self._refuse(command)
            case Reject():
                self._calls.drop(command.call)
                self._send(Answer(command.call.id, error=command.error))
            case CancelCode():
                self._record.observe(cancel_sent_us=self._world.clock.now_us())
                self._send(Cancel(command.reason))
            case Doubt():
                self._doubt(command.effects, command.reason)
            case Park() | End():
                await self._come_to_rest(command)
            case Retry():
                await self._retry()
            case _:
                assert_never(command)

    async def _start_code(self) -> None:
        world, record = self._world, self._record
        attempt = record.state.attempt + 1
        try:
            job = await world.agents.job(record.state, self._history, world.clock.now_us())
            job = msgspec.structs.replace(job, attempt=attempt)
            self._code = await world.executor(record.state).start(job, self.post)
        except (Unavailable, NotFound, LedgerCorrupt) as error:
            self._rest, self.lost = await self._resting.give_back(error), error
            return None
        except AtlasError as error:
            return record.observe(has_code=True, finished=Finished(error=error.record()))
        record.observe(has_code=True, unclaimed=len(self._unclaimed), quiet_since_us=world.clock.now_us())
        # Ordered before every intent of this attempt, so whoever takes over knows which process to end.
        started = AttemptStarted(attempt, self.lease.owner, self._code.process, self._is_retry)
        record.write(started, lazy=True)
        world.boundary("code.started")

    async def _recall(self, command: Recall) -> None:
        match command.recorded:
            case EffectReceived() as receipt:
                result = await unpack(self._world.ledger, receipt.result)
                self._send(Answer(command.call.id, result, receipt.error))
            case EffectRefused() as refused:
                self._send(Answer(command.call.id, error=refused.error))

    async def _intend(self, command: Intend) -> None:
        call = command.call
        intent = await intent_of(self._world.ledger, command)
        self._world.boundary("intent.before")
        if may_go_ahead(command):
            self._record.write(intent, lazy=True)
            self._calls.begin(call)
            self._go_on(Durable(call))
        elif call.need is None and command.standing is None:
            self._perform_when(call, self._record.write(intent), Durable(call))
        else:
            self._calls.begin(call)
            await self._admissions.begin(call, intent, command.standing)

    async def _repeat(self, command: Repeat | Examine) -> None:
        call, state = command.call, self._record.state
        if call.need is not None:
            # Nobody knows what the lost call used: its reservation is settled in full, and it is reserved for anew.
            self._calls.begin(call)
            return await self._admissions.begin(call, state.open[call.effect])
        # The commit proves that this process still holds the lease. A person's leave to perform is good for one try,
        # so it is used up by a new intent; otherwise there is nothing new to record.
        facts = (state.open[call.effect],) if call.effect in state.permitted else ()
        self._perform_when(call, self._record.write(*facts), Durable(call, probe=isinstance(command, Examine)))
        return None

    def _perform_when(self, call: CallMade, commit: asyncio.Future[Appended], message: Durable) -> None:
        self._calls.begin(call)
        commit.add_done_callback(lambda done: None if failed(done) else self.post(message))

    async def _spawn(self, command: Intend) -> None:
        call = command.call
        self._family.expect(call)
        try:
            await self._family.start(command)
        except AtlasError as error:
            self._family.forget(call.effect)
            self._refuse(Refuse(call, "deny", error.record()))

    def _consult(self, command: Consult) -> None:
        self._calls.begin(command.call)
        self._questions.consult(self._record, command)

    async def _ask(self, command: Ask) -> None:
        asked = await question_of(self._world.ledger, command, self._world.expires_us())
        item = self._record.inbox_item(asked.effect, "approval", msgspec.json.encode(asked))
        self._record.write(asked, inbox_open=(item,))
        self._world.boundary("asked")

    def _not_admitted(self, message: NotAdmitted) -> None:
        """No money for the call: it is refused, or, when an earlier try of it was lost, it ends with that."""
        if message.is_mandate_empty:
            self._record.observe(unmandated=self._record.state.live.unmandated | {message.call.effect})
            return self._calls.put_back(message.call)
        if not isinstance(message.error, Refused | Invalid | BudgetBusy):
            return self._lose(message.error)
        call = message.call
        self._calls.end(call.id)
        if isinstance(message.error, BudgetBusy):
            return None
        intent = self._record.state.open.get(call.effect)
        if intent is None:
            return self._refuse(Refuse(call, "deny", message.error.record()))
        receipt = unaffordable(intent, message)
        self._remember(receipt)
        self._record.write(receipt, spend=STEP_SPEND, settle=settled(intent, receipt))
        self._send(Answer(call.id, error=receipt.error))
        return None

    def _refuse(self, command: Refuse) -> None:
        call = command.call
        self._calls.drop(call)
        refused = self._history.answers[call.effect] = refusal_of(command)
        self._record.write(refused, lazy=True)
        self._send(Answer(call.id, error=command.error))

    def _doubt(self, effects: tuple[str, ...], reason: str) -> None:
        doubts = tuple(EffectDoubted(effect, reason) for effect in effects)
        items = tuple(self._record.doubt_item(effect) for effect in effects)
        self._record.write(*doubts, inbox_open=items)

    async def _retry(self) -> None:
        await self._stop_code()
        await self._record.flush()
        # What the lost code said is void and signals are read again; what this process was told still holds.
        self._mail.keep((Stop, Lost, Granted))
        self._seen_signals.clear()
        self._family.restart()
        self._is_retry = True
        is_stopping = self._record.state.live.is_stopping
        self._history = await load(self._world.ledger, self.run_id)
        self._record.state = with_live(self._history.state)
        self._record.observe(is_stopping=is_stopping)
        self._calls.forget()
        self._unclaimed = set(self._history.answers) | set(self._history.state.open)

    async def _come_to_rest(self, command: Park | End) -> None:
        await self._stop_code(is_end=isinstance(command, End))
        if isinstance(command, Park):
            self._rest = await self._resting.park(command)
        else:
            self._rest = await self._resting.end(command, self._history)

    # Small parts

    def _send(self, message: Answer | Perform | Probe | Cancel) -> None:
        if self._code is not None:
            self._code.send(message)

    def _perform(self, call_id: int, effect: str) -> Perform:
        intent = self._record.state.open[effect]
        args = intent.args.json if intent.is_edited else None
        return Perform(call_id, self._effect_key(effect), args, intent.hold)

    def _effect_key(self, effect: str) -> str:
        return f"{self.run_id}/{effect}"

    def _remember(self, receipt: EffectReceived) -> None:
        self._history.answers[receipt.effect] = receipt

    async def _learn(self, receipt: EffectReceived | None) -> None:
        """Takes an outcome; code that asks for it once more at this moment is answered, and it is not begun anew."""
        if receipt is None:
            return
        self._remember(receipt)
        for call in self._calls.waiting(receipt.effect):
            self._calls.drop(call)
            await self._recall(Recall(call, receipt))

    async def _stop_code(self, *, is_end: bool = False) -> None:
        await self._questions.stop(is_end=is_end)
        self._admissions.stop()
        if self._code is None:
            return
        await self._code.stop()
        self._code = None
        # What the code had done and said before it was stopped is on its way: a receipt in hand is not in doubt.
        for message in self._mail.take(_SAID):
            await self._handle(message)

    def _wake_at(self, time_us: int) -> None:
        if self._timer is not None and self._timer_us <= time_us:
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, (time_us - self._world.clock.now_us()) / 1_000_000)
        self._timer_us = time_us
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.post, Tick())


# The code stopped waiting before the effect began: if it asks again, it means to have it.
_NOT_PERFORMED = "step_not_performed"
_SAID = (Performed, ValueTaken, Noted, Printed, Steered)
_RULED = (Intend, Ask, Refuse, Consult)
# After these nothing needs to arrive before the next decision.
_SILENT = (Ask, Doubt, Rejoin, Retry, StartCode)
# What needs no task of its own: a call of the code on its way to being performed, and back.
_AT_ONCE = (CallMade, Performed, Admitted, Durable, ValueTaken, Steered, Noted, Printed, Intend, Recall, Repeat, WakeAt)
