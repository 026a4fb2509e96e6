"""The critic: once a turn has passed its soft time limit, it goes on, is nudged, or ends. Pure.

    ruled(watch, progress)     what the rule says: who moves goes on; who does not is nudged once, then stopped
    looked(watch, ...)         what the critic remembers after a look

A `Watch` is a fold over recorded verdicts, so that a turn that is executed again is looked at at the same moments.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Verdict(msgspec.Struct, frozen=True):
    """What the critic decides; `text` is what the model is told, or why the turn ends."""

    decision: Literal["extend", "nudge", "stop"]
    text: str = ""


class Watch(msgspec.Struct, frozen=True):
    """When the critic looks next (in microseconds of execution), and what it saw and said the last time."""

    next_us: int
    progress: int = 0
    is_nudged: bool = False


def ruled(watch: Watch, progress: int, active_us: int) -> Verdict:
    """The rule's verdict; `progress` is how many calls brought the turn forward so far."""
    took = f"{active_us / 1_000_000:.0f} s"
    if progress > watch.progress:
        return Verdict("extend")
    if not watch.is_nudged:
        return Verdict("nudge", nudge(took, is_idle=True))
    return Verdict("stop", f"after {took} and a nudge nothing moved any more")


def nudge(took: str, *, is_idle: bool) -> str:
    """What a model is told that takes too long; `is_idle`: for a while its calls brought nothing."""
    idle = ", and nothing new came of it lately" if is_idle else ""
    return (
        f"This has taken {took} now{idle}. Finish what is nearly done, or take another way; "
        "then answer with what you have, and say what is missing."
    )


def looked(watch: Watch, decision: str, progress: int, active_us: int, extend_us: int) -> Watch:
    """The watch after a verdict; whoever was nudged and moves again has a clean slate."""
    is_nudged = decision == "nudge" or (watch.is_nudged and progress == watch.progress)
    return Watch(active_us + extend_us, progress, is_nudged)
