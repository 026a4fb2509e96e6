"""Secrets in `.env.local` of a vault: `NAME=value` lines, nothing clever, and every other line is an error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from atlas.kernel.errors import Invalid, Problem, Unavailable

_LIMIT: Final = 1024 * 1024
_LINE: Final = re.compile(r"(?:export\s+)?([A-Za-z0-9][A-Za-z0-9_.-]{0,127})\s*=\s*(.*)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


class DotenvSource:
    """Reads the file anew whenever it has changed; never writes it, because a person does."""

    label = ".env.local"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._values: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        """The value in the file, under the name or under the name as variables are spelled."""
        values = self._read()
        found = values.get(name) or values.get(name.upper().replace("-", "_").replace(".", "_"))
        return found or None

    def names(self) -> Iterable[str]:
        """All names in the file that have a value."""
        return [name for name, value in self._read().items() if value]

    def _read(self) -> dict[str, str]:
        try:
            about = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            self._stamp, self._values = None, {}
            return self._values
        stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
        if stamp != self._stamp:
            self._values = parse_dotenv(self._data(about.st_size), self._path.name)
            self._stamp = stamp
        return self._values

    def _data(self, size: int) -> str:
        if size > _LIMIT:
            raise Invalid(f"{self._path.name} is too large", where=str(self._path), code="dotenv_invalid")
        try:
            return self._path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Invalid(f"{self._path.name} is not UTF-8", where=str(self._path), code="dotenv_invalid") from None
        except OSError as error:
            raise Unavailable(
                f"{self._path.name} cannot be read: {error.strerror}", where=str(self._path), code="vault_unreadable"
            ) from error


def parse_dotenv(text: str, path: str) -> dict[str, str]:
    """Names and values; Invalid with the place of every line that is neither `NAME=value`, a comment nor empty.

    A value is the rest of its line, or stands in single quotes as it is, or in double quotes with the escapes
    of a line break, a return, a tab, a quote, a dollar and a backslash. A `#` inside a value is part of it.
    """
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        match = _LINE.fullmatch(bare)
        value = None if match is None else _value(match[2])
        if match is None or value is None:
            # The line may hold half a secret, so it is not shown.
            hint = "Write NAME=value, NAME='value' or NAME=\"value\" on one line."
            problems.append(Problem("dotenv_invalid", "this line is not NAME=value", path, number, 1, hint))
        elif match[1] in found:
            problems.append(Problem("dotenv_twice", f"{match[1]} stands here a second time", path, number, 1))
        else:
            found[match[1]] = value
    if problems:
        raise Invalid(problems[0].message, problems=tuple(problems), code=problems[0].code)
    return found


def _value(written: str) -> str | None:
    """What a value means; None when its quotes or escapes are wrong."""
    match written[:1]:
        case "'":
            inner = written[1:-1]
            return inner if len(written) >= 2 and written[-1] == "'" and "'" not in inner else None
        case '"':
            return _unescaped(written[1:-1]) if len(written) >= 2 and written[-1] == '"' else None
        case _:
            return written


def _unescaped(inner: str) -> str | None:
    pieces: list[str] = []
    letters = iter(inner)
    for letter in letters:
        if letter == '"':
            return None
        if letter == "\\":
            meant = _ESCAPES.get(next(letters, ""))
            if meant is None:
                return None
            letter = meant
        pieces.append(letter)
    return "".join(pieces)
