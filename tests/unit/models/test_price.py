"""Costs in whole micro-dollars: from the configuration, else the catalogue, else the highest rate there is."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas.kernel.config import Price
from atlas.kernel.model import Usage
from atlas.models.catalogue import Catalogue
from atlas.models.price import Cost, Home, Prices

NOW_US = 1_790_000_000_000_000  # 2026-09-21
CATALOGUE = Catalogue()
HOMES = {
    "anthropic": Home("https://api.anthropic.com"),
    "openai": Home("https://api.openai.com/v1"),
    "fast": Home("https://api.groq.com/openai/v1"),
    "router": Home("https://openrouter.ai/api/v1"),
    "lab": Home("http://127.0.0.1:8000/v1"),
    "demo": Home("", is_free=True),
}
PRICES = Prices({"lab:small": Price(0.1, 0.4), "lab:cached": Price(1.0, 2.0, 0.25, 1.25)}, HOMES, CATALOGUE)
COUNT = st.integers(0, 2_000_000)


@pytest.mark.parametrize(
    "model, usage, micro_usd",
    [
        ("lab:small", Usage(1_000_000, 1_000_000), 500_000),
        ("lab:small", Usage(10, 0), 1),
        ("lab:small", Usage(11, 0), 2),
        ("lab:small", Usage(1_000_000, 0, 400_000, 100_000), 100_000),
        ("lab:cached", Usage(1_000_000, 0, 400_000, 100_000), 500_000 + 100_000 + 125_000),
        ("lab:cached", Usage(), 0),
        ("demo:anything", Usage(1_000_000, 1_000_000), 0),
    ],
)
def test_configured_prices_are_exact_and_rounded_up(model: str, usage: Usage, micro_usd: int) -> None:
    assert PRICES.cost(model, usage, NOW_US) == Cost(micro_usd)


def test_catalogue_prices_are_found_by_address_or_by_name() -> None:
    # $3 and $15 per million; read from the cache $0.30, written to it $3.75.
    cost = PRICES.cost("anthropic:claude-sonnet-4-5", Usage(1000, 100, 500, 200), NOW_US)
    assert cost == Cost(300 * 3 + 150 + 750 + 1500)
    assert not PRICES.cost("fast:llama-3.3-70b-versatile", Usage(10, 10), NOW_US).is_guess


def test_what_openrouter_lists_as_free_costs_nothing_and_what_nobody_lists_is_not_taken_for_free() -> None:
    assert PRICES.cost("router:meta-llama/llama-3.3-70b-instruct:free", Usage(1000, 100), NOW_US) == Cost(0)
    unlisted = PRICES.cost("router:nobody/knows-this:free", Usage(1000, 100), NOW_US)
    assert (unlisted.is_guess, unlisted.micro_usd > 0) == (True, True)


def test_rate_of_a_large_request_holds_for_all_its_tokens() -> None:
    small = PRICES.cost("anthropic:claude-sonnet-4-5", Usage(200_000), NOW_US).micro_usd
    large = PRICES.cost("anthropic:claude-sonnet-4-5", Usage(200_001), NOW_US).micro_usd
    assert (small, large) == (600_000, 1_200_006)


def test_an_unknown_model_costs_the_highest_rate_and_says_that_it_is_a_guess() -> None:
    highest = CATALOGUE.highest().at(0)
    for model in ("lab:unheard-of", "anthropic:unheard-of", "nobody:unheard-of", "unheard-of"):
        cost = PRICES.cost(model, Usage(1_000_000, 1_000_000), NOW_US)
        assert cost == Cost(highest.input + highest.output, is_guess=True)
    assert highest.input >= 100_000_000  # dearer than anything in common use


def test_a_known_model_from_an_unknown_server_costs_what_its_maker_takes_as_a_guess() -> None:
    usage = Usage(1000, 100)
    cost = PRICES.cost("lab:claude-sonnet-4-5", usage, NOW_US)
    assert cost == Cost(PRICES.cost("anthropic:claude-sonnet-4-5", usage, NOW_US).micro_usd, is_guess=True)


def test_price_is_that_of_the_time_of_the_call() -> None:
    then, now = (int(datetime(2026, month, 1, tzinfo=UTC).timestamp()) * 1_000_000 for month in (1, 9))
    large = Usage(500_000)
    before = PRICES.cost("anthropic:claude-opus-4-6", large, then).micro_usd
    assert before > PRICES.cost("anthropic:claude-opus-4-6", large, now).micro_usd > 0


@settings(max_examples=200)
@given(
    st.sampled_from(["lab:small", "lab:cached", "anthropic:claude-sonnet-4-5", "openai:gpt-4o", "lab:odd"]),
    COUNT,
    COUNT,
    st.data(),
)
def test_worst_case_is_never_below_what_a_call_within_it_costs(
    model: str, sent: int, limit: int, data: st.DataObject
) -> None:
    cached = data.draw(st.integers(0, sent))
    written = data.draw(st.integers(0, sent - cached))
    usage = Usage(sent, data.draw(st.integers(0, limit)), cached, written)
    assert PRICES.cost(model, usage, NOW_US).micro_usd <= PRICES.worst_case(model, sent, limit, NOW_US).micro_usd


def test_costs_agree_with_the_catalogues_own_arithmetic() -> None:
    from genai_prices import Usage as TheirUsage
    from genai_prices.data import providers

    chance, at, compared = random.Random(7), datetime.fromtimestamp(NOW_US / 1e6, UTC), 0
    for provider in providers:
        if provider.id not in ("anthropic", "openai", "google", "deepseek", "mistral", "groq", "x-ai"):
            continue
        prices = Prices({}, {"p": Home("", is_free=False)}, CATALOGUE)
        for model in provider.models:
            rates = CATALOGUE.rates(provider.id, model.id, NOW_US)
            found = CATALOGUE._find(provider.id, model.id)
            fields = vars(model.get_prices(at)) if model.prices else {}
            if rates is None or found is not model or "output_reasoning_mtok" in fields:
                continue
            sent = chance.randint(10, 600_000)
            cached = chance.randint(0, sent // 2) if fields.get("cache_read_mtok") is not None else 0
            written = chance.randint(0, sent // 4) if fields.get("cache_write_mtok") is not None else 0
            out = chance.randint(0, 9_999)
            theirs = model.calc_price(
                TheirUsage(input_tokens=sent, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=out),
                provider,
                genai_request_timestamp=at,
            ).total_price
            home = Home(provider.api_pattern.replace("\\", ""))
            prices = Prices({}, {provider.id: home}, CATALOGUE)
            ours = prices.cost(f"{provider.id}:{model.id}", Usage(sent, out, cached, written), NOW_US)
            assert ours == Cost(int((theirs * Decimal(1_000_000)).to_integral_value(ROUND_CEILING))), model.id
            compared += 1
    assert compared > 150


def test_catalogue_is_read_from_the_package_and_starts_no_updater() -> None:
    script = (
        "import threading\n"
        "from atlas.models.catalogue import Catalogue\n"
        "catalogue = Catalogue()\n"
        "assert catalogue.rates('anthropic', 'claude-sonnet-4-5', 0) is not None\n"
        "import genai_prices.data_snapshot as snapshot\n"
        "assert snapshot._custom_snapshot is None\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_context_windows_are_known_for_listed_models() -> None:
    assert CATALOGUE.context_window("anthropic", "claude-3-5-sonnet") == 200_000
    assert CATALOGUE.context_window("anthropic", "unheard-of") is None
    assert CATALOGUE.context_window("nobody", "unheard-of") is None
