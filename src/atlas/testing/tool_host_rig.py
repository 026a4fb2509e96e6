"""What a case of the tool host's contract works with: a rig that the adapter's author provides, and a scene on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from atlas.kernel.errors import AtlasError
from atlas.kernel.port import ToolHost
from atlas.kernel.tool import ToolFinding, ToolOutcome

T = TypeVar("T")

_LONG_S: Final = 60.0
_TICKS_S: Final = 0.2


class Rig(Protocol):
    """A place for one host. Provided by the author of an adapter, new for each case."""

    @property
    def folder(self) -> str:
        """What stands for the folder with the tools of `atlas.testing.tool_host_tools`."""
        ...

    @property
    def empty(self) -> str:
        """What stands for a folder without tools."""
        ...

    @property
    def outside(self) -> Path:
        """A folder that exists, for what tools write."""
        ...

    def open(self) -> AbstractAsyncContextManager[ToolHost]:
        """A host that holds both folders, drained at the end."""
        ...


class Case(msgspec.Struct, frozen=True):
    """One guarantee of the port, as a test. `needs_kill`: only for hosts that can end what does not end itself."""

    name: str
    check: Callable[[Rig], Coroutine[Any, Any, None]]
    needs_kill: bool = False


Check: TypeAlias = Callable[["Scene"], Coroutine[Any, Any, None]]


def case(check: Check) -> Case:
    """A case for every host."""
    return _case(check, needs_kill=False)


def killing_case(check: Check) -> Case:
    """A case in which a tool has to be killed, or kills its own process."""
    return _case(check, needs_kill=True)


def _case(check: Check, *, needs_kill: bool) -> Case:
    async def play(rig: Rig) -> None:
        async with asyncio.timeout(_LONG_S), rig.open() as host:
            await check(Scene(rig, host))

    return Case(check.__name__, play, needs_kill)


class Scene:
    """A host under test and short ways to do common things to it."""

    def __init__(self, rig: Rig, host: ToolHost) -> None:
        self.rig = rig
        self.host = host
        self.path = str(rig.outside / "witness.txt")
        """A file that does not exist yet."""

    async def call(self, name: str, key: str = "run_1/tool:1.1:x", **args: Any) -> ToolOutcome:
        """What a call comes to."""
        return await self.host.call(self.rig.folder, name, msgspec.json.encode(args), key)

    async def probe(self, name: str, key: str = "run_1/tool:1.1:x", **args: Any) -> ToolFinding:
        """What a probe finds."""
        return await self.host.probe(self.rig.folder, name, msgspec.json.encode(args), key)

    async def resources(self, name: str, **args: Any) -> tuple[str, ...]:
        """What a call would touch."""
        return await self.host.resources(self.rig.folder, name, msgspec.json.encode(args))

    @property
    def written(self) -> str:
        """What tools have written into the file."""
        return Path(self.path).read_text(encoding="utf-8") if Path(self.path).exists() else ""

    async def until_written(self) -> None:
        """Returns when a tool has begun to write."""
        while not self.written:  # noqa: ASYNC110 - a tool in another process sets no event of ours
            await asyncio.sleep(0.005)

    async def assert_stopped(self) -> None:
        """Fails when the file still grows."""
        before = self.written
        await asyncio.sleep(_TICKS_S)
        assert self.written == before, "something of the call still runs"


async def together(calls: Sequence[Awaitable[T]]) -> list[T]:
    """The results of calls that are made at the same time, in their order."""

    async def one(call: Awaitable[T]) -> T:
        return await call

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(call)) for call in calls]
    return [task.result() for task in tasks]


@contextmanager
def refused(kind: type[AtlasError]) -> Iterator[None]:
    """Fails unless the body raises an error of this kind."""
    found = False
    try:
        yield
    except kind:
        found = True
    assert found, f"nothing raised {kind.__name__}"
