"""What a function takes, as JSON Schema and as a reader of JSON, both from its type hints.

The two come from one msgspec Struct, so whatever the schema admits the reader turns into the types that the function
asks for: Structs, dataclasses, TypedDicts and enums included.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from atlas.kernel.errors import Invalid
from atlas.kernel.tool import EFFECT_KEY

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_HINT: Final = (
    "Use text, numbers, booleans, lists, dicts, Literal, Optional, enums, dataclasses, TypedDicts or Structs."
)


class Signature(msgspec.Struct, frozen=True):
    """A function's parameters: their schema, and the type that JSON arguments are read into."""

    schema: dict[str, Any]
    reader: type[msgspec.Struct]

    def read(self, args: bytes) -> dict[str, Any]:
        """The arguments that are given, each of the type its parameter asks for; Invalid when they do not fit."""
        try:
            value = msgspec.json.decode(args or b"{}")
            read = self._converted(value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Invalid(f"the arguments do not fit: {error}", code="tool_arguments") from error
        names = self.reader.__struct_fields__
        return {name: given for name in names if (given := getattr(read, name)) is not msgspec.UNSET}

    def _converted(self, value: Any) -> Any:
        try:
            return msgspec.convert(value, self.reader, str_keys=True)
        except msgspec.ValidationError:
            # For JSON Schema 1.0 is a whole number. Second, because this would take the text "null" for None, too.
            return msgspec.convert(value, self.reader, strict=False)


def signature_of(
    function: Callable[..., Any], described: Mapping[str, str], where: str, hidden: tuple[str, ...] = ()
) -> Signature:
    """What `function` takes; Invalid, naming the parameter and the place, when it cannot be offered to a model."""
    written = inspect.signature(function).parameters
    parameters = [one for one in written.values() if one.name not in (EFFECT_KEY, *hidden)]
    hints = _hints(function, where)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in parameters:
        hint = _hint(parameter, hints, described, where)
        is_required = parameter.default is inspect.Parameter.empty
        fields.append((parameter.name, hint) if is_required else (parameter.name, hint, msgspec.UNSET))
    try:
        reader = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"the parameters of {function.__name__} cannot be offered to a model: {_said(error)}"
        raise _refused(message, where, "Give each a plain name.") from error
    schema = _schema(function.__name__, reader, where)
    for parameter in parameters:
        _show_default(schema["properties"][parameter.name], parameter.default)
    return Signature(schema, reader)


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise _refused(
            f"the type hints of {function.__name__} cannot be read: {error}",
            where,
            "Import the types it names where the tool is defined, not only for type checkers.",
        ) from error


def _hint(parameter: inspect.Parameter, hints: Mapping[str, Any], described: Mapping[str, str], where: str) -> Any:
    """The parameter's type with its description, and with room for `not given` when it has a default."""
    name = parameter.name
    if parameter.kind not in _NAMED:
        message = f"parameter {parameter} cannot be offered to a model"
        raise _refused(message, where, "Give every parameter a name; no *args, **kwargs or positional-only ones.")
    if name not in hints:
        hint = f"Write for example `{name}: str`."
        if name == "self":
            hint = "A method becomes a tool when it is bound: tools=[tool(...)(thing.method)]."
        raise _refused(f"parameter {name} has no type hint", where, hint)
    hint = hints[name]
    words = [one for one in get_args(hint)[1:] if isinstance(one, str)] if get_origin(hint) is Annotated else []
    text = " ".join(words) or described.get(name, "")
    _check(name, hint, where)
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if parameter.default is None and NoneType not in get_args(plain):
        hint = hint | None  # as people write it: what the function takes when it is left out, it takes when it is said
    if parameter.default is not inspect.Parameter.empty:
        hint = hint | msgspec.UnsetType
    return Annotated[hint, msgspec.Meta(description=text)] if text else hint


def _check(name: str, hint: Any, where: str) -> None:
    """Refuses a hint that JSON cannot hold, alone, so that the message names its parameter."""
    try:
        msgspec.json.schema(hint)
    except (TypeError, ValueError, NameError) as error:
        raise _refused(
            f"parameter {name} has a type that a model cannot fill in: {_said(error)}", where, _HINT
        ) from error


def _schema(name: str, reader: type[msgspec.Struct], where: str) -> dict[str, Any]:
    try:
        whole = msgspec.json.schema(reader)
    except (TypeError, ValueError) as error:
        raise _refused(
            f"the parameters of {name} cannot be offered to a model: {_said(error)}", where, _HINT
        ) from error
    parts: dict[str, Any] = whole["$defs"]
    top: dict[str, Any] = parts.pop(whole["$ref"].rpartition("/")[2])
    for part in (top, *parts.values()):
        part.pop("title", None)
    return {**top, "$defs": parts} if parts else top


def _show_default(part: dict[str, Any], default: Any) -> None:
    if default is inspect.Parameter.empty:
        return
    with contextlib.suppress(TypeError, ValueError):  # the function has it; JSON need not be able to hold it
        value = msgspec.to_builtins(default)
        if not isinstance(value, float) or math.isfinite(value):
            part["default"] = value


def _said(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]


def _refused(message: str, where: str, hint: str) -> Invalid:
    return Invalid(message, where=where, hint=hint, code="tool_signature")
