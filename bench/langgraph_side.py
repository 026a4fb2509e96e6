"""The peer's side of every case: a LangGraph graph of one node that loops, with its SQLite checkpointer.

Runs in an environment of its own; the last line it prints is its answer as JSON. `durability="sync"` writes every
checkpoint before the next step starts, which is the promise closest to a durable step.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from workload import Marks, Options, Timing, serve, stored_bytes, tick


class Kept(TypedDict):
    """A state that keeps the result of every step, as an agent keeps its messages."""

    steps: int
    size: int
    results: Annotated[list[dict[str, Any]], operator.add]


class Counted(TypedDict):
    """The smallest state that can do the same loop: only the newest result is kept."""

    steps: int
    size: int
    done: int
    last: dict[str, Any]


def kept() -> StateGraph[Any]:
    """The graph whose state holds every result."""
    graph = StateGraph(Kept)
    graph.add_node("tick", lambda state: {"results": [tick(len(state["results"]), state["size"])]})
    return looped(graph, lambda state: len(state["results"]))


def counted() -> StateGraph[Any]:
    """The graph whose state holds a counter and the newest result."""
    graph = StateGraph(Counted)
    graph.add_node("tick", lambda state: {"done": state["done"] + 1, "last": tick(state["done"], state["size"])})
    return looped(graph, lambda state: int(state["done"]))


def looped(graph: StateGraph[Any], done: Callable[[Any], int]) -> StateGraph[Any]:
    """The graph with edges that come back to its only node until all steps are done."""

    def is_more(state: Any) -> str:
        return "tick" if done(state) < state["steps"] else END

    graph.add_conditional_edges(START, is_more, ["tick", END])
    graph.add_conditional_edges("tick", is_more, ["tick", END])
    return graph


class Side:
    """One database and the graph on it."""

    def __init__(self, options: Options) -> None:
        self.folder = Path(options.folder)
        self.database = str(self.folder / "checkpoints.db")
        self.size = options.size
        self.is_counted = options.is_counted
        self.graph = counted() if options.is_counted else kept()

    def arguments(self, thread: str, steps: int) -> dict[str, Any]:
        """What `invoke` is called with."""
        start = {"done": 0} if self.is_counted else {"results": []}
        return {
            "input": {"steps": steps, "size": self.size, **start},
            "config": {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10},
            "durability": "sync",
        }

    def once(self, steps: int) -> dict[str, Any]:
        """One run in a process that does nothing else."""
        with SqliteSaver.from_conn_string(self.database) as saver:
            check(self.graph.compile(checkpointer=saver).invoke(**self.arguments("one", steps)), steps)
            durable = saver.conn.execute("pragma synchronous").fetchone()[0]
        return {"bytes": stored_bytes(self.folder), "synchronous": durable}

    def steps(self, steps: int) -> dict[str, Any]:
        """An empty run that warms up, an empty run that is measured, a full run that is measured."""
        with SqliteSaver.from_conn_string(self.database) as saver:
            graph = self.graph.compile(checkpointer=saver)
            graph.invoke(**self.arguments("warm", 0))
            marks = Marks()
            graph.invoke(**self.arguments("empty", 0))
            marks.add()
            result = graph.invoke(**self.arguments("full", steps))
            marks.add()
        check(result, steps)
        return {"marks": marks.taken, "bytes": stored_bytes(self.folder)}

    def crowd(self, runs: int, steps: int) -> dict[str, Any]:
        """Many runs at the same time on one event loop."""

        async def all_runs() -> None:
            async with AsyncSqliteSaver.from_conn_string(self.database) as saver:
                graph = self.graph.compile(checkpointer=saver)
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(graph.ainvoke(**self.arguments(f"run {number}", steps)))
                        for number in range(runs)
                    ]
                for task in tasks:
                    check(task.result(), steps)

        asyncio.run(all_runs())
        return {}

    def load(self, steps: int) -> dict[str, Any]:
        """Opens the database that `once` left and reads the run's last state."""
        timing = Timing()
        with SqliteSaver.from_conn_string(self.database) as saver:
            graph = self.graph.compile(checkpointer=saver)
            state = graph.get_state({"configurable": {"thread_id": "one"}})
            timing.stop()
        check(state.values, steps)
        return {"load_ms": timing.wall_ms, "load_cpu_ms": timing.cpu_ms}


def check(state: dict[str, Any], steps: int) -> None:
    """Fails when the run did not do what it was asked to: a wrong answer has no speed."""
    done = state["done"] if "done" in state else len(state["results"])
    if done != steps:
        raise SystemExit(f"{done} of {steps} steps were done")


if __name__ == "__main__":
    serve(Side)
