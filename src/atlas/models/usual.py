"""What the tiers mean where nobody has said: one key, or the local model, is enough to begin with.

The names are those of the makers' own services and are asked nowhere else. Each tier has a current model and an older
one behind it, for accounts that the current one is not open to. All of them take tools over the wires that are spoken
here, which not every current one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from atlas.models.provider import Endpoint, is_makers_own
from atlas.models.weights import SMOLLM2

TIERS: Final = ("fast", "balanced", "powerful")
USUAL: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "openai": {
        "fast": ("gpt-6-luna", "gpt-5-mini"),
        "balanced": ("gpt-6.1-terra", "gpt-5.1"),
        "powerful": ("gpt-6-sol", "gpt-5.2"),
    },
    "anthropic": {
        "fast": ("claude-haiku-5-5", "claude-haiku-4-5"),
        "balanced": ("claude-sonnet-5-5", "claude-sonnet-4-5"),
        "powerful": ("claude-opus-5-5", "claude-opus-4-5"),
    },
}


def usual_tiers(endpoints: Mapping[str, Endpoint]) -> dict[str, tuple[str, ...]]:
    """The candidates of each tier by the providers that are there, written in full.

    The makers' own models when all that is there are the makers' own services; this machine's when nothing else is
    there. Somebody with a server of another kind meant to use that, and should be told that no model of it is named.
    """
    others = [each for each in endpoints.values() if each.kind != "local"]
    if not others:
        return {tier: tuple(f"{name}:{SMOLLM2.name}" for name in endpoints) for tier in TIERS}
    if not all(map(is_makers_own, others)):
        return dict.fromkeys(TIERS, ())
    return {
        tier: tuple(f"{each.name}:{model}" for each in others for model in USUAL[each.kind][tier]) for tier in TIERS
    }
