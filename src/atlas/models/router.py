"""One door to all models: a name or a tier in, an answer out, with every try on the way accounted for.

    ask     resolve -> for each candidate: (enter its lane -> ask its model -> settle)*, waiting between tries

A try that fails with `server`, `rate_limit`, `timeout`, `connection` or `empty` is made again and then left to the
next candidate; `auth` goes to the next at once; `overflow`, `refused` and `invalid` end it, because the request
itself is at fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from atlas.kernel.config import Models
from atlas.kernel.errors import ErrorRecord, Invalid, Problem
from atlas.kernel.model import (
    Asked,
    Attempt,
    Delta,
    LoadBlob,
    Model,
    ModelError,
    OnAttempt,
    OnDelta,
    Reply,
    Request,
    Usage,
)
from atlas.kernel.port import Clock
from atlas.models.catalogue import Catalogue
from atlas.models.estimate import estimate
from atlas.models.http import PATIENCE, Http, Patience
from atlas.models.price import Cost, Home, Prices
from atlas.models.provider import Endpoint, Gate, endpoints, is_own_address, wire_model
from atlas.models.scripted import Script, ScriptedModel

TIERS = ("fast", "balanced", "powerful")
RETRIED = frozenset({"server", "rate_limit", "timeout", "connection", "empty"})
PASSED_ON = RETRIED | {"auth"}
CANCELLED = ErrorRecord("cancelled", "the call was cancelled before its answer was whole")


class Retry(msgspec.Struct, frozen=True):
    """How often a candidate is tried, how long to wait in between, and when a provider is left alone."""

    tries: int = 3
    first_wait_s: float = 0.5
    longest_wait_s: float = 8.0
    longest_retry_after_s: float = 60.0
    breaker_threshold: int = 5
    breaker_recovery_s: float = 30.0


RETRY = Retry()
Adapter = Callable[[Endpoint], Model]


class Router:
    """Asks models by tier, by `provider:model`, or by a bare name that only one provider has.

    `keys`: the values of the configured keys, by provider. `load_script` gives the script that a scripted provider
    names. `adapters` are for other kinds of provider, by kind. Close it in the loop that used it.
    """

    def __init__(
        self,
        models: Models,
        *,
        clock: Clock,
        load_blob: LoadBlob,
        load_script: Callable[[str], Script],
        keys: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        adapters: Mapping[str, Adapter] | None = None,
        patience: Patience = PATIENCE,
        retry: Retry = RETRY,
    ) -> None:
        self.endpoints: Mapping[str, Endpoint] = endpoints(models, keys or {}, environ or {})
        self._tiers = {tier: getattr(models.tiers, tier) for tier in TIERS}
        self._clock = clock
        self._load_blob = load_blob
        self._load_script = load_script
        self._adapters = adapters or {}
        self._retry = retry
        self._http = Http(patience)
        self._catalogue = Catalogue()
        self._listed = frozenset(models.prices)
        self._prices = Prices(models.prices, {e.name: _home(e) for e in self.endpoints.values()}, self._catalogue)
        self._models: dict[str, Model] = {}
        self._gates: dict[str, Gate] = {}
        self._resolved: dict[str, str] = {}

    async def ask(self, choice: str, request: Request, on_delta: OnDelta, on_attempt: OnAttempt | None = None) -> Asked:
        """The answer of the first candidate that gives one; ModelError with all tries when none does.

        `on_attempt` hears of each try as it ends, a cancelled one too, which nothing else can report.
        """
        course = _Course(self, request, on_delta, on_attempt)
        error: ModelError | None = None
        for model in self.resolve(choice):
            try:
                return await course.ask(model)
            except ModelError as failed:
                error = failed
                if failed.kind not in PASSED_ON:
                    break
        assert error is not None, "resolve gives at least one candidate"
        error.attempts = tuple(course.attempts)
        raise error

    def resolve(self, choice: str) -> tuple[str, ...]:
        """The candidates for a tier or a model, each as `provider:model`; Invalid when there is none.

        Of a tier, names that cannot be resolved are passed over as long as one can; `problems` lists them.
        """
        if choice not in self._tiers:
            return (self._resolve(choice),)
        names = self._tiers[choice]
        found, complaints = [], []
        for name in names:
            try:
                found.append(self._resolve(name))
            except Invalid as error:
                complaints.append(error)
        if found:
            return tuple(found)
        if complaints:
            raise complaints[0]
        raise Invalid(
            f"no model is configured for the tier {choice}",
            hint=f"Name one under models.tiers.{choice} in atlas.config.yaml, or set {choice} aside for provider:model.",
            code="tier_empty",
        )

    def problems(self) -> list[Problem]:
        """Every name in the tiers that no provider can serve."""
        found = []
        for tier, names in self._tiers.items():
            for name in names:
                try:
                    self._resolve(name)
                except Invalid as error:
                    found.append(Problem(error.reason, f"models.tiers.{tier}: {error.message}", hint=error.hint))
        return found

    def cost(self, model: str, usage: Usage) -> Cost:
        """What a call to `provider:model` costs that used this much."""
        return self._prices.cost(model, usage, self._clock.now_us())

    def worst_case(self, choice: str, tokens_in: int, max_output: int) -> Cost:
        """The most that one answered call can cost, whichever candidate gives it."""
        now_us = self._clock.now_us()
        costs = [self._prices.worst_case(model, tokens_in, max_output, now_us) for model in self.resolve(choice)]
        return Cost(max(cost.micro_usd for cost in costs), any(cost.is_guess for cost in costs))

    def context_window(self, choice: str) -> int | None:
        """The tokens that every candidate can take, where the catalogue knows it."""
        windows = []
        for model in self.resolve(choice):
            provider, _, name = model.partition(":")
            listed = self._catalogue.provider(provider, self.endpoints[provider].base_url)
            if listed is not None and (window := self._catalogue.context_window(listed, name)) is not None:
                windows.append(window)
        return min(windows, default=None)

    async def load(self) -> None:
        """Reads the price catalogue beside the loop; otherwise the first price that is asked for reads it."""
        await asyncio.to_thread(self._catalogue.load)

    async def close(self) -> None:
        """Gives back all connections."""
        for model in self._models.values():
            await model.close()
        await self._http.close()

    def gate(self, provider: str) -> Gate:
        """The provider's lane and breaker."""
        if provider not in self._gates:
            limit = self.endpoints[provider].max_in_flight
            self._gates[provider] = Gate(limit, self._retry.breaker_threshold, self._retry.breaker_recovery_s)
        return self._gates[provider]

    def model(self, provider: str) -> Model:
        """The provider's adapter; ModelError when it cannot be had."""
        if provider not in self._models:
            self._models[provider] = self._build(self.endpoints[provider])
        return self._models[provider]

    def _build(self, endpoint: Endpoint) -> Model:
        if (adapter := self._adapters.get(endpoint.kind)) is not None:
            return adapter(endpoint)
        match endpoint.kind:
            case "scripted":
                return ScriptedModel(self._load_script(endpoint.script))
            case "openai" | "anthropic":
                if not endpoint.key and is_own_address(endpoint):
                    hint = f"Set {endpoint.kind.upper()}_API_KEY, or `key: secret:NAME` for the provider."
                    raise ModelError("auth", f"there is no key for {endpoint.name}", hint=hint)
                return wire_model(endpoint, self._http, self._clock, self._load_blob)
            case kind:
                raise ModelError("auth", f"{endpoint.name} is of kind {kind}, which is not available here")

    def _resolve(self, name: str) -> str:
        if name not in self._resolved:
            self._resolved[name] = self._searched(name)
        return self._resolved[name]

    def _searched(self, name: str) -> str:
        provider, colon, model = name.partition(":")
        if colon and model and provider in self.endpoints:
            return name
        homes = self._homes(name)
        if len(homes) == 1:
            return f"{homes[0]}:{name}"
        known = ", ".join(sorted(self.endpoints)) or "none"
        if homes:
            message = f"more than one provider has {name}: {', '.join(homes)}"
            raise Invalid(message, hint=f"Write {homes[0]}:{name}.", code="model_ambiguous")
        if colon:
            message, hint = f"there is no provider {provider}", f"The providers are: {known}."
        else:
            message = f"no provider is known to have {name}"
            hint = f"Write it as provider:model. The providers are: {known}."
        raise Invalid(message, hint=hint, code="model_unknown")

    def _homes(self, model: str) -> list[str]:
        """The providers that have a model: by the configured prices, else by the catalogue, else by its maker."""
        if priced := [name for name in self.endpoints if f"{name}:{model}" in self._listed]:
            return priced
        wires = [each for each in self.endpoints.values() if each.kind in ("openai", "anthropic")]
        listed = {each.name: self._catalogue.provider(each.name, each.base_url) for each in wires}
        if sold := [name for name, where in listed.items() if where is not None and self._catalogue.has(where, model)]:
            return sold
        maker = self._catalogue.vendor(model)
        return [name for name, where in listed.items() if where is not None and where == maker]


