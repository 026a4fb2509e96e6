"""The `Secrets` of a vault: the environment, then `.env.local`, then the system's keyring, then a file of the user.

The first place that has a name answers. Nothing is kept in memory: a value that was changed is the new one at the
next call. Values are in no message and in no representation. Other stores plug in behind these by the entry point
group `atlas.secrets`: a factory `(vault, environ) -> SecretSource`, asked when no place here has the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from atlas.kernel.errors import Invalid
from atlas.kernel.redact import check_name, check_value
from atlas.vault.secrets_dotenv import DotenvSource
from atlas.vault.secrets_file import FileSource
from atlas.vault.secrets_keyring import keyring_source

GROUP: Final = "atlas.secrets"
DOTENV: Final = ".env.local"


class SecretSource(Protocol):
    """One place that may hold values."""

    @property
    def label(self) -> str:
        """What a person calls it."""
        ...

    def get(self, name: str) -> str | None:
        """The value, if this place has one."""
        ...

    def names(self) -> Iterable[str]:
        """The names it has, as far as it can tell."""
        ...


class WritableSource(SecretSource, Protocol):
    """A place that values can be put into."""

    def set(self, name: str, value: str) -> None:
        """Keeps the value."""
        ...

    def remove(self, name: str) -> bool:
        """Forgets the value; False when there was none."""
        ...


class EnvironmentSource:
    """Variables of this process. Only `declared` names are secrets; all other variables are nobody's business."""

    label = "environment"

    def __init__(self, environ: Mapping[str, str], declared: Iterable[str]) -> None:
        self._environ = environ
        self._declared = tuple(declared)

    def get(self, name: str) -> str | None:
        """The variable of that name, or of the name as variables are spelled."""
        return next((self._environ[one] for one in spellings(name) if self._environ.get(one)), None)

    def names(self) -> Iterable[str]:
        """The declared ones that are set."""
        return [name for name in self._declared if self.get(name) is not None]


class LayeredSecrets:
    """Asks one source after the other; writes to the first of `stores` that it was given."""

    def __init__(
        self,
        sources: Sequence[SecretSource],
        stores: Sequence[WritableSource],
        vault: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._sources = (*sources, *stores)
        self._stores = stores
        self._vault = vault
        self._environ = environ or {}
        self._plugged: tuple[SecretSource, ...] | None = None

    def __repr__(self) -> str:
        return f"LayeredSecrets({', '.join(source.label for source in self._sources)})"

    def get(self, name: str) -> str | None:
        """The value, or None; Invalid when it is too short to be kept out of texts."""
        _, value = self._found(name)
        return None if value is None else check_value(name, value)

    def names(self) -> tuple[str, ...]:
        """Every name that a place here is known to have, sorted."""
        return tuple(sorted({name for source in self._sources for name in source.names()}))

    def source(self, name: str) -> str:
        """The place that answers for a name; empty when none does."""
        return self._found(name)[0]

    def set(self, name: str, value: str) -> str:
        """Keeps the value and returns the place; Invalid when name or value cannot be a secret."""
        check_name(name)
        check_value(name, value)
        if not self._stores:
            raise Invalid(
                "there is no place to keep secrets in",
                hint="Set HOME, or write them to .env.local in the vault.",
                code="secrets_nowhere",
            )
        self._stores[0].set(name, value)
        return self._stores[0].label

    def remove(self, name: str) -> bool:
        """Forgets the value wherever Atlas keeps it; False when it keeps none."""
        check_name(name)
        removed = [store.remove(name) for store in self._stores]
        return any(removed)

    def _found(self, name: str) -> tuple[str, str | None]:
        check_name(name)
        for source in self._sources:
            value = source.get(name)
            if value is not None:
                return source.label, value
        for source in self._plugged_in():
            value = source.get(name)
            if value is not None:
                return source.label, value
        return "", None

    def _plugged_in(self) -> tuple[SecretSource, ...]:
        """Installed stores; looked for when a name is nowhere else, because looking reads every package's metadata."""
        if self._vault is None:
            return ()
        if self._plugged is None:
            from importlib.metadata import entry_points

            vault, environ = self._vault, self._environ
            self._plugged = tuple(found.load()(vault, environ) for found in entry_points(group=GROUP))
        return self._plugged


def open_secrets(vault: Path | None, environ: Mapping[str, str], declared: Iterable[str] = ()) -> LayeredSecrets:
    """The secrets of a vault as DESIGN orders them; without a vault those of the environment alone.

    `declared` are the names that configuration and contracts use: of the environment only these are secrets.
    """
    sources: list[SecretSource] = [EnvironmentSource(environ, declared)]
    stores: list[WritableSource] = []
    if vault is not None:
        sources.append(DotenvSource(vault / DOTENV))
        keyring = keyring_source(vault, environ)
        if keyring is not None:
            stores.append(keyring)
        folder = config_folder(environ)
        if folder is not None:
            stores.append(FileSource(folder / "secrets.json", str(vault)))
    return LayeredSecrets(sources, stores, vault, environ)


def config_folder(environ: Mapping[str, str]) -> Path | None:
    """Where the user keeps settings of Atlas; None for a process that has no home."""
    given = environ.get("XDG_CONFIG_HOME", "")
    if given.startswith("/"):
        return Path(given) / "atlas"
    home = environ.get("HOME", "")
    return Path(home) / ".config" / "atlas" if home.startswith("/") else None


def spellings(name: str) -> tuple[str, ...]:
    """A name as it may stand among variables: as it is, and in capitals with underscores."""
    return tuple(dict.fromkeys((name, name.upper().replace("-", "_").replace(".", "_"))))
