"""pydantic-ai's side of the tool loop: an Agent with its OpenAI chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loop_workload import INSTRUCTIONS, QUESTION, Loop, Options, lookup, serve
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits


class PydanticLoop:
    """An agent; nothing of a run is kept."""

    def __init__(self, agent: Agent[None, str]) -> None:
        self._agent = agent

    async def run(self) -> str:
        """One run."""
        result = await self._agent.run(QUESTION, usage_limits=UsageLimits(request_limit=None))
        return result.output


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Loop]:
    """The agent."""
    model = OpenAIChatModel(f"lookup-{options.steps}", provider=OpenAIProvider(base_url=options.url, api_key="none"))
    yield PydanticLoop(Agent(model, instructions=INSTRUCTIONS, tools=[lookup]))


if __name__ == "__main__":
    serve(opened)
