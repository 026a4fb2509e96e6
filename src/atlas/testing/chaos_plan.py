"""What is killed, where: the strikes of a storm, drawn from a seed."""

from __future__ import annotations

from collections import deque
from itertools import cycle, islice, product
from random import Random
from typing import Final, Literal, TypeAlias

import msgspec

from atlas.testing.fault import POINTS

Target: TypeAlias = Literal["worker", "driver"]

_KINDS: Final = ("once", "redo", "left", "asked", "probed", "again", "right")
_SPOTS: Final = ("before", "after")
_TARGETS: Final[tuple[Target, ...]] = ("worker", "driver")
_PATIENCE: Final = 3
_PATIENCE_FIRST: Final = 15
_PLANNED: Final = 0.7
"""How many of the kills are planned; drivers that outlive their strike are killed too and make up the rest."""


class AtPoint(msgspec.Struct, frozen=True):
    """A driver kills itself the `number`-th time it crosses a named point."""

    point: str
    number: int
    tries: int = 0


class InEffect(msgspec.Struct, frozen=True):
    """An effect kills its worker or its driver, before or after it changed the world."""

    kind: str
    spot: str
    target: Target
    tries: int = 0


class AtRandom(msgspec.Struct, frozen=True):
    """Something of a driver's family is killed some time after it started."""

    target: Target


Strike: TypeAlias = AtPoint | InEffect | AtRandom


def plan(kills: int, rng: Random) -> deque[Strike]:
    """Strikes for about `kills` kills, in random order: every point, every kind of effect, and random times."""
    points = [AtPoint(point, number) for number in range(1, kills + 1) for point in POINTS]
    effects = [InEffect(*each) for each in product(_KINDS, _SPOTS, _TARGETS)]
    effects += [InEffect("probe", "before", target) for target in _TARGETS]
    # Only the driver's death on entry can show that an effect began before its intent was durable.
    effects += [InEffect(kind, "before", "driver") for kind in ("once", "left", "right", "asked")]
    rng.shuffle(effects)
    planned = round(kills * _PLANNED)
    at_points = max(min(kills, len(POINTS)), planned // 2)
    in_effects = max(0, min(planned - at_points, planned // 3))
    strikes: list[Strike] = [*points[:at_points], *islice(cycle(effects), in_effects)]
    strikes += [AtRandom(rng.choice(_TARGETS)) for _ in range(planned - len(strikes))]
    rng.shuffle(strikes)
    return deque(strikes)


def again(strike: Strike) -> Strike | None:
    """The strike for another try when it did not hit, or None when it has had enough."""
    match strike:
        case AtPoint(point, number, tries) if tries < (_PATIENCE_FIRST if number == 1 else _PATIENCE):
            return AtPoint(point, max(1, number // 2), tries + 1)
        case InEffect(kind, spot, target, tries) if tries < _PATIENCE:
            return InEffect(kind, spot, target, tries + 1)
        case _:
            return None
