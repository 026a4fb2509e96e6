"""When two calls or two results are the same for all that matters: spelling apart. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import msgspec

LINES: Final = 128
_PATH: Final = re.compile(r"[/\\]|^[\w.-]+\.\w{1,8}$")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,3})?")
_SPACE: Final = re.compile(r"\s+")
_ECHO_LIMIT: Final = 200


def same_call(tool: str, args: str) -> str:
    """The same short name for calls that differ only in how their arguments are written.

    Order of keys, white space, absent and null values, the way a number is written, the case, slashes and dots of a path.
    """
    return mark(f"{tool} {msgspec.json.encode(_plain(arguments_of(args)), order='deterministic').decode()}")


def arguments_of(args: str) -> Any:
    """The arguments as JSON; the text itself, spaces apart, when it is none."""
    try:
        return msgspec.json.decode(args or "{}")
    except msgspec.DecodeError:
        return _SPACE.sub(" ", args).strip()


def line_marks(text: str) -> frozenset[int]:
    """A number for each different line of a result, and one for the whole. Of very many lines, the same ones each time."""
    lines = {line for line in (_SPACE.sub(" ", line).strip() for line in text.splitlines()) if line}
    marks = sorted(_number(line) for line in lines)
    # A line alone is the whole: the same words make the same mark wherever they stand.
    return frozenset(marks[:LINES]) | ({_number(text)} if len(marks) > LINES or not marks else frozenset())


def without_echo(text: str, args: str) -> str:
    """An error without the arguments it quotes, in one case and spacing: the same complaint about another spelling."""
    for value in sorted(_leaves(arguments_of(args)), key=len, reverse=True):
        text = text.replace(value, "~")
    return _SPACE.sub(" ", text.casefold()).strip()


def mark(text: str) -> str:
    """A short name for a text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _number(text: str) -> int:
    # 48 bits: two lines of one turn share a number about never, and every JSON reader keeps it exact.
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).digest(), "big")


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items() if item is not None}
        case list():
            return [_plain(item) for item in value]
        case float() if value.is_integer():
            return int(value)
        case str():
            return _plain_text(value)
    return value


def _plain_text(text: str) -> Any:
    flat = _SPACE.sub(" ", text).strip()
    if _NUMBER.fullmatch(flat):
        number = float(flat)
        return int(number) if number.is_integer() else number
    if not _PATH.search(flat) or " " in flat:
        return flat
    parts = [part for part in flat.replace("\\", "/").casefold().split("/") if part not in ("", ".")]
    return "/".join(parts)


def _leaves(value: Any) -> set[str]:
    match value:
        case dict():
            return set().union(*(_leaves(item) for item in value.values()))
        case list():
            return set().union(*(_leaves(item) for item in value))
        case str():
            return {value} if 1 < len(value) <= _ECHO_LIMIT else set()
        case int() | float():
            return {str(value)} if len(str(value)) > 1 else set()
    return set()
