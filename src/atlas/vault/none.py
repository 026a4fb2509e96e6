"""No vault at all: for a program whose agents are all defined in code."""

from __future__ import annotations

from collections.abc import Mapping

from atlas.kernel.contract import Contract
from atlas.kernel.errors import NotFound
from atlas.kernel.port import Snapshot


class NoVault:
    """A `Vault` with nothing in it."""

    def agents(self) -> list[str]:
        """None."""
        return []

    def contract(self, name: str) -> Contract:
        """Never found."""
        raise _nothing(name)

    def snapshot(self, name: str) -> Snapshot:
        """Never found."""
        raise _nothing(name)

    def read(self, name: str, path: str) -> bytes:
        """Never found."""
        raise _nothing(name)

    def read_file(self, path: str) -> bytes:
        """Never found."""
        raise NotFound(f"there is no {path}: this program has no vault")

    def placed(self, digest: str) -> str | None:
        """Nothing is placed."""
        return None

    def place(self, digest: str, files: Mapping[str, bytes]) -> str:
        """Nowhere to place it."""
        raise NotFound("this program has no vault to place files in")

    def contract_in(self, folder: str) -> Contract:
        """Never found."""
        raise _nothing(folder)


def _nothing(name: str) -> NotFound:
    return NotFound(f"there is no agent {name}", hint="Pass the agent itself, or open a vault: Atlas(path).")
