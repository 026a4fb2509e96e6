"""Tools that are functions of this very process: the `ToolHost` for agents defined in code.

It costs microseconds per call and protects from little: a function that never returns keeps its thread for ever, and
what is printed goes where this process prints.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from atlas.engine.thread import Threads
from atlas.engine.tool_call import ASK_TIMEOUT_S, IN_DOUBT, examined, find_out, is_stoppable, perform, resources_of
from atlas.kernel.batch import EVERYTHING
from atlas.kernel.errors import Invalid, NotFound
from atlas.kernel.port import ToolHost
from atlas.kernel.tool import TOOL_ATTRIBUTE, LoadedTool, ToolDefinition, ToolFinding, ToolOutcome

_STOP_WAITS_S: Final = (1.0, 0.2, 0.2)
"""How long a call that was cancelled may take to end, and how long after being cancelled once more."""


class InlineToolHost:
    """Calls functions that carry `@tool`. `functions` are those of each agent, under what stands for its folder.

    Folders that it was not given are left to `elsewhere`.
    """

    def __init__(self, functions: Mapping[str, Sequence[Any]], elsewhere: ToolHost | None = None) -> None:
        self._tools = {folder: _by_name(map(_loaded, found)) for folder, found in functions.items()}
        self._elsewhere = elsewhere
        self._threads = Threads()
        self._under_way: set[asyncio.Task[ToolOutcome]] = set()

    def add(self, folder: str, tools: Iterable[LoadedTool]) -> None:
        """Takes the tools of one more agent."""
        self._tools[folder] = _by_name(tools)

    async def definitions(self, folder: str) -> tuple[ToolDefinition, ...]:
        """What the tools declare, by name."""
        if (other := self._other(folder)) is not None:
            return await other.definitions(folder)
        return tuple(tool.definition for _, tool in sorted(self._tools.get(folder, {}).items()))

    async def resources(self, folder: str, name: str, args: bytes) -> tuple[str, ...]:
        """What a call would touch; everything when the tool does not say so soon."""
        if (other := self._other(folder)) is not None:
            return await other.resources(folder, name, args)
        tool = self._tool(folder, name)
        try:
            async with asyncio.timeout(min(ASK_TIMEOUT_S, tool.definition.timeout_s)):
                return await resources_of(tool, args, self._threads.run)
        except TimeoutError:
            return (EVERYTHING,)

    def call(
        self, folder: str, name: str, args: bytes, effect_key: str, secrets: Mapping[str, str] | None = None
    ) -> Coroutine[Any, Any, ToolOutcome]:
        """Performs the call; a coroutine that is late or cancelled is cancelled, a thread is left to itself.

        So is a coroutine that does not end when it is cancelled.
        """
        other = self._other(folder)
        return (self._call if other is None else other.call)(folder, name, args, effect_key, secrets)

    async def _call(
        self, folder: str, name: str, args: bytes, effect_key: str, secrets: Mapping[str, str] | None
    ) -> ToolOutcome:
        tool = self._tool(folder, name)
        definition = tool.definition
        began = time.perf_counter_ns()
        # A task of its own, because no other could be left behind when it refuses to end.
        work = asyncio.get_running_loop().create_task(perform(tool, args, effect_key, "", secrets, self._threads.run))
        self._under_way.add(work)
        try:
            await asyncio.wait({work}, timeout=definition.timeout_s)
            is_late = not work.done()
        finally:
            await _stop(work)
            self._under_way.discard(work)
        if work.done() and not work.cancelled():
            return work.result()
        text = f"{name} did not finish within {definition.timeout_s:g} s." if is_late else f"{name} was stopped."
        in_doubt = not definition.is_repeatable
        if in_doubt:
            text += IN_DOUBT
        outcome = ToolOutcome(text, True, (time.perf_counter_ns() - began) // 1000, in_doubt)
        if not (in_doubt and is_late and definition.has_probe):
            return outcome
        found = await self.probe(folder, name, args, effect_key, secrets)
        return examined(outcome, found, is_over=work.done() and is_stoppable(tool))

    async def probe(
        self, folder: str, name: str, args: bytes, effect_key: str, secrets: Mapping[str, str] | None = None
    ) -> ToolFinding:
        """Finds out whether a call that may have happened did."""
        if (other := self._other(folder)) is not None:
            return await other.probe(folder, name, args, effect_key, secrets)
        tool = self._tool(folder, name)
        try:
            async with asyncio.timeout(tool.definition.timeout_s):
                return await find_out(tool, args, effect_key, secrets, self._threads.run)
        except TimeoutError:
            message = f"the probe did not finish within {tool.definition.timeout_s:g} s"
            return ToolFinding("unknown", message=message)

    async def drain(self) -> None:
        """Stops every coroutine; threads end when what runs in them returns. `elsewhere` stops what it runs."""
        for work in tuple(self._under_way):
            await _stop(work)
        self._threads.close()
        if self._elsewhere is not None:
            await self._elsewhere.drain()

    def _other(self, folder: str) -> ToolHost | None:
        return None if folder in self._tools else self._elsewhere

    def _tool(self, folder: str, name: str) -> LoadedTool:
        tool = self._tools.get(folder, {}).get(name)
        if tool is None:
            raise NotFound(f"there is no tool {name} here")
        return tool


async def _stop(work: asyncio.Task[ToolOutcome]) -> None:
    """Ends a call; one that swallows each cancellation is left behind, and neither loop nor process waits for it."""
    for wait_s in _STOP_WAITS_S:
        if work.done():
            return
        work.cancel()
        await asyncio.wait({work}, timeout=wait_s)
    if not work.done():
        asyncio.tasks._unregister_task(work)


def _loaded(function: Any) -> LoadedTool:
    tool: LoadedTool | None = getattr(function, TOOL_ATTRIBUTE, None)
    if tool is None:
        name = getattr(function, "__name__", repr(function))
        raise Invalid(f"{name} is not a tool", hint="Write @tool above it.", code="tool_signature")
    return tool


def _by_name(tools: Iterable[LoadedTool]) -> dict[str, LoadedTool]:
    found: dict[str, LoadedTool] = {}
    for tool in tools:
        if tool.definition.name in found:
            raise Invalid(f"there are two tools {tool.definition.name}", code="tool_defined_twice")
        found[tool.definition.name] = tool
    return found
