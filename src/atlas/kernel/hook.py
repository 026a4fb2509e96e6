"""Hooks: where a host puts its own rules into a turn. The loop asks at eight moments and does what they decide.

    turn   reset_for_turn
    step   before_step -> prepare_messages -> (the model) -> record_step_usage -> after_step
    tool   authorize_tool -> (the tool) -> transform_tool_result
    end    should_continue_after_stop

A hook keeps nothing: whatever it needs to know of the turn is in the `TurnView`, which is a fold over recorded events.
A decision is recorded with the name of the hook that made it, and a turn that is executed again takes it from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from atlas.kernel.model import StopReason, ToolCall, ToolResult, Usage

MAX_ROUNDS: Final = 25
"""How often a turn may be sent on after an answer, all hooks together."""


class Continued(msgspec.Struct, frozen=True):
    """A hook sent the turn on after the answer of this step."""

    hook: str
    step: int


class TurnView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a hook may know of the turn. `usage` is the whole turn's; `last_tool_step` is 0 before any tool ran."""

    run_id: str
    agent: str
    turn: int
    step: int = 0
    usage: Usage = Usage()
    last_tool_step: int = 0
    continued: tuple[Continued, ...] = ()

    @property
    def handle(self) -> str:
        """Where the model recalls the `detail` of what is decided about this step's answer."""
        return f"t{self.turn}.{self.step}.1"

    def rounds_of(self, hook: str) -> tuple[Continued, ...]:
        """How this hook has sent the turn on so far."""
        return tuple(one for one in self.continued if one.hook == hook)


class Deny(msgspec.Struct, frozen=True, tag="deny"):
    """It must not happen: a step, or a tool call. `counts_as_stuck`: asking for it again is going round in circles."""

    reason: str
    counts_as_stuck: bool = True
    by: str = ""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The turn ends here, without the answer being accepted. `detail` is what the reason was made from, as of `Continue`."""

    reason: str
    counts_as_stuck: bool = False
    by: str = ""
    detail: str = ""


class Continue(msgspec.Struct, frozen=True, tag="continue"):
    """The answer is not accepted: the turn goes on with `feedback` as the next thing the model hears.

    `detail` is what the feedback was made from; the model can recall all of it under the view's handle.
    """

    feedback: str
    by: str = ""
    detail: str = ""


class Added(msgspec.Struct, frozen=True, tag="added"):
    """A block for the next request. It is recorded with the request; nothing that is there already is ever edited."""

    title: str
    text: str
    by: str = ""


class Transformed(msgspec.Struct, frozen=True):
    """A tool's result after the hooks, and those that changed it."""

    result: ToolResult
    by: tuple[str, ...] = ()


class HookFailure(msgspec.Struct, frozen=True):
    """A hook raised, or decided something that is no decision."""

    hook: str
    moment: str
    message: str
    is_closed: bool


class Hook:
    """The base of a hook: override what it is about. `fails` says what its own failure means.

    `closed`, for security and budgets: as if it had said no. `open`, for advice: as if it had said nothing.
    """

    name: str = ""
    fails: Literal["closed", "open"] = "closed"

    async def reset_for_turn(self, view: TurnView) -> Deny | None:
        """The turn begins."""
        return None

    async def before_step(self, view: TurnView) -> Deny | None:
        """The model is about to be asked."""
        return None

    async def prepare_messages(self, view: TurnView) -> Added | None:
        """The last chance to add something to the request."""
        return None

    async def record_step_usage(self, view: TurnView, usage: Usage) -> Stop | None:
        """A step used this much; `view.usage` has it already."""
        return None

    async def after_step(self, view: TurnView, stop: StopReason) -> Stop | None:
        """The model has answered, and the tools it called have run."""
        return None

    async def should_continue_after_stop(self, view: TurnView, answer: str) -> Continue | Stop | None:
        """The model says that it is done."""
        return None

    async def authorize_tool(self, view: TurnView, call: ToolCall) -> Deny | None:
        """A tool is about to run."""
        return None

    async def transform_tool_result(self, view: TurnView, call: ToolCall, result: ToolResult) -> ToolResult | None:
        """A tool's result is about to reach the model."""
        return None


Decision: TypeAlias = Deny | Stop | Continue | Added
T = TypeVar("T")
C = TypeVar("C")
D = TypeVar("D", bound=Decision)
Perform: TypeAlias = Callable[[Callable[[], Awaitable[Any]]], Awaitable[tuple[Any, BaseException | None]]]
"""Runs a hook's code: what it decided, or what it raised. Raises itself only what is meant for the turn."""


