"""The loop guard: notices when a model goes round in circles, and leaves alone one that works. Pure.

    verdicts(state, calls)         which calls of a batch may run, and which are answered already
    after_batch(state, reports)    what they brought
    advice(state), stuck(state)    a word of warning, and the end

A call is progress when it brings a line that was not seen before, or changes something it has not changed before.
Ten calls in a row that bring none, or ten changes in a row that fail, end the turn. Waiting is honest: whoever waits
before asking again is never counted. The state is bounded, and a fold over recorded calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.kernel.event import EffectClass
from atlas.kernel.likeness import (
    alike_call,
    arguments_of,
    line_marks,
    mark,
    same_call,
    steady,
    without_echo,
    without_words,
)

LIMIT: Final = 10
ADVICE_AT: Final = 5
NOTES: Final = 40
"""How many notes may be written with no progress between them: as many as can be open."""
GUESSES: Final = 20
"""How many questions may fail with words of their own and no progress between them, where those words are the question's."""
FAILURES: Final = 100
"""The same where each says something that nobody has said before."""
REMEMBERED_CALLS: Final = 32
REMEMBERED_NAMES: Final = 512
REMEMBERED_LINES: Final = 1_024
HEAD: Final = 400
HEADED: Final = frozenset({"read_file", "list_files"})
"""Tools whose results begin with a line that only says which part of them it is."""
RUNS_BEFORE_ANSWERING: Final = 2
FAILURES_BEFORE_BLOCKING: Final = 3
LOOK_AGAIN_EVERY: Final = 4

Progress: TypeAlias = Literal["progress", "neutral", "noted", "guessed", "failed", "idle"]


class Call(msgspec.Struct, frozen=True):
    """A tool call as the guard sees it. `is_wrong`: no such tool, or arguments that do not fit it; never performed."""

    tool: str
    args: str
    effect: EffectClass = "read_only"
    is_wrong: bool = False


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


class Report(msgspec.Struct, frozen=True):
    """What became of a call: its result, or the verdict that kept it from running. `handle` recalls the whole result."""

    call: Call
    text: str
    is_error: bool = False
    verdict: Verdict = Allow()
    handle: str = ""


class Stuck(msgspec.Struct, frozen=True):
    """The turn ends here; `reason` says on which axis nothing moved."""

    axis: Literal["no_progress", "failed_changes"]
    reason: str


