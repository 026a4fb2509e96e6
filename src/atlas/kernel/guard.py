"""The loop guard: notices when a model goes round in circles, and leaves alone one that works. Pure.

    before(state, call)                       may it run, or is the answer known already
    after(state, call, result, ...)           what the call brought
    advice(state), stuck(state)               a word of warning, and the end

A call is progress when it brings a line that was not seen before, or changes something it has not changed before.
Ten calls in a row that bring none, or ten changes in a row that fail, end the turn. Waiting is honest: whoever waits
before asking again is never counted. The state is bounded, and a fold over recorded calls.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.kernel.event import EffectClass
from atlas.kernel.likeness import arguments_of, line_marks, mark, same_call, without_echo

LIMIT: Final = 10
ADVICE_AT: Final = 5
REMEMBERED_CALLS: Final = 32
REMEMBERED_LINES: Final = 1_024
HEAD: Final = 400
RUNS_BEFORE_ANSWERING: Final = 2
FAILURES_BEFORE_BLOCKING: Final = 3
LOOK_AGAIN_EVERY: Final = 4

Progress: TypeAlias = Literal["progress", "neutral", "idle"]


class Call(msgspec.Struct, frozen=True):
    """A tool call as the guard sees it. A call that is never performed (unknown tool, bad arguments) is read-only."""

    tool: str
    args: str
    effect: EffectClass = "read_only"


class Allow(msgspec.Struct, frozen=True, tag="allow"):
    """Let it run."""


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """Do not run it: `text` is the answer, from the record, with advice."""

    text: str


class Blocked(msgspec.Struct, frozen=True, tag="blocked"):
    """Do not run it; `text` says why. Not a failure of the call. A hook's refusal is one of these too."""

    text: str
    counts_as_stuck: bool = True


Verdict: TypeAlias = Allow | Answered | Blocked


class Stuck(msgspec.Struct, frozen=True):
    """The turn ends here; `reason` says on which axis nothing moved."""

    axis: Literal["no_progress", "failed_changes"]
    reason: str


