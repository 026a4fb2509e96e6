"""The state of a run: a fold over its events, and what its driver sees of the live code.

`apply` takes facts and is the only way facts enter a state. `Live` holds observations of this attempt (calls
waiting for a decision, code that came back); they are not facts, and a crash forgets them. A state is a
bounded working set: effects that are open, questions that are open, totals. The history stays in the ledger.
"""

from __future__ import annotations

from typing import Final, TypeVar, assert_never

import msgspec
from msgspec.structs import replace

from atlas.kernel.budget import in_full
from atlas.kernel.code import CallMade, Finished
from atlas.kernel.errors import Fault
from atlas.kernel.event import (
    NO_SPEND,
    AttemptStarted,
    Body,
    CallAnswered,
    CancelRequested,
    EffectAnswered,
    EffectAsked,
    EffectDoubted,
    EffectIntended,
    EffectJudged,
    EffectReceived,
    EffectRefused,
    EffectResolved,
    Logged,
    OutputCaptured,
    Process,
    RunCreated,
    RunEnded,
    RunParked,
    Spend,
    TurnClosed,
    TurnSteered,
    ValueRecorded,
)

STEP_SPEND: Final = Spend(steps=1)
V = TypeVar("V")


class Live(msgspec.Struct, frozen=True):
    """What this attempt's driver sees: nothing here survives it.

    `calls` wait for a decision, `performing` are steps under way, `awaiting` are children; the latter two map an
    effect to its call. `parked` are children that wait for a person themselves, `unmandated` effects that no
    mandate has room for. `unclaimed` counts recorded effects that the code has not asked for again yet.
    """

    has_code: bool = False
    calls: dict[int, CallMade] = {}
    performing: dict[str, int] = {}
    awaiting: dict[str, int] = {}
    parked: frozenset[str] = frozenset()
    unmandated: frozenset[str] = frozenset()
    unclaimed: int = 0
    quiet_since_us: int = 0
    finished: Finished | None = None
    is_lost: bool = False
    is_stopping: bool = False
    cancel_sent_us: int = 0


NOTHING_LIVE: Final = Live()


class State(msgspec.Struct, frozen=True):
    """A run as its events left it, plus `live`."""

    run_id: str
    principal: str
    created: RunCreated
    attempt: int = 0
    worker: Process | None = None
    open: dict[str, EffectIntended] = {}
    asked: dict[str, EffectAsked] = {}
    answers: dict[str, EffectAnswered] = {}
    opinions: dict[str, EffectJudged] = {}
    doubted: dict[str, str] = {}
    permitted: frozenset[str] = frozenset()
    abandoned: str = ""
    cancel: CancelRequested | None = None
    children: int = 0
    spend: Spend = NO_SPEND
    is_leased: bool = False
    mark_us: int = 0
    active_us: int = 0
    elapsed_us: int = 0
    fruitless: int = 0
    ended: RunEnded | None = None
    live: Live = NOTHING_LIVE

    @property
    def is_waiting_for_children(self) -> bool:
        """True while everything the run has under way is its children."""
        for effect in self.open.values():
            if effect.kind != "spawn":
                return False
        return bool(self.open)


def initial(run_id: str, principal: str, created: RunCreated) -> State:
    """The state right after the first event."""
    return State(run_id, principal, created)


def with_live(state: State) -> State:
    """The state for a new attempt: nothing observed yet. The attempt's maps are its own and are changed in place."""
    return replace(state, live=Live(calls={}, performing={}, awaiting={}))


def apply(state: State, body: Body, time_us: int) -> State:
    """The state after one more event."""
    if isinstance(body, AttemptStarted):
        return _start_attempt(state, body, time_us)
    if state.is_leased:
        active_us, elapsed_us = clock(state, time_us)
        state = replace(state, mark_us=max(time_us, state.mark_us), active_us=active_us, elapsed_us=elapsed_us)
    return _apply(state, body)


def clock(state: State, now_us: int) -> tuple[int, int]:
    """Active and elapsed microseconds as of `now_us`: waiting for children is elapsed but not active."""
    if not state.is_leased:
        return state.active_us, state.elapsed_us
    passed = max(0, now_us - state.mark_us)
    return state.active_us + (0 if state.is_waiting_for_children else passed), state.elapsed_us + passed


def _apply(state: State, body: Body) -> State:
    match body:
        case EffectIntended():
            return _intend(state, body)
        case EffectReceived():
            return _receive(state, body)
        case EffectRefused():
            return replace(
                state,
                answers=_without(state.answers, body.effect),
                opinions=_without(state.opinions, body.effect),
                asked=_without(state.asked, body.effect),
                fruitless=0,
            )
        case EffectJudged():
            return replace(state, opinions={**state.opinions, body.effect: body}, spend=state.spend.plus(body.spend))
        case EffectAsked():
            return replace(state, asked={**state.asked, body.effect: body})
        case EffectAnswered():
            return replace(
                state,
                asked=_without(state.asked, body.effect),
                answers={**state.answers, body.effect: body},
            )
        case EffectDoubted():
            return replace(state, doubted={**state.doubted, body.effect: body.reason})
        case EffectResolved():
            return _resolve(state, body)
        case CancelRequested():
            return replace(state, cancel=state.cancel or body)
        case RunParked():
            return replace(state, is_leased=False, fruitless=0)
        case RunEnded():
            return replace(state, ended=body, is_leased=False, spend=state.spend.plus(_left_over(state)))
        case ValueRecorded() | OutputCaptured() | Logged() | TurnClosed() | TurnSteered() | CallAnswered():
            return state
        case RunCreated() | AttemptStarted():
            raise Fault("an event stands where it cannot", code="event_misplaced")
    assert_never(body)


def _start_attempt(state: State, body: AttemptStarted, time_us: int) -> State:
    # The time between the last event of a crashed attempt and this one belongs to nobody: it is not counted.
    return replace(
        state,
        attempt=body.attempt,
        worker=body.worker,
        is_leased=True,
        mark_us=time_us,
        fruitless=state.fruitless + body.is_retry,
    )


def _intend(state: State, body: EffectIntended) -> State:
    return replace(
        state,
        open={**state.open, body.effect: body},
        answers=_without(state.answers, body.effect),
        opinions=_without(state.opinions, body.effect),
        spend=state.spend.plus(body.lost),
        children=state.children + (body.kind == "spawn"),
        permitted=state.permitted - {body.effect},
    )


def _receive(state: State, body: EffectReceived) -> State:
    return replace(
        state,
        open=_without(state.open, body.effect),
        doubted=_without(state.doubted, body.effect),
        permitted=state.permitted - {body.effect},
        spend=state.spend.plus(STEP_SPEND).plus(body.spend),
        fruitless=0,
    )


def _left_over(state: State) -> Spend:
    """What the ledger counts at the end of a run for calls that began and have no receipt: all that they reserved."""
    spend = NO_SPEND
    for intent in state.open.values():
        if intent.hold is not None and intent.hold.model:
            spend = spend.plus(in_full(intent.effect, intent.hold).spend)
    return spend


def _resolve(state: State, body: EffectResolved) -> State:
    resolved = replace(state, doubted=_without(state.doubted, body.effect))
    match body.resolution:
        case "done":
            return resolved
        case "not_done":
            return replace(resolved, permitted=state.permitted | {body.effect})
        case "abandon":
            return replace(resolved, abandoned=body.effect)
    assert_never(body.resolution)


def _without(mapping: dict[str, V], key: str) -> dict[str, V]:
    if key not in mapping:
        return mapping
    return {name: value for name, value in mapping.items() if name != key}
