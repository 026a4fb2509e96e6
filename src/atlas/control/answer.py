"""Answers that have to be JSON of a certain shape: read as models write them, and asked for again if they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from atlas.kernel.model import MAX_LEVELS, is_too_deep

MAX_REPAIRS: Final = 2
_SHOWN_SCHEMA: Final = 2_000

Complain: TypeAlias = Callable[[dict[str, Any], Any], str | None]


def read(text: str, schema: dict[str, Any], complain: Complain) -> tuple[Any, str | None]:
    """The value of an answer, or what is wrong with it."""
    if is_too_deep(text):
        return None, f"it nests deeper than {MAX_LEVELS} levels"
    try:
        value = msgspec.json.decode(bare_json(text))
    except msgspec.DecodeError as error:
        return None, f"it is not JSON ({error})"
    return value, complain(schema, value)


def complaint_about(text: str, schema: dict[str, Any], complain: Complain) -> str | None:
    """What is wrong with an answer; None when it fits, or may be anything."""
    return read(text, schema, complain)[1] if schema else None


def asked_again(complaint: str, schema: dict[str, Any]) -> str:
    """What tells the model to answer again."""
    # Servers that take an answer format and forget about it show the model no schema.
    shown = msgspec.json.encode(schema).decode()
    fitting = f" that fits this schema: {shown}" if len(shown) <= _SHOWN_SCHEMA else ""
    return f"Your answer does not fit: {complaint}. Answer again with nothing but the JSON{fitting}"


def bare_json(text: str) -> bytes:
    """The answer without the fence that models like to put around JSON."""
    bare = text.strip()
    if bare.startswith("```"):
        bare = bare.partition("\n")[2].rpartition("```")[0]
    return bare.encode()
