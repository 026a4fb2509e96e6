"""Providers: where each one is, which key it gets, and the adapter that speaks to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from atlas.kernel.config import Models, Provider
from atlas.kernel.model import LoadBlob, Model, ModelError
from atlas.kernel.port import Clock
from atlas.models import anthropic, openai
from atlas.models.http import Http, shown
from atlas.models.scripted import Script, ScriptedModel
from atlas.models.weights import KNOWN as KNOWN_WEIGHTS
from atlas.models.weights import SMOLLM2, find_weights, folder_of, has_engine

MAX_IN_FLIGHT = 64
UNLIMITED = 1_000_000
PROVIDERS_EXTRA = "pip install 'atlas-agents[providers]' and the provider's own package"
_KEYLESS = "Write `key: secret:NAME` for the provider, or the base_url of a server that wants no key."
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
    folder: str = ""
    source: Literal["config", "environment", "local"] = "config"

    def __repr__(self) -> str:
        return f"Endpoint(name={self.name!r}, kind={self.kind!r}, base_url={shown(self.base_url)!r}, has_key={bool(self.key)})"


def endpoints(models: Models, keys: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Endpoint]:
    """All providers by name: those of the configuration, and `openai` and `anthropic` when the environment has them.

    `local` is there of itself when its weights and what runs them are.
    `keys` are the values of the keys that the configuration names, by provider. A key from the environment goes only
    to the provider of that name, and only to an address that is its own or from the environment too.
    """
    found = {name: _endpoint(name, provider, keys, environ) for name, provider in models.providers.items()}
    for name, (key, base_url, _) in _KNOWN.items():
        if name not in found and (_given(environ, key) or _given(environ, base_url)):
            known = Provider(kind="openai" if name == "openai" else "anthropic")
            found[name] = msgspec.structs.replace(_endpoint(name, known, keys, environ), source="environment")
    if "local" not in found:
        local = _endpoint("local", Provider(kind="local"), keys, environ)
        if complaint(local) is None:
            found["local"] = msgspec.structs.replace(local, source="local")
    return found


def _endpoint(name: str, provider: Provider, keys: Mapping[str, str], environ: Mapping[str, str]) -> Endpoint:
    base_url, key = provider.base_url or "", _given(keys, name)
    if provider.kind in _KNOWN:
        key_name, base_name, default = _KNOWN[provider.kind]
        is_namesake = name == provider.kind
        if is_namesake and not provider.key and not provider.base_url:
            key = _given(environ, key_name)
        base_url = base_url or (_given(environ, base_name) if is_namesake else "") or default
    usual = {"scripted": UNLIMITED, "local": 1}.get(provider.kind, MAX_IN_FLIGHT)
    folder = str(folder_of(environ) or "") if provider.kind == "local" else ""
    limit = provider.max_in_flight or usual
    key_name = provider.key or ""
    return Endpoint(name, provider.kind, base_url, key, key_name, limit, provider.script, provider.stream, folder)


def _given(values: Mapping[str, str], name: str) -> str:
    """A value without the line break that came along when it was kept."""
    return values.get(name, "").strip()


def absent(found: Mapping[str, Endpoint], environ: Mapping[str, str]) -> list[Endpoint]:
    """The providers that would be there of themselves, if the environment had a key or this machine the weights."""
    usual = {
        "openai": Provider(kind="openai"),
        "anthropic": Provider(kind="anthropic"),
        "local": Provider(kind="local"),
    }
    return [
        msgspec.structs.replace(
            _endpoint(name, provider, {}, environ), source="local" if name == "local" else "environment"
        )
        for name, provider in usual.items()
        if name not in found
    ]


def how_to_get(name: str) -> str:
    """What a provider needs that is there of itself as soon as it has that; empty for every other."""
    if name == "local":
        return "'atlas models pull' fetches the weights; 'atlas models list' says what else is missing."
    return f"Set {_KNOWN[name][0]}, or write `key: secret:NAME` for the provider." if name in _KNOWN else ""


def complaint(endpoint: Endpoint) -> ModelError | None:
    """What this installation or the configuration lacks before the provider can be asked; contacts nobody."""
    if endpoint.key_name and not endpoint.key:
        message = f"the key of {endpoint.name}, {endpoint.key_name}, has no value"
        name = endpoint.key_name.removeprefix("secret:")
        hint = f"Set {name} in the environment, or in a vault keep one with 'atlas secrets set {name}'."
        return ModelError("auth", message, hint=hint)
    match endpoint.kind:
        case "scripted" if not endpoint.script:
            return ModelError("auth", f"{endpoint.name} names no script", hint="Write `script: FILE` for the provider.")
        case "openai" | "anthropic" if not endpoint.key and endpoint.base_url == _KNOWN[endpoint.kind][2]:
            # The environment's key goes to the maker's namesake alone.
            hint = how_to_get(endpoint.kind) if endpoint.name == endpoint.kind else _KEYLESS
            return ModelError("auth", f"there is no key for {endpoint.name}", hint=hint)
        case "local":
            folder = Path(endpoint.folder) if endpoint.folder else None
            if not has_engine() or not any(find_weights(folder, each) for each in KNOWN_WEIGHTS.values()):
                from atlas.models.local import lacking

                return lacking(endpoint.name, SMOLLM2.name, folder)
        case "pydantic-ai" if find_spec("pydantic_ai") is None:
            return ModelError("auth", "the extra `providers` is not installed", hint=f"Run: {PROVIDERS_EXTRA}")
    return None


def is_makers_own(endpoint: Endpoint) -> bool:
    """Whether it is OpenAI's or Anthropic's own service, under its own name and with a key."""
    known = _KNOWN.get(endpoint.kind)
    is_home = known is not None and endpoint.base_url.rstrip("/") == known[2]
    return is_home and endpoint.name == endpoint.kind and bool(endpoint.key)


def build_model(
    endpoint: Endpoint, http: Http, clock: Clock, load_blob: LoadBlob, load_script: Callable[[str], Script]
) -> Model:
    """The adapter for an endpoint; ModelError when this installation or its configuration lacks something."""
    if (lack := complaint(endpoint)) is not None:
        raise lack
    build: Callable[..., Model] = openai.OpenAIModel
    match endpoint.kind:
        case "scripted":
            return ScriptedModel(load_script(endpoint.script))
        case "local":
            from atlas.models.local import LocalModel

            return LocalModel(Path(endpoint.folder), clock, load_blob, name=endpoint.name)
        case "pydantic-ai":
            from atlas.models.pydantic_ai import PydanticAIModel

            return PydanticAIModel(
                load_blob, name=endpoint.name, base_url=endpoint.base_url, key=endpoint.key, stream=endpoint.stream
            )
        case "anthropic":
            build = anthropic.AnthropicModel
        case "openai":
            pass
        case kind:
            raise ModelError("auth", f"{endpoint.name} is of kind {kind}, which is not available here")
    return build(
        http,
        clock,
        load_blob,
        name=endpoint.name,
        base_url=endpoint.base_url,
        key=endpoint.key,
        stream=endpoint.stream,
    )
