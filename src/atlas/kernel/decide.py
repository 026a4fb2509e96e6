"""What a run does next: pure, so that running, recovering and replaying share one code path.

    decide(state, now)   every command that follows from the state, in order
      settle             effects that an earlier attempt left open: repeat, probe or doubt
      halt               cancelled, abandoned, out of time, interrupted
      judge              each call of the code, in `gate`: answer, perform, ask, refuse
      conclude           the code came back: how the run ends

A command says what to do; the driver does it and reports back with events and observations. Deciding twice
on the same state gives the same commands, so a driver that has acted on one must change the state first.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from atlas.kernel.code import CallMade, Finished
from atlas.kernel.errors import Cancelled, ErrorRecord, ReplayMismatch, RunFailed
from atlas.kernel.event import EffectIntended
from atlas.kernel.gate import DEFAULTS, Authority, Intend, Reject, Verdict, judge
from atlas.kernel.state import State, clock

Outcome: TypeAlias = Literal["succeeded", "failed", "refused", "cancelled"]

# How long code that is being run again may go without asking for what the record says it asked.
RECALL_PATIENCE_US: Final = 10_000_000
MAX_FRUITLESS_ATTEMPTS: Final = 5
# Steps of one run that are under way at the same time; more wait their turn, so that a run's state stays small.
MAX_SIDE_BY_SIDE: Final = 256
# How long a run that waits for a person stays, so that questions asked side by side are put together.
LINGER_US: Final = 100_000


class StartCode(msgspec.Struct, frozen=True):
    """Execute the agent's code, from its beginning; recorded calls will be answered from the record."""


class Doubt(msgspec.Struct, frozen=True):
    """These effects can be neither repeated nor probed: a person must say what became of them."""

    effects: tuple[str, ...]
    reason: str


class CancelCode(msgspec.Struct, frozen=True):
    """Tell the code to stop; it has the grace period."""

    reason: str


class Park(msgspec.Struct, frozen=True):
    """Stop the code and give the lease back until something wakes the run."""

    reason: Literal["person", "doubt", "children", "interrupted"]


class Retry(msgspec.Struct, frozen=True):
    """The process that held the code is gone: begin a new attempt."""


class End(msgspec.Struct, frozen=True):
    """Append the terminal event."""

    outcome: Outcome
    finished: Finished | None = None
    error: ErrorRecord | None = None


class WakeAt(msgspec.Struct, frozen=True):
    """Decide again at this time if nothing else happens first."""

    time_us: int


Command: TypeAlias = Verdict | StartCode | Doubt | CancelCode | Park | Retry | End | WakeAt


def decide(state: State, now_us: int, authority: Authority = DEFAULTS) -> tuple[Command, ...]:
    """Every command that follows from the state, in the order they must be carried out."""
    if state.ended is not None:
        return ()
    end_us = deadline_us(state, now_us)
    halted = _halt(state, now_us, end_us, authority)
    if halted is not None:
        return halted
    live = state.live
    if live.finished is not None:
        return (conclude(state, live.finished),)
    if not live.has_code:
        return settle(state) or (StartCode(), WakeAt(end_us))
    verdicts = _judge_all(state, authority, now_us) if live.calls else ()
    if not verdicts and not live.performing and live.parked.issuperset(live.awaiting):
        if state.doubted:
            return (Park("doubt"),)
        if state.asked and now_us < live.quiet_since_us + LINGER_US:
            return (WakeAt(live.quiet_since_us + LINGER_US),)
        if state.asked:
            return (Park("person"),)
        if live.awaiting:
            return (Park("children"),)
    if live.unclaimed and live.calls:
        end_us = min(end_us, live.quiet_since_us + RECALL_PATIENCE_US)
    return (*verdicts, WakeAt(end_us))


def is_under_way(state: State) -> bool:
    """True when there is nothing to decide before something happens: before its deadline, `decide` has only that to say."""
    live = state.live
    is_free = live.has_code and live.finished is None and not (live.is_lost or live.is_stopping)
    is_asked = bool(live.calls or live.awaiting or state.asked or state.doubted)
    return is_free and not is_asked and state.cancel is None and state.ended is None and not state.abandoned


def settle(state: State) -> tuple[Command, ...]:
    """What must happen before the code may run again; empty when nothing stands in its way."""
    doubtful = tuple(
        effect
        for effect, intent in state.open.items()
        if effect not in state.doubted and effect not in state.permitted and not is_recoverable(intent)
    )
    commands: tuple[Command, ...] = ()
    if doubtful:
        commands = (Doubt(doubtful, "the process ended after it began the effect and before it recorded the outcome"),)
    if doubtful or state.doubted:
        return (*commands, Park("doubt"))
    if state.fruitless >= MAX_FRUITLESS_ATTEMPTS:
        error = RunFailed(
            f"the agent's process was lost {state.fruitless} times in a row without any progress",
            hint="Look at the captured output with 'atlas show'; the machine may be out of memory.",
            code="worker_lost",
        )
        return (End("failed", error=error.record()),)
    return commands


def is_recoverable(intent: EffectIntended) -> bool:
    """True when an open intent can be settled without a person."""
    return (
        intent.kind in ("spawn", "model") or intent.effect_class == "read_only" or intent.idempotent or intent.can_probe
    )


