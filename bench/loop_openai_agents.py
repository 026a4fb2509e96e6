"""The OpenAI Agents SDK's side of the tool loop: an Agent on the chat completions model, tracing off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from loop_workload import INSTRUCTIONS, QUESTION, Loop, Options, lookup, serve
from openai import AsyncOpenAI


class AgentsLoop:
    """An agent; nothing of a run is kept."""

    def __init__(self, agent: Agent[None], steps: int, is_streamed: bool) -> None:
        self._agent = agent
        self._turns = steps + 10
        self._is_streamed = is_streamed

    async def run(self) -> str:
        """One run."""
        if not self._is_streamed:
            return str((await Runner.run(self._agent, QUESTION, max_turns=self._turns)).final_output)
        streamed = Runner.run_streamed(self._agent, QUESTION, max_turns=self._turns)
        async for _ in streamed.stream_events():
            pass
        return str(streamed.final_output)


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Loop]:
    """The agent."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=options.url, api_key="none")
    model = OpenAIChatCompletionsModel(model=f"lookup-{options.steps}", openai_client=client)
    agent: Agent[None] = Agent(name="looker", instructions=INSTRUCTIONS, model=model, tools=[function_tool(lookup)])
    yield AgentsLoop(agent, options.steps, options.is_streamed)


if __name__ == "__main__":
    serve(opened)
