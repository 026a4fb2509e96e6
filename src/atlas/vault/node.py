"""YAML tokens to located nodes, with the traps of the format refused or bounded.

The middle of reading a file: it knows YAML and positions but no schema. Nodes are composed here, not by the
YAML library, so that depth and size are bounded while reading, aliases are measured before anybody expands
them, and no tag can construct anything. What concerns a single value is collected; what makes the rest of
the file unreadable is raised at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from atlas.kernel.errors import Invalid, Problem
from atlas.vault.source import MAX_PROBLEMS, Source, decode, refusal, shorten
from atlas.vault.syntax import Token, tokens

MAX_DEPTH = 64
MAX_NODES = 100_000

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class Scalar(msgspec.Struct, frozen=True):
    """A text; `plain` when it stands without quotes, so that its meaning depends on what is expected."""

    at: int
    text: str
    plain: bool
    size: int = 1
    height: int = 1

    @property
    def is_empty(self) -> bool:
        """True for a key with nothing after its colon."""
        return self.plain and not self.text


class Sequence(msgspec.Struct, frozen=True):
    """A list; `size` and `height` count its aliases as if they were written out."""

    at: int
    items: tuple[Node, ...]
    flow: bool
    size: int
    height: int


class Mapping(msgspec.Struct, frozen=True):
    """Keys and values in the order of the file; no key occurs twice."""

    at: int
    entries: tuple[tuple[Scalar, Node], ...]
    flow: bool
    size: int
    height: int


class Broken(msgspec.Struct, frozen=True):
    """A value that was already complained about; nothing more is said about it."""

    at: int
    size: int = 1
    height: int = 1


Node = Scalar | Sequence | Mapping | Broken


class Document(msgspec.Struct, frozen=True):
    """A parsed file: its root (None when it holds only comments) and what is wrong with single values."""

    source: Source
    root: Node | None
    problems: tuple[Problem, ...]


def parse(data: bytes, path: str) -> Document:
    """The nodes of one YAML document; raises Invalid for bytes that are not one."""
    source = decode(data, path)
    composer = _Composer(source)
    root = composer.document()
    return Document(source, root, tuple(composer.problems))


class _Composer:
    """Tokens to nodes; one instance reads one document."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self._tokens = tokens(source)
        self._anchors: dict[str, Node | None] = {}  # None while the anchored node is still open
        self._count = 0

    def document(self) -> Node | None:
        next(self._tokens)  # the start of the stream
        if next(self._tokens).kind != "document":
            return None
        root = self._node(next(self._tokens), depth=1)
        next(self._tokens)  # the end of the document
        after = next(self._tokens)
        if after.kind == "document":
            hint = "keep one document per file; remove the --- line"
            raise self._fatal("several_documents", "a second document starts here", after.at, hint)
        return None if isinstance(root, Scalar) and root.is_empty else root

    def _node(self, token: Token, depth: int) -> Node:
        self._count += 1
        if depth > MAX_DEPTH:
            raise self._fatal("too_deep", f"values are nested more than {MAX_DEPTH} levels deep", token.at)
        if self._count > MAX_NODES:
            raise self._fatal("too_many_values", f"the file has more than {MAX_NODES:,} values", token.at)
        if token.kind == "alias":
            return self._alias(token, depth)
        if token.anchor:
            self._anchors[token.anchor] = None
        node: Node
        match token.kind:
            case "scalar":
                node = self._scalar(token)
            case "sequence":
                node = self._sequence(token, depth)
            case _:
                node = self._mapping(token, depth)
        if token.tag:
            self._complain("yaml_tag", f"the tag {shorten(token.tag)} is not allowed", token.at, "write a plain value")
            node = Broken(token.at)
        if token.anchor:
            self._anchors[token.anchor] = node
        return node

    def _scalar(self, token: Token) -> Scalar | Broken:
        if bad := _UNSTORABLE.search(token.text):
            message = f"an escape puts U+{ord(bad[0]):04X} into this text, which cannot be stored"
            self._complain("control_character", message, token.at)
            return Broken(token.at)
        return Scalar(token.at, token.text, plain=not token.quote)

    def _sequence(self, token: Token, depth: int) -> Sequence:
        items = tuple(self._node(child, depth + 1) for child in self._children())
        return Sequence(token.at, items, token.flow, *self._measure(items, token.at))

    def _mapping(self, token: Token, depth: int) -> Mapping:
        entries: dict[str, tuple[Scalar, Node]] = {}
        children = self._children()
        for child in children:
            key = self._node(child, depth + 1)
            value = self._node(next(children), depth + 1)
            if (name := self._usable_key(key, entries)) is not None:
                entries[name.text] = (name, value)
        nodes = [node for entry in entries.values() for node in entry]
        return Mapping(token.at, tuple(entries.values()), token.flow, *self._measure(nodes, token.at))

    def _children(self) -> Iterator[Token]:
        for token in self._tokens:
            if token.kind == "end":
                return
            yield token

    def _usable_key(self, key: Node, entries: dict[str, tuple[Scalar, Node]]) -> Scalar | None:
        match key:
            case Broken():
                pass
            case Scalar(text="<<", plain=True):
                self._complain("yaml_merge_key", "merge keys (<<) are not supported", key.at, "write the keys out")
            case Scalar(text="", plain=True) | Sequence() | Mapping():
                self._complain("yaml_key", "a key must be a text", key.at)
            case Scalar() if key.text in entries:
                first, _ = self.source.position(entries[key.text][0].at)
                again, _ = self.source.position(key.at)
                message = f"the key {shorten(key.text)} is on line {first} and again on line {again}"
                self._complain("duplicate_key", message, key.at, "remove one of them")
            case Scalar():
                return key
        return None

    def _alias(self, token: Token, depth: int) -> Node:
        name = shorten(token.anchor)
        if token.anchor not in self._anchors:
            self._complain("undefined_alias", f"there is no anchor &{name} above this alias", token.at)
            return Broken(token.at)
        target = self._anchors[token.anchor]
        if target is None:
            self._complain("alias_cycle", f"the alias *{name} would contain itself", token.at)
            return Broken(token.at)
        if depth + target.height - 1 > MAX_DEPTH:
            raise self._fatal("too_deep", f"this alias nests values more than {MAX_DEPTH} levels deep", token.at)
        return target

    def _measure(self, nodes: Iterable[Node], at: int) -> tuple[int, int]:
        """Size and height with aliases written out, refused before anybody does so."""
        size, height = 1, 0
        for node in nodes:
            size += node.size
            height = max(height, node.height)
        if size > MAX_NODES:
            raise self._fatal("too_many_values", f"with its aliases this has more than {MAX_NODES:,} values", at)
        return size, height + 1

    def _complain(self, code: str, message: str, offset: int, hint: str = "") -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(self.source.problem(code, message, offset, hint))

    def _fatal(self, code: str, message: str, offset: int, hint: str = "") -> Invalid:
        return refusal(self.source.problem(code, message, offset, hint))
