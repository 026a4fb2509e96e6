"""What calls cost, in whole micro-dollars, always rounded up.

From the configuration, else from the catalogue. A model whose price there is not known is taken to cost what its maker
takes, else the highest known rate, and the cost says that it is a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal

import msgspec

from atlas.kernel.config import Price
from atlas.kernel.model import Usage
from atlas.models.catalogue import FREE, MICRO, Catalogue, Rate, Rates


class Cost(msgspec.Struct, frozen=True):
    """An amount, and whether it was guessed because the model's price is unknown."""

    micro_usd: int
    is_guess: bool = False


class Home(msgspec.Struct, frozen=True):
    """Where a provider's models are: for finding it in the catalogue. `is_free`: nobody bills for them.

    `is_broker`: it asks others, and its models are named with the one who is asked, as in `google:gemini-flash`.
    """

    base_url: str
    is_free: bool = False
    is_broker: bool = False


class Prices:
    """The cost of calls to `provider:model`."""

    def __init__(self, overrides: Mapping[str, Price], homes: Mapping[str, Home], catalogue: Catalogue) -> None:
        self._overrides = {model: _rates(price) for model, price in overrides.items()}
        self._homes = homes
        self._catalogue = catalogue

    def cost(self, model: str, usage: Usage, at_us: int) -> Cost:
        """What a call cost that used this much, at the rates of that time."""
        rates, is_guess = self._find(model, at_us)
        return Cost(_cost(rates, usage), is_guess)

    def saved(self, model: str, usage: Usage, at_us: int) -> int:
        """What such a call would have cost more, in micro-dollars, had nothing of it been read from a cache."""
        if not usage.cached_in:
            return 0
        rates, _ = self._find(model, at_us)
        return _cost(rates, msgspec.structs.replace(usage, cached_in=0)) - _cost(rates, usage)

    def rate(self, model: str, at_us: int) -> tuple[Rate, bool]:
        """What a model charges for small requests at that time, and whether that is a guess."""
        rates, is_guess = self._find(model, at_us)
        return rates.at(0), is_guess

    def worst_case(self, model: str, tokens_in: int, max_output: int, at_us: int) -> Cost:
        """The most that a call can cost with so many tokens in and at most so many out."""
        rates, is_guess = self._find(model, at_us)
        rate = rates.at(tokens_in)
        dearest = max(rate.input, rate.cache_read, rate.cache_write)
        return Cost(_rounded(tokens_in * dearest + max_output * rate.output) + rate.request, is_guess)

    def is_at_hand(self, model: str) -> bool:
        """Whether the model's price is known without the catalogue."""
        home = self._homes.get(model.partition(":")[0])
        return model in self._overrides or (home is not None and home.is_free)

    def _find(self, model: str, at_us: int) -> tuple[Rates, bool]:
        found = self._overrides.get(model)
        if found is not None:
            return found, False
        provider, _, name = model.partition(":")
        home = self._homes.get(provider)
        if home is not None and home.is_free:
            return FREE, False
        if home is not None and home.is_broker:
            provider, _, name = name.partition(":")
        listed = self._catalogue.provider(provider, home.base_url) if home is not None else None
        if listed is not None and (found := self._catalogue.rates(listed, name, at_us)) is not None:
            return found, False
        # A server that the catalogue does not list may resell a model that it does: its maker's price is the better
        # guess. One it lists and that has no such model is simply unknown.
        maker = self._catalogue.vendor(name) if listed is None else None
        if maker is not None and (found := self._catalogue.rates(maker, name, at_us)) is not None:
            return found, True
        return self._catalogue.highest(), True


def _cost(rates: Rates, usage: Usage) -> int:
    rate = rates.at(usage.tokens_in)
    plain = max(0, usage.tokens_in - usage.cached_in - usage.cache_write_in)
    total = plain * rate.input + usage.cached_in * rate.cache_read + usage.cache_write_in * rate.cache_write
    return _rounded(total + usage.tokens_out * rate.output) + rate.request


def _rates(price: Price) -> Rates:
    paid = _micro(price.input_usd_per_mtok)
    read, write = price.cache_read_usd_per_mtok, price.cache_write_usd_per_mtok
    rate = Rate(
        input=paid,
        output=_micro(price.output_usd_per_mtok),
        cache_read=paid if read is None else _micro(read),
        cache_write=paid if write is None else _micro(write),
    )
    return Rates(((0, rate),))


def _micro(usd: float) -> int:
    # Through its shortest decimal form: 0.1 means a tenth, not the binary number next to it.
    return int((Decimal(str(usd)) * MICRO).to_integral_value(ROUND_CEILING))


def _rounded(total: int) -> int:
    return -(-total // MICRO)
