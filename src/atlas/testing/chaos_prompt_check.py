"""Judges a prompt run that was killed, from outside: its raw events, the book its tools wrote, the provider's own log.

Nothing here folds a state or decides: which model call may be asked again, which tool call may be repeated and which had
to wait for a person is worked out again from the events alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from atlas.kernel.event import (
    AttemptStarted,
    Body,
    EffectDoubted,
    EffectIntended,
    EffectReceived,
    RunEnded,
)
from atlas.kernel.tool import ToolOutcome
from atlas.testing.chaos_prompt_site import ANSWER, CHANGES_ONCE, STEPS
from atlas.testing.chaos_site import Line


class PromptFindings(msgspec.Struct):
    """What was found of one run; `complaints` is empty when every promise was kept."""

    is_complete: bool = False
    requests: int = 0
    asked_again: int = 0
    effects: int = 0
    lost: int = 0
    duplicated: int = 0
    doubted: int = 0
    doubted_expected: int = 0
    complaints: list[str] = msgspec.field(default_factory=list)


class _Read(msgspec.Struct):
    """One run's raw events, sorted by what they are about."""

    asks: Counter[str] = msgspec.field(default_factory=Counter)  # how often each model call may have been asked
    intents: Counter[str] = msgspec.field(default_factory=Counter)
    receipts: dict[str, list[EffectReceived]] = msgspec.field(default_factory=dict)
    ended: list[RunEnded] = msgspec.field(default_factory=list)
    doubted: Counter[str] = msgspec.field(default_factory=Counter)
    expected: Counter[str] = msgspec.field(default_factory=Counter)


def judge(
    run_id: str, bodies: Sequence[Body], lines: Sequence[Line], asked: Sequence[bytes], reference: Mapping[int, bytes]
) -> PromptFindings:
    """Everything that is wrong with a run. `asked` is what its provider was sent, `reference` what one without kills was.

    A run whose model is scripted has no provider to bear witness, and both are empty.
    """
    run, found = _read(bodies), PromptFindings()
    found.doubted, found.doubted_expected = run.doubted.total(), run.expected.total()
    if run.doubted != run.expected:
        found.complaints.append(f"in doubt are {dict(run.doubted)}, not {dict(run.expected)}")
    found.complaints += _end_complaints(run)
    found.is_complete = not found.complaints
    _check_effects(run_id, run, lines, found)
    if reference:
        _check_requests(run, asked, reference, found)
    found.complaints = [f"{run_id}: {complaint}" for complaint in found.complaints]
    return found


def step_of(body: bytes) -> int:
    """Which step a request asks for, from 1: one more than it has answers of the model in it."""
    request: dict[str, Any] = msgspec.json.decode(body)
    return 1 + [message["role"] for message in request["messages"]].count("assistant")


def _read(bodies: Sequence[Body]) -> _Read:
    run = _Read()
    waiting: dict[str, EffectIntended] = {}  # without a receipt
    asked: set[str] = set()  # a person was asked, and what becomes of it is theirs to say
    for body in bodies:
        match body:
            case EffectIntended():
                run.intents[body.effect] += 1
                run.asks[body.effect] += body.kind == "model"
                waiting[body.effect] = body
                asked.discard(body.effect)
            case EffectReceived():
                run.receipts.setdefault(body.effect, []).append(body)
                waiting.pop(body.effect, None)
            case EffectDoubted():
                run.doubted[body.effect] += 1
                run.expected[body.effect] += body.effect in waiting and _is_risky(waiting[body.effect])
                asked.add(body.effect)
            case RunEnded() | AttemptStarted():
                if isinstance(body, AttemptStarted):
                    run.asks.update(effect for effect, intent in waiting.items() if intent.kind == "model")
                if isinstance(body, RunEnded):
                    run.ended.append(body)
                # Whoever acted before is gone, and has left these without a word.
                run.expected.update(
                    effect for effect, intent in waiting.items() if _is_risky(intent) and effect not in asked
                )
            case _:
                pass
    return run


