"""When two calls or two results are the same for all that matters: spelling apart. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from functools import lru_cache
from typing import Any, Final

import msgspec

LINES: Final = 128
_PATH: Final = re.compile(r"[/\\]|^[\w.-]+\.\w{1,8}$")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,3})?")
_SPACE: Final = re.compile(r"\s+")
_ECHO_LENGTH: Final = 200
_ECHOES: Final = 50
_LONG: Final = 64 * 1024


@lru_cache(maxsize=1024)
def same_call(tool: str, args: str) -> str:
    """The same short name for calls that differ only in how their arguments are written.

    Order of keys, white space, absent and null values, the way a number is written, the case, slashes and dots of a path.
    """
    return mark(f"{tool} {json.dumps(_plain(arguments_of(args)), sort_keys=True)}")


def arguments_of(args: str) -> Any:
    """The arguments as JSON; the text itself, spaces apart, when it is none."""
    try:
        return msgspec.json.decode(args or "{}")
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return _SPACE.sub(" ", args).strip()


def line_marks(text: str) -> frozenset[int]:
    """A number for each different line of a result, case and spaces apart; of very many lines, for some and the whole."""
    shown = text if len(text) <= _LONG else f"{text[: _LONG // 2]}\n{text[-_LONG // 2 :]}"
    lines = {line for line in (" ".join(line.split()) for line in shown.casefold().splitlines()) if line}
    marks = {_number(line) for line in lines}
    if shown is text and 0 < len(marks) <= LINES:
        return frozenset(marks)
    return frozenset((*sorted(marks)[:LINES], _number(text)))


def without_echo(text: str, tool: str, args: str) -> str:
    """A result without the name and the arguments it quotes: alike for two spellings of one call."""
    if len(text) <= _LONG:
        quoted = {tool, *_leaves(arguments_of(args))} - {""}
        for value in sorted(quoted, key=lambda leaf: (-len(leaf), leaf))[:_ECHOES]:
            if value in text:
                text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "~", text)
    return text


def mark(text: str) -> str:
    """A short name for a text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _number(text: str) -> int:
    # Quick rather than strong: for a result to pass as known by accident, every line of it would have to collide.
    return zlib.crc32(text.encode(errors="surrogatepass"))


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
            return {value} if 1 < len(value) <= _ECHO_LENGTH else set()
        case int() | float():
            return {str(value)} if len(str(value)) > 1 else set()
    return set()
