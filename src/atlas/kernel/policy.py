"""Which effects may happen: ALLOW < ASK < DENY, and the strictest word of all layers wins.

    policy_of, merge   layers -> one policy with its version; in any order, any number of times, the same
    CompiledPolicy     the same as a table that finds the rules for an effect without trying them all
    rule_on            one effect of one agent: everything that speaks, then the maximum
    rule_for           the same for a run and everybody it descends from: a child never holds more than its parent

Where no rule speaks, the default of the effect's class counts. Only an owner's rule replaces that default, and
replaces nothing else. Mandates, remembered grants and approvals are no layers: they answer an ASK, elsewhere.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from atlas.kernel.floor import HAZARDS, hazards, reads_arguments
from atlas.kernel.rule import Ancestor, Decision, EffectClass, Judging, Layer, LayerName, Spoke
from atlas.kernel.rule_table import MAX_KEPT, Found, Holds, RuleTable, listed

RANK: Final[dict[Decision, int]] = {"allow": 0, "ask": 1, "deny": 2}

CLASS_DEFAULTS: Final[dict[EffectClass, Decision]] = {
    "read_only": "allow",
    "reversible_write": "allow",
    "external_side_effect": "ask",
    "high_risk": "deny",
}

_LAYER_ORDER: Final = {name: index for index, name in enumerate((*get_args(LayerName), "class"))}


class Proposal(msgspec.Struct, frozen=True):
    """An effect that somebody wants, before anything has happened."""

    kind: str
    name: str
    effect_class: EffectClass
    args: Any = None
    agent: str = ""
    principal: str = ""
    model: str = ""
    server: str = ""
    project: str = ""


class Policy(msgspec.Struct, frozen=True):
    """Every layer that applies; `version` is the SHA-256 of what they and the floor say (`document`)."""

    layers: tuple[Layer, ...] = ()
    version: str = ""


class Ruling(msgspec.Struct, frozen=True):
    """A decision about an effect and the reason a person is shown; `spoke` is everything that was said.

    `second_person` and `judges` come from every rule that spoke, whichever of them decided. `models` are those that a
    tier stood for; each of them was ruled on.
    """

    decision: Decision
    reason: str
    rule: str = ""
    layer: str = ""
    spoke: tuple[Spoke, ...] = ()
    version: str = ""
    second_person: bool = False
    judges: tuple[Judging, ...] = ()
    models: tuple[str, ...] = ()


def policy_of(layers: Iterable[Layer]) -> Policy:
    """The policy of these layers: their order and how often each is given make no difference."""
    encoded = {_encode(layer): layer for layer in layers}
    kept = sorted(encoded, key=lambda key: (_LAYER_ORDER.get(encoded[key].name, len(_LAYER_ORDER)), key))
    chosen = tuple(encoded[key] for key in kept)
    return Policy(chosen, hashlib.sha256(_written(chosen)).hexdigest())


def document(policy: Policy) -> bytes:
    """The whole policy as it was, as JSON: the bytes whose SHA-256 is its version."""
    return _written(policy.layers)


def merge(first: Policy, second: Policy) -> Policy:
    """Both at once: commutative, associative, idempotent, and never wider than both unless an owner's layer is."""
    return policy_of((*first.layers, *second.layers))


class CompiledPolicy:
    """A policy ready to rule: the same answers as trying every rule, at a cost that hardly grows with them."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._table = RuleTable(policy.layers)
        self._rulings: dict[Hashable, Ruling] = {}

    @property
    def version(self) -> str:
        """The policy's version."""
        return self.policy.version

    def find(self, proposal: Proposal, holds: Holds) -> Found:
        """What the layers' rules and lists say about one proposal."""
        return self._table.find(proposal, holds)

    def tries_arguments(self, proposal: Proposal) -> bool:
        """Whether a rule has to look at the arguments to tell if it speaks about the proposal."""
        return self._table.tries_arguments(proposal)

    def recall(self, key: Hashable) -> Ruling | None:
        """The ruling that was kept under this key."""
        return self._rulings.get(key)

    def keep(self, key: Hashable, ruling: Ruling) -> None:
        """Keeps a ruling that depends on nothing but this policy and the key; of very many, the last ones."""
        if len(self._rulings) >= MAX_KEPT:
            self._rulings.clear()
        self._rulings[key] = ruling


