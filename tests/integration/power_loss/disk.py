"""A disk with a volatile cache, driven by recorded system calls.

Writes wait in the cache until a sync of their file has returned; names wait until a sync of their folder has
returned. At a loss of power everything synced is there, and of the rest any part may be: `image` builds the
folder for one choice. What a sync covers is what had ended before the sync began; what happens meanwhile is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from integration.power_loss.strace_log import Call

Part: TypeAlias = Literal["whole", "front", "back", "zeros"]


class Write(msgspec.Struct, frozen=True):
    """Bytes for a file."""

    file: int
    offset: int
    data: bytes


class Truncate(msgspec.Struct, frozen=True):
    """A file's new size."""

    file: int
    size: int


class Name(msgspec.Struct, frozen=True):
    """A name that now means `file`; `was` is the name it had before (a rename), `file` 0 means the name is gone."""

    folder: int
    name: str
    file: int
    was: tuple[int, str] | None = None


Change: TypeAlias = Write | Truncate | Name
Image: TypeAlias = dict[str, bytes | None]


class Pending(msgspec.Struct, frozen=True):
    """A change that is not durable yet, and when it was made."""

    change: Change
    moment: int


class Disk:
    """What is durable, and what waits, below one folder; the folder itself is durable from the start."""

    def __init__(self, root: str, cwd: str) -> None:
        self._root = root
        self._cwd = cwd
        self._next = 2
        self._folders: dict[str, int] = {root: 1}
        self._files: dict[str, int] = {}
        self._sizes: dict[int, int] = {}
        self._descriptors: dict[int, tuple[int, int]] = {}
        self._durable_data: dict[int, bytearray] = {}
        self._durable_names: dict[tuple[int, str], int] = {}
        self._is_folder: set[int] = {1}
        self.pending: list[Pending] = []

    def apply(self, call: Call) -> Literal["", "changed", "synced"]:
        """Plays one call; says whether something now waits, or something became durable."""
        match call.name:
            case "openat" | "open" | "creat":
                return self._open(call)
            case "write" | "writev" | "pwrite64" | "pwritev":
                return self._write(call)
            case "ftruncate":
                return self._resize(call)
            case "fsync" | "fdatasync":
                return self._sync(call)
            case "rename" | "renameat" | "renameat2" | "link" | "linkat":
                return self._move(call)
            case "unlink" | "unlinkat":
                return self._unlink(call)
            case "mkdir" | "mkdirat":
                return self._mkdir(call)
            case "close":
                self._descriptors.pop(call.descriptor(0)[0], None)
                return ""
            case "mmap":
                self._check_map(call)
                return ""
            case _:
                return self._refuse(call)

    def image(self, kept: Iterable[tuple[Change, Part]]) -> Image:
        """The folder after a loss of power that kept these of the pending changes: content by path, None for folders."""
        data: dict[int, bytes | bytearray] = dict(self._durable_data)
        owned: set[int] = set()
        names = dict(self._durable_names)
        for change, part in kept:
            if isinstance(change, Name):
                _rename(names, change)
                continue
            content = data.get(change.file, b"")
            if change.file not in owned:
                content = bytearray(content)
                owned.add(change.file)
                data[change.file] = content
            assert isinstance(content, bytearray)
            _alter(content, change, part)
        image: Image = {}
        self._list(1, "", names, data, image)
        return image

    def _list(
        self,
        folder: int,
        prefix: str,
        names: dict[tuple[int, str], int],
        data: dict[int, bytes | bytearray],
        image: Image,
    ) -> None:
        for (parent, name), file in names.items():
            if parent != folder:
                continue
            if file in self._is_folder:
                image[prefix + name] = None
                self._list(file, f"{prefix}{name}/", names, data, image)
            else:
                image[prefix + name] = bytes(data.get(file, b""))

    def _open(self, call: Call) -> Literal["", "changed"]:
        flags = call.args[2] if call.name == "openat" else call.args[1]
        descriptor, path = call.opened
        if not self._is_inside(path):
            return ""
        if path in self._folders:
            self._descriptors[descriptor] = (self._folders[path], 0)
            return ""
        changed: Literal["", "changed"] = ""
        if path not in self._files:
            if "O_CREAT" not in flags and call.name != "creat":
                raise ValueError(f"{path} was opened but never created")
            self._files[path] = self._next
            self._next += 1
            self._wait(call, Name(*self._place(path), self._files[path]))
            changed = "changed"
        file = self._files[path]
        if "O_TRUNC" in flags and self._sizes.get(file, 0):
            self._sizes[file] = 0
            self._wait(call, Truncate(file, 0))
            changed = "changed"
        self._descriptors[descriptor] = (file, self._sizes.get(file, 0) if "O_APPEND" in flags else 0)
        return changed

    def _write(self, call: Call) -> Literal["", "changed"]:
        descriptor, path = call.descriptor(0)
        if descriptor not in self._descriptors:
            if self._is_inside(path):
                raise ValueError(f"a write to {path} through an unknown descriptor")
            return ""
        file, at = self._descriptors[descriptor]
        data = call.data(1)[: call.count]
        if call.name.startswith("p"):
            at = call.number(3)
        else:
            self._descriptors[descriptor] = (file, at + len(data))
        self._sizes[file] = max(self._sizes.get(file, 0), at + len(data))
        self._wait(call, Write(file, at, data))
        return "changed"

    def _resize(self, call: Call) -> Literal["", "changed"]:
        descriptor, _ = call.descriptor(0)
        if descriptor not in self._descriptors:
            return ""
        file, _ = self._descriptors[descriptor]
        self._sizes[file] = call.number(1)
        self._wait(call, Truncate(file, call.number(1)))
        return "changed"

    def _sync(self, call: Call) -> Literal["", "synced"]:
        descriptor, _ = call.descriptor(0)
        if descriptor not in self._descriptors:
            return ""
        synced, _ = self._descriptors[descriptor]
        waiting: list[Pending] = []
        for pending in self.pending:
            if pending.moment > call.started or not _belongs(pending.change, synced):
                waiting.append(pending)
            elif isinstance(pending.change, Name):
                _rename(self._durable_names, pending.change)
            else:
                _alter(self._durable_data.setdefault(pending.change.file, bytearray()), pending.change, "whole")
        self.pending = waiting
        return "synced"

    def _move(self, call: Call) -> Literal["", "changed"]:
        old, new = (self._path(call, 0), self._path(call, 1)) if "at" not in call.name else self._two_paths(call)
        if not self._is_inside(old) and not self._is_inside(new):
            return ""
        if old in self._folders:
            raise ValueError(f"renaming the folder {old} is not modelled")
        file = self._files[old]
        was = None
        if call.name.startswith("rename"):
            was = self._place(old)
            del self._files[old]
        self._files[new] = file
        if was is not None and was[0] != self._place(new)[0]:
            # Two folders, each durable when it is synced itself.
            self._wait(call, Name(*self._place(new), file))
            self._wait(call, Name(*was, 0))
        else:
            self._wait(call, Name(*self._place(new), file, was))
        return "changed"

    def _unlink(self, call: Call) -> Literal["", "changed"]:
        path = self._path(call, 0) if call.name == "unlink" else self._path_at(call, 0)
        if not self._is_inside(path):
            return ""
        del self._files[path]
        self._wait(call, Name(*self._place(path), 0))
        return "changed"

    def _mkdir(self, call: Call) -> Literal["", "changed"]:
        path = self._path(call, 0) if call.name == "mkdir" else self._path_at(call, 0)
        if not self._is_inside(path):
            return ""
        self._folders[path] = self._next
        self._is_folder.add(self._next)
        self._next += 1
        self._wait(call, Name(*self._place(path), self._folders[path]))
        return "changed"

    def _check_map(self, call: Call) -> None:
        # What is stored into a shared mapping no trace shows: nothing that has to last may be written that way.
        if "PROT_WRITE" in call.args[2] and "MAP_SHARED" in call.args[3] and "MAP_ANON" not in call.args[3]:
            _, path = call.descriptor(4)
            if self._is_inside(path):
                raise ValueError(f"{path} is written through a mapping")

    def _refuse(self, call: Call) -> Literal[""]:
        is_process_wide = call.name in ("fork", "vfork", "chdir", "fchdir", "io_uring_setup")
        if is_process_wide or any(self._is_inside(path) for path in call.paths()):
            raise ValueError(f"{call.name} is not modelled")
        return ""

    def _wait(self, call: Call, change: Change) -> None:
        self.pending.append(Pending(change, call.ended))

    def _is_inside(self, path: str) -> bool:
        # Memory shared between processes is no durable state: the first one to open the database makes it anew.
        return path == self._root or (path.startswith(self._root + "/") and not path.endswith("-shm"))

    def _path(self, call: Call, index: int) -> str:
        return os.path.normpath(os.path.join(self._cwd, call.text(index)))

    def _path_at(self, call: Call, index: int) -> str:
        _, base = call.descriptor(index)
        return os.path.normpath(os.path.join(base or self._cwd, call.text(index + 1)))

    def _two_paths(self, call: Call) -> tuple[str, str]:
        return self._path_at(call, 0), self._path_at(call, 2)

    def _place(self, path: str) -> tuple[int, str]:
        folder, name = os.path.split(path)
        return self._folders[folder], name


def _belongs(change: Change, synced: int) -> bool:
    return (change.folder if isinstance(change, Name) else change.file) == synced


def _rename(names: dict[tuple[int, str], int], change: Name) -> None:
    if change.was is not None and names.get(change.was) == change.file:
        del names[change.was]
    if change.file:
        names[change.folder, change.name] = change.file
    else:
        names.pop((change.folder, change.name), None)


def _alter(content: bytearray, change: Write | Truncate, part: Part) -> None:
    if isinstance(change, Truncate):
        if change.size <= len(content):
            del content[change.size :]
        else:
            content.extend(bytes(change.size - len(content)))
        return
    offset, data = change.offset, change.data
    half = len(data) // 2
    match part:
        case "front":
            data = data[:half]
        case "back":
            offset, data = offset + half, data[half:]
        case "zeros":  # the file grew, its new blocks were never written
            data = bytes(len(data))
            if offset < len(content):
                return
        case "whole":
            pass
    if not data:
        return
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
