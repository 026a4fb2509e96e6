"""A run read back from the ledger: its state, what was answered, and what it printed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from atlas.kernel.errors import Conflict, Fault, NotFound
from atlas.kernel.event import (
    Body,
    CallAnswered,
    EffectIntended,
    EffectReceived,
    EffectRefused,
    Event,
    ForkPoint,
    Payload,
    RunCreated,
    RunEnded,
    TurnSteered,
    ValueRecorded,
    decode_body,
)
from atlas.kernel.gate import Recorded
from atlas.kernel.port import Ledger
from atlas.kernel.state import State, apply, initial


class History(msgspec.Struct):
    """What a driver needs to go on with a run.

    `answers` holds the outcome of every settled effect by its name, `values` what was read from the clock,
    `steered` what was decided about a turn, by its place, `told` what was said to each call that was answered without being
    performed, by its step and number.
    """

    state: State
    answers: dict[str, Recorded]
    values: dict[str, list[int]]
    last_seq: int
    steered: dict[str, TurnSteered] = {}
    told: dict[tuple[int, int], Payload] = {}

    def has_made(self, step: int, call: int) -> bool:
        """Whether a call of the turn was made; not one that was answered unperformed, denied, or never come to."""
        denied = self.steered.get(f"authorize_tool:{step}.{call}")
        stopped = self.steered.get(f"record_step_usage:{step}.0")
        return (step, call) not in self.told and denied is None and stopped is None


async def load(ledger: Ledger, run_id: str) -> History:
    """The run as its events left it; a fork also knows what was answered before its fork point."""
    events = await ledger.events(run_id)
    if not events:
        raise NotFound(f"run {run_id} has no events", hint="List runs with 'atlas runs'.")
    created = created_of(events[0])
    history = History(initial(run_id, events[0].principal, created), {}, {}, events[-1].seq)
    if created.fork is not None:
        for body in await _forked_bodies(ledger, created.fork):
            remember(history, body)
    for event in events[1:]:
        if not event.salt:
            continue
        body = decode_body(event.kind, event.version, event.body)
        history.state = apply(history.state, body, event.time_us)
        remember(history, body)
    return history


class Glance(msgspec.Struct, frozen=True):
    """What a result says of a run beside its row. `may_have_children` is True for every run that has."""

    ended: RunEnded | None
    models: tuple[str, ...]
    may_have_children: bool


async def glance(ledger: Ledger, run_id: str) -> Glance:
    """How the run ended and which models answered it: of a long run only the few events that tell are decoded."""
    events = await ledger.events(run_id)
    if not events:
        raise NotFound(f"run {run_id} has no events", hint="List runs with 'atlas runs'.")
    created = created_of(events[0])
    before = [] if created.fork is None else await _forked_bodies(ledger, created.fork)
    own = [body for _, body in bodies(event for event in events if _may_tell(event))]
    models = (body.model for body in (*before, *own) if isinstance(body, EffectReceived) and body.model)
    return Glance(
        ended=next((body for body in own if isinstance(body, RunEnded)), None),
        models=tuple(dict.fromkeys(models)),
        may_have_children=any(isinstance(body, EffectIntended) for body in own),
    )


def glance_at(history: History, state: State) -> Glance:
    """The same of a run in hand, without reading it again; `state` is where its `history` has come to."""
    models = (each.model for each in history.answers.values() if isinstance(each, EffectReceived) and each.model)
    return Glance(ended=state.ended, models=tuple(dict.fromkeys(models)), may_have_children=state.children > 0)


def _may_tell(event: Event) -> bool:
    match event.kind:
        case "effect.received":
            return b'"model":' in event.body
        case "effect.intended":
            return b'"child_run_id":' in event.body
        case kind:
            return kind == "run.ended"


def created_of(event: Event) -> RunCreated:
    """The first event's body."""
    if not event.salt:
        raise NotFound(
            f"the beginning of run {event.run_id} was erased, so it can only be verified",
            code="run_erased",
        )
    body = decode_body(event.kind, event.version, event.body)
    if not isinstance(body, RunCreated):
        raise Fault(f"run {event.run_id} does not begin with run.created", code="event_misplaced")
    return body


def bodies(events: Iterable[Event]) -> Iterable[tuple[Event, Body]]:
    """Events with their bodies; erased ones are left out."""
    for event in events:
        if event.salt:
            yield event, decode_body(event.kind, event.version, event.body)


async def _forked_bodies(ledger: Ledger, fork: ForkPoint) -> list[Body]:
    events = await ledger.events(fork.run_id, limit=fork.seq)
    if len(events) < fork.seq or events[-1].hash.hex() != fork.hash:
        raise Conflict(
            f"run {fork.run_id} no longer has the event {fork.seq} that this fork continues from",
            hint=f"Check it with 'atlas verify {fork.run_id}'.",
            code="fork_source_changed",
        )
    earlier = created_of(events[0]).fork
    before = await _forked_bodies(ledger, earlier) if earlier is not None else []
    return before + [body for _, body in bodies(events[1:])]


def remember(history: History, body: Body) -> None:
    """Adds what a driver needs to know of an event; the state is not touched."""
    match body:
        case EffectReceived() | EffectRefused():
            history.answers[body.effect] = body
        case ValueRecorded():
            history.values.setdefault(body.name, []).append(body.value)
        case TurnSteered():
            history.steered[body.place] = body
        case CallAnswered():
            history.told[body.step, body.call] = body.text
        case _:
            pass
