"""JSON Schema 2020-12 for agent input and output: fill in defaults, check a value.

Pure functions of their arguments. Values are checked to be JSON before the validator sees them: NaN, sets and
endless nesting are not, and the validator would take some of them for valid and crash on others.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from atlas.kernel.contract import Finding, Step
from atlas.kernel.errors import Invalid, Problem
from atlas.vault.schema import Path, References, Schema, schema_findings, validator_for
from atlas.vault.source import shorten

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

MAX_DEPTH = 100
MAX_DEFAULTS = 10_000
MAX_PROBLEMS = 100
MAX_INTEGER_BITS = 1024


class Validator:
    """A sound schema, ready to fill in defaults and to check values."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._validator = validator_for(schema, mask="the value")

    def apply_defaults(self, value: Any) -> Any:
        """`value` with every absent property that has a default; what is there stays, and `value` is not changed."""
        if problems := not_json(value):
            raise Invalid(problems[0].message, problems=tuple(problems), code="not_json")
        return _Defaults().fill(value, self.schema, self.schema)

    def check(self, value: Any) -> list[Problem]:
        """Everything about `value` that breaks the schema; each problem's `path` is a JSONPath."""
        if problems := not_json(value):
            return problems
        if self._validator.is_valid(value):
            return []
        return [_violation(error) for error in itertools.islice(self._validator.iter_errors(value), MAX_PROBLEMS)]

    def complaints(self, value: Any) -> list[str]:
        """The same as `check`, each problem as one line: its path, then what is wrong."""
        return [f"{problem.path}: {problem.message}" for problem in self.check(value)]


def compile_schema(schema: Schema) -> Validator:
    """A validator for `schema`; raises Invalid that lists what is wrong with the schema."""
    if findings := unsound(schema):
        problems = tuple(Problem(each.code, each.message, json_path(each.path), hint=each.hint) for each in findings)
        raise Invalid(f"the JSON Schema is not valid: {problems[0].message}", problems=problems, code="json_schema")
    return Validator(schema)


def unsound(schema: Any) -> list[Finding]:
    """Why `schema` cannot be used, each reason with its path inside it; empty when it can."""
    if problems := not_json(schema):
        return [Finding((), "json_schema", problems[0].message)]
    if findings := schema_findings(schema):
        return findings
    try:
        _Defaults().fill({}, schema, schema)
    except Invalid as endless:
        return [Finding((), endless.reason, endless.message, endless.hint)]
    return []


def json_path(path: Path) -> str:
    """`path` as JSONPath, `$` being the whole value."""
    return "$" + "".join(_json_step(step) for step in path)


