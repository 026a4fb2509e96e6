"""Reading an agent's own folder, and nothing else: no path and no link leads out of it, no output is without end.

Every part of a path is opened below the one before it and never through a link, so that nothing can be exchanged
between looking and reading. Whatever is left out can be had with `start`.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Sequence
from typing import IO, BinaryIO, Final

from atlas.kernel.context import LiveFile
from atlas.kernel.errors import AtlasError, Invalid, NotFound

MAX_CHARACTERS: Final = 32_000
MAX_ENTRIES: Final = 200
LINE_LENGTH: Final = 2_000
SHORT: Final = 16 * 1024
"""Bytes of a file that takes no longer to read than it takes to have another thread do it."""

_STEP: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_text(folder: str, path: str, start: int, lines: int) -> str:
    """Lines of a text file, from `start` (the first is 1), with a head that says what they are."""
    with os.fdopen(_open_file(folder, path), "rb") as data:
        return _text(path, data, start, lines)


def read_short_text(folder: str, path: str, start: int, lines: int) -> str | None:
    """The same at once, so that an event loop need not be left for it; None when the file is not short."""
    handle = _open_file(folder, path)
    try:
        data = os.read(handle, SHORT + 1)
    finally:
        os.close(handle)
    return None if len(data) > SHORT else _text(path, io.BytesIO(data), start, lines)


def read_live(folder: str, paths: Sequence[str]) -> tuple[LiveFile, ...]:
    """The files as they are now; one that cannot be read says why."""
    return tuple(_live(folder, path) for path in paths)


def list_folder(folder: str, path: str, start: int) -> str:
    """The entries of a folder, one per line with their size, folders with a slash."""
    handle = _open(folder, path)
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise Invalid(f"{path} is not a folder", hint="read_file shows a file.", code="not_a_folder")
        names = sorted(name for name in os.listdir(handle) if not name.startswith("."))
        shown = [_entry(handle, name) for name in names[start - 1 : start - 1 + MAX_ENTRIES]]
    finally:
        os.close(handle)
    head = f"{path}: {len(names)} entries"
    if len(shown) < len(names):
        head += f", {start} to {start - 1 + len(shown)} shown"
    if start - 1 + len(shown) < len(names):
        head += f" (go on with start={start + len(shown)})"
    return "\n".join([head, *shown])


def _open_file(folder: str, path: str) -> int:
    """A handle of the file at `path`, for whoever closes it."""
    handle = _open(folder, path)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise Invalid(f"{path} is not a file", hint="list_files shows what is in a folder.", code="not_a_file")


def _open(folder: str, path: str) -> int:
    """A handle of what lies at `path` in `folder`, for whoever closes it."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or "\\" in path or "\0" in path or any(part.startswith(".") for part in parts):
        raise Invalid(f"{path!r} is not a path inside the agent's folder", code="unsafe_path")
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable("the agent's folder", error) from None
    for part in parts:
        above = handle
        try:
            handle = os.open(part, _STEP, dir_fd=above)
        except OSError as error:
            raise _unreadable(path, error) from None
        finally:
            os.close(above)
    return handle


def _unreadable(path: str, error: OSError) -> AtlasError:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return NotFound(f"there is no {path}", hint="list_files shows what there is.")
        case PermissionError():
            return Invalid(f"{path} may not be read", code="not_readable")
    # ELOOP among others: the last part of what was opened is a link.
    return Invalid(f"{path} cannot be read: {error.strerror}. Links are not followed.", code="not_readable")


def _live(folder: str, path: str) -> LiveFile:
    shown: list[str] = []
    size = 0
    try:
        with os.fdopen(_open_file(folder, path), encoding="utf-8") as stream:
            for line in _lines(stream):
                size += len(line) + 1
                if size > MAX_CHARACTERS:
                    return LiveFile(path, tuple(shown), is_whole=False)
                shown.append(line)
    except UnicodeDecodeError:
        return LiveFile(path, problem=f"{path} is not a text file")
    except AtlasError as error:
        return LiveFile(path, problem=error.message)
    return LiveFile(path, tuple(shown))


def _text(path: str, data: BinaryIO, start: int, lines: int) -> str:
    with io.TextIOWrapper(data, encoding="utf-8", newline=None) as stream:
        try:
            return _page(path, stream, start, lines)
        except UnicodeDecodeError:
            raise Invalid(f"{path} is not a text file", code="not_text") from None


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
