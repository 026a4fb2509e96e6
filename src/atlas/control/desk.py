"""What a prompt agent has before it for a turn: its persona as it is now, its contract, its tools."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from importlib import resources
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.control.agents import Agents
from atlas.control.recall import Recall
from atlas.kernel.code import Job
from atlas.kernel.context import LiveFile
from atlas.kernel.contract import Contract
from atlas.kernel.errors import NotFound
from atlas.kernel.model import ToolCall, ToolResult, ToolSpec
from atlas.kernel.port import SHARED, ToolHost, Vault
from atlas.kernel.rule import ALWAYS_OFFERED
from atlas.kernel.tool import ToolDefinition, ToolFinding, ToolOutcome

PERSONA: Final = ("IDENTITY.md", "SOUL.md", "USER.md")


class Offer(Protocol):
    """A tool that an agent may use and the folder that has it; no folder for a built-in one."""

    @property
    def definition(self) -> ToolDefinition:
        """What it declares."""
        ...

    @property
    def folder(self) -> str:
        """Where it lies."""
        ...


class Checked(Protocol):
    """A call whose tool exists and whose arguments fit it."""

    @property
    def definition(self) -> ToolDefinition:
        """The tool."""
        ...

    @property
    def args(self) -> bytes:
        """What is performed and recorded."""
        ...

    @property
    def value(self) -> dict[str, Any]:
        """The same, decoded."""
        ...


class PastCall(msgspec.Struct, frozen=True):
    """A call that is on record and no longer fits: a fork has the tools as they are now."""

    definition: ToolDefinition
    args: bytes = b"null"
    value: dict[str, Any] = {}

    @classmethod
    def of(cls, call: ToolCall) -> PastCall:
        """The call, of which nothing but the name is needed any more."""
        return cls(ToolDefinition(ToolSpec(call.name, "", msgspec.Raw(b"{}")), effect="read_only"))


Declared: TypeAlias = Sequence[ToolDefinition] | None
"""What the tools of a folder declare; None where the folder has to be asked."""


class Toolbox(msgspec.Struct, frozen=True):
    """The tools of a host, as functions: finding, checking, and performing the built-in ones."""

    catalogue: Callable[[Mapping[str, Declared], Sequence[str] | None, Sequence[str]], Awaitable[Mapping[str, Offer]]]
    check: Callable[[ToolCall, Mapping[str, ToolDefinition]], Checked | ToolResult]
    call_builtin: Callable[[str, str, bytes], Awaitable[ToolOutcome]]
    host: ToolHost
    agent_folder: Callable[[str], str]
    redact: Callable[[str], str] = str
    grant: Callable[[str, Sequence[str], Sequence[str]], Awaitable[dict[str, str]]] | None = None
    read_live: Callable[[str, Sequence[str]], tuple[LiveFile, ...]] = lambda folder, paths: ()


class Desk:
    """An agent's contract, persona and tools for one turn."""

    def __init__(
        self,
        job: Job,
        contract: Contract,
        system: tuple[str, ...],
        offers: Mapping[str, Offer],
        toolbox: Toolbox,
        recall: Recall,
    ) -> None:
        self.contract = contract
        self.system = system
        self.tools = {name: offer.definition for name, offer in offers.items()}
        self._job = job
        self._offers = offers
        self._fingerprints: dict[str, str] = {}
        self._toolbox = toolbox
        self._recall = recall

    def fingerprint(self, name: str) -> str:
        """The hash of a tool's definition; an approval of a call holds for the tool as it was then."""
        if name not in self._fingerprints:
            definition = replace(self.tools[name], where="")
            self._fingerprints[name] = hashlib.sha256(msgspec.json.encode(definition)).hexdigest()[:16]
        return self._fingerprints[name]

    def check(self, call: ToolCall) -> Checked | ToolResult:
        """The call, ready to be performed, or what tells the model what is wrong with it."""
        return self._toolbox.check(call, self.tools)

    async def touched(self, checked: Checked) -> tuple[str, ...] | None:
        """What a call would touch, when its tool computes that."""
        definition = checked.definition
        if not definition.computes_resources:
            return None
        folder = self._offers[definition.name].folder
        return await self._toolbox.host.resources(folder, definition.name, checked.args)

    async def perform(self, checked: Checked, effect_key: str, limit: int, rate: float) -> ToolOutcome:
        """What the call comes to, redacted; a recall has at most `limit` tokens, of which each is `rate` bytes."""
        definition, toolbox = checked.definition, self._toolbox
        name = definition.name
        if name == "recall":
            outcome = await self._bring_back(checked.value, limit, rate)
        elif folder := self._offers[name].folder:
            secrets = await self._secrets(definition) if definition.secrets else {}
            outcome = await toolbox.host.call(folder, name, checked.args, effect_key, secrets)
        else:
            outcome = await toolbox.call_builtin(self._folder, name, checked.args)
        text = toolbox.redact(outcome.text)
        return outcome if text == outcome.text else replace(outcome, text=text)

    async def files(self) -> tuple[LiveFile, ...]:
        """The contract's files as they are now, redacted."""
        paths, redact = self.contract.context.files, self._toolbox.redact
        if not paths:
            return ()
        found = await asyncio.to_thread(self._toolbox.read_live, self._folder, paths)
        return tuple(
            replace(one, lines=tuple(redact("\n".join(one.lines)).split("\n"))) if one.lines else one for one in found
        )

    @cached_property
    def _folder(self) -> str:
        """The agent's folder as it is now, which its persona, its wiki and its notes are read from."""
        return self._toolbox.agent_folder(self._job.agent)

    async def probe(self, checked: Checked, effect_key: str) -> ToolFinding:
        """Whether a call that may have happened did."""
        offer = self._offers[checked.definition.name]
        secrets = await self._secrets(checked.definition)
        return await self._toolbox.host.probe(offer.folder, checked.definition.name, checked.args, effect_key, secrets)

    async def _secrets(self, definition: ToolDefinition) -> dict[str, str]:
        """The values that a call is given: those that its tool declares, when the contract names them too."""
        if not definition.secrets or self._toolbox.grant is None:
            return {}
        return await self._toolbox.grant(self.contract.name, self.contract.secrets, definition.secrets)

    async def _bring_back(self, wanted: Mapping[str, Any], limit: int, rate: float) -> ToolOutcome:
        run_id, handle, words = self._job.run_id, wanted.get("handle"), wanted.get("find")
        if handle:
            start = int(wanted.get("start") or 0)
            return await self._recall.by_handle(run_id, str(handle), start, limit, rate)
        if words:
            return ToolOutcome(await self._recall.by_words(run_id, str(words), limit, rate))
        return ToolOutcome("Give a handle or words to find.", is_error=True)


