"""The course of a turn: what was decided about it, and how far its record goes.

A decision that changes something is an event; saying nothing is none. So where the record goes on past a moment,
no decision on record means that nothing was said there, and nobody is asked again. The first moment past the record's
end is the first that is asked. That is what lets a turn be executed again, replayed and shown without its hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from atlas.control.history import History
from atlas.control.payload import pack, unpack
from atlas.kernel.code import FromCode, Steered
from atlas.kernel.event import EffectIntended, TurnSteered
from atlas.kernel.port import Ledger

_ENCODER: Final = msgspec.json.Encoder()


class Course:
    """The record of a turn, as far as decisions go, and the pen that adds to it. `known` names further effects."""

    def __init__(
        self, ledger: Ledger, history: History, known: Mapping[str, EffectIntended], tell: Callable[[FromCode], None]
    ) -> None:
        self._ledger = ledger
        self._history = history
        self._tell = tell
        state = history.state
        self._is_over = state.ended is not None
        # What a person is asked about was let through before.
        self._effects = frozenset((*history.answers, *state.open, *state.asked, *state.answers, *known))
        self._last_asked = max((_step_of(effect, "model") for effect in self._effects), default=0)
        self._last_acted = max((_step_of(effect, "tool") for effect in self._effects), default=0)

    def find(self, moment: str, step: int, call: int = 0) -> TurnSteered | None:
        """The decision that is on record for this place."""
        return self._history.steered.get(f"{moment}:{step}.{call}")

    def has(self, effect: str) -> bool:
        """Whether the record knows the effect."""
        return effect in self._effects

    def has_asked(self, step: int) -> bool:
        """Whether the model was asked for this step, so that whatever comes before that is past."""
        return self._is_over or step <= self._last_asked

    def has_acted(self, step: int) -> bool:
        """Whether something was done after the model answered in this step."""
        return self.has_asked(step + 1) or step <= self._last_acted

    async def record(self, fact: TurnSteered, detail: object = None) -> TurnSteered:
        """Puts a decision on record, before anything that follows from it."""
        if detail is not None:
            fact = replace(fact, detail=await pack(self._ledger, _ENCODER.encode(detail)))
        self._tell(Steered(fact))
        return fact

    async def detail(self, fact: TurnSteered) -> msgspec.Raw:
        """All that is behind a decision."""
        return await unpack(self._ledger, fact.detail)


def _step_of(effect: str, kind: str) -> int:
    """The step of an effect of this kind, `model:3` or `tool:3.2:name`; 0 for others."""
    name, _, rest = effect.partition(":")
    step = rest.partition(":")[0].partition(".")[0]
    return int(step) if name == kind and step.isdigit() else 0
