"""A trace: a tree of runs drawn over time, folded from the events that every other view uses too.

    effects_of    what became of each effect of one run
    fold          rows and events of a tree -> the public shape, and nested spans for a waterfall
    read_trace    the same, read from a ledger

A span's `active` parts are the times in which something was under way; the rest of it was spent waiting: for a
place, for a person, or for a driver to come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.control.history import bodies
from atlas.kernel.errors import ErrorRecord
from atlas.kernel.event import (
    NULL,
    AttemptStarted,
    Body,
    EffectAnswered,
    EffectAsked,
    EffectDoubted,
    EffectIntended,
    EffectJudged,
    EffectReceived,
    EffectRefused,
    EffectResolved,
    Event,
    Payload,
    RunEnded,
    RunParked,
    Spend,
)
from atlas.kernel.port import Ledger
from atlas.kernel.run import TERMINAL, RunQuery, RunRow, RunState

EffectStatus: TypeAlias = Literal[
    "waiting", "approved", "denied", "running", "completed", "failed", "refused", "in_doubt", "abandoned", "cut_off"
]
TraceStatus: TypeAlias = Literal[
    "queued", "running", "waiting", "in_doubt", "completed", "failed", "refused", "cancelled"
]
Interval: TypeAlias = tuple[int, int]

PAGE: Final = 500
_SOURCES: Final = {"probed": "found by its probe", "person": "a person said so"}


class EffectTrace(msgspec.Struct, frozen=True):
    """One effect of a run, from its intent to its receipt; a sequence number is 0 until that event exists."""

    effect: str
    name: str = "(erased)"
    kind: str = "step"
    effect_class: str = ""
    status: EffectStatus = "running"
    args: Payload = NULL
    result: Payload = NULL
    error: ErrorRecord | None = None
    reason: str = ""
    source: str = ""
    child_run_id: str = ""
    answered_by: str = ""
    is_edited: bool = False
    opinion: str = ""
    model: str = ""
    intended_seq: int = 0
    settled_seq: int = 0
    begun_us: int = 0
    intended_us: int = 0
    settled_us: int = 0
    duration_us: int = 0


class TraceStep(msgspec.Struct, frozen=True):
    """One agent's part in a trace."""

    agent: str
    model_used: str | None
    tokens_in: int
    tokens_out: int
    latency_ms: int
    status: TraceStatus


class Trace(msgspec.Struct, frozen=True):
    """What a run and everything it spawned did: one step per run, in the order they began."""

    trace_id: str
    chain: str
    started_at: str
    completed_at: str | None
    status: TraceStatus
    steps: tuple[TraceStep, ...]
    total_tokens: int
    total_cost_usd: float


class Span(msgspec.Struct, frozen=True):
    """A run or a step as a stretch of time: asked for, begun, over (or now); `children` began while it lasted.

    The name of a question to a tier is the model that answered it.
    """

    kind: Literal["run", "step"]
    name: str
    status: str
    run_id: str
    effect: str
    created_us: int
    started_us: int
    ended_us: int
    active: tuple[Interval, ...]
    note: str = ""
    children: tuple[Span, ...] = ()


class Traced(msgspec.Struct, frozen=True):
    """A trace and its spans."""

    trace: Trace
    span: Span


def status_of(state: RunState) -> TraceStatus:
    """The word for a run's state in a trace."""
    return "completed" if state == "succeeded" else state


