"""Writes one file so that it is wholly old or wholly new, and never over what a person saved meanwhile.

A write says which content it replaces. Programs of Atlas take turns by a lock; a person's editor knows no lock,
so where the system can exchange two files in one step, the old file is taken out and looked at after the
exchange: had somebody saved in the last instant, their text is put back and the write is refused.
No component of the path may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from atlas.kernel.errors import Conflict, Invalid, Unavailable
from atlas.vault.snapshot import content_hash, safe_parts

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RENAME_EXCHANGE = 2


def write_file(root: Path, path: str, data: bytes, *, expect: str | None, lock: Path) -> str:
    """Makes `data` the content of `path` under `root` and returns its hash.

    `expect` is the hash of the content it replaces, or None when there must be no file yet; Conflict otherwise.
    """
    *folders, name = safe_parts(path)
    try:
        with _locked(lock), _open_folder(root, folders) as folder, _temporary(folder, name, data) as temporary:
            if expect is None:
                _create(folder, temporary, name, path)
            else:
                _replace(folder, temporary, name, path, expect)
            os.fsync(folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Invalid(f"{path} leads through a link or a file", code="unsafe_path") from error
        raise Unavailable(f"{path} cannot be written: {error.strerror}", code="vault_unwritable") from error
    return content_hash(data)


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # given back when the handle is closed, also by a crash
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _open_folder(root: Path, names: list[str]) -> Iterator[int]:
    """A handle on the folder, made when missing; each step is taken from the handle of the one before."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=handle)
                os.fsync(handle)
            below = os.open(name, _DIRECTORY, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _temporary(folder: int, name: str, data: bytes) -> Iterator[str]:
    """The name of a durable file with `data` beside the target; it is gone afterwards."""
    temporary = f".{name[:100]}.{os.urandom(6).hex()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)


def _create(folder: int, temporary: str, name: str, path: str) -> None:
    exists = Conflict(f"{path} exists already", hint="read it, then write with its hash", code="exists")
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise exists from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        if _read(folder, name)[0] is not None:  # a file system without hard links
            raise exists from None
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _replace(folder: int, temporary: str, name: str, path: str, expect: str) -> None:
    changed = Conflict(f"{path} was changed by somebody else", hint="read it again", code="changed_meanwhile")
    current, mode = _read(folder, name)
    if current != expect:
        raise changed
    os.chmod(temporary, mode, dir_fd=folder)
    ours = _read(folder, temporary)[0]
    try:
        if not _exchange(folder, temporary, name):
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            return
    except FileNotFoundError:
        raise changed from None  # deleted after the look
    taken_out = _read(folder, temporary)[0]
    if taken_out == expect:
        return
    # Somebody saved between the look and the exchange: their file goes back. Each exchange must take out what the
    # one before put in; when it does not, somebody saved once more, and that newer file goes back in turn.
    in_place = ours
    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, which is the last word then
        while _exchange(folder, temporary, name):
            in_place, put_back = taken_out, in_place
            taken_out = _read(folder, temporary)[0]
            if taken_out == put_back:
                break
    raise changed


def _read(folder: int, name: str) -> tuple[str | None, int]:
    """Hash and permissions of a file; no hash when there is none."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None, 0o644
    with os.fdopen(handle, "rb") as file:
        return content_hash(file.read()), os.fstat(file.fileno()).st_mode & 0o777


def _exchange(folder: int, one: str, other: str) -> bool:
    """Swaps two files in one step; False where the system cannot."""
    import ctypes

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if renameat2(folder, os.fsencode(one), folder, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code))
