"""The ways around a deny that other systems left open, each tried here at the gate that every effect passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas.control.authority import FileAuthority
from atlas.kernel.code import CallMade
from atlas.kernel.event import NULL, EffectAnswered, EffectJudged, ForkPoint, Payload, RunCreated
from atlas.kernel.gate import Ask, Consult, Intend, Refuse, Standing, judge
from atlas.kernel.policy import descend
from atlas.kernel.rule import Ancestor
from atlas.kernel.state import State, initial
from atlas.vault.condition import Conditions
from atlas.vault.policy import PolicyFiles

POLICY = """
rules:
  - {id: no-etc, decision: deny, match: {tool: write, args: {path: "/etc/*"}}, reason: the system is not ours}
  - {id: no-mail-for-lead, decision: deny, match: {tool: send_mail, agent: lead}}
  - {id: mail-for-mailer, decision: allow, match: {tool: send_mail, agent: mailer}}
  - {id: docs, decision: allow, match: {tool: publish, args: {path: "docs/*"}}}
  - {id: judged, decision: ask, match: {tool: write}, judge: {by: model}}
"""
CREATED = RunCreated("mailer", "1.0.0", NULL, "", "ses_1", "")


class World:
    """A vault with a policy, and runs that want something."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write(POLICY)
        conditions = Conditions()
        self.authority = FileAuthority(PolicyFiles(root, conditions), conditions.holds)

    def write(self, text: str) -> None:
        (self.root / "policy.yaml").write_text(text)

    def agent(self, name: str, tools: str) -> None:
        folder = self.root / "agents" / name
        folder.mkdir(parents=True, exist_ok=True)
        text = f"agent: {{name: {name}, version: 1.0.0, description: d, tools: {tools}}}\n"
        (folder / "agent.yaml").write_text(text)

    def judge(self, state: State, call: CallMade) -> object:
        return judge(state, call, None, 0, self.authority, 0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def run(agent: str = "mailer", **more: Any) -> State:
    return initial("run_1", "owner", msgspec.structs.replace(CREATED, agent=agent, **more))


def call(name: str, effect: Any = "external_side_effect", **args: Any) -> CallMade:
    return CallMade(1, f"{name}:1", "tool", name, msgspec.Raw(msgspec.json.encode(args)), "hash", effect)


def payload(value: object) -> Payload:
    return Payload(msgspec.Raw(msgspec.json.encode(value)))


def test_a_subagent_does_not_escape_what_its_parent_is_denied(world: World) -> None:
    assert isinstance(world.judge(run("mailer"), call("send_mail")), Intend)
    child = run("mailer", lineage=(Ancestor("lead"),))
    refused = world.judge(child, call("send_mail"))
    assert isinstance(refused, Refuse)
    assert "lead" in refused.error.message


def test_a_subagent_does_not_escape_the_tools_its_parent_was_given(world: World) -> None:
    for parent in (Ancestor("boss", allow=("read",)), Ancestor("boss", deny=("send_*",))):
        assert isinstance(world.judge(run("mailer", lineage=(parent,)), call("send_mail")), Refuse)


def test_an_agent_delegated_to_through_others_does_not_escape_either(world: World) -> None:
    lineage = descend(descend((Ancestor("lead"),), Ancestor("free")), Ancestor("freer"))
    assert isinstance(world.judge(run("mailer", lineage=lineage), call("send_mail")), Refuse)


def test_a_fork_does_not_escape_and_brings_no_approval_along(world: World) -> None:
    fork = ForkPoint("run_0", 7, "h")
    forked = run("mailer", lineage=(Ancestor("lead"),), fork=fork)
    assert isinstance(world.judge(forked, call("send_mail")), Refuse)
    assert isinstance(world.judge(run("other", fork=fork), call("send_mail")), Ask)


def test_an_argument_edited_by_who_approves_does_not_escape(world: World) -> None:
    wanted = call("write", path="notes.md")
    answer = EffectAnswered("write:1", "hash", True, "owner", args=payload({"path": "/etc/passwd"}))
    opinion = EffectJudged("write:1", "hash", "allow", "model")
    state = msgspec.structs.replace(run(), opinions={"write:1": opinion}, answers={"write:1": answer})
    assert isinstance(world.judge(state, wanted), Refuse)
    plain = msgspec.structs.replace(answer, args=None)
    assert isinstance(world.judge(msgspec.structs.replace(state, answers={"write:1": plain}), wanted), Intend)


def test_an_argument_revised_by_a_second_opinion_does_not_escape(world: World) -> None:
    opinion = EffectJudged("write:1", "hash", "revise", "model", args=payload({"path": "/etc/passwd"}))
    state = msgspec.structs.replace(run(), opinions={"write:1": opinion})
    assert isinstance(world.judge(state, call("write", path="notes.md")), Refuse)


def test_neither_an_ask_nor_a_second_opinion_nor_an_approval_lowers_a_deny(world: World) -> None:
    wanted = call("write", path="/etc/passwd")
    assert isinstance(world.judge(run(), call("write", path="notes.md")), Consult)
    opinion = EffectJudged("write:1", "hash", "allow", "model")
    answer = EffectAnswered("write:1", "hash", True, "owner")
    for state in (
        run(),
        msgspec.structs.replace(run(), opinions={"write:1": opinion}),
        msgspec.structs.replace(run(), opinions={"write:1": opinion}, answers={"write:1": answer}),
    ):
        assert isinstance(world.judge(state, wanted), Refuse)


def test_a_mandate_for_everything_does_not_pass_a_deny(world: World) -> None:
    mandate = "mandates: [{id: all, granted_by: me, tools: [write, send_mail], hazards: ['*']}]"
    (world.root / "mandates.yaml").write_text(mandate)
    assert isinstance(world.judge(run("lead"), call("send_mail")), Refuse)
    assert world.authority.standing(run("lead"), call("send_mail"), 0) is None
    standing = world.authority.standing(run("other"), call("send_mail"), 0)
    assert isinstance(standing, Standing)
    assert standing.id == "mandate:all"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/ETC/passwd",
        "/srv/../etc/passwd",
        "//etc/./passwd",
        "/et\\c/passwd",
        "'/etc/passwd'",
        "／etc／passwd",
        "/e\u200btc/passwd",
        ["notes.md", "/etc/passwd"],
        {"inner": "/etc/passwd"},
    ],
)
def test_another_writing_of_an_argument_does_not_escape(world: World, path: Any) -> None:
    assert isinstance(world.judge(run(), call("write", path=path)), Refuse)


