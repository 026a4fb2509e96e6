"""Policy and mandate files: strict, every problem with its line, examples tried, never taken for empty."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from atlas.kernel.errors import Conflict, NotFound, PolicyRefused
from atlas.kernel.policy import CompiledPolicy, Proposal, rule_on
from atlas.vault.condition import Conditions
from atlas.vault.folder import FolderVault
from atlas.vault.mandate import revoke
from atlas.vault.policy import PolicyFiles

RULE = "- {id: r, decision: ask"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "agents" / "mailer").mkdir(parents=True)
    (tmp_path / "agents" / "mailer" / "agent.yaml").write_text(
        "agent: {name: mailer, version: 1.0.0, description: d, tools: {deny: [shell]}}\n"
    )
    return tmp_path


@pytest.fixture
def files(root: Path) -> PolicyFiles:
    return PolicyFiles(root, Conditions())


def write(root: Path, text: str, path: str = "policy.yaml") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_vault_without_files_has_a_policy_without_layers(files: PolicyFiles) -> None:
    assert files.policy().layers == ()
    assert files.problems() == []
    assert files.tools("nobody") is None
    assert files.mandates("nobody") == ()


def test_every_layer_that_is_written_is_read(root: Path, files: PolicyFiles) -> None:
    write(root, "policy: {rules: [{id: f, decision: allow}]}", "atlas.config.yaml")
    write(root, "rules: [{id: v, decision: ask}]\ntools: {deny: [x], allow: ['*']}")
    write(root, "rules: [{id: p, decision: deny}]", "projects/apollo/policy.yaml")
    layers = files.policy().layers
    assert [(layer.name, layer.is_owner, layer.rules[0].id, layer.project) for layer in layers] == [
        ("fleet", True, "f", ""),
        ("vault", True, "v", ""),
        ("project", False, "p", "apollo"),
    ]
    assert (layers[1].deny, layers[1].allow) == (("x",), ("*",))
    tools = files.tools("mailer")
    assert tools is not None
    assert tools.deny == ("shell",)


@pytest.mark.parametrize(
    "text, line, code",
    [
        ("rules: [", 1, None),
        ("rulez: []", 1, "unknown_key"),
        ("rules:\n- {id: r, decision: maybe}", 2, None),
        ("rules:\n- {id: r, decision: ask, match: {tol: x}}", 2, "unknown_key"),
        ("rules:\n- {id: R!, decision: ask}", 2, None),
        (f"rules:\n{RULE}}}\n{RULE}}}", 3, "duplicate_rule"),
        (f"rules:\n{RULE}, match: {{when: 'args.x >'}}}}", 2, "bad_condition"),
        (f"rules:\n{RULE}, match: {{when: 'arg.x > 1'}}}}", 2, "bad_condition"),
        (f"rules:\n{RULE}, match: {{when: tool}}}}", 2, "bad_condition"),
        (f"rules:\n{RULE}, match: {{args: {{'a[': x}}}}}}", 2, "bad_path"),
        (f"rules:\n{RULE}, match: {{tool: a, model: b}}}}", 2, "never_matches"),
        ("rules:\n- {id: r, decision: deny, second_person: true}", 2, "second_person_without_ask"),
        (
            "rules:\n- id: r\n  decision: ask\n  match: {tool: a}\n  examples:\n    match:\n    - {tool: a}\n    - {tool: b}",
            8,
            "wrong_example",
        ),
        ("rules:\n- id: r\n  decision: ask\n  examples:\n    not_match:\n    - {tool: b}", 6, "wrong_example"),
        (f"rules:\n{RULE}, judge: {{by: rules, block: [{{when: '('}}]}}}}", 2, "bad_condition"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_opens_nothing(
    root: Path, files: PolicyFiles, text: str, line: int, code: str | None
) -> None:
    write(root, text)
    [problem] = files.problems()
    assert (Path(problem.path).name, problem.line) == ("policy.yaml", line)
    assert code in (None, problem.code)
    with pytest.raises(PolicyRefused) as caught:
        files.policy()
    assert caught.value.reason == "policy_unreadable"
    assert f"policy.yaml:{line}:" in caught.value.where


def test_only_owners_may_allow(root: Path, files: PolicyFiles) -> None:
    write(root, "rules:\n- {id: p, decision: allow}", "projects/apollo/policy.yaml")
    assert [(problem.code, problem.line) for problem in files.problems()] == [("allow_not_owner", 2)]


def test_a_wrong_example_of_the_fleet_is_told_in_its_file(root: Path, files: PolicyFiles) -> None:
    text = "policy:\n  rules:\n  - id: r\n    decision: ask\n    examples: {not_match: [{tool: x}]}\n"
    write(root, text, "atlas.config.yaml")
    assert [(Path(each.path).name, each.line) for each in files.problems()] == [("atlas.config.yaml", 5)]
    with pytest.raises(PolicyRefused):
        files.policy()


def test_all_problems_of_all_files_are_told_at_once(root: Path, files: PolicyFiles) -> None:
    write(root, "rulez: []")
    write(root, "x: 1", "projects/a/policy.yaml")
    write(root, "mandates: [{id: m}]", "mandates.yaml")
    write(root, "y: 1", "agents/mailer/mandates.yaml")
    write(root, "agent: {}", "agents/mailer/agent.yaml")
    assert {Path(each.path).relative_to(root).as_posix() for each in files.problems()} == {
        *("policy.yaml", "projects/a/policy.yaml", "mandates.yaml", "agents/mailer/mandates.yaml"),
        "agents/mailer/agent.yaml",
    }


def test_a_folder_in_place_of_the_file_refuses(root: Path, files: PolicyFiles) -> None:
    (root / "policy.yaml").mkdir()
    with pytest.raises(PolicyRefused) as caught:
        files.policy()
    assert caught.value.reason == "policy_unreadable"


def test_a_contract_that_cannot_be_read_refuses_its_agent(root: Path, files: PolicyFiles) -> None:
    write(root, "agent: [", "agents/mailer/agent.yaml")
    with pytest.raises(PolicyRefused):
        files.tools("mailer")


def test_no_name_leads_out_of_the_vault(root: Path, files: PolicyFiles) -> None:
    write(root, "mandates: [{id: m, granted_by: x, tools: [a]}]", "agents/mailer/mandates.yaml")
    for name in ("../agents/mailer", "..", ".", "mailer/", ""):
        assert files.tools(name) is None
        assert files.mandates(name) == ()


def test_a_stamp_changes_with_every_file(root: Path, files: PolicyFiles) -> None:
    stamps = [files.stamp()]
    for path in ("policy.yaml", "atlas.config.yaml", "projects/a/policy.yaml"):
        write(root, "rules: []" if path != "atlas.config.yaml" else "policy: {}", path)
        stamps.append(files.stamp())
    (root / "policy.yaml").unlink()
    stamps.append(files.stamp())
    assert len(set(stamps)) == len(stamps)


def test_conditions_see_everything_about_an_effect(root: Path, files: PolicyFiles) -> None:
    condition = (
        "tool == 'pay' && args.usd > 100 && agent == 'a' && principal == 'owner' && kind == 'tool' && mcp == 's'"
        " && effect == 'high_risk' && model == '' && spawn == ''"
    )
    write(root, f'rules: [{{id: r, decision: allow, match: {{when: "{condition}"}}}}]')
    policy = CompiledPolicy(files.policy())

    def ruled(usd: Any) -> str:
        proposal = Proposal("tool", "pay", "high_risk", {"usd": usd}, "a", "owner", server="s")
        return next(s.decision for s in rule_on(proposal, policy, files.holds).spoke if s.layer != "floor")

    assert [ruled(101), ruled(100), ruled(100.5), ruled("x"), ruled(None)] == ["allow", "deny", "allow", "deny", "deny"]


@pytest.mark.parametrize(
    "text, args, held",
    [
        ("args.n > 1", {"n": 2}, True),
        ("args.n > 1", {"n": 1}, False),
        ("args.n > 1", {}, None),
        ("args.n > 1", {"n": 2**70}, None),
        ("args.n > 1", {"n": "x"}, None),
        ("args.n == '\\ud800'", {"n": "\ud800"}, None),
        ("args.n", {"n": 5}, None),
        ("args.l.all(x, args.l.all(y, args.l.all(z, x + y + z >= 0)))", {"l": list(range(3000))}, None),
        ("args.s.matches('(a+)+$')", {"s": "a" * 50_000 + "b"}, False),
        ("has(args.n) && args.n > 1", {}, False),
        ("not cel", {}, None),
    ],
)
def test_a_condition_holds_or_not_or_cannot_be_told_and_always_ends(text: str, args: Any, held: bool | None) -> None:
    variables = dict.fromkeys(("tool", "spawn", "model", "mcp", "kind", "effect", "agent", "principal"), "")
    assert Conditions().holds(text, {**variables, "args": args}) is held


def test_an_agents_own_mandates_are_for_it_alone(root: Path, files: PolicyFiles) -> None:
    write(root, "mandates: [{id: m, granted_by: x, tools: [a]}]", "mandates.yaml")
    write(root, "mandates: [{id: m, granted_by: x, tools: [b], agents: ['*']}]", "agents/mailer/mandates.yaml")
    assert [(each.id, each.agents) for each in files.mandates("mailer")] == [("mailer/m", ("mailer",)), ("m", ("*",))]
    assert [each.id for each in files.mandates("other")] == ["m"]
    assert sorted(files.all_mandates()) == ["m", "mailer/m"]


def test_mandates_that_cannot_be_read_refuse(root: Path, files: PolicyFiles) -> None:
    write(root, "mandates: [{id: m, granted_by: x, tools: [a], usd_total: 5}]", "mandates.yaml")
    with pytest.raises(PolicyRefused):
        files.mandates("mailer")


MANDATES = """# Ours.
mandates:
  - id: first   # the first
    granted_by: ada
    tools: [a]
  - granted_by: ada
    id: second
    tools: [b]
    revoked: false
  - {id: third, granted_by: ada, tools: [c]}
