"""A vault in which somebody must be asked: agents that send and pay, and rules, mandates and grants around them.

`clerk` is a prompt agent whose scripted model calls the tools that a test names, all at once for each reply. `boss` is
code that does steps and delegates: `{"do": ["step:CLASS:TEXT", ...], "to": [[AGENT, INPUT], ...]}`. What happened
outside is a line in a file, as on every stage.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from atlas.app import open_host
from atlas.control.history import bodies
from atlas.control.host import Host
from atlas.control.report import RunReport
from atlas.kernel.event import Body, EffectRefused
from e2e.stage import Stage

F = TypeVar("F")

_CLERK = """\
agent:
  name: {name}
  version: 1.0.0
  description: Sends and pays
  runtime: prompt
  model: {{preference: "demo:script"}}
"""
_TOOLS = """\
from pathlib import Path

from atlas import tool


def _leave(file: str, line: str) -> None:
    with Path(file).open("a") as out:
        out.write(line + "\\n")


@tool(effect="external_side_effect", resources=("mail/{to}",))
def send(file: str, to: str) -> str:
    "Sends a mail."
    _leave(file, to)
    return f"sent to {to}"


@tool(effect="external_side_effect", resources=("bank",))
def refund(file: str, usd: float) -> str:
    "Gives money back."
    _leave(file, f"usd{usd}")
    return f"gave {usd}"


@tool(effect="reversible_write", resources=("shelf/{name}",))
def write(file: str, name: str) -> str:
    "Writes something down."
    _leave(file, name)
    return f"wrote {name}"
"""
_BOSS = """\
agent:
  name: {name}
  version: 1.0.0
  description: Does steps and delegates
  requires: {{spawn_agents: true}}
"""
_BOSS_CODE = """\
from atlas import AgentBase, AtlasError


class Boss(AgentBase):
    async def execute(self, input, context):
        done = []
        for word in input.get("do", []):
            name, effect, text = word.split(":")
            try:
                done.append(await context.step(name, mark, input["file"], text, effect=effect))
            except AtlasError as error:
                done.append(f"{error.reason}: {error.message}")
        for agent, below in input.get("to", []):
            try:
                done.append(await context.spawn(agent, {"file": input["file"], **below}))
            except AtlasError as error:
                done.append(f"{error.reason}: {error.message}")
        return {"done": done}


def mark(file, text):
    with open(file, "a") as out:
        out.write(text + "\\n")
    return text
"""


class Office(Stage):
    """A stage with a clerk and a boss."""

    def __init__(self, folder: Path, **config: Any) -> None:
        super().__init__(folder)
        self.configure(**config)
        self.script()
        self.clerk("clerk")
        self.boss("boss")

    def configure(self, **config: Any) -> None:
        """Writes atlas.config.yaml."""
        providers = {name: {"kind": "scripted", "script": f"{name}.yaml"} for name in ("demo", "judge")}
        whole = {"execution": {"lease_s": 1}, "models": {"providers": providers}, **config}
        (self.vault / "atlas.config.yaml").write_text(json.dumps(whole))

    def clerk(self, name: str, more: str = "") -> None:
        """A prompt agent with the tools send, refund and write; `more` are further lines of its contract."""
        agent = self.vault / "agents" / name
        (agent / "tools").mkdir(parents=True)
        (agent / "agent.yaml").write_text(_CLERK.format(name=name) + more)
        (agent / "tools" / "post.py").write_text(_TOOLS)

    def boss(self, name: str, more: str = "") -> None:
        """An agent of code that does steps and delegates."""
        agent = self.vault / "agents" / name
        agent.mkdir(parents=True)
        (agent / "agent.yaml").write_text(_BOSS.format(name=name) + more)
        (agent / "agent.py").write_text(_BOSS_CODE)

    def policy(self, *rules: dict[str, Any]) -> None:
        """Writes policy.yaml."""
        (self.vault / "policy.yaml").write_text(json.dumps({"rules": rules}))

    def mandate(self, **parts: Any) -> None:
        """Writes mandates.yaml with one mandate."""
        whole = {"id": "m1", "granted_by": "ada", **parts}
        (self.vault / "mandates.yaml").write_text(json.dumps({"mandates": [whole]}))

    def script(self, *turns: list[tuple[str, dict[str, Any]]]) -> None:
        """The model calls the tools of each turn together, and then says that it is done."""
        replies: list[Any] = [
            {"tool_calls": [{"name": name, "args": {"file": str(self.file), **args}} for name, args in turn]}
            for turn in turns
        ]
        (self.vault / "demo.yaml").write_text(json.dumps({"replies": [*replies, {"text": "done"}]}))
        (self.vault / "judge.yaml").write_text(json.dumps({"replies": [{"text": "nothing"}]}))

    def opinion(self, **answer: Any) -> None:
        """What a model that gives second opinions says."""
        reply = answer if "error" in answer else {"text": json.dumps(answer)}
        (self.vault / "judge.yaml").write_text(json.dumps({"replies": [reply]}))

    def run(self, *words: str, agent: str = "clerk") -> int:
        """Runs the clerk; the exit code."""
        return self.atlas("run", agent, "go", *words)[0]

    def delegate(self, agent: str, *words: str, **input: Any) -> tuple[int, Any]:
        """Runs a boss on an input; exit code and report."""
        given = json.dumps({"file": str(self.file), **input})
        return self.atlas("run", agent, "--input", given, "--json", *words)

    def events(self, run_id: str = "@last") -> list[dict[str, Any]]:
        """The events of a run, newest run by default."""
        found = self.atlas("show", run_id, "--events", "--json")[1]["events"]
        return [event for event in found if isinstance(event, dict)]

    def inbox(self, *words: str) -> list[dict[str, Any]]:
        """What waits for a person."""
        items = self.atlas("inbox", *words, "--json")[1]["items"]
        return list(items)


class Seen(NamedTuple):
    """What a run came to: its report, and every fact about it and those below it."""

    report: RunReport
    facts: list[Body]

    def of(self, kind: type[F]) -> list[F]:
        """The facts of one kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def refusals(self) -> list[str]:
        """The codes of everything that was refused."""
        return [fact.error.code for fact in self.of(EffectRefused)]


async def see(host: Host, run_id: str) -> Seen:
    """Drives a run until it rests and reads what is known about it."""
    await host.drive(run_id)
    facts: list[Body] = []
    async for row in host.tree(await host.find_run(run_id)):
        facts += [body for _, body in bodies(await host.ledger.events(row.run_id))]
    return Seen(await host.report(run_id), facts)


async def play(host: Host, agent: str = "clerk", value: Any = None, **options: Any) -> Seen:
    """Runs an agent in this process until it rests."""
    submitted = await host.submit(agent, {"text": "go"} if value is None else value, **options)
    return await see(host, submitted.run_id)


def play_once(office: Office, agent: str = "clerk", value: Any = None, **options: Any) -> Seen:
    """The same with a host of its own."""

    async def main() -> Seen:
        async with open_host(office.vault, {}) as host:
            return await play(host, agent, value, **options)

    return asyncio.run(main())
