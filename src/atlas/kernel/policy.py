"""Which effects may happen: ALLOW < ASK < DENY, and the strictest word wins."""

from __future__ import annotations

from typing import Final

import msgspec

from atlas.kernel.event import Decision, EffectClass

_RANK: Final[dict[Decision, int]] = {"allow": 0, "ask": 1, "deny": 2}

CLASS_DEFAULTS: Final[dict[EffectClass, Decision]] = {
    "read_only": "allow",
    "reversible_write": "allow",
    "external_side_effect": "ask",
    "high_risk": "deny",
}


class Ruling(msgspec.Struct, frozen=True):
    """A decision about an effect and the reason a person is shown."""

    decision: Decision
    reason: str


def strictest(first: Ruling, *others: Ruling) -> Ruling:
    """The ruling that wins: deny over ask over allow, the earlier one among equals."""
    winner = first
    for other in others:
        if _RANK[other.decision] > _RANK[winner.decision]:
            winner = other
    return winner


def class_default(effect_class: EffectClass) -> Ruling:
    """What happens to an effect of this class when no rule speaks."""
    return Ruling(CLASS_DEFAULTS[effect_class], f"default for {effect_class}")