def _is_risky(intent: EffectIntended) -> bool:
    """Whether only a person can say what became of it."""
    return intent.kind == "tool" and not (intent.effect_class == "read_only" or intent.idempotent or intent.can_probe)


def _end_complaints(run: _Read) -> Iterator[str]:
    if len(run.ended) != 1:
        yield f"{len(run.ended)} terminal events"
        return
    ended = run.ended[0]
    if ended.state != "succeeded" or ended.unresolved:
        yield f"{ended.state} {ended.error} {ended.unresolved}"
    elif msgspec.json.decode(ended.output.json) != {"text": ANSWER}:
        yield f"the answer is {bytes(ended.output.json)!r}"


def _check_effects(run_id: str, run: _Read, lines: Sequence[Line], found: PromptFindings) -> None:
    begun = Counter(line.key for line in lines if line.mark == "begin")
    ended = Counter(line.key for line in lines if line.mark == "end")
    wanted = {
        f"tool:{step}.{place}:{name}" for step, names in enumerate(STEPS, 1) for place, name in enumerate(names, 1)
    }
    found.effects = sum(ended[f"{run_id}/{effect}"] for effect in wanted)
    for effect in sorted(wanted):
        key, name = f"{run_id}/{effect}", effect.rpartition(":")[2]
        receipts = run.receipts.get(effect, [])
        has_failed = any(_is_failure(receipt) for receipt in receipts)
        if len(receipts) != 1 or not (ended[key] or has_failed):
            found.lost += 1
            found.complaints.append(f"{effect} is {ended[key]} times in the book and has {len(receipts)} receipts")
        if name in CHANGES_ONCE and ended[key] > 1:
            found.duplicated += ended[key] - 1
            found.complaints.append(f"{effect} happened {ended[key]} times")
        if name in CHANGES_ONCE and has_failed and ended[key]:
            found.complaints.append(f"{effect} happened, and the model was told that it failed")
        if name == "once" and begun[key] > run.intents[effect]:
            found.complaints.append(f"{effect} begun {begun[key]} times under {run.intents[effect]} intents")
    strangers = {key.partition("/")[2] for key in begun if key.startswith(f"{run_id}/")} - wanted
    found.complaints += [f"{effect} was never asked for" for effect in sorted(strangers)]


def _check_requests(run: _Read, asked: Sequence[bytes], reference: Mapping[int, bytes], found: PromptFindings) -> None:
    """Each step is asked for, in order, no more often than an answer was missing, and always with the same bytes."""
    steps = [step_of(body) for body in asked]
    counts = Counter(steps)
    found.requests, found.asked_again = len(steps), len(steps) - len(counts)
    if steps != sorted(steps):
        found.complaints.append(f"the model was asked again where its answer was on record: {steps}")
    for step in sorted(set(reference) | set(counts)):
        if not 1 <= counts[step] <= run.asks[f"model:{step}"]:
            found.complaints.append(
                f"step {step} was asked for {counts[step]} times; {run.asks[f'model:{step}']} times its answer was missing"
            )
    first: dict[int, bytes] = {}
    # What a model is told of a tool that was killed differs from what it is told of one that was not.
    wanted = first if _has_failed_tool(run) else reference
    for step, body in zip(steps, asked, strict=True):
        first.setdefault(step, body)
        if body != wanted.get(step):
            found.complaints.append(f"step {step} was asked for with other bytes than before")


def _has_failed_tool(run: _Read) -> bool:
    tools = [effect for effect in run.receipts if effect.startswith("tool:")]
    return any(_is_failure(receipt) for effect in tools for receipt in run.receipts[effect])


def _is_failure(receipt: EffectReceived) -> bool:
    """Whether the model was told that a tool failed: its process was killed, twice or before the tool began."""
    return receipt.error is not None or msgspec.json.decode(receipt.result.json, type=ToolOutcome).is_error
