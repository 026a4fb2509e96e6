"""Second opinions through real runs: what each verdict does, that none at all blocks, and that replay asks nobody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from atlas.app import open_host
from atlas.kernel.event import EffectAsked, EffectIntended, EffectJudged, EffectReceived
from e2e.office import Office, Seen, play, play_once, see

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    made = Office(tmp_path)
    made.script([("send", {"to": "ann"})])
    return made


def judged(office: Office, decision: str = "allow", **judge: Any) -> None:
    judge.setdefault("by", "model")
    if judge["by"] == "model":
        judge.setdefault("model", "judge:script")
    office.policy({"id": "judged", "decision": decision, "match": {"tool": "send"}, "judge": judge})


def verdicts(seen: Seen) -> list[tuple[str, str]]:
    return [(fact.verdict, fact.by) for fact in seen.of(EffectJudged)]


def replays(office: Office, run_id: str) -> bool:
    """Whether the run is decided again the same way, with nobody there to ask."""
    (office.vault / "judge.yaml").unlink(missing_ok=True)
    (office.vault / "demo.yaml").rename(office.vault / "gone.yaml")
    (office.vault / "policy.yaml").unlink()

    async def main() -> bool:
        async with open_host(office.vault, {}) as host:
            report = await host.replay(run_id)
            assert report.mismatches == ()
            return report.identical

    return asyncio.run(main())


def test_allow_lets_it_happen_and_is_recorded_with_the_policy_it_was_given_under(office: Office) -> None:
    judged(office)
    office.opinion(verdict="allow", reason="harmless")
    seen = play_once(office)
    assert (seen.report.state, office.marks) == ("succeeded", ["ann"])
    [opinion] = seen.of(EffectJudged)
    [intent] = [fact for fact in seen.of(EffectIntended) if fact.kind == "tool"]
    assert intent.ruling is not None
    assert (opinion.verdict, opinion.reason, opinion.args_hash) == ("allow", "harmless", intent.args_hash)
    assert opinion.version == intent.ruling.version != ""
    assert replays(office, seen.report.run_id)


def test_block_is_final_and_the_model_hears_why(office: Office) -> None:
    judged(office, "ask")
    office.opinion(verdict="block", reason="ann is on leave")
    seen = play_once(office)
    assert (seen.refusals, seen.of(EffectAsked), office.marks) == (["judge_blocked"], [], [])
    assert "ann is on leave" in str(office.atlas("show", "@last", "--request", "2", "--json")[1])
    assert "second opinion: block" in office.atlas("show", "@last")[1]
    assert replays(office, seen.report.run_id)


def test_revise_does_the_smaller_thing_and_shows_it_to_the_model_and_the_person(office: Office) -> None:
    judged(office)
    office.opinion(verdict="revise", reason="bob is enough", args={"file": str(office.file), "to": "bob"})
    seen = play_once(office)
    assert (verdicts(seen), office.marks) == ([("revise", "judge:script (scripted)")], ["bob"])
    [result] = [fact for fact in seen.of(EffectReceived) if fact.effect.startswith("tool:")]
    assert '"to":"bob"' in json.loads(bytes(result.result.json))["text"]
    text = office.atlas("show", "@last", "--events")[1]
    assert "second opinion: revise by judge:script (scripted): bob is enough" in text
    assert "with changed arguments" in text
    assert "arguments changed" in office.atlas("trace", "@last")[1]
    assert replays(office, seen.report.run_id)


def test_a_revision_that_does_not_fit_the_tool_does_nothing(office: Office) -> None:
    judged(office)
    office.opinion(verdict="revise", reason="oops", args={"file": str(office.file), "to": 7})
    play_once(office)
    assert office.marks == []


def test_a_revision_that_a_rule_asks_about_is_asked_about_as_it_would_be_done(office: Office) -> None:
    judge = {"by": "model", "model": "judge:script"}
    office.policy(
        {"id": "judged", "decision": "allow", "match": {"tool": "send"}, "judge": judge},
        {"id": "bob", "decision": "ask", "match": {"tool": "send", "args": {"to": "bob"}}},
    )
    office.opinion(verdict="revise", reason="rather bob", args={"file": str(office.file), "to": "bob"})

    async def main() -> Seen:
        async with open_host(office.vault, {}) as host:
            seen = await play(host)
            [entry] = await host.inbox()
            assert (entry.rule, b'"bob"' in bytes(entry.args)) == ("bob", True)
            await host.answer(entry.run_id, entry.effect, True)
            return await see(host, seen.report.run_id)

    seen = asyncio.run(main())
    assert office.marks == ["bob"]
    assert replays(office, seen.report.run_id)


def test_escalate_asks_a_person_whatever_stands_ready_to_answer(office: Office) -> None:
    judged(office, "ask")
    office.mandate(tools=["send"])
    office.opinion(verdict="escalate", reason="looks odd")

    async def main() -> Seen:
        async with open_host(office.vault, {}) as host:
            seen = await play(host)
            [entry] = await host.inbox()
            assert "looks odd" in entry.reason
            assert office.marks == []
            await host.answer(entry.run_id, entry.effect, True)
            return await see(host, seen.report.run_id)

    seen = asyncio.run(main())
    assert office.marks == ["ann"]
    assert replays(office, seen.report.run_id)


@pytest.mark.parametrize(
    "to, refusals, is_asked", [("ann", [], False), ("eve", ["judge_blocked"], False), ("bob", [], True)]
)
def test_a_judge_with_patterns(office: Office, to: str, refusals: list[str], is_asked: bool) -> None:
    office.script([("send", {"to": to})])
    judged(office, by="rules", block=[{"args": {"to": "e*"}}], escalate=[{"args": {"to": "b*"}}])
    seen = play_once(office)
    assert (seen.refusals, bool(seen.of(EffectAsked))) == (refusals, is_asked)
    assert office.marks == (["ann"] if to == "ann" else [])
    assert replays(office, seen.report.run_id)


@pytest.mark.parametrize(
    "judge, opinion, why",
    [
        ({"model": "nobody:here"}, {"verdict": "allow", "reason": "x"}, "nobody"),
        ({"model": "no-such-tier"}, {"verdict": "allow", "reason": "x"}, ""),
        ({}, {"error": {"kind": "refused", "message": "I will not judge"}}, "I will not judge"),
        ({}, {"error": {"kind": "auth"}}, ""),
        ({}, {"verdict": "perhaps", "reason": "x"}, ""),
        ({}, {"verdict": "allow", "reason": "x", "args": {"to": "eve"}}, "contradicted"),
        ({}, {"verdict": "revise", "reason": "x"}, "contradicted"),
    ],
)
def test_no_clear_opinion_is_a_block(office: Office, judge: dict[str, Any], opinion: dict[str, Any], why: str) -> None:
    judged(office, **judge)
    office.opinion(**opinion)
    seen = play_once(office)
    assert (seen.refusals, office.marks) == (["judge_blocked"], [])
    [said] = seen.of(EffectJudged)
    assert said.verdict == "block"
    assert said.reason.startswith("no second opinion")
    assert why in said.reason
    assert replays(office, seen.report.run_id)


def test_a_judge_whose_model_the_rules_deny_blocks(office: Office) -> None:
    office.policy(
        {"id": "judged", "decision": "allow", "match": {"tool": "send"}, "judge": {"model": "judge:script"}},
        {"id": "no-judge", "decision": "deny", "match": {"model": "judge:*"}},
    )
    office.opinion(verdict="allow", reason="x")
    assert play_once(office).refusals == ["judge_blocked"]
    assert office.marks == []


def test_a_judge_without_money_blocks(tmp_path: Path) -> None:
    providers = {name: {"kind": "scripted", "script": f"{name}.yaml"} for name in ("demo", "judge")}
    prices = {"judge:script": {"input_usd_per_mtok": 1000, "output_usd_per_mtok": 1000}}
    office = Office(tmp_path, models={"providers": providers, "prices": prices})
    office.script([("send", {"to": "ann"})], [("send", {"to": "bob"})])
    judged(office, usd_per_day=0.01)
    office.opinion(verdict="allow", reason="x")
    seen = play_once(office)
    assert (set(seen.refusals), office.marks) == ({"judge_blocked"}, [])
    assert "judge usd_per_day" in seen.of(EffectJudged)[0].reason


def test_a_judge_that_takes_too_long_blocks(office: Office) -> None:
    judged(office, timeout_s=0.2)
    reply = {"text": json.dumps({"verdict": "allow", "reason": "x"}), "delay_ms": 20_000}
    (office.vault / "judge.yaml").write_text(json.dumps({"replies": [reply]}))
    seen = play_once(office)
    assert (seen.refusals, office.marks) == (["judge_blocked"], [])
    assert "none within 0.2 s" in seen.of(EffectJudged)[0].reason
