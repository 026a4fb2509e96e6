"""Random trees of layers, rules, agents and children, held against the laws of policy.

    no child has a right its parent lacks
    merging is commutative, associative and idempotent
    adding any layer but an owner's never widens
    no mandate, grant or approval passes a DENY
    the table of rules says what trying every rule says
    the floor asks about what is destructive, whatever is allowed

The functions under test are parameters, so that a test can take one part away and see the proof fail.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from atlas.kernel.code import CallMade
from atlas.kernel.event import NULL, EffectAnswered, RunCreated
from atlas.kernel.floor import hazards
from atlas.kernel.gate import Intend, Standing, judge
from atlas.kernel.mandate import Granted, Mandate, answers
from atlas.kernel.policy import (
    RANK,
    CompiledPolicy,
    Policy,
    Proposal,
    Ruling,
    class_default,
    merge,
    policy_of,
    rule_for,
)
from atlas.kernel.rule import Ancestor, Decision, EffectClass, Globs, Layer, Match, Rule
from atlas.kernel.rule_table import Holds, listed, matches
from atlas.kernel.state import State, initial

RuleFor: TypeAlias = Callable[[Sequence[Ancestor], Proposal, CompiledPolicy, Holds, Sequence[Layer]], Ruling]
Merge: TypeAlias = Callable[[Policy, Policy], Policy]
Answers: TypeAlias = Callable[[Proposal, Ruling, Sequence[Mandate], int, Any], Granted | None]

TOOLS: Final = ("read", "write", "shell", "mail.send", "mail.list", "deploy_app", "pay")
TOOL_GLOBS: Final = ("*", "read", "write", "shell", "mail.*", "mail.send", "deploy_*", "*e*", "pay")
AGENTS: Final = ("lead", "coder", "mailer", "worker-1")
AGENT_GLOBS: Final = ("*", "lead", "coder", "worker-*", "mailer")
PRINCIPALS: Final = ("owner", "guest")
CLASSES: Final[tuple[EffectClass, ...]] = ("read_only", "reversible_write", "external_side_effect", "high_risk")
DECISIONS: Final[tuple[Decision, ...]] = ("allow", "ask", "deny")
VALUES: Final = ("docs/a.md", "/etc/passwd", "rm -rf /", "a@example.org", "Docs/../etc/passwd", "hello")
VALUE_GLOBS: Final = ("*", "docs/*", "/etc/*", "*@example.org", "hello")
CONDITIONS: Final = ("yes", "no", "cannot tell", "agent is lead")
WIDE: Final = Mandate("everything", "owner", ("*",), hazards=("*",))
MAX_COMPLAINTS: Final = 10


class PolicyReport(msgspec.Struct, frozen=True):
    """What was tried and what broke; every count but the first three must be 0."""

    ok: bool
    trees: int
    rulings: int
    seed: int
    child_wider: int
    merge_broken: int
    layer_widened: int
    deny_passed: int
    table_wrong: int
    floor_missed: int
    seconds: float
    complaints: tuple[str, ...] = ()


def run(
    trees: int = 100_000,
    seed: int | None = None,
    report: Callable[[str], None] = lambda line: None,
    *,
    rule: RuleFor = rule_for,
    merged: Merge = merge,
    answered: Answers = answers,
) -> PolicyReport:
    """Tries so many random trees and counts what broke."""
    chosen = random.SystemRandom().randrange(2**32) if seed is None else seed
    fuzz = _Fuzz(random.Random(chosen), rule, merged, answered)
    started = time.perf_counter()
    for number in range(1, trees + 1):
        fuzz.tree()
        if number % 20_000 == 0:
            report(f"{number:,} trees, {fuzz.rulings:,} rulings, {sum(fuzz.broken.values())} broken")
    return PolicyReport(
        ok=not any(fuzz.broken.values()),
        trees=trees,
        rulings=fuzz.rulings,
        seed=chosen,
        **fuzz.broken,
        seconds=round(time.perf_counter() - started, 1),
        complaints=tuple(fuzz.complaints),
    )


def conditions(text: str, variables: Mapping[str, Any]) -> bool | None:
    """Conditions that hold, do not hold, cannot be told, and depend on who acts."""
    return {"yes": True, "no": False, "agent is lead": variables["agent"] == "lead"}.get(text)


class _Fuzz:
    """One sequence of random trees."""

    def __init__(self, rng: random.Random, rule: RuleFor, merged: Merge, answered: Answers) -> None:
        self._rng = rng
        self._rule = rule
        self._merge = merged
        self._answers = answered
        self.rulings = 0
        self.complaints: list[str] = []
        self.broken = {
            "child_wider": 0,
            "merge_broken": 0,
            "layer_widened": 0,
            "deny_passed": 0,
            "table_wrong": 0,
            "floor_missed": 0,
        }

    def tree(self) -> None:
        """One policy, one line of descent, one effect that each of them would like."""
        policy = policy_of(self._layers())
        compiled = CompiledPolicy(policy)
        members = [self._member() for _ in range(self._rng.randint(2, 4))]
        proposal = self._proposal()
        rulings = [self._as(members, depth, proposal, compiled) for depth in range(len(members))]
        for above, below in itertools.pairwise(rulings):
            if RANK[below.decision] < RANK[above.decision]:
                self._broke("child_wider", f"{members} {proposal}: {above.decision} above, {below.decision} below")
        self._check_table(policy, members[0], proposal, rulings[0])
        self._check_floor(proposal, rulings[-1])
        self._check_deny(members[-1], proposal, rulings[-1])
        self._check_wider(policy, members, proposal, rulings[-1])
        self._check_merge(policy)

    def _as(self, members: list[Ancestor], depth: int, proposal: Proposal, policy: CompiledPolicy) -> Ruling:
        """The ruling for the member at a depth, with everybody above it."""
        self.rulings += 1
        own = members[depth]
        as_them = msgspec.structs.replace(proposal, agent=own.agent, project=own.project)
        lists = (Layer("agent", allow=own.allow, deny=own.deny),)
        return self._rule(members[:depth], as_them, policy, conditions, lists)

    def _check_table(self, policy: Policy, member: Ancestor, proposal: Proposal, ruling: Ruling) -> None:
        subject = msgspec.structs.replace(proposal, agent=member.agent, project=member.project)
        if (expected := plainly(policy, member, subject)) != ruling.decision:
            self._broke("table_wrong", f"{policy.layers} {subject}: {ruling.decision}, not {expected}")

    def _check_floor(self, proposal: Proposal, ruling: Ruling) -> None:
        is_write = proposal.kind == "tool" and proposal.effect_class != "read_only"
        if is_write and proposal.args == {"command": "rm -rf /"} and ruling.decision == "allow":
            self._broke("floor_missed", f"{proposal} is allowed")

    def _check_deny(self, member: Ancestor, proposal: Proposal, ruling: Ruling) -> None:
        if ruling.decision != "deny":
            return
        asked = msgspec.structs.replace(proposal, agent=member.agent)
        if self._answers(asked, ruling, (WIDE,), 0, lambda name: None) is not None:
            self._broke("deny_passed", f"a mandate passes {ruling}")
        if passes_gate(ruling, proposal):
            self._broke("deny_passed", f"an approval or a grant passes {ruling}")

    def _check_wider(self, policy: Policy, members: list[Ancestor], proposal: Proposal, ruling: Ruling) -> None:
        name = self._rng.choice(("project", "agent", "parent", "run"))
        more = self._layer(name, is_owner=False)
        narrowed = CompiledPolicy(self._merge(policy, policy_of((more,))))
        after = self._as(members, len(members) - 1, proposal, narrowed)
        if RANK[after.decision] < RANK[ruling.decision]:
            self._broke("layer_widened", f"{more}: {ruling.decision} before, {after.decision} after")

    def _check_merge(self, first: Policy) -> None:
        second, third = policy_of(self._layers()), policy_of(self._layers())
        one_way = self._merge(first, second)
        if (
            one_way != self._merge(second, first)
            or self._merge(one_way, third) != self._merge(first, self._merge(second, third))
            or self._merge(one_way, one_way) != one_way
        ):
            self._broke("merge_broken", f"{first.layers} {second.layers} {third.layers}")

    def _broke(self, law: str, what: str) -> None:
        self.broken[law] += 1
        if len(self.complaints) < MAX_COMPLAINTS:
            self.complaints.append(f"{law}: {what[:2000]}")

    def _layers(self) -> list[Layer]:
        rng = self._rng
        names = [name for name in ("fleet", "vault", "project") if rng.random() < 0.6]
        return [self._layer(name, is_owner=name != "project") for name in names]

    def _layer(self, name: str, *, is_owner: bool) -> Layer:
        rng = self._rng
        rules = tuple(self._random_rule(index) for index in range(rng.randint(0, 3)))
        allow = self._globs(0.15)
        project = "apollo" if name == "project" and rng.random() < 0.5 else ""
        return Layer(name, is_owner, rules, allow, self._globs(0.15) or (), project)

    def _random_rule(self, index: int) -> Rule:
        rng, draw = self._rng, self._maybe
        match = Match(
            tool=draw(TOOL_GLOBS, 0.6),
            agent=draw(AGENT_GLOBS, 0.3),
            principal=draw(PRINCIPALS, 0.1),
            effect=draw(CLASSES, 0.2),  # type: ignore[arg-type]
            args={"command": rng.choice(VALUE_GLOBS)} if rng.random() < 0.2 else {},
            when=draw(CONDITIONS, 0.15),
        )
        return Rule(f"r{index}", rng.choice(DECISIONS), match)

    def _member(self) -> Ancestor:
        rng = self._rng
        project = "apollo" if rng.random() < 0.3 else ""
        return Ancestor(rng.choice(AGENTS), self._globs(0.3), self._globs(0.3) or (), project)

    def _proposal(self) -> Proposal:
        rng = self._rng
        kind = "tool" if rng.random() < 0.8 else rng.choice(("step", "model", "spawn"))
        args = {"command": rng.choice(VALUES)}
        return Proposal(kind, rng.choice(TOOLS), rng.choice(CLASSES), args, principal=rng.choice(PRINCIPALS))

    def _globs(self, chance: float) -> tuple[str, ...] | None:
        rng = self._rng
        return (rng.choice(TOOL_GLOBS), rng.choice(TOOL_GLOBS)) if rng.random() < chance else None

    def _maybe(self, options: Sequence[str], chance: float) -> str | None:
        return self._rng.choice(options) if self._rng.random() < chance else None


def plainly(policy: Policy, member: Ancestor, subject: Proposal) -> Decision:
    """The decision for one agent by the words of the law, every rule of every layer tried in turn."""
    said: list[Decision] = []
    is_opened = False
    for layer in (*policy.layers, Layer("agent", allow=member.allow, deny=member.deny)):
        if layer.project not in ("", subject.project):
            continue
        said += [spoke.decision for spoke in listed(layer, subject.kind, subject.name)]
        for rule in layer.rules:
            if matches(rule, subject, conditions):
                said.append(rule.decision)
                names_class: Globs | None = rule.match.effect
                is_opened |= layer.is_owner and (
                    rule.decision == "allow" or (rule.decision == "ask" and names_class is not None)
                )
    said += [spoke.decision for spoke in hazards(subject.kind, subject.effect_class, subject.name, subject.args)]
    if not is_opened:
        said.append(class_default(subject.effect_class, subject.kind).decision)
    return max(said, key=lambda decision: RANK[decision])


class _Generous:
    """An authority whose rules say one thing, and which has a grant for everything."""

    def __init__(self, ruling: Ruling) -> None:
        self._ruling = ruling

    def rule(self, state: State, call: CallMade) -> Ruling:
        """What it was made with."""
        return self._ruling

    def standing(self, state: State, call: CallMade, now_us: int) -> Standing | None:
        """A grant, whatever is asked."""
        return Standing("grant:1", "owner")


def passes_gate(ruling: Ruling, proposal: Proposal) -> bool:
    """Whether the gate lets an effect through that is ruled on like this, given an approval and a grant for it."""
    call = CallMade(1, "e:1", "tool", proposal.name, _NOTHING, "h", proposal.effect_class)
    state = msgspec.structs.replace(_STATE, answers={"e:1": EffectAnswered("e:1", "h", True, "owner")})
    return isinstance(judge(state, call, None, 0, _Generous(ruling), 0), Intend)


_NOTHING: Final = msgspec.Raw(b"{}")
_STATE: Final = initial("run_1", "owner", RunCreated("a", "1.0.0", NULL, "", "ses_1", ""))
