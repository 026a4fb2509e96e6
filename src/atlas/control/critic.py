"""The critic at its desk: looks at a turn that has passed its soft time limit, by rule or by asking a cheap model.

The model's opinion is an effect of the run like any other call of a model, so it is paid, policed, asked once and
replayed; a model that cannot say is taken to say "nudge". The verdict itself is a decision on record; see `Course`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from atlas.control.course import Course
from atlas.kernel.contract import Contract
from atlas.kernel.critic import Verdict, Watch, looked, nudge, ruled
from atlas.kernel.errors import AtlasError, Cancelled, RunFailed
from atlas.kernel.event import TurnSteered
from atlas.kernel.excerpt import fence, one_line
from atlas.kernel.guard import GuardState
from atlas.kernel.turn import Finish, Turn, advised

MOMENT: Final = "critic"
_STEPS_SHOWN: Final = 20
_WORDS: Final = 500
_MAX_OUTPUT_TOKENS: Final = 400
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["extend", "nudge", "stop"]},
        "message": {"type": "string", "description": "What to tell the agent, or why it must stop."},
    },
    "required": ["verdict", "message"],
    "additionalProperties": False,
}


class _Opinion(msgspec.Struct, frozen=True):
    verdict: Literal["extend", "nudge", "stop"]
    message: str = ""


class CriticDesk:
    """Watches one turn. `active_us` tells for how long the run has been executed, `ask` performs a model's effect."""

    def __init__(
        self,
        contract: Contract,
        course: Course,
        active_us: Callable[[], int],
        ask: Callable[[str, str, bytes], Awaitable[bytes]],
    ) -> None:
        soft_s = contract.soft_timeout_s or 0.0
        self._use = contract.critic.use
        self._extend_us = int((contract.critic.extend_s or soft_s) * 1_000_000)
        self._watch = Watch(int(soft_s * 1_000_000))
        self._course = course
        self._active_us = active_us
        self._ask = ask

    async def look(self, turn: Turn, step: int, seen: GuardState) -> Turn:
        """The turn before a step: as it was, nudged, or at its end."""
        effect = f"critic:{step}"
        fact = self._course.find(MOMENT, step)
        is_asked = self._course.has(effect)
        is_past = self._course.has_asked(step)
        if fact is None and not is_asked and (is_past or self._active_us() < self._watch.next_us):
            return turn
        verdict = None
        # A recorded question is asked again even when its verdict is known: the record must find all of its effects.
        if is_asked or (fact is None and self._use != "rule"):
            verdict = await self._opinion(effect, turn, seen)
        if fact is None:
            now_us = self._active_us()
            verdict = verdict or ruled(self._watch, seen.progress, now_us)
            by = f"critic ({self._use})"
            fact = await self._course.record(
                TurnSteered(MOMENT, step, verdict.decision, by, text=verdict.text, active_us=now_us)
            )
        self._watch = looked(self._watch, fact.decision, seen.progress, fact.active_us, self._extend_us)
        return _steered(turn, fact)

    async def _opinion(self, effect: str, turn: Turn, seen: GuardState) -> Verdict:
        took = f"{self._active_us() / 1_000_000:.0f} s"
        plain = nudge(took, is_idle=seen.progress == self._watch.progress)
        args = msgspec.json.encode(
            {
                "model": self._use,
                "prompt": _question(turn, seen, took),
                "output_schema": _SCHEMA,
                "system": (resources.files("atlas.control") / "critic.md").read_text(encoding="utf-8"),
                "max_output_tokens": _MAX_OUTPUT_TOKENS,
            }
        )
        try:
            found = msgspec.json.decode(await self._ask(effect, self._use, args), type=_Opinion)
        except Cancelled:
            raise
        except (AtlasError, msgspec.ValidationError):
            return Verdict("nudge", plain)
        return Verdict(found.verdict, one_line(found.message, _WORDS) or plain)


def _question(turn: Turn, seen: GuardState, took: str) -> str:
    lines = [*turn.dropped, *(exchange.line for exchange in turn.window)][-_STEPS_SHOWN:]
    steps = fence("\n".join(lines) or "(none)", "its last steps")
    asked = fence(one_line(turn.user, 4 * _WORDS), "what it was asked")
    return (
        f"It has worked for {took} and taken {turn.step} steps; its last {seen.stalled} tool calls brought nothing new.\n"
        f"{asked}\n{steps}\nExtend, nudge or stop?"
    )


def _steered(turn: Turn, fact: TurnSteered) -> Turn:
    match fact.decision:
        case "nudge":
            return advised(turn, fact.text)
        case "stop":
            hint = "Raise soft_timeout_s or critic.extend_s in agent.yaml, or ask for less."
            error = RunFailed(f"the critic ended it: {fact.text}", hint=hint, code="stopped_by_critic")
            return replace(turn, finish=Finish(error=error.record()))
        case _:
            return turn
