"""Tiers of which nobody has said what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlas.kernel.config import Models, Provider
from atlas.kernel.contract import Tiers
from atlas.kernel.errors import Invalid
from atlas.models.catalogue import Catalogue
from atlas.models.name import Names
from atlas.models.provider import endpoints
from atlas.models.usual import TIERS, USUAL

CATALOGUE = Catalogue()
NOW_US = 1_767_225_600_000_000
OPENAI, ANTHROPIC = {"OPENAI_API_KEY": "k"}, {"ANTHROPIC_API_KEY": "k"}


def resolved(environ: dict[str, str], tier: str = "fast", models: Models | None = None) -> list[str]:
    models = models or Models()
    return list(Names(models, endpoints(models, {}, environ), CATALOGUE).resolve(tier))


@pytest.mark.parametrize("maker", USUAL)
def test_every_usual_model_is_in_the_catalogue_with_its_price(maker: str) -> None:
    assert tuple(USUAL[maker]) == TIERS
    dearest = 0
    for tier in TIERS:
        for name in USUAL[maker][tier]:
            assert CATALOGUE.rates(maker, name, NOW_US) is not None, name
            assert CATALOGUE.context_window(maker, name), name
        rates = CATALOGUE.rates(maker, USUAL[maker][tier][0], NOW_US)
        assert rates is not None
        assert rates.at(0).output > dearest, f"{tier} costs no more than the tier below it"
        dearest = rates.at(0).output


def test_the_guide_names_the_usual_models() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/models.md").read_text(encoding="utf-8")
    for tier in TIERS:
        assert f"| `{tier}` | " + " | ".join(", ".join(USUAL[maker][tier]) for maker in USUAL) + " |" in guide


def test_one_key_is_enough_and_two_are_asked_one_after_the_other() -> None:
    usual = {maker: [f"{maker}:{name}" for name in USUAL[maker]["fast"]] for maker in USUAL}
    assert resolved(OPENAI) == usual["openai"]
    assert resolved(ANTHROPIC) == usual["anthropic"]
    assert resolved({**OPENAI, **ANTHROPIC}) == usual["openai"] + usual["anthropic"]
    assert resolved({**OPENAI, "OPENAI_BASE_URL": "https://api.openai.com/v1/"}) == usual["openai"]


def test_what_is_written_wins_tier_by_tier() -> None:
    models = Models(tiers=Tiers(fast=("openai:mine",)))
    assert resolved(OPENAI, "fast", models) == ["openai:mine"]
    assert resolved(OPENAI, "powerful", models) == [f"openai:{name}" for name in USUAL["openai"]["powerful"]]


@pytest.mark.parametrize(
    "environ, providers",
    [
        ({**OPENAI, "OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}, {}),
        ({**OPENAI, "ANTHROPIC_BASE_URL": "http://127.0.0.1:8000"}, {}),
        (OPENAI, {"lab": Provider(kind="openai", base_url="http://127.0.0.1:8000/v1")}),
        (OPENAI, {"openai": Provider(kind="openai", base_url="http://127.0.0.1:8000/v1")}),
        ({}, {"openai": Provider(kind="openai")}),
    ],
    ids=["another address", "another address beside a key", "another provider", "a namesake elsewhere", "no key"],
)
def test_with_another_server_or_without_a_key_a_model_has_to_be_named(
    environ: dict[str, str], providers: dict[str, Provider]
) -> None:
    with pytest.raises(Invalid, match="no model is configured for the tier fast"):
        resolved(environ, "fast", Models(providers=providers))
