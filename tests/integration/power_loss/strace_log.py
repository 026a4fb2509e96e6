"""Reads what strace recorded: every system call with its arguments, in the order in which the calls returned.

Only a close counts from when it was called: its number may be another file's, opened by another thread, before it returns.

Made for `strace -f -y -xx`: strings and the paths of descriptors are hexadecimal, so no quoting can confuse it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

TRACED = (
    "openat,open,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,fsync,fdatasync,"
    "sync_file_range,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,"
    "close,dup,dup2,dup3,mmap,copy_file_range,sendfile,chdir,fchdir,fork,vfork,io_uring_setup"
)
# A name with a question mark is no error on a machine that does not have the call.
_NAMES = ",".join(f"?{name}" for name in TRACED.split(","))
FLAGS = ("-f", "-y", "-xx", "-s", "4194304", "-e", "signal=none", "-e", f"trace={_NAMES}")

_LINE = re.compile(r"^(\d+) +(.*)$")
_WHOLE = re.compile(r"^(\w+)\((.*)\) += +(.*)$")
_UNFINISHED = re.compile(r"^(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$")
_ARGUMENT = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HEX = re.compile(r"(?:\\x[0-9a-f]{2})+")
_DESCRIPTOR = re.compile(r"^(-?\d+|AT_FDCWD)(?:<((?:\\x[0-9a-f]{2})*)>)?")


class Call(msgspec.Struct, frozen=True):
    """One system call that succeeded. `started` and `ended` are moments on one line shared by all threads."""

    name: str
    args: tuple[str, ...]
    result: str
    started: int
    ended: int

    def number(self, index: int) -> int:
        """An argument that is an integer."""
        return int(self.args[index], 0)

    def data(self, index: int) -> bytes:
        """An argument that is a buffer, or a list of buffers."""
        text = self.args[index]
        if "..." in text:
            raise ValueError("strace shortened a buffer")
        return b"".join(_bytes(part) for part in _STRING.findall(text))

    def text(self, index: int) -> str:
        """An argument that is a path."""
        return self.data(index).decode()

    def descriptor(self, index: int) -> tuple[int, str]:
        """An argument that is a file descriptor: its number (-1 for the current folder) and its path."""
        return _descriptor(self.args[index])

    def paths(self) -> list[str]:
        """Every argument, or part of one, that may be a path."""
        return [_bytes(part).decode(errors="replace") for part in _HEX.findall(" ".join(self.args))]

    @property
    def opened(self) -> tuple[int, str]:
        """The file descriptor that the call returned, and its path."""
        return _descriptor(self.result)

    @property
    def count(self) -> int:
        """The number that the call returned."""
        return int(self.result.split()[0].split("<")[0])


def calls(log: Path) -> Iterator[Call]:
    """Every call in the log that succeeded, in the order in which they returned, and every close as it was called."""
    open_calls: dict[str, tuple[str, str, int]] = {}
    with log.open(encoding="ascii") as lines:
        for moment, line in enumerate(lines):
            found = _LINE.match(line.rstrip("\n"))
            if found is None:
                raise ValueError(f"unreadable line {moment + 1}: {line[:120]!r}")
            thread, rest = found.groups()
            started = moment
            if half := _UNFINISHED.match(rest):
                open_calls[thread] = (half[1], half[2], moment)
                if half[1] == "close":
                    yield Call("close", (half[2].strip(),), "0", moment, moment)
                continue
            if half := _RESUMED.match(rest):
                name, head, started = open_calls.pop(thread)
                if name == "close":
                    continue
                rest = f"{name}({head}{half[2]}"
            whole = _WHOLE.match(rest)
            # What is not a call is the end of a thread or of the process.
            if whole is None:
                continue
            name, args, result = whole.groups()
            if not result.startswith(("-1 ", "?")):
                yield Call(name, tuple(part.strip() for part in _ARGUMENT.findall(args)), result, started, moment)


def _descriptor(text: str) -> tuple[int, str]:
    found = _DESCRIPTOR.match(text)
    if found is None:
        raise ValueError(f"not a descriptor: {text[:80]!r}")
    return (-1 if found[1] == "AT_FDCWD" else int(found[1])), _bytes(found[2] or "").decode()


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