def _json_step(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", step):
        return f".{step}"
    escaped = step.replace("\\", "\\\\").replace("'", "\\'")
    return f"['{escaped}']"


def _violation(error: ValidationError) -> Problem:
    keyword = re.sub("([A-Z])", r"_\1", error.kind.name).lower()
    message = error.message
    if isinstance(error.instance, str | int | float | bool | None) and "the value" in message:
        message += f" (it is {shorten(_literal(error.instance))})"
    return Problem(f"schema_{keyword}", shorten(message, 300), json_path(tuple(error.instance_path)))


def _literal(value: str | float | bool | None) -> str:
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            return f'"{value}"'
    return str(value)


def not_json(value: Any) -> list[Problem]:
    """Why `value` is not a JSON value: NaN, other types, keys that are no text, too deep. Empty when it is one."""
    return [] if _is_json(value, 0) else list(itertools.islice(_not_json(value, ()), MAX_PROBLEMS))


def _is_json(value: Any, depth: int) -> bool:
    """Whether `value` is one beyond doubt: a quick look, so that only what fails it is searched for its problems."""
    if depth > MAX_DEPTH:
        return False
    kind = type(value)
    if kind is str:
        return value.isascii() or not any(_not_text(value, ()))
    if kind is int:
        return bool(value.bit_length() <= MAX_INTEGER_BITS)
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        for key, item in value.items():
            if not (type(key) is str and _is_json(key, depth) and _is_json(item, depth + 1)):
                return False
        return True
    if kind is list or kind is tuple:
        for item in value:  # noqa: SIM110 - a generator would cost as much as what it looks at
            if not _is_json(item, depth + 1):
                return False
        return True
    return value is None or kind is bool


def _not_json(value: Any, path: Path) -> Iterator[Problem]:
    if len(path) > MAX_DEPTH:
        yield Problem("not_json", f"values are nested more than {MAX_DEPTH} levels deep", json_path(path))
        return
    match value:
        case None | bool():
            pass
        case str():
            yield from _not_text(value, path)
        case int() if value.bit_length() > MAX_INTEGER_BITS:
            yield Problem("not_json", f"a whole number has more than {MAX_INTEGER_BITS} bits", json_path(path))
        case float() if not math.isfinite(value):
            yield Problem("not_json", f"{value} is not a JSON number", json_path(path))
        case int() | float():
            pass
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _not_json(item, (*path, index))
        case dict():
            for key, item in value.items():
                if isinstance(key, str):
                    yield from _not_text(key, path)
                    yield from _not_json(item, (*path, key))
                else:
                    message = f"a key is of type {type(key).__name__}; JSON keys are texts"
                    yield Problem("not_json", message, json_path(path))
        case _:
            yield Problem("not_json", f"a value of type {type(value).__name__} is not JSON", json_path(path))


def _not_text(text: str, path: Path) -> Iterator[Problem]:
    try:
        text.encode()
    except UnicodeEncodeError:
        yield Problem("not_json", "a text contains half of a surrogate pair", json_path(path))


class _Defaults:
    """Fills defaults into one value, and gives up on schemas whose defaults have no end."""

    def __init__(self) -> None:
        self._references = References()
        self._inserted = 0
        self._depth = 0

    def fill(self, value: Any, schema: Any, root: Schema, seen: set[int] | None = None) -> Any:
        """`seen` holds the schemas already applied to this very value, so that a cycle of $ref ends."""
        seen = set() if seen is None else seen
        if not isinstance(schema, dict) or id(schema) in seen:
            return value
        seen.add(id(schema))
        root = schema if "$id" in schema else root
        self._depth += 1
        if self._depth > 2 * MAX_DEPTH or self._inserted > MAX_DEFAULTS:
            hint = "remove the default that contains itself again"
            raise Invalid("the defaults of this JSON Schema have no end", hint=hint, code="json_schema_default")
        match value:
            case dict():
                value = self._object(value, schema, root)
            case list() | tuple():
                value = self._array(value, schema, root)
        for other in self._applied(schema, root):
            value = self.fill(value, other, root, seen)
        self._depth -= 1
        return value

    def _object(self, value: dict[str, Any], schema: Schema, root: Schema) -> dict[str, Any]:
        filled = dict(value)
        properties = schema.get("properties")
        for name, part in properties.items() if isinstance(properties, dict) else ():
            if name not in filled:
                found, default = self._default(part, root, set())
                if not found:
                    continue
                self._inserted += 1
                filled[name] = copy.deepcopy(default)
            filled[name] = self.fill(filled[name], part, root)
        return filled

    def _array(self, value: list[Any] | tuple[Any, ...], schema: Schema, root: Schema) -> list[Any]:
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else []
        rest = schema.get("items")
        return [self.fill(item, first[n] if n < len(first) else rest, root) for n, item in enumerate(value)]

    def _default(self, schema: Any, root: Schema, seen: set[int]) -> tuple[bool, Any]:
        """Whether `schema` has a default, and it; the nearest one counts."""
        if not isinstance(schema, dict) or id(schema) in seen or len(seen) > MAX_DEPTH:
            return False, None
        if "default" in schema:
            return True, schema["default"]
        seen.add(id(schema))
        root = schema if "$id" in schema else root
        for other in self._applied(schema, root):
            found, default = self._default(other, root, seen)
            if found:
                return True, default
        return False, None

    def _applied(self, schema: Schema, root: Schema) -> Iterator[Any]:
        """The other schemas that apply to the same value."""
        if isinstance(ref := schema.get("$ref"), str):
            yield self._references.resolve(ref, root)
        if isinstance(parts := schema.get("allOf"), list):
            yield from parts
