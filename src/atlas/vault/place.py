"""Where a value stands in a file: how messages call it and which line they point at."""

from __future__ import annotations

from typing import NamedTuple

from atlas.kernel.contract import Step
from atlas.vault.node import Mapping, Node, Scalar, Sequence
from atlas.vault.source import shorten

Path = tuple[Step, ...]


class Place(NamedTuple):
    """A node, the offset that stands for it in messages, and the path that leads to it."""

    node: Node
    at: int
    path: Path

    @property
    def name(self) -> str:
        """The path as people write it: agent.capabilities[0]."""
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return shorten(text.removeprefix(".")) or "the file"

    @property
    def content(self) -> str:
        """What stands there, in words."""
        match self.node:
            case Scalar():
                return shorten(self.node.text) or "an empty text"
            case Sequence():
                return "a list"
        return "keys and values"

    def entry(self, key: Scalar, value: Node) -> Place:
        """The value of a key. A block below its key is best shown by the key; all else starts beside it."""
        is_beside = (isinstance(value, Scalar) and value.text) or getattr(value, "flow", False)
        return Place(value, value.at if is_beside else key.at, (*self.path, key.text))

    def item(self, index: int, value: Node) -> Place:
        """An item of a list."""
        return Place(value, value.at, (*self.path, index))

    def descend(self, path: Path) -> Place:
        """The place at the end of `path`, or the last one on the way that exists."""
        place = self
        for step in path:
            found: Place | None = None
            match place.node:
                case Mapping(entries=entries):
                    found = next((place.entry(key, value) for key, value in entries if key.text == step), None)
                case Sequence(items=items) if isinstance(step, int) and step < len(items):
                    found = place.item(step, items[step])
            if found is None:
                return place
            place = found
        return place
