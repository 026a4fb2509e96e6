"""The proof by random trees: it finds nothing here, and it finds each part that is taken away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from atlas.kernel.mandate import Granted
from atlas.kernel.policy import CompiledPolicy, Policy, Proposal, Ruling, policy_of, rule_for
from atlas.kernel.rule import Ancestor, Layer
from atlas.testing.policy_fuzz import passes_gate, run

TREES = 600


def test_no_law_is_broken() -> None:
    report = run(TREES, 1)
    assert report.ok, report.complaints
    assert report.trees == TREES
    assert report.rulings > 3 * TREES


def test_the_same_seed_draws_the_same_trees() -> None:
    first, second = run(50, 3), run(50, 3)
    assert msgspec.structs.replace(first, seconds=0) == msgspec.structs.replace(second, seconds=0)


def test_without_the_parents_a_child_is_wider() -> None:
    def orphaned(
        lineage: Sequence[Ancestor], proposal: Proposal, policy: CompiledPolicy, holds: Any, own: Sequence[Layer]
    ) -> Ruling:
        return rule_for((), proposal, policy, holds, own)

    report = run(TREES, 1, rule=orphaned)
    assert report.child_wider > 0
    assert not report.ok
    assert report.complaints


def test_with_the_last_parent_alone_a_grandchild_is_wider() -> None:
    def forgetful(
        lineage: Sequence[Ancestor], proposal: Proposal, policy: CompiledPolicy, holds: Any, own: Sequence[Layer]
    ) -> Ruling:
        return rule_for(lineage[-1:], proposal, policy, holds, own)

    assert run(TREES, 1, rule=forgetful).child_wider > 0


def test_when_any_layer_may_open_a_layer_widens() -> None:
    def trusting(first: Policy, second: Policy) -> Policy:
        layers = [msgspec.structs.replace(layer, is_owner=True) for layer in second.layers]
        return policy_of((*first.layers, *layers))

    assert run(TREES, 1, merged=trusting).layer_widened > 0


def test_a_merge_that_forgets_is_found() -> None:
    assert run(TREES, 1, merged=lambda first, second: first).merge_broken > 0
    assert run(TREES, 1, merged=lambda first, second: Policy((*first.layers, *second.layers))).merge_broken > 0


def test_a_mandate_that_answers_a_deny_is_found() -> None:
    def obliging(*asked: Any) -> Granted:
        return Granted("m", "owner")

    assert run(TREES, 1, answered=obliging).deny_passed > 0


def test_the_gate_lets_an_approved_ask_through_so_that_the_check_can_fail() -> None:
    proposal = Proposal("tool", "send", "external_side_effect")
    assert passes_gate(Ruling("ask", ""), proposal)
    assert not passes_gate(Ruling("deny", ""), proposal)
