"""agno's side of the tool loop: an Agent with its OpenAI-compatible model, no database, telemetry off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from loop_workload import INSTRUCTIONS, QUESTION, Loop, Options, lookup, serve


class AgnoLoop:
    """An agent; nothing of a run is kept."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def run(self) -> str:
        """One run."""
        return str((await self._agent.arun(QUESTION)).content)


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Loop]:
    """The agent."""
    model = OpenAILike(id=f"lookup-{options.steps}", base_url=options.url, api_key="none")
    yield AgnoLoop(Agent(model=model, instructions=INSTRUCTIONS, tools=[lookup], telemetry=False))


if __name__ == "__main__":
    serve(opened)
