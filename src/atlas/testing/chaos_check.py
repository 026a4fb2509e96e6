"""Judges a storm from outside: what the world saw against what the ledger says, without asking the kernel.

    judge          every run's recorded events + every line of the outside file -> Findings

Nothing here folds a state or decides: which effects may be repeated, which had to wait for a person and how often
each may have been entered is worked out again from the raw events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from atlas.kernel.event import (
    AttemptStarted,
    Body,
    EffectDoubted,
    EffectIntended,
    EffectReceived,
    RunCreated,
    RunEnded,
)
from atlas.testing.chaos_site import Line

CHANGES: Final = frozenset({"left", "right", "again", "probed", "asked", "once"})
"""The steps that leave a trace outside."""

_STEPS: Final[dict[str, tuple[str, ...]]] = {"pair": ("left", "right"), "parts": ()}


class Order(msgspec.Struct, frozen=True):
    """What a run is asked for."""

    number: int
    effects: tuple[str, ...]
    parts: tuple[Order, ...] = ()

    @property
    def steps(self) -> list[str]:
        """The steps that such a run makes."""
        return [step for effect in self.effects for step in _STEPS.get(effect, (effect,))]

    @property
    def total(self) -> int:
        """The only right output."""
        own = sum(self.number + (len(step) if step in CHANGES else 0) for step in self.steps)
        return own + sum(part.total for part in self.parts)

    def input(self, outside: str) -> dict[str, object]:
        """The order as the agent takes it."""
        parts = [part.input(outside) for part in self.parts]
        return {"number": self.number, "effects": list(self.effects), "parts": parts, "outside": outside}


class Findings(msgspec.Struct):
    """What was found; `complaints` is empty when every promise was kept."""

    completed: int = 0
    effects: int = 0
    lost: int = 0
    duplicated: int = 0
    doubted: int = 0
    doubted_expected: int = 0
    complaints: list[str] = msgspec.field(default_factory=list)


class _Run(msgspec.Struct):
    """One run's raw events, sorted by what they are about."""

    created: RunCreated
    intents: Counter[str] = msgspec.field(default_factory=Counter)
    names: dict[str, str] = msgspec.field(default_factory=dict)
    risky: set[str] = msgspec.field(default_factory=set)
    receipts: dict[str, list[EffectReceived]] = msgspec.field(default_factory=dict)
    ended: list[RunEnded] = msgspec.field(default_factory=list)
    doubted: Counter[str] = msgspec.field(default_factory=Counter)
    expected: Counter[str] = msgspec.field(default_factory=Counter)


def judge(runs: Mapping[str, Sequence[Body]], lines: Sequence[Line], roots: Mapping[str, Order]) -> Findings:
    """Everything that is wrong, counted and in words."""
    found = Findings()
    read = {run_id: _read(bodies) for run_id, bodies in runs.items()}
    found.effects = sum(line.mark == "end" for line in lines)
    for run_id, order in roots.items():
        if run_id in read:
            _check_tree(run_id, order, read, lines, found)
        else:
            found.lost += 1
            found.complaints.append(f"{run_id} was accepted and is gone")
    _check_lines(read, lines, found)
    for run_id, run in read.items():
        found.doubted += run.doubted.total()
        found.doubted_expected += run.expected.total()
        if run.doubted != run.expected:
            found.complaints.append(f"{run_id}: in doubt are {dict(run.doubted)}, not {dict(run.expected)}")
    return found


def _read(bodies: Sequence[Body]) -> _Run:
    created = bodies[0]
    assert isinstance(created, RunCreated)
    run = _Run(created)
    # Intents that nobody has answered for yet, and those that a person has: put in doubt, or released to be done.
    unanswered: set[str] = set()
    # The process that acted is gone: its unanswered intents are the ones that must be in doubt. The first event
    # that says so is the one that closes the attempt, whichever it is; the rest of its kind add nothing.
    for body in bodies[1:]:
        match body:
            case EffectIntended():
                run.intents[body.effect] += 1
                run.names[body.effect] = body.name
                if _is_risky(body):
                    run.risky.add(body.effect)
                    unanswered.add(body.effect)
            case EffectReceived():
                run.receipts.setdefault(body.effect, []).append(body)
                unanswered.discard(body.effect)
            case AttemptStarted() | EffectDoubted() | RunEnded():
                run.expected.update(unanswered)
                unanswered.clear()
                if isinstance(body, EffectDoubted):
                    run.doubted[body.effect] += 1
                elif isinstance(body, RunEnded):
                    run.ended.append(body)
            case _:
                pass
    return run


