"""Hooks and the critic in the loop: asks them at their moments and does with the turn what they decide.

    begin   before (critic, before_step, prepare_messages)   heard   authorize   transform   after_tools   accept

Each gives back the turn: as it was, with something said to the model, or finished. A decision is recorded before
anything follows from it, and taken from the record where there is one; see `Course`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.control.course import Course
from atlas.control.critic import CriticDesk
from atlas.kernel.errors import AtlasError, PolicyRefused, RunFailed
from atlas.kernel.event import TurnSteered
from atlas.kernel.excerpt import shorten
from atlas.kernel.guard import Blocked, GuardState
from atlas.kernel.hook import Continue, Continued, Deny, Hooks, Stop, Transformed, TurnView
from atlas.kernel.model import Reply, StopReason, ToolCall, ToolResult, Usage
from atlas.kernel.token import text_size
from atlas.kernel.tool import ToolOutcome
from atlas.kernel.turn import Finish, Turn, advised

LONGEST: Final = 3_600
"""Bytes of a hook's words that reach the model or an error; all of them can be recalled."""

_FORM: Final = "answer_form"
_SCHEMA: Final = "output.schema"

_Decided: TypeAlias = Deny | Stop | Continue | Transformed | None
_Said: TypeAlias = Callable[[], Awaitable[_Decided]]


class Steering:
    """The hooks and the critic of one turn. `added` are the blocks that hooks put into the next request.

    What is said about a step has the place behind its calls: as many are `_taken`, at the beginning by files.
    `clean` takes out of what hooks say whatever must not land: they may have looked anywhere.
    """

    def __init__(
        self, hooks: Hooks, course: Course, view: TurnView, critic: CriticDesk | None, clean: Callable[[str], str]
    ) -> None:
        self.added: tuple[tuple[str, str], ...] = ()
        self._clean = clean
        self._hooks = hooks
        self._course = course
        self._view = view
        self._critic = critic
        self._stop: StopReason = "end"
        self._taken = 0

    async def begin(self, turn: Turn) -> Turn:
        """The turn, or the end of it before it began."""
        self._taken = len(turn.files)
        is_past = self._course.has_asked(1)
        fact = await self._decision("reset_for_turn", 0, is_past, lambda: self._hooks.reset_for_turn(self._view))
        return _steered(turn, fact)

    async def before(self, turn: Turn, step: int, seen: GuardState) -> Turn:
        """The turn as it goes into a step, with `added` for its request; finished when the step must not be."""
        self._view, self.added, self._taken = replace(self._view, step=step), (), 0
        if self._critic is not None:
            turn = await self._critic.look(turn, step, seen)
            if turn.finish is not None:
                return turn
        is_past = self._course.has_asked(step)
        fact = await self._decision("before_step", step, is_past, lambda: self._hooks.before_step(self._view))
        if fact is None:
            fact = await self._decision("prepare_messages", step, is_past, self._prepare)
        return _steered(turn, fact)

    async def _prepare(self) -> Deny | None:
        found = await self._hooks.prepare_messages(self._view)
        if isinstance(found, Deny):
            return found
        self.added = tuple((f"{self._clean(one.title)} (from {one.by})", self._clean(one.text)) for one in found)
        return None

    async def heard(self, turn: Turn, reply: Reply) -> Turn:
        """The turn after the model answered."""
        used = reply.usage
        view = self._view = replace(self._view, usage=_plus(self._view.usage, used))
        self._stop = reply.stop
        self._taken = sum(isinstance(part, ToolCall) for part in reply.parts)
        is_past = self._course.has_acted(view.step)
        fact = await self._decision(
            "record_step_usage", view.step, is_past, lambda: self._hooks.record_step_usage(view, used)
        )
        if fact is not None:
            return _steered(turn, fact)
        return turn if turn.pending else await self._after_step(turn)

    async def after_tools(self, turn: Turn, *, has_run: bool) -> Turn:
        """The turn after its tools answered; `has_run`: at least one of them, not only complaints about the calls."""
        if has_run:
            self._view = replace(self._view, last_tool_step=self._view.step)
        return await self._after_step(turn)

    async def _after_step(self, turn: Turn) -> Turn:
        view, stop = self._view, self._stop
        is_past = self._course.has_asked(view.step + 1)
        fact = await self._decision("after_step", view.step, is_past, lambda: self._hooks.after_step(view, stop))
        return _steered(turn, fact)

    async def authorize(self, effect: str, call: ToolCall, number: int) -> Blocked | None:
        """What tells the model that a call must not be; None when it may."""
        view = self._view
        is_past = self._course.has(effect) or self._course.has_asked(view.step + 1)
        fact = await self._decision(
            "authorize_tool", view.step, is_past, lambda: self._hooks.authorize_tool(view, call), number
        )
        return None if fact is None else Blocked(fact.text, fact.counts_as_stuck)

    async def transform(self, call: ToolCall, number: int, outcome: ToolOutcome) -> ToolOutcome:
        """The outcome as the model gets it; what the tool said stays on record under the call's handle."""
        view = self._view
        result = ToolResult(call.id, outcome.text, outcome.is_error)

        async def ask() -> Transformed | None:
            changed = await self._hooks.transform_tool_result(view, call, result)
            return changed if changed.by else None

        is_past = self._course.has_asked(view.step + 1)
        fact = await self._decision("transform_tool_result", view.step, is_past, ask, number)
        if fact is None:
            return outcome
        changed = msgspec.json.decode(await self._course.detail(fact), type=ToolOutcome)
        return replace(changed, picture=outcome.picture)

    async def accept(self, turn: Turn, answer: str) -> Turn:
        """The same turn when its answer is accepted; else one that goes on, or ends without it."""
        view = self._view
        fact = await self._decision(
            "should_continue_after_stop",
            view.step,
            self._course.has_asked(view.step + 1),
            lambda: self._hooks.should_continue_after_stop(view, answer),
        )
        if fact is not None and fact.decision == "continue":
            self._view = replace(view, continued=(*view.continued, Continued(fact.by, view.step)))
        return _steered(turn, fact)

    async def _decision(self, moment: str, step: int, is_past: bool, said: _Said, call: int = 0) -> TurnSteered | None:
        """What is decided here: on record, or by the hooks where the record ends; None when nothing is."""
        fact = self._course.find(moment, step, call)
        if fact is not None or is_past or not self._hooks.hooks:
            return fact
        found = _cleaned(await said(), self._clean)
        if found is None:
            return None
        handle = f"t{self._view.turn}.{step}.{call or self._taken + 1}"
        return await self._course.record(
            *_fact(found, TurnSteered(moment, step, "stop", found_by(found), call), handle)
        )


