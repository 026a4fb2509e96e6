"""Agents that the tests run inside their own process."""

from __future__ import annotations

import asyncio
from typing import Any

from atlas import AgentBase, AgentContext, Done

WORLD: dict[str, list[Any]] = {}


def touch(log: str, item: Any) -> Any:
    """An effect: leaves a trace that outlives the run."""
    WORLD.setdefault(log, []).append(item)
    return {"touched": item}


class Worker(AgentBase):
    """Does what its input says, one entry of `do` after the other."""

    contract = {"name": "worker", "version": "1.0.0", "description": "does as told", "requires": {"spawn_agents": True}}

    async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
        return {"results": [await self._one(word, input, context) for word in input.get("do", [])]}

    async def _one(self, word: str, input: dict[str, Any], context: AgentContext) -> Any:
        log = input["log"]
        match word.split(":"):
            case ["write", what]:
                return await context.step("write", touch, log, what)
            case ["again", what]:
                return await context.step("again", touch, log, what, idempotent=True)
            case ["mail", what]:
                return await context.step("mail", touch, log, what, effect="external_side_effect")
            case ["risk", what]:
                return await context.step("risk", touch, log, what, effect="high_risk")
            case ["probed", what]:
                return await context.step("probed", touch, log, what, probe=probe)
            case ["mails", count]:
                async with asyncio.TaskGroup() as group:
                    for number in range(int(count)):
                        step = context.step("mail", touch, log, str(number), effect="external_side_effect")
                        group.create_task(step)
                return None
            case ["crowd", count]:
                async with asyncio.TaskGroup() as group:
                    for number in range(int(count)):
                        group.create_task(context.step("look", abs, number, effect="read_only"))
                return None
            case ["spawn", count]:
                kids = [("worker", {"log": log, "do": [f"write:kid{n}"]}) for n in range(int(count))]
                return len(await context.spawn_many(kids))
            case ["deep", depth]:
                below = [f"deep:{int(depth) - 1}"] if int(depth) else []
                return await context.spawn("worker", {"log": log, "do": below})
            case ["sleep", seconds]:
                await asyncio.sleep(float(seconds))
                return None
            case ["fail"]:
                raise ValueError("told to fail")
            case ["hang"]:
                await asyncio.Event().wait()
            case ["big", size]:
                return await context.step("big", "x".__mul__, int(size))
            case ["now"]:
                return str(context.now())
            case ["kid-fails"]:
                return await context.spawn("worker", {"log": log, "do": ["fail"]})
            case ["model", prompt]:
                return await context.generate({"type": "object", "required": ["n"]}, prompt, tier="fast")
            case ["models", prompt]:
                cells = await context.fanout(["fake:one", "fake:two"], [{"prompt": prompt}, {"prompt": "other"}])
                return [[cell.agent, cell.output, cell.error.reason if cell.error else None] for cell in cells]
            case ["kid-mails"]:
                return await context.spawn("worker", {"log": log, "do": ["mail:k"]})
            case ["kid-hangs"]:
                return await context.spawn("worker", {"log": log, "do": ["hang"]})
        raise AssertionError(word)


def probe(log: str, item: Any) -> Done | None:
    """Looks whether the effect happened."""
    return Done({"probed": item}) if item in WORLD.get(log, []) else None


class Typed(AgentBase):
    """Has schemas."""

    contract = {
        "name": "typed",
        "version": "1.0.0",
        "description": "checks what goes in and out",
        "input": {
            "schema": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "m": {"type": "integer", "default": 7}},
                "required": ["n"],
            }
        },
        "output": {"schema": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}},
    }

    async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
        total = input["n"] + input["m"]
        return {"sum": total if total < 100 else "too much"}


class Loner(AgentBase):
    """May not spawn."""

    contract = {"name": "loner", "version": "1.0.0", "description": "has no children"}

    async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
        return {"child": await context.spawn("typed", {"n": 1})}


AGENTS = (Worker, Typed, Loner)
