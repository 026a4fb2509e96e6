"""The floor: what is destructive is asked about, whatever is allowed; its own examples hold."""

from __future__ import annotations

import time
from typing import Any

import pytest

from atlas.kernel.floor import HAZARDS, NOTICE, check_examples, hazards
from atlas.kernel.policy import CompiledPolicy, Proposal, policy_of, rule_on
from atlas.kernel.rule import Layer, Rule

EVERYTHING = CompiledPolicy(policy_of([Layer("vault", True, (Rule("all", "allow"),))]))


def never(text: str, variables: Any) -> bool | None:
    return None


def decision(args: Any, *, name: str = "shell", effect: Any = "external_side_effect", kind: str = "tool") -> str:
    return rule_on(Proposal(kind, name, effect, args), EVERYTHING, never).decision


def test_every_example_of_the_floor_holds() -> None:
    assert check_examples() == []
    assert all(hazard.found and hazard.decision != "allow" for hazard in HAZARDS)
    assert len({hazard.id for hazard in HAZARDS}) == len(HAZARDS)


@pytest.mark.parametrize("hazard", HAZARDS, ids=lambda hazard: hazard.id)
def test_nothing_an_owner_allows_passes_it_unasked(hazard: Any) -> None:
    for text in hazard.found:
        args = None if hazard.where == "name" else {"value": text}
        assert decision(args, name=text if hazard.where == "name" else "tool") == "ask"


def test_what_is_harmless_stays_allowed() -> None:
    assert decision({"command": "ls -l"}) == "allow"


@pytest.mark.parametrize(
    "args",
    [
        {"command": ["rm", "-rf", "/"]},
        {"program": "rm", "options": {"first": "-rf", "second": "/"}},
        {"steps": [{"run": "ls"}, {"run": "ls; rm -rf build"}]},
        ["rm", "-r", "x"],
        "rm -rf x",
    ],
)
def test_a_command_is_found_at_any_depth_and_split_over_a_list(args: Any) -> None:
    assert decision(args) == "ask"


def test_what_changes_nothing_is_not_looked_at() -> None:
    assert decision({"q": "rm -rf /"}, effect="read_only") == "allow"
    assert hazards("model", "high_risk", "m", {"prompt": "rm -rf /"}) == ()
    assert hazards("spawn", "high_risk", "m", {"input": "rm -rf /"}) == ()
    assert hazards("step", "reversible_write", "m", {"input": "rm -rf /"}) != ()


def test_a_path_in_prose_is_not_a_target() -> None:
    assert decision({"content": "Put it\ninto /etc/hosts, see ~/.ssh"}) == "allow"
    assert decision({"path": "/etc/hosts"}) == "ask"


def test_both_ends_of_a_very_long_text_are_looked_at_and_soon() -> None:
    started = time.process_time()
    assert decision({"content": "x " * 500_000 + "rm -rf /"}) == "ask"
    assert decision({"content": "rm -rf / " + "x " * 500_000}) == "ask"
    decision({"content": "git rm find curl aws dd /etc/ > " * 30_000})
    assert time.process_time() - started < 5


def test_it_says_what_it_is() -> None:
    assert "speed bump" in NOTICE
    assert "sandbox" in NOTICE