async def sent_back(turn: Turn, words: str, course: Course) -> Turn:
    """The turn as it goes on with what is wrong with the form of its answer; on record like what a hook says."""
    fact = course.find(_FORM, turn.step)
    if fact is None and not course.has_asked(turn.step + 1):
        at = TurnSteered(_FORM, turn.step, "continue", _SCHEMA)
        fact = await course.record(*_worded(at, words, "", f"{turn.handle}.{turn.step}.1"))
    return advised(turn, words if fact is None else fact.text)


def _cleaned(found: _Decided, clean: Callable[[str], str]) -> _Decided:
    match found:
        case Deny():
            return replace(found, reason=clean(found.reason))
        case Stop():
            return replace(found, reason=clean(found.reason), detail=clean(found.detail))
        case Continue():
            return replace(found, feedback=clean(found.feedback), detail=clean(found.detail))
        case Transformed(result=result):
            return replace(found, result=replace(result, text=clean(result.text)))
    return None


def found_by(found: Deny | Stop | Continue | Transformed) -> str:
    """Whose decision it is."""
    return ", ".join(found.by) if isinstance(found, Transformed) else found.by


def _fact(found: Deny | Stop | Continue | Transformed, at: TurnSteered, handle: str) -> tuple[TurnSteered, object]:
    """The decision as it is recorded, and all that is behind it where that is more."""
    match found:
        case Deny(reason=reason):
            fact = replace(at, decision="deny", text=shorten(reason, handle, LONGEST))
            return replace(fact, counts_as_stuck=found.counts_as_stuck), reason if fact.text != reason else None
        case Stop(reason=words, detail=detail):
            fact = replace(at, decision="stop", counts_as_stuck=found.counts_as_stuck)
            return _worded(fact, words, detail, handle)
        case Continue(feedback=words, detail=detail):
            return _worded(replace(at, decision="continue"), words, detail, handle)
        case Transformed(result=result):
            return replace(at, decision="change"), ToolOutcome(result.text, result.is_error)


def _worded(fact: TurnSteered, words: str, detail: str, handle: str) -> tuple[TurnSteered, object]:
    """The decision with its words, and all that is behind them; words too long to be shown are the beginning of that."""
    if text_size(words) <= LONGEST:
        return replace(fact, text=words), detail or None
    return replace(fact, text=shorten(words, handle, LONGEST)), f"{words}\n\n{detail}" if detail else words


def _steered(turn: Turn, fact: TurnSteered | None) -> Turn:
    """The turn after a decision. One that failed already ends as that."""
    if fact is None or (turn.finish is not None and turn.finish.error is not None):
        return turn
    error: AtlasError
    match fact.decision:
        case "continue":
            return advised(turn, fact.text)
        case "deny":
            error = PolicyRefused(fact.text, hint=f"The hook {fact.by} decides this.", code="refused_by_hook")
        case _ if fact.counts_as_stuck:
            error = RunFailed(fact.text, hint="See what it tried with 'atlas show'.", code="stuck")
        case _:
            error = RunFailed(fact.text, hint=f"The hook {fact.by} decides this.", code="stopped_by_hook")
    return replace(turn, finish=Finish(error=error.record()))


def _plus(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.tokens_in + other.tokens_in,
        one.tokens_out + other.tokens_out,
        one.cached_in + other.cached_in,
        one.cache_write_in + other.cache_write_in,
        one.is_estimated or other.is_estimated,
    )
