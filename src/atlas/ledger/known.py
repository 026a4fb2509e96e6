"""What the writer knows without asking the database: runs that were read or written, and sums of meters.

It holds as long as nobody else writes: on Postgres within one transaction, on SQLite until another connection has
committed. Whoever changes a row that is known here changes it here too, or drops it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from atlas.kernel.hold import Cap
from atlas.kernel.run import RunState
from atlas.ledger.budget import Held, Sums, plus


class Head(msgspec.Struct, frozen=True, gc=False):
    """A run's row as an append needs it; the columns of `run_head`. `rowid` is how statements name the row."""

    rowid: int | str
    state: RunState
    owner: str
    generation: int
    seq: int
    hash: bytes
    agent: str
    principal: str
    session_id: str
    turn: int
    root_run_id: str
    place: str
    priority: int


class Known:
    """Heads and holds by run, sums by cap. `size` is how much was read so far: whoever keeps this bounds it."""

    __slots__ = ("_run_ids", "_sums", "heads", "holds", "size")

    def __init__(self) -> None:
        self.heads: dict[str, Head] = {}
        self.holds: dict[str, dict[str, Held]] = {}
        self._run_ids: dict[int | str, str] = {}
        self._sums: dict[str, dict[tuple[str, str], Sums]] = {}
        self.size = 0

    def add_head(self, run_id: str, head: Head) -> None:
        """Keeps what was read."""
        self.size += 1
        self.heads[run_id] = head
        self._run_ids[head.rowid] = run_id

    def move_head(self, run_id: str, seq: int, link: bytes) -> None:
        """Follows the chain of a run whose head is known."""
        self.heads[run_id] = replace(self.heads[run_id], seq=seq, hash=link)

    def drop_run(self, rowid: int | str) -> None:
        """Forgets a run whose row was changed."""
        run_id = self._run_ids.pop(rowid, "")
        self.heads.pop(run_id, None)
        self.holds.pop(run_id, None)

    def add_holds(self, run_id: str, holds: dict[str, Held]) -> None:
        """Keeps what was read."""
        self.size += 1
        self.holds[run_id] = holds

    def set_hold(self, run_id: str, effect: str, held: Held | None) -> None:
        """Follows a hold that was written, or taken away."""
        holds = self.holds.get(run_id)
        if holds is None:
            return
        if held is None:
            holds.pop(effect, None)
        else:
            holds[effect] = held

    def sums(self, cap: Cap) -> Sums | None:
        """What the meters under the cap add up to, if it is known."""
        return self._sums[cap.scope].get((cap.first, cap.last)) if cap.scope in self._sums else None

    def add_sums(self, cap: Cap, sums: Sums) -> None:
        """Keeps what was read."""
        self.size += 1
        self._sums.setdefault(cap.scope, {})[cap.first, cap.last] = sums

    def move_meters(self, changes: Mapping[tuple[str, str], Sums]) -> None:
        """Follows meters that were moved."""
        if not self._sums:
            return
        for (scope, bucket), change in changes.items():
            sums = self._sums.get(scope, {})
            for (first, last), old in sums.items():
                if first <= bucket <= last:
                    sums[first, last] = plus(old, change)
