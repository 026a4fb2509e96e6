"""Which tools an agent has: the built-in ones, those in its folder and those that the vault shares.

    catalogue = await Discovery(host, builtins).catalogue({folder: None}, allow, deny)

No file of a tool is imported here: the host reads what they declare in a worker. The folders are pinned, so that each is looked
at once; what it declares is remembered by the content of its files, so that the same files are read once, wherever they lie.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from atlas.kernel.errors import Invalid, Problem, Unavailable
from atlas.kernel.port import ToolHost
from atlas.kernel.tool import ToolDefinition

_REMEMBERED: Final = 256

T = TypeVar("T")


class Offer(msgspec.Struct, frozen=True):
    """A tool that an agent may use and the folder that has it; no folder for a built-in one."""

    definition: ToolDefinition
    folder: str = ""


class Discovery:
    """Finds tools; remembers what pinned folders declare."""

    def __init__(self, host: ToolHost, builtins: Sequence[ToolDefinition] = ()) -> None:
        self._host = host
        self._builtins = tuple(builtins)
        self._digests: dict[str, str] = {}
        self._declared: dict[str, tuple[ToolDefinition, ...]] = {}

    async def catalogue(
        self,
        folders: Mapping[str, Sequence[ToolDefinition] | None],
        allow: Iterable[str] | None = None,
        deny: Iterable[str] = (),
    ) -> dict[str, Offer]:
        """The tools of an agent by name, in a stable order. An earlier folder's tool hides a later one's.

        `folders` come with what their tools declare, or None to look. `allow` and `deny` are the contract's, with `*` for
        any; deny wins. Invalid when a file cannot be read or a tool has a built-in one's name.
        """
        found = {one.name: Offer(one) for one in self._builtins}
        reserved = frozenset(found)
        for folder, known in folders.items():
            for definition in await self._pinned(folder) if known is None else known:
                if definition.name in reserved:
                    raise _reserved(definition)
                found.setdefault(definition.name, Offer(definition, folder))
        allowed = None if allow is None else tuple(allow)
        denied = tuple(deny)
        return {name: offer for name, offer in sorted(found.items()) if _may_use(name, allowed, denied)}

    async def _pinned(self, folder: str) -> tuple[ToolDefinition, ...]:
        digest = self._digests.get(folder)
        if digest is None:
            digest = _keep(self._digests, folder, await asyncio.to_thread(tools_digest, folder))
        if not digest:
            return ()
        known = self._declared.get(digest)
        return _keep(self._declared, digest, await self._host.definitions(folder)) if known is None else known


def _keep(remembered: dict[str, T], key: str, value: T) -> T:
    while len(remembered) >= _REMEMBERED:
        del remembered[next(iter(remembered))]
    remembered[key] = value
    return value


def tools_digest(folder: str) -> str:
    """Names the content of everything under `tools/`; empty when no file there can define a tool."""
    root = Path(folder) / "tools"
    try:
        if not any(is_tool_file(path) for path in root.glob("*.py")):
            return ""
        digest = hashlib.sha256()
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode(errors="surrogateescape"))
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    except OSError as error:
        raise Unavailable(f"{root} cannot be read: {error.strerror}", code="vault_unreadable") from error
    return digest.hexdigest()


def is_tool_file(path: Path) -> bool:
    """Whether tools are looked for in the file; one whose name begins with `_` is only there to be imported."""
    return path.suffix == ".py" and not path.name.startswith(("_", ".")) and path.is_file()


def _may_use(name: str, allow: tuple[str, ...] | None, deny: tuple[str, ...]) -> bool:
    if any(fnmatchcase(name, pattern) for pattern in deny):
        return False
    return allow is None or any(fnmatchcase(name, pattern) for pattern in allow)


def _reserved(definition: ToolDefinition) -> Invalid:
    message = f"{definition.name} is the name of a built-in tool"
    problem = Problem("tool_name_reserved", message, definition.where, hint='Rename it, or give it @tool(name="...").')
    return Invalid(message, problems=(problem,), code="tool_name_reserved")
