"""The authority over files: read when they changed, and only then; mandates become standing authority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas.control.authority import FileAuthority, NoFiles
from atlas.control.explain import explain_recorded, explain_ruling
from atlas.kernel.code import CallMade
from atlas.kernel.errors import ErrorRecord, NotFound
from atlas.kernel.event import (
    NULL,
    Body,
    EffectAnswered,
    EffectAsked,
    EffectIntended,
    EffectRefused,
    Ruled,
    RunCreated,
)
from atlas.kernel.hold import Meter
from atlas.kernel.policy import Policy
from atlas.kernel.rule import Ancestor, Spoke
from atlas.kernel.state import State, initial
from atlas.vault.condition import Conditions
from atlas.vault.policy import PolicyFiles
from atlas.vault.zone import zone_named

CONTRACT = "agent:\n  name: shop\n  version: 1.0.0\n  description: Sells.\n"
NOW = 1_794_830_400_000_000  # 2026-11-16 12:00 UTC


class Counting(PolicyFiles):
    """Counts how often it is really read."""

    reads = 0

    def policy(self) -> Policy:
        self.reads += 1
        return super().policy()


def authority(root: Path) -> tuple[FileAuthority, Counting]:
    conditions = Conditions()
    files = Counting(root, conditions)
    return FileAuthority(files, conditions.holds, zones=zone_named), files


def run(agent: str = "shop", **more: Any) -> State:
    return initial("run_1", "owner", RunCreated(agent, "1.0.0", NULL, "", "ses_1", "", **more))


def call(name: str, kind: Any = "tool", effect: Any = "external_side_effect", **args: Any) -> CallMade:
    return CallMade(1, f"{name}:1", kind, name, msgspec.Raw(msgspec.json.encode(args)), "h", effect)


def test_files_are_read_once_until_one_changes(tmp_path: Path) -> None:
    found, files = authority(tmp_path)
    for _ in range(3):
        assert found.rule(run(), call("send")).decision == "ask"
    assert files.reads == 1
    (tmp_path / "policy.yaml").write_text("rules: [{id: r, decision: deny}]")
    for _ in range(3):
        assert found.rule(run(), call("send")).decision == "deny"
    assert files.reads == 2


def test_a_ruling_that_was_made_before_follows_every_change_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "agents" / "shop").mkdir(parents=True)
    contract = tmp_path / "agents" / "shop" / "agent.yaml"
    contract.write_text(CONTRACT)
    found, _ = authority(tmp_path)
    look = call("look", effect="read_only")
    assert [found.rule(run(), look).decision for _ in range(2)] == ["allow", "allow"]
    contract.write_text(CONTRACT + "  tools: {deny: [look]}\n")
    assert [found.rule(run(), look).rule for _ in range(2)] == ["tools.deny", "tools.deny"]
    contract.write_text(CONTRACT)
    (tmp_path / "projects" / "apollo").mkdir(parents=True)
    (tmp_path / "projects" / "apollo" / "policy.yaml").write_text("rules: [{id: closed, decision: deny}]")
    assert [found.rule(run(), look).decision for _ in range(2)] == ["allow", "allow"]
    in_apollo = run(narrow=Ancestor("shop", project="apollo"))
    assert [found.rule(in_apollo, look).rule for _ in range(2)] == ["closed", "closed"]


def test_what_was_ruled_for_one_run_is_not_the_ruling_for_another(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        "rules: [{id: bob, decision: deny, match: {agent: bob}}, {id: eve, decision: deny, match: {principal: eve}}]"
    )
    found, _ = authority(tmp_path)
    look = call("look", effect="read_only")
    runs = [
        (run(), "allow"),
        (run("bob"), "deny"),
        (run(lineage=(Ancestor("bob"),)), "deny"),
        (run(lineage=(Ancestor("ann", deny=("look",)),)), "deny"),
        (run(narrow=Ancestor("shop", allow=("other",))), "deny"),
        (initial("run_1", "eve", run().created), "deny"),
    ]
    for _ in range(2):
        assert [found.rule(state, look).decision for state, _ in runs] == [decision for _, decision in runs]


def test_arguments_are_looked_at_each_time_a_rule_or_the_floor_speaks_of_them(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        "rules:\n"
        "- {id: secret, decision: deny, match: {tool: look, args: {path: '/secret/*'}}}\n"
        "- {id: dear, decision: deny, match: {tool: price, when: args.usd > 5}}\n"
        "- {id: theirs, decision: deny, match: {agent: bob, args: {path: '/home/*'}}}\n"
    )
    found, _ = authority(tmp_path)

    def decided(state: State, *calls: CallMade) -> list[str]:
        return [found.rule(state, one).decision for one in calls]

    looks = [call("look", effect="read_only", path=path) for path in ("/open/a", "/secret/a", "/home/a", "/open/b")]
    assert decided(run(), *looks) == ["allow", "deny", "allow", "allow"]
    glances = [call("glance", effect="read_only", path=path) for path in ("/open/a", "/home/a", "/open/b")]
    assert decided(run(), *glances) == ["allow", "allow", "allow"]
    assert decided(run(lineage=(Ancestor("bob"),)), *glances) == ["allow", "deny", "allow"]
    prices = [call("price", effect="read_only", usd=usd) for usd in (1, 9, 2)]
    assert decided(run(), *prices) == ["allow", "deny", "allow"]
    writes = [call("write", effect="reversible_write", command=text) for text in ("ls", "rm -rf /", "ls")]
    assert decided(run(), *writes) == ["allow", "ask", "allow"]


def test_every_model_that_a_tier_stands_for_now_is_ruled_on(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: [{id: far, decision: deny, match: {model: 'far:*'}}]")
    conditions, tier = Conditions(), ["near:a"]
    found = FileAuthority(PolicyFiles(tmp_path, conditions), conditions.holds, candidates=lambda choice: tier)
    ask = call("fast", "model", "read_only")
    assert [found.rule(run(), ask).models for _ in range(2)] == [("near:a",), ("near:a",)]
    tier.append("far:b")
    assert [found.rule(run(), ask).decision for _ in range(2)] == ["deny", "deny"]


def test_a_proposal_says_who_wants_what(tmp_path: Path) -> None:
    found, _ = authority(tmp_path)
    proposal = found.proposal(run(narrow=Ancestor("shop", project="apollo")), call("openai:gpt", "model", prompt="x"))
    assert (proposal.kind, proposal.model, proposal.agent, proposal.principal, proposal.args, proposal.project) == (
        *("model", "openai:gpt", "shop", "owner"),
        {"prompt": "x"},
        "apollo",
    )


def test_a_mandate_becomes_standing_authority_with_its_caps(tmp_path: Path) -> None:
    (tmp_path / "mandates.yaml").write_text(
        "mandates: [{id: m, granted_by: ada, tools: [credit], amount: $.usd, usd_per_day: 10, zone: Europe/Berlin}]"
    )
    found, _ = authority(tmp_path)
    standing = found.standing(run(), call("credit", usd=4), NOW)
    assert standing is not None
    assert (standing.id, standing.by, standing.amount_micro_usd, standing.uses) == ("mandate:m", "ada", 4_000_000, 1)
    assert standing.meters == (Meter("mandate/m", "2026-11-16"),)
    assert [cap.micro_usd for cap in standing.caps] == [10_000_000]
    assert found.standing(run(), call("other", usd=4), NOW) is None


def test_revoking_counts_at_once(tmp_path: Path) -> None:
    text = "mandates: [{id: m, granted_by: ada, tools: [credit]}]"
    (tmp_path / "mandates.yaml").write_text(text)
    found, _ = authority(tmp_path)
    assert found.standing(run(), call("credit"), NOW) is not None
    (tmp_path / "mandates.yaml").write_text(text.replace("id: m", "revoked: true, id: m"))
    assert found.standing(run(), call("credit"), NOW) is None


def test_a_host_without_a_vault_has_the_floor_and_the_defaults() -> None:
    found = FileAuthority(NoFiles(), lambda text, variables: None)
    assert found.rule(run(), call("look", effect="read_only")).decision == "allow"
    assert found.rule(run(), call("write", effect="reversible_write", command="rm -rf /")).decision == "ask"
    assert found.standing(run(), call("send"), NOW) is None


SPOKE = (Spoke("vault", "r", "ask", "because"), Spoke("class", "default", "ask"))
RULED = Ruled("ask", "because", "r", "vault", SPOKE, "v1")
PARTS: Any = {"kind": "tool", "name": "send", "args_hash": "h", "effect_class": "external_side_effect"}


def history() -> list[Body]:
    return [
        EffectAsked("send:1", args=NULL, reason="because", ruling=RULED, **PARTS),
        EffectAnswered("send:1", "h", True, "ada", "go on"),
        EffectIntended("send:1", args=NULL, ruling=RULED, answered_by="sig_1", **PARTS),
        EffectRefused("send:2", decision="deny", error=ErrorRecord("policy_refused", "no"), **PARTS),
    ]


@pytest.mark.parametrize("step", ["send:1", "1"])
def test_an_effect_is_explained_from_its_record(step: str) -> None:
    found = explain_recorded(history(), step)
    assert (found.effect, found.decision, found.rule, found.layer, found.version) == (
        "send:1",
        "ask",
        "r",
        "vault",
        "v1",
    )
    assert found.spoke == SPOKE
    assert found.outcome == ("a person was asked", "approved by ada: go on", "performed under sig_1")


def test_an_effect_without_a_kept_ruling_says_what_is_known() -> None:
    found = explain_recorded(history(), "2")
    assert (found.decision, found.reason, found.spoke, found.outcome) == ("deny", "no", (), ("refused: no",))


@pytest.mark.parametrize("step", ["send", "3", "nothing", "0"])
def test_an_effect_that_is_not_there_or_not_the_only_one_is_told(step: str) -> None:
    with pytest.raises(NotFound) as caught:
        explain_recorded(history(), step)
    assert "send:1" in caught.value.hint


def test_a_ruling_is_explained_as_it_is(tmp_path: Path) -> None:
    found, _ = authority(tmp_path)
    ruling = found.rule(run(), call("send"))
    explained = explain_ruling(ruling, "tool", "send", "external_side_effect")
    assert (explained.decision, explained.spoke, explained.version) == ("ask", ruling.spoke, ruling.version)
