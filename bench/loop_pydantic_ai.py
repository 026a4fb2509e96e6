"""pydantic-ai's side of the tool loop: an Agent with its OpenAI chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loop_workload import INSTRUCTIONS, QUESTION, Loop, Options, lookup, serve
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

_NO_LIMIT = UsageLimits(request_limit=None)


class PydanticLoop:
    """An agent; nothing of a run is kept."""

    def __init__(self, agent: Agent[None, str], is_streamed: bool) -> None:
        self._agent = agent
        self._is_streamed = is_streamed

    async def run(self) -> str:
        """One run."""
        if not self._is_streamed:
            return (await self._agent.run(QUESTION, usage_limits=_NO_LIMIT)).output
        async with self._agent.run_stream(QUESTION, usage_limits=_NO_LIMIT) as result:
            return await result.get_output()


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Loop]:
    """The agent."""
    model = OpenAIChatModel(f"lookup-{options.steps}", provider=OpenAIProvider(base_url=options.url, api_key="none"))
    yield PydanticLoop(Agent(model, instructions=INSTRUCTIONS, tools=[lookup]), options.is_streamed)


if __name__ == "__main__":
    serve(opened)
