"""The hooks that come with Atlas: a ceiling on tokens, a check of what is done, and a command that must pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from atlas.kernel.excerpt import fence, shorten
from atlas.kernel.hook import Continue, Deny, Hook, Stop, TurnView
from atlas.kernel.model import Usage

# Here and not in a file of its own because the kernel reads none.
QUESTION: Final = (
    "Before this is accepted as done: go back to what was asked and list every single thing that was asked for, open "
    "requirements among the notes included. Check each one now with a tool against what is really there, not against "
    "what you remember. Put right what is missing and check again. If all of it holds, say so and finish."
)
_SHOWN: Final = 2_400
"""Bytes of a command's output that its failure shows; all of it can be recalled."""


class TokenCeiling(Hook):
    """A turn uses at most about `limit` tokens, read and written: it ends with the step that reaches it."""

    name = "token_ceiling"
    fails: Literal["closed", "open"] = "closed"

    def __init__(self, limit: int) -> None:
        self._limit = limit

    async def before_step(self, view: TurnView) -> Deny | None:
        """Refuses a step once the ceiling is reached."""
        return Deny(self._reason(view.usage), counts_as_stuck=False) if self._is_reached(view.usage) else None

    async def record_step_usage(self, view: TurnView, usage: Usage) -> Stop | None:
        """Ends the turn that has reached the ceiling."""
        return Stop(self._reason(view.usage)) if self._is_reached(view.usage) else None

    def _is_reached(self, usage: Usage) -> bool:
        return usage.tokens_in + usage.tokens_out >= self._limit

    def _reason(self, usage: Usage) -> str:
        return f"the turn used {usage.tokens_in + usage.tokens_out} tokens; its ceiling is {self._limit}"


class DefinitionOfDone(Hook):
    """An answer is accepted only after a tool step since it was questioned; questioned at most `rounds` times."""

    name = "definition_of_done"
    fails: Literal["closed", "open"] = "open"

    def __init__(self, rounds: int = 3, question: str = QUESTION) -> None:
        self._rounds = rounds
        self._question = question

    async def should_continue_after_stop(self, view: TurnView, answer: str) -> Continue | Stop | None:
        """Asks the model to check its work, unless it just has."""
        asked = view.rounds_of(self.name)
        has_checked = bool(asked) and view.last_tool_step > asked[-1].step
        if has_checked or len(asked) >= self._rounds:
            return None
        return Continue(self._question)


class OracleRun(msgspec.Struct, frozen=True):
    """What a command came to."""

    exit_code: int
    output: str


class TestOracle(Hook):
    """An answer is accepted only when a command passes. A command that cannot run is no pass either.

    Once `rounds` answers were sent back, the next that does not pass ends the turn without one.
    """

    __test__ = False  # not a test, whatever its name makes a test runner think
    name = "test_oracle"
    fails: Literal["closed", "open"] = "closed"

    def __init__(self, command: str, run: Callable[[str], Awaitable[OracleRun]], rounds: int = 10) -> None:
        self._command = command
        self._run = run
        self._rounds = rounds

    async def should_continue_after_stop(self, view: TurnView, answer: str) -> Continue | Stop | None:
        """Runs the command; its failure goes back to the model."""
        output = ""
        try:
            run = await self._run(self._command)
        except Exception as error:  # noqa: BLE001 - whatever keeps the check from running, the answer was not checked
            why = f"could not run: {type(error).__name__}: {error}"
        else:
            if run.exit_code == 0:
                return None
            output = run.output
            why = f"failed with exit code {run.exit_code}"
        if len(view.rounds_of(self.name)) >= self._rounds:
            rounds = "1 round" if self._rounds == 1 else f"{self._rounds} rounds"
            # A person reads this, for whom the marks around what others wrote mean nothing.
            tail = f":\n{shorten(output, view.handle, _SHOWN)}".rstrip() if output.strip() else ""
            words = f"`{self._command}` still does not pass after {rounds}; it {why}{tail}"
            return Stop(words, counts_as_stuck=True, detail=output)
        shown = f":\n{fence(shorten(output, view.handle, _SHOWN), view.handle)}\n" if output else "\n"
        return Continue(
            f"Not done yet. The check `{self._command}` {why}{shown}Put it right, then finish.", detail=output
        )
