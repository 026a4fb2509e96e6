"""JSON that a person types, keeps in a file or pipes in."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import IO, Any, Final, TextIO

import msgspec

from atlas.kernel.errors import Invalid, NotFound

MAX_BYTES: Final = 16 * 1024 * 1024
_BOMS: Final = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
# Half of a pair without its other half: a high one that no low one follows, or a low one that no high one precedes.
_LONE_SURROGATE: Final = re.compile(
    rb"(?<!\\)(?:\\\\)*(?:(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)(\\u[dD][c-fC-F]..))"
)
_BYTE: Final = re.compile(r"\s*\(byte (\d+)\)$")


def read_value(word: str, option: str) -> Any:
    """The JSON value that `word` gives: itself, `@file` for a file, `-` for standard input."""
    data, place = _bytes_of(word, option)
    _require_utf8(data, place, option)
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
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


def standard_input(hint: str) -> TextIO:
    """The stream; Invalid when it is closed, because then Python gives none at all."""
    if sys.stdin is None:
        raise Invalid("standard input is closed", hint=hint, code="stdin_closed")
    return sys.stdin


def _bytes_of(word: str, option: str) -> tuple[bytes, str]:
    if word == "-":
        return _read(standard_input(f"Pipe JSON into {option} -.").buffer, "standard input", option), "standard input"
    if not word.startswith("@"):
        return word.encode("utf-8", "surrogateescape"), option
    path = Path(word[1:])
    try:
        with path.open("rb") as file:
            return _read(file, str(path), option), str(path)
    except FileNotFoundError:
        raise NotFound(
            f"there is no file {path}", hint=f"{option} @FILE reads a file.", code="file_not_found"
        ) from None
    except OSError as error:
        raise _unreadable(str(path), error) from None


def _read(stream: IO[bytes], place: str, option: str) -> bytes:
    """What the stream has, unless it is more than any input may be."""
    try:
        data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(place, error) from None
    if len(data) > MAX_BYTES:
        raise Invalid(
            f"the value of {option} is larger than {MAX_BYTES >> 20} MiB",
            where=place,
            hint="Put large data into a file and give the agent its name.",
            code="value_too_large",
        )
    return data


def _unreadable(place: str, error: OSError | ValueError) -> Invalid:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return Invalid(f"{place} cannot be read: {reason}", code="file_unreadable")


def _require_utf8(data: bytes, place: str, option: str) -> None:
    """Tells what kind of text it is when it is not plain UTF-8: a parser would only find a strange character."""
    for mark, name in _BOMS.items():
        if data.startswith(mark):
            raise Invalid(
                f"the value of {option} begins with a byte order mark of {name}",
                where=place,
                hint="Save it as UTF-8 without a byte order mark (BOM).",
                code="not_utf8",
            )
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Invalid(
            f"the value of {option} is not UTF-8: byte 0x{data[error.start]:02x} cannot stand there",
            where=_place_in(data, error.start, place),
            hint="Save it as UTF-8.",
            code="not_utf8",
        ) from None


def _place_in(data: bytes, end: int, place: str) -> str:
    before = data[:end].decode("utf-8", "replace")
    return f"{place}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def _lone_surrogate(data: bytes) -> tuple[str, int] | None:
    """An escape that is half a character, and where it stands."""
    found = _LONE_SURROGATE.search(data)
    if found is None:
        return None
    number = 1 if found[1] else 2
    return found[number].decode(), found.start(number)


def _not_json(data: bytes, place: str, message: str, option: str) -> Invalid:
    found = _BYTE.search(message)
    end = int(found[1]) if found else len(data) if "truncated" in message else None
    reason = _BYTE.sub("", message) if data else "it is empty"
    lone = _lone_surrogate(data)
    if lone is not None:
        escape, end = lone
        reason = f"{escape} is half of a character, and its other half is missing"
    return Invalid(
        f"the value of {option} is not JSON: {reason}",
        where=place if end is None else _place_in(data, end, place),
        hint=f'Quote it for your shell, for example {option} \'{{"text": "hello"}}\', or use @FILE or - for stdin.',
        code="not_json",
    )
