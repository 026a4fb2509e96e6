"""An agent that lets its secrets slip through every opening it has."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from atlas import AgentBase, AgentContext
from atlas.kernel.errors import RunFailed
from atlas.testing.canary_forms import flood, spellings

NAMES = ("API_TOKEN", "ODD_KEY", "PIN_CODE", "PEM_KEY")


class Leaky(AgentBase):
    """Does what `do` says with every secret it is given."""

    async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
        """Returns the secrets themselves, in every form."""
        values = [context.secret(name) for name in NAMES]
        match input["do"]:
            case "speak":
                return await _speak(context, values)
            case "throw":
                raise ValueError("\n".join(map(flood, values)))
            case "crash":
                os.write(2, "".join(map(flood, values)).encode())
                os.kill(os.getpid(), signal.SIGABRT)
            case "ask":
                return {"done": await context.step("ask", _same, values, effect="external_side_effect")}
        return {}


async def _speak(context: AgentContext, values: list[str]) -> dict[str, Any]:
    said: list[Any] = []
    for number, value in enumerate(values):
        context.log(flood(value))
        context.log("x" * (16 * 1024 - len(value) // 2) + value)  # over the edge where a line is cut
        context.progress(0.5, flood(value))
        sys.stdout.write(flood(value) + "\n")
        await _in_pieces(value)
        said.append(await context.step("echo", _same, value))
        said.append(await context.step("note", _same, number, key=f"key {value}"))
        said.append(await context.step("large", _large, value, number))
        try:
            await context.step("fail", _fail, value)
        except RunFailed as error:
            said.append(str(error))
        said.append({value: spellings(value)})
    return {"said": said, "number": int(values[NAMES.index("PIN_CODE")]), "environ": sorted(os.environ.values())}


async def _in_pieces(value: str) -> None:
    """Prints it to both streams so that each half is read on its own."""
    for stream in (sys.stdout, sys.stderr):
        for half in (value[: len(value) // 2], value[len(value) // 2 :]):
            stream.write(half)
            stream.flush()
            await asyncio.sleep(0.1)
        stream.write("\n")


def _same(value: Any) -> Any:
    return value


def _large(value: str, number: int) -> dict[str, Any]:
    return {"number": number, "text": "a" * 70_000 + flood(value) + "b" * 70_000}


def _fail(value: str) -> None:
    raise OSError(2, "x" * (1_990 - len(value) // 2) + value, f"/tmp/{value}/name")
