"""Providers: where each one is, which key it gets, and the adapter that speaks to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from atlas.kernel.config import Models, Provider
from atlas.kernel.model import LoadBlob, Model, ModelError
from atlas.kernel.port import Clock
from atlas.models import anthropic, openai
from atlas.models.http import Http
from atlas.models.scripted import Script, ScriptedModel

MAX_IN_FLIGHT = 64
UNLIMITED = 1_000_000
_KNOWN = {
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL", openai.BASE_URL),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", anthropic.BASE_URL),
}


class Endpoint(msgspec.Struct, frozen=True):
    """A provider with everything that its configuration and the environment leave open filled in."""

    name: str
    kind: str
    base_url: str = ""
    key: str = ""
    key_name: str = ""
    max_in_flight: int = MAX_IN_FLIGHT
    script: str = ""
    stream: bool = True

    def __repr__(self) -> str:
        return f"Endpoint(name={self.name!r}, kind={self.kind!r}, base_url={self.base_url!r}, has_key={bool(self.key)})"


def endpoints(models: Models, keys: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Endpoint]:
    """All providers by name: those of the configuration, and `openai` and `anthropic` when the environment has them.

    `keys` are the values of the keys that the configuration names, by provider. A key from the environment goes only
    to the provider of that name, and only to an address that is its own or from the environment too.
    """
    found = {name: _endpoint(name, provider, keys, environ) for name, provider in models.providers.items()}
    for name, (key, base_url, _) in _KNOWN.items():
        if name not in found and (environ.get(key) or environ.get(base_url)):
            found[name] = _endpoint(name, Provider(kind="openai" if name == "openai" else "anthropic"), keys, environ)
    return found


def _endpoint(name: str, provider: Provider, keys: Mapping[str, str], environ: Mapping[str, str]) -> Endpoint:
    base_url, key = provider.base_url or "", keys.get(name, "")
    if provider.kind in _KNOWN:
        key_name, base_name, default = _KNOWN[provider.kind]
        is_namesake = name == provider.kind
        if is_namesake and not provider.key and not provider.base_url:
            key = environ.get(key_name, "")
        base_url = base_url or (environ.get(base_name, "") if is_namesake else "") or default
    limit = provider.max_in_flight or (UNLIMITED if provider.kind == "scripted" else MAX_IN_FLIGHT)
    return Endpoint(name, provider.kind, base_url, key, provider.key or "", limit, provider.script, provider.stream)


def build_model(
    endpoint: Endpoint, http: Http, clock: Clock, load_blob: LoadBlob, load_script: Callable[[str], Script]
) -> Model:
    """The adapter for an endpoint; ModelError when this installation or its configuration lacks something."""
    if endpoint.key_name and not endpoint.key:
        message = f"the key of {endpoint.name}, {endpoint.key_name}, has no value"
        raise ModelError("auth", message, hint=f"Set {endpoint.key_name.removeprefix('secret:')} among the secrets.")
    match endpoint.kind:
        case "scripted":
            return ScriptedModel(load_script(endpoint.script))
        case "openai" | "anthropic":
            if not endpoint.key and endpoint.base_url == _KNOWN[endpoint.kind][2]:
                hint = f"Set {_KNOWN[endpoint.kind][0]}, or write `key: secret:NAME` for the provider."
                raise ModelError("auth", f"there is no key for {endpoint.name}", hint=hint)
        case kind:
            raise ModelError("auth", f"{endpoint.name} is of kind {kind}, which is not available here")
    build: Callable[..., Model] = openai.OpenAIModel if endpoint.kind == "openai" else anthropic.AnthropicModel
    return build(
        http,
        clock,
        load_blob,
        name=endpoint.name,
        base_url=endpoint.base_url,
        key=endpoint.key,
        stream=endpoint.stream,
    )
