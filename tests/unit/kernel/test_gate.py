"""The gate on what people, second opinions and standing authority said: bound to exactly what they spoke about."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from atlas.kernel.code import CallMade
from atlas.kernel.event import NULL, EffectAnswered, EffectJudged, Payload, RunCreated
from atlas.kernel.gate import Ask, Consult, Intend, Refuse, Standing, Verdict, judge
from atlas.kernel.policy import Ruling
from atlas.kernel.rule import Judging
from atlas.kernel.state import State, initial

CALL = CallMade(
    1, "tool:1", "tool", "send", msgspec.Raw(b'{"to":"ann"}'), "h1", "external_side_effect", definition="d1"
)
YES = EffectAnswered("tool:1", "h1", True, "owner", definition="d1", signal_id="s1")
ALLOW, ASK, DENY = Ruling("allow", "fine"), Ruling("ask", "mind"), Ruling("deny", "never")
JUDGED = (Judging(by="rules"),)


class Rules:
    """Says `first` of the call as it was made, and `then` of any other arguments."""

    def __init__(self, first: Ruling, then: Ruling | None = None, standing: Standing | None = None) -> None:
        self._first, self._then, self._standing = first, then or first, standing

    def rule(self, state: State, call: CallMade) -> Ruling:
        return self._first if call.args == CALL.args else self._then

    def standing(self, state: State, call: CallMade, now_us: int) -> Standing | None:
        return self._standing


def state(answer: EffectAnswered | None = None, opinion: EffectJudged | None = None, **created: Any) -> State:
    made = initial("run_1", "owner", RunCreated("clerk", "1.0.0", NULL, "", "ses_1", "", **created))
    return msgspec.structs.replace(
        made,
        answers={} if answer is None else {"tool:1": answer},
        opinions={} if opinion is None else {"tool:1": opinion},
    )


def ruled(state: State, rules: Rules, call: CallMade = CALL) -> Verdict:
    return judge(state, call, None, 0, rules, 0)


def payload(raw: bytes) -> Payload:
    return Payload(msgspec.Raw(raw), size=len(raw))


def revised(**parts: Any) -> EffectJudged:
    return EffectJudged("tool:1", "h1", "revise", "model", "rather", payload(b'{"to":"bob"}'), **parts)


def test_an_approval_of_other_arguments_or_another_definition_is_void() -> None:
    assert isinstance(ruled(state(YES), Rules(ASK)), Intend)
    for other in (msgspec.structs.replace(CALL, args_hash="h2"), msgspec.structs.replace(CALL, definition="d2")):
        assert isinstance(ruled(state(YES), Rules(ASK), other), Ask)


@pytest.mark.parametrize("rules", [Rules(ALLOW), Rules(ASK), Rules(ASK, standing=Standing("mandate:m", "ada"))])
def test_a_persons_no_is_final(rules: Rules) -> None:
    no = msgspec.structs.replace(YES, approved=False, reason="not now")
    refused = ruled(state(no), rules)
    assert isinstance(refused, Refuse)
    assert "not now" in refused.error.message


def test_edited_arguments_are_ruled_on_and_judged_as_they_are_now() -> None:
    edited = msgspec.structs.replace(YES, args=payload(b'{"to":"bob"}'))
    done = ruled(state(edited), Rules(ASK))
    assert isinstance(done, Intend)
    assert (bytes(done.call.args), done.call.args_hash, done.is_edited) == (b'{"to":"bob"}', "h1", True)
    assert isinstance(ruled(state(edited), Rules(ASK, DENY)), Refuse)
    judged = Rules(ASK, msgspec.structs.replace(ASK, judges=JUDGED))
    wanted = ruled(state(edited), judged)
    assert isinstance(wanted, Consult)
    assert wanted.call is CALL
    subject_hash = hashlib.sha256(b'{"to":"bob"}').hexdigest()
    assert (bytes(wanted.subject.args), wanted.subject.args_hash) == (b'{"to":"bob"}', subject_hash)
    opinion = EffectJudged("tool:1", subject_hash, "allow", "rules")
    assert isinstance(ruled(state(edited, opinion), judged), Intend)
    for verdict in ("block", "revise"):
        against = msgspec.structs.replace(opinion, verdict=verdict)
        assert isinstance(ruled(state(edited, against), judged), Refuse)


def test_an_opinion_about_other_arguments_is_had_anew() -> None:
    judged = Rules(msgspec.structs.replace(ALLOW, judges=JUDGED))
    assert isinstance(ruled(state(), judged), Consult)
    assert isinstance(ruled(state(opinion=EffectJudged("tool:1", "h2", "allow", "rules")), judged), Consult)
    assert isinstance(ruled(state(opinion=EffectJudged("tool:1", "h1", "allow", "rules")), judged), Intend)


def test_a_revision_narrows_only_what_can_be_changed() -> None:
    judges = msgspec.structs.replace(ALLOW, judges=JUDGED)
    done = ruled(state(opinion=revised()), Rules(judges))
    assert isinstance(done, Intend)
    assert (bytes(done.call.args), done.is_edited) == (b'{"to":"bob"}', True)
    assert isinstance(ruled(state(opinion=revised()), Rules(judges, ASK)), Ask)
    assert isinstance(ruled(state(opinion=revised()), Rules(judges, DENY)), Refuse)
    for kind in ("step", "model"):
        refused = ruled(state(opinion=revised()), Rules(judges), msgspec.structs.replace(CALL, kind=kind))
        assert isinstance(refused, Refuse)
        assert refused.error.code == "judge_blocked"


def test_what_stands_ready_answers_no_escalation_no_second_person_and_nothing_that_it_has_no_room_for() -> None:
    standing = Standing("mandate:m", "ada")
    done = ruled(state(), Rules(ASK, standing=standing))
    assert isinstance(done, Intend)
    assert done.answered_by == "mandate:m"
    escalated = EffectJudged("tool:1", "h1", "escalate", "rules", "odd")
    judged = Rules(msgspec.structs.replace(ASK, judges=JUDGED), standing=standing)
    assert isinstance(ruled(state(opinion=escalated), judged), Ask)
    assert isinstance(ruled(state(), Rules(msgspec.structs.replace(ASK, second_person=True), standing=standing)), Ask)
    full = msgspec.structs.replace(
        state(), live=msgspec.structs.replace(state().live, unmandated=frozenset({"tool:1"}))
    )
    assert isinstance(ruled(full, Rules(ASK, standing=standing)), Ask)
    assert isinstance(ruled(state(unattended=True), Rules(ASK)), Refuse)


def test_ones_own_approval_is_none_where_a_second_person_is_wanted() -> None:
    two = Rules(msgspec.structs.replace(ASK, second_person=True))
    assert isinstance(ruled(state(YES), two), Ask)
    assert isinstance(ruled(state(msgspec.structs.replace(YES, by="bob")), two), Intend)
