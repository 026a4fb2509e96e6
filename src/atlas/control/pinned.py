"""What runs execute: an agent as it was when a run was submitted, whatever becomes of its folder.

pin       the agent as it is now, kept under its digest -> Pinned
of_run    the one that a run pinned
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from atlas.kernel.contract import Contract
from atlas.kernel.errors import Conflict, Invalid
from atlas.kernel.port import Ledger, Vault
from atlas.kernel.tool import LoadedTool, ToolDefinition

INLINE_PLACE: Final = "inline:"
"""Where a run of an agent that is defined in code may be driven: in a process that has that agent."""
_INLINE_FILE: Final = "inline.json"
_CONTRACT_FILE: Final = "agent.yaml"


class Inline(msgspec.Struct, frozen=True):
    """An agent that is defined in code: a class, or instructions with functions as tools."""

    contract: Contract
    instructions: str = ""
    tools: tuple[LoadedTool, ...] = ()
    cls: type | None = None

    @property
    def place(self) -> str:
        """Where its runs are driven, and what stands for the folder of its tools."""
        return f"{INLINE_PLACE}{self.contract.name}"

    def is_same(self, other: Inline) -> bool:
        """Whether both are one agent, down to the very functions."""

        def parts(one: Inline) -> tuple[object, ...]:
            return one.contract, one.instructions, one.cls, tuple(tool.function for tool in one.tools)

        return parts(self) == parts(other)


class Words(msgspec.Struct, frozen=True):
    """What a run pins of a prompt agent that is defined in code: all but the functions of its tools."""

    contract: Contract
    instructions: str
    tools: tuple[ToolDefinition, ...]


class Pinned(msgspec.Struct, frozen=True):
    """An agent as a run sees it: fixed when the run was submitted. `words` are those of one defined in code."""

    contract: Contract
    snapshot: str
    folder: str
    place: str = ""
    words: Words | None = None


def is_stored(snapshot: str) -> bool:
    """Whether the ledger holds what a run pins; of an agent that is a class of a program only its name is known."""
    return not snapshot.startswith(INLINE_PLACE)


class Pins:
    """Every agent of the vault and those defined in code, as they are now and as runs pinned them."""

    def __init__(self, vault: Vault, ledger: Ledger) -> None:
        self._vault = vault
        self._ledger = ledger
        self._inline: dict[str, Inline] = {}
        self._pinned: dict[str, Pinned] = {}

    def add(self, agent: Inline) -> None:
        """Makes an agent that is defined in code known; Conflict when another one has its name."""
        name = agent.contract.name
        known = self._inline.get(name)
        if known is not None and known.is_same(agent):
            return
        if known is not None or name in self._vault.agents():
            where = "this vault" if known is None else "this Atlas"
            raise Conflict(
                f"{where} has another agent called {name}",
                hint="Give one of them another name; to run one agent again, pass the same Agent.",
                code="agent_name_taken",
            )
        self._inline[name] = agent

    async def of_run(self, agent: str, snapshot: str) -> Pinned:
        """The agent that a run pins; a class of this program is the one that it is now."""
        return await (self.open(snapshot) if is_stored(snapshot) else self.pin(agent))

    async def open(self, snapshot: str) -> Pinned:
        """The agent that a snapshot pins."""
        return self._pinned.get(snapshot) or await self._open(snapshot)

    async def pin(self, name: str) -> Pinned:
        """The agent as it is now."""
        inline = self._inline.get(name)
        if inline is not None:
            return await self._pin_inline(inline)
        snapshot = self._vault.snapshot(name)
        known = self._pinned.get(snapshot.digest)
        if known is not None:
            return known
        if self._vault.placed(snapshot.digest) is None:
            files = {path: self._vault.read(name, path) for path in snapshot.files}
            await self._store(snapshot.digest, files)
            self._vault.place(snapshot.digest, files)
        return await self._open(snapshot.digest)

    async def _pin_inline(self, inline: Inline) -> Pinned:
        """A class is pinned by its name alone; of a prompt agent everything but its tools' functions is."""
        if inline.contract.runtime != "prompt":
            return Pinned(inline.contract, inline.place, "", inline.place)
        # Where a function stands in its file is not part of what it is.
        tools = tuple(msgspec.structs.replace(tool.definition, where="") for tool in inline.tools)
        raw = msgspec.json.encode(Words(inline.contract, inline.instructions, tools))
        manifest = {_INLINE_FILE: hashlib.sha256(raw).hexdigest()}
        digest = hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()
        if digest not in self._pinned:
            await self._store(digest, {_INLINE_FILE: raw})
        return await self.open(digest)

    async def _open(self, digest: str) -> Pinned:
        folder = self._vault.placed(digest)
        if folder is None:
            files = await self._fetch(digest)
            if _INLINE_FILE in files and _CONTRACT_FILE not in files:
                return self._open_inline(digest, files[_INLINE_FILE])
            folder = self._vault.place(digest, files)
        pinned = self._pinned[digest] = Pinned(self._vault.contract_in(folder), digest, folder)
        return pinned

    def _open_inline(self, digest: str, raw: bytes) -> Pinned:
        words = msgspec.json.decode(raw, type=Words)
        place = f"{INLINE_PLACE}{words.contract.name}"
        pinned = self._pinned[digest] = Pinned(words.contract, digest, "", place, words)
        return pinned

    async def _store(self, digest: str, files: Mapping[str, bytes]) -> None:
        """Keeps the files as blobs, so that any machine that shares the ledger can place them again."""
        manifest = {path: await self._ledger.put_blob(data) for path, data in sorted(files.items())}
        stored = await self._ledger.put_blob(msgspec.json.encode(manifest))
        if stored != digest:
            raise Invalid(
                "the agent's folder changed while it was read",
                hint="Run the command again.",
                code="snapshot_changed",
            )

    async def _fetch(self, digest: str) -> dict[str, bytes]:
        manifest = msgspec.json.decode(await self._ledger.get_blob(digest), type=dict[str, str])
        return {path: await self._ledger.get_blob(blob) for path, blob in manifest.items()}
