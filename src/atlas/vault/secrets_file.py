"""Secrets in a file of the user's own: mode 0600, one per user, values kept apart by vault.

It lies in the user's configuration folder and not in the vault, so that copying, sharing or committing a vault never
takes a value along, and so that a vault from elsewhere cannot name what was set for another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from atlas.kernel.errors import Invalid, Unavailable

_VERSION: Final = 1


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file: vault -> name -> value."""

    version: int = _VERSION
    vaults: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)


class FileSource:
    """The part of the file that belongs to one vault."""

    label = "file"

    def __init__(self, path: Path, vault: str) -> None:
        self._path = path
        self._vault = vault

    def get(self, name: str) -> str | None:
        """The value, if one is kept."""
        return self._read().vaults.get(self._vault, {}).get(name)

    def names(self) -> Iterable[str]:
        """The names that are kept for this vault."""
        return list(self._read().vaults.get(self._vault, {}))

    def set(self, name: str, value: str) -> None:
        """Keeps the value, durably."""
        with self._locked():
            kept = self._read()
            mine = {**kept.vaults.get(self._vault, {}), name: value}
            self._write(_Kept(vaults={**kept.vaults, self._vault: mine}))

    def remove(self, name: str) -> bool:
        """Forgets the value; False when there was none."""
        if name not in self.names():
            return False
        with self._locked():
            kept = self._read()
            mine = {one: value for one, value in kept.vaults.get(self._vault, {}).items() if one != name}
            others = {vault: values for vault, values in kept.vaults.items() if vault != self._vault}
            self._write(_Kept(vaults={**others, self._vault: mine} if mine else others))
        return True

    def _read(self) -> _Kept:
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return _Kept()
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror}") from error
        with os.fdopen(handle, "rb") as file:
            self._check(os.fstat(file.fileno()))
            data = file.read()
        try:
            return msgspec.json.decode(data, type=_Kept)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # The decoder's message may quote what it could not read.
            raise Invalid(
                f"{self._path} is not a file of secrets",
                hint="Restore it, or remove it and set the secrets again.",
                where=str(self._path),
                code="secrets_file_invalid",
            ) from None

    def _check(self, about: os.stat_result) -> None:
        """Refuses a file that others can look into: whoever can is to be told before it is used once more."""
        mode = stat.S_IMODE(about.st_mode)
        if mode & 0o077:
            raise Invalid(
                f"{self._path} can be used by others (mode {mode:04o})",
                hint=f"Run 'chmod 600 {self._path}', and change the secrets if others may have read them.",
                where=str(self._path),
                code="secrets_file_open",
            )
        if about.st_uid != os.geteuid():
            raise Invalid(
                f"{self._path} belongs to another user",
                hint="Remove it and set the secrets again.",
                where=str(self._path),
                code="secrets_file_foreign",
            )

    def _write(self, kept: _Kept) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.urandom(6).hex()}.tmp")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(msgspec.json.format(msgspec.json.encode(kept), indent=2))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self._path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._unusable(f"cannot be written: {error.strerror}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Programs that change the file take turns; the lock is given back also by a crash."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self._path.with_name(f".{self._path.name}.lock")
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(f"cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _unusable(self, why: str) -> Unavailable:
        return Unavailable(f"{self._path} {why}", where=str(self._path), code="secrets_unavailable")
