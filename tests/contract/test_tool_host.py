"""Runs the shipped contract of the tool host against both adapters: workers, and functions of this process."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

for _part in ("rig", "call", "stop"):
    pytest.register_assert_rewrite(f"atlas.testing.tool_host_{_part}")

from atlas import Done, tool  # noqa: E402 - after the asserts are made to explain themselves
from atlas.engine.tool_host import WorkerToolHost  # noqa: E402
from atlas.engine.tool_inline import InlineToolHost  # noqa: E402
from atlas.kernel.batch import EVERYTHING  # noqa: E402
from atlas.kernel.port import ToolHost  # noqa: E402
from atlas.kernel.tool import TOOL_ATTRIBUTE  # noqa: E402
from atlas.testing import tool_host_tools  # noqa: E402
from atlas.testing.tool_host import Case, cases  # noqa: E402


class WorkerRig:
    """Tools in processes, read from a file in a folder."""

    def __init__(self, root: Path) -> None:
        self.outside = root
        self.folder, self.empty = str(root / "agent"), str(root / "none")
        for folder in (self.folder, self.empty):
            (Path(folder) / "tools").mkdir(parents=True)
        shutil.copyfile(tool_host_tools.__file__, Path(self.folder) / "tools" / "main.py")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ToolHost]:
        async with WorkerToolHost(grace_s=0.3) as host:
            yield host


class InlineRig:
    """Tools that are functions of this process."""

    folder, empty = "agent", "none"

    def __init__(self, root: Path) -> None:
        self.outside = root

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ToolHost]:
        found = [value for value in vars(tool_host_tools).values() if hasattr(value, TOOL_ATTRIBUTE)]
        host = InlineToolHost({self.folder: found, self.empty: []})
        yield host
        await host.drain()


@pytest.mark.parametrize("case", cases(can_kill=True), ids=lambda case: case.name)
def test_workers(case: Case, tmp_path: Path) -> None:
    asyncio.run(case.check(WorkerRig(tmp_path)))


@pytest.mark.parametrize("case", cases(can_kill=False), ids=lambda case: case.name)
def test_inline(case: Case, tmp_path: Path) -> None:
    asyncio.run(case.check(InlineRig(tmp_path)))


def test_a_thread_that_goes_on_may_do_it_yet_whatever_the_probe_says() -> None:
    release = threading.Event()

    def nothing_yet() -> Done | None:
        return None

    @tool(timeout_s=0.05, probe=nothing_yet)
    def slow() -> str:
        release.wait(60)
        return "done"

    async def work() -> None:
        host = InlineToolHost({"agent": [slow]})
        late = await host.call("agent", "slow", b"{}", "k1")
        assert (late.is_error, late.in_doubt) == (True, True)
        await host.drain()

    try:
        asyncio.run(work())
    finally:
        release.set()


def test_a_probe_that_does_not_come_back_cannot_tell() -> None:
    async def hang() -> Done | None:
        await asyncio.sleep(60)
        return None

    @tool(timeout_s=0.05, probe=hang)
    async def send() -> str:
        return "sent"

    async def work() -> None:
        host = InlineToolHost({"agent": [send]})
        found = await host.probe("agent", "send", b"{}", "k1")
        assert (found.found, found.message) == ("unknown", "the probe did not finish within 0.05 s")
        await host.drain()

    asyncio.run(work())


def test_a_tool_that_does_not_say_what_it_touches_touches_everything() -> None:
    release = threading.Event()

    def hang() -> tuple[str, ...]:
        release.wait(20)
        return ()

    @tool(timeout_s=0.05, resources=hang)
    def send() -> str:
        return "sent"

    async def work() -> None:
        host = InlineToolHost({"agent": [send]})
        assert await host.resources("agent", "send", b"{}") == (EVERYTHING,)
        await host.drain()

    try:
        asyncio.run(work())
    finally:
        release.set()
