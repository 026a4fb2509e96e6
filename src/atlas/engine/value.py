"""JSON values as agents' code may hand them over: strict, so that a replay sees exactly what the code saw.

msgspec alone would quietly turn NaN into null and a date into text; what comes back from the ledger would then
differ from what the code held. Here such a value is refused, and the message says where it is.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import msgspec

from atlas.kernel.errors import Invalid

SIZE_LIMIT: Final = 16 * 1024 * 1024
DEPTH_LIMIT: Final = 100

_PLAIN: Final = frozenset({str, int, bool, float, type(None)})
_AS_IS: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_SORTED: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=True
)
_DECODER: Final = msgspec.json.Decoder()


def encode(value: object, what: str, *, code: str = "not_json", hint: str = "", canonical: bool = False) -> bytes:
    """`value` as JSON, with sorted keys when `canonical`; Invalid, naming `what` and the place, when it is not JSON."""
    try:
        data = (_SORTED if canonical else _AS_IS).encode(value).encode()
    except (TypeError, ValueError, RecursionError):
        raise Invalid(f"{what} is not JSON: {_problem(value)}", code=code, hint=hint) from None
    if len(data) > DEPTH_LIMIT and data.count(b"[") + data.count(b"{") > DEPTH_LIMIT and _is_too_deep(value):
        raise Invalid(f"{what} is nested deeper than {DEPTH_LIMIT} levels", code=code, hint=hint)
    return data


def decode(data: bytes | msgspec.Raw) -> Any:
    """The value that `data` is the JSON of."""
    return _DECODER.decode(data)


def normal(value: object, data: bytes) -> Any:
    """What `decode(data)` gives, where `data` is the JSON of `value`; cheap for plain values."""
    return value if type(value) in _PLAIN else _DECODER.decode(data)


def _is_too_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(DEPTH_LIMIT + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list | tuple)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def _problem(value: object) -> str:
    """The first thing in `value` that JSON cannot hold, with its path."""
    if _is_too_deep(value):
        return f"it is nested deeper than {DEPTH_LIMIT} levels, or contains itself"
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        path, item = stack.pop()
        defect = _defect(item)
        if defect:
            return f"{path or 'it'} {defect}"
        if isinstance(item, dict):
            stack += [(f"{path}.{key}", child) for key, child in reversed(item.items())]
        elif isinstance(item, list | tuple):
            stack += [(f"{path}[{index}]", item[index]) for index in reversed(range(len(item)))]
    return "it cannot be written as JSON"


def _defect(item: object) -> str:
    match item:
        case None | bool() | int():
            return ""
        case float():
            return "" if math.isfinite(item) else f"is {item}"
        case str():
            return "" if _is_text(item) else "is text that is not valid Unicode"
        case dict():
            return _key_defect(item)
        case list() | tuple():
            return ""
        case _:
            return f"is a {type(item).__name__}"


def _key_defect(item: dict[object, object]) -> str:
    # Numbers as keys become text, as everywhere in JSON; mixed with text they have no order to hash them in.
    plain = (str, int, float, bool, type(None))
    bad = [key for key in item if not isinstance(key, plain) or (isinstance(key, str) and not _is_text(key))]
    if not bad and len({type(key) for key in item}) > 1:
        bad = [key for key in item if not isinstance(key, str)]
    return f"has a key that is not text: {bad[0]!r:.80}" if bad else ""


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
