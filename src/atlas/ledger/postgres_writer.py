"""Group commit on Postgres: the writer's thread, and what it does when the server goes away.

A group whose connection was lost before its COMMIT was sent has not happened and is run again on a new one. After
that the server is asked what became of it, so that nothing is written twice and nothing that is there is reported
as failed.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from atlas.kernel.errors import AtlasError, LedgerUnavailable
from atlas.kernel.run import Append, Appended
from atlas.ledger import sqlite_commit
from atlas.ledger.job import Job
from atlas.ledger.postgres_desk import PostgresDesk
from atlas.ledger.postgres_error import is_hopeless, is_locked, is_passing
from atlas.ledger.rule import BAD_VALUE
from atlas.ledger.writer import News, Writer

_RETRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5


class AppendWork:
    """An append as a job, so that the writer can look up the runs of a whole group at once."""

    __slots__ = ("batch", "is_lost", "number")

    def __init__(self, batch: Append) -> None:
        self.batch = batch
        self.number = 0
        self.is_lost = False

    def __call__(self, desk: Any) -> Any:
        return sqlite_commit.append(desk, self.batch)


class _PartlyDone(Exception):
    """A job was refused after it had written something: the group must not commit as it stands."""


class _Lost:
    """Appends that the server did not take.

    What was handed over behind one of them, by a holder who could not know of it yet, builds on it and must not take
    effect without it. The holder knows when the failed future's callbacks run; ours is the first of them.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        # By lease: the number from which on appends were handed over in full knowledge, None until there is one.
        self._known: dict[tuple[str, int], int | None] = {}

    def enter(self, work: AppendWork) -> None:
        """Gives the append its number; in the holder's thread, before it is handed over."""
        work.number = next(self._numbers)

    def add(self, work: AppendWork) -> None:
        """The append failed; in the writer's thread, before the holder is told."""
        work.is_lost = True
        self._known[_lease(work)] = None

    def tell(self, work: AppendWork) -> None:
        """The holder hears the answer; in the holder's thread."""
        if work.is_lost:
            self._known[_lease(work)] = next(self._numbers)

    def holds_back(self, work: AppendWork) -> bool:
        """Whether the append builds on a lost one; in the writer's thread, in the order of the calls."""
        lease = _lease(work)
        if lease not in self._known:
            return False
        known = self._known[lease]
        if known is None or work.number < known:
            return True
        del self._known[lease]  # whatever comes now was handed over later still
        return False


def _lease(work: AppendWork) -> tuple[str, int]:
    return work.batch.lease.run_id, work.batch.lease.generation


class PostgresWriter(Writer):
    """Runs jobs in its thread, in order; answers come after the commit that holds them."""

    def __init__(
        self,
        open_desk: Callable[[], Any],
        translate: Callable[[BaseException], AtlasError],
        committed: Callable[[News], None],
        *,
        patience_s: float,
        hurry: threading.Event,
    ) -> None:
        super().__init__(open_desk, translate, committed, _nothing)
        self._patience_s = patience_s
        self._hurry = hurry
        self._lost = _Lost()

    def append(self, batch: Append) -> asyncio.Future[Appended]:
        """Hands an append over; its place in the order is fixed when this returns."""
        work = AppendWork(batch)
        self._lost.enter(work)
        future: asyncio.Future[Appended] = self.put(work, is_lazy=batch.lazy)
        future.add_done_callback(lambda _: self._lost.tell(work))
        return future

    def _commit(self, desk: Any, group: list[Job]) -> News:
        """Runs the group; afterwards each job has its result or its error."""
        deadline_s = time.monotonic() + self._patience_s
        error: BaseException
        for _ in range(_RETRIES):
            try:
                return self._attempt(desk, group)
            except (psycopg.Error, AtlasError, _PartlyDone, *BAD_VALUE) as caught:
                error = caught
            if desk.is_lost(error):
                news = self._recover(desk, group, deadline_s)
                if news is not None:
                    return news
                continue
            desk.rollback()
            if not is_passing(error):
                break
        # Who waited in vain for another's lock would wait as long again for each single job.
        if len(group) == 1 or is_locked(error):
            cause = error.__cause__ if isinstance(error, _PartlyDone) else error
            return self._fail(group, self._translate(cause or error))
        return max(self._commit(desk, [job]) for job in group)

    def _attempt(self, desk: Any, group: list[Job]) -> News:
        """Runs the group in one transaction and commits it, unless nothing was written."""
        desk.begin(list({job.work.batch.lease.run_id for job in group if isinstance(job.work, AppendWork)}))
        for job in group:
            job.error = None
            done = desk.changes
            try:
                self._check_order(job)
                job.result = job.work(desk)
            except AtlasError as error:
                if desk.changes != done:
                    raise _PartlyDone from error
                job.error = error
        if not desk.changes:
            desk.rollback()
            return News.NONE
        news = News.WORK if desk.has_work else News.EVENTS
        desk.commit()
        return news

    def _recover(self, desk: PostgresDesk, group: list[Job], deadline_s: float) -> News | None:
        """Connects again and finds out what became of the group: None when it has to be run again."""
        news = News.WORK if desk.has_work else News.EVENTS
        in_doubt = desk.doubt is not None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                desk.reconnect()
                return news if in_doubt and desk.settle_doubt() else None
            except (AtlasError, psycopg.Error) as caught:
                error = self._translate(caught)
            # There is nothing that would tell us when a server is back, so it is asked again until time is up.
            is_over = time.monotonic() >= deadline_s or self._hurry.is_set()
            if is_over or is_hopeless(error):
                return self._fail(group, _unknown(error) if in_doubt else error)
            self._hurry.wait(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _check_order(self, job: Job) -> None:
        if isinstance(job.work, AppendWork) and self._lost.holds_back(job.work):
            self._lost.add(job.work)
            raise LedgerUnavailable(
                f"an append to run {job.work.batch.lease.run_id} that came before this one was lost",
                hint="Nothing was appended. Look at the run before going on with it.",
                code="append_lost",
            )

    def _fail(self, group: list[Job], error: AtlasError) -> News:
        for job in group:
            job.error = error
            if isinstance(job.work, AppendWork) and isinstance(error, LedgerUnavailable):
                self._lost.add(job.work)
        return News.NONE


def _unknown(error: AtlasError) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"the server went away during a commit, and whether it happened is not known yet: {error.message}",
        hint="When the server is back, look at the run before going on with it.",
        where=error.where,
        code="outcome_unknown",
        detail=error.detail,
    )


def _nothing() -> None:
    return None
