"""What one YAML text means, given the type that is expected.

Where a text is meant it stays one, whatever it looks like (`no`, `1.10`, a date). Where a number or a switch is
meant it must be written as one, without quotes. Where anything may stand, the core rules of YAML 1.2 decide, by
which `no` and `on` are texts. There is no NaN and no infinity.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import inspect

from atlas.vault.node import Scalar
from atlas.vault.source import shorten
from atlas.vault.suggest import did_you_mean

_INTEGER = re.compile("[-+]?[0-9]{1,64}")
_OTHER_BASE = re.compile("0o[0-7]{1,64}|0x[0-9a-fA-F]{1,64}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LONGEST_NUMBER = 400

NULLS = frozenset({"null", "Null", "NULL", "~"})
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})


Extra = Mapping[str, Any]
"""What a type's `Meta.extra` says about the value: expected, options, suggest, sensitive."""


class Complaint(NamedTuple):
    """Why a text is not the value that is expected."""

    code: str
    message: str
    hint: str = ""


def read_scalar(node: Scalar, kind: inspect.Type, name: str, extra: Extra) -> Any:
    """The value of type `kind` that `node` holds, or a Complaint that calls it `name`."""
    if isinstance(kind, inspect.AnyType):
        return _anything(node, name)
    if node.is_empty:
        return no_value(name)
    match kind:
        case inspect.StrType():
            return _text(node.text, kind, name, extra)
        case inspect.LiteralType():
            return _choice(node.text, kind, name)
        case inspect.BoolType():
            return _unquoted(node, kind, name, to_bool(node.text))
        case inspect.IntType():
            return _within(kind, name, _unquoted(node, kind, name, to_int(node.text)))
        case inspect.FloatType():
            try:
                return _within(kind, name, _unquoted(node, kind, name, to_float(node.text)))
            except NotFiniteError:
                return _not_finite(name)
    raise TypeError(f"a file cannot hold a {type(kind).__name__}")


def no_value(name: str) -> Complaint:
    """The complaint about a key with nothing after its colon."""
    return Complaint("missing_value", f"{name} has no value", "write a value or remove the key")


def expectation(kind: inspect.Type) -> str:
    """What a scalar type expects, in words."""
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number"
        case inspect.FloatType():
            return "a number"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, kind.values))}"
    return "a text"


def _anything(node: Scalar, name: str) -> Any:
    try:
        return to_any(node.text) if node.plain else node.text
    except NotFiniteError:
        return _not_finite(name)


def _text(text: str, kind: inspect.StrType, name: str, extra: Extra) -> str | Complaint:
    if kind.max_length is not None and len(text) > kind.max_length:
        message = f"{name} has {len(text):,} characters; at most {kind.max_length:,} are allowed"
        return Complaint("bad_value", message)
    if kind.min_length is not None and len(text) < kind.min_length:
        return Complaint("bad_value", f"{name} is too short", "write some text")
    if kind.pattern is None or re.fullmatch(kind.pattern, text):
        return text
    shown = "" if extra.get("sensitive") else f", not {shorten(text) or 'an empty text'}"
    message = f"{name} must be {extra.get('expected', f'like {kind.pattern}')}{shown}"
    return Complaint("bad_value", message, _suggestion(text, extra))


def _suggestion(text: str, extra: Extra) -> str:
    if hint := did_you_mean(text, extra.get("options", ())):
        return hint
    guess = extra["suggest"](text) if "suggest" in extra else ""
    return f"did you mean {guess}?" if guess else ""


def _choice(text: str, kind: inspect.LiteralType, name: str) -> Any:
    values = {str(value): value for value in kind.values}
    if text in values:
        return values[text]
    message = f"{name} must be one of {', '.join(values)}; not {shorten(text) or 'an empty text'}"
    return Complaint("unknown_value", message, did_you_mean(text, values))


def _unquoted(node: Scalar, kind: inspect.Type, name: str, value: float | None) -> float | Complaint:
    """`value` if there is one and no quotes say that the text is meant."""
    if value is not None and node.plain:
        return value
    if value is not None:
        return Complaint("wrong_type", f"{name} must be {expectation(kind)}, not a text", "remove the quotes")
    return Complaint("wrong_type", f"{name} must be {expectation(kind)}, not {shorten(node.text) or 'an empty text'}")


def _within(kind: inspect.IntType | inspect.FloatType, name: str, value: float | Complaint) -> float | Complaint:
    if isinstance(value, Complaint):
        return value
    for limit, holds, words in (
        (kind.ge, operator.ge, "at least"),
        (kind.gt, operator.gt, "more than"),
        (kind.le, operator.le, "at most"),
        (kind.lt, operator.lt, "less than"),
    ):
        if limit is not None and not holds(value, limit):
            return Complaint("out_of_range", f"{name} must be {words} {limit:,.15g}, not {value:,.15g}")
    return value


def _not_finite(name: str) -> Complaint:
    return Complaint("not_finite", f"{name} must be a finite number")


class NotFiniteError(ValueError):
    """A number that is infinite, not a number, or too long to be one."""


def to_bool(text: str) -> bool | None:
    """The switch a text means (true/yes/on, false/no/off in one case or capitalised), or None."""
    word = text.lower()
    if text not in (word, word.upper(), word.capitalize()):
        return None
    if word in _TRUE:
        return True
    return False if word in _FALSE else None


def to_int(text: str) -> int | None:
    """The whole number a text means, or None."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return int(text, 0) if _OTHER_BASE.fullmatch(text) else None


def to_float(text: str) -> float | None:
    """The finite number a text means, or None; raises NotFiniteError for infinity and NaN."""
    if _NOT_FINITE.fullmatch(text):
        raise NotFiniteError(text)
    if _OTHER_BASE.fullmatch(text):
        return float(int(text, 0))
    if not _FLOAT.fullmatch(text):
        return None
    number = float(text) if len(text) <= _LONGEST_NUMBER else math.inf
    if not math.isfinite(number):
        raise NotFiniteError(text)
    return number


def to_any(text: str) -> str | int | float | bool | None:
    """What an unquoted text means where anything may stand."""
    if not text or text in NULLS:
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    whole = to_int(text)
    if whole is not None:
        return whole
    number = to_float(text)
    return text if number is None else number
