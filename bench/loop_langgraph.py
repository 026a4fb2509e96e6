"""LangGraph's side of the tool loop: langchain's `create_agent` with ChatOpenAI, without a checkpointer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from loop_workload import INSTRUCTIONS, QUESTION, Loop, Options, lookup, serve


class LangGraphLoop:
    """A compiled graph; nothing of a run is kept."""

    def __init__(self, graph: Any, steps: int, is_streamed: bool) -> None:
        self._graph = graph
        self._is_streamed = is_streamed
        self._config = {"recursion_limit": 3 * steps + 10}

    async def run(self) -> str:
        """One run."""
        asked = {"messages": [{"role": "user", "content": QUESTION}]}
        if not self._is_streamed:
            state = await self._graph.ainvoke(asked, config=self._config)
            return str(state["messages"][-1].content)
        said = ""
        async for chunk, _ in self._graph.astream(asked, config=self._config, stream_mode="messages"):
            said += str(chunk.content) if chunk.type == "AIMessageChunk" else ""
        return said


@asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Loop]:
    """The agent."""
    model = ChatOpenAI(model=f"lookup-{options.steps}", base_url=options.url, api_key="none")
    graph = create_agent(model, [lookup], system_prompt=INSTRUCTIONS)
    yield LangGraphLoop(graph, options.steps, options.is_streamed)


if __name__ == "__main__":
    serve(opened)
