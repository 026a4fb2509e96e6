"""How a turn acts: the tool calls of one step, checked, guarded, performed in order, and told to the model.

act    check -> guard -> tell what is not performed -> perform -> receive -> guard
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from atlas.control.account import error_text
from atlas.control.asking import Asking
from atlas.control.calls import Calls, InDoubt, Wanted
from atlas.control.desk import Checked, Desk, PastCall
from atlas.control.history import History
from atlas.control.order import in_order
from atlas.control.payload import pack, unpack
from atlas.control.steering import Steering
from atlas.control.world import Effected
from atlas.kernel import guard
from atlas.kernel.batch import Claim, claim, claim_of
from atlas.kernel.code import FromCode, Perform, Steered
from atlas.kernel.context import Session
from atlas.kernel.errors import AtlasError, RunFailed
from atlas.kernel.event import CallAnswered
from atlas.kernel.media import Given
from atlas.kernel.model import Tab, ToolCall, ToolResult
from atlas.kernel.port import Ledger
from atlas.kernel.token import size_of
from atlas.kernel.tool import ToolFinding, ToolOutcome
from atlas.kernel.turn import Finish, Turn, advised, note_of, note_problem, noted, received, shown_again

_ENCODER: Final = msgspec.json.Encoder()


class Acting:
    """What a turn needs to act; `seen` is what the guard has seen of it so far."""

    def __init__(
        self,
        ledger: Ledger,
        calls: Calls,
        history: History,
        desk: Desk,
        session: Session,
        asking: Asking,
        steering: Steering | None,
        tell: Callable[[FromCode], None],
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._history = history
        self._desk = desk
        self._session = session
        self._asking = asking
        self._steering = steering
        self._tell = tell
        self.seen = guard.GuardState()

    async def act(self, turn: Turn, step: int, calls: tuple[ToolCall, ...]) -> Turn:
        """Runs the calls of a step, side by side where they do not touch the same things; results keep their order."""
        checks = [self._checked(call, step, number) for number, call in enumerate(calls, start=1)]
        seen = [_as_guarded(call, check) for call, check in zip(calls, checks, strict=True)]
        verdicts = list(guard.verdicts(self.seen, seen))
        for number, (check, verdict) in enumerate(zip(checks, verdicts, strict=True)):
            before = self._history.told.get((step, number + 1))
            if before is not None and _said_instead(check, verdict) is None:
                text = msgspec.json.decode(await unpack(self._ledger, before), type=str)
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
                said = await pack(self._ledger, _ENCODER.encode(text))
                self._history.told[step, number + 1] = said
                self._tell(Steered(CallAnswered(step, number + 1, said)))

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
        turn = received(turn, tuple(results), self._asking.limits.at(self._asking.rate))
        return self._guarded(turn, reports)

    def _look_again(self, turn: Turn, outcome: ToolOutcome, picture: Given) -> tuple[Turn, ToolOutcome]:
        """Puts a picture that was recalled before the model, beside the user's words, for the rest of the turn."""
        standing = size_of((self._asking.system, [tool.spec for tool in self._desk.tools.values()]))
        # Half of what persona and tools leave, so that the user's words and the last steps always have room beside it.
        limit = max(0, self._asking.limits.total - int(standing / self._asking.rate)) // 2
        shown = shown_again(turn, picture, limit)
        if shown is None:
            text = f"{outcome.text}\nIt weighs {picture.file.tokens} tokens, more than there is room for ({limit})."
            return turn, replace(outcome, text=text, is_error=True)
        return shown, replace(outcome, text=f"{outcome.text}\nIt stands before the user's words from now on.")

    def _guarded(self, turn: Turn, reports: list[guard.Report]) -> Turn:
        """Ends a turn that goes round in circles, with a word of warning on the way there."""
        self.seen = guard.after_batch(self.seen, reports)
        stuck = guard.stuck(self.seen)
        if stuck is not None:
            error = RunFailed(stuck.reason, hint="See what it tried with 'atlas show'.", code="stuck")
            return replace(turn, finish=Finish(error=error.record()))
        warning = guard.advice(self.seen)
        return advised(turn, warning) if warning else turn

    async def _run_tool(self, effect: str, check: Checked) -> ToolOutcome:
        definition = check.definition

        async def perform(leave: Perform, tab: Tab) -> Effected:
            edited = None if leave.args is None else self._edited(check, leave.args)
            if isinstance(edited, ToolOutcome):
                return Effected(_ENCODER.encode(edited))
            outcome = await self._desk.perform(
                edited or check, leave.effect_key, self._asking.limits.recall, self._asking.rate
            )
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


def _as_guarded(call: ToolCall, check: Checked | ToolResult) -> guard.Call:
    if isinstance(check, ToolResult):
        return guard.Call(call.name, call.args, is_wrong=True)
    return guard.Call(call.name, call.args, check.definition.effect)


def _said_instead(check: Checked | ToolResult, verdict: guard.Verdict) -> str | None:
    """What a call is answered with that is not performed; None for one that may be."""
    if isinstance(check, ToolResult):
        return check.text
    return None if isinstance(verdict, guard.Allow) else verdict.text
