"""The folder `inbox/` of a vault: pages that Atlas and a person's editor both write."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from atlas.kernel.errors import Conflict, Unavailable
from atlas.vault.atomic import write_file
from atlas.vault.snapshot import content_hash

FOLDER: Final = "inbox"
_LIMIT: Final = 8 * 1024 * 1024


class VaultInbox:
    """Reads, replaces and removes pages, each only as it was last seen."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / FOLDER
        self._runtime = root / ".atlas"

    def names(self) -> list[str]:
        """The names of all pages; what an editor keeps beside them is hidden and left alone."""
        try:
            return sorted(
                name for name in os.listdir(self._folder) if not name.startswith(".") and name.endswith(".md")
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unusable(error) from error

    def stamp(self) -> object:
        """Name, size and time of every page."""
        found = []
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):
                about = os.lstat(self._folder / name)
                found.append((name, about.st_size, about.st_mtime_ns, about.st_ino))
        return found

    def read(self, name: str) -> bytes | None:
        """A page's bytes; None when it is gone, is a link or is larger than any page."""
        try:
            handle = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        with os.fdopen(handle, "rb") as file:
            try:
                data = file.read(_LIMIT + 1)
            except OSError as error:
                raise _unusable(error) from error
        return data if len(data) <= _LIMIT else None

    def age_s(self, name: str) -> float:
        """Seconds since it was last changed."""
        try:
            return time.time() - os.lstat(self._folder / name).st_mtime
        except OSError:
            return 0.0

    def write(self, name: str, data: bytes, replaces: bytes | None) -> None:
        """Makes `data` the page; Conflict when somebody saved something else meanwhile."""
        expect = None if replaces is None else content_hash(replaces)
        write_file(self._root, f"{FOLDER}/{name}", data, expect=expect, lock=self._runtime / "vault.lock")

    def remove(self, name: str, data: bytes) -> None:
        """Takes the page out, looks at what was taken, and puts it back when it is not what was meant."""
        aside = self._folder / f".{name}.{os.urandom(6).hex()}.gone"
        page = self._folder / name
        try:
            os.rename(page, aside)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unusable(error) from error
        try:
            if aside.read_bytes() != data:
                # A person saved in the last instant. If they saved once more since, that newer page stays.
                with contextlib.suppress(FileExistsError):
                    os.link(aside, page)
                raise Conflict(f"{FOLDER}/{name} was changed by somebody else", code="changed_meanwhile")
        finally:
            aside.unlink()

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """One process at a time; False for one that comes while another is at it. A crash gives the turn back."""
        try:
            handle = os.open(self._runtime / "inbox.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(error) from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)


def _unusable(error: OSError) -> Unavailable:
    return Unavailable(f"the folder {FOLDER} cannot be used: {error.strerror}", code="vault_unwritable")
