"""What the composition root hands to the commands, as click's `obj`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atlas.control.host import Host
    from atlas.control.loop import Asker


class Program(Protocol):
    """The installed Atlas: knows how to find a vault and to open it."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment variables of this process."""
        ...

    def vault_path(self, vault: str | None) -> Path:
        """The vault's folder by --vault, ATLAS_VAULT, the current folder or the default; NotFound when none is there."""
        ...

    def open(self, vault: str | None) -> AbstractAsyncContextManager[Host]:
        """The use cases over that vault, with its ledger open."""
        ...

    def rehearse(self, vault: Path, asker: Asker) -> AbstractAsyncContextManager[Host]:
        """The use cases over the vault at `vault` with `asker` in place of every model; asks nobody else."""
        ...

    def new_vault(self, path: Path) -> None:
        """Makes a vault at `path` with the agents `summarizer` and `effects`; Conflict when one is there already."""
        ...

    def new_agent(self, vault: Path, name: str, template: str) -> Path:
        """Makes an agent in the vault and returns its folder; Conflict when the name is taken, Invalid when it is bad."""
        ...

    async def probe_worker(self) -> float:
        """Starts a worker process, waits for its answer and ends it: how many seconds that took, or an AtlasError."""
        ...
