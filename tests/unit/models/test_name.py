"""Names: tiers, full names, and bare names that only one provider can mean. Keys go where they belong."""

from __future__ import annotations

import pytest

from atlas.kernel.config import Models, Price, Provider
from atlas.kernel.contract import Tiers
from atlas.kernel.errors import Invalid
from atlas.kernel.model import ModelError
from atlas.models.catalogue import Catalogue
from atlas.models.http import Http
from atlas.models.name import Names
from atlas.models.provider import Endpoint, build_model, endpoints
from atlas.testing.clock import FakeClock
from unit.models.conversation import Loads

CATALOGUE = Catalogue()
LAB = Provider(kind="openai", base_url="http://127.0.0.1:8000/v1")
ENVIRON = {"OPENAI_API_KEY": "sk-env", "ANTHROPIC_API_KEY": "ak-env"}


def names(models: Models, environ: dict[str, str] | None = None) -> Names:
    return Names(models, endpoints(models, {}, environ or {}), CATALOGUE)


def test_a_full_name_is_itself_also_with_colons_in_the_model() -> None:
    found = names(Models(providers={"lab": LAB}))
    assert found.resolve("lab:small") == ("lab:small",)
    assert found.resolve("lab:llama3:8b") == ("lab:llama3:8b",)


def test_a_tier_is_its_candidates_in_order_and_skips_what_nobody_serves() -> None:
    tiers = Tiers(fast=("lab:small", "nobody:x", "claude-sonnet-4-5"))
    found = names(Models(providers={"lab": LAB}, tiers=tiers), ENVIRON)
    assert found.resolve("fast") == ("lab:small", "anthropic:claude-sonnet-4-5")
    (problem,) = found.problems()
    assert "models.tiers.fast" in problem.message
    assert "nobody" in problem.message


def test_an_empty_tier_and_a_tier_nobody_serves_are_refused_with_advice() -> None:
    found = names(Models(tiers=Tiers(fast=("nobody:x",))))
    with pytest.raises(Invalid, match="balanced") as caught:
        found.resolve("balanced")
    assert "models.tiers.balanced" in caught.value.hint
    with pytest.raises(Invalid, match="no provider nobody"):
        found.resolve("fast")


@pytest.mark.parametrize(
    "name, fix",
    [
        ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("claude-of-tomorrow", "ANTHROPIC_API_KEY"),
        ("openai:gpt-4o", "OPENAI_API_KEY"),
        ("local:smollm2", "atlas models pull"),
    ],
)
def test_a_model_whose_provider_only_lacks_something_says_what(name: str, fix: str) -> None:
    with pytest.raises(Invalid, match="not ready") as caught:
        Names(Models(), {}, CATALOGUE).resolve(name)
    assert fix in caught.value.hint


