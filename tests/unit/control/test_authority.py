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
