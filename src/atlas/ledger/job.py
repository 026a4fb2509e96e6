"""Work handed from event loops to the ledger's threads, and answers handed back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

Loop = asyncio.AbstractEventLoop


class Job:
    """One piece of work for a thread and the future, in the loop of the caller, that waits for its answer."""

    __slots__ = ("error", "future", "is_lazy", "is_write", "result", "work")

    def __init__(self, work: Callable[..., Any], future: asyncio.Future[Any], is_write: bool, is_lazy: bool) -> None:
        self.work = work
        self.future = future
        self.is_write = is_write
        self.is_lazy = is_lazy
        self.result: Any = None
        self.error: BaseException | None = None


def deliver(jobs: Iterable[Job]) -> None:
    """Resolves the futures of finished jobs: one hand-over for each loop, in the order of the jobs."""
    loops: dict[Loop, list[Job]] = {}
    for job in jobs:
        loops.setdefault(job.future.get_loop(), []).append(job)
    for loop, mine in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits for these answers any more
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():  # the caller was cancelled; what it asked for happened nevertheless
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)
