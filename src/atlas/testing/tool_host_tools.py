"""The tools that the contract of `ToolHost` is tried with; a file like any in a `tools` folder.

Those that take a `path` write into that file, so that what they did, and that they do it no more, is seen from outside.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from atlas.engine.step import Done
from atlas.tools.tool import tool

MEETING = 4
_TICK_S = 0.01
_meeting = threading.Barrier(MEETING, timeout=30.0)


def is_written(path: str, effect_key: str) -> Done | None:
    """Whether the file has a line with the key."""
    lines = Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []
    return Done("written") if effect_key in lines else None


def is_written_at_last(path: str, is_late: bool, effect_key: str) -> Done | None:
    """The same, for a tool with more arguments."""
    return is_written(path, effect_key)


def dies_looking(path: str, deaths: int) -> Done | None:
    """Dies so many times before it can tell."""
    died = len(Path(path).read_text(encoding="utf-8")) if Path(path).exists() else 0
    if died < deaths:
        _append(path, ".")
        os._exit(1)
    return Done("seen")


def cannot_tell(path: str) -> Done | None:
    """Fails, as a probe may."""
    raise OSError("nobody answers")


def touched(path: str) -> tuple[str, ...]:
    """What a call touches; fails when there is no path."""
    if not path:
        raise ValueError("there is no path")
    return (f"file:{path}",)


class Markup(str):
    """Text of a kind of its own, as parsers and templates give it."""


def marked(text: str) -> str:
    """What a call touches, as such a text."""
    return Markup(f"slip:{text}")


def is_marked(text: str) -> Done | None:
    """That it happened, with such a text."""
    return Done(Markup(text))


@tool(effect="read_only", resources=("slip:{n}",))
def double(n: int) -> str:
    """Doubles a number."""
    return str(2 * n)


@tool(effect="read_only")
async def data(n: int, tags: list[str] | None = None) -> dict[str, Any]:
    """Gives data back."""
    return {"n": n, "tags": tags or []}


@tool(resources=marked, probe=is_marked)
def markup(text: str) -> str:
    """Gives text of a kind of its own back."""
    return Markup(text)


@tool(effect="read_only")
def nothing() -> None:
    """Gives nothing back."""


@tool(effect="external_side_effect", timeout_s=7, probe=is_written)
def write(path: str, effect_key: str) -> str:
    """Writes the key into the file."""
    _append(path, f"{effect_key}\n")
    return "written"


@tool(probe=cannot_tell)
def forget(path: str) -> str:
    """Does nothing that could be looked up."""
    return path


@tool(resources=touched)
def touch(path: str) -> str:
    """Says what it touches."""
    return path


@tool(effect="read_only")
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@tool(effect="read_only")
def leave() -> str:
    """Tries to end the process, politely."""
    raise SystemExit(3)


class Abort(BaseException):
    """No ordinary error."""


ESCAPES: dict[str, type[BaseException]] = {
    one.__name__: one for one in (Abort, KeyboardInterrupt, asyncio.CancelledError, StopIteration, GeneratorExit)
}


@tool(effect="reversible_write")
def escape(kind: str) -> str:
    """Raises what most code does not catch."""
    raise ESCAPES[kind]("the way out")


@tool(effect="reversible_write")
async def escape_later(kind: str) -> str:
    """The same from a coroutine."""
    raise ESCAPES[kind]("the way out")


@tool(effect="read_only")
def opaque() -> Any:
    """Returns what is no data."""
    return object()


@tool(effect="read_only")
def meet() -> str:
    """Returns when so many calls of it are under way at the same time."""
    _meeting.wait()
    return "met"


@tool(effect="read_only", timeout_s=0.3)
async def tick(path: str) -> str:
    """Writes until it is stopped; may be repeated."""
    return await _tick(path)


@tool(timeout_s=0.3)
async def tick_once(path: str) -> str:
    """Writes until it is stopped; must not be repeated."""
    return await _tick(path)


@tool(effect="read_only")
async def tick_on(path: str) -> str:
    """Writes for as long as it is let."""
    return await _tick(path)


@tool(timeout_s=0.3)
def tick_deaf(path: str) -> str:
    """Writes and never listens; must not be repeated."""
    while True:
        _append(path, ".")
        time.sleep(_TICK_S)


@tool(effect="read_only")
def tick_deaf_on(path: str) -> str:
    """Writes and never listens, for as long as it is let."""
    while True:
        _append(path, ".")
        time.sleep(_TICK_S)


@tool(idempotent=True)
def die_first(path: str, effect_key: str) -> str:
    """Dies the first time it is called with a key, and succeeds the second time."""
    is_first = is_written(path, effect_key) is None
    _append(path, f"{effect_key}\n")
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@tool(effect="read_only")
def die_always(path: str) -> str:
    """Dies."""
    _append(path, ".")
    os._exit(1)


@tool
def die_once(path: str) -> str:
    """Dies after it did something that must not be repeated."""
    _append(path, ".")
    os._exit(1)


@tool(probe=dies_looking)
def looked_up(path: str, deaths: int) -> None:
    """Has a probe that is not sure to live."""


@tool(probe=is_written_at_last)
def die_written(path: str, is_late: bool, effect_key: str) -> str:
    """Dies before or after it did something that can be looked up."""
    if is_late:
        _append(path, f"{effect_key}\n")
    os._exit(1)


@tool(timeout_s=0.3, probe=is_written_at_last)
async def late_written(path: str, is_late: bool, effect_key: str) -> str:
    """Is late before or after it did something that can be looked up."""
    if is_late:
        _append(path, f"{effect_key}\n")
    await asyncio.sleep(60)
    return "written"


async def _tick(path: str) -> str:
    while True:
        _append(path, ".")
        await asyncio.sleep(_TICK_S)


def _append(path: str, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)