def is_ready(state: State, call: CallMade) -> bool:
    """True when the call can be judged now.

    A call that the record does not know waits while recorded ones have not been asked for again: code that
    runs the same way will ask for them, and code that does not must not act on the world a second time.
    """
    live, effect = state.live, call.effect
    if effect in live.performing or effect in live.awaiting or effect in state.asked or effect in state.doubted:
        return False
    return live.unclaimed == 0 or effect in state.open


def conclude(state: State, finished: Finished) -> End:
    """How a run ends whose code came back."""
    if state.cancel is not None:
        return End("cancelled", error=_cancelled(state))
    if finished.error is not None:
        kind = finished.error.kind or finished.error.code
        outcome: Outcome = "refused" if kind in _REFUSALS else "failed"
        return End(outcome, error=finished.error)
    if state.live.unclaimed:
        error = ReplayMismatch(
            f"the code finished without asking again for {state.live.unclaimed} recorded effects",
            hint="Code must ask for the same effects each time it runs; use context.now/random/uuid and key=.",
        )
        return End("failed", error=error.record())
    return End("succeeded", finished=finished)


def deadline_us(state: State, now_us: int) -> int:
    """When the run must be over if it goes on like this."""
    active_us, elapsed_us = clock(state, now_us)
    created = state.created
    left = int(created.limits.timeout_s * 1_000_000) - active_us
    if created.depth == 0:
        left = min(left, int(created.limits.tree_timeout_s * 1_000_000) - elapsed_us)
    return now_us + max(0, left)


_REFUSALS: Final = frozenset(
    {"refused", "policy_refused", "approval_required", "limit_refused", "budget_refused", "circuit_open"}
)


def _halt(state: State, now_us: int, end_us: int, authority: Authority) -> tuple[Command, ...] | None:
    live = state.live
    if state.abandoned:
        error = RunFailed(f"a person abandoned the effect {state.abandoned}", code="effect_abandoned")
        return (End("failed", error=error.record()),)
    if state.cancel is not None:
        return _halt_cancelled(state, now_us, authority)
    if live.is_lost:
        return (Retry(),)
    if live.is_stopping:
        return () if live.performing else (Park("interrupted"),)
    if now_us >= end_us and live.has_code and live.finished is None:
        return (End("failed", error=_timeout(state, now_us)),)
    if live.unclaimed and now_us - live.quiet_since_us >= RECALL_PATIENCE_US and (strange := _strangers(state)):
        mismatch = ReplayMismatch(
            f"the code asks for {', '.join(strange)}, but the record says it asked for something else before",
            hint="Code must ask for the same effects each time it runs; use context.now/random/uuid and key=.",
        )
        return (End("failed", error=mismatch.record()),)
    return None


def _strangers(state: State) -> list[str]:
    """What the code asks for and the record does not know."""
    calls = state.live.calls.values()
    return sorted(call.effect for call in calls if call.effect not in state.open and call.effect not in state.asked)


def _halt_cancelled(state: State, now_us: int, authority: Authority) -> tuple[Command, ...]:
    live = state.live
    end = End("cancelled", error=_cancelled(state))
    if not live.has_code or live.finished is not None or live.is_lost:
        return (end,)
    rejected = tuple(v for v in _judge_all(state, authority, now_us) if isinstance(v, Reject))
    if not live.cancel_sent_us:
        return (*rejected, CancelCode(state.cancel.reason if state.cancel else ""))
    grace_end_us = live.cancel_sent_us + int(state.created.limits.cancel_grace_s * 1_000_000)
    return (end,) if now_us >= grace_end_us else (*rejected, WakeAt(grace_end_us))


def _judge_all(state: State, authority: Authority, now_us: int) -> tuple[Verdict, ...]:
    live = state.live
    children = state.children + sum(effect not in state.open for effect in live.awaiting)
    verdicts: list[Verdict] = []
    room = MAX_SIDE_BY_SIDE - len(live.performing)
    for call in live.calls.values():
        if len(verdicts) >= room:
            break
        if is_ready(state, call):
            verdict = judge(state, call, None, children, authority, now_us)
            children += isinstance(verdict, Intend) and call.kind == "spawn"
            verdicts.append(verdict)
    return tuple(verdicts)


def _timeout(state: State, now_us: int) -> ErrorRecord:
    active_us, _ = clock(state, now_us)
    limits = state.created.limits
    if active_us >= int(limits.timeout_s * 1_000_000):
        return RunFailed(
            f"the run used its {limits.timeout_s:g} s",
            hint="Set timeout_s in agent.yaml or execution.timeouts.agent in atlas.config.yaml.",
            code="timeout",
        ).record()
    return RunFailed(
        f"the run and its children used the {limits.tree_timeout_s:g} s of their tree",
        hint="Raise execution.timeouts.chain in atlas.config.yaml.",
        code="tree_timeout",
    ).record()


def _cancelled(state: State) -> ErrorRecord:
    cancel = state.cancel
    if cancel is None:
        return Cancelled("the run was cancelled").record()
    return Cancelled(f"cancelled by {cancel.by}" + (f": {cancel.reason}" if cancel.reason else "")).record()
