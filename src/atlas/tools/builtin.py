"""The tools that every agent has. They run in the driver's own process, so they are few and harmless.

`note` and `recall` are only declared here: the loop applies them, because they are about the turn and the session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from atlas.kernel.errors import AtlasError, Fault
from atlas.kernel.tool import ToolDefinition, ToolOutcome
from atlas.kernel.turn import KEY_LENGTH
from atlas.tools.files import list_folder, read_short_text, read_text
from atlas.tools.tool import Tool, define

MAX_WAIT_S: Final = 60
NAMES: Final = frozenset({"note", "recall", "read_file", "list_files", "wait"})
"""Names that no other tool may have."""


def note(
    kind: Literal["requirement", "plan", "mission", "report", "fact"],
    key: Annotated[str, Meta(max_length=KEY_LENGTH), "A short name; the same one again replaces the note."],
    text: str,
    status: Literal["open", "done"] = "open",
) -> str:
    """Keeps something in sight until it is done: a requirement, a step of the plan, the mission, a report, a fact."""
    raise _applied("note")


def recall(
    handle: Annotated[str | None, "What to bring back: t12 a turn, t12.3 a step, t12.3.2 one call of it."] = None,
    find: Annotated[str | None, "Words to search for in everything this session recorded."] = None,
    start: Annotated[int, Meta(ge=0), "Where to go on in something long."] = 0,
) -> str:
    """Brings back exactly what was recorded earlier, pictures and PDFs too. Give a handle, or words to find."""
    raise _applied("recall")


async def read_file(
    path: Annotated[str, "Inside your folder, for example wiki/index.md."],
    start: Annotated[int, Meta(ge=1), "The first line to show."] = 1,
    lines: Annotated[int, Meta(ge=1, le=2_000), "How many lines at most."] = 200,
    *,
    folder: str,
) -> str:
    """Reads lines of a text file in your folder."""
    short = read_short_text(folder, path, start, lines)
    return await asyncio.to_thread(read_text, folder, path, start, lines) if short is None else short


async def list_files(
    path: Annotated[str, "A folder inside yours; yours itself when left out."] = ".",
    start: Annotated[int, Meta(ge=1), "The first entry to show."] = 1,
    *,
    folder: str,
) -> str:
    """Lists what is in a folder."""
    return await asyncio.to_thread(list_folder, folder, path, start)


async def wait(
    seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)], *, sleep: Callable[[float], Awaitable[object]]
) -> str:
    """Waits, for something that needs time. Call it before asking the same question again."""
    await sleep(seconds)
    return f"waited {seconds:g} s"


class BuiltIns:
    """The built-in tools of one host. `sleep` is how `wait` waits."""

    def __init__(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._sleep = sleep
        found = (
            define(note, idempotent=True, resources=("notes",)),
            # What stands before it in a batch is among the things that it may be asked for.
            define(recall, effect="read_only", resources=("write:*",)),
            define(read_file, effect="read_only", resources=("file:{path}",), hidden=("folder",)),
            define(list_files, effect="read_only", resources=("file:{path}",), hidden=("folder",)),
            # Nothing runs beside it: what stands after a wait in a batch is meant to happen after it.
            define(wait, effect="read_only", resources=("write:*",), timeout_s=MAX_WAIT_S + 5, hidden=("sleep",)),
        )
        self._tools: Mapping[str, Tool] = {one.definition.name: one for one in found}

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What they declare."""
        return tuple(one.definition for one in self._tools.values())

    async def call(self, folder: str, name: str, args: bytes) -> ToolOutcome:
        """Performs `read_file`, `list_files` or `wait` for the agent with this folder. What goes wrong is an outcome."""
        began = time.perf_counter_ns()
        given: dict[str, Any] = {"sleep": self._sleep} if name == "wait" else {"folder": folder}
        tool = self._tools[name]
        try:
            text, is_error = await tool.function(**tool.arguments(args), **given), False
        except AtlasError as error:
            text, is_error = " ".join(filter(None, (f"{error.message}.", error.hint))), True
        return ToolOutcome(text, is_error, (time.perf_counter_ns() - began) // 1000)


def _applied(name: str) -> Fault:
    return Fault(f"{name} is applied by the loop, never called", code="tool_not_performed")
