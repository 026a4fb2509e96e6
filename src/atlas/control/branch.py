"""What a branch knows of the past: a turn comes after turns of its own session and of those that were left for it."""

from __future__ import annotations

import msgspec

from atlas.kernel.port import Ledger


class Stretch(msgspec.Struct, frozen=True):
    """The turns `first` to `last` of a session."""

    session_id: str
    first: int
    last: int


async def stretches_before(ledger: Ledger, session_id: str, turn: int) -> list[Stretch]:
    """The turns before one, in stretches, the newest first; of a session that was left only those up to there."""
    found: list[Stretch] = []
    last = turn - 1
    while last >= 1:
        session = await ledger.session(session_id)
        first = max(session.branch_turn, 1)
        if first <= last:
            found.append(Stretch(session_id, first, last))
        # A branch that does not know its turn began as a session of its own.
        last, session_id = min(last, first - 1), session.branch_of
    return found