def timestamp(time_us: int) -> str:
    """A time as every JSON answer writes it: UTC, ISO 8601, milliseconds."""
    seconds, rest_us = divmod(time_us, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_us // 1000:03d}Z"


def effects_of(events: Iterable[tuple[Event, Body]]) -> list[EffectTrace]:
    """What became of each effect, in the order they were first heard of."""
    found: dict[str, EffectTrace] = {}
    is_ended = False
    for event, body in events:
        match body:
            case (
                EffectAsked()
                | EffectAnswered()
                | EffectIntended()
                | EffectReceived()
                | EffectRefused()
                | EffectDoubted()
                | EffectResolved()
                | EffectJudged()
            ):
                known = found.get(body.effect) or EffectTrace(body.effect, begun_us=event.time_us)
                if is_ended and isinstance(body, EffectResolved):
                    found[body.effect] = _resolve_late(known, event, body)
                else:
                    found[body.effect] = _advance(known, event, body)
            case RunEnded():
                is_ended = True
                found = {name: _close(effect, body) for name, effect in found.items()}
            case _:
                pass
    return list(found.values())


def fold(run_id: str, rows: Sequence[RunRow], events: Mapping[str, Sequence[Event]], now_us: int) -> Traced:
    """The trace of `run_id` and its descendants; `rows` and `events` may hold more than those."""
    by_id = {row.run_id: row for row in rows}
    facts = {row.run_id: list(bodies(events.get(row.run_id, ()))) for row in rows}
    span = _run_span(by_id[run_id], by_id, facts, now_us)
    inside = sorted(_runs_in(span), key=lambda part: (part.started_us, part.run_id))
    steps = tuple(_step(part, by_id[part.run_id], _model(facts[part.run_id])) for part in inside)
    spends = [by_id[part.run_id].spend for part in inside]
    row = by_id[run_id]
    trace = Trace(
        trace_id=run_id,
        chain=row.agent,
        started_at=timestamp(span.started_us),
        completed_at=timestamp(span.ended_us) if row.state in TERMINAL else None,
        status=status_of(row.state),
        steps=steps,
        total_tokens=sum(spend.tokens_in + spend.tokens_out for spend in spends),
        total_cost_usd=cost_usd(spends),
    )
    return Traced(trace, span)


async def read_trace(ledger: Ledger, row: RunRow, now_us: int) -> Traced:
    """The trace of a run as the ledger has it now."""
    rows = await _tree(ledger, row)
    return fold(row.run_id, rows, {each.run_id: await ledger.events(each.run_id) for each in rows}, now_us)


def cost_usd(spends: Iterable[Spend]) -> float:
    """The cost in dollars, exact to the recorded millionth."""
    return round(sum(spend.cost_micro_usd for spend in spends) / 1_000_000, 6)


async def _tree(ledger: Ledger, row: RunRow) -> list[RunRow]:
    """The run and its descendants, the run first."""
    rows = [row]
    cursor = ""
    while True:
        page = await ledger.runs(RunQuery(root_run_id=row.root_run_id, before=cursor, limit=PAGE))
        rows += [each for each in page.runs if each.run_id != row.run_id]
        cursor = page.next
        if not cursor:
            break
    children: dict[str, list[RunRow]] = {}
    for each in rows:
        children.setdefault(each.parent_run_id, []).append(each)
    tree = [row]
    for each in tree:  # grows while it is walked: breadth first
        tree += children.get(each.run_id, ())
    return tree


def _advance(
    effect: EffectTrace,
    event: Event,
    body: EffectAsked
    | EffectAnswered
    | EffectIntended
    | EffectReceived
    | EffectRefused
    | EffectDoubted
    | EffectResolved
    | EffectJudged,
) -> EffectTrace:
    match body:
        case EffectJudged():
            return replace(effect, opinion=f"{body.verdict} by {body.by}: {body.reason}")
        case EffectAsked():
            named = _named(effect, body)
            return replace(named, args=body.args, status="waiting", reason=body.reason)
        case EffectAnswered():
            return replace(effect, status="approved" if body.approved else "denied", reason=body.reason)
        case EffectIntended():
            return replace(
                _named(effect, body),
                args=body.args,
                status="running",
                reason=body.reason,
                child_run_id=body.child_run_id,
                answered_by=body.answered_by,
                is_edited=body.is_edited,
                intended_seq=event.seq,
                intended_us=event.time_us,
            )
        case EffectReceived():
            return replace(
                effect,
                status="failed" if body.error else "completed",
                result=body.result,
                error=body.error,
                source=body.source,
                model=body.model,
                settled_seq=event.seq,
                settled_us=event.time_us,
                duration_us=body.duration_us,
            )
        case EffectRefused():
            named = _named(effect, body)
            return replace(named, status="refused", error=body.error, settled_seq=event.seq, settled_us=event.time_us)
        case EffectDoubted():
            return replace(effect, status="in_doubt", reason=body.reason)
        case EffectResolved():
            return replace(effect, status="abandoned" if body.resolution == "abandon" else "running")


def _resolve_late(effect: EffectTrace, event: Event, body: EffectResolved) -> EffectTrace:
    """A doubt that a person settled after the end of the run: no receipt follows, and what was not done never will be."""
    match body.resolution:
        case "done":
            return replace(
                effect,
                status="completed",
                result=body.result,
                source="person",
                settled_seq=event.seq,
                settled_us=event.time_us,
            )
        case "not_done":
            return replace(effect, status="cut_off")
        case "abandon":
            return replace(effect, status="abandoned")


def _named(effect: EffectTrace, body: EffectAsked | EffectIntended | EffectRefused) -> EffectTrace:
    return replace(effect, name=body.name, kind=body.kind, effect_class=body.effect_class)


def _close(effect: EffectTrace, ended: RunEnded) -> EffectTrace:
    """An effect that is open when its run ends: unresolved, or one that can no longer matter."""
    if effect.effect in ended.unresolved:
        return replace(effect, status="in_doubt")
    return replace(effect, status="cut_off") if effect.status in ("running", "waiting", "approved") else effect


def _run_span(
    row: RunRow, rows: Mapping[str, RunRow], facts: Mapping[str, list[tuple[Event, Body]]], now_us: int
) -> Span:
    events = facts[row.run_id]
    last_us = events[-1][0].time_us if events else row.updated_us
    is_live = row.state == "running" or (row.state == "waiting" and bool(row.owner))
    end_us = last_us if row.state in TERMINAL else max(now_us, last_us)
    active = _active(events, end_us if is_live else last_us)
    children = []
    for effect in effects_of(events):
        child = rows.get(effect.child_run_id)
        if child is not None:
            children.append(_run_span(child, rows, facts, now_us))
        else:
            children.append(_effect_span(row.run_id, effect, end_us))
    attempts = sum(isinstance(body, AttemptStarted) for _, body in events)
    return Span(
        kind="run",
        name=row.agent,
        status=status_of(row.state),
        run_id=row.run_id,
        effect=row.parent_effect,
        created_us=row.created_us,
        started_us=active[0][0] if active else row.created_us,
        ended_us=end_us,
        active=active,
        note=f"{attempts} attempts" if attempts > 1 else "",
        children=tuple(children),
    )


def _active(events: Sequence[tuple[Event, Body]], end_us: int) -> tuple[Interval, ...]:
    """When a driver had the run in hand. One that crashed held it until the last thing it recorded."""
    parts: list[Interval] = []
    since_us = heard_us = 0
    for event, body in events:
        match body:
            case AttemptStarted():
                if since_us:
                    parts.append((since_us, max(since_us, heard_us)))
                since_us = event.time_us
            case RunParked() | RunEnded() if since_us:
                parts.append((since_us, max(since_us, event.time_us)))
                since_us = 0
            case _:
                pass
        heard_us = event.time_us
    if since_us:
        parts.append((since_us, max(since_us, end_us)))
    return tuple(parts)


def _effect_span(run_id: str, effect: EffectTrace, run_end_us: int) -> Span:
    end_us = effect.settled_us or (run_end_us if effect.status in ("running", "waiting") else effect.begun_us)
    active: tuple[Interval, ...] = ()
    if effect.intended_us and effect.settled_us:
        # The performer's own time when it measured one; an effect settled after a crash lasted from its intent on.
        start_us = effect.settled_us - effect.duration_us if effect.duration_us else effect.intended_us
        active = ((max(start_us, effect.intended_us), effect.settled_us),)
    elif effect.intended_us and effect.status == "running":
        active = ((effect.intended_us, max(end_us, effect.intended_us)),)
    return Span(
        kind="step",
        name=effect.model or effect.name,
        status=effect.status,
        run_id=run_id,
        effect=effect.effect,
        created_us=effect.begun_us,
        started_us=active[0][0] if active else effect.begun_us,
        ended_us=max(end_us, effect.begun_us),
        active=active,
        note=_note(effect),
    )


def _note(effect: EffectTrace) -> str:
    if effect.error is not None:
        return effect.error.code
    standing = effect.answered_by if effect.answered_by.startswith(("mandate:", "grant:")) else ""
    changed = "arguments changed" if effect.is_edited else ""
    return ", ".join(filter(None, (_SOURCES.get(effect.source, ""), standing, changed)))


def _runs_in(span: Span) -> Iterable[Span]:
    if span.kind == "run":
        yield span
    for child in span.children:
        yield from _runs_in(child)


def _step(span: Span, row: RunRow, model: str | None) -> TraceStep:
    return TraceStep(
        agent=row.agent,
        model_used=model,
        tokens_in=row.spend.tokens_in,
        tokens_out=row.spend.tokens_out,
        latency_ms=max(0, span.ended_us - span.started_us) // 1000,
        status=status_of(row.state),
    )


def _model(facts: Iterable[tuple[Event, Body]]) -> str | None:
    """The model that answered last."""
    names = [body.model for _, body in facts if isinstance(body, EffectReceived) and body.model]
    return names[-1] if names else None