class Tried(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that was made: what came back last, and how often in a row exactly that came back."""

    result: str
    times: int
    is_error: bool
    epoch: int
    head: str
    size: int
    handle: str = ""


class GuardState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the guard remembers of a turn.

    `idle` counts calls without progress in a row, `failed_changes` changes that failed since one succeeded. `epoch`
    goes up with every change: what was read before may be different now. `has_waited` says that the last call waited.
    """

    idle: int = 0
    failed_changes: int = 0
    epoch: int = 0
    has_waited: bool = False
    calls: dict[str, Tried] = {}
    new_lines: frozenset[int] = frozenset()
    old_lines: frozenset[int] = frozenset()


def before(state: GuardState, call: Call) -> Verdict:
    """Whether the call should run. The first times it always does, and after a change or a wait it does again."""
    tried = state.calls.get(same_call(call.tool, call.args))
    if tried is None or state.has_waited or tried.epoch != state.epoch:
        return Allow()
    if tried.is_error:
        return Blocked(_why_blocked(call, tried)) if tried.times >= FAILURES_BEFORE_BLOCKING else Allow()
    if call.effect != "read_only" or tried.times < RUNS_BEFORE_ANSWERING or tried.times % LOOK_AGAIN_EVERY == 0:
        return Allow()
    return Answered(_from_record(call, tried))


def after(
    state: GuardState,
    call: Call,
    text: str,
    *,
    is_error: bool = False,
    verdict: Verdict | None = None,
    handle: str = "",
) -> GuardState:
    """The state after a call came to `text`. `handle` is where the whole of it can be recalled.

    Every call of a batch is reported, in the provider's order: those that ran, and with their verdict those that did not.
    """
    name = same_call(call.tool, call.args)
    match verdict:
        case Blocked(counts_as_stuck=False):
            return state
        case Answered() | Blocked():
            return replace(_asked_again(state, name), idle=state.idle + 1, has_waited=False)
        case Allow() | None:
            pass
    if call.tool == "wait" and not is_error:
        is_first = not state.has_waited and _seconds(call.args) >= 1
        return replace(state, has_waited=is_first, idle=state.idle if is_first else state.idle + 1)
    told = without_echo(text, call.args) if is_error else text
    marks = line_marks(told)
    progress = _progress(state, call, name, is_error, is_new=not marks <= (state.new_lines | state.old_lines))
    state = _counted(state, call, progress, is_error)
    return _remembered(state, name, told, marks, is_error, Tried("", 1, is_error, 0, text[:HEAD], len(text), handle))


def advice(state: GuardState) -> str:
    """A warning worth giving before the next request; empty when there is none."""
    if state.failed_changes >= ADVICE_AT:
        return (
            f"The last {state.failed_changes} attempts to change something failed. Look at what is there now before the "
            f"next one, or try another way; after {LIMIT} the turn ends."
        )
    if state.idle >= ADVICE_AT:
        return (
            f"The last {state.idle} calls brought nothing new. Do something else, wait before asking again, or answer "
            f"with what you have; after {LIMIT} the turn ends."
        )
    return ""


def stuck(state: GuardState) -> Stuck | None:
    """Why the turn must end, once it must."""
    if state.idle >= LIMIT:
        return Stuck("no_progress", f"the last {state.idle} tool calls brought nothing new")
    if state.failed_changes >= LIMIT:
        return Stuck("failed_changes", f"{state.failed_changes} attempts in a row to change something failed")
    return None


def _progress(state: GuardState, call: Call, name: str, is_error: bool, is_new: bool) -> Progress:
    """What a call that ran is worth; `is_new` says that its result has a line that was not seen before."""
    is_repeat = name in state.calls
    if state.has_waited and is_repeat:
        return "progress" if is_new else "neutral"
    if call.tool == "note":
        return "idle" if is_repeat or is_error else "neutral"
    is_change = call.effect != "read_only"
    if is_error:
        if is_change or not is_new:
            return "idle"
        # The same question with a new answer is polling; a new question that fails is a guess, worth nothing yet.
        return "progress" if is_repeat else "neutral"
    if is_new or (is_change and not is_repeat):
        return "progress"
    return "idle"


def _counted(state: GuardState, call: Call, progress: Progress, is_error: bool) -> GuardState:
    idle = {"progress": 0, "neutral": state.idle, "idle": state.idle + 1}[progress]
    failed, epoch = state.failed_changes, state.epoch
    if call.effect != "read_only" and call.tool != "note":
        if not is_error:
            failed, epoch = 0, epoch + 1
        elif progress == "idle":
            failed += 1
    return replace(state, idle=idle, failed_changes=failed, epoch=epoch, has_waited=False)


def _remembered(
    state: GuardState, name: str, told: str, marks: frozenset[int], is_error: bool, tried: Tried
) -> GuardState:
    known = state.calls.get(name)
    result = mark(told)
    is_same = known is not None and known.result == result and known.is_error == is_error and known.epoch == state.epoch
    times = known.times + 1 if is_same and known is not None else 1
    calls = {key: one for key, one in state.calls.items() if key != name}
    while len(calls) >= REMEMBERED_CALLS:
        del calls[next(iter(calls))]
    calls[name] = replace(tried, result=result, times=times, epoch=state.epoch)
    lines = state.new_lines | marks
    if len(lines) <= REMEMBERED_LINES:
        return replace(state, calls=calls, new_lines=lines)
    # Two generations: the older one is forgotten as a whole, so that remembering costs the same however long a turn is.
    return replace(state, calls=calls, new_lines=marks, old_lines=state.new_lines)


def _asked_again(state: GuardState, name: str) -> GuardState:
    tried = state.calls.get(name)
    if tried is None:
        return state
    return replace(state, calls={**state.calls, name: replace(tried, times=tried.times + 1)})


def _seconds(args: str) -> float:
    value = arguments_of(args)
    seconds = value.get("seconds") if isinstance(value, dict) else None
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _from_record(call: Call, tried: Tried) -> str:
    whole = f" recall(handle={tried.handle!r}) shows all {tried.size} characters." if tried.handle else ""
    more = "..." if tried.size > len(tried.head) else ""
    return (
        f"Not run again: {call.tool} gave exactly this {tried.times} times and nothing was changed since.{whole} If you "
        f"expect it to change, call wait first. It said:\n{tried.head}{more}"
    )


def _why_blocked(call: Call, tried: Tried) -> str:
    more = "..." if tried.size > len(tried.head) else ""
    return (
        f"Not run: {call.tool} failed {tried.times} times in the same way with these arguments. Change the arguments in "
        f"substance, change something else first, or wait and try again. It said:\n{tried.head}{more}"
    )