def _is_risky(intent: EffectIntended) -> bool:
    """Whether only a person can say what became of it."""
    is_safe = intent.effect_class == "read_only" or intent.idempotent or intent.can_probe
    return intent.kind == "step" and not is_safe


def _check_tree(run_id: str, order: Order, runs: Mapping[str, _Run], lines: Sequence[Line], found: Findings) -> None:
    run = runs[run_id]
    _check_end(run_id, order, run, found)
    ends = {line.key: line.result for line in lines if line.mark == "end"}
    for name in CHANGES.intersection(order.steps):
        effects = [effect for effect, known in run.names.items() if known == name]
        if len(effects) != 1 or len(run.receipts.get(effects[0], [])) != 1 or f"{run_id}/{effects[0]}" not in ends:
            found.lost += 1
            found.complaints.append(f"{run_id}: {name} has no intent, no single receipt or no trace outside")
            continue
        receipt = run.receipts[effects[0]][0]
        if msgspec.json.decode(receipt.result.json) != ends[f"{run_id}/{effects[0]}"]:
            found.complaints.append(f"{run_id}: the receipt of {name} is not what happened outside")
    wanted = {part.number: part for part in order.parts}
    for child_id, child in runs.items():
        if child.created.parent_run_id != run_id:
            continue
        number = msgspec.json.decode(child.created.input.json)["number"]
        if number not in wanted:
            found.duplicated += 1
            found.complaints.append(f"{run_id}: child {number} was started twice or never asked for")
        else:
            _check_tree(child_id, wanted.pop(number), runs, lines, found)
    for number in wanted:
        found.lost += 1
        found.complaints.append(f"{run_id}: child {number} was never started")


def _check_end(run_id: str, order: Order, run: _Run, found: Findings) -> None:
    if len(run.ended) != 1:
        found.complaints.append(f"{run_id}: {len(run.ended)} terminal events")
        return
    ended = run.ended[0]
    if ended.state != "succeeded" or ended.unresolved:
        found.complaints.append(f"{run_id}: {ended.state} {ended.error} {ended.unresolved}")
    elif msgspec.json.decode(ended.output.json) != {"total": order.total}:
        found.complaints.append(f"{run_id}: output {bytes(ended.output.json)!r}, not a total of {order.total}")
    else:
        found.completed += 1


def _check_lines(runs: Mapping[str, _Run], lines: Sequence[Line], found: Findings) -> None:
    begun: Counter[str] = Counter(line.key for line in lines if line.mark == "begin")
    ended: Counter[str] = Counter(line.key for line in lines if line.mark == "end")
    struck: Counter[str] = Counter(line.key for line in lines if line.mark == "struck")
    for key in begun | ended:
        run_id, _, effect = key.partition("/")
        run = runs.get(run_id)
        if run is None or effect not in run.intents:
            found.complaints.append(f"{key}: touched the world without a recorded intent")
            found.lost += 1
            continue
        may_repeat = run.names[effect] == "again"
        if not may_repeat and ended[key] > 1:
            found.duplicated += ended[key] - 1
            found.complaints.append(f"{key}: happened {ended[key]} times")
        if effect in run.risky and begun[key] > run.intents[effect]:
            found.complaints.append(f"{key}: begun {begun[key]} times under {run.intents[effect]} intents")
        if effect in run.risky and struck[key] > run.doubted[effect]:
            found.complaints.append(f"{key}: struck {struck[key]} times, in doubt {run.doubted[effect]} times")
    for run_id, run in runs.items():
        for effect, receipts in run.receipts.items():
            if len(receipts) != 1:
                found.duplicated += len(receipts) - 1
                found.complaints.append(f"{run_id}/{effect}: {len(receipts)} receipts")
            if run.names.get(effect) in CHANGES and not ended[f"{run_id}/{effect}"]:
                found.lost += 1
                found.complaints.append(f"{run_id}/{effect}: received, but the world never saw it")
