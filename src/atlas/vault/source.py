"""The text of a file, its encoding traps refused, and the way from an offset to line and column."""

from __future__ import annotations

import re
from bisect import bisect_right

from atlas.kernel.errors import Invalid, Problem

MAX_BYTES = 1024 * 1024
MAX_PROBLEMS = 100
"""How many problems of one file are told; more help nobody."""

_LINE_END = re.compile(r"\r\n|\r|\n")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")


class Source:
    """The text of one file; positions are counted from 1, as editors do."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self._starts: list[int] = []

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of the character at `offset`."""
        if not self._starts:  # most files have no problem and never need this
            self._starts = [0, *(match.end() for match in _LINE_END.finditer(self.text))]
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line_start(self, offset: int) -> int:
        """Offset of the first character of the line `offset` is on."""
        return offset - self.position(offset)[1] + 1

    def line(self, offset: int) -> str:
        """The line `offset` is on, without its end."""
        start = self.line_start(offset)
        end = _LINE_END.search(self.text, start)
        return self.text[start : end.start() if end else len(self.text)]

    def problem(self, code: str, message: str, offset: int, hint: str = "") -> Problem:
        """A problem at `offset`."""
        line, column = self.position(offset)
        return Problem(code, message, self.path, line, column, hint)


def refusal(problem: Problem) -> Invalid:
    """The error for a file of which nothing more can be said than this one problem."""
    return Invalid(problem.message, problems=(problem,), code=problem.code)


def decode(data: bytes, path: str) -> Source:
    """The text of a file of printable UTF-8; anything else is refused at the first wrong byte."""
    if len(data) > MAX_BYTES:
        message = f"the file has more than {MAX_BYTES:,} bytes"
        raise refusal(Problem("file_too_large", message, path, 1, 1, "keep large data in files of their own"))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise refusal(Problem("not_utf8", "the file is UTF-16, not UTF-8", path, 1, 1, "save it as UTF-8"))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        readable = Source(path, data[: error.start].decode("utf-8"))
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8 text"
        raise refusal(readable.problem("not_utf8", message, len(readable.text), "save the file as UTF-8")) from None
    source = Source(path, text)
    if text.startswith("\ufeff"):
        hint = "save the file as UTF-8 without a byte order mark (BOM)"
        raise refusal(source.problem("byte_order_mark", "the file starts with a byte order mark", 0, hint))
    if bad := _UNPRINTABLE.search(text):
        what = "a NUL character" if bad[0] == "\0" else f"the control character U+{ord(bad[0]):04X}"
        raise refusal(source.problem("control_character", f"{what} cannot be in a YAML file", bad.start(), "remove it"))
    return source


def shorten(text: str, limit: int = 60) -> str:
    """`text` on one line and within `limit` characters, for use inside a message."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
