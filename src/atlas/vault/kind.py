"""What the loader asks about the types that files are read against."""

from __future__ import annotations

import functools

import msgspec
from msgspec import inspect

from atlas.vault.node import Mapping, Node, Scalar, Sequence


@functools.cache
def type_info(kind: type[msgspec.Struct]) -> inspect.StructType:
    """The structure of a file's type."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info


@functools.cache
def homes(kind: type[msgspec.Struct]) -> dict[str, list[str]]:
    """For every key that a file may hold, the dotted names of the mappings it may stand in, outermost first."""
    found: dict[str, list[str]] = {}
    level = [("", type_info(kind))]
    while level:
        below: list[tuple[str, inspect.StructType]] = []
        for name, struct in level:
            for field in struct.fields:
                if name:
                    found.setdefault(field.encode_name, []).append(name)
                child = bare(field.type)
                if isinstance(child, inspect.StructType):
                    below.append((f"{name}.{field.encode_name}".removeprefix("."), child))
        level = below
    return found


def bare(kind: inspect.Type) -> inspect.Type:
    """The type without its descriptions and without the option of being absent."""
    match kind:
        case inspect.Metadata():
            return bare(kind.type)
        case inspect.UnionType():
            options = present(kind)
            return bare(options[0]) if len(options) == 1 else kind
    return kind


def present(kind: inspect.UnionType) -> list[inspect.Type]:
    """What a union may be other than absent."""
    return [option for option in kind.types if not isinstance(option, inspect.NoneType)]


def fits(node: Node, kind: inspect.Type) -> bool:
    """True when a node has the shape of a type, whatever it holds."""
    match bare(kind):
        case inspect.AnyType():
            return True
        case inspect.StructType() | inspect.DictType():
            return isinstance(node, Mapping)
        case inspect.CollectionType():
            return isinstance(node, Sequence)
    return isinstance(node, Scalar)
