"""Providers: where each one is, which key it gets, how many calls it takes at once, and when it is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from atlas.kernel.config import Models, Provider
from atlas.kernel.model import LoadBlob, Model, ModelErrorKind
from atlas.kernel.port import Clock
from atlas.models import anthropic, openai
from atlas.models.http import Http

MAX_IN_FLIGHT = 64
UNLIMITED = 1_000_000
# The provider itself failed; anything else it says shows that it is there.
_OUTAGES = frozenset({"server", "timeout", "connection"})
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
        if not key and is_namesake and not provider.base_url:
            key = environ.get(key_name, "")
        base_url = base_url or (environ.get(base_name, "") if is_namesake else "") or default
    limit = provider.max_in_flight or (UNLIMITED if provider.kind == "scripted" else MAX_IN_FLIGHT)
    return Endpoint(name, provider.kind, base_url, key, limit, provider.script, provider.stream)


def wire_model(endpoint: Endpoint, http: Http, clock: Clock, load_blob: LoadBlob) -> Model:
    """The adapter for an endpoint that speaks one of the two wires."""
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


def is_own_address(endpoint: Endpoint) -> bool:
    """Whether the endpoint is its maker's own service, which answers nobody without a key."""
    return endpoint.kind in _KNOWN and endpoint.base_url == _KNOWN[endpoint.kind][2]


class Breaker:
    """Leaves a provider alone for a while when it failed several times in a row, then lets one call try.

    Times are the loop's, which never jump.
    """

    def __init__(self, threshold: int, recovery_s: float) -> None:
        self._threshold = threshold
        self._recovery_s = recovery_s
        self._failures = 0
        self._open_until = 0.0
        self._is_open = False
        self._is_probing = False

    def admit(self, now: float) -> float:
        """0 when a call may go, as the probe when the breaker was open; else how many seconds to stay away."""
        if not self._is_open:
            return 0.0
        if now < self._open_until:
            return self._open_until - now
        if self._is_probing:
            return self._recovery_s
        self._is_probing = True
        return 0.0

    def succeeded(self) -> None:
        """The provider answered."""
        self._failures = 0
        self._is_open = self._is_probing = False

    def failed(self, kind: ModelErrorKind, now: float) -> None:
        """A call that was let through failed."""
        if kind not in _OUTAGES:
            self.succeeded()
            return
        self._failures += 1
        if self._is_probing or self._failures >= self._threshold:
            self._is_open = True
            self._open_until = now + self._recovery_s
        self._is_probing = False

    def given_up(self) -> None:
        """A call was cancelled and shows nothing: another one may be the probe."""
        self._is_probing = False


class Gate:
    """A provider's lane and breaker. Calls enter first come, first served."""

    def __init__(self, max_in_flight: int, threshold: int, recovery_s: float) -> None:
        self.lane = asyncio.Semaphore(max_in_flight)
        self.breaker = Breaker(threshold, recovery_s)
