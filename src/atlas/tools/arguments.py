"""A model's call before it runs: is there such a tool, and do the arguments fit? If not, words it can act on.

Nothing here raises: whatever a model wrote, what comes of it is either a call that can be performed or a result that
says what to write instead.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, Protocol

import msgspec

from atlas.kernel.model import MAX_LEVELS, ToolCall, ToolResult, is_too_deep
from atlas.kernel.tool import ToolDefinition

_COMPLAINTS: Final = 10
_AROUND: Final = 30
_NAMES: Final = 40


class SchemaCheck(Protocol):
    """A compiled schema."""

    def complaints(self, value: Any) -> list[str]:
        """Everything about `value` that breaks it, each with its path; empty when nothing does."""
        ...


class Checked(msgspec.Struct, frozen=True):
    """A call whose tool exists and whose arguments fit it; `args` are those that are performed and recorded."""

    call: ToolCall
    definition: ToolDefinition
    args: bytes
    value: dict[str, Any]


class ArgumentCheck:
    """Checks calls against what tools declare; each schema is compiled once."""

    def __init__(self, compile_schema: Callable[[dict[str, Any]], SchemaCheck]) -> None:
        self._compile = compile_schema
        self._compiled: dict[bytes, tuple[SchemaCheck, dict[str, Any]]] = {}
        self._json = json.JSONDecoder(parse_constant=_no_constant)

    def check(self, call: ToolCall, tools: Mapping[str, ToolDefinition]) -> Checked | ToolResult:
        """The call, ready to be performed, or the result that tells the model what is wrong with it."""
        definition = tools.get(call.name)
        if definition is None:
            return _wrong(call, _unknown(call.name, tools))
        compiled, schema = self._schema(definition)
        if is_too_deep(call.args):
            problem = f"The arguments nest deeper than {MAX_LEVELS} levels."
            return _wrong(call, f"{problem}\n{_takes(call.name, schema)}")
        text = call.args.strip() or "{}"
        # json.loads makes a decoder for each text, but it knows what to say of a byte order mark.
        decode = json.loads if text[0] == "\ufeff" else self._json.decode
        try:
            value = decode(text)
        except json.JSONDecodeError as error:
            return _wrong(call, f"{_place(error)}\n{_takes(call.name, schema)}")
        except ValueError as error:
            return _wrong(call, f"The arguments are not JSON: {error}.\n{_takes(call.name, schema)}")
        if not isinstance(value, dict):
            return _wrong(call, f"The arguments must be one JSON object.\n{_takes(call.name, schema)}")
        complaints = compiled.complaints(value)
        if complaints:
            shown = "\n".join(f"- {one}" for one in complaints[:_COMPLAINTS])
            return _wrong(call, f"The arguments do not fit:\n{shown}\n{_takes(call.name, schema)}")
        return Checked(call, definition, msgspec.json.encode(value), value)

    def _schema(self, definition: ToolDefinition) -> tuple[SchemaCheck, dict[str, Any]]:
        raw = bytes(definition.spec.schema)
        found = self._compiled.get(raw)
        if found is None:
            schema = msgspec.json.decode(raw)
            found = self._compiled[raw] = (self._compile(schema), schema)
        return found


def _wrong(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(call.id, text, is_error=True)


def _unknown(name: str, tools: Mapping[str, ToolDefinition]) -> str:
    by_fold = {known.casefold(): known for known in tools}
    close = difflib.get_close_matches(name[:64].casefold(), by_fold, n=1, cutoff=0.6)
    guess = f" Did you mean {by_fold[close[0]]}?" if close else ""
    names = sorted(tools)
    shown = ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")
    return f"There is no tool {name[:64]!r}.{guess} The tools are: {shown or 'none'}."


def _place(error: json.JSONDecodeError) -> str:
    text, at = error.doc, error.pos
    if at >= len(text):
        return f"The arguments are not JSON: they end too early, after {text[-_AROUND:]!r}."
    around = f"{text[max(0, at - _AROUND) : at]!r} and before {text[at : at + _AROUND]!r}"
    return f"The arguments are not JSON: {error.msg} at line {error.lineno}, column {error.colno}, after {around}."


def _takes(name: str, schema: dict[str, Any]) -> str:
    """The tool's parameters in one line."""
    required = schema.get("required", ())
    parts = [
        f"{each} ({_kind(part, schema)}{', required' if each in required else ''})"
        for each, part in schema.get("properties", {}).items()
    ]
    return f"{name} takes {', '.join(parts) or 'no arguments'}."


def _kind(part: dict[str, Any], schema: dict[str, Any]) -> str:
    if "$ref" in part:
        return _kind(schema["$defs"][part["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in part:
        return " or ".join(_kind(one, schema) for one in part["anyOf"])
    if "enum" in part:
        return "one of " + ", ".join(json.dumps(one) for one in part["enum"])
    return str(part.get("type", "any"))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
