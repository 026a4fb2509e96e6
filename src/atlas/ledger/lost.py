"""Work that the store did not take, and what was handed over behind it.

Whoever holds a lease may hand over the next append before the last one is answered. When the last one is lost (the
disk was full, the lock was not given, the server was away), the next one builds on something that never happened
and must not take effect, although the store may be well again by then.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Final

from atlas.kernel.errors import LedgerCorrupt, LedgerUnavailable
from atlas.kernel.run import Lease
from atlas.ledger.job import Job

# The store failed; every other error is about the work itself, and its holder expects it.
LOSSES: Final = (LedgerUnavailable, LedgerCorrupt)


class _Loss:
    """The last lost work under a lease, and the number from which on work was handed over in full knowledge of it."""

    __slots__ = ("known_from",)

    def __init__(self) -> None:
        self.known_from: int | None = None


class Lost:
    """Remembers losses by lease until their holder has heard of them: until the loop wakes who waits for the answer.

    A holder who cancelled the wait for an answer hears of the loss by the failure of what it hands over next.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._losses: dict[tuple[str, int], _Loss] = {}

    def enter(self, job: Job) -> None:
        """Gives the job its number; in the holder's thread, in the order in which jobs are queued."""
        job.number = next(self._numbers)

    def add(self, job: Job) -> None:
        """Notes that the job was lost; in the writer's thread, before its answer is delivered."""
        if job.lease is not None and isinstance(job.error, LOSSES):
            # A new mark for each loss: hearing of an earlier one says nothing about this one.
            loss = self._losses[_key(job.lease)] = _Loss()
            job.told = partial(self._tell, loss)

    def check(self, job: Job) -> None:
        """LedgerUnavailable when the job builds on lost work; in the writer's thread, in the order of the queue."""
        if job.lease is None or not self._losses:
            return
        loss = self._losses.get(_key(job.lease))
        if loss is None:
            return
        if loss.known_from is not None and job.number >= loss.known_from:
            del self._losses[_key(job.lease)]  # whatever comes now was handed over later still
            return
        raise LedgerUnavailable(
            f"an append to run {job.lease.run_id} that came before this one was lost",
            hint="Nothing was appended. Look at the run before going on with it.",
            code="append_lost",
        )

    def _tell(self, loss: _Loss) -> None:
        loss.known_from = next(self._numbers)


def _key(lease: Lease) -> tuple[str, int]:
    return lease.run_id, lease.generation
