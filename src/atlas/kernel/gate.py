"""The gate: what becomes of one call of a run's code. Every effect of every kind passes here before it happens.

    judge      recorded? open? cancelled? -> limits of spawning -> the rules -> a second opinion -> a person

Pure: the rules and what was granted beforehand come from an `Authority`, whatever was said before from the state. The
strictest word wins; an approval, a mandate or a remembered grant answers an ASK and never a DENY.
"""

from __future__ import annotations

import hashlib
from typing import Final, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.kernel.code import CallMade
from atlas.kernel.errors import ApprovalRequired, Cancelled, ErrorRecord, LimitRefused, PolicyRefused, ReplayMismatch
from atlas.kernel.event import EffectAnswered, EffectIntended, EffectJudged, EffectReceived, EffectRefused, Ruled
from atlas.kernel.hold import Cap, Meter
from atlas.kernel.policy import Ruling, class_default
from atlas.kernel.rule import Decision
from atlas.kernel.state import State

Recorded: TypeAlias = EffectReceived | EffectRefused


class Standing(msgspec.Struct, frozen=True):
    """Authority that was given beforehand and answers an ASK: a mandate, or a grant that a person let be remembered.

    What it may be used for in money is counted in `meters` and kept within `caps`.
    """

    id: str
    by: str
    amount_micro_usd: int = 0
    meters: tuple[Meter, ...] = ()
    caps: tuple[Cap, ...] = ()
    uses: int = 0


class Authority(Protocol):
    """The rules in force now, and what was granted beforehand."""

    def rule(self, state: State, call: CallMade) -> Ruling:
        """What all layers together say of the call."""
        ...

    def standing(self, state: State, call: CallMade, now_us: int) -> Standing | None:
        """What answers in a person's place when the rules ask for one."""
        ...


class ClassDefaults:
    """No rules and nothing granted: the class of an effect alone decides."""

    def rule(self, state: State, call: CallMade) -> Ruling:
        """The default of its class."""
        return class_default(call.effect_class)

    def standing(self, state: State, call: CallMade, now_us: int) -> Standing | None:
        """Nothing."""
        return None


DEFAULTS: Final = ClassDefaults()


class Recall(msgspec.Struct, frozen=True):
    """Answer the call from the record."""

    call: CallMade
    recorded: Recorded


class Intend(msgspec.Struct, frozen=True):
    """Record the intent of an effect, then have it performed; a spawn starts its child.

    `answered_by` names what answered an ASK. `is_edited`: the call's arguments are no longer those it was made with.
    """

    call: CallMade
    ruling: Ruling
    answered_by: str = ""
    standing: Standing | None = None
    is_edited: bool = False


class Repeat(msgspec.Struct, frozen=True):
    """Perform a step whose intent is on record and which may safely be performed again."""

    call: CallMade


class Examine(msgspec.Struct, frozen=True):
    """Probe a step whose intent is on record before deciding to perform it."""

    call: CallMade


class Rejoin(msgspec.Struct, frozen=True):
    """Wait for a child that an earlier attempt started."""

    call: CallMade


class Consult(msgspec.Struct, frozen=True):
    """Get a second opinion on the effect before anything else is done about it.

    `subject` is the call with the arguments to judge: those it was made with, or those that a person put in their place.
    """

    call: CallMade
    ruling: Ruling
    subject: CallMade


class Ask(msgspec.Struct, frozen=True):
    """Put the effect before a person."""

    call: CallMade
    ruling: Ruling
    reason: str


class Refuse(msgspec.Struct, frozen=True):
    """Decide against the effect; the code gets the error and may go on."""

    call: CallMade
    decision: Decision
    error: ErrorRecord
    ruling: Ruling | None = None


class Reject(msgspec.Struct, frozen=True):
    """Answer the call with an error that is no fact about the world and is not recorded."""

    call: CallMade
    error: ErrorRecord


Verdict: TypeAlias = Recall | Intend | Repeat | Examine | Rejoin | Consult | Ask | Refuse | Reject


def judge(
    state: State, call: CallMade, recorded: Recorded | None, children: int, authority: Authority, now_us: int
) -> Verdict:
    """What becomes of one call of the code; `children` is how many the run has started or is starting."""
    if recorded is not None:
        return Recall(call, recorded)
    intent = state.open.get(call.effect)
    if intent is not None:
        return _judge_open(state, call, intent)
    if state.cancel is not None:
        return Reject(call, Cancelled("the run was cancelled").record())
    if call.kind == "spawn" and (limit := _spawn_limit(state, call, children)) is not None:
        return Refuse(call, "deny", limit.record())
    return _judge_new(state, call, authority, now_us)


def ruled(ruling: Ruling) -> Ruled:
    """A ruling as events keep it."""
    return Ruled(ruling.decision, ruling.reason, ruling.rule, ruling.layer, ruling.spoke, ruling.version, ruling.models)


def _judge_open(state: State, call: CallMade, intent: EffectIntended) -> Verdict:
    if intent.args_hash != call.args_hash:
        error = ReplayMismatch(
            f"{call.effect} was asked for with other arguments before",
            hint="Give each different call a key= of its own.",
        )
        return Reject(call, error.record())
    if intent.kind == "spawn":
        return Rejoin(call)
    if (
        intent.kind == "model"
        or call.effect in state.permitted
        or intent.effect_class == "read_only"
        or intent.idempotent
    ):
        return Repeat(call)
    return Examine(call)