class Desks:
    """Lays out desks."""

    def __init__(self, vault: Vault, agents: Agents, recall: Recall, toolbox: Toolbox) -> None:
        self._vault = vault
        self._agents = agents
        self._recall = recall
        self._toolbox = toolbox
        self._guide = (resources.files("atlas.control") / "guide.md").read_text(encoding="utf-8")

    async def lay(self, job: Job) -> Desk:
        """The desk for a job; persona edits count from the next turn on. An agent's own tools hide the vault's."""
        agent = await self._agents.pins.open(job.snapshot)
        contract, words = agent.contract, agent.words
        if words is not None:
            # What it declared when the run was submitted; whoever performs a call has the functions.
            folders: dict[str, Declared] = {agent.place: words.tools}
            allow: tuple[str, ...] | None = tuple(tool.name for tool in words.tools)
            persona: tuple[str, ...] = (words.instructions,)
        else:
            folders = {job.folder: None, f"{job.folder}/{SHARED}": None}
            allow = contract.usable_tools.allow
            persona = self._persona(contract)
        allowed = None if allow is None else (*allow, *ALWAYS_OFFERED)
        offers = await self._toolbox.catalogue(folders, allowed, contract.tools.deny)
        system = tuple(map(self._toolbox.redact, (*persona, self._guide)))
        return Desk(job, contract, system, offers, self._toolbox, self._recall)

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
