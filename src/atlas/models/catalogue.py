"""The price catalogue: which provider has which model at what rates, from the data inside genai-prices.

Loaded when first needed (it takes a fifth of a second) and from the installed package only: the package's own
updater, which would fetch newer prices from the network, is never started, and a snapshot that other code in this
process may have set does not change what a run cost.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, Provider

MICRO = 1_000_000
_REMEMBERED = 1_024


class Rate(msgspec.Struct, frozen=True):
    """Micro-dollars per million tokens, and per request."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    request: int = 0


class Rates(msgspec.Struct, frozen=True):
    """A model's rates by the size of the request: each tier with the tokens above which it holds, smallest first."""

    tiers: tuple[tuple[int, Rate], ...]

    def at(self, tokens_in: int) -> Rate:
        """The rate for a request of this size; it holds for all of its tokens."""
        chosen = self.tiers[0][1]
        for start, rate in self.tiers[1:]:
            if tokens_in > start:
                chosen = rate
        return chosen


FREE = Rates(((0, Rate(0, 0, 0, 0)),))


class Catalogue:
    """What genai-prices knows, looked up by provider and model."""

    def __init__(self) -> None:
        self._loaded: DataSnapshot | None = None
        self._highest: Rates | None = None
        self._models: dict[tuple[str, str], ModelInfo | None] = {}
        self._constant: dict[int, Rates | None] = {}

    @property
    def is_loaded(self) -> bool:
        """Whether the catalogue has been read."""
        return self._loaded is not None

    def load(self) -> None:
        """Reads the catalogue now, so that no later call has to; a second time does nothing."""
        self._snapshot()

    def provider(self, name: str, base_url: str) -> str | None:
        """The catalogue's name for a provider, by its address or else by the name we gave it."""
        snapshot = self._snapshot()
        for known in (
            {"provider_api_url": base_url, "provider_id": None},
            {"provider_api_url": None, "provider_id": name},
        ):
            try:
                return snapshot.find_provider(None, **known).id
            except LookupError:
                continue
        return None

    def vendor(self, model: str) -> str | None:
        """The provider that makes a model, going by the model's name alone."""
        try:
            return self._snapshot().find_provider(model.lower(), None, None).id
        except LookupError:
            return None

    def has(self, provider: str, model: str) -> bool:
        """Whether the provider offers the model."""
        return self._find(provider, model) is not None

    def rates(self, provider: str, model: str, at_us: int) -> Rates | None:
        """What the provider charges for the model at a time; None when the catalogue does not say."""
        info = self._find(provider, model)
        if info is None or not info.prices:
            return None
        if info.id.endswith(":free"):  # OpenRouter's own word; what costs nothing is listed there without a price
            return FREE
        if isinstance(info.prices, list):  # some by date or by the time of day
            return _rates(info.get_prices(datetime.fromtimestamp(at_us / MICRO, UTC)))
        key = id(info)  # the catalogue lives as long as this object, so no other model can get the same
        if key not in self._constant:
            self._constant[key] = _rates(info.prices)
        return self._constant[key]

    def context_window(self, provider: str, model: str) -> int | None:
        """The tokens a request and its answer may have together."""
        info = self._find(provider, model)
        return info.context_window if info is not None else None

    def highest(self) -> Rates:
        """The highest rates per token of any model, each on its own: what an unknown one is taken to cost."""
        if self._highest is None:
            rates = [
                rate
                for provider in self._snapshot().providers
                for model in provider.models
                for price in _all_prices(model)
                if (found := _rates(price)) is not None
                for _, rate in found.tiers
            ]
            tokens = ("input", "output", "cache_read", "cache_write")
            self._highest = Rates(((0, Rate(*(max(getattr(rate, name) for rate in rates) for name in tokens))),))
        return self._highest

    def _snapshot(self) -> DataSnapshot:
        if self._loaded is None:
            from genai_prices.data import providers
            from genai_prices.data_snapshot import DataSnapshot

            self._loaded = DataSnapshot(providers=providers, from_auto_update=False)
        return self._loaded

    def _find(self, provider: str, model: str) -> ModelInfo | None:
        key = (provider, model)
        if key not in self._models:
            if len(self._models) >= _REMEMBERED:
                self._models.clear()
            self._models[key] = self._search(provider, model)
        return self._models[key]

    def _search(self, provider: str, model: str) -> ModelInfo | None:
        providers: list[Provider] = self._snapshot().providers
        for each in providers:
            if each.id == provider:
                return each.find_model(model, all_providers=providers)
        return None


def _all_prices(model: ModelInfo) -> list[ModelPrice]:
    return [each.prices for each in model.prices] if isinstance(model.prices, list) else [model.prices]


def _rates(price: ModelPrice) -> Rates | None:
    """The part of a price that is about text; None when there is none."""
    fields: dict[str, Any] = vars(price)
    if fields.get("input_mtok") is None and fields.get("output_mtok") is None:
        return None
    starts = {0} | {tier.start for value in fields.values() for tier in getattr(value, "tiers", ())}
    return Rates(tuple((start, _rate(fields, start)) for start in sorted(starts)))


def _rate(fields: dict[str, Any], start: int) -> Rate:
    read = {key: _amount(value, start) for key, value in fields.items() if value is not None}
    paid = read.get("input_mtok", 0)
    return Rate(
        input=paid,
        output=max(read.get("output_mtok", 0), read.get("output_reasoning_mtok", 0)),
        cache_read=read.get("cache_read_mtok", paid),
        cache_write=read.get("cache_write_mtok", paid),
        request=-(-read.get("requests_kcount", 0) // 1000),
    )


def _amount(value: Any, start: int) -> int:
    """Dollars as micro-dollars, rounded up, for requests of more than `start` tokens."""
    chosen = value.base if hasattr(value, "base") else value
    for tier in getattr(value, "tiers", ()):
        if start >= tier.start:
            chosen = tier.price
    return int((Decimal(chosen) * MICRO).to_integral_value(ROUND_CEILING))
