"""Our side of every case: an agent defined in code, run through the public Python API with its defaults.

The last line it prints is its answer as JSON. The ledger is the one every vault gets: SQLite, WAL, synchronous=FULL.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from workload import Marks, Options, Timing, serve, stored_bytes, tick

from atlas import AgentBase, AgentContext, Atlas, Result


class Teller(AgentBase):
    """Does the steps one after the other and returns every result."""

    contract = {"name": "teller", "version": "1.0.0", "description": "Counts."}  # noqa: RUF012 - never changed

    async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
        """One durable step per number."""
        return {
            "results": [await context.step("tick", tick, number, input["size"]) for number in range(input["steps"])]
        }


class Side:
    """One vault."""

    def __init__(self, options: Options) -> None:
        self.vault = Path(options.folder)
        self.note = self.vault / "run_id"  # tells `load` which run to load
        self.size = options.size
        # In a worker the agent is a folder of the vault; here it is the class above.
        self.agents = [] if options.is_in_worker else [Teller]
        self.agent = "counter" if options.is_in_worker else "teller"

    def open(self) -> Atlas:
        """The vault, through the public API."""
        return Atlas(self.vault, agents=self.agents)

    def input(self, steps: int) -> dict[str, int]:
        """What one run is asked."""
        return {"steps": steps, "size": self.size}

    def once(self, steps: int) -> dict[str, Any]:
        """One run in a process that does nothing else."""
        with self.open() as atlas:
            result = atlas.run(self.agent, self.input(steps))
        check(result, steps)
        self.note.write_text(result.run_id)
        return {"bytes": stored_bytes(self.vault / ".atlas")}

    def steps(self, steps: int) -> dict[str, Any]:
        """An empty run that warms up, an empty run that is measured, a full run that is measured."""
        with self.open() as atlas:
            atlas.run(self.agent, self.input(0))
            marks = Marks()
            atlas.run(self.agent, self.input(0))
            marks.add()
            result = atlas.run(self.agent, self.input(steps))
            marks.add()
        check(result, steps)
        return {"marks": marks.taken, "bytes": stored_bytes(self.vault / ".atlas")}

    def crowd(self, runs: int, steps: int) -> dict[str, Any]:
        """Many runs at the same time in one process."""

        async def all_runs(atlas: Atlas) -> None:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(atlas.run_async(self.agent, self.input(steps))) for _ in range(runs)]
            for task in tasks:
                check(task.result(), steps)

        with self.open() as atlas:
            asyncio.run(all_runs(atlas))
        return {}

    def load(self, steps: int) -> dict[str, Any]:
        """Reads the state of the run that `once` left: from its ledger alone, then with the whole vault opened."""
        import yaml  # noqa: F401 - the configuration is read with it, and what is imported here is not measured

        from atlas.app import SystemClock, build_ledger, open_host
        from atlas.control.history import load
        from atlas.kernel.config import Config

        run_id = self.note.read_text()

        async def from_ledger() -> Timing:
            timing = Timing()
            ledger = build_ledger(self.vault, Config(), os.environ, SystemClock())
            await ledger.open()
            history = await load(ledger, run_id)
            timing.stop()
            await ledger.close()
            if len(history.answers) != steps or history.state.ended is None:
                raise SystemExit(f"{len(history.answers)} of {steps} steps were found")
            return timing

        async def from_vault(vault: Path) -> Timing:
            timing = Timing()
            async with open_host(vault, os.environ, agents=self.agents) as host:
                if vault == self.vault:
                    await load(host.ledger, run_id)
                timing.stop()
            return timing

        # Modules are imported when they are first used, so an empty vault is opened first: what follows is no import.
        (self.vault / "empty").mkdir(exist_ok=True)
        asyncio.run(from_vault(self.vault / "empty"))
        ledger, vault = asyncio.run(from_ledger()), asyncio.run(from_vault(self.vault))
        return {
            "load_ms": ledger.wall_ms,
            "load_cpu_ms": ledger.cpu_ms,
            "vault_ms": vault.wall_ms,
            "vault_cpu_ms": vault.cpu_ms,
        }


def check(result: Result, steps: int) -> None:
    """Fails when the run did not do what it was asked to: a wrong answer has no speed."""
    done = len(result.unwrap()["results"])
    if done != steps:
        raise SystemExit(f"{done} of {steps} steps were done")


if __name__ == "__main__":
    serve(Side)
