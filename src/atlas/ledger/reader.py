"""Threads that read: each has a session of its own, so that reads wait neither for the writer nor for each other.

A read sees everything committed before it began, so whoever has awaited a write reads it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from atlas.kernel.errors import AtlasError, Fault
from atlas.ledger.desk import Session
from atlas.ledger.job import Job, deliver
from atlas.ledger.rule import BAD_VALUE, bad_record, closed

T = TypeVar("T")


class Readers:
    """Runs reads on a few threads."""

    def __init__(self, open_session: Callable[[], Session], count: int) -> None:
        self._open_session = open_session
        self._count = count
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._is_open = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts the threads."""
        self._is_open = True
        self._threads = [
            threading.Thread(target=self._run, name=f"atlas-ledger-reader-{number}", daemon=True)
            for number in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    async def get(self, query: Callable[..., T], *arguments: object) -> T:
        """What `query(database, statements, *arguments)` answers."""

        def work(session: Session) -> T:
            return session.run(query, *arguments)

        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._gate:
            if not self._is_open:
                raise closed()
            self._queue.put(Job(work, future))
        return await future

    async def stop(self) -> None:
        """Finishes the reads handed over before, then ends the threads."""
        with self._gate:
            self._is_open = False
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._threads = []

    def _run(self) -> None:
        session = self._open_session()
        job = self._queue.get()
        try:
            while job is not None:
                try:
                    job.result = job.work(session)
                except AtlasError as error:
                    job.error = error
                except BAD_VALUE as error:
                    job.error = bad_record(error)
                deliver((job,))
                job = self._queue.get()
        finally:
            session.close()
            if job is not None:
                self._abandon(job)

    def _abandon(self, job: Job) -> None:
        """Reached only through a bug in a query: nobody waits for ever, and nothing more is taken."""
        with self._gate:
            self._is_open = False
        left: list[Job | None] = [job]
        while not self._queue.empty():
            left.append(self._queue.get())
        for each in left:
            if each is not None:
                each.error = Fault("a read of the ledger failed unexpectedly", code="ledger_fault")
                deliver((each,))
        for _ in self._threads:
            self._queue.put(None)