async def perform(work: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    """What the code decided or raised. That somebody is cancelled is raised: from here nobody can tell who."""
    try:
        return await work(), None
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it raises is its failure
        return None, error


class Hooks:
    """Several hooks as one: the first denial, any stop after all have looked, the first that sends the turn on."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        report: Callable[[HookFailure], None] = lambda _: None,
        perform: Perform = perform,
    ) -> None:
        self.hooks = tuple(hooks)
        self._report = report
        self._perform = perform

    async def reset_for_turn(self, view: TurnView) -> Deny | None:
        """The first denial; the turn then ends before it began."""
        for hook in self.hooks:
            found = await self._asked(
                hook, "reset_for_turn", partial(hook.reset_for_turn, view), (Deny,), _denied(hook)
            )
            if found is not None:
                return _signed(found, hook)
        return None

    async def before_step(self, view: TurnView) -> Deny | None:
        """The first denial; the turn then ends with its reason."""
        for hook in self.hooks:
            found = await self._asked(hook, "before_step", partial(hook.before_step, view), (Deny,), _denied(hook))
            if found is not None:
                return _signed(found, hook)
        return None

    async def prepare_messages(self, view: TurnView) -> tuple[Added, ...] | Deny:
        """Every block that a hook adds, in their order; a denial when one that must not fail does."""
        added: list[Added] = []
        for hook in self.hooks:
            answer = partial(hook.prepare_messages, view)
            match await self._asked(hook, "prepare_messages", answer, (Added,), _denied(hook)):
                case Added() as block:
                    added.append(_signed(block, hook))
                case Deny() as denied:
                    return denied
        return tuple(added)

    async def record_step_usage(self, view: TurnView, usage: Usage) -> Stop | None:
        """The first stop, after every hook has seen the usage."""
        found = [
            await self._asked(
                hook, "record_step_usage", partial(hook.record_step_usage, view, usage), (Stop,), _stopped(hook)
            )
            for hook in self.hooks
        ]
        return self._first_stop(found)

    async def after_step(self, view: TurnView, stop: StopReason) -> Stop | None:
        """The first stop, after every hook has seen the step."""
        found = [
            await self._asked(hook, "after_step", partial(hook.after_step, view, stop), (Stop,), _stopped(hook))
            for hook in self.hooks
        ]
        return self._first_stop(found)

    async def should_continue_after_stop(self, view: TurnView, answer: str) -> Continue | Stop | None:
        """The first that does not accept the answer; None when all do. Ends when the turn was sent on too often."""
        moment = "should_continue_after_stop"
        for hook in self.hooks:
            asked = partial(hook.should_continue_after_stop, view, answer)
            match await self._asked(hook, moment, asked, (Continue, Stop), _stopped(hook)):
                case Continue() if len(view.continued) >= MAX_ROUNDS:
                    return Stop(f"the answer was sent back {MAX_ROUNDS} times", counts_as_stuck=True, by=hook.name)
                case Continue() as onward:
                    return _signed(onward, hook)
                case Stop() as end:
                    return _signed(end, hook)
        return None

    async def authorize_tool(self, view: TurnView, call: ToolCall) -> Deny | None:
        """The first denial."""
        for hook in self.hooks:
            found = await self._asked(
                hook, "authorize_tool", partial(hook.authorize_tool, view, call), (Deny,), _denied(hook)
            )
            if found is not None:
                return _signed(found, hook)
        return None

    async def transform_tool_result(self, view: TurnView, call: ToolCall, result: ToolResult) -> Transformed:
        """The result after every hook in turn; withheld when one that must not fail does."""
        by: list[str] = []
        for hook in self.hooks:
            withheld = ToolResult(call.id, f"(withheld: {_failed(hook)})", is_error=True)
            asked = partial(hook.transform_tool_result, view, call, result)
            found = await self._asked(hook, "transform_tool_result", asked, (ToolResult,), withheld)
            if found is not None and found != result:
                by.append(hook.name)
                result = replace(found, id=call.id)
        return Transformed(result, tuple(by))

    def _first_stop(self, found: list[Stop | None]) -> Stop | None:
        return next((_signed(stop, hook) for stop, hook in zip(found, self.hooks, strict=True) if stop), None)

    async def _asked(
        self, hook: Hook, moment: str, answer: Callable[[], Awaitable[T | None]], kinds: tuple[type, ...], closed: C
    ) -> T | C | None:
        """What the hook decides; when it cannot, what its failure means."""
        found, error = await self._perform(answer)
        decision: T | None = found
        if error is None and (found is None or (isinstance(found, kinds) and _is_sound(found))):
            return decision
        message = _shown(lambda: f"it decided {found!r:.200}" if error is None else f"{type(error).__name__}: {error}")
        is_closed = hook.fails != "open"
        self._report(HookFailure(hook.name, moment, message, is_closed))
        return closed if is_closed else None


def _is_sound(decision: object) -> bool:
    """Whether it can be recorded as what it declares to be; nothing has looked when it was made."""
    try:
        msgspec.json.decode(msgspec.json.encode(decision), type=type(decision))
    except (TypeError, ValueError):
        return False
    return True


def _shown(text: Callable[[], str]) -> str:
    """What went wrong in words; to put it into words is the hook's own code again."""
    try:
        return text().encode(errors="backslashreplace").decode()
    except BaseException as error:  # noqa: BLE001 - whatever that code raises, it has failed already
        return f"it cannot be shown ({type(error).__name__})"


def _signed(decision: D, hook: Hook) -> D:
    return replace(decision, by=hook.name)


def _denied(hook: Hook) -> Deny:
    return Deny(_failed(hook), by=hook.name)


def _stopped(hook: Hook) -> Stop:
    return Stop(_failed(hook), by=hook.name)


def _failed(hook: Hook) -> str:
    return f"hook {hook.name} failed, and what it guards is refused without it"
