"""Reading an agent's own folder, and nothing else: no path and no link leads out of it, no output is without end.

Every part of a path is opened below the one before it and never through a link, so that nothing can be exchanged
between looking and reading. Whatever is left out can be had with `start`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from atlas.kernel.errors import AtlasError, Invalid, NotFound

MAX_CHARACTERS: Final = 32_000
MAX_ENTRIES: Final = 200
LINE_LENGTH: Final = 2_000
_STEP: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_text(folder: str, path: str, start: int, lines: int) -> str:
    """Lines of a text file, from `start` (the first is 1), with a head that says what they are."""
    with _opened(folder, path) as handle:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Invalid(f"{path} is not a file", hint="list_files shows what is in a folder.", code="not_a_file")
        with os.fdopen(os.dup(handle), encoding="utf-8", newline=None) as stream:
            try:
                return _page(path, stream, start, lines)
            except UnicodeDecodeError:
                raise Invalid(f"{path} is not a text file", code="not_text") from None


def list_folder(folder: str, path: str, start: int) -> str:
    """The entries of a folder, one per line with their size, folders with a slash."""
    with _opened(folder, path) as handle:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise Invalid(f"{path} is not a folder", hint="read_file shows a file.", code="not_a_folder")
        names = sorted(name for name in os.listdir(handle) if not name.startswith("."))
        shown = [_entry(handle, name) for name in names[start - 1 : start - 1 + MAX_ENTRIES]]
    head = f"{path}: {len(names)} entries"
    if len(shown) < len(names):
        head += f", {start} to {start - 1 + len(shown)} shown"
    if start - 1 + len(shown) < len(names):
        head += f" (go on with start={start + len(shown)})"
    return "\n".join([head, *shown])


@contextmanager
def _opened(folder: str, path: str) -> Iterator[int]:
    """A handle of what lies at `path` in `folder`."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or "\\" in path or "\0" in path or any(part.startswith(".") for part in parts):
        raise Invalid(f"{path!r} is not a path inside the agent's folder", code="unsafe_path")
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable("the agent's folder", error) from None
    try:
        for part in parts:
            below = _below(handle, part, path)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def _below(handle: int, part: str, path: str) -> int:
    try:
        return os.open(part, _STEP, dir_fd=handle)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> AtlasError:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return NotFound(f"there is no {path}", hint="list_files shows what there is.")
        case PermissionError():
            return Invalid(f"{path} may not be read", code="not_readable")
    # ELOOP among others: the last part of what was opened is a link.
    return Invalid(f"{path} cannot be read: {error.strerror}. Links are not followed.", code="not_readable")


def _page(path: str, stream: IO[str], start: int, lines: int) -> str:
    shown: list[str] = []
    size, number, has_more = 0, 0, False
    for number, line in enumerate(_lines(stream), start=1):
        if number < start:
            continue
        size += len(line) + 1
        if shown and (size > MAX_CHARACTERS or len(shown) == lines):
            has_more = True
            break
        shown.append(line)
    if not shown:
        return f"{path} has {number} lines."
    head = f"{path}, lines {start} to {start + len(shown) - 1}"
    head += f" (go on with start={start + len(shown)}):" if has_more else " (the end):"
    return "\n".join([head, *shown])


def _lines(stream: IO[str]) -> Iterator[str]:
    """The lines; one that is too long comes as several, so that every part of it has a number to ask for."""
    while line := stream.readline(LINE_LENGTH):
        yield line.removesuffix("\n")


def _entry(handle: int, name: str) -> str:
    shown = os.fsencode(name).decode(errors="replace")
    try:
        found = os.stat(name, dir_fd=handle, follow_symlinks=False)
    except OSError:
        return shown
    if stat.S_ISDIR(found.st_mode):
        return f"{shown}/"
    return f"{shown} (link)" if stat.S_ISLNK(found.st_mode) else f"{shown} ({found.st_size} bytes)"