class Tried(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that was made: what came back last, when, and how often in a row exactly that came back."""

    result: str
    times: int
    is_error: bool
    epoch: int
    waits: int
    head: str
    size: int
    handle: str = ""


class GuardState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the guard remembers of a turn.

    `idle` counts calls without progress in a row, `progress` those with it, `notes` those written since the last one,
    `guesses` questions that failed since then, `failed_changes` changes that failed since one succeeded. `epoch` goes up
    with every change and `waits` with every wait: what was seen before may be different. `waiting` counts waits in a row
    that nobody has looked after yet. Of `calls` the last few are known in full, of many more only the names.
    """

    idle: int = 0
    progress: int = 0
    notes: int = 0
    guesses: int = 0
    failed_changes: int = 0
    epoch: int = 0
    waits: int = 0
    waiting: int = 0
    calls: dict[str, Tried] = {}
    new_lines: frozenset[int] = frozenset()
    old_lines: frozenset[int] = frozenset()
    new_names: frozenset[str] = frozenset()
    old_names: frozenset[str] = frozenset()

    @property
    def stalled(self) -> int:
        """How many calls in a row brought nothing; waits do from the second on, until somebody looks what came of them."""
        return self.idle + max(0, self.waiting - 1)


def verdicts(state: GuardState, calls: Sequence[Call]) -> tuple[Verdict, ...]:
    """Whether each call of a batch should run: `before`, except that what follows a change or a wait always may."""
    found: list[Verdict] = []
    is_fresh = False
    for call in calls:
        found.append(Allow() if is_fresh else before(state, call))
        is_fresh = is_fresh or _is_change(call) or _is_wait(call)
    return tuple(found)


def before(state: GuardState, call: Call) -> Verdict:
    """Whether the call should run. The first times it always does, and after a change or a wait it does again."""
    tried = state.calls.get(same_call(call.tool, call.args))
    if tried is None or (tried.epoch, tried.waits) != (state.epoch, state.waits):
        return Allow()
    if tried.is_error:
        return Blocked(_why_blocked(call, tried)) if tried.times >= FAILURES_BEFORE_BLOCKING else Allow()
    if call.effect != "read_only" or tried.times < RUNS_BEFORE_ANSWERING or tried.times % LOOK_AGAIN_EVERY == 0:
        return Allow()
    return Answered(_from_record(call, tried))


def after_batch(state: GuardState, reports: Sequence[Report]) -> GuardState:
    """The state after every call of a batch, in the provider's order.

    Calls that are new count once together when they lead nowhere: nobody could learn from one before making the next.
    """
    guesses = 0
    for report in reports:
        name = same_call(report.call.tool, report.call.args)
        is_guess = not _is_known(state, report.call, name)
        then = _after(state, report, name)
        if is_guess and (then.idle > state.idle or then.failed_changes > state.failed_changes):
            guesses += 1
            if guesses > 1:
                then = replace(then, idle=state.idle, failed_changes=state.failed_changes)
        state = then
    return state


def after(state: GuardState, report: Report) -> GuardState:
    """The state after one call."""
    return _after(state, report, same_call(report.call.tool, report.call.args))


def _after(state: GuardState, report: Report, name: str) -> GuardState:
    call, text, is_error = report.call, report.text, report.is_error
    match report.verdict:
        case Blocked(counts_as_stuck=False):
            return state
        case Blocked():
            return replace(state, idle=state.idle + 1, waiting=0)
        case Answered():
            return replace(_asked_again(state, name), idle=state.idle + 1, waiting=0)
        case Allow():
            pass
    if call.tool == "wait" and not is_error:
        return _waited(state, call)
    said = text.partition("\n")[2] or text if call.tool in HEADED and not is_error else text
    bare = without_echo(said, call.tool, call.args)
    if is_error:
        bare = steady(bare)
    marks = line_marks(said)
    bare_marks = marks if bare == said else line_marks(bare)
    # A call that is made again, or fails, brings nothing new by quoting its arguments in another spelling.
    telling = bare_marks if is_error or _is_known(state, call, name) else marks
    progress = _progress(state, call, name, is_error, is_new=_is_new(state, telling))
    if progress == "failed":
        quoted = line_marks(without_words(bare, call.args))
        progress = "failed" if _is_new(state, quoted) else "guessed"
        bare_marks |= quoted
    state = _counted(state, call, progress, is_error)
    last, result = state.calls.get(name), mark(bare.casefold())
    is_same = last is not None and (last.result, last.is_error, last.epoch) == (result, is_error, state.epoch)
    times = last.times + 1 if last is not None and is_same else 1
    tried = Tried(result, times, is_error, state.epoch, state.waits, text[:HEAD], len(text), report.handle)
    state = _named(state, name, alike_call(call.tool, call.args))
    return _remembered(state, name, tried, marks | bare_marks)


def advice(state: GuardState) -> str:
    """A warning worth giving before the next request; empty when there is none."""
    if state.failed_changes >= ADVICE_AT:
        return (
            f"The last {state.failed_changes} attempts to change something failed. Look at what is there now before the "
            f"next one, or try another way; after {LIMIT} the turn ends."
        )
    if state.stalled >= ADVICE_AT:
        return (
            f"The last {state.stalled} calls brought nothing new. Do something else, wait before asking again, or answer "
            f"with what you have; after {LIMIT} the turn ends."
        )
    return ""


def stuck(state: GuardState) -> Stuck | None:
    """Why the turn must end, once it must."""
    if state.stalled >= LIMIT:
        return Stuck("no_progress", f"the last {state.stalled} tool calls brought nothing new")
    if state.failed_changes >= LIMIT:
        return Stuck("failed_changes", f"{state.failed_changes} attempts in a row to change something failed")
    return None


def _progress(state: GuardState, call: Call, name: str, is_error: bool, is_new: bool) -> Progress:
    """What a call is worth; `is_new` says that its result has a line that was not seen before."""
    if call.is_wrong:
        return "idle"  # nothing was looked at: whatever is new in the complaint, the model wrote
    tried = state.calls.get(name)
    is_repeat = _is_known(state, call, name)
    if tried is not None and tried.waits < state.waits:
        return "progress" if is_new else "neutral"
    if call.tool == "note":
        return "idle" if is_repeat or is_error else "noted"
    is_change = _is_change(call)
    if is_error:
        if is_change or not is_new:
            return "idle"
        # The same question with a new answer is polling; a new question that fails is worth nothing yet.
        return "progress" if tried is not None else "failed"
    if is_new or (is_change and not is_repeat):
        return "progress"
    return "idle"


def _counted(state: GuardState, call: Call, progress: Progress, is_error: bool) -> GuardState:
    notes = 0 if progress == "progress" else state.notes + (progress == "noted")
    guesses = 0 if progress == "progress" else state.guesses + (progress in ("guessed", "failed"))
    is_idle = (
        progress == "idle"
        or (progress == "noted" and notes > NOTES)
        or (progress == "guessed" and guesses > GUESSES)
        or (progress == "failed" and guesses > FAILURES)
    )
    idle = 0 if progress == "progress" else state.idle + is_idle
    failed, epoch = state.failed_changes, state.epoch
    if _is_change(call):
        if not is_error:
            failed, epoch = 0, epoch + 1
        elif progress == "idle":
            failed += 1
    made = state.progress + (progress == "progress")
    return replace(
        state,
        idle=idle,
        progress=made,
        notes=notes,
        guesses=guesses,
        failed_changes=failed,
        epoch=epoch,
        waiting=0,
    )


def _waited(state: GuardState, call: Call) -> GuardState:
    """Waiting is worth a new look at everything; waiting on and on is worth nothing."""
    if not _is_wait(call):
        return replace(state, idle=state.idle + 1)
    return replace(state, waits=state.waits + (not state.waiting), waiting=state.waiting + 1)


def _remembered(state: GuardState, name: str, tried: Tried, marks: frozenset[int]) -> GuardState:
    calls = state.calls.copy()
    calls.pop(name, None)  # so that it becomes the newest
    if len(calls) >= REMEMBERED_CALLS:
        del calls[next(iter(calls))]
    calls[name] = tried
    lines = state.new_lines | marks
    if len(lines) <= REMEMBERED_LINES:
        return replace(state, calls=calls, new_lines=lines)
    # Two generations: the older one is forgotten as a whole, so that remembering costs the same however long a turn is.
    return replace(state, calls=calls, new_lines=marks, old_lines=state.new_lines)


def _named(state: GuardState, *names: str) -> GuardState:
    known = state.new_names.union(names)
    if len(known) <= REMEMBERED_NAMES:
        return replace(state, new_names=known)
    return replace(state, new_names=frozenset(names), old_names=state.new_names)


def _is_known(state: GuardState, call: Call, name: str) -> bool:
    """Whether the call was made before, be it under another id of the request."""
    names = (name, alike_call(call.tool, call.args))
    return name in state.calls or not (state.new_names.isdisjoint(names) and state.old_names.isdisjoint(names))


def _is_new(state: GuardState, marks: frozenset[int]) -> bool:
    return bool(marks - state.new_lines - state.old_lines)


def _asked_again(state: GuardState, name: str) -> GuardState:
    tried = state.calls.get(name)
    if tried is None:
        return state
    return replace(state, calls={**state.calls, name: replace(tried, times=tried.times + 1)})


def _is_change(call: Call) -> bool:
    return call.effect != "read_only" and call.tool != "note"


def _is_wait(call: Call) -> bool:
    """Whether time really passes: a wait of no time is only another call."""
    value = arguments_of(call.args) if call.tool == "wait" else None
    seconds = value.get("seconds") if isinstance(value, dict) else None
    return isinstance(seconds, int | float) and seconds >= 1


def _from_record(call: Call, tried: Tried) -> str:
    return (
        f"Not run again: {call.tool} gave the same result each time, and nothing was changed since. If you expect "
        f"another one, call wait first. {_said(tried)}"
    )


def _why_blocked(call: Call, tried: Tried) -> str:
    return (
        f"Not run: {call.tool} failed {tried.times} times in the same way with these arguments. Change the arguments in "
        f"substance, change something else first, or wait and try again. {_said(tried)}"
    )


def _said(tried: Tried) -> str:
    whole = f" (recall(handle={tried.handle!r}) shows all {tried.size} characters)" if tried.handle else ""
    return f"It said{whole}:\n{tried.head}{'...' if tried.size > len(tried.head) else ''}"
