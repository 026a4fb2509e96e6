"""One line about an event, for people."""

from __future__ import annotations

from typing import assert_never

from atlas.cli.text import clean, duration
from atlas.kernel.event import (
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
    Payload,
    RunCreated,
    RunEnded,
    RunParked,
    TurnClosed,
    TurnSteered,
    ValueRecorded,
)


def describe(body: Body) -> str:
    """What the event says, without steering characters; may be long."""
    return clean(_describe(body))


def _describe(body: Body) -> str:
    match body:
        case RunCreated():
            return f"{body.agent} {body.version}  {preview(body.input)}"
        case AttemptStarted():
            where = f" in process {body.worker.pid}" if body.worker is not None else ""
            return f"attempt {body.attempt}{where}" + (" (the process before was lost)" if body.is_retry else "")
        case OutputCaptured():
            return f"{body.stream}: {body.text}"
        case Logged():
            return f"{body.level}: {body.message}" if body.fraction < 0 else f"{body.fraction:.0%} {body.message}"
        case ValueRecorded():
            return f"{body.name} {body.occurrence}: {body.value}"
        case CancelRequested():
            return f"by {body.by}" + (f": {body.reason}" if body.reason else "")
        case TurnClosed():
            return body.title
        case TurnSteered():
            at = f"{body.moment} {body.step}" + (f".{body.call}" if body.call else "")
            return f"{body.by} at {at}: {body.decision}" + (f": {body.text}" if body.text else "")
        case CallAnswered():
            return f"call {body.step}.{body.call} was not performed: {preview(body.text)}"
        case RunParked():
            return f"until something wakes it ({body.reason})"
        case RunEnded():
            what = f"{body.error.code}: {body.error.message}" if body.error is not None else preview(body.output)
            return f"{body.state}  {what}"
        case _:
            return _describe_effect(body)


def _describe_effect(
    body: EffectIntended
    | EffectReceived
    | EffectRefused
    | EffectJudged
    | EffectAsked
    | EffectAnswered
    | EffectDoubted
    | EffectResolved,
) -> str:
    match body:
        case EffectIntended():
            child = f" as {body.child_run_id}" if body.child_run_id else ""
            by = f" by {body.answered_by}" if body.answered_by.startswith(("mandate:", "grant:")) else ""
            changed = " with changed arguments" if body.is_edited else ""
            return f"{body.kind} {body.name} ({body.effect_class}){child}{by}{changed}  {preview(body.args)}"
        case EffectReceived():
            what = f"{body.error.code}: {body.error.message}" if body.error is not None else preview(body.result)
            took = f" in {duration(body.duration_us)}" if body.duration_us else ""
            return f"{body.effect} {body.source}{took}  {what}"
        case EffectRefused():
            return f"{body.kind} {body.name}: {body.error.code}: {body.error.message}"
        case EffectJudged():
            changed = f"  {preview(body.args)}" if body.verdict == "revise" else ""
            return f"{body.effect} {body.verdict} by {body.by}: {body.reason}{changed}"
        case EffectAsked():
            return f"{body.name} ({body.effect_class}): {body.reason}  {preview(body.args)}"
        case EffectAnswered():
            word = "approved" if body.approved else "denied"
            why = f": {body.reason}" if body.reason else ""
            changed = f"  with {preview(body.args)}" if body.args is not None else ""
            kept = f", remembered for this {body.remember}" if body.remember else ""
            return f"{body.effect} {word} by {body.by}{why}{kept}{changed}"
        case EffectDoubted():
            return f"{body.effect}: {body.reason}"
        case EffectResolved():
            return f"{body.effect} {body.resolution} by {body.by}" + (f": {body.reason}" if body.reason else "")
    assert_never(body)


def preview(payload: Payload) -> str:
    """A payload on one line; one that is kept apart is named."""
    if payload.blob:
        return f"(blob {payload.blob[:12]}, {payload.size:,} bytes)"
    return bytes(payload.json).decode("utf-8", "replace")
