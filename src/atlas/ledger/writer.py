"""The one thread of a process that writes: group commit, in the order in which work was handed over.

Everything that waits when a transaction starts shares it, so that many runs share one fsync. A lazy job does not even
wake the thread: it is held back for a moment, and goes along with the next one that is in a hurry. A job that is refused
before it wrote anything fails alone. When something fails after it wrote, or the store itself fails, the whole group
is rolled back and each job is run again in a transaction of its own, so that only the guilty one fails. How a store
fails is its own affair: each has a subclass that says how a group is committed.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Generic, TypeVar

from atlas.kernel.errors import AtlasError, Fault
from atlas.kernel.run import Lease
from atlas.ledger.desk import Transaction
from atlas.ledger.job import Job, Loop, deliver
from atlas.ledger.lost import Lost
from atlas.ledger.rule import closed

GROUP_MAX: Final = 512
LAZY_S: Final = 0.002

T = TypeVar("T")
D = TypeVar("D", bound=Transaction)


class News(IntEnum):
    """What a commit means to those who wait."""

    NONE = 0
    EVENTS = 1
    WORK = 2


class PartlyDone(Exception):
    """A job was refused after it had written something: the group must not commit as it stands."""


class Writer(ABC, Generic[D]):
    """Runs jobs in its thread, in order; answers come after the commit that holds them."""

    def __init__(
        self,
        open_desk: Callable[[], D],
        translate: Callable[[BaseException], AtlasError],
        committed: Callable[[News], None],
        finished: Callable[[], None],
    ) -> None:
        self._open_desk = open_desk
        self._translate = translate
        self._committed = committed
        self._finished = finished
        self._queue: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._held: list[Job] = []
        self._timer: tuple[Loop, asyncio.TimerHandle] | None = None
        self._lost = Lost()
        self._gate = threading.Lock()
        self._is_open = False
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        """Whether work is taken."""
        return self._is_open

    async def start(self) -> None:
        """Opens the connection in the thread; raises what opening raised."""
        opened = Job(_nothing, asyncio.get_running_loop().create_future())
        self._thread = threading.Thread(target=self._run, name="atlas-ledger-writer", args=(opened,), daemon=True)
        self._is_open = True
        self._thread.start()
        await opened.future

    def put(
        self, work: Callable[[D], T], *, is_write: bool = True, is_lazy: bool = False, lease: Lease | None = None
    ) -> asyncio.Future[T]:
        """Hands work over; its place in the order is fixed when this returns.

        With `lease` it fails when work under the same lease was lost and the holder could not know of it yet.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = Job(work, future, is_write=is_write, lease=lease)
        # The gate closes before the end mark is queued, so nothing can stand behind the mark and wait for ever.
        with self._gate:
            if not self._is_open:
                future.set_exception(closed())
                return future
            self._lost.enter(job)
            self._held.append(job)
            if not is_lazy or len(self._held) >= GROUP_MAX:
                self._hand_over(loop)
            elif len(self._held) == 1:
                self._timer = (loop, loop.call_later(LAZY_S, self._release))
        return future

    async def stop(self) -> None:
        """Finishes everything handed over before, then ends the thread."""
        with self._gate:
            was_open, self._is_open = self._is_open, False
            if was_open:
                self._hand_over(asyncio.get_running_loop())
                self._queue.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _release(self) -> None:
        """Hands over what was held back; in the loop of whoever handed the first of it in."""
        with self._gate:
            if self._is_open:
                self._hand_over(asyncio.get_running_loop())

    def _hand_over(self, loop: Loop) -> None:
        """Gives all that is held to the thread, as one piece; under the gate, so that the order is that of `put`."""
        timer, self._timer = self._timer, None
        # A timer of another loop is left to run out, because only its own loop may touch it: it hands over early.
        if timer is not None and timer[0] is loop:
            timer[1].cancel()
        if self._held:
            held, self._held = self._held, []
            self._queue.put(held)

    @abstractmethod
    def _commit(self, desk: D, group: list[Job]) -> News:
        """Runs the group; afterwards each job has its result or its error, and no transaction is open."""

    def _attempt(self, desk: D, group: list[Job]) -> News:
        """Runs the group in one transaction and commits it, unless nothing was written; raises what prevented it."""
        is_write = False
        for job in group:
            job.error = None
            is_write = is_write or job.is_write
        if not is_write:
            for job in group:
                job.result = job.work(desk)
            return News.NONE
        desk.begin(list({job.lease.run_id for job in group if job.lease is not None}))
        for job in group:
            done = desk.changes
            try:
                self._lost.check(job)
                job.result = job.work(desk)
            except AtlasError as error:
                if desk.changes != done:
                    raise PartlyDone from error
                job.error = error
                self._lost.add(job)
        if not desk.changes:
            desk.rollback()
            return News.NONE
        news = News.WORK if desk.work else News.EVENTS
        desk.commit()
        return news

    def _narrow(self, desk: D, group: list[Job], error: BaseException, *, is_locked: bool) -> News:
        """Finds out who of a group that was rolled back is to blame: each job is run again on its own."""
        # Who waited in vain for another's lock would wait as long again for each single job.
        if len(group) > 1 and not is_locked:
            return max(self._commit(desk, [job]) for job in group)
        cause = error.__cause__ if isinstance(error, PartlyDone) else error
        return self._fail(group, self._translate(cause or error))

    def _fail(self, group: list[Job], error: AtlasError) -> News:
        for job in group:
            job.error = error
            self._lost.add(job)
        return News.NONE

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

    def _opened_desk(self, opened: Job) -> D | None:
        try:
            return self._open_desk()
        except AtlasError as error:
            opened.error = error
            return None

    def _collect(self) -> tuple[list[Job], bool]:
        """The next group, everything that waits by now, and whether another one may follow."""
        group: list[Job] = []
        jobs = self._queue.get()
        while jobs is not None:
            group += jobs
            # This thread alone takes from the queue: what it does not find empty gives at once.
            if len(group) >= GROUP_MAX or self._queue.empty():
                return group, True
            jobs = self._queue.get()
        return group, False

    def _abandon(self, group: list[Job]) -> None:
        left = [job for job in group if not job.future.done()]
        while True:
            try:
                left += self._queue.get_nowait() or ()
            except queue.Empty:
                break
        left += self._held
        self._held = []
        for job in left:
            job.error = job.error or Fault("the ledger's writer stopped", code="ledger_fault")
        deliver(left)


def _nothing(_desk: Transaction) -> None:
    return None
