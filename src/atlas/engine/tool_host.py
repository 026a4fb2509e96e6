"""Tools in worker processes: the `ToolHost` for tools that lie in folders.

A folder's repeatable calls share one process. A call that must not be repeated has a process to itself while it runs, so
that no other call's crash or timeout can leave it in doubt; a repeatable call whose process was lost is made once more,
alone. Processes are kept warm and ended when nobody needs them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

import msgspec

from atlas.engine.launch import launch
from atlas.engine.tool_call import ASK_TIMEOUT_S, IN_DOUBT, examined
from atlas.engine.tool_process import Ending, Late, Lost, ToolProcess
from atlas.engine.tool_server import THREADS
from atlas.engine.tool_wire import (
    AskResources,
    CallEnded,
    CallTool,
    LoadTools,
    ProbeEnded,
    ProbeTool,
    ResourcesKnown,
    ToTools,
)
from atlas.kernel.batch import EVERYTHING
from atlas.kernel.errors import ErrorRecord, Invalid, NotFound, Unavailable
from atlas.kernel.tool import ToolDefinition, ToolFinding, ToolOutcome

_DRAINED: Final = ErrorRecord("tools_drained", "the tool's process was ended because Atlas is stopping")


class WorkerToolHost:
    """Runs tools in processes of their own.

    `idle_s`: how long a process is kept without work. `grace_s`: how long a call that must stop may take to.
    `alone`: how many calls of one folder that must not be repeated run at a time. Leaving the context drains it.
    """

    def __init__(
        self,
        *,
        idle_s: float = 60.0,
        grace_s: float = 1.0,
        startup_timeout_s: float = 60.0,
        memory_mb: int = 2048,
        alone: int = 8,
        python: str = sys.executable,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._idle_s = idle_s
        self._grace_s = grace_s
        self._startup_timeout_s = startup_timeout_s
        self._memory_mb = memory_mb
        self._alone = alone
        self._python = python
        self._environ = environ
        self._folders: dict[str, _Folder] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()

    async def definitions(self, folder: str) -> tuple[ToolDefinition, ...]:
        """What the folder's tools declare, by name; Invalid with every problem of its files."""
        here = self._folder(folder)
        if here.definitions is None:
            async with here.starting:
                # Whoever waited here for another's process to start finds what that one has read.
                if here.definitions is None:
                    await self._start(here)
        return tuple((here.definitions or {}).values())

    async def resources(self, folder: str, name: str, args: bytes) -> tuple[str, ...]:
        """What a call would touch; everything when the tool cannot say."""
        definition = await self._definition(folder, name)
        if not definition.computes_resources:
            return (EVERYTHING,) if definition.resources is None else definition.resources
        ending = await self._ask(
            self._folder(folder), lambda number: AskResources(number, name, msgspec.Raw(args)), ASK_TIMEOUT_S
        )
        return ending.resources if isinstance(ending, ResourcesKnown) else (EVERYTHING,)

    async def call(
        self, folder: str, name: str, args: bytes, effect_key: str, secrets: Mapping[str, str] | None = None
    ) -> ToolOutcome:
        """Performs the call; once more, alone and with the same key, when it may be repeated and its process was lost."""
        definition = self._known(folder, name) or await self._definition(folder, name)
        here, began = self._folder(folder), time.perf_counter_ns()
        is_repeatable, timeout_s, given = definition.is_repeatable, definition.timeout_s, dict(secrets or {})

        def order(number: int) -> ToTools:
            return CallTool(number, name, msgspec.Raw(args), effect_key, given)

        ending = await self._ask(here, order, timeout_s, is_alone=not is_repeatable)
        if isinstance(ending, Lost) and ending.error is not _DRAINED and is_repeatable:
            ending = await self._ask(here, order, timeout_s, is_alone=True)
        outcome = _outcome(definition, ending, (time.perf_counter_ns() - began) // 1000)
        if not (outcome.in_doubt and definition.has_probe) or here.is_closed:
            return outcome
        # Nothing of the call runs any more, so what the probe finds stays so.
        try:
            return examined(outcome, await self.probe(folder, name, args, effect_key, secrets))
        except Unavailable:
            return outcome

    async def probe(
        self, folder: str, name: str, args: bytes, effect_key: str, secrets: Mapping[str, str] | None = None
    ) -> ToolFinding:
        """Finds out whether a call that may have happened did; looks again, alone, when the process was lost over it."""
        definition = await self._definition(folder, name)
        if not definition.has_probe:
            return ToolFinding("unknown", message=f"{name} has no probe")
        here = self._folder(folder)

        def order(number: int) -> ToTools:
            return ProbeTool(number, name, msgspec.Raw(args), effect_key, dict(secrets or {}))

        ending = await self._ask(here, order, definition.timeout_s)
        if isinstance(ending, Lost) and ending.error is not _DRAINED:
            ending = await self._ask(here, order, definition.timeout_s, is_alone=True)
        match ending:
            case ProbeEnded():
                return ToolFinding(ending.found, ending.text, ending.message)
            case Lost(error=error):
                return ToolFinding("unknown", message=error.message)
        return ToolFinding("unknown", message=f"the probe took longer than {definition.timeout_s:g} s")

    async def drain(self) -> None:
        """Ends every process and what runs in it; returns when all are dead."""
        folders, self._folders = self._folders, {}
        async with asyncio.TaskGroup() as group:
            for folder in folders.values():
                folder.is_closed = True  # whoever still waits for a place in it starts nothing
                for process in folder.processes:
                    process.condemn(_DRAINED)
                    group.create_task(process.kill())

    # Which process

    async def _ask(
        self, here: _Folder, order: Callable[[int], ToTools], timeout_s: float, *, is_alone: bool = False
    ) -> Ending | Late:
        places = here.alone if is_alone else here.together
        await places.acquire()
        try:
            if is_alone:
                return await self._ask_alone(here, order, timeout_s)
            process = here.find_shared() or await self._shared(here)
            return await process.ask(order, timeout_s)
        finally:
            places.release()

    async def _ask_alone(self, here: _Folder, order: Callable[[int], ToTools], timeout_s: float) -> Ending | Late:
        process = await self._reserved(here)
        try:
            return await process.ask(order, timeout_s)
        finally:
            process.is_reserved = False

    async def _shared(self, here: _Folder) -> ToolProcess:
        """A process for calls that may be repeated; started once, however many want it at the same time."""
        async with here.starting:
            while (process := here.find_shared()) is None:
                # By the time it is ready it may have been taken for a call that must be alone.
                await self._start(here)
            return process

    async def _reserved(self, here: _Folder) -> ToolProcess:
        """A process that nobody else uses, marked so before anybody else can look."""
        for process in here.processes:
            if process.is_loaded and process.is_fit and process.is_idle and not process.is_reserved:
                process.is_reserved = True
                return process
        return await self._start(here, is_reserved=True)

    async def _start(self, here: _Folder, *, is_reserved: bool = False) -> ToolProcess:
        process = self._launch(here)
        process.is_reserved = is_reserved
        await asyncio.wait({process.loaded}, timeout=self._startup_timeout_s)
        if not process.loaded.done():
            message = f"the tools were not imported within {self._startup_timeout_s:g} s"
            process.condemn(ErrorRecord("tools_not_loaded", message))
            await asyncio.wait({process.loaded})
        loaded = process.loaded.result()
        if isinstance(loaded, Lost):
            error = loaded.error
            raise Unavailable(error.message, hint=error.hint, code=error.code, detail=error.detail)
        if loaded.problems:
            process.condemn(ErrorRecord("tools_not_loaded", "its files have problems"))
            first = loaded.problems[0]
            raise Invalid(first.message, problems=loaded.problems, code=first.code)
        here.definitions = {one.name: one for one in loaded.definitions}
        return process

    def _launch(self, here: _Folder) -> ToolProcess:
        if here.is_closed:
            raise Unavailable(_DRAINED.message, code=_DRAINED.code)
        try:
            theirs, line = os.pipe()
            try:
                launched = launch(here.path, self._python, self._environ, inherited=(theirs,))
            except OSError:
                os.close(line)
                raise
            finally:
                os.close(theirs)
        except OSError as error:
            raise Unavailable(
                f"no process could be started for the tools: {error}",
                hint="Is the folder there, and does the machine allow more processes and open files?",
                code="worker_not_started",
            ) from error
        order = LoadTools(here.path, self._memory_mb, theirs)
        try:
            process = ToolProcess(launched, line, order, idle_s=self._idle_s, grace_s=self._grace_s)
        except OSError:
            launched.abandon()
            os.close(line)
            raise
        here.processes.append(process)
        process.dead.add_done_callback(lambda _: here.processes.remove(process))
        return process

    # Small parts

    def _folder(self, path: str) -> _Folder:
        found = self._folders.get(path)
        if found is None:
            found = self._folders[path] = _Folder(path, self._alone)
        return found

    def _known(self, folder: str, name: str) -> ToolDefinition | None:
        """What the tool declares, when its folder has been read."""
        return (self._folder(folder).definitions or {}).get(name)

    async def _definition(self, folder: str, name: str) -> ToolDefinition:
        await self.definitions(folder)
        found = self._known(folder, name)
        if found is None:
            raise NotFound(f"there is no tool {name} in this folder")
        return found


class _Folder:
    """The processes of one folder and the places in them."""

    def __init__(self, path: str, alone: int) -> None:
        self.path = path
        self.is_closed = False
        self.definitions: dict[str, ToolDefinition] | None = None
        self.processes: list[ToolProcess] = []
        self.starting = asyncio.Lock()
        self.together = asyncio.Semaphore(THREADS)
        self.alone = asyncio.Semaphore(alone)

    def find_shared(self) -> ToolProcess | None:
        """A process that calls may share now."""
        for process in self.processes:
            if process.is_loaded and process.is_fit and not process.is_reserved:
                return process
        return None


def _outcome(definition: ToolDefinition, ending: Ending | Late, duration_us: int) -> ToolOutcome:
    is_late = isinstance(ending, Late)
    ended = ending.ending if isinstance(ending, Late) else ending
    printed = ended.printed if isinstance(ended, CallEnded) else ""
    if isinstance(ended, CallEnded) and not ended.is_stopped:
        # Late or not: it came back by itself, and this is what really happened.
        return ToolOutcome(_with_output(ended.text, printed), ended.is_error, ended.duration_us)
    if is_late:
        text = f"{definition.name} did not finish within {definition.timeout_s:g} s and was stopped."
    elif isinstance(ended, Lost):
        text = "\n".join(filter(None, (f"{ended.error.message}.", ended.error.hint, ended.error.detail)))
    else:
        text = f"{definition.name} was stopped."
    in_doubt = not definition.is_repeatable
    if in_doubt:
        text += IN_DOUBT
    return ToolOutcome(_with_output(text, printed), True, duration_us, in_doubt)


def _with_output(text: str, printed: str) -> str:
    return f"{text}\n\n[printed]\n{printed.rstrip()}" if printed.strip() else text
