"""Commands that decide: inbox, approve, deny, cancel, fork, up."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import msgspec
import pytest

from atlas.cli.item import first_number
from atlas.control.report import InboxEntry
from atlas.kernel.event import AttemptStarted, RunEnded, RunParked
from unit.cli.fake_host import make_events, make_row

RUN = "run_0193a1b2c3d47abc8def0123456789ab"
OTHER = "run_0193a1b2c3d47abd8def0123456789ab"


def entry(run_id: str, effect: str, kind: str = "approval", name: str = "send") -> InboxEntry:
    return InboxEntry(run_id, effect, kind, "writer", name, msgspec.Raw(b'["x"]'), "high_risk", "default", 0)


@pytest.fixture(autouse=True)
def waiting_runs(host: Any) -> None:
    host.add(make_row(RUN, "waiting"), "sent", state="succeeded")
    host.add(make_row(OTHER, "in_doubt"))
    host.entries = [entry(RUN, "e1"), entry(OTHER, "e2", "doubt")]


def numbers(atlas: Any) -> list[str]:
    return [item["item"] for item in json.loads(atlas("inbox", "--json").stdout)["items"]]


def test_the_inbox_shows_each_question_with_the_commands_that_answer_it(atlas: Any) -> None:
    text = atlas("inbox").stdout
    approval, doubt = numbers(atlas)
    assert f"atlas approve {approval}" in text
    assert f"atlas inbox not-done {doubt}" in text


def test_an_empty_inbox_says_so(atlas: Any, host: Any) -> None:
    host.entries = []
    result = atlas("inbox")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing waits for a person" in result.stderr


def test_a_number_means_the_same_question_when_others_are_answered(atlas: Any, host: Any) -> None:
    before = numbers(atlas)
    del host.entries[0]
    assert numbers(atlas) == before[1:]
    result = atlas("approve", before[0])
    assert result.exit_code == 2
    assert "may be answered" in result.stderr
    assert not any(asked[0] == "answer" for asked in host.asked)


def test_questions_whose_short_numbers_are_equal_get_longer_ones(atlas: Any, host: Any) -> None:
    wanted = first_number(RUN, "e0")
    twin = next(f"e{n}" for n in range(1, 200_000) if first_number(RUN, f"e{n}") == wanted)
    host.entries = [entry(RUN, "e0"), entry(RUN, twin), entry(RUN, "alone")]
    first, second, third = numbers(atlas)
    assert len({first, second, third}) == 3
    assert (len(first), len(second), len(third)) == (6, 6, 4)
    assert atlas("approve", wanted).exit_code == 2


def test_approve_takes_a_number_a_run_or_a_run_and_its_effect(atlas: Any, host: Any) -> None:
    for words in ((numbers(atlas)[0],), (RUN,), ("@last",), (RUN[:20], "e1")):
        host.asked.clear()
        assert atlas("approve", *words, "--reason", "fine").exit_code == 0
        assert host.asked[-1] == ("answer", RUN, "e1", True, "fine")


def test_deny_carries_the_reason(atlas: Any, host: Any) -> None:
    assert atlas("deny", RUN, "--reason", "not today").exit_code == 0
    assert host.asked[-1] == ("answer", RUN, "e1", False, "not today")


def test_a_run_that_asks_several_things_needs_a_number(atlas: Any, host: Any) -> None:
    host.entries.append(entry(RUN, "e9", name="pay"))
    result = atlas("approve", RUN)
    assert result.exit_code == 2
    assert "(send)" in result.stderr
    assert "(pay)" in result.stderr
    assert atlas("approve", RUN, "e9").exit_code == 0


def test_an_effect_in_doubt_cannot_be_approved_nor_a_question_settled(atlas: Any, host: Any) -> None:
    approval, doubt = numbers(atlas)
    assert "atlas inbox done|not-done|abandon" in atlas("approve", doubt).stderr
    assert "atlas approve|deny" in atlas("inbox", "not-done", approval).stderr
    assert not any(asked[0] in ("answer", "resolve") for asked in host.asked)


def test_the_three_answers_to_a_doubt(atlas: Any, host: Any) -> None:
    doubt = numbers(atlas)[1]
    assert atlas("inbox", "done", doubt, "--result", '{"ok": true}').exit_code == 0
    assert host.asked[-1] == ("resolve", OTHER, "e2", "done", b'{"ok":true}', "")
    assert atlas("inbox", "done", doubt).exit_code == 0
    assert host.asked[-1] == ("resolve", OTHER, "e2", "done", b"null", "")
    assert atlas("inbox", "not-done", OTHER, "e2").exit_code == 0
    assert host.asked[-1] == ("resolve", OTHER, "e2", "not_done", None, "")
    assert atlas("inbox", "abandon", doubt, "--reason", "gone").exit_code == 0
    assert host.asked[-1] == ("resolve", OTHER, "e2", "abandon", None, "gone")


def test_a_result_that_is_not_json_answers_nothing(atlas: Any, host: Any) -> None:
    result = atlas("inbox", "done", numbers(atlas)[1], "--result", "{nope")
    assert (result.exit_code, "error[not_json]" in result.stderr) == (2, True)
    assert not any(asked[0] == "resolve" for asked in host.asked)


def test_an_answer_says_what_was_answered_and_how_the_run_continues(atlas: Any) -> None:
    result = atlas("approve", RUN)
    assert 'approved: send ["x"]' in result.stdout
    assert "atlas up --until-idle" in result.stderr
    answered = json.loads(atlas("approve", RUN, "--json").stdout)
    assert answered == {"run_id": RUN, "effect": "e1", "name": "send", "answer": "approved"}


def test_an_answer_with_run_drives_on_and_prints_the_result(atlas: Any, host: Any) -> None:
    result = atlas("approve", RUN, "--run")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "sent"
    assert ("drive", RUN) in host.asked
    host.add(make_row(RUN, "waiting"), "sent", state="succeeded")
    assert json.loads(atlas("approve", RUN, "--run", "--json").stdout)["output"] == "sent"


def test_questions_of_one_tree_are_shown_under_one_head(atlas: Any, host: Any) -> None:
    below = msgspec.structs.replace(entry(OTHER, "e3"), root_run_id=RUN)
    mine = [msgspec.structs.replace(one, root_run_id=RUN) for one in (entry(RUN, "e1"), entry(RUN, "e2"))]
    host.entries = [*mine, below]
    text = atlas("inbox").stdout
    assert text.count("asks 3 things") == 1
    assert f"approve {RUN[:20]} --all" in text
    host.entries = [mine[0]]
    assert "asks" not in atlas("inbox").stdout


def test_the_inbox_says_why_for_whom_until_when_and_who_else_must_look(atlas: Any, host: Any) -> None:
    now_us = host.clock.now_us()
    host.entries = [
        msgspec.structs.replace(
            entry(RUN, "e1"),
            principal="bob",
            rule="mail",
            layer="vault",
            cost_usd=0.25,
            expires_us=now_us + 3_600_000_000,
            second_person=True,
            escalated_to="lead",
        )
    ]
    text = atlas("inbox").stdout
    for words in (
        "(vault: mail)",
        "for bob",
        "cost so far $0.25",
        "expires in 1h",
        "second person",
        "passed on to lead",
    ):
        assert words in text
    [item] = json.loads(atlas("inbox", "--json").stdout)["items"]
    assert (item["rule"], item["layer"], item["principal"]) == ("mail", "vault", "bob")
    assert (item["cost_usd"], item["second_person"], item["escalated_to"]) == (0.25, True, "lead")
    host.entries = [msgspec.structs.replace(host.entries[0], expires_us=now_us - 1)]
    assert "expired" in atlas("inbox").stdout


def test_all_that_a_run_asks_is_answered_at_once_and_what_was_answered_meanwhile_is_told(atlas: Any, host: Any) -> None:
    host.entries = [entry(RUN, "e1"), entry(RUN, "e2"), entry(RUN, "e3", "doubt")]
    result = atlas("approve", RUN, "--all", "--remember", "run", "--json")
    assert result.exit_code == 0
    assert [one["effect"] for one in json.loads(result.stdout)["answered"]] == ["e1", "e2"]
    assert [asked[2] for asked in host.asked if asked[0] == "answer"] == ["e1", "e2"]
    host.late_for = {"e1"}
    result = atlas("deny", RUN, "--all", "--reason", "no", "--json")
    assert result.exit_code == 2
    said = json.loads(result.stdout)
    assert [one["effect"] for one in said["answered"]] == ["e2"]
    assert [one["error"]["code"] for one in said["failed"]] == ["already_answered"]
    assert "not answered: send" in atlas("deny", RUN, "--all").stderr
    assert atlas("approve", RUN, "e1", "--all").exit_code == 2
    assert atlas("approve", RUN, "--all", "--args", "{}").exit_code == 2


def test_other_arguments_are_given_as_json_and_anything_else_answers_nothing(atlas: Any, host: Any) -> None:
    told = atlas("approve", RUN, "--args", '{"to": "bob"}')
    assert (told.exit_code, '{"to":"bob"}' in told.stdout) == (0, True)
    assert host.more == {"args": b'{"to":"bob"}'}
    host.asked.clear()
    assert atlas("approve", RUN, "--args", "{to: bob}").exit_code == 2
    assert host.asked == []


@pytest.mark.parametrize(
    "words",
    [("approve", RUN), ("deny", RUN), ("approve", RUN, "--all"), ("inbox", "done", RUN), ("inbox", "abandon", RUN)],
)
def test_whoever_acts_in_a_runs_name_answers_nothing(
    atlas: Any, program: Any, host: Any, words: tuple[str, ...]
) -> None:
    program.environ = {"ATLAS_RUN_ID": "-"}
    result = atlas(*words)
    assert (result.exit_code, "error[inside_a_run]" in result.stderr) == (3, True)
    assert (host.asked, program.opened) == ([], [])


def test_cancel_says_where_the_run_stands(atlas: Any, host: Any) -> None:
    result = atlas("cancel", RUN, "--reason", "wrong")
    assert (result.exit_code, "cancelled" in result.stdout) == (0, True)
    assert host.asked[-1] == ("cancel", RUN, "wrong")


def test_a_run_that_has_ended_cannot_be_cancelled_but_a_cancelled_one_may_be_again(atlas: Any, host: Any) -> None:
    host.add(make_row(RUN, "succeeded"))
    assert "error[run_ended]" in atlas("cancel", RUN).stderr
    host.add(make_row(RUN, "cancelled"))
    assert atlas("cancel", RUN).exit_code == 0


def test_fork_drives_the_new_run_unless_told_not_to(atlas: Any, host: Any) -> None:
    assert atlas("fork", RUN, "--at", "3").exit_code == 0
    assert host.asked[0] == ("fork", RUN, 3)
    assert ("drive", RUN) in host.asked
    host.asked.clear()
    result = atlas("fork", RUN, "--no-run")
    assert (result.exit_code, result.stdout) == (0, f"{RUN}\n")
    assert host.asked == [("fork", RUN, None)]


def test_up_prints_what_starts_and_ends(atlas: Any, host: Any) -> None:
    host.ledger.late = make_events(RUN, AttemptStarted(2, "me"), RunParked("person"), RunEnded("succeeded"))
    result = atlas("up", "--until-idle")
    assert result.exit_code == 0
    assert [line.split()[1] for line in result.stdout.splitlines()] == ["running", "waiting", "succeeded"]
    assert ("drive_all", True) in host.asked
    changes = [json.loads(line) for line in atlas("up", "--until-idle", "--json").stdout.splitlines()]
    assert [(change["what"], change.get("attempt")) for change in changes] == [
        ("running", 2),
        ("waiting", None),
        ("succeeded", None),
    ]


def test_up_with_nothing_to_do_says_so(atlas: Any) -> None:
    assert "nothing to do" in atlas("up", "--until-idle").stderr
    result = atlas("up", "--until-idle", "--json")
    assert json.loads(result.stdout)["what"] == "idle"


class Deaf:
    """A host whose run is held by another process, which never ends it."""

    def __init__(self, host: Any, owner: str, lease_s: float) -> None:
        self.host = host
        until_us = host.clock.now_us() + int(lease_s * 1_000_000)
        host.add(make_row(RUN, "running", owner=owner, lease_until_us=until_us))

    async def cancel(self, run_id: str, reason: str) -> str:
        await asyncio.sleep(2.5)
        return "cancelled"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)


@pytest.mark.parametrize(
    "owner, named", [("elsewhere|4711|1|x", "process 4711 of another machine"), ("resolve|sig_1", "another process")]
)
def test_cancel_says_whom_it_waits_for_and_gives_up(
    atlas: Any, program: Any, host: Any, owner: str, named: str
) -> None:
    program.host = Deaf(host, owner, 60)
    result = atlas("cancel", RUN, "--wait", "1.2")
    assert result.exit_code == 5
    first, error, *_ = result.stderr.splitlines()
    assert first.startswith(f"waiting for {named} (lease until ")
    assert error.startswith("error[cancel_pending]")
    assert named in error
    program.host = Deaf(host, owner, 60)
    assert json.loads(atlas("cancel", RUN, "--wait", "1", "--json").stdout)["error"]["code"] == "cancel_pending"


def test_cancel_goes_on_waiting_when_nobody_else_has_the_run(atlas: Any, program: Any, host: Any) -> None:
    from atlas.engine.process import process_of

    me = process_of(os.getpid())
    program.host = Deaf(host, f"{me.host}|{me.pid}|{me.started_us}|x", 60)
    result = atlas("cancel", RUN, "--wait", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "cancelled" in result.stdout
