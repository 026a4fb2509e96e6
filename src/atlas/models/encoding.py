"""Bytes made once and found again: what keeps a long conversation from being encoded anew for each call.

Two generations stand for "least recently used": what is asked for lives in the young one, and when that is full it
becomes the old one and the old one is forgotten. A hit costs one look-up, and nothing is ever sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from atlas.kernel.model import ToolSpec

LIMIT_BYTES = 32 * 2**20
LIMIT_ENTRIES = 16_384


class Encodings:
    """Keeps the bytes made of equal things, up to about `limit_bytes` and `limit_entries` in all."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES, limit_entries: int = LIMIT_ENTRIES) -> None:
        self._bytes = limit_bytes // 2
        self._entries = limit_entries // 2
        self._young: dict[Hashable, bytes] = {}
        self._old: dict[Hashable, bytes] = {}
        self._size = 0
        self._last_tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"")

    def find(self, key: Hashable) -> bytes | None:
        """The bytes kept for something equal to `key`."""
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is not None:
                self.keep(key, found)
        return found

    def find_all(self, keys: Sequence[Hashable]) -> list[bytes | None]:
        """The bytes kept for each of them."""
        found = list(map(self._young.get, keys))
        return [self.find(key) for key in keys] if None in found else found

    def keep(self, key: Hashable, data: bytes) -> bytes:
        """Keeps the bytes, and gives them back."""
        if len(data) <= self._bytes:
            if self._size + len(data) > self._bytes or len(self._young) >= self._entries:
                self._old, self._young, self._size = self._young, {}, 0
            self._young[key] = data
            self._size += len(data)
        return data

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The bytes kept for something equal to `key`, made now where there are none."""
        found = self.find(key)
        return self.keep(key, make()) if found is None else found

    def tools(self, tools: tuple[ToolSpec, ...], make: Callable[[], bytes]) -> bytes:
        """The bytes of a list of tools. Those of one agent are the same objects from call to call, and not looked up."""
        known, data = self._last_tools
        if tools != known:
            data = self.get(tuple((tool.name, tool.description, bytes(tool.schema)) for tool in tools), make)
            self._last_tools = tools, data
        return data

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
