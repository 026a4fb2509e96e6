"""Why an effect was allowed, asked about or refused: every layer and rule that spoke, from the record or made up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from atlas.kernel.errors import NotFound
from atlas.kernel.event import Body, EffectAnswered, EffectAsked, EffectIntended, EffectJudged, EffectRefused, Ruled
from atlas.kernel.policy import Ruling
from atlas.kernel.rule import Decision, Spoke


class Explained(msgspec.Struct, frozen=True):
    """One effect: what was decided, by what, and everything that was said. `outcome` is what became of it then."""

    effect: str
    kind: str
    name: str
    effect_class: str
    decision: Decision
    reason: str
    rule: str
    layer: str
    version: str
    spoke: tuple[Spoke, ...]
    outcome: tuple[str, ...] = ()


def explain_recorded(bodies: Iterable[Body], step: str) -> Explained:
    """The explanation of an effect of a run, named by its effect, its number among the run's effects, or its tool.

    NotFound when the run has no such effect, or several of that name.
    """
    found: dict[str, list[Body]] = {}
    for body in bodies:
        match body:
            case EffectIntended() | EffectRefused() | EffectAsked() | EffectAnswered() | EffectJudged():
                found.setdefault(body.effect, []).append(body)
    effect = _named(found, step)
    facts = found[effect]
    ruled = [fact for fact in facts if isinstance(fact, EffectIntended | EffectRefused | EffectAsked)]
    if not ruled:
        raise NotFound(f"nothing was ruled on {effect}")
    last = ruled[-1]
    ruling = next((fact.ruling for fact in reversed(ruled) if fact.ruling is not None), None) or _unkept(last)
    return Explained(
        effect,
        last.kind,
        last.name,
        last.effect_class,
        ruling.decision,
        ruling.reason,
        ruling.rule,
        ruling.layer,
        ruling.version,
        ruling.spoke,
        tuple(line for fact in facts for line in _outcome(fact)),
    )


def explain_ruling(ruling: Ruling, kind: str, name: str, effect_class: str) -> Explained:
    """The explanation of a ruling on an effect that nobody has asked for."""
    return Explained(
        "",
        kind,
        name,
        effect_class,
        ruling.decision,
        ruling.reason,
        ruling.rule,
        ruling.layer,
        ruling.version,
        ruling.spoke,
    )


def _named(found: dict[str, list[Body]], step: str) -> str:
    if step in found:
        return step
    names = list(found)
    if step.isdigit() and 1 <= int(step) <= len(names):
        return names[int(step) - 1]
    by_tool = [effect for effect, facts in found.items() if _tool(facts) == step]
    if len(by_tool) == 1:
        return by_tool[0]
    if by_tool:
        hint = f"they are {', '.join(by_tool[:10])}"
        raise NotFound(f"the run has {len(by_tool)} effects through {step}", hint=hint)
    hint = f"the effects are {', '.join(names[:10])}" if names else "the run has none that rules were asked about"
    raise NotFound(f"the run has no effect {step}", hint=hint)


def _tool(facts: Sequence[Body]) -> str:
    return next((fact.name for fact in facts if isinstance(fact, EffectIntended | EffectRefused | EffectAsked)), "")


def _unkept(fact: EffectIntended | EffectRefused | EffectAsked) -> Ruled:
    """For effects from before rulings were kept: the decision is known, what was said is not."""
    match fact:
        case EffectIntended():
            return Ruled(fact.decision, fact.reason)
        case EffectAsked():
            return Ruled("ask", fact.reason)
        case EffectRefused():
            return Ruled(fact.decision, fact.error.message)


def _outcome(fact: Body) -> tuple[str, ...]:
    match fact:
        case EffectJudged():
            return (f"second opinion of {fact.by}: {fact.verdict}" + (f", {fact.reason}" if fact.reason else ""),)
        case EffectAsked():
            return ("a person was asked",)
        case EffectAnswered():
            word = "approved" if fact.approved else "denied"
            return (f"{word} by {fact.by}" + (f": {fact.reason}" if fact.reason else ""),)
        case EffectIntended():
            under = f" under {fact.answered_by}" if fact.answered_by else ""
            return (f"performed{under}" + (" with changed arguments" if fact.is_edited else ""),)
        case EffectRefused():
            return (f"refused: {fact.error.message}",)
    return ()
