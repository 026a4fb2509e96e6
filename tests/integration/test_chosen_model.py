"""A run that is asked with another model than its contract names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atlas import Atlas
from atlas.app import open_host
from atlas.kernel.errors import Conflict, Invalid
from atlas.vault.folder import FolderVault
from atlas.vault.scaffold import new_agent

CONFIG = """
models:
  providers:
    one: {kind: scripted, script: one.yaml}
    two: {kind: scripted, script: two.yaml}
  tiers: {fast: ["one:m"], powerful: ["two:m"]}
"""
CONTRACT = """
agent:
  name: advisor
  version: 1.0.0
  description: Helps
  runtime: prompt
  model: {preference: fast, override_allowed: %s}
"""


@pytest.fixture
def atlas(vault_dir: Path) -> Atlas:
    vault_dir.mkdir(exist_ok=True)
    (vault_dir / "atlas.config.yaml").write_text(CONFIG)
    for name in ("one", "two"):
        (vault_dir / f"{name}.yaml").write_text(f"replies: [{{text: from {name}}}]\n")
    advisor(vault_dir)
    return Atlas(vault_dir)


def advisor(vault_dir: Path, may_be_overridden: str = "true") -> None:
    folder = vault_dir / "agents" / "advisor"
    (folder / "persona").mkdir(parents=True, exist_ok=True)
    (folder / "persona" / "IDENTITY.md").write_text("You help.\n")
    (folder / "agent.yaml").write_text(CONTRACT % may_be_overridden)


@pytest.mark.parametrize("model, text", [(None, "from one"), ("two:m", "from two"), ("powerful", "from two")])
def test_a_run_is_asked_with_the_model_that_was_chosen_for_it(
    atlas: Atlas, vault_dir: Path, model: str | None, text: str
) -> None:
    with atlas:
        result = atlas.run("advisor", "hi", model=model)
        assert (result.state, result.text) == ("succeeded", text)

    async def replay() -> bool:
        async with open_host(vault_dir, {}) as host:
            return (await host.replay(result.run_id)).identical

    assert asyncio.run(replay())


def test_the_next_turn_goes_back_to_the_contracts_model(atlas: Atlas) -> None:
    with atlas:
        first = atlas.run("advisor", "hi", model="two:m")
        assert atlas.run("advisor", "again", session_id=first.session_id).text == "from one"


def test_a_key_names_a_request_with_its_model(atlas: Atlas) -> None:
    with atlas:
        first = atlas.run("advisor", "hi", key="k", model="two:m")
        assert atlas.run("advisor", "hi", key="k", model="two:m").run_id == first.run_id
        with pytest.raises(Conflict):
            atlas.run("advisor", "hi", key="k")


def test_a_model_that_cannot_be_chosen_is_refused_before_there_is_a_run(atlas: Atlas, vault_dir: Path) -> None:
    new_agent(FolderVault(vault_dir), "coder")
    with atlas:
        for agent, model, code in [
            ("advisor", "nobody:m", "model_unknown"),
            ("advisor", "balanced", "tier_empty"),
            ("advisor", "two words", "option_invalid"),
            ("coder", "two:m", "model_not_taken"),
        ]:
            with pytest.raises(Invalid) as caught:
                atlas.run(agent, "hi", model=model)
            assert caught.value.reason == code
        advisor(vault_dir, may_be_overridden="false")
        with pytest.raises(Invalid) as caught:
            atlas.run("advisor", "hi", model="two:m")
        assert caught.value.reason == "model_fixed"
        assert atlas.runs().runs == ()
        assert atlas.run("advisor", "hi", model="fast").text == "from one"
