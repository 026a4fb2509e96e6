"""The one thread of a process that writes: group commit, in the order in which work was handed over.

Everything that waits when a transaction starts shares it, so that many runs share one fsync. A job that is refused
before it wrote anything fails alone. When something fails after it wrote, or SQLite itself fails, the whole group
is rolled back and each job is run again in a transaction of its own, so that only the guilty one fails.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, Protocol

from atlas.kernel.errors import AtlasError, Fault
from atlas.ledger.job import Job, deliver
from atlas.ledger.rule import BAD_VALUE, closed
from atlas.ledger.sqlite_error import is_busy

GROUP_MAX: Final = 512
LAZY_S: Final = 0.002


class News(IntEnum):
    """What a commit means to those who wait."""

    NONE = 0
    EVENTS = 1
    WORK = 2


class Desk(Protocol):
    """The writer's connection and what a transaction knows; made and used in the writer's thread only.

    `has_work` says whether the transaction made work for somebody: a submission, a signal, a run's new state.
    """

    connection: sqlite3.Connection
    has_work: bool

    def begin(self) -> None:
        """Takes the write lock and looks up time and position."""
        ...

    def commit(self) -> None:
        """Makes the transaction durable."""
        ...

    def rollback(self) -> None:
        """Leaves no transaction open."""
        ...

    def close(self) -> None:
        """Gives the connection back."""
        ...


class _PartlyDone(Exception):
    """A job was refused after it had written something: the group must not commit as it stands."""


class Writer:
    """Runs jobs in its thread, in order; answers come after the commit that holds them."""

    def __init__(
        self,
        open_desk: Callable[[], Desk],
        translate: Callable[[BaseException], AtlasError],
        committed: Callable[[News], None],
        finished: Callable[[], None],
    ) -> None:
        self._open_desk = open_desk
        self._translate = translate
        self._committed = committed
        self._finished = finished
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._is_open = False
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        """Whether work is taken."""
        return self._is_open

    async def start(self) -> None:
        """Opens the connection in the thread; raises what opening raised."""
        opened = Job(_nothing, asyncio.get_running_loop().create_future(), is_write=False, is_lazy=False)
        self._thread = threading.Thread(target=self._run, name="atlas-ledger-writer", args=(opened,), daemon=True)
        self._is_open = True
        self._thread.start()
        await opened.future

    def put(self, work: Callable[[Any], Any], *, is_write: bool = True, is_lazy: bool = False) -> asyncio.Future[Any]:
        """Hands work over; its place in the order is fixed when this returns."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # The gate closes before the end mark is queued, so nothing can stand behind the mark and wait for ever.
        with self._gate:
            if self._is_open:
                self._queue.put(Job(work, future, is_write, is_lazy))
            else:
                future.set_exception(closed())
        return future

    async def stop(self) -> None:
        """Finishes everything handed over before, then ends the thread."""
        with self._gate:
            was_open, self._is_open = self._is_open, False
            if was_open:
                self._queue.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _run(self, opened: Job) -> None:
        group = [opened]
        try:
            desk = self._opened_desk(opened)
            if desk is None:
                return
            deliver(group)
            group = []
            try:
                group, goes_on = self._collect()
                while goes_on or group:
                    news = self._commit(desk, group)
                    # Before the answers: who has awaited a commit and then asks its wake, is told of it.
                    if news:
                        self._committed(news)
                    deliver(group)
                    group = []
                    if goes_on:
                        group, goes_on = self._collect()
            finally:
                desk.close()
        finally:
            # Reached with jobs left only when opening failed or when there is a bug above: nobody waits for ever.
            with self._gate:
                self._is_open = False
            self._abandon(group)
            self._finished()

    def _opened_desk(self, opened: Job) -> Desk | None:
        try:
            return self._open_desk()
        except (AtlasError, sqlite3.Error, OSError) as error:
            opened.error = self._translate(error)
            return None

    def _collect(self) -> tuple[list[Job], bool]:
        """The next group, and whether another one may follow.

        A group of lazy jobs only waits a moment for somebody who is in a hurry; an urgent job takes along all
        that was queued before it.
        """
        first = self._queue.get()
        if first is None:
            return [], False
        group = [first]
        deadline_s = time.monotonic() + LAZY_S if first.is_lazy else 0.0
        while len(group) < GROUP_MAX:
            try:
                if deadline_s:
                    job = self._queue.get(timeout=max(deadline_s - time.monotonic(), 0.0))
                else:
                    job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return group, False
            group.append(job)
            if not job.is_lazy:
                deadline_s = 0.0
        return group, True

    def _commit(self, desk: Desk, group: list[Job]) -> News:
        """Runs the group; afterwards each job has its result or its error."""
        try:
            return self._attempt(desk, group)
        except (sqlite3.Error, _PartlyDone, *BAD_VALUE) as error:
            desk.rollback()
            # Who waited in vain for another's lock would wait as long again for each single job.
            if len(group) == 1 or (isinstance(error, sqlite3.Error) and is_busy(error)):
                cause = error.__cause__ if isinstance(error, _PartlyDone) else error
                for job in group:
                    job.error = self._translate(cause or error)
                return News.NONE
        return max(self._commit(desk, [job]) for job in group)

    def _attempt(self, desk: Desk, group: list[Job]) -> News:
        """Runs the group in one transaction and commits it, unless nothing was written."""
        connection = desk.connection
        for job in group:
            job.error = None
        if not any(job.is_write for job in group):
            for job in group:
                job.result = job.work(desk)
            return News.NONE
        desk.begin()
        start = done = connection.total_changes
        for job in group:
            try:
                job.result = job.work(desk)
            except AtlasError as error:
                if connection.total_changes != done:
                    raise _PartlyDone from error
                job.error = error
            done = connection.total_changes
        if done == start:
            desk.rollback()
            return News.NONE
        desk.commit()
        return News.WORK if desk.has_work else News.EVENTS

    def _abandon(self, group: list[Job]) -> None:
        left = [job for job in group if not job.future.done()]
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                left.append(job)
        for job in left:
            job.error = job.error or Fault("the ledger's writer stopped", code="ledger_fault")
        deliver(left)


def _nothing(_desk: Desk) -> None:
    return None
