"""Blobs: large payloads as files that are named by the SHA-256 of their bytes.

A blob is on disk, and its name is, before `put` returns, so an event committed afterwards never names bytes that a
power loss could take. Writers of the same bytes do not disturb each other: the rename replaces a file by its twin.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from pathlib import Path
from typing import Final, TypeAlias

from atlas.kernel.errors import LedgerCorrupt, LedgerUnavailable, NotFound
from atlas.kernel.port import Clock

FIND_BYTES: Final = 64 * 1024
"""Bytes whose digest takes no longer than handing them to a thread."""
_KEPT_MAX: Final = 4096
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_Stamp: TypeAlias = tuple[int, int, int, int]


class FileBlobs:
    """Content-addressed files under one folder, which is made when first needed."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._is_synced = False  # whether the name of the folder itself is on disk
        self._kept: dict[str, _Stamp] = {}

    def find(self, data: bytes) -> str | None:
        """The digest of bytes that were put before, when their file is still the one that was synced then."""
        digest = hashlib.sha256(data).hexdigest()
        kept = self._kept.get(digest)
        return digest if kept is not None and kept == _stamp(self._path(digest)) else None

    def put(self, data: bytes) -> str:
        """The digest under which the bytes are durably kept."""
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        try:
            if not _holds(path, data):
                self._write(path, data)
            # Also when file and folder were there: whoever made them may not have come to sync their names yet.
            _sync_folder(path.parent)
            _sync_folder(self._folder)
            if not self._is_synced:
                _sync_folder(self._folder.parent)
                self._is_synced = True  # only now: who comes before this syncs for himself
        except OSError as error:
            raise _unavailable(error, path) from error
        if len(self._kept) >= _KEPT_MAX:
            self._kept = {}
        stamp = _stamp(path)
        if stamp is not None:
            self._kept[digest] = stamp
        return digest

    def get(self, digest: str) -> bytes:
        """The exact bytes that were put."""
        if not _DIGEST.fullmatch(digest):
            raise NotFound(f"{digest!r} is not the name of a blob")
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise NotFound(f"there is no blob {digest}") from None
        except OSError as error:
            raise _unavailable(error, path) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise LedgerCorrupt(
                f"blob {digest} does not hold the bytes it was named for",
                hint="Restore this file from a backup.",
                where=str(path),
                code="blob_corrupt",
            )
        return data

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest[2:]

    def _write(self, path: Path, data: bytes) -> None:
        _make_folder(path.parent)
        draft = path.parent / f".{path.name[:8]}-{os.getpid()}-{self._clock.entropy(6).hex()}.tmp"
        try:
            with open(draft, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(draft, path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _holds(path: Path, data: bytes) -> bool:
    """Whether the file is there with these bytes; one that was damaged is written again."""
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except FileNotFoundError:
        return False


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unavailable(error: OSError, path: Path) -> LedgerUnavailable:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            message, hint, code = "the disk is full", "Free some space and try again.", "disk_full"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            message, hint, code = "the blob folder cannot be written or read", "Check its permissions.", "read_only"
        case _:
            message, hint, code = "the blob could not be written or read", "Check the disk.", "io_error"
    return LedgerUnavailable(f"{message}: {error}", hint=hint, where=str(path), code=code)