"""


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text) if word not in ("revoked", "true", "false")]


@pytest.mark.parametrize("name", ["first", "second", "third", "mailer/first"])
def test_revoking_changes_one_mandate_and_keeps_every_other_word(root: Path, files: PolicyFiles, name: str) -> None:
    path = "agents/mailer/mandates.yaml" if "/" in name else "mandates.yaml"
    write(root, MANDATES, path)
    assert revoke(FolderVault(root), name) == path
    found = files.all_mandates()
    assert [key for key, mandate in found.items() if mandate.revoked] == [name]
    text = (root / path).read_text()
    assert _words(text) == _words(MANDATES)
    assert text.count("#") == MANDATES.count("#")
    with pytest.raises(Conflict):
        revoke(FolderVault(root), name)


def test_revoking_what_is_not_there_suggests(root: Path) -> None:
    write(root, MANDATES, "mandates.yaml")
    with pytest.raises(NotFound) as caught:
        revoke(FolderVault(root), "firts")
    assert "first" in caught.value.hint


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "policy.md"


def test_the_policy_and_the_mandate_of_the_guide_are_sound_and_do_what_it_says(root: Path, files: PolicyFiles) -> None:
    policy, mandates = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    write(root, policy)
    write(root, mandates, "mandates.yaml")
    assert files.problems() == []
    compiled = CompiledPolicy(files.policy())

    def ruled(tool: str, args: Any, principal: str = "owner") -> tuple[str, bool]:
        proposal = Proposal("tool", tool, "external_side_effect", args, "mailer", principal)
        ruling = rule_on(proposal, compiled, files.holds)
        return ruling.decision, ruling.second_person

    assert ruled("send_mail", {"to": ["ada@example.org"]}) == ("allow", False)
    assert ruled("send_mail", {"to": ["eve@elsewhere.net"]}) == ("ask", False)
    assert ruled("refund", {"usd": 101}) == ("ask", True)
    assert ruled("send_mail", {"to": ["ada@example.org"]}, "guest") == ("deny", False)
    assert [mandate.id for mandate in files.mandates("mailer")] == ["small-refunds"]
