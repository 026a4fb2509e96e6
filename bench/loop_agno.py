"""agno's side of the tool loop: an Agent with its OpenAI-compatible model, no database, telemetry off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from loop_workload import INSTRUCTIONS, QUESTION, Loop, Options, lookup, serve


class AgnoLoop:
    """An agent; nothing of a run is kept."""

    def __init__(self, agent: Agent, is_streamed: bool) -> None:
        self._agent = agent
        self._is_streamed = is_streamed

    async def run(self) -> str:
        """One run."""
        if not self._is_streamed:
            return str((await self._agent.arun(QUESTION)).content)
        said = ""
        async for event in self._agent.arun(QUESTION, stream=True):
            said += getattr(event, "content", None) or ""
        return said


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Loop]:
    """The agent."""
    model = OpenAILike(id=f"lookup-{options.steps}", base_url=options.url, api_key="none")
    agent = Agent(model=model, instructions=INSTRUCTIONS, tools=[lookup], telemetry=False)
    yield AgnoLoop(agent, options.is_streamed)


if __name__ == "__main__":
    serve(opened)
