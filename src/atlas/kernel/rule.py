"""What policies are made of: rules, the layers they stand in, and who a run descends from.

The same types are what `policy.yaml` may say, what the kernel rules by and what events record. This module knows
no event, so that events can carry a lineage and what was said about an effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, field

from atlas.kernel.contract import Finding, Part, Tools, Usd

Decision: TypeAlias = Literal["allow", "ask", "deny"]
EffectClass: TypeAlias = Literal["read_only", "reversible_write", "external_side_effect", "high_risk"]
EffectKind: TypeAlias = Literal["step", "spawn", "model", "tool"]
LayerName: TypeAlias = Literal["floor", "fleet", "vault", "project", "agent", "parent", "run"]

ALWAYS_OFFERED: Final = frozenset({"note", "recall", "wait"})
"""Tools that every prompt agent has, whatever its list of tools says: they reach nothing but its own record, and it is
told to use them."""

OWNER_LAYERS: Final[frozenset[str]] = frozenset({"fleet", "vault"})
"""The layers that may allow what a class's default would ask about or deny."""

RuleId = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$",
        min_length=1,
        max_length=64,
        description="The rule's name in refusals and explanations; unique in its file.",
        extra={"expected": "a name of lower-case letters, digits, '-', '_' and '.' (at most 64)"},
    ),
]
Glob = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=512,
        description="A text in which * stands for any characters.",
        extra={"expected": "a text in which * stands for any characters"},
    ),
]
Globs: TypeAlias = Glob | tuple[Glob, ...]
Condition = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2048,
        description="A CEL condition over tool, args, agent, principal, effect, kind, model, mcp and spawn.",
        extra={"expected": "a CEL condition such as args.amount > 100"},
    ),
]
Words = Annotated[str, Meta(max_length=1024)]
ArgPath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        description="Where in the arguments: a key, or a path such as $.to[*].address; $..* is every value.",
        extra={"expected": "a key of the arguments, or a path such as $.to[*].address"},
    ),
]


class Match(Part, frozen=True, omit_defaults=True):
    """Which effects a rule speaks about: every part that is given must hold; none given: every effect.

    A list of patterns holds when one of them does. `tool` is the name of a tool or of a step of Python code,
    `spawn` the name of the agent that would be spawned; each matches no effect of another kind.
    """

    tool: Annotated[Globs | None, Meta(description="The tool, or the step of an agent's code.")] = None
    mcp: Annotated[Globs | None, Meta(description="The MCP server that the tool comes from.")] = None
    model: Annotated[Globs | None, Meta(description="The model that would be asked, provider:model.")] = None
    spawn: Annotated[Globs | None, Meta(description="The agent that would be spawned.")] = None
    effect: Annotated[
        EffectClass | tuple[EffectClass, ...] | None, Meta(description="The class of the effect, or several.")
    ] = None
    agent: Annotated[Globs | None, Meta(description="The agent that acts, or one that it descends from.")] = None
    principal: Annotated[Globs | None, Meta(description="On whose behalf.")] = None
    kind: Annotated[EffectKind | tuple[EffectKind, ...] | None, Meta(description="What sort of effect.")] = None
    args: Annotated[
        dict[ArgPath, Globs],
        Meta(description="Patterns for values in the arguments. To allow, all values at a path must match."),
    ] = field(default_factory=dict)
    when: Annotated[Condition | None, Meta(description="A CEL condition that must hold as well.")] = None


class Case(Part, frozen=True, omit_defaults=True):
    """An effect made up to test a rule; what is left out is what the rule itself says, where it says one thing."""

    tool: str = ""
    mcp: str = ""
    model: str = ""
    spawn: str = ""
    effect: EffectClass | None = None
    agent: str = ""
    principal: str = ""
    kind: EffectKind | None = None
    args: dict[str, Any] = field(default_factory=dict)


class Examples(Part, frozen=True, omit_defaults=True):
    """Effects that a rule must speak about and that it must not; a wrong one refuses the file."""

    match: tuple[Case, ...] = ()
    not_match: tuple[Case, ...] = ()


class Judging(Part, frozen=True, omit_defaults=True):
    """A second opinion before the effect: from rules of its own, or from a model. It can only narrow."""

    by: Annotated[Literal["model", "rules"], Meta(description="Who gives it.")] = "model"
    model: Annotated[str, Meta(max_length=256, description="A tier or provider:model.")] = "fast"
    instructions: Annotated[str, Meta(max_length=4096, description="What to look for.")] = ""
    usd_per_day: Annotated[Usd | None, Meta(description="Its own budget; used up, it blocks.")] = None
    timeout_s: Annotated[float, Meta(gt=0, le=3600, description="How long a model may take; longer blocks.")] = 120.0
    block: Annotated[tuple[Match, ...], Meta(description="By rules: what is blocked.")] = ()
    escalate: Annotated[tuple[Match, ...], Meta(description="By rules: what a person must decide.")] = ()


class Rule(Part, frozen=True, omit_defaults=True):
    """One decision about the effects that match, with its reason."""

    id: RuleId
    decision: Annotated[Decision, Meta(description="allow, ask a person, or deny; the strictest of all wins.")]
    match: Match = Match()
    reason: Annotated[Words, Meta(description="What the agent and the person are told.")] = ""
    second_person: Annotated[bool, Meta(description="Who asked for the run may not approve; another must.")] = False
    judge: Annotated[Judging | None, Meta(description="Asks for a second opinion first.")] = None
    examples: Examples = Examples()


class PolicyPart(Part, frozen=True, omit_defaults=True):
    """What one layer says: its rules and its lists of tools."""

    rules: Annotated[tuple[Rule, ...], Meta(max_length=10_000, description="In any order: the strictest wins.")] = ()
    tools: Annotated[Tools, Meta(description="Tools that may be used at all, and those that never may.")] = Tools()

    def findings(self, *, is_owner: bool = True) -> Iterator[Finding]:
        """Every rule over several keys that this part breaks."""
        seen: set[str] = set()
        for index, rule in enumerate(self.rules):
            if rule.id in seen:
                yield Finding(("rules", index, "id"), "duplicate_rule", f"there is another rule called {rule.id}")
            seen.add(rule.id)
            if rule.decision == "allow" and not is_owner:
                message = "only the fleet's and the vault's policy may allow; this layer can only narrow"
                hint = "use ask or deny, or move the rule to policy.yaml of the vault"
                yield Finding(("rules", index, "decision"), "allow_not_owner", message, hint)
            if rule.second_person and rule.decision != "ask":
                message = "second_person says who answers a question, and this rule asks none"
                yield Finding(("rules", index, "second_person"), "second_person_without_ask", message, "decision: ask")


class Layer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rules and lists of one standing; with `project`, only for runs of that project.

    `allow` None: every tool may be used; a list: only those that fit one of its patterns.
    """

    name: str
    is_owner: bool = False
    rules: tuple[Rule, ...] = ()
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    project: str = ""


class Ancestor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run above another, as policy sees it: its agent, the tools it was given, its project."""

    agent: str
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    project: str = ""


class Spoke(msgspec.Struct, frozen=True, omit_defaults=True):
    """One voice in a ruling: which rule of which layer said what, about which ancestor (empty: the run itself)."""

    layer: str
    rule: str
    decision: Decision
    reason: str = ""
    about: str = ""
