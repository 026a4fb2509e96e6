"""What others may tell a run, as the bodies of signals."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from atlas.kernel.errors import ErrorRecord
from atlas.kernel.event import NULL, EffectAnswered, EffectReceived, EffectResolved, Payload, Resolution
from atlas.kernel.run import NewSignal, Signal
from atlas.kernel.state import State

Remember: TypeAlias = Literal["", "run", "session"]


class CancelBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stop the run."""

    reason: str = ""


class AnswerBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person approved or denied an effect with exactly these arguments, of the tool as it is defined now.

    `args` are the arguments they want instead; `remember` is how long the same call need not ask again.
    """

    effect: str
    args_hash: str
    approved: bool
    reason: str = ""
    definition: str = ""
    args: Payload | None = None
    remember: Remember = ""


class ResolveBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person said what became of an effect in doubt."""

    effect: str
    resolution: Resolution
    result: Payload = NULL
    reason: str = ""


class ChildEndedBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A child run ended; the parent's effect gets its outcome."""

    effect: str
    run_id: str
    state: Literal["succeeded", "failed", "refused", "cancelled"]
    output: Payload = NULL
    error: ErrorRecord | None = None


class ChildParkedBody(msgspec.Struct, frozen=True):
    """A child run waits for a person: so does a parent that waits for nothing else."""

    effect: str


def answer_facts(state: State, signal: Signal) -> tuple[EffectAnswered, ...]:
    """What a person's answer means to the run; nothing when it does not fit what is asked now."""
    body = msgspec.json.decode(signal.body, type=AnswerBody)
    asked = state.asked.get(body.effect)
    if asked is None or (asked.args_hash, asked.definition) != (body.args_hash, body.definition):
        return ()
    return (
        EffectAnswered(
            body.effect,
            body.args_hash,
            body.approved,
            signal.principal,
            body.reason,
            signal.id,
            body.definition,
            body.args,
            body.remember,
        ),
    )


def resolve_facts(state: State, signal: Signal) -> tuple[EffectResolved | EffectReceived, ...]:
    """What a person said of an effect in doubt means to the run; nothing when it is not in doubt."""
    body = msgspec.json.decode(signal.body, type=ResolveBody)
    if body.effect not in state.doubted:
        return ()
    resolved = EffectResolved(body.effect, body.resolution, signal.principal, body.result, body.reason, signal.id)
    if body.resolution != "done":
        return (resolved,)
    return (resolved, EffectReceived(body.effect, body.result, source="person"))


def cancel_signal(run_id: str, principal: str, reason: str, signal_id: str) -> NewSignal:
    """A signal that cancels `run_id`."""
    return NewSignal(signal_id, run_id, "cancel", principal, msgspec.json.encode(CancelBody(reason)))