@pytest.mark.parametrize("path", ["docs/../secret", "docs/a/../../x", "DOCS/a", ["docs/a", "secret"], None])
def test_another_writing_of_an_argument_does_not_get_in(world: World, path: Any) -> None:
    assert isinstance(world.judge(run(), call("publish", path="docs/a")), Intend)
    assert isinstance(world.judge(run(), call("publish", path=path)), Ask)


def test_what_is_tightened_counts_for_a_run_under_way(world: World) -> None:
    assert isinstance(world.judge(run(), call("send_mail")), Intend)
    world.write(POLICY + "  - {id: stop, decision: deny, match: {tool: send_mail}}\n")
    assert isinstance(world.judge(run(), call("send_mail")), Refuse)
    world.write(POLICY)
    world.agent("mailer", "{allow: [read]}")
    assert isinstance(world.judge(run(), call("send_mail")), Refuse)


def test_a_policy_that_cannot_be_read_opens_nothing_and_is_read_again(world: World) -> None:
    world.write("rules: [")
    for _ in range(2):
        refused = world.judge(run(), call("anything", "read_only"))
        assert isinstance(refused, Refuse)
        assert refused.error.code == "policy_unreadable"
        assert "policy.yaml:" in refused.error.where
    world.write(POLICY)
    assert isinstance(world.judge(run(), call("send_mail")), Intend)


def test_removing_the_policy_leaves_the_defaults_not_the_last_one(world: World) -> None:
    assert isinstance(world.judge(run(), call("send_mail")), Intend)
    (world.root / "policy.yaml").unlink()
    assert isinstance(world.judge(run(), call("send_mail")), Ask)


def test_an_option_of_the_run_narrows_and_never_widens(world: World) -> None:
    narrow = Ancestor("mailer", allow=("read",))
    assert isinstance(world.judge(run(narrow=narrow), call("send_mail")), Refuse)
    wide = Ancestor("lead", allow=("*",))
    assert isinstance(world.judge(run("lead", narrow=wide), call("send_mail")), Refuse)
