"""Runs agents that are classes of this very process: the `Executor` for agents defined in code.

The same context and the same messages as in a worker process, passed by plain calls. It costs microseconds per step
and protects from nothing: code that blocks, blocks the driver too, and what it prints is not captured.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from atlas.engine.agent import AgentBase
from atlas.engine.conversation import Conversation
from atlas.engine.execution import call_hook, cancelled, create, execute
from atlas.kernel.code import Code, Finished, FromCode, Job, ToCode
from atlas.kernel.errors import ErrorRecord, Fault, RunFailed
from atlas.kernel.event import Process

_STOP_TRIES: Final = 50
_STOP_WAIT_S: Final = 0.1


class InlineExecutor:
    """Executes jobs as tasks that live no longer than its `async with`."""

    def __init__(self, classes: Mapping[str, type[AgentBase]]) -> None:
        self._classes = classes
        self._group = asyncio.TaskGroup()
        self._running: set[InlineCode] = set()
        self._agents: dict[type[AgentBase], tuple[AgentBase, str]] = {}
        self._starting: dict[type[AgentBase], asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.drain()
        finally:
            await self._group.__aexit__(None, None, None)

    async def start(self, job: Job, receive: Callable[[FromCode], None]) -> Code:
        """Begins the job as a task; `receive` is not called before the caller next lets the loop turn."""
        code = InlineCode(job, receive)
        self._running.add(code)
        code.task = self._group.create_task(self._run(code), name=job.run_id)
        code.task.add_done_callback(lambda _: self._running.discard(code))
        return code

    async def drain(self) -> None:
        """Stops what runs, then calls the shutdown hook of every instance and forgets them; raises the first failure."""
        running = list(self._running)
        for code in running:
            code.end()
        for code in running:
            await code.stop()
        failures: list[RunFailed] = []
        while self._agents:
            _cls, (agent, hook) = self._agents.popitem()
            try:
                await call_hook(agent, hook, "")
            except RunFailed as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _run(self, code: InlineCode) -> None:
        conversation = code.conversation
        if conversation.cancelled is not None:
            finished = cancelled(conversation)
        else:
            conversation.on_cancel = code.task.cancel
            finished = await self._outcome(code)
        conversation.close()
        if not code.is_stopped:
            code.receive(finished)

    async def _outcome(self, code: InlineCode) -> Finished:
        job = code.job
        cls = self._classes.get(job.agent)
        if cls is None:
            return Finished(error=_missing(job.agent))
        known = self._agents.get(cls)
        try:
            agent = known[0] if known is not None else await self._instance(cls, job)
            return await execute(agent, job, code.conversation)
        except asyncio.CancelledError:
            if code.conversation.cancelled is None:
                raise
            return cancelled(code.conversation)
        except RunFailed as error:
            return Finished(error=error.record())
        except SystemExit as error:
            # In a worker this ends the worker; here it must not end the driver.
            return Finished(error=ErrorRecord("worker_exited", f"the agent's code called sys.exit({error.code!r})"))

    async def _instance(self, cls: type[AgentBase], job: Job) -> AgentBase:
        async with self._starting.setdefault(cls, asyncio.Lock()):
            if cls not in self._agents:
                agent = create(cls, job.folder)
                await call_hook(agent, job.startup, job.folder)
                self._agents[cls] = (agent, job.shutdown)
            return self._agents[cls][0]


class InlineCode:
    """One job in this process: the `Code` its driver holds."""

    task: asyncio.Task[None]

    def __init__(self, job: Job, receive: Callable[[FromCode], None]) -> None:
        self.job = job
        self.receive = receive
        self.is_stopped = False
        self.conversation = Conversation(_Direct(receive))

    @property
    def process(self) -> Process | None:
        """None: it runs inside the driver's own process."""
        return None

    def send(self, message: ToCode) -> None:
        """Delivers at once; nothing when the code has ended."""
        self.conversation.deliver(message)

    def end(self) -> None:
        """Lets it say nothing more and cancels it."""
        self.is_stopped = True
        self.conversation.close()
        self.task.cancel()

    async def stop(self) -> None:
        """Cancels it and returns when it has ended; Fault when the code refuses to end. It performs no step meanwhile."""
        for _ in range(_STOP_TRIES):
            if self.task.done():
                return
            self.end()
            # Code may swallow a cancellation, so one is not always enough.
            await asyncio.wait({self.task}, timeout=_STOP_WAIT_S)
        if not self.task.done():
            raise Fault(
                f"the code of agent {self.job.agent!r} does not end when it is cancelled",
                code="code_does_not_stop",
                hint="Let asyncio.CancelledError pass, or run the agent from a folder, where it can be killed.",
            )


class _Direct:
    """A channel that is a plain call; from another thread, a call on the driver's loop."""

    __slots__ = ("_loop", "_receive", "_thread")

    def __init__(self, receive: Callable[[FromCode], None]) -> None:
        self._receive = receive
        self._thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()

    def send(self, message: FromCode) -> None:
        """Hands the message over."""
        if threading.get_ident() == self._thread:
            self._receive(message)
        else:
            self._loop.call_soon_threadsafe(self._receive, message)

    def poll(self) -> None:
        """Nothing is ever on its way here."""


def _missing(agent: str) -> ErrorRecord:
    return ErrorRecord("agent_class_missing", f"no class is registered for agent {agent!r}")
