"""`atlas policy` and `atlas mandate`, typed at the real program over a real vault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from atlas.app import Program
from atlas.cli import root
from atlas.kernel.event import NULL, EffectAnswered, EffectAsked, Ruled
from atlas.kernel.rule import Spoke
from unit.cli.fake_host import FakeProgram, make_events, make_row

POLICY = """rules:
  - id: mail-inside
    match: {tool: send_mail, args: {to: "*@example.org"}}
    decision: allow
    reason: mail to colleagues needs no question
    examples:
      match: [{args: {to: a@example.org}}]
      not_match: [{args: {to: a@elsewhere.net}}]
  - {id: no-prod, match: {tool: deploy, when: "args.env == 'prod'"}, decision: deny}
"""


class Typist:
    """Types commands about one vault."""

    def __init__(self, vault: Path) -> None:
        self.vault = vault

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(root, [*words, "--vault", str(self.vault)], obj=Program({}))


@pytest.fixture
def atlas(tmp_path: Path) -> Typist:
    (tmp_path / "atlas.config.yaml").write_text("")
    (tmp_path / "policy.yaml").write_text(POLICY)
    return Typist(tmp_path)


def test_a_sound_vault_is_checked_and_its_examples_hold(atlas: Typist) -> None:
    result = atlas("policy", "check")
    assert result.exit_code == 0, result.output
    assert "policy.yaml: 2 rules, 2 examples" in result.stdout
    tried = atlas("policy", "test")
    assert tried.exit_code == 0
    assert tried.stdout.startswith("2 examples of 2 rules and ")


def test_problems_are_listed_with_their_place_and_exit_code_2(atlas: Typist) -> None:
    (atlas.vault / "policy.yaml").write_text(POLICY.replace("a@elsewhere.net", "b@example.org"))
    (atlas.vault / "mandates.yaml").write_text("mandates: [{id: m}]")
    result = atlas("policy", "check")
    assert result.exit_code == 2
    assert "policy.yaml:8:" in result.stdout
    assert "mandates.yaml:1:" in result.stdout
    assert "nothing runs" in result.stderr
    tested = json.loads(atlas("policy", "test", "--json").stdout)
    assert tested["ok"] is False
    assert "wrong_example" in {problem["code"] for problem in tested["problems"]}


@pytest.mark.parametrize(
    "tool, effect, args, decision, rule",
    [
        ("send_mail", "external_side_effect", '{"to": "x@example.org"}', "allow", "mail-inside"),
        ("send_mail", "external_side_effect", '{"to": "x@other.org"}', "ask", "default"),
        ("deploy", "reversible_write", '{"env": "prod"}', "deny", "no-prod"),
        ("deploy", "reversible_write", "{}", "deny", "no-prod"),
        ("shell", "reversible_write", '{"command": "rm -rf x"}', "ask", "rm-recursive"),
    ],
)
def test_what_the_rules_would_say_is_explained(
    atlas: Typist, tool: str, effect: str, args: str, decision: str, rule: str
) -> None:
    words = ("policy", "explain", "--agent", "a", "--tool", tool, "--effect", effect, "--args", args)
    found = json.loads(atlas(*words, "--json").stdout)
    assert (found["decision"], found["rule"]) == (decision, rule)
    shown = atlas(*words)
    assert f"{tool}, {effect}: {decision}" in shown.stdout
    assert f"{decision}" in next(line for line in shown.stdout.splitlines() if line.startswith("*"))
    assert ("speed bump" in shown.stderr) is (rule == "rm-recursive")


def test_what_was_said_about_a_recorded_effect_is_shown_with_what_came_of_it(program: FakeProgram) -> None:
    spoke = (Spoke("vault", "outside", "ask", "not a colleague"), Spoke("class", "default", "ask", about="lead"))
    ruled = Ruled("ask", "not a colleague", "outside", "vault", spoke, "v1")
    parts: Any = {"kind": "tool", "name": "send_mail", "args_hash": "h", "effect_class": "external_side_effect"}
    program.host.add(make_row("run_1"), {})
    program.host.ledger.stored["run_1"] = make_events(
        "run_1",
        EffectAsked("send_mail:1", args=NULL, reason="not a colleague", ruling=ruled, **parts),
        EffectAnswered("send_mail:1", "h", False, "ada", "not today"),
    )
    for step in ("send_mail:1", "1", "send_mail"):
        result = CliRunner().invoke(root, ["policy", "explain", "run_1", step], obj=program)
        assert result.stdout.splitlines() == [
            "tool send_mail (send_mail:1), external_side_effect: ask",
            "  because: not a colleague",
            "  policy version v1",
            "* ask    vault: outside  not a colleague",
            "  ask    class: default  (as for lead)",
            "  then: a person was asked",
            "  then: denied by ada: not today",
        ]
    missing = CliRunner().invoke(root, ["policy", "explain", "run_1", "7"], obj=program)
    assert missing.exit_code == 2


def test_explaining_needs_something_to_explain(atlas: Typist) -> None:
    assert atlas("policy", "explain", "--agent", "a").exit_code == 2
    assert atlas("policy", "explain", "run_1").exit_code == 2


def test_nothing_is_explained_by_rules_that_cannot_be_read(atlas: Typist) -> None:
    (atlas.vault / "policy.yaml").write_text("rules: [")
    result = atlas("policy", "explain", "--agent", "a", "--tool", "t")
    assert result.exit_code == 3
    assert "policy_unreadable" in result.stderr


def test_the_search_prints_its_numbers(atlas: Typist) -> None:
    result = atlas("policy", "fuzz", "--n", "50", "--seed", "1", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["trees"], report["child_wider"], report["deny_passed"], report["seed"]) == (50, 0, 0, 1)
    assert "child wider" in atlas("policy", "fuzz", "--n", "5").stdout


def test_mandates_are_listed_and_revoked_once(atlas: Typist) -> None:
    assert "no mandates" in atlas("mandate").stderr
    (atlas.vault / "mandates.yaml").write_text(
        "mandates:\n  - id: small\n    granted_by: ada\n    tools: [refund]\n    amount: $.usd\n    usd_total: 5\n"
    )
    listed = json.loads(atlas("mandate", "--json").stdout)["mandates"]
    assert [(each["id"], each["limits"], each["revoked"]) for each in listed] == [("small", ["usd_total 5"], False)]
    assert atlas("mandate", "revoke", "small").exit_code == 0
    assert "revoked" in atlas("mandate").stdout
    again = atlas("mandate", "revoke", "small")
    assert (again.exit_code, "already_revoked" in again.stderr) == (2, True)
    assert atlas("mandate", "revoke", "nothing").exit_code == 2


def test_a_vault_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert Typist(tmp_path / "none")("policy", "check").exit_code == 2