class _Course:
    """One question on its way through the candidates."""

    def __init__(self, router: Router, request: Request, on_delta: OnDelta, on_attempt: OnAttempt | None) -> None:
        self.attempts: list[Attempt] = []
        self._router = router
        self._request = request
        self._on_delta = on_delta
        self._on_attempt = on_attempt
        self._now = asyncio.get_running_loop().time
        self._number = 0
        self._heard = 0

    async def ask(self, model: str) -> Asked:
        """One candidate's answer, tried several times; raises its last ModelError."""
        retry = self._router._retry
        tries = 0
        while True:
            tries += 1
            try:
                reply = await self._enter(model)
            except ModelError as error:
                wait_s = self._wait_s(error, tries, retry)
                if wait_s is None:
                    raise
                await asyncio.sleep(wait_s)
            else:
                return Asked(reply, model, tuple(self.attempts))

    def _wait_s(self, error: ModelError, tries: int, retry: Retry) -> float | None:
        """How long to wait before the next try; None when there is none."""
        if error.kind not in RETRIED or tries >= retry.tries or error.retry_after_s > retry.longest_retry_after_s:
            return None
        chance = int.from_bytes(self._router._clock.entropy(4), "big") / 2**32
        if error.retry_after_s:
            return error.retry_after_s * (1 + chance / 10)
        return min(retry.longest_wait_s, retry.first_wait_s * 2.0 ** (tries - 1)) * (1 + chance) / 2

    async def _enter(self, model: str) -> Reply:
        """Waits for the provider's lane, and tries once."""
        provider, _, name = model.partition(":")
        adapter = self._router.model(provider)
        gate = self._router.gate(provider)
        async with gate.lane:
            if away_s := gate.breaker.admit(self._now()):
                raise ModelError(
                    "server", f"{provider} failed too often and is left alone for now", retry_after_s=away_s
                )
            return await self._try(adapter, gate, model, name)

    async def _try(self, adapter: Model, gate: Gate, model: str, name: str) -> Reply:
        self._number += 1
        self._heard = 0
        request = msgspec.structs.replace(self._request, model=name, attempt=self._number)
        began = self._now()
        try:
            reply = await adapter.ask(request, self._hear)
        except ModelError as error:
            gate.breaker.failed(error.kind, self._now())
            self._settle(model, error.usage or Usage(), began, error.record())
            raise
        except asyncio.CancelledError:
            gate.breaker.given_up()
            self._settle(model, estimate(request, self._heard), began, CANCELLED)
            raise
        except BaseException:
            gate.breaker.given_up()
            raise
        gate.breaker.succeeded()
        self._settle(model, reply.usage, began, None)
        return reply

    def _hear(self, delta: Delta) -> None:
        self._heard += len(delta.text)
        self._on_delta(delta)

    def _settle(self, model: str, usage: Usage, began: float, error: ErrorRecord | None) -> None:
        cost = self._router.cost(model, usage)
        latency_us = int((self._now() - began) * 1_000_000)
        attempt = Attempt(model, usage, cost.micro_usd, latency_us, error, cost.is_guess)
        self.attempts.append(attempt)
        if self._on_attempt is not None:
            self._on_attempt(attempt)


def _home(endpoint: Endpoint) -> Home:
    return Home(endpoint.base_url, is_free=endpoint.kind in ("scripted", "local"))
