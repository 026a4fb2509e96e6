"""Patterns for names and argument values: globs, paths into arguments, and the plain form of a text.

A rule that narrows is matched generously (any value, any writing of it) and a rule that allows is matched
strictly (every value, exactly as written and after `..` is resolved), so that a trick with the writing of an
argument can close a door and never open one.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

Segment: TypeAlias = str | int | None
"""One step into a value: a key, an index, or None for every child; `DESCEND` goes any number of steps down."""

DESCEND: Final = "\0.."

_SEGMENT: Final = re.compile(
    r"""\.\.(?P<deep>\*|[^.\[\]*'"\s]+) | \.(?P<name>\*|[^.\[\]*'"]+) | \[(?P<index>\d{1,9}|\*)\]
      | \['(?P<quoted>[^'\\]+)'\] | \["(?P<double>[^"\\]+)"\]""",
    re.VERBOSE,
)
_QUOTES: Final = ("\\\n", "\\", "'", '"', "`")
_INVISIBLE: Final = ("Cf", "Mn")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")


@functools.lru_cache(maxsize=4096)
def glob(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Matches, as a whole, a text that fits one of the patterns; `*` stands for any characters."""
    return re.compile("|".join(_source(pattern) for pattern in patterns) or r"(?!)", re.DOTALL)


def fits(text: str, patterns: tuple[str, ...]) -> bool:
    """True when `text` fits one of the patterns."""
    return glob(patterns).match(text) is not None


@functools.lru_cache(maxsize=4096)
def parse_path(text: str) -> tuple[Segment, ...] | None:
    """The steps of a path: `key`, `a.b`, `$.to[*].address`, `$..path`; None when it is not one."""
    rest = text.removeprefix("$") if text.startswith("$") else f".{text}"
    steps: list[Segment] = []
    at = 0
    while at < len(rest):
        found = _SEGMENT.match(rest, at)
        if found is None:
            return None
        at = found.end()
        part = found["deep"] or found["name"] or found["index"] or found["quoted"] or found["double"]
        if found["deep"]:
            steps.append(DESCEND)
        is_literal = found["quoted"] or found["double"]
        steps.append(part if is_literal or part != "*" else None)
        if found["index"] and found["index"] != "*":
            steps[-1] = int(part)
    return tuple(steps)


def select(value: Any, path: tuple[Segment, ...]) -> Iterator[Any]:
    """Every part of `value` that the path leads to."""
    if not path:
        yield value
        return
    step, rest = path[0], path[1:]
    if step == DESCEND:
        for part in _below(value):
            yield from select(part, rest)
        return
    match value:
        case dict() if step is None:
            for child in value.values():
                yield from select(child, rest)
        case dict() if step in value:
            yield from select(value[step], rest)
        case list() | tuple() if step is None:
            for child in value:
                yield from select(child, rest)
        case list() | tuple() if isinstance(step, int) and step < len(value):
            yield from select(value[step], rest)


def texts(value: Any) -> Iterator[str]:
    """Every text, number, truth value and null in `value`, at any depth, as text; keys are not values."""
    stack = [value]
    while stack:
        match stack.pop():
            case str() as text:
                yield text
            case dict() as parts:
                stack.extend(reversed(parts.values()))
            case list() | tuple() as parts:
                stack.extend(reversed(parts))
            case other:
                yield _scalar(other)


def plain(text: str) -> str:
    """A text as a shell or a database would likely take it: compatibility forms, case, quotes and spaces undone.

    Look-alike letters of other scripts, variables, encodings and anything that must be run to be known stay.
    """
    if not text.isascii():
        folded = unicodedata.normalize("NFKC", text)
        text = "".join(char for char in folded if unicodedata.category(char) not in _INVISIBLE)
    text = text.lower()
    if "$" in text:
        text = text.replace("${ifs}", " ").replace("$ifs", " ")
    for quote in _QUOTES:
        if quote in text:
            text = text.replace(quote, "")
    return " ".join(text.split())


def tidy_path(text: str) -> str:
    """A path or address without `.`, `..` and doubled slashes; any other text as it is."""
    if "/" not in text or not ("//" in text or "/." in text or text.startswith(".")):
        return text
    head = _URL.match(text)
    prefix, rest = (head[0], text[head.end() :]) if head else ("", text)
    kept: list[str] = []
    is_rooted = rest.startswith("/")
    for part in rest.split("/"):
        if part == ".." and kept and kept[-1] != "..":
            kept.pop()
        elif part == ".." and is_rooted:
            continue
        elif part not in ("", "."):
            kept.append(part)
    return prefix + ("/" if is_rooted else "") + "/".join(kept)


def fits_strictly(values: list[str], patterns: tuple[str, ...]) -> bool:
    """True when there are values and every one fits, as written and with its `..` resolved."""
    match = glob(patterns).match
    return bool(values) and all(match(value) and match(tidy_path(value)) for value in values)


def writings(value: Any) -> list[str]:
    """Every text in a value in each of its writings, in lower case: as it is, plain, and with `..` resolved."""
    forms: dict[str, None] = {}
    for text in texts(value):
        for form in (text.lower(), plain(text)):
            forms[form] = None
            forms[tidy_path(form)] = None
    return list(forms)


def _source(pattern: str) -> str:
    """The expression for one glob: linear time, because no star is ever tried a second time."""
    first, *rest = (re.escape(part) for part in re.split(r"\*+", pattern))
    if not rest:
        return rf"{first}\Z"
    return first + "".join(f"(?>.*?{part})" for part in rest[:-1]) + rf".*{rest[-1]}\Z"


def _below(value: Any) -> Iterator[Any]:
    """`value` and everything inside it."""
    stack = [value]
    while stack:
        part = stack.pop()
        yield part
        match part:
            case dict():
                stack.extend(reversed(part.values()))
            case list() | tuple():
                stack.extend(reversed(part))


def _scalar(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return msgspec.json.encode(value).decode() if abs(value) < 2**63 else str(value)
    return str(value)
