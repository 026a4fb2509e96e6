"""One door to all models: a name or a tier in, an answer out, with every try on the way accounted for.

    ask     resolve -> for each candidate: (pass its gate -> ask its model -> settle)*, waiting between tries

A try that fails with `server`, `rate_limit`, `timeout`, `connection` or `empty` is made again and then left to the
next candidate; `auth` goes to the next at once; `overflow`, `refused` and `invalid` end it, because the request
itself is at fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from atlas.kernel.budget import Quote
from atlas.kernel.config import Models
from atlas.kernel.errors import AtlasError, ErrorRecord, Problem
from atlas.kernel.model import (
    PASSED_ON,
    RETRIED,
    Asked,
    Attempt,
    Delta,
    LoadBlob,
    Model,
    ModelError,
    OnDelta,
    Reply,
    Request,
    Tab,
    Usage,
)
from atlas.kernel.port import Clock
from atlas.models.catalogue import Catalogue, Rate
from atlas.models.estimate import estimate, is_plausible, tokens
from atlas.models.gate import Gate, LeftAlone
from atlas.models.http import PATIENCE, Http, Patience, origin_of
from atlas.models.name import Names
from atlas.models.price import Cost, Home, Prices
from atlas.models.provider import Endpoint, build_model, endpoints
from atlas.models.scripted import Script
from atlas.models.weights import KNOWN

_REMEMBERED = 1_024
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


class Router:
    """Asks models by tier, by `provider:model`, or by a bare name that only one provider has.

    `keys`: the values of the configured keys, by provider. `load_script` gives the script that a scripted provider
    names. `adapters` build other kinds of provider, by kind. Close it in the loop that used it.
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
        adapters: Mapping[str, Callable[[Endpoint], Model]] | None = None,
        patience: Patience = PATIENCE,
        retry: Retry = RETRY,
    ) -> None:
        self.endpoints: Mapping[str, Endpoint] = endpoints(models, keys or {}, environ or {})
        self._clock = clock
        self._load_blob = load_blob
        self._load_script = load_script
        self._adapters = adapters or {}
        self._retry = retry
        self._http = Http(patience)
        self._catalogue = Catalogue()
        self._loading = asyncio.Lock()
        self._names = Names(models, self.endpoints, self._catalogue)
        self._prices = Prices(models.prices, {e.name: _home(e) for e in self.endpoints.values()}, self._catalogue)
        self._ready: dict[str, tuple[str, ...]] = {}
        self._windows: dict[str, int] = {}
        self._models: dict[str, Model] = {}
        self._gates: dict[str, Gate] = {}

    async def ask(self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None) -> Asked:
        """The answer of the first candidate that gives one; ModelError with all tries when none does.

        Each try goes on the `tab` as it ends, a cancelled one too, which nothing else can report.
        """
        candidates = self._ready.get(choice) or await self._prepare(choice)
        course = _Course(self._clock, self._retry, self._prices, request, on_delta, tab or Tab())
        if start := course.first % len(candidates):
            candidates = (*candidates[start:], *candidates[:start])
        failures: list[ModelError] = []
        for model in candidates:
            provider = model.partition(":")[0]
            is_last = len(failures) == len(candidates) - 1
            try:
                return await course.ask(model, self._model(provider), self._gate(provider), is_last=is_last)
            except ModelError as error:
                failures.append(error)
                if error.kind not in PASSED_ON:
                    break
        raise _combined(failures, candidates, tuple(course.attempts))

    def resolve(self, choice: str) -> tuple[str, ...]:
        """The candidates for a tier or a model, each as `provider:model`; Invalid when there is none."""
        return self._names.resolve(choice)

    def check(self, choice: str) -> None:
        """Raises what hinders every candidate before one is asked: Invalid for a name, ModelError for a missing key."""
        failures: list[ModelError] = []
        for model in self.resolve(choice):
            try:
                self._model(model.partition(":")[0])
            except ModelError as error:
                failures.append(error)
            else:
                return
        raise failures[0]

    @property
    def tiers(self) -> Mapping[str, tuple[str, ...]]:
        """The candidates of each tier as they are written."""
        return self._names.tiers

    def lacking(self, provider: str) -> AtlasError | None:
        """What keeps a provider from being asked, as far as this machine can tell without contacting it."""
        endpoint = self.endpoints[provider]
        try:
            self._model(provider)
            if endpoint.kind in ("openai", "anthropic"):
                origin_of(provider, endpoint.base_url)
        except AtlasError as error:
            return error
        return None

    def problems(self) -> list[Problem]:
        """Every name in the tiers that no provider can serve."""
        return self._names.problems()

    def cost(self, model: str, usage: Usage) -> Cost:
        """What a call to `provider:model` costs that used this much."""
        return self._prices.cost(model, usage, self._clock.now_us())

    def rate(self, model: str) -> tuple[Rate, bool]:
        """What `provider:model` costs for small requests now, and whether that is a guess."""
        return self._prices.rate(model, self._clock.now_us())

    async def quote(self, choice: str, tokens_in: int) -> Quote:
        """What a call that reads so many tokens costs at most, in micro-dollars, given the limit of its answer."""
        candidates = self._ready.get(choice) or await self._prepare(choice)
        guessed = tuple([model for model in candidates if self.rate(model)[1]])
        return Quote(lambda max_output: self.worst_case(choice, tokens_in, max_output).micro_usd, guessed)

    def worst_case(self, choice: str, tokens_in: int, max_output: int) -> Cost:
        """The most that one answered call can cost, whichever candidate gives it."""
        now_us = self._clock.now_us()
        costs = [self._prices.worst_case(model, tokens_in, max_output, now_us) for model in self.resolve(choice)]
        if len(costs) == 1:
            return costs[0]
        return Cost(max(cost.micro_usd for cost in costs), any(cost.is_guess for cost in costs))

    def context_window(self, choice: str) -> int | None:
        """The tokens that every candidate can take, as far as the catalogue knows them."""
        return self._narrowest(self.resolve(choice))

    async def window(self, choice: str) -> int:
        """The same, 0 for not known; of a catalogue that nothing else needs it does not make the caller wait."""
        if choice not in self._windows:
            candidates = self._ready.get(choice) or await self._prepare(choice)
            if not self._catalogue.is_loaded:  # something else may need it later, so this is not remembered
                kinds = {name: endpoint.kind for name, endpoint in self.endpoints.items()}
                return self._narrowest([one for one in candidates if kinds[one.partition(":")[0]] == "local"]) or 0
            if len(self._windows) >= _REMEMBERED:
                self._windows.clear()
            self._windows[choice] = self._narrowest(candidates) or 0
        return self._windows[choice]

    def _narrowest(self, models: Sequence[str]) -> int | None:
        windows = []
        for model in models:
            provider, _, name = model.partition(":")
            if self.endpoints[provider].kind == "local":
                windows += [KNOWN[name].context] if name in KNOWN else []
                continue
            address = self.endpoints[provider].base_url
            if self.endpoints[provider].kind == "pydantic-ai":
                provider, _, name = name.partition(":")
            listed = self._catalogue.provider(provider, address)
            if listed is not None and (window := self._catalogue.context_window(listed, name)) is not None:
                windows.append(window)
        return min(windows, default=None)

    async def load(self) -> None:
        """Reads the price catalogue beside the loop; otherwise the first call that needs it reads it."""
        async with self._loading:
            if not self._catalogue.is_loaded:
                await asyncio.to_thread(self._catalogue.load)

    async def close(self) -> None:
        """Gives back all connections."""
        for model in self._models.values():
            await model.close()
        await self._http.close()

    async def _prepare(self, choice: str) -> tuple[str, ...]:
        """The candidates for a choice, when all that asking them needs is at hand; remembered."""
        if not self._catalogue.is_loaded and (
            not self._names.is_full(choice) or not all(map(self._prices.is_at_hand, self.resolve(choice)))
        ):
            await self.load()
        if len(self._ready) >= _REMEMBERED:
            self._ready.clear()
        return self._ready.setdefault(choice, self.resolve(choice))

    def _model(self, provider: str) -> Model:
        if provider not in self._models:
            endpoint = self.endpoints[provider]
            build = self._adapters.get(endpoint.kind)
            self._models[provider] = (
                build(endpoint)
                if build is not None
                else build_model(endpoint, self._http, self._clock, self._load_blob, self._load_script)
            )
        return self._models[provider]

    def _gate(self, provider: str) -> Gate:
        if provider not in self._gates:
            limit = self.endpoints[provider].max_in_flight
            self._gates[provider] = Gate(limit, self._retry.breaker_threshold, self._retry.breaker_recovery_s)
        return self._gates[provider]


