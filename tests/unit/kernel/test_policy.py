"""Rulings: the strictest word wins, defaults where nobody speaks, and only an owner replaces a default."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from atlas.kernel.policy import (
    CompiledPolicy,
    Proposal,
    Ruling,
    class_default,
    descend,
    document,
    merge,
    policy_of,
    rule_for,
    rule_on,
    strictest,
)
from atlas.kernel.rule import Ancestor, Judging, Layer, Match, Rule


def holds(text: str, variables: Any) -> bool | None:
    return {"yes": True, "no": False}.get(text)


def rule(decision: Any, name: str = "r", **match: Any) -> Rule:
    return Rule(name, decision, Match(**match), reason=f"because {name}")


def vault(*rules: Rule, **lists: Any) -> Layer:
    return Layer("vault", True, rules, **lists)


def ruled(proposal: Proposal, *layers: Layer, lineage: Sequence[Ancestor] = (), own: Sequence[Layer] = ()) -> Ruling:
    return rule_for(lineage, proposal, CompiledPolicy(policy_of(layers)), holds, own)


def call(name: str = "send", effect: Any = "external_side_effect", kind: str = "tool", **more: Any) -> Proposal:
    return Proposal(kind, name, effect, more.pop("args", {}), more.pop("agent", "mailer"), "owner", **more)


@pytest.mark.parametrize(
    "effect, decision",
    [
        ("read_only", "allow"),
        ("reversible_write", "allow"),
        ("external_side_effect", "ask"),
        ("high_risk", "deny"),
    ],
)
def test_where_no_rule_speaks_the_class_decides(effect: Any, decision: str) -> None:
    found = ruled(call(effect=effect))
    assert (found.decision, found.layer, found.rule) == (decision, "class", "default")
    assert class_default(effect).decision == decision


def test_asking_a_model_is_allowed_by_default_whatever_its_class() -> None:
    assert ruled(call("openai:x", "high_risk", "model")).decision == "allow"


def test_the_strictest_of_all_matching_rules_wins_in_whatever_order_and_layer() -> None:
    allow, ask, deny = rule("allow", "a", tool="send"), rule("ask", "b", tool="se*"), rule("deny", "c", tool="*")
    assert ruled(call(), vault(allow)).decision == "allow"
    assert ruled(call(), vault(allow, ask)).decision == "ask"
    for layers in ((vault(allow, ask, deny),), (vault(allow), Layer("fleet", True, (ask, deny)))):
        found = ruled(call(), *layers)
        assert (found.decision, found.rule, found.reason) == ("deny", "c", "because c")
        assert {(spoke.rule, spoke.decision) for spoke in found.spoke} == {("a", "allow"), ("b", "ask"), ("c", "deny")}


def test_an_owners_allow_replaces_the_default_and_nothing_else() -> None:
    assert ruled(call(effect="high_risk"), vault(rule("allow"))).decision == "allow"
    assert ruled(call(effect="high_risk"), vault(rule("allow"), rule("ask", "b"))).decision == "ask"
    assert ruled(call(), vault(rule("allow"), deny=("send",))).decision == "deny"


def test_nobody_elses_allow_replaces_it() -> None:
    for name in ("project", "agent", "parent", "run"):
        assert ruled(call(), Layer(name, False, (rule("allow"),))).decision == "ask"


def test_a_broad_ask_never_lowers_a_default_of_deny_but_one_that_names_the_class_does() -> None:
    risky = call(effect="high_risk")
    assert ruled(risky, vault(rule("ask"))).decision == "deny"
    assert ruled(risky, vault(rule("ask", effect="high_risk"))).decision == "ask"
    assert ruled(risky, Layer("project", False, (rule("ask", effect="high_risk"),))).decision == "deny"


@pytest.mark.parametrize(
    "match, proposal, is_match",
    [
        ({"tool": "send"}, call(), True),
        ({"tool": ("x", "se*")}, call(), True),
        ({"tool": "send"}, call(kind="step"), True),
        ({"tool": "*"}, call(kind="spawn"), False),
        ({"tool": "*"}, call(kind="model"), False),
        ({"spawn": "send"}, call(kind="spawn"), True),
        ({"spawn": "send"}, call(), False),
        ({"model": "openai:*"}, call("openai:gpt", kind="model"), True),
        ({"model": "openai:*"}, call("openai:gpt"), False),
        ({"mcp": "github"}, call(server="github"), True),
        ({"mcp": "*"}, call(), False),
        ({"effect": "external_side_effect"}, call(), True),
        ({"effect": ("high_risk", "read_only")}, call(), False),
        ({"kind": ("tool", "step")}, call(), True),
        ({"agent": "mail*"}, call(), True),
        ({"agent": "other"}, call(), False),
        ({"principal": "owner"}, call(), True),
        ({"principal": "guest"}, call(), False),
        ({"args": {"to": "*@x.org"}}, call(args={"to": "a@x.org"}), True),
        ({"args": {"to": "*@x.org"}}, call(args={"to": ["b@y.org", "a@x.org"]}), True),
        ({"args": {"to": "*@x.org"}}, call(args={}), False),
        ({"args": {"to": "*", "n": "5"}}, call(args={"to": "a", "n": 5}), True),
        ({"args": {"to": "*", "n": "6"}}, call(args={"to": "a", "n": 5}), False),
        ({"when": "yes"}, call(), True),
        ({"when": "no"}, call(), False),
        ({"when": "yes", "tool": "other"}, call(), False),
    ],
)
def test_a_rule_speaks_when_all_its_parts_hold(match: dict[str, Any], proposal: Proposal, is_match: bool) -> None:
    assert (ruled(proposal, vault(rule("deny", **match))).decision == "deny") is is_match


def test_a_condition_that_cannot_be_told_counts_for_those_that_narrow_and_not_for_those_that_allow() -> None:
    assert ruled(call(), vault(rule("deny", when="?"))).decision == "deny"
    assert ruled(call(effect="read_only"), vault(rule("ask", when="?"))).decision == "ask"
    assert ruled(call(), vault(rule("allow", when="?"))).decision == "ask"


def test_an_allow_holds_only_when_every_value_fits() -> None:
    inside = vault(rule("allow", args={"to": "*@x.org"}))
    assert ruled(call(args={"to": ["a@x.org", "b@x.org"]}), inside).decision == "allow"
    assert ruled(call(args={"to": ["a@x.org", "b@y.org"]}), inside).decision == "ask"


def test_lists_of_tools_intersect_and_denials_add_up() -> None:
    layers = (vault(allow=("send", "read")), Layer("project", allow=("send", "write")))
    assert [ruled(call(name, "read_only"), *layers).decision for name in ("send", "read", "write")] == [
        *("allow", "deny", "deny"),
    ]
    denied = (vault(deny=("a*",)), Layer("run", deny=("b*",)))
    assert [ruled(call(name, "read_only"), *denied).decision for name in ("ax", "bx", "c")] == ["deny", "deny", "allow"]


def test_an_empty_allowlist_leaves_nothing_and_models_and_spawns_are_no_tools() -> None:
    nothing = vault(allow=())
    assert ruled(call(effect="read_only"), nothing).decision == "deny"
    assert ruled(call("m", kind="model"), nothing).decision == "allow"
    assert ruled(call("child", "read_only", "spawn"), nothing).decision == "allow"
    assert ruled(call("a", "read_only", "step"), vault(deny=("a",))).decision == "deny"


def test_a_layer_of_a_project_speaks_about_that_project_alone() -> None:
    layer = Layer("project", rules=(rule("deny"),), project="apollo")
    assert ruled(call(project="apollo"), layer).decision == "deny"
    assert ruled(call(), layer).decision == "ask"
    assert ruled(call(), layer, lineage=[Ancestor("lead", project="apollo")]).decision == "deny"


def test_everybody_a_run_descends_from_is_ruled_on_and_named() -> None:
    found = ruled(call(effect="read_only"), vault(rule("deny", "d", agent="lead")), lineage=[Ancestor("lead")])
    assert found.decision == "deny"
    assert "lead" in found.reason
    assert any(spoke.about == "lead" and spoke.rule == "d" for spoke in found.spoke)


def test_a_condition_about_the_agent_is_tried_for_each_of_a_lineage() -> None:
    def is_lead(text: str, variables: Any) -> bool | None:
        return bool(variables["agent"] == "lead")

    policy = CompiledPolicy(policy_of([vault(rule("deny", when="agent == 'lead'"))]))
    assert rule_for((), call(), policy, is_lead).decision == "ask"
    assert rule_for((Ancestor("lead"),), call(), policy, is_lead).decision == "deny"


def test_second_persons_and_judges_are_wanted_by_any_rule_that_spoke() -> None:
    judge = Judging(instructions="look twice")
    rules = (rule("ask", "a"), Rule("b", "ask", Match(), second_person=True), Rule("c", "allow", judge=judge))
    found = ruled(call(), vault(*rules))
    assert (found.decision, found.second_person, found.judges) == ("ask", True, (judge,))
    assert not ruled(call(), vault(*rules, rule("deny", "d"))).second_person


def test_merging_takes_no_order_and_repetition_into_account() -> None:
    one, two = policy_of([vault(rule("ask"))]), policy_of([Layer("fleet", True, (rule("deny"),))])
    assert merge(one, two) == merge(two, one) == merge(merge(one, two), one)
    assert merge(one, two).version != one.version


def test_a_version_names_what_the_layers_say() -> None:
    assert policy_of([vault(rule("ask"))]).version == policy_of([vault(rule("ask"))]).version
    assert policy_of([vault(rule("ask"))]).version != policy_of([vault(rule("deny"))]).version
    assert ruled(call(), vault()).version == policy_of([vault()]).version
    assert (
        hashlib.sha256(document(policy_of([vault(rule("ask"))]))).hexdigest() == policy_of([vault(rule("ask"))]).version
    )


def test_many_rules_for_one_argument_say_what_each_says_alone() -> None:
    rules = [rule("deny", f"r{number}", tool="send", args={"to": f"u{number}@x.org"}) for number in range(100)]
    policy = CompiledPolicy(policy_of([vault(*rules)]))
    for number in (0, 31, 32, 99):
        found = rule_on(call(args={"to": f"U{number}@x.org"}), policy, holds)
        assert [spoke.rule for spoke in found.spoke if spoke.decision == "deny"] == [f"r{number}"]
    assert rule_on(call(args={"to": "u100@x.org"}), policy, holds).decision == "ask"


def test_what_was_worked_out_for_one_is_not_taken_for_another() -> None:
    policy = CompiledPolicy(policy_of([vault(rule("deny", agent="a"), rule("deny", "p", principal="guest"))]))
    for _ in range(2):
        assert rule_on(call(agent="a"), policy, holds).decision == "deny"
        assert rule_on(call(agent="b"), policy, holds).decision == "ask"
        assert rule_on(Proposal("tool", "send", "read_only", {}, "b", "guest"), policy, holds).decision == "deny"


def test_a_lineage_grows_by_who_is_new() -> None:
    lead, coder = Ancestor("lead", ("a",)), Ancestor("coder")
    assert descend((), lead, None) == (lead,)
    assert descend((lead,), coder, lead) == (lead, coder)


def test_the_earlier_of_equals_is_the_strictest() -> None:
    first, second = Ruling("ask", "1"), Ruling("ask", "2")
    assert strictest(first, second) is first
    assert strictest(first, Ruling("deny", "3")).reason == "3"
