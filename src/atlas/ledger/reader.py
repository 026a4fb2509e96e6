"""Threads that read: each has a connection of its own, so that reads wait neither for the writer nor for each other.

In write-ahead mode a read sees everything committed before it began, so whoever has awaited a write reads it.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import TypeVar

from atlas.kernel.errors import AtlasError, Fault
from atlas.ledger.job import Job, deliver
from atlas.ledger.rule import BAD_VALUE, closed

T = TypeVar("T")


class Readers:
    """Runs reads on a few threads."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        translate: Callable[[BaseException], AtlasError],
        count: int,
    ) -> None:
        self._connect = connect
        self._translate = translate
        self._count = count
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._is_open = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts the threads; each connects when it has its first read."""
        self._is_open = True
        self._threads = [
            threading.Thread(target=self._run, name=f"atlas-ledger-reader-{number}", daemon=True)
            for number in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    async def get(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` reads."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._gate:
            if not self._is_open:
                raise closed()
            self._queue.put(Job(work, future, is_write=False, is_lazy=False))
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
        connection: sqlite3.Connection | None = None
        job = self._queue.get()
        try:
            while job is not None:
                try:
                    if connection is None:
                        connection = self._connect()
                    job.result = job.work(connection)
                except (sqlite3.Error, AtlasError, *BAD_VALUE) as error:
                    job.error = self._translate(error)
                    if connection is not None and connection.in_transaction:
                        connection.rollback()
                deliver((job,))
                job = self._queue.get()
        finally:
            if connection is not None:
                connection.close()
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