class _Course:
    """One question on its way through the candidates."""

    def __init__(
        self,
        clock: Clock,
        retry: Retry,
        prices: Prices,
        request: Request,
        on_delta: OnDelta,
        tab: Tab,
    ) -> None:
        self.attempts = tab.attempts
        self.first = tab.first
        self._tab = tab
        self._clock = clock
        self._retry = retry
        self._prices = prices
        self._request = request
        self._on_delta = on_delta
        self._now = asyncio.get_running_loop().time
        self._heard = 0

    async def ask(self, model: str, adapter: Model, gate: Gate, *, is_last: bool) -> Asked:
        """One candidate's answer, tried several times; raises its last ModelError."""
        tries = 0
        while True:
            tries += 1
            if self.attempts and not self._tab.covers(self._most(model, self._tokens_in(), self._max_output).micro_usd):
                raise self._uncovered()
            try:
                # Only the last candidate is waited for when it is being left alone.
                async with gate.passed(model, self._retry.longest_retry_after_s if is_last else 0.0):
                    return Asked(await self._try(model, adapter, gate), model, tuple(self.attempts))
            except LeftAlone:
                raise
            except ModelError as error:
                wait_s = self._wait_s(error, tries)
                # Behind the wait it would be found left alone, and the next candidate asked all the same.
                if wait_s is None or (not is_last and gate.away_s() > wait_s):
                    raise
            await asyncio.sleep(wait_s)

    def _wait_s(self, error: ModelError, tries: int) -> float | None:
        """How long to wait before the next try; None when there is none."""
        retry = self._retry
        if error.kind not in RETRIED or tries >= retry.tries or error.retry_after_s > retry.longest_retry_after_s:
            return None
        chance = int.from_bytes(self._clock.entropy(4), "big") / 2**32
        if error.retry_after_s:
            return error.retry_after_s * (1 + chance / 10)
        return min(retry.longest_wait_s, retry.first_wait_s * 2.0 ** (tries - 1)) * (1 + chance) / 2

    def _uncovered(self) -> ModelError:
        """What was reserved is used up by tries that failed; the reason of the last is what a person wants to know."""
        failed = self.attempts[-1].error
        why = f"{failed.message}; " if failed is not None else ""
        return ModelError("budget", f"{why}what was reserved for the call does not cover another try")

    @property
    def _max_output(self) -> int:
        return self._request.max_output_tokens

    def _tokens_in(self) -> int:
        """What a try may be counted to have read: what was reserved for that, else rather too much."""
        if self._tab.tokens_in:
            return self._tab.tokens_in
        return max(estimate(self._request).tokens_in, tokens(len(msgspec.json.encode(self._request))))

    def _most(self, model: str, tokens_in: int, tokens_out: int) -> Cost:
        return self._prices.worst_case(model, tokens_in, tokens_out, self._clock.now_us())

    async def _try(self, model: str, adapter: Model, gate: Gate) -> Reply:
        self._heard = 0
        request = msgspec.structs.replace(
            self._request, model=model.partition(":")[2], attempt=self._tab.tried + len(self.attempts) + 1
        )
        began = self._now()
        try:
            reply = await adapter.ask(request, self._hear)
        except ModelError as error:
            gate.failed(error.kind)
            self._settle(model, self._counted(error.usage or Usage()), began, error.record())
            raise
        except BaseException:  # cancelled: nobody else will know what it used
            gate.given_up()
            self._settle(model, estimate(request, self._heard), began, CANCELLED)
            raise
        gate.succeeded()
        usage = self._counted(reply.usage)
        self._settle(model, usage, began, None)
        return reply if usage is reply.usage else msgspec.structs.replace(reply, usage=usage)

    def _counted(self, usage: Usage) -> Usage:
        """The usage as the provider told it; where that cannot be, all that it might have been."""
        return usage if is_plausible(usage) else Usage(self._tokens_in(), self._max_output, is_estimated=True)

    def _hear(self, delta: Delta) -> None:
        self._heard += len(delta.text)
        self._on_delta(delta)

    def _settle(self, model: str, usage: Usage, began: float, error: ErrorRecord | None) -> None:
        """Puts the try on the tab: as it was billed, or, where nobody said, at the most that it may have cost."""
        latency_us = int((self._now() - began) * 1_000_000)
        if usage.is_estimated:
            usage = self._at_most(usage, is_lost=error is not None)
            cost = self._most(model, usage.tokens_in, usage.tokens_out)
            self.attempts.append(Attempt(model, usage, cost.micro_usd, latency_us, error, cost.is_guess))
            return
        now_us = self._clock.now_us()
        cost, saved = self._prices.cost(model, usage, now_us), self._prices.saved(model, usage, now_us)
        self.attempts.append(Attempt(model, usage, cost.micro_usd, latency_us, error, cost.is_guess, saved))

    def _at_most(self, usage: Usage, *, is_lost: bool) -> Usage:
        """All that the request may count as; of an answer that did not arrive whole, all that it might have been."""
        tokens_out = max(usage.tokens_out, self._max_output) if is_lost else usage.tokens_out
        tokens_in = max(usage.tokens_in, self._tokens_in())
        return msgspec.structs.replace(usage, tokens_in=tokens_in, tokens_out=tokens_out)


def _combined(failures: list[ModelError], candidates: tuple[str, ...], attempts: tuple[Attempt, ...]) -> ModelError:
    """One error for all candidates: the first one's kind, every one's reason; the last alone when it settled it."""
    last = failures[-1]
    if len(failures) == 1 or last.kind not in PASSED_ON:
        last.attempts = attempts
        return last
    reasons = "; ".join(f"{model}: {error.message}" for model, error in zip(candidates, failures, strict=False))
    waits = [error.retry_after_s for error in failures if error.retry_after_s]
    return ModelError(
        failures[0].kind,
        f"no model answered: {reasons}",
        retry_after_s=min(waits, default=0.0),
        hint=failures[0].hint,
        attempts=attempts,
    )


def _home(endpoint: Endpoint) -> Home:
    return Home(endpoint.base_url, endpoint.kind in ("scripted", "local"), endpoint.kind == "pydantic-ai")
