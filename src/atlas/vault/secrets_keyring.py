"""Secrets in the system's keyring, where the package `keyring` is installed and finds a backend that works.

A keyring cannot be listed, so the names (never the values) are one more entry of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from atlas.kernel.errors import Unavailable

_INDEX: Final = "atlas names"


class KeyringSource:
    """The entries of one vault in a keyring; `ring` has the functions of the package `keyring`."""

    label = "keyring"

    def __init__(self, ring: Any, failure: type[Exception], vault: str) -> None:
        self._ring = ring
        self._failure = failure
        self._service = f"atlas {vault}"

    def get(self, name: str) -> str | None:
        """The value, if the keyring has one."""
        return self._entry(name) or None

    def names(self) -> Iterable[str]:
        """The names that were set."""
        raw = self._entry(_INDEX)
        return msgspec.json.decode(raw, type=list[str]) if raw else []

    def set(self, name: str, value: str) -> None:
        """Keeps the value; its name first, so that nothing is ever kept that cannot be listed."""
        self._keep_names({*self.names(), name})
        self._put(name, value)

    def remove(self, name: str) -> bool:
        """Forgets the value; False when there was none."""
        if self._entry(name) is None:
            return False
        try:
            self._ring.delete_password(self._service, name)
        except self._failure as error:
            raise _unavailable(error) from None
        self._keep_names({*self.names()} - {name})
        return True

    def _keep_names(self, names: Iterable[str]) -> None:
        self._put(_INDEX, msgspec.json.encode(sorted(names)).decode())

    def _entry(self, name: str) -> str | None:
        try:
            found = self._ring.get_password(self._service, name)
        except self._failure as error:
            raise _unavailable(error) from None
        return found if isinstance(found, str) else None

    def _put(self, name: str, value: str) -> None:
        try:
            self._ring.set_password(self._service, name, value)
        except self._failure as error:
            raise _unavailable(error) from None


def keyring_source(vault: Path, environ: Mapping[str, str]) -> KeyringSource | None:
    """The keyring, when there is one that works; looked for only in a process with a home, which a keyring belongs to."""
    if not environ.get("HOME") or find_spec("keyring") is None:
        return None
    import keyring  # type: ignore[import-not-found, unused-ignore]
    from keyring.errors import KeyringError  # type: ignore[import-not-found, unused-ignore]

    backend = keyring.get_keyring()
    # Backends say by their priority how fit they are; the one that only ever fails has 0.
    return KeyringSource(keyring, KeyringError, str(vault)) if getattr(backend, "priority", 0) > 0 else None


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(
        f"the keyring does not answer: {type(error).__name__}",
        hint="Unlock it, or set the secret in the environment or in .env.local.",
        code="keyring_unavailable",
    )
