"""Worker processes kept warm: the `Executor` for agents whose code lives in a folder.

A worker belongs to one agent at one snapshot and does one run at a time. The pool has no limit of its own: the
driver's slots decide how many runs there are, so a job never waits here for another.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TypeAlias

from atlas.engine.child import Child
from atlas.engine.launch import launch
from atlas.kernel.code import Code, Finished, FromCode, Job, ToCode
from atlas.kernel.errors import ErrorRecord
from atlas.kernel.event import Process

_Key: TypeAlias = tuple[str, str, str]


class WorkerPool:
    """Runs each job in a worker of its agent and snapshot: a warm one that is well, or a new one.

    `idle_s`: how long a worker is kept without work. `grace_s`: how long it may take to shut down. `patience_s`: how
    long a warm worker may take to say that it is well. `environ`: what workers inherit, this process's by default.
    Leaving the context drains it.
    """

    def __init__(
        self,
        *,
        idle_s: float = 60.0,
        grace_s: float = 5.0,
        patience_s: float = 2.0,
        python: str = sys.executable,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._idle_s = idle_s
        self._grace_s = grace_s
        self._patience_s = patience_s
        self._python = python
        self._environ = environ
        self._children: set[Child] = set()
        self._idle: dict[_Key, dict[Child, asyncio.TimerHandle]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()

    async def start(self, job: Job, receive: Callable[[FromCode], None]) -> Code:
        """Begins the job in a worker; a worker that cannot be started ends it with code `worker_not_started`."""
        key = (job.agent, job.snapshot, job.folder)
        child = await self._warm(key)
        if child is None:
            try:
                child = self._launch(key, job)
            except OSError as error:
                return NotStarted(error, receive)
        return child.begin(job, receive)

    async def drain(self) -> None:
        """Ends every worker: idle ones after their shutdown hook, busy ones at once. Returns when all are dead."""
        for key in list(self._idle):
            while (child := self._take(key)) is not None:
                child.dismiss()
        children = list(self._children)
        async with asyncio.TaskGroup() as group:
            for child in children:
                if not child.is_dismissed:
                    group.create_task(child.execution.stop() if child.execution is not None else child.kill())
        for child in children:
            await asyncio.shield(child.dead)

    async def _warm(self, key: _Key) -> Child | None:
        """A warm worker that is well."""
        while (child := self._take(key)) is not None:
            try:
                is_well = await child.is_well(self._patience_s)
            except asyncio.CancelledError:
                if not child.dead.done():
                    self._keep(key, child)
                raise
            if is_well:
                return child
            await child.kill()
        return None

    def _launch(self, key: _Key, job: Job) -> Child:
        launched = launch(job.folder, self._python, self._environ, job.run_id)
        try:
            child = Child(launched, self._grace_s, lambda child: self._keep(key, child))
        except OSError:
            launched.abandon()
            raise
        self._children.add(child)
        child.dead.add_done_callback(lambda _: self._forget(key, child))
        return child

    def _take(self, key: _Key) -> Child | None:
        """The worker that was busy last: the others may reach their idle time."""
        idle = self._idle.get(key)
        if not idle:
            return None
        child, timer = idle.popitem()
        timer.cancel()
        return child

    def _keep(self, key: _Key, child: Child) -> None:
        timer = asyncio.get_running_loop().call_later(self._idle_s, self._dismiss, key, child)
        self._idle.setdefault(key, {})[child] = timer

    def _dismiss(self, key: _Key, child: Child) -> None:
        del self._idle[key][child]
        child.dismiss()

    def _forget(self, key: _Key, child: Child) -> None:
        self._children.discard(child)
        idle = self._idle.get(key)
        if idle is not None:
            timer = idle.pop(child, None)
            if timer is not None:
                timer.cancel()
            if not idle:
                del self._idle[key]


class NotStarted:
    """The `Code` of a job whose worker could not be started: it ends at once, with the reason."""

    def __init__(self, error: OSError, receive: Callable[[FromCode], None]) -> None:
        record = ErrorRecord(
            "worker_not_started",
            f"no process could be started for the agent: {error}",
            "Is the agent's folder there, and does the machine allow more processes and open files?",
        )
        self._ending = asyncio.get_running_loop().call_soon(receive, Finished(error=record))

    @property
    def process(self) -> Process | None:
        """None: there is none."""
        return None

    def send(self, message: ToCode) -> None:
        """Nobody is there to hear it."""

    async def stop(self) -> None:
        """Nothing runs."""
        self._ending.cancel()
