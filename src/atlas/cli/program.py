"""What the composition root hands to the commands, as click's `obj`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atlas.control.host import Host
    from atlas.control.service import Asker
    from atlas.kernel.port import Secrets
    from atlas.models.pull import OnProgress, Pulled
    from atlas.models.router import Router
    from atlas.vault.grant import VaultGrants
    from atlas.vault.policy import PolicyFiles


class Program(Protocol):
    """The installed Atlas: knows how to find a vault and to open it."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment variables of this process."""
        ...

    def vault_path(self, vault: str | None) -> Path:
        """The vault's folder by --vault, ATLAS_VAULT, the current folder or the default; NotFound when none is there."""
        ...

    def read_files(self, paths: Sequence[str]) -> list[tuple[str, bytes]]:
        """The name and the bytes of each file; NotFound or Invalid when one cannot be read."""
        ...

    def open(self, vault: str | None) -> AbstractAsyncContextManager[Host]:
        """The use cases over that vault, with its ledger open."""
        ...

    def secrets(self, vault: str | None) -> Secrets:
        """The secrets of that vault."""
        ...

    def rehearse(self, vault: Path, asker: Asker) -> AbstractAsyncContextManager[Host]:
        """The use cases over the vault at `vault` with `asker` in place of every model; asks nobody else."""
        ...

    def new_vault(self, path: Path) -> None:
        """Makes a vault at `path` with the agents `summarizer`, `advisor` and `effects`; Conflict when one is there already."""
        ...

    def new_agent(self, vault: Path, name: str, template: str) -> Path:
        """Makes an agent in the vault and returns its folder; Conflict when the name is taken, Invalid when it is bad."""
        ...

    def models(self, vault: str | None) -> AbstractAsyncContextManager[Router]:
        """The door to the models of that vault, or of the environment alone when none is named and none is there."""
        ...

    def pull_weights(self, name: str, on_progress: OnProgress) -> Pulled:
        """Fetches the weights of a local model, the usual one when `name` is empty; an AtlasError when it cannot."""
        ...

    def policy_files(self, vault: str | None) -> PolicyFiles:
        """The policies and mandates of that vault, as they are written now."""
        ...

    def revoke_mandate(self, vault: str | None, mandate: str) -> str:
        """Makes a mandate void and returns its file; NotFound, or Conflict when it is already."""
        ...

    def grants(self, vault: str | None) -> VaultGrants:
        """The remembered grants of that vault."""
        ...

    async def probe_worker(self) -> float:
        """Starts a worker process, waits for its answer and ends it: how many seconds that took, or an AtlasError."""
        ...
