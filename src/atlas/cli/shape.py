"""What --json prints where a use case answers with rows and events: public names, readable times, no internals."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from atlas.control.report import Tokens
from atlas.control.trace import EffectTrace, cost_usd, timestamp
from atlas.kernel.errors import ErrorRecord
from atlas.kernel.event import Event
from atlas.kernel.run import RunRow, RunState

ShownState: TypeAlias = RunState | Literal["lost"]


class RunShape(msgspec.Struct, frozen=True):
    """A run in a list."""

    run_id: str
    session_id: str
    turn: int
    agent: str
    version: str
    state: ShownState
    principal: str
    parent_run_id: str
    root_run_id: str
    depth: int
    key: str
    created_at: str
    updated_at: str
    ended_at: str | None
    steps: int
    tokens: Tokens
    cost_usd: float
    events: int


class RunsShape(msgspec.Struct, frozen=True):
    """One page of runs; `next` is what --before takes, empty on the last page."""

    runs: tuple[RunShape, ...]
    next: str


class EffectShape(msgspec.Struct, frozen=True):
    """An effect of a run."""

    effect: str
    name: str
    kind: str
    effect_class: str
    status: str
    intended_seq: int
    settled_seq: int
    duration_ms: int
    args: msgspec.Raw
    result: msgspec.Raw
    error: ErrorRecord | None
    reason: str
    source: str
    child_run_id: str
    answered_by: str = ""
    is_edited: bool = False
    opinion: str = ""


class EventShape(msgspec.Struct, frozen=True):
    """An event; `body` is null once it was erased."""

    seq: int
    position: int
    time: str
    kind: str
    principal: str
    hash: str
    body: msgspec.Raw


class PrintedShape(msgspec.Struct, frozen=True):
    """Text that the agent's code printed."""

    stream: str
    text: str


class LogShape(msgspec.Struct, frozen=True):
    """A line that the agent's code logged."""

    time: str
    level: str
    message: str
    fraction: float | None


def shown_state(row: RunRow, now_us: int) -> ShownState:
    """The run's state; `lost` when whoever held it has let its lease lapse, until the next driver takes it over.

    A row says `running` until somebody writes to it again; a run is running only under a live lease.
    """
    is_held = row.state in ("running", "waiting") and bool(row.owner)
    return "lost" if is_held and row.lease_until_us <= now_us else row.state


def run_shape(row: RunRow, now_us: int) -> RunShape:
    """A row as --json prints it."""
    spend = row.spend
    return RunShape(
        run_id=row.run_id,
        session_id=row.session_id,
        turn=row.turn,
        agent=row.agent,
        version=row.version,
        state=shown_state(row, now_us),
        principal=row.principal,
        parent_run_id=row.parent_run_id,
        root_run_id=row.root_run_id,
        depth=row.depth,
        key=row.key,
        created_at=timestamp(row.created_us),
        updated_at=timestamp(row.updated_us),
        ended_at=timestamp(row.ended_us) if row.ended_us else None,
        steps=spend.steps,
        tokens=Tokens(spend.tokens_in, spend.tokens_out),
        cost_usd=cost_usd([spend]),
        events=row.head_seq,
    )


def effect_shape(effect: EffectTrace, args: msgspec.Raw, result: msgspec.Raw) -> EffectShape:
    """An effect as --json prints it, its arguments and result read from wherever they are kept."""
    return EffectShape(
        effect.effect,
        effect.name,
        effect.kind,
        effect.effect_class,
        effect.status,
        effect.intended_seq,
        effect.settled_seq,
        effect_duration_us(effect) // 1000,
        args,
        result,
        effect.error,
        effect.reason,
        effect.source,
        effect.child_run_id,
        effect.answered_by,
        effect.is_edited,
        effect.opinion,
    )


def effect_duration_us(effect: EffectTrace) -> int:
    """How long it took: the performer's own time, else from intent to receipt."""
    if effect.duration_us or not (effect.intended_us and effect.settled_us):
        return effect.duration_us
    return max(0, effect.settled_us - effect.intended_us)


def event_shape(event: Event) -> EventShape:
    """An event as --json prints it."""
    return EventShape(
        event.seq,
        event.position,
        timestamp(event.time_us),
        event.kind,
        event.principal,
        event.hash.hex(),
        msgspec.Raw(event.body if event.salt else b"null"),
    )
