"""The known ways around a deny, each tried through real runs: none of them gets anything done."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas.app import open_host
from atlas.kernel.errors import PolicyRefused
from atlas.kernel.event import EffectAsked, EffectIntended, EffectJudged, EffectRefused
from e2e.office import Office, play, play_once, see

pytestmark = pytest.mark.timeout(240)

NO_EVE = {"id": "no-eve", "decision": "deny", "match": {"tool": "send", "args": {"to": "eve*"}}, "reason": "not to eve"}
NO_SEND = {"id": "no-send", "decision": "deny", "match": {"tool": "send"}}
FREE = {"id": "free", "decision": "allow", "match": {"tool": "*"}}


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


# Hooks


_HOOK = '''
from atlas.kernel.hook import Hook


class Generous(Hook):
    """Says something other than no about every tool."""

    def __init__(self, word: str):
        self.word = word

    async def authorize_tool(self, view, *rest):
        return {"none": None, "true": True}.get(self.word, self.word)
'''


@pytest.mark.parametrize("word", ["none", "true", "allow", "ask"])
def test_a_hook_that_allows_or_asks_does_not_lower_a_deny(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    site = tmp_path / "site"
    (site / "generous-1.0.dist-info").mkdir(parents=True)
    (site / "generous_hook.py").write_text(_HOOK)
    (site / "generous-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: generous\nVersion: 1.0\n")
    (site / "generous-1.0.dist-info" / "entry_points.txt").write_text(
        "[atlas.hooks]\ngenerous = generous_hook:Generous\n"
    )
    monkeypatch.syspath_prepend(str(site))
    office = Office(tmp_path, hooks=[{"use": "generous", "options": {"word": word}}])
    office.policy(NO_SEND)
    office.script([("send", {"to": "ann"})])
    seen = play_once(office)
    assert office.marks == []
    assert seen.of(EffectAsked) == []
    assert word not in ("none",) or seen.refusals == ["policy_refused"]


# Whoever acts for somebody else


def test_a_subagent_a_delegated_agent_and_their_forks_do_not_escape(office: Office) -> None:
    """The rule denies the boss what it allows the clerk of code; the clerk is reached through one and two others."""
    for name in ("worker", "middle"):
        office.boss(name)
    office.policy(
        FREE,
        {"id": "not-boss", "decision": "deny", "match": {"tool": "post", "agent": "boss"}},
    )
    job = {"file": str(office.file), "do": ["post:external_side_effect:x"]}

    async def main() -> None:
        async with open_host(office.vault, {}) as host:
            assert (await play(host, "worker", job)).report.state == "succeeded"
            assert office.marks == ["x"]
            child = await play(host, "boss", {"file": str(office.file), "to": [["worker", job]]})
            deeper = {"file": str(office.file), "to": [["middle", {"to": [["worker", job]]}]]}
            grandchild = await play(host, "boss", deeper)
            for seen in (child, grandchild):
                assert seen.refusals == ["policy_refused"]
                assert "boss" in seen.of(EffectRefused)[0].error.message
                rows = [row async for row in host.tree(await host.find_run(seen.report.run_id))]
                for row in rows:
                    forked = await see(host, (await host.fork(row.run_id, 1)).run_id)
                    assert forked.refusals == ["policy_refused"]
                assert (await host.replay(rows[-1].run_id)).identical
            assert office.marks == ["x"]

    asyncio.run(main())


def test_a_child_never_holds_more_than_its_parent_was_given(office: Office) -> None:
    office.boss("narrow", "  tools: {deny: [post]}\n")
    office.policy(FREE)
    job = {"file": str(office.file), "do": ["post:external_side_effect:x"]}
    given = {"file": str(office.file), "to": [["boss", job]]}
    by_contract = play_once(office, "narrow", given)
    by_option = play_once(office, "boss", given, deny=("po*",))
    for seen in (by_contract, by_option):
        assert seen.refusals == ["policy_refused"]
    assert office.marks == []
    assert play_once(office, "boss", given).refusals == []
    assert office.marks == ["x"]


def test_options_of_a_run_only_narrow(office: Office) -> None:
    office.policy(NO_EVE)
    office.script([("write", {"name": "a"}), ("send", {"to": "eve"})])
    assert play_once(office, allow=("*",)).refusals == ["policy_refused"]
    assert office.marks == ["a"]
    assert len(play_once(office, allow=("read",)).refusals) == 2
    assert office.atlas("run", "clerk", "go", "--deny", "write", "--deny", "send")[0] == 0
    assert office.marks == ["a"]


def test_a_fork_brings_no_approval_along(office: Office) -> None:
    office.script([("send", {"to": "ann"})])

    async def main() -> None:
        async with open_host(office.vault, {}) as host:
            seen = await play(host)
            [entry] = await host.inbox()
            await host.answer(entry.run_id, entry.effect, True, remember="session")
            assert (await see(host, seen.report.run_id)).report.state == "succeeded"
            assert office.marks == ["ann"]
            events = await host.ledger.events(seen.report.run_id)
            at = next(event.seq for event in events if event.kind == "effect.answered")
            forked = await see(host, (await host.fork(seen.report.run_id, at)).run_id)
            assert forked.report.state == "waiting"
            assert office.marks == ["ann"]

    asyncio.run(main())


# What answers an ASK


def test_an_edited_argument_does_not_escape(office: Office) -> None:
    office.policy(NO_EVE)
    office.script([("send", {"to": "ann"})])

    async def main() -> None:
        async with open_host(office.vault, {}) as host:
            seen = await play(host)
            [entry] = await host.inbox()
            edited = json.dumps({"file": str(office.file), "to": "eve"}).encode()
            await host.answer(entry.run_id, entry.effect, True, args=edited)
            seen = await see(host, seen.report.run_id)
            assert seen.refusals == ["policy_refused"]
            assert "not to eve" in seen.of(EffectRefused)[0].error.message
            assert (await host.replay(seen.report.run_id)).identical

    asyncio.run(main())
    assert office.marks == []


def test_an_edited_argument_does_not_escape_a_second_opinion_either(office: Office) -> None:
    judged = {"by": "rules", "block": [{"args": {"to": "eve*"}}], "escalate": [{"args": {"to": "bob"}}]}
    office.policy({"id": "judged", "decision": "ask", "match": {"tool": "send"}, "judge": judged})
    office.script([("send", {"to": "ann"})])

    async def main(to: str) -> list[str]:
        async with open_host(office.vault, {}) as host:
            seen = await play(host)
            [entry] = await host.inbox()
            edited = json.dumps({"file": str(office.file), "to": to}).encode()
            await host.answer(entry.run_id, entry.effect, True, args=edited)
            seen = await see(host, seen.report.run_id)
            assert (await host.replay(seen.report.run_id)).identical
            return seen.refusals

    assert asyncio.run(main("eve")) == ["judge_blocked"]
    assert office.marks == []
    assert asyncio.run(main("bob")) == []  # a person has decided already, which is all that it wants
    assert office.marks == ["bob"]


def test_a_revision_does_not_escape(office: Office) -> None:
    judge = {"by": "model", "model": "judge:script"}
    office.policy(NO_EVE, {"id": "judged", "decision": "allow", "match": {"tool": "send"}, "judge": judge})
    office.script([("send", {"to": "ann"})])
    office.opinion(verdict="revise", reason="rather eve", args={"file": str(office.file), "to": "eve"})
    seen = play_once(office)
    assert [fact.verdict for fact in seen.of(EffectJudged)] == ["revise"]
    assert seen.refusals == ["policy_refused"]
    assert office.marks == []


def test_a_revision_cannot_turn_a_spawn_into_another_agents(office: Office) -> None:
    office.boss("worker")
    judge = {"by": "model", "model": "judge:script"}
    office.policy(
        {"id": "no-worker", "decision": "deny", "match": {"spawn": "worker"}},
        {"id": "judged", "decision": "allow", "match": {"spawn": "boss"}, "judge": judge},
    )
    below = {"file": str(office.file), "do": ["mark:reversible_write:x"]}
    office.opinion(verdict="revise", reason="better", args={"agent": "worker", "input": below})
    seen = play_once(office, "boss", {"file": str(office.file), "to": [["boss", {"do": []}]]})
    assert seen.refusals == ["judge_blocked"]
    assert office.marks == []


def test_neither_a_mandate_nor_a_grant_passes_a_deny(office: Office) -> None:
    office.mandate(tools=["send", "refund"], hazards=["*"])
    office.script([("send", {"to": "ann"})])
    assert play_once(office).report.state == "succeeded"
    assert office.marks == ["ann"]
    office.policy(NO_SEND)
    assert play_once(office).refusals == ["policy_refused"]
    (office.vault / "mandates.yaml").unlink()
    (office.vault / "policy.yaml").unlink()

    async def main() -> None:
        async with open_host(office.vault, {}) as host:
            seen = await play(host)
            [entry] = await host.inbox()
            await host.answer(entry.run_id, entry.effect, True, remember="session")
            session = (await see(host, seen.report.run_id)).report.session_id
            assert (await play(host, session_id=session)).report.state == "succeeded"
            assert office.marks == ["ann"] * 3
            office.policy(NO_SEND)
            assert (await play(host, session_id=session)).refusals == ["policy_refused"]

    asyncio.run(main())
    assert office.marks == ["ann"] * 3


def test_a_grant_for_what_was_shown_is_none_for_what_a_second_opinion_makes_of_it_later(office: Office) -> None:
    judge = {"by": "model", "model": "judge:script"}
    office.policy({"id": "judged", "decision": "ask", "match": {"tool": "send"}, "judge": judge})
    office.script([("send", {"to": "ann"})])
    office.opinion(verdict="revise", reason="rather bob", args={"file": str(office.file), "to": "bob"})

    async def main(session: str = "", *, is_answered: bool = False) -> str:
        async with open_host(office.vault, {}) as host:
            seen = await play(host, session_id=session)
            if is_answered:
                [entry] = await host.inbox()
                assert msgspec.json.decode(entry.args)["to"] == "bob"
                await host.answer(entry.run_id, entry.effect, True, remember="session")
                seen = await see(host, seen.report.run_id)
            assert (await host.replay(seen.report.run_id)).identical
            return f"{seen.report.state} {seen.report.session_id}"

    first = asyncio.run(main(is_answered=True))
    session = first.split()[1]
    assert asyncio.run(main(session)).split()[0] == "succeeded"
    assert office.marks == ["bob", "bob"]
    office.opinion(verdict="allow", reason="fine as it is")
    assert asyncio.run(main(session)).split()[0] == "waiting"
    assert office.marks == ["bob", "bob"]


def test_more_money_passes_no_deny(office: Office) -> None:
    office.policy(NO_SEND)
    office.script([("send", {"to": "ann"})])
    code, _ = office.atlas("run", "clerk", "go", "--critical", "5", "--why", "urgent", "--json")
    assert code == 0
    assert office.marks == []
    assert [event["body"]["error"]["code"] for event in office.events() if event["kind"] == "effect.refused"] == [
        "policy_refused"
    ]


# When the rules change


def test_what_is_tightened_counts_at_once_for_a_run_under_way(office: Office) -> None:
    office.policy(FREE)
    given = ("--input", json.dumps({"file": str(office.file), "do": ["mark:a", "wait", "mark:b"], "kids": []}))
    from e2e.stage import until

    with office.started("run", "play", *given) as process:
        until(lambda: office.marks == ["a"], process)
        office.policy(FREE, {"id": "stop", "decision": "deny", "match": {"tool": "mark"}})
        office.go()
        assert process.wait(60) == 3
    assert office.marks == ["a"]


def test_an_approval_does_not_outlive_a_rule_that_denies_by_then(office: Office) -> None:
    office.script([("send", {"to": "ann"})])

    async def main() -> None:
        async with open_host(office.vault, {}) as host:
            seen = await play(host)
            [entry] = await host.inbox()
            await host.answer(entry.run_id, entry.effect, True)
            office.policy(NO_SEND)
            assert (await see(host, seen.report.run_id)).refusals == ["policy_refused"]

    asyncio.run(main())
    assert office.marks == []


def test_a_second_person_wanted_since_makes_ones_own_approval_void(office: Office) -> None:
    office.script([("send", {"to": "ann"})])

    async def main() -> None:
        async with open_host(office.vault, {}) as host:
            seen = await play(host)
            [entry] = await host.inbox()
            await host.answer(entry.run_id, entry.effect, True)
            office.policy({"id": "two", "decision": "ask", "match": {"tool": "send"}, "second_person": True})
            assert (await see(host, seen.report.run_id)).report.state == "waiting"
            [entry] = await host.inbox()
            with pytest.raises(PolicyRefused):
                await host.answer(entry.run_id, entry.effect, True)
            await host.answer(entry.run_id, entry.effect, True, principal="bob")
            assert (await see(host, seen.report.run_id)).report.state == "succeeded"

    asyncio.run(main())
    assert office.marks == ["ann"]


@pytest.mark.parametrize("agent", ["clerk", "boss"])
def test_rules_that_cannot_be_read_refuse_runs_and_say_where(office: Office, agent: str) -> None:
    (office.vault / "policy.yaml").write_text("rules:\n  - {id: a, decision: maybe}\n")
    words: tuple[str, ...] = ("run", agent, "--input", json.dumps({"file": str(office.file), "text": "go"}), "--json")
    code, said = office.atlas(*words)
    assert (code, said["error"]["code"]) == (3, "policy_unreadable")
    assert "policy.yaml:2" in said["error"]["where"]


def test_rules_that_become_unreadable_refuse_what_is_under_way(office: Office) -> None:
    office.script([("send", {"to": "ann"})])

    async def main() -> Any:
        async with open_host(office.vault, {}) as host:
            seen = await play(host)
            [entry] = await host.inbox()
            await host.answer(entry.run_id, entry.effect, True)
            (office.vault / "policy.yaml").write_text("rules: [\n")
            return await see(host, seen.report.run_id)

    seen = asyncio.run(main())
    assert set(seen.refusals) == {"policy_unreadable"}
    assert [fact for fact in seen.of(EffectIntended) if fact.kind == "tool"] == []
    assert office.marks == []


# Models


@pytest.mark.parametrize("match", [{"model": "demo:*"}, {"model": "spare:*"}, {"model": "fast"}])
def test_a_tier_hides_no_model_from_the_rules(tmp_path: Path, match: dict[str, str]) -> None:
    agent = tmp_path / "agents" / "clerk"
    agent.mkdir(parents=True)
    agent_yaml = "agent: {name: clerk, version: 1.0.0, description: says, runtime: prompt, model: {preference: fast}}"
    (agent / "agent.yaml").write_text(agent_yaml)
    (tmp_path / "script.yaml").write_text("replies: [{text: hello}]\n")
    (tmp_path / "atlas.config.yaml").write_text(
        "models:\n  providers:\n    demo: {kind: scripted, script: script.yaml}\n    spare: {kind: scripted, script: script.yaml}\n"
        "  tiers: {fast: ['demo:one', 'spare:two']}\n"
    )

    async def run() -> tuple[str, bool]:
        async with open_host(tmp_path, {}) as host:
            submitted = await host.submit("clerk", {"text": "go"})
            state = await host.drive(submitted.run_id)
            return state, (await host.replay(submitted.run_id)).identical

    assert asyncio.run(run()) == ("succeeded", True)
    rule = {"id": "not-that-one", "decision": "deny", "match": match}
    (tmp_path / "policy.yaml").write_text(json.dumps({"rules": [rule]}))
    assert asyncio.run(run()) == ("refused", True)
