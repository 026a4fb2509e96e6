"""Is a JSON Schema sound? What is wrong with it, and where inside it.

The standard's own meta-schema finds most mistakes; references are followed here, because they may only point
into their own schema (nothing is ever fetched) and the validator does not say where a broken one is.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from atlas.kernel.contract import Finding, Step
from atlas.vault.source import shorten
from atlas.vault.suggest import nearest

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator, ValidationError

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_FINDINGS = 100

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_HOLDS_SCHEMA = (
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_HOLDS_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_HOLDS_MAP = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")

Schema = dict[str, Any]
Path = tuple[Step, ...]


def schema_findings(schema: Any) -> list[Finding]:
    """What is wrong with a JSON Schema that is a JSON value; empty when it is sound."""
    findings = [*_meta_findings(schema), *_reference_findings(schema)]
    return findings or _compile_findings(schema)


def validator_for(schema: Schema, mask: str | None = None) -> Draft202012Validator:
    """The validator of a sound schema; `mask` stands in its messages for the value."""
    from jsonschema_rs import Draft202012Validator

    return Draft202012Validator(schema, validate_formats=True, mask=mask, offline=True)


class References:
    """Follows local references; remembers the anchors it has looked up."""

    def __init__(self) -> None:
        self._anchors: dict[int, dict[str, Schema]] = {}

    def resolve(self, ref: str, root: Schema) -> Any:
        """The part of `root` that `ref` names, or None."""
        fragment = unquote(ref.removeprefix("#"))
        if not fragment or fragment.startswith("/"):
            return _follow_pointer(fragment, root)
        if id(root) not in self._anchors:
            self._anchors[id(root)] = {
                anchor: part
                for _, part, _ in _subschemas(root, (), root)
                for keyword in ("$anchor", "$dynamicAnchor")
                if isinstance(anchor := part.get(keyword), str)
            }
        return self._anchors[id(root)].get(fragment)


def _follow_pointer(pointer: str, root: Schema) -> Any:
    found: Any = root
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        match found:
            case dict() if key in found:
                found = found[key]
            case list() if re.fullmatch("0|[1-9][0-9]{0,8}", key) and int(key) < len(found):
                found = found[int(key)]
            case _:
                return None
    return found


def _meta_findings(schema: Any) -> list[Finding]:
    unique: dict[tuple[Path, str], Finding] = {}  # every vocabulary reports the same mistake once more
    for error in itertools.islice(_meta_schema().iter_errors(schema), MAX_FINDINGS):
        path = tuple(error.instance_path)
        unique.setdefault((path, error.message), _meta_finding(path, error))
    return list(unique.values())


@functools.cache
def _meta_schema() -> Draft202012Validator:
    return validator_for({"$ref": DIALECT})


def _meta_finding(path: Path, error: ValidationError) -> Finding:
    if path and path[-1] == "type" and error.kind.name == "anyOf":
        names = error.instance if isinstance(error.instance, list) else [error.instance]
        wrong = next((name for name in names if name not in _TYPES), names)
        guess = nearest(wrong, _TYPES) if isinstance(wrong, str) else ""
        hint = f"did you mean {guess}?" if guess else f"the types are {', '.join(_TYPES)}"
        return Finding(path, "json_schema", f"{shorten(str(wrong))} is not a JSON Schema type", hint)
    return Finding(path, "json_schema", f"not a valid JSON Schema: {shorten(error.message, 200)}")


def _reference_findings(schema: Any) -> Iterator[Finding]:
    references = References()
    for path, part, root in _subschemas(schema, (), schema):
        dialect = part.get("$schema", DIALECT)
        if isinstance(dialect, str) and dialect.removesuffix("#") != DIALECT:
            message = f"the JSON Schema dialect {shorten(dialect)} is not supported"
            yield Finding((*path, "$schema"), "json_schema_dialect", message, f"use {DIALECT} or leave it out")
        for keyword in ("$ref", "$dynamicRef"):
            ref = part.get(keyword)
            if not isinstance(ref, str):
                continue
            if not ref.startswith("#"):
                message = (
                    f"{keyword} points to {shorten(ref) or 'nothing'}; only parts of the schema itself can be used"
                )
                yield Finding((*path, keyword), "json_schema_remote_ref", message, "copy the part into $defs")
            elif references.resolve(ref, root) is None:
                yield Finding((*path, keyword), "json_schema_ref", f"there is no {shorten(ref)} in this schema")


def _compile_findings(schema: Schema) -> list[Finding]:
    from jsonschema_rs import ReferencingError, ValidationError

    try:
        validator_for(schema)
    except ValidationError as error:
        message = f"not a valid JSON Schema: {shorten(error.message, 200)}"
        return [Finding(tuple(error.instance_path), "json_schema", message)]
    except (ValueError, ReferencingError) as error:
        return [Finding((), "json_schema", f"not a valid JSON Schema: {shorten(str(error), 200)}")]
    return []


def _subschemas(schema: Any, path: Path, root: Schema) -> Iterator[tuple[Path, Schema, Schema]]:
    """Every place in `schema` that is a schema (not data that looks like one), with the root its $refs mean."""
    if not isinstance(schema, dict):
        return
    root = schema if "$id" in schema else root
    yield path, schema, root
    for key in _HOLDS_SCHEMA:
        yield from _subschemas(schema.get(key), (*path, key), root)
    for key in _HOLDS_LIST:
        parts = schema.get(key)
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            yield from _subschemas(part, (*path, key, index), root)
    for key in _HOLDS_MAP:
        named = schema.get(key)
        for name, part in named.items() if isinstance(named, dict) else ():
            yield from _subschemas(part, (*path, key, name), root)
