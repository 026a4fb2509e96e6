"""One strict loader for every file people write: YAML bytes against a msgspec type.

The last part of reading a file. What a value means depends on the type that is expected (`version: 1.10` is a
text, `on` is a switch only where a switch is meant). All problems of a file are found in one go, each with
its line, column, code and, where one can be guessed, a suggestion. `load` returns a value of the type or raises
Invalid; no bytes whatsoever make it do anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from atlas.kernel.contract import Finding
from atlas.kernel.errors import Invalid, Problem
from atlas.vault.kind import fits, homes, present, type_info
from atlas.vault.node import Broken, Mapping, Node, Scalar, Sequence, parse
from atlas.vault.place import Path, Place
from atlas.vault.scalar import NULLS, Complaint, Extra, expectation, no_value, read_scalar
from atlas.vault.source import MAX_PROBLEMS, Source, shorten
from atlas.vault.suggest import nearest

T = TypeVar("T", bound=msgspec.Struct)
_NO_EXTRA: Extra = {}


def load(data: bytes, kind: type[T], *, path: str, rules: Callable[[T], Iterable[Finding]] | None = None) -> T:
    """The content of a file as a `kind` that breaks none of `rules`; raises Invalid with every problem of the file."""
    document = parse(data, path)
    reader = _Reader(document.source, kind)
    partial = reader.read_root(document.root)
    value, complaint = _convert(partial, kind)
    if value is not None and rules is not None:
        reader.apply(rules(value), document.root)
    found = dict.fromkeys((*document.problems, *reader.problems))  # an alias can show the same problem twice
    problems = sorted(found, key=lambda problem: (problem.line, problem.column))
    if problems:
        raise _invalid(problems)
    if value is None:  # the reader and msgspec disagree, which the tests say cannot be
        raise _invalid([Problem("invalid", complaint, path, 1, 1)])
    return value


def _invalid(problems: list[Problem]) -> Invalid:
    first, more = problems[0], len(problems) - 1
    message = first.message + (f" (and {more} more problem{'s' if more > 1 else ''})" if more else "")
    return Invalid(message, problems=tuple(problems), code=first.code)


def _convert(partial: Any, kind: type[T]) -> tuple[T | None, str]:
    """The value, also of a file with problems if what is sound of it is complete; else None and why."""
    try:
        return msgspec.convert(partial, kind), ""
    except msgspec.ValidationError as error:
        return None, str(error)


class _Bad:
    """Stands for a value that was complained about, and is left out of its parent."""


_BAD = _Bad()
_ANYTHING = inspect.AnyType()


class _Reader:
    """Nodes to plain values for one file; every method returns _BAD for what it complained about."""

    def __init__(self, source: Source, kind: type[msgspec.Struct]) -> None:
        self.problems: list[Problem] = []
        self._source = source
        self._kind = kind
        self._bad: set[Path] = set()

    def read_root(self, root: Node | None) -> Any:
        kind = type_info(self._kind)
        required = [field.encode_name for field in kind.fields if field.required]
        hint = f"start with {required[0]}:" if required else ""
        if root is None:
            if required:
                self._complain(Place(Broken(0), 0, ()), "empty_file", "the file is empty", hint)
            return {}
        place = Place(root, root.at, ())
        if not isinstance(root, Mapping | Broken):
            message = f"the file must hold keys and values, not {place.content}"
            return self._complain(place, "not_a_mapping", message, hint)
        return self._read(place, kind)

    def apply(self, findings: Iterable[Finding], root: Node | None) -> None:
        """Adds what the rules found, except where they looked at a value that was wrong already."""
        if root is None:
            return
        whole = Place(root, root.at, ())
        for found in findings:
            looked_at = (found.path, *found.also)
            if not any(path[: len(bad)] == bad for path in looked_at for bad in self._bad):
                self._complain(whole.descend(found.path), found.code, found.message, found.hint)

    def _read(self, place: Place, kind: inspect.Type, extra: Extra = _NO_EXTRA) -> Any:
        if isinstance(place.node, Broken):
            self._bad.add(place.path)
            return _BAD
        match kind:
            case inspect.Metadata():
                return self._read(place, kind.type, {**extra, **kind.extra} if kind.extra else extra)
            case inspect.UnionType():
                return self._union(place, kind, extra)
            case inspect.StructType():
                return self._struct(place, kind)
            case inspect.DictType():
                return self._dict(place, kind, extra)
            case inspect.ListType() | inspect.VarTupleType():
                return self._list(place, kind)
            case inspect.AnyType():
                return self._any(place)
        return self._scalar(place, kind, extra)

    def _union(self, place: Place, kind: inspect.UnionType, extra: Extra) -> Any:
        if kind.includes_none and isinstance(place.node, Scalar) and place.node.plain and place.node.text in NULLS:
            return None
        options = present(kind)
        chosen = next((option for option in options if fits(place.node, option)), options[0])
        return self._read(place, chosen, extra)

    def _struct(self, place: Place, kind: inspect.StructType) -> Any:
        if not isinstance(place.node, Mapping):
            return self._wrong_type(place, "keys and values")
        fields = {field.encode_name: field for field in kind.fields}
        values: dict[str, Any] = {}
        meant: set[str] = set()  # given, or misspelt: a misspelt key is not missing as well
        for key, node in place.node.entries:
            child = place.entry(key, node)
            if key.text not in fields:
                meant.add(self._unknown_key(child._replace(at=key.at), key.text, fields))
                continue
            meant.add(key.text)
            value = self._read(child, fields[key.text].type)
            if value is not _BAD:
                values[key.text] = value
        for name, field in fields.items():
            if field.required and name not in meant:
                self._complain(place, "missing_key", f"{place.name} needs the key {name}", f"add {name}:", bad=False)
        return values

    def _unknown_key(self, place: Place, key: str, fields: Iterable[str]) -> str:
        """Complains, and returns the key of `fields` that was probably meant, or an empty text."""
        if len(self.problems) >= MAX_PROBLEMS:
            return ""  # guessing is slow, and nobody would see the guess
        parent = ".".join(map(str, place.path[:-1]))
        elsewhere = [home for home in homes(self._kind).get(key, ()) if home != parent]
        names = tuple(fields)
        guess = "" if elsewhere else nearest(key, names)
        if names == ("schema",) and not guess:
            hint = f"a JSON Schema stands under {parent}.schema"
        elif elsewhere:
            hint = f"{key} belongs under {elsewhere[0]}"
        elif guess:
            hint = f"did you mean {guess}?"
        else:
            hint = f"the keys are {', '.join(names)}"
        where = f"in {parent}" if parent else "at the top of the file"
        self._complain(place, "unknown_key", f"unknown key {shorten(key)} {where}", hint, bad=False)
        return guess

    def _dict(self, place: Place, kind: inspect.DictType, extra: Extra) -> Any:
        if not isinstance(place.node, Mapping):
            return self._wrong_type(place, extra.get("expected", "keys and values"))
        values: dict[str, Any] = {}
        is_sound = True
        for key, node in place.node.entries:
            child = place.entry(key, node)
            name = self._read(child._replace(node=key, at=key.at), kind.key_type)
            value = self._read(child, kind.value_type)
            if name is _BAD or value is _BAD:
                is_sound = False
            else:
                values[name] = value
        if extra.get("json_schema"):
            is_sound = is_sound and self._is_sound_schema(place, values)
            return values if is_sound else _BAD
        return self._of_length(place, kind, len(place.node.entries), values)

    def _is_sound_schema(self, place: Place, schema: dict[str, Any]) -> bool:
        from atlas.vault.validate import unsound

        findings = unsound(schema)
        for found in findings:
            self._complain(place.descend(found.path), found.code, f"{place.name}: {found.message}", found.hint)
        return not findings

    def _list(self, place: Place, kind: inspect.CollectionType) -> Any:
        if not isinstance(place.node, Sequence):
            text = place.node.text if isinstance(place.node, Scalar) else ""
            return self._wrong_type(place, "a list", f"write [{shorten(text)}]" if text else "")
        items = [self._read(place.item(index, node), kind.item_type) for index, node in enumerate(place.node.items)]
        return self._of_length(place, kind, len(items), [item for item in items if item is not _BAD])

    def _of_length(self, place: Place, kind: inspect.CollectionType | inspect.DictType, length: int, value: Any) -> Any:
        if kind.min_length is not None and length < kind.min_length:
            return self._complain(place, "bad_value", f"{place.name} needs at least {kind.min_length}, not {length}")
        if kind.max_length is not None and length > kind.max_length:
            return self._complain(place, "bad_value", f"{place.name} takes at most {kind.max_length}, not {length}")
        return value

    def _any(self, place: Place) -> Any:
        match place.node:
            case Sequence(items=items):
                values = [self._read(place.item(index, item), _ANYTHING) for index, item in enumerate(items)]
                return _BAD if _BAD in values else values
            case Mapping(entries=entries):
                named = {key.text: self._read(place.entry(key, value), _ANYTHING) for key, value in entries}
                return _BAD if _BAD in named.values() else named
        return self._scalar(place, _ANYTHING, _NO_EXTRA)

    def _scalar(self, place: Place, kind: inspect.Type, extra: Extra) -> Any:
        if not isinstance(place.node, Scalar):
            return self._wrong_type(place, extra.get("expected", expectation(kind)))
        value = read_scalar(place.node, kind, place.name, extra)
        return self._complain(place, *value) if isinstance(value, Complaint) else value

    def _wrong_type(self, place: Place, expected: str, hint: str = "") -> _Bad:
        if isinstance(place.node, Scalar) and place.node.is_empty:
            return self._complain(place, *no_value(place.name))
        message = f"{place.name} must be {expected}, not {place.content}"
        return self._complain(place, "wrong_type", message, hint)

    def _complain(self, place: Place, code: str, message: str, hint: str = "", *, bad: bool = True) -> _Bad:
        if bad:
            self._bad.add(place.path)
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(self._source.problem(code, message, place.at, hint))
        return _BAD
