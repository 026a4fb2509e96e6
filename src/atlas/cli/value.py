"""JSON that a person types, keeps in a file or pipes in."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from atlas.kernel.errors import Invalid, NotFound

_BYTE: Final = re.compile(r"\s*\(byte (\d+)\)$")


def read_value(word: str, option: str) -> Any:
    """The JSON value that `word` gives: itself, `@file` for a file, `-` for standard input."""
    data, place = _bytes_of(word, option)
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _not_json(data, place, str(error), option) from None
    except RecursionError:
        raise Invalid(f"the JSON of {option} is nested too deep", where=place, code="not_json") from None


def text_value(text: str) -> dict[str, str]:
    """The input that plain words make."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid("the text is not valid UTF-8", hint="Put it into a UTF-8 file and use --input @file.") from None
    return {"text": text}


def _bytes_of(word: str, option: str) -> tuple[bytes, str]:
    if word == "-":
        return sys.stdin.buffer.read(), "standard input"
    if not word.startswith("@"):
        return word.encode("utf-8", "surrogateescape"), option
    path = Path(word[1:])
    try:
        return path.read_bytes(), str(path)
    except FileNotFoundError:
        raise NotFound(
            f"there is no file {path}", hint=f"{option} @FILE reads a file.", code="file_not_found"
        ) from None
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", code="file_unreadable") from None


def _not_json(data: bytes, place: str, message: str, option: str) -> Invalid:
    found = _BYTE.search(message)
    end = int(found[1]) if found else len(data) if "truncated" in message else None
    if end is not None:
        before = data[:end].decode("utf-8", "replace")
        line = before.count("\n") + 1
        place = f"{place}:{line}:{len(before) - before.rfind(chr(10))}"
    return Invalid(
        f"the value of {option} is not JSON: {_BYTE.sub('', message) if data else 'it is empty'}",
        where=place,
        hint=f'Quote it for your shell, for example {option} \'{{"text": "hello"}}\', or use @FILE or - for stdin.',
        code="not_json",
    )
