"""When two calls or two results are the same for all that matters: spelling apart. Pure."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import msgspec

from atlas.kernel.model import is_too_deep

LINES: Final = 128
_PATH: Final = re.compile(r"[/\\]|^[\w.-]+\.\w{1,8}$")
_NUMBER: Final = re.compile(r"0|-?[1-9]\d{0,17}")
"""A text that can be nothing but a number. A longer one is a name, and so is one with a dot: version 1.10 is not 1.1."""
_SPACE: Final = re.compile(r"\s+")
_PASSING: Final = re.compile(
    r"0x[0-9a-f]+"
    r"|(?<![0-9a-z])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-z])"
    r"|(?<![0-9a-z])(?=[a-z]*\d)(?:[0-9a-f]{8,}|[0-9a-z]{16,})(?:\.\d+)?(?![0-9a-z])"
    r"|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|\d+(?:\.\d+)? ?(?:us|ms|s|sec|secs|seconds)\b",
    re.IGNORECASE,
)
_ABOUT_THE_CALL: Final = re.compile(
    r"nonce|idempoten|(?:^|_)(?:request|correlation|trace|invocation)_?(?:id|key|token)$", re.IGNORECASE
)
_WORD: Final = re.compile(r"\w{2,}")
_ECHO_LENGTH: Final = 200
_ECHOES: Final = 50
_FEW: Final = 32
_LONG: Final = 64 * 1024
_SHOWN: Final = 4 * 1024
"""About as much of a long result as a model is shown: its ends. The lines between them are new when it reads on."""


@lru_cache(maxsize=1024)
def same_call(tool: str, args: str) -> str:
    """The same short name for calls that differ only in how their arguments are written.

    Order of keys, white space, absent and null values, the way a number is written, the case, slashes and dots of a path.
    """
    return mark(f"{tool} {json.dumps(_plain(arguments_of(args)), sort_keys=True)}")


@lru_cache(maxsize=1024)
def alike_call(tool: str, args: str) -> str:
    """The same short name also for calls that differ only in an id of the request; not for calls about nothing else."""
    value = arguments_of(args)
    if isinstance(value, dict):
        rest = {key: one for key, one in value.items() if not _ABOUT_THE_CALL.search(str(key))}
        if 0 < len(rest) < len(value):
            return same_call(tool, json.dumps(rest))
    return same_call(tool, args)


def arguments_of(args: str) -> Any:
    """The arguments as JSON; the text itself, spaces apart, when it is none, or too deep to be walked."""
    if not is_too_deep(args):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeEncodeError):
            return msgspec.json.decode(args or "{}")
    return _SPACE.sub(" ", args).strip()


def line_marks(text: str) -> frozenset[int]:
    """A number for each different line of a result, case and spaces apart; of a long one, for its ends and the whole."""
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}\n{text[-_SHOWN // 2 :]}"
    lines = {" ".join(line.split()) for line in shown.casefold().splitlines()} - {""}
    # Quick rather than strong: for a result to pass as known by accident, every line of it would have to collide.
    marks = {crc32(line.encode(errors="surrogatepass")) for line in lines}
    if shown is text and 0 < len(marks) <= LINES:
        return frozenset(marks)
    return frozenset((*sorted(marks)[:LINES], crc32(text.encode(errors="surrogatepass"))))


def without_echo(text: str, tool: str, args: str) -> str:
    """A result without the name and the arguments it quotes: alike for two spellings of one call."""
    if len(text) > _LONG:
        return text
    quoted = _leaves(arguments_of(args))
    quoted.add(tool)
    quoted.discard("")
    for value in sorted(sorted(quoted), key=len, reverse=True)[:_ECHOES]:
        if value in text:
            text = _muted(text, value)
    return text


def without_words(text: str, args: str) -> str:
    """A result without any word of the arguments: alike for two questions where it quotes a part of each."""
    if len(text) > _LONG:
        return text
    words = {word for leaf in _leaves(arguments_of(args)) for word in _WORD.findall(leaf.casefold())}
    return _WORD.sub(lambda found: "~" if found[0].casefold() in words else found[0], text)


def steady(text: str) -> str:
    """A complaint without what is another each time it is made: times, durations, addresses, ids of requests."""
    return text if len(text) > _LONG else _PASSING.sub("~", text)


def _muted(text: str, value: str) -> str:
    """`text` with `~` for each `value` that is not part of a longer word."""
    if text.count(value) > _FEW:
        return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "~", text)
    # The same by hand: an expression would be compiled for this call and, most likely, never be used again.
    parts: list[str] = []
    done = 0
    at = text.find(value)
    while at >= 0:
        end = at + len(value)
        if _is_word(text[at - 1 : at]) or _is_word(text[end : end + 1]):
            at = text.find(value, at + 1)
        else:
            parts.append(text[done:at])
            done, at = end, text.find(value, end)
    return "~".join((*parts, text[done:]))


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def mark(text: str) -> str:
    """A short name for a text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


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
        return int(flat)
    if not _PATH.search(flat) or " " in flat:
        return flat
    parts: list[str] = []
    for part in flat.replace("\\", "/").casefold().split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _leaves(value: Any) -> set[str]:
    """The texts and numbers in a value that are long enough to be told from others, and not too long to be quoted."""
    found: set[str] = set()
    rest = [value]
    while rest:
        match rest.pop():
            case dict() as parts:
                rest.extend(parts.values())
            case list() as parts:
                rest.extend(parts)
            case str() as text:
                if 1 < len(text) <= _ECHO_LENGTH:
                    found.add(text)
            case int() | float() as number:
                if len(text := str(number)) > 1:
                    found.add(text)
    return found
