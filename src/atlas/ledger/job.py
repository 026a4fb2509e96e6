"""Work handed from event loops to the ledger's threads, and answers handed back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from atlas.kernel.run import Lease

Loop = asyncio.AbstractEventLoop


class Job:
    """One piece of work for a thread and the future, in the loop of the caller, that waits for its answer.

    With a `lease` the work is done for its holder, in order with what else is. `told`, when set, is called in the
    holder's loop right before the holder learns of the error.
    """

    __slots__ = ("error", "future", "is_write", "lease", "number", "result", "told", "work")

    def __init__(
        self,
        work: Callable[[Any], Any],
        future: asyncio.Future[Any],
        *,
        is_write: bool = False,
        lease: Lease | None = None,
    ) -> None:
        self.work = work
        self.future = future
        self.is_write = is_write
        self.lease = lease
        self.number = 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.told: Callable[[], None] | None = None


def deliver(jobs: Iterable[Job]) -> None:
    """Resolves the futures of finished jobs: one hand-over for each loop, in the order of the jobs."""
    loops: dict[Loop, list[Job]] = {}
    for job in jobs:
        loops.setdefault(job.future.get_loop(), []).append(job)
    for loop, mine in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits for these answers any more
            loop.call_soon_threadsafe(_resolve, loop, mine)


def _resolve(loop: Loop, jobs: list[Job]) -> None:
    # Asked for before any future is resolved, so they run before whoever waits for one; and not called at once,
    # because whatever else runs in this turn of the loop has not heard of the errors yet.
    for job in jobs:
        if job.told is not None and not job.future.done():
            loop.call_soon(job.told)
    for job in jobs:
        if job.future.done():  # the caller was cancelled; what it asked for happened nevertheless
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)
