"""What a prompt agent has before it for a turn: its persona as it is now, its contract, its tools."""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

import msgspec

from atlas.control.agents import Agents
from atlas.control.prompt import RECALL_LIMIT, Desk, Outcome, Tool
from atlas.control.recall import Recall
from atlas.kernel.code import Job
from atlas.kernel.contract import Contract
from atlas.kernel.errors import NotFound
from atlas.kernel.model import ToolSpec
from atlas.kernel.port import Vault

PERSONA: Final = ("IDENTITY.md", "SOUL.md", "USER.md")
_RATE: Final = 3.6


class Desks:
    """Lays out desks."""

    def __init__(self, vault: Vault, agents: Agents, recall: Recall) -> None:
        self._vault = vault
        self._agents = agents
        self._recall = recall
        self._guide = (resources.files("atlas.control") / "guide.md").read_text(encoding="utf-8")

    async def lay(self, job: Job) -> Desk:
        """The desk for a job; persona edits count from the next turn on."""
        contract = await self._agents.contract(job.snapshot)
        tools = {tool.spec.name: tool for tool in self._tools(job) if _is_allowed(contract, tool.spec.name)}
        return Desk(contract, (*self._persona(contract), self._guide), tools)

    def _persona(self, contract: Contract) -> tuple[str, ...]:
        shared = contract.persona.use
        folder = f"personas/{shared}" if shared else f"agents/{contract.name}/persona"
        texts: list[str] = []
        for name in PERSONA:
            try:
                texts.append(self._vault.read_file(f"{folder}/{name}").decode(errors="replace"))
            except NotFound:
                continue
        return tuple(texts) or (contract.description,)

    def _tools(self, job: Job) -> tuple[Tool, ...]:
        async def recall(args: bytes, key: str) -> Outcome:
            wanted: dict[str, Any] = msgspec.json.decode(args)
            handle, words = wanted.get("handle"), wanted.get("find")
            if handle:
                start = int(wanted.get("start") or 0)
                text = await self._recall.by_handle(job.session_id, str(handle), start, RECALL_LIMIT, _RATE)
            elif words:
                text = await self._recall.by_words(job.session_id, str(words), RECALL_LIMIT, _RATE)
            else:
                return Outcome("Give a handle or words to find.", is_error=True)
            return Outcome(text)

        async def note(args: bytes, key: str) -> Outcome:
            return Outcome("noted")

        return (
            Tool(_spec("recall"), "read_only", recall, idempotent=True),
            Tool(_spec("note"), "read_only", note, idempotent=True),
        )


def _is_allowed(contract: Contract, name: str) -> bool:
    from fnmatch import fnmatchcase

    if any(fnmatchcase(name, pattern) for pattern in contract.tools.deny):
        return False
    allowed = contract.tools.allow
    return allowed is None or any(fnmatchcase(name, pattern) for pattern in (*allowed, "note", "recall"))


def _spec(name: str) -> ToolSpec:
    description, schema = _BUILT_IN[name]
    return ToolSpec(name, description, msgspec.Raw(msgspec.json.encode(schema)))


_BUILT_IN: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "recall": (
        "Bring back what this session recorded: exactly, by handle, or by searching for words.",
        {
            "type": "object",
            "properties": {
                "handle": {"type": "string", "description": "t12 is a turn, t12.3 a step, t12.3.2 a tool call."},
                "find": {"type": "string", "description": "Words to search for in everything recorded."},
                "start": {"type": "integer", "minimum": 0, "description": "The byte to begin at."},
            },
            "additionalProperties": False,
        },
    ),
    "note": (
        "Keep something in sight until it is closed.",
        {
            "type": "object",
            "properties": {
                "kind": {"enum": ["requirement", "plan", "mission", "report", "fact"]},
                "key": {"type": "string", "description": "A short name; the same name changes the note."},
                "text": {"type": "string"},
                "status": {"enum": ["open", "done"]},
            },
            "required": ["kind", "key", "text"],
            "additionalProperties": False,
        },
    ),
}
