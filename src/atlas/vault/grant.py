"""Remembered grants as a file that people can read and take entries out of: `grants.yaml` of the vault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import yaml

from atlas.kernel.errors import Conflict, NotFound
from atlas.kernel.grant import Grant, GrantFile
from atlas.vault.folder import FolderVault
from atlas.vault.load import load
from atlas.vault.snapshot import content_hash

GRANT_FILE: Final = "grants.yaml"
_HEAD: Final = "# Calls that a person let be repeated without being asked. Take an entry out to revoke it.\n"
_TRIES: Final = 20


class VaultGrants:
    """The grants of one vault; every question reads what is there now."""

    def __init__(self, vault: FolderVault) -> None:
        self._vault = vault

    def all(self) -> tuple[Grant, ...]:
        """Every grant; Invalid when the file cannot be read."""
        return self._read()[1]

    def add(self, grant: Grant) -> None:
        """Keeps a grant; the same one is kept once."""
        self._change(lambda grants: (*(one for one in grants if one.id != grant.id), grant))

    def revoke(self, identifier: str) -> Grant:
        """Takes a grant back; NotFound when there is none of that name."""
        found = next((one for one in self.all() if one.id == identifier), None)
        if found is None:
            raise NotFound(f"there is no grant {identifier}", hint="See 'atlas grants'.")
        self._change(lambda grants: tuple(one for one in grants if one.id != identifier))
        return found

    def _read(self) -> tuple[str | None, tuple[Grant, ...]]:
        try:
            data = self._vault.read_file(GRANT_FILE)
        except NotFound:
            return None, ()
        return content_hash(data), load(data, GrantFile, path=str(self._vault.root / GRANT_FILE)).grants

    def _change(self, change: Callable[[tuple[Grant, ...]], tuple[Grant, ...]]) -> None:
        """Writes the file anew; somebody who saves it at the same moment loses nothing."""
        for attempt in range(_TRIES):
            before, grants = self._read()
            try:
                self._vault.write(GRANT_FILE, _text(change(grants)), expect=before)
            except Conflict:
                if attempt == _TRIES - 1:
                    raise
            else:
                return


class MemoryGrants:
    """The grants of a host without a vault; gone when it closes."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    def all(self) -> tuple[Grant, ...]:
        """Every grant."""
        return tuple(self._grants.values())

    def add(self, grant: Grant) -> None:
        """Keeps a grant."""
        self._grants[grant.id] = grant


def _text(grants: tuple[Grant, ...]) -> bytes:
    entries = [msgspec.to_builtins(grant) for grant in grants]
    body = yaml.safe_dump({"grants": entries}, sort_keys=False, allow_unicode=True) if entries else "grants: []\n"
    return (_HEAD + body).encode()