def _spawn_limit(state: State, call: CallMade, children: int) -> LimitRefused | None:
    limits = state.created.limits
    if not state.created.may_spawn:
        return LimitRefused(
            f"agent {state.created.agent} may not spawn agents",
            hint="Set 'requires: {spawn_agents: true}' in its agent.yaml.",
            code="spawn_not_allowed",
        )
    if state.created.depth + 1 > limits.depth:
        return LimitRefused(
            f"spawning {call.name} would pass the depth limit of {limits.depth}",
            hint="Raise execution.max_spawn_depth in atlas.config.yaml.",
            code="max_spawn_depth",
        )
    if children + 1 > limits.children:
        return LimitRefused(
            f"this run has spawned {children} agents, its limit",
            hint="Raise execution.max_children_per_run in atlas.config.yaml.",
            code="max_children_per_run",
        )
    return None


def _judge_new(state: State, call: CallMade, authority: Authority, now_us: int) -> Verdict:
    """What the rules say of a new call; rules that cannot be read refuse it."""
    try:
        return _by_rules(state, call, authority, now_us)
    except PolicyRefused as error:
        return Refuse(call, "deny", error.record())


def _by_rules(state: State, call: CallMade, authority: Authority, now_us: int) -> Verdict:
    """The rules, a second opinion where they want one, then a person. Changed arguments are ruled on as they are now."""
    ruling = authority.rule(state, call)
    if ruling.decision == "deny":
        return Refuse(call, "deny", _denied(call, ruling), ruling)
    answer = _answer(state, call)
    if answer is not None and not answer.approved:
        # A no counts whatever the rules have become since.
        refused = PolicyRefused(f"{answer.by} denied {call.kind} {call.name}: {answer.reason or 'no reason given'}")
        return Refuse(call, "deny", refused.record(), ruling)
    proposed = call
    if answer is not None and answer.args is not None:
        proposed = replace(call, args=answer.args.json)
        ruling = authority.rule(state, proposed)
        if ruling.decision == "deny":
            return Refuse(call, "deny", _denied(call, ruling), ruling)
    must_ask, why = ruling.decision == "ask", ruling.reason
    opinion = None
    if ruling.judges:
        subject = call if proposed is call else replace(proposed, args_hash=hashlib.sha256(proposed.args).hexdigest())
        opinion = state.opinions.get(call.effect)
        if opinion is None or opinion.args_hash != subject.args_hash:
            return Consult(call, ruling, subject)
        against = _against(opinion, call, is_edited=proposed is not call)
        if against is not None:
            return Refuse(call, "deny", against.record(), ruling)
        if opinion.verdict == "revise":
            proposed = replace(call, args=opinion.args.json)
            ruling = authority.rule(state, proposed)
            if ruling.decision == "deny":
                return Refuse(call, "deny", _denied(call, ruling), ruling)
            if ruling.decision == "ask" and not must_ask:
                must_ask, why = True, ruling.reason
        if opinion.verdict == "escalate":
            must_ask, why = True, f"a second opinion wants a person to decide: {opinion.reason}"
    is_edited = proposed is not call
    if not must_ask:
        return Intend(proposed, ruling, is_edited=is_edited)
    if answer is not None and not (ruling.second_person and answer.by == state.principal):
        return Intend(proposed, ruling, answered_by=answer.signal_id, is_edited=is_edited)
    may_stand = not ruling.second_person and call.effect not in state.live.unmandated
    if may_stand and (opinion is None or opinion.verdict != "escalate"):
        standing = authority.standing(state, proposed, now_us)
        if standing is not None:
            return Intend(proposed, ruling, standing.id, standing, is_edited)
    if state.created.unattended:
        unasked = ApprovalRequired(
            f"{call.kind} {call.name} needs a person's approval and the run is unattended",
            hint="Run it without --unattended, or give it a mandate.",
        )
        return Refuse(call, "deny", unasked.record(), ruling)
    return Ask(proposed, ruling, why)


def _answer(state: State, call: CallMade) -> EffectAnswered | None:
    """What a person said of exactly this: other arguments, or a tool that is defined otherwise by now, void it."""
    answer = state.answers.get(call.effect)
    if answer is None or (answer.args_hash, answer.definition) != (call.args_hash, call.definition):
        return None
    return answer


def _against(opinion: EffectJudged, call: CallMade, *, is_edited: bool) -> PolicyRefused | None:
    """Why a second opinion closes the matter: it blocks, or it wants arguments that cannot be put in place."""
    if opinion.verdict == "block":
        said = f"a second opinion is against {call.name}"
    elif opinion.verdict == "revise" and is_edited:
        said = f"a second opinion wants other arguments for {call.name} than the person gave"
    elif opinion.verdict == "revise" and call.kind != "tool":
        # The code has the arguments of a step or a spawn already, and a spawn's name stands in them.
        said = f"a second opinion wants other arguments for {call.name}, and those of a {call.kind} cannot be changed"
    else:
        return None
    return PolicyRefused(f"{said}: {opinion.reason}", code="judge_blocked")


def _denied(call: CallMade, ruling: Ruling) -> ErrorRecord:
    where = f" ({ruling.layer}: {ruling.rule})" if ruling.rule else ""
    return PolicyRefused(
        f"{call.kind} {call.name} is denied: {ruling.reason}{where}",
        hint="Only the owner's own rules can allow it; see 'atlas policy explain'.",
    ).record()