def rule_on(proposal: Proposal, policy: CompiledPolicy, holds: Holds, own: Sequence[Layer] = ()) -> Ruling:
    """The ruling on an effect for its agent alone; `own` are further layers that only have lists of tools."""
    return _conclude(proposal, policy, _said(proposal, policy, holds, own, ""))


def rule_for(
    lineage: Sequence[Ancestor],
    proposal: Proposal,
    policy: CompiledPolicy,
    holds: Holds,
    own: Sequence[Layer] = (),
) -> Ruling:
    """The ruling on an effect for its agent and for each that the run descends from: the strictest of them.

    Each is judged whole, its own default included, so that nothing an owner allowed the child opens what is
    closed to somebody above it.
    """
    if not lineage:
        return rule_on(proposal, policy, holds, own)
    holds = _remembering(holds)
    said = _said(proposal, policy, holds, own, "")
    judged = {(proposal.agent, proposal.project)}
    for ancestor in lineage:
        about = ancestor.agent if ancestor.agent != proposal.agent else ""
        lists = Layer("parent" if about else "agent", allow=ancestor.allow, deny=ancestor.deny)
        said.add_lists(lists, proposal, about)
        if (ancestor.agent, ancestor.project) not in judged:
            judged.add((ancestor.agent, ancestor.project))
            as_them = msgspec.structs.replace(proposal, agent=ancestor.agent, project=ancestor.project)
            said.add(_said(as_them, policy, holds, (), about))
    return _conclude(proposal, policy, said)


def rule_for_models(
    lineage: Sequence[Ancestor],
    proposal: Proposal,
    models: Sequence[str],
    policy: CompiledPolicy,
    holds: Holds,
    own: Sequence[Layer] = (),
) -> Ruling:
    """The ruling on a question that any of several models may get: the strictest over all, so no tier hides one."""
    names = dict.fromkeys((proposal.model, *models))
    each = [rule_for(lineage, msgspec.structs.replace(proposal, model=name), policy, holds, own) for name in names]
    winner = strictest(*each)
    judges = tuple(judge for ruling in each for judge in ruling.judges)
    return msgspec.structs.replace(
        winner,
        second_person=winner.decision == "ask" and any(ruling.second_person for ruling in each),
        judges=tuple(judge for index, judge in enumerate(judges) if judge not in judges[:index]),
        models=tuple(models),
    )


def minds_arguments(
    lineage: Sequence[Ancestor], proposal: Proposal, models: Sequence[str], policy: CompiledPolicy
) -> bool:
    """Whether the ruling on the same effect with other arguments might be another: by a rule, or by the floor."""
    if reads_arguments(proposal.kind, proposal.effect_class):
        return True
    about = dict.fromkeys((proposal.agent, proposal.project, model) for model in (proposal.model, *models))
    about |= dict.fromkeys((one.agent, one.project, model) for one in lineage for _, _, model in tuple(about))
    return any(
        policy.tries_arguments(msgspec.structs.replace(proposal, agent=agent, project=project, model=model))
        for agent, project, model in about
    )


def descend(lineage: Sequence[Ancestor], *members: Ancestor | None) -> tuple[Ancestor, ...]:
    """The lineage with further members at its end; one that is in it already adds nothing, so recursion stays small.

    For a child: the parent's lineage, the parent with the tools of its contract, and what its run was narrowed to.
    """
    return tuple(dict.fromkeys((*lineage, *(member for member in members if member is not None))))


def strictest(first: Ruling, *others: Ruling) -> Ruling:
    """The ruling that wins: deny over ask over allow, the earlier one among equals."""
    winner = first
    for other in others:
        if RANK[other.decision] > RANK[winner.decision]:
            winner = other
    return winner


