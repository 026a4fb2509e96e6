"""What the command line is given to work with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from atlas.app.asker import LateAsker, build_secrets
from atlas.app.build import absolute
from atlas.app.clock import SystemClock
from atlas.app.host import open_host

if TYPE_CHECKING:
    from atlas.control.host import Host
    from atlas.control.service import Asker
    from atlas.kernel.port import Secrets, Vault
    from atlas.models.pull import OnProgress, Pulled
    from atlas.models.router import Router
    from atlas.vault.grant import VaultGrants
    from atlas.vault.policy import PolicyFiles


class Program:
    """What the command line is given: its environment, and ways to make, find and open a vault."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def vault_path(self, vault: str | None) -> Path:
        """The vault that an option, the environment or the current folder names; NotFound when none is there."""
        from atlas.vault.folder import find_vault

        return find_vault(vault, self.environ, Path.cwd(), Path.home())

    def read_files(self, paths: Sequence[str]) -> list[tuple[str, bytes]]:
        """The files that a person names to give them to a run."""
        from atlas.vault.given import read_given

        return read_given(paths)

    def open(self, vault: str | None) -> AbstractAsyncContextManager[Host]:
        """The vault, open for use."""
        return open_host(self.vault_path(vault), self.environ)

    def secrets(self, vault: str | None) -> Secrets:
        """The secrets of the vault."""
        from atlas.vault.folder import FolderVault

        root = absolute(self.vault_path(vault))
        return build_secrets(root, FolderVault(root).config(), self.environ)

    def rehearse(self, vault: Path, asker: Asker) -> AbstractAsyncContextManager[Host]:
        """The vault at `vault`, open for use with `asker` in place of every model, and nothing from the environment."""
        return open_host(vault, {}, asker=asker)

    def new_vault(self, path: Path) -> None:
        """Makes a vault with agents to try."""
        from atlas.vault.scaffold import new_agent, new_vault

        vault = new_vault(path)
        new_agent(vault, "summarizer", "python")
        new_agent(vault, "effects", "effects")
        new_agent(vault, "advisor", "prompt")

    def new_agent(self, vault: Path, name: str, template: str) -> Path:
        """Makes an agent from a template and returns its folder."""
        from atlas.vault.folder import FolderVault
        from atlas.vault.scaffold import new_agent

        return new_agent(FolderVault(vault), name, template)

    @asynccontextmanager
    async def models(self, vault: str | None) -> AsyncIterator[Router]:
        """The door to the models of a vault, or of the environment alone when none is named and none is there."""
        from atlas.kernel.config import Config
        from atlas.kernel.errors import NotFound
        from atlas.ledger.memory import MemoryLedger
        from atlas.vault.folder import FolderVault
        from atlas.vault.none import NoVault

        found: Vault = NoVault()
        config = Config()
        try:
            folder = FolderVault(self.vault_path(vault))
            found, config = folder, folder.config()
        except NotFound:
            if vault is not None or self.environ.get("ATLAS_VAULT"):
                raise
        clock = SystemClock()
        root = absolute(found.root) if isinstance(found, FolderVault) else None
        secret = build_secrets(root, config, self.environ).get
        asker = LateAsker(found, config, self.environ, MemoryLedger(clock), clock, secret)
        try:
            yield asker.router()
        finally:
            await asker.close()

    def pull_weights(self, name: str, on_progress: OnProgress) -> Pulled:
        """Fetches the weights of a local model."""
        from atlas.models.pull import get_weights, pull

        return pull(get_weights(name), self.environ, on_progress)

    def policy_files(self, vault: str | None) -> PolicyFiles:
        """The policies and mandates of the vault, as they are written now."""
        from atlas.vault.condition import Conditions
        from atlas.vault.folder import FolderVault
        from atlas.vault.policy import PolicyFiles

        path = self.vault_path(vault)
        FolderVault(path).require()
        return PolicyFiles(path, Conditions())

    def revoke_mandate(self, vault: str | None, mandate: str) -> str:
        """Makes a mandate void and returns its file."""
        from atlas.vault.folder import FolderVault
        from atlas.vault.mandate import revoke

        return revoke(FolderVault(self.vault_path(vault)), mandate)

    def grants(self, vault: str | None) -> VaultGrants:
        """The remembered grants of the vault."""
        from atlas.vault.folder import FolderVault
        from atlas.vault.grant import VaultGrants

        folder = FolderVault(self.vault_path(vault))
        folder.require()
        return VaultGrants(folder)

    async def probe_worker(self) -> float:
        """Starts a worker process, waits for its answer and ends it: how many seconds that took."""
        import tempfile
        import time

        from atlas.control.report import result_of

        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            self.new_vault(root / "vault")
            began = time.monotonic()
            async with open_host(root / "vault", {}) as host:
                submitted = await host.submit("summarizer", {"text": "one two three"})
                await host.drive(submitted.run_id)
                result = result_of(await host.report(submitted.run_id))
            result.unwrap()
            return time.monotonic() - began
