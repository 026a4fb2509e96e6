"""A vault with one obliging agent, and real `atlas` processes to run it with.

The agent `play` does what its input says: `{"do": ["mark:a", ...], "file": ...}`. Marks are lines in a file outside the
vault; a word that waits does so until the file `go` exists beside it.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

PATIENCE_S = 60.0

_CONTRACT = """\
agent:
  name: {name}
  version: 1.0.0
  description: Does what its input says
  requires: {{spawn_agents: true}}
"""

_CODE = """\
import asyncio
import os
from pathlib import Path

from atlas import AgentBase


class Play(AgentBase):
    async def execute(self, input, context):
        file = Path(input["file"])
        done = []
        for word in input["do"]:
            verb, _, rest = word.partition(":")
            match verb:
                case "mark":  # a step that must not happen twice
                    done.append(await context.step("mark", mark, str(file), rest))
                case "again":  # a step that may
                    done.append(await context.step("again", hold, str(file), rest, idempotent=True))
                case "hold":  # a step that must not happen twice and takes until `go`
                    done.append(await context.step("hold", hold, str(file), rest))
                case "ask":  # a step that needs a person
                    done.append(await context.step("ask", mark, str(file), rest, effect="external_side_effect"))
                case "both":  # two steps at the same time that must not happen twice
                    async with asyncio.TaskGroup() as group:
                        steps = [group.create_task(context.step("hold", hold, str(file), rest + n)) for n in "12"]
                    done.extend(step.result() for step in steps)
                case "note":  # a mark each time the code comes by, in no step
                    mark(file, rest)
                case "wait":  # code that waits for `go`, in no step
                    await go(file)
                case "sleep":
                    await asyncio.sleep(float(rest))
                case "kids":
                    kids = [("play", {"file": str(file), **kid}) for kid in input["kids"]]
                    done.extend(kid["done"] for kid in await context.spawn_many(kids))
        return {"done": done}


def mark(file, text):
    with open(file, "a") as out:
        out.write(text + "\\n")
    return text


async def hold(file, text):
    mark(file, text)
    await go(Path(file))
    return text


async def go(file):
    while not file.with_name("go").exists():
        await asyncio.sleep(0.02)
"""


class Stage:
    """A vault, the world outside it, and a terminal."""

    def __init__(self, folder: Path, **execution: Any) -> None:
        self.vault = folder / "vault"
        self.file = folder / "world" / "marks"
        self.file.parent.mkdir(parents=True)
        self.file.touch()
        self.vault.mkdir()
        config = {"execution": {"lease_s": 1, "cancel_grace_s": 1, **execution}}
        (self.vault / "atlas.config.yaml").write_text(json.dumps(config))
        self.add_agent("play")

    def add_agent(self, name: str, timeout_s: float | None = None) -> None:
        """Another agent with the same code."""
        agent = self.vault / "agents" / name
        agent.mkdir(parents=True)
        limit = f"  timeout_s: {timeout_s}\n" if timeout_s is not None else ""
        (agent / "agent.yaml").write_text(_CONTRACT.format(name=name) + limit)
        (agent / "agent.py").write_text(_CODE)

    @property
    def marks(self) -> list[str]:
        """What happened outside, in order."""
        return self.file.read_text().split()

    def go(self) -> None:
        """Lets go what waits."""
        self.file.with_name("go").touch()

    def words(self, *do: str, kids: tuple[Any, ...] = (), agent: str = "play") -> tuple[str, ...]:
        """The words of `atlas run` that make the agent do this."""
        return ("run", agent, "--input", json.dumps({"file": str(self.file), "do": do, "kids": kids}))

    def atlas(self, *words: str) -> tuple[int, Any]:
        """Runs a command to its end: exit code and what it printed, as data where it is JSON."""
        with self._popen(words, subprocess.PIPE) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
        assert "Traceback" not in err, err
        return process.returncode, json.loads(out) if "--json" in words else out

    @contextmanager
    def started(self, *words: str, fault: str = "") -> Iterator[subprocess.Popen[str]]:
        """A command that is running; killed at the end of the block if it still is."""
        with (self.file.parent / "terminal.log").open("w") as log:
            process = self._popen(words, log, fault)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE_S)

    @property
    def printed(self) -> str:
        """What the last started command has printed."""
        return (self.file.parent / "terminal.log").read_text()

    def receipts(self) -> int:
        """How many effects have a durable receipt."""
        with closing(sqlite3.connect(self.vault / ".atlas" / "ledger.db", timeout=10)) as database:
            return int(database.execute("SELECT count(*) FROM event WHERE kind = 'effect.received'").fetchone()[0])

    def kill_in(self, *words: str, when: Callable[[], bool]) -> None:
        """Starts a command and kills it with SIGKILL as soon as `when` holds."""
        with self.started(*words) as process:
            until(when, process)
            process.kill()
            assert process.wait(PATIENCE_S) == -signal.SIGKILL
        self.assert_nobody_lives()

    def run_id(self) -> str:
        """The newest run at the top of a tree."""
        return str(self.atlas("show", "@last", "--json")[1]["run"]["run_id"])

    def state(self, run_id: str = "@last") -> str:
        """Where a run stands."""
        return str(self.atlas("show", run_id, "--json")[1]["run"]["state"])

    def states(self) -> list[str]:
        """Where all runs stand, oldest first."""
        runs = self.atlas("runs", "--all", "--limit", "500", "--json")[1]["runs"]
        return [str(run["state"]) for run in reversed(runs)]

    def assert_nobody_lives(self) -> None:
        """Nothing of this vault executes: what waits needs no process."""
        until(lambda: not [process for process in psutil.process_iter() if self._is_inside(process)])

    def _is_inside(self, process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and process.cwd().startswith(str(self.vault))
        except psutil.Error:
            return False

    def _popen(self, words: tuple[str, ...], output: Any, fault: str = "") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "atlas", *words, "--vault", str(self.vault)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            env={**os.environ, "ATLAS_FAULT": fault},
        )


def until(is_so: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Waits until it is so; fails when the process it depends on has ended, or after a long time."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert process is None or process.poll() is None, f"the process ended with {process.returncode}"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def is_locked(vault: Path) -> bool:
    """Whether a process holds SQLite's only write lock: one that stopped inside a commit keeps it until it wakes."""
    connection = sqlite3.connect(vault / ".atlas" / "ledger.db", timeout=0.5, isolation_level=None)
    with closing(connection):
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False
