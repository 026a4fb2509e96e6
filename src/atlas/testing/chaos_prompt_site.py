"""Where prompt runs are killed: a vault with a clerk for each kind of model, who does ten steps and then answers.

What the models say is fixed, so that every run asks with the same bytes, whatever happened to it on the way.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from atlas.control.signal import ResolveBody
from atlas.kernel.event import Payload
from atlas.kernel.run import InboxItem
from atlas.kernel.tool import ToolOutcome
from atlas.testing.chaos_desk import Desk
from atlas.testing.chaos_site import Site
from atlas.testing.provider_wire import Act, ActCall

Kind: TypeAlias = Literal["openai", "anthropic", "scripted"]
KINDS: Final[tuple[Kind, ...]] = ("openai", "anthropic", "scripted")

STEPS: Final = (
    ("look",),
    ("again",),
    ("probed",),
    ("once",),
    ("look", "again"),
    ("once", "probed"),
    ("again",),
    ("once", "once"),
    ("probed", "look"),
    ("once",),
)
"""The tools of each step; those of one step run side by side."""

PERSONA: Final = "You are a clerk who does what is asked, step by step.\n"
ANSWER: Final = "The book is closed."
CHANGES_ONCE: Final = frozenset({"once", "probed"})

_AGENT: Final = Path(__file__).parent / "chaos_prompt_agent"
_CONTRACT: Final = """\
agent:
  name: {name}
  version: 1.0.0
  description: Does ten steps with tools that write into a book outside the vault
  runtime: prompt
  model: {{preference: "{name}:m1"}}
"""
_CONFIG: Final = """\
models:
  providers:
    openai: {{kind: openai, base_url: "{url}/v1"}}
    anthropic: {{kind: anthropic, base_url: "{url}"}}
    scripted: {{kind: scripted, script: script.yaml}}
execution:
  lease_s: 1
  timeouts: {{agent: 600, chain: 3600}}
"""


class PromptSite(Site, frozen=True):
    """The folders of one lane, and the address of the provider that its clerks ask."""

    provider: str = ""

    def create(self) -> None:
        """Makes everything but the ledger."""
        for folder in (self.vault / ".atlas", self.outside, self.drivers):
            folder.mkdir(parents=True)
        book = self.outside / "effects.jsonl"
        book.touch()
        for kind in KINDS:
            agent = self.vault / "agents" / kind
            shutil.copytree(_AGENT, agent, ignore=shutil.ignore_patterns("__pycache__"))
            self.write_persona(kind, PERSONA)
            (agent / "tools" / "outside.txt").write_text(str(book), encoding="utf-8")
            (agent / "agent.yaml").write_text(_CONTRACT.format(name=kind), encoding="utf-8")
        (self.vault / "script.yaml").write_bytes(msgspec.json.encode({"replies": _replies()}))
        (self.vault / "atlas.config.yaml").write_text(_CONFIG.format(url=self.provider), encoding="utf-8")

    def write_persona(self, kind: Kind, text: str) -> None:
        """What the clerk's owner writes; a run that has begun goes on with what stood there when it began."""
        folder = self.vault / "agents" / kind / "persona"
        folder.mkdir(exist_ok=True)
        (folder / "IDENTITY.md").write_text(text, encoding="utf-8")


class PromptDesk(Desk):
    """The person beside it, who looks into the book and says what became of a call."""

    def _finding(self, item: InboxItem) -> ResolveBody:
        key = f"{item.run_id}/{item.effect}"
        for line in self._site.lines():
            if line.key == key and line.mark == "end":
                result = msgspec.json.encode(ToolOutcome(f"{line.kind} {line.result} is in the book"))
                return ResolveBody(item.effect, "done", Payload(msgspec.Raw(result), size=len(result)))
        return ResolveBody(item.effect, "not_done")


def acts() -> tuple[Act, ...]:
    """What the provider says, by the number of the step."""
    calls = [
        tuple(ActCall(name, msgspec.json.encode({"n": n}).decode(), id=f"c{n}") for name, n in step)
        for step in _calls()
    ]
    return (*(Act(tool_calls=each) for each in calls), Act(text=ANSWER))


def _replies() -> list[Any]:
    calls = [[{"name": name, "args": {"n": n}} for name, n in step] for step in _calls()]
    return [*[{"tool_calls": each} for each in calls], {"text": ANSWER}]


def _calls() -> list[list[tuple[str, int]]]:
    """The calls of each step, each with a number of its own."""
    return [[(name, step * 10 + place) for place, name in enumerate(names, 1)] for step, names in enumerate(STEPS, 1)]
