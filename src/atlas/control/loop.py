"""The loop of a prompt agent: one turn, from what was said to the answer.

    execute    begin -> (plan -> ask the model | run its tools)* -> answer

The loop is code like an agent's own: every model call and every tool call is an effect of the run, so intents, receipts,
policy, approvals, cancelling, recovery and replay are the driver's, unchanged. A turn that is executed again is
answered from the record and rebuilds no request; a model call that was lost is asked again with the recorded one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from atlas.control.account import given, session_before, user_text
from atlas.control.acting import Acting
from atlas.control.answer import MAX_REPAIRS, asked_again, bare_json, complaint_about
from atlas.control.asking import Asking, Reached, Wish
from atlas.control.calls import Calls
from atlas.control.course import Course
from atlas.control.critic import CriticDesk
from atlas.control.desk import Desk
from atlas.control.history import History, load
from atlas.control.hookset import perform
from atlas.control.service import Services
from atlas.control.steering import Steering, sent_back
from atlas.control.world import bug
from atlas.kernel.code import Cancel, Finished, FromCode, Job, Noted, ToCode
from atlas.kernel.context import Built
from atlas.kernel.errors import AtlasError, Cancelled, RunFailed
from atlas.kernel.event import EffectIntended, Process
from atlas.kernel.hook import HookFailure, Hooks, TurnView
from atlas.kernel.token import HIGHEST_RATE
from atlas.kernel.turn import Ask, Finish, RunTools, Turn, answered, plan, unanswered, windowed

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
        self._history: History
        self._desk: Desk
        self._asking: Asking
        self._acting: Acting
        self._steering: Steering | None = None
        self._repairs = 0
        self._wish = Wish()

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
        self._wish = Wish(asked[-1], intents)
        try:
            await self._execute()
        except Reached as reached:
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
                    turn = await self._acting.act(turn, step, calls)
                case Finish(text=text, error=None):
                    complaint = complaint_about(text, self._desk.contract.output.schema, self._services.complain)
                    onward = await self._not_yet(turn, text, complaint)
                    if onward is None:
                        return self._finished(text, complaint)
                    turn = onward
                case Finish(error=error):
                    return Finished(error=error)

    async def _ask(self, turn: Turn, step: int) -> Turn:
        asking, steering = self._asking, self._steering
        if steering is not None:
            turn = await steering.before(turn, step, self._acting.seen)
            if turn.finish is not None:
                return turn
        turn = windowed(turn, asking.limits.at(asking.rate).window)
        try:
            heard = await asking.ask(turn, step, () if steering is None else steering.added)
        except AtlasError as error:
            if turn.partial and error.reason == "model_empty":
                return unanswered(turn)
            raise
        turn = answered(turn, heard.reply)
        return turn if steering is None else await steering.heard(turn, heard.reply)

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
        history = self._history = await load(services.ledger, job.run_id)
        desk = self._desk = await services.desk(job)
        row = await services.ledger.run(job.run_id)
        session = await session_before(services.ledger, job.session_id, row.turn)
        asking = self._asking = Asking(services, self._calls, history, desk, session, self._wish)
        await asking.begin()
        self._steering = self._steered_by(row.turn)
        self._acting = Acting(
            services.ledger, self._calls, history, desk, session, asking, self._steering, self._receive
        )
        files = history.state.created.files
        head_bytes = int(asking.limits.user * HIGHEST_RATE)
        return Turn(
            row.turn,
            user_text(job.input, files),
            await given(services.ledger, files, row.turn, head_bytes) if files else (),
        )

    def _steered_by(self, turn: int) -> Steering | None:
        """The hooks and the critic of the turn; None when it has none, and then they cost nothing."""
        contract, history = self._desk.contract, self._history
        # A turn that is only looked at again takes every decision from its record.
        is_live = history.state.ended is None and not self._wish.effect
        hooks = self._services.hooks.make(contract) if is_live else ()
        if not (hooks or history.steered or contract.soft_timeout_s):
            return None
        course = self._course()
        critic = None
        if contract.soft_timeout_s:
            critic = CriticDesk(contract, course, self._clocked(history.state.active_us), self._asking.ask_critic)
        view = TurnView(self._job.run_id, self._job.agent, turn)
        return Steering(Hooks(hooks, self._report_failure, perform), course, view, critic, self._services.hooks.clean)

    def _course(self) -> Course:
        return Course(self._services.ledger, self._history, self._wish.intents, self._receive)

    def _clocked(self, active_us: int) -> Callable[[], int]:
        """Counts on from what the run's earlier attempts took: time in which nobody executes it does not count."""
        clock = self._services.clock
        began_us = clock.now_us()
        return lambda: active_us + clock.now_us() - began_us

    def _report_failure(self, failure: HookFailure) -> None:
        self._receive(Noted(f"hook {failure.hook} failed at {failure.moment}: {failure.message}", "warning"))
