"""The agent of the worker case: the same steps as the agent that runs in the driver's own process."""

from __future__ import annotations

from typing import Any

from atlas import AgentBase, AgentContext


def tick(number: int, size: int) -> dict[str, Any]:
    """The same step as in workload.py, which does not come along into the vault."""
    return {"number": number, "square": number * number, "text": "x" * size}


class CounterAgent(AgentBase):
    """Does the steps one after the other and returns every result."""

    async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
        """One durable step per number."""
        return {
            "results": [await context.step("tick", tick, number, input["size"]) for number in range(input["steps"])]
        }