def class_default(effect_class: EffectClass, kind: str = "step") -> Ruling:
    """What happens to an effect of this class when no rule speaks; asking a model is allowed."""
    spoke = _default_spoke(effect_class, kind)
    return Ruling(spoke.decision, spoke.reason, spoke.rule, spoke.layer)


def _default_spoke(effect_class: EffectClass, kind: str) -> Spoke:
    decision: Decision = "allow" if kind == "model" else CLASS_DEFAULTS[effect_class]
    return Spoke("class", "default", decision, f"default for {effect_class}")


class _Said:
    """Everything that was said about one proposal, in the order it is shown."""

    def __init__(self, spoke: list[Spoke], second_person: bool, judges: list[Judging]) -> None:
        self.spoke = spoke
        self.second_person = second_person
        self.judges = judges

    def add(self, other: _Said) -> None:
        """Adds what was said about somebody else; what was said about the run already needs no repeating."""
        known = {(spoke.layer, spoke.rule, spoke.decision) for spoke in self.spoke if not spoke.about}
        self.spoke += (each for each in other.spoke if (each.layer, each.rule, each.decision) not in known)
        self.second_person = self.second_person or other.second_person
        self.judges += other.judges

    def add_lists(self, layer: Layer, proposal: Proposal, about: str) -> None:
        """Adds what somebody's lists of tools say."""
        for spoke in listed(layer, proposal.kind, proposal.name):
            self.spoke.append(msgspec.structs.replace(spoke, about=about) if about else spoke)


def _said(proposal: Proposal, policy: CompiledPolicy, holds: Holds, own: Sequence[Layer], about: str) -> _Said:
    found = policy.find(proposal, holds)
    spoke = [spoke for layer in own for spoke in listed(layer, proposal.kind, proposal.name)]
    spoke += found.spoke
    if not found.replaces_default:
        spoke.append(_default_spoke(proposal.effect_class, proposal.kind))
    if about:
        spoke = [msgspec.structs.replace(each, about=about) for each in spoke]
    return _Said(spoke, found.second_person, list(found.judges))


def _remembering(holds: Holds) -> Holds:
    """The same for one effect: a condition that does not speak of the agent is the same for all of a lineage."""
    known: dict[str, bool | None] = {}

    def remembered(text: str, variables: Mapping[str, Any]) -> bool | None:
        if "agent" in text:
            return holds(text, variables)
        if text not in known:
            known[text] = holds(text, variables)
        return known[text]

    return remembered


def _conclude(proposal: Proposal, policy: CompiledPolicy, said: _Said) -> Ruling:
    said.spoke += hazards(proposal.kind, proposal.effect_class, proposal.name, proposal.args)
    said.spoke.sort(key=_place)
    # An owner's rule or the class's default has always spoken, so there is a first.
    winner = max(said.spoke, key=_rank)
    judges = [judge for index, judge in enumerate(said.judges) if judge not in said.judges[:index]]
    return Ruling(
        winner.decision,
        _reason(winner),
        winner.rule,
        winner.layer,
        tuple(said.spoke),
        policy.version,
        said.second_person and winner.decision == "ask",
        tuple(judges),
    )


def _place(spoke: Spoke) -> tuple[bool, int]:
    """What is said about the run itself first, from the outermost layer inwards."""
    return spoke.about != "", _LAYER_ORDER.get(spoke.layer, len(_LAYER_ORDER))


def _rank(spoke: Spoke) -> int:
    return RANK[spoke.decision]


def _reason(winner: Spoke) -> str:
    reason = winner.reason or f"rule {winner.rule} of the {winner.layer} policy"
    return f"{reason} (as for {winner.about}, which it descends from)" if winner.about else reason


def _encode(layer: Layer) -> bytes:
    return msgspec.json.encode(layer, order="deterministic")


def _written(layers: tuple[Layer, ...]) -> bytes:
    return msgspec.json.encode({"floor": _floor_digest(), "layers": layers}, order="deterministic")


@functools.cache
def _floor_digest() -> str:
    return hashlib.sha256(msgspec.json.encode(HAZARDS)).hexdigest()