@pytest.mark.parametrize(
    "bare, full",
    [
        ("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("gpt-4o", "openai:gpt-4o"),
        ("claude-of-tomorrow", "anthropic:claude-of-tomorrow"),
        ("small", "lab:small"),
    ],
)
def test_a_bare_name_is_found_by_price_catalogue_or_maker(bare: str, full: str) -> None:
    models = Models(providers={"lab": LAB}, prices={"lab:small": Price(1, 1)})
    assert names(models, ENVIRON).resolve(bare) == (full,)


def test_a_bare_name_that_two_providers_have_is_refused_with_a_way_out() -> None:
    second = Provider(kind="openai", base_url="https://api.openai.com/v1")
    found = names(Models(providers={"mine": second}), ENVIRON)
    with pytest.raises(Invalid, match="more than one provider has gpt-4o") as caught:
        found.resolve("gpt-4o")
    assert caught.value.hint == "Write mine:gpt-4o."


@pytest.mark.parametrize("name", ["unheard-of", "nobody:x", ":x", "lab:"])
def test_a_name_that_nobody_has_is_refused_with_the_providers(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        names(Models(providers={"lab": LAB}), ENVIRON).resolve(name)
    assert "anthropic, lab, openai" in caught.value.hint


def test_a_mistyped_tier_is_told_the_tiers() -> None:
    with pytest.raises(Invalid, match="fsat") as caught:
        names(Models(providers={"lab": LAB}), ENVIRON).resolve("fsat")
    assert "fast, balanced, powerful" in caught.value.hint


def test_a_mistyped_candidate_is_told_with_the_place_where_it_is_written() -> None:
    models = Models(providers={"lab": LAB}, tiers=Tiers(balanced=("lob:small",)))
    with pytest.raises(Invalid, match=r"models\.tiers\.balanced: there is no provider lob"):
        names(models).resolve("balanced")


def test_a_provider_without_a_model_is_not_said_to_be_missing() -> None:
    with pytest.raises(Invalid, match="lab: names no model"):
        names(Models(providers={"lab": LAB})).resolve("lab:")


def test_environment_defines_both_providers() -> None:
    found = endpoints(Models(), {}, {**ENVIRON, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    here = "environment"
    assert found["openai"] == Endpoint("openai", "openai", "http://127.0.0.1:9/v1", "sk-env", source=here)
    assert found["anthropic"] == Endpoint("anthropic", "anthropic", "https://api.anthropic.com", "ak-env", source=here)
    assert endpoints(Models(), {}, {}) == {}
    assert list(endpoints(Models(), {}, {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"})) == ["anthropic"]


def test_configured_provider_without_a_key_takes_the_environments_only_at_its_own_address() -> None:
    providers = {
        "openai": Provider(kind="openai"),
        "anthropic": Provider(kind="anthropic", base_url="http://127.0.0.1:9"),
    }
    found = endpoints(Models(providers=providers), {}, ENVIRON)
    assert found["openai"].key == "sk-env"
    assert found["anthropic"].key == ""


def test_a_key_of_the_environment_goes_to_no_other_provider() -> None:
    found = endpoints(Models(providers={"lab": LAB, "mine": Provider(kind="openai")}), {"lab": "lab-key"}, ENVIRON)
    assert (found["lab"].key, found["mine"].key) == ("lab-key", "")


def test_white_space_around_a_key_and_an_address_is_no_part_of_them() -> None:
    environ = {"OPENAI_API_KEY": "sk-env\r\n", "ANTHROPIC_API_KEY": "\n", "OPENAI_BASE_URL": " http://127.0.0.1:9/v1\n"}
    found = endpoints(Models(providers={"lab": LAB}), {"lab": " lab-key\n"}, environ)
    assert (found["lab"].key, found["openai"].key) == ("lab-key", "sk-env")
    assert found["openai"].base_url == "http://127.0.0.1:9/v1"
    assert "anthropic" not in found


def test_configured_key_wins_over_the_environments() -> None:
    models = Models(providers={"openai": Provider(kind="openai", key="secret:mine")})
    assert endpoints(models, {"openai": "sk-mine"}, ENVIRON)["openai"].key == "sk-mine"


def test_a_configured_key_without_a_value_is_said_and_no_other_key_takes_its_place() -> None:
    models = Models(providers={"openai": Provider(kind="openai", key="secret:mine")})
    endpoint = endpoints(models, {}, ENVIRON)["openai"]
    assert endpoint.key == ""
    with pytest.raises(ModelError, match="secret:mine, has no value") as caught:
        build_model(endpoint, Http(), FakeClock(), Loads(), lambda path: pytest.fail("no script"))
    # A program without a vault has nowhere to keep one.
    assert "Set mine in the environment" in caught.value.hint
    assert "'atlas secrets set mine'" in caught.value.hint
    assert caught.value.kind == "auth"


def test_a_key_is_never_shown() -> None:
    (endpoint,) = endpoints(Models(), {}, {"OPENAI_API_KEY": "sk-env"}).values()
    model = build_model(endpoint, Http(), FakeClock(), Loads(), lambda path: pytest.fail("no script"))
    assert "sk-env" not in repr(endpoint)
    assert "sk-env" not in repr(vars(model))


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_the_makers_own_service_is_not_asked_without_a_key(kind: str) -> None:
    namesake, other = Provider(kind=kind), Provider(kind=kind)  # type: ignore[arg-type]
    found = endpoints(Models(providers={kind: namesake, "x": other}), {}, {})
    variable = f"{kind.upper()}_API_KEY"
    for name, ways in ((kind, {variable, "key: secret:NAME"}), ("x", {"key: secret:NAME"})):
        with pytest.raises(ModelError, match=f"no key for {name}") as caught:
            build_model(found[name], Http(), FakeClock(), Loads(), lambda path: pytest.fail("no script"))
        assert caught.value.kind == "auth"
        assert {way for way in (variable, "key: secret:NAME") if way in caught.value.hint} == ways


def test_lanes_are_bounded_unless_nothing_is_asked_of_anybody() -> None:
    providers = {"lab": LAB, "few": Provider(kind="openai", max_in_flight=2), "demo": Provider(kind="scripted")}
    found = endpoints(Models(providers=providers), {}, {})
    assert (found["lab"].max_in_flight, found["few"].max_in_flight) == (64, 2)
    assert found["demo"].max_in_flight > 10_000
