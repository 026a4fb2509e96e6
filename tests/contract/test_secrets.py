"""The contract of the port `Secrets`, for every adapter that ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlas.kernel.port import Secrets
from atlas.testing import secrets
from atlas.vault.secrets import LayeredSecrets, open_secrets
from atlas.vault.secrets_keyring import KeyringSource


class Ring:
    """A keyring as the package `keyring` has it, in memory."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, name: str) -> str | None:
        return self.entries.get((service, name))

    def set_password(self, service: str, name: str, value: str) -> None:
        self.entries[service, name] = value

    def delete_password(self, service: str, name: str) -> None:
        del self.entries[service, name]


@pytest.mark.parametrize("case", secrets.cases(), ids=lambda case: case.__name__)
@pytest.mark.parametrize("kind", ["file", "keyring", "memory"])
def test_contract(case: secrets.Case, kind: str, tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    ring, kept = Ring(), dict[str, str]()

    def open_() -> Secrets:
        match kind:
            case "file":
                return open_secrets(tmp_path / "vault", environ)
            case "keyring":
                return LayeredSecrets([], [KeyringSource(ring, OSError, "/vault")])
        return secrets.MemorySecrets(kept)

    case(open_)
