"""Approvals answered in an editor: with every process killed, at the same time as on the command line, and live."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.stage import Stage, until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def page_of(stage: Stage) -> Path | None:
    return next(iter((stage.vault / "inbox").glob("run_*.md")), None)


def tick(page: Path, word: str, reason: str = "") -> None:
    text = page.read_text().replace(f"- [ ] {word}", f"- [x] {word}").replace("\nreason:", f"\nreason: {reason}")
    page.write_text(text)


def test_an_approval_in_an_editor_after_all_processes_were_killed_finishes_the_run_and_the_effect_happens_once(
    stage: Stage,
) -> None:
    assert stage.atlas(*stage.words("mark:a", "ask:b", "mark:c"), "--detach")[0] == 0
    stage.kill_in("up", when=lambda: page_of(stage) is not None)
    page = page_of(stage)
    assert page is not None
    assert "external_side_effect" in page.read_text()
    assert stage.marks == ["a"]
    tick(page, "approve", "seen in the editor")
    assert stage.atlas("up", "--until-idle")[0] == 0
    assert stage.state() == "succeeded"
    assert stage.marks == ["a", "b", "c"]
    assert page_of(stage) is None


def test_an_answer_in_the_editor_continues_a_run_that_a_process_is_there_to_drive(stage: Stage) -> None:
    with stage.started("up") as process:
        assert stage.atlas(*stage.words("ask:a"), "--detach")[0] == 0
        until(lambda: page_of(stage) is not None, process)
        page = page_of(stage)
        assert page is not None
        tick(page, "approve")
        until(lambda: stage.marks == ["a"], process)
        until(lambda: page_of(stage) is None, process)


def test_a_denial_in_the_editor_reaches_the_code_with_its_reason(stage: Stage) -> None:
    assert stage.atlas(*stage.words("ask:a"))[0] == 4
    page = page_of(stage)
    assert page is not None
    tick(page, "deny", "not today")
    assert stage.atlas("up", "--until-idle")[0] == 0
    assert stage.marks == []
    assert "not today" in str(stage.atlas("show", "@last", "--json")[1])


def test_of_two_answers_at_once_one_counts_and_the_other_is_told_so(stage: Stage) -> None:
    told = {"editor": 0, "terminal": 0}
    for round_ in range(4):
        assert stage.atlas(*stage.words(f"ask:{round_}"))[0] == 4
        run_id = stage.run_id()
        page = stage.vault / "inbox" / f"{run_id}.md"
        with ThreadPoolExecutor(2) as pool:
            typed = pool.submit(stage.atlas, "deny", run_id, "--reason", "typed")
            pool.submit(tick, page, "approve").result()
            code, _ = typed.result()
        stage.atlas("up", "--until-idle")
        happened = str(round_) in stage.marks
        if code == 0:
            told["editor"] += 1
            assert not happened
            assert not page.exists() or "did not count" in page.read_text()
        else:
            told["terminal"] += 1
            assert happened
            assert not page.exists()
    assert sum(told.values()) == 4


def test_a_tick_after_the_answer_was_typed_is_told_so_in_the_file(stage: Stage) -> None:
    assert stage.atlas(*stage.words("ask:a"))[0] == 4
    page = page_of(stage)
    assert page is not None
    text = page.read_text()
    assert stage.atlas("deny", "@last", "--reason", "typed")[0] == 0
    assert not page.exists()
    page.write_text(text.replace("- [ ] approve", "- [x] approve"))
    stage.atlas("up", "--until-idle")
    assert stage.marks == []
    noted = page.read_text()
    assert "did not count" in noted
    assert "denied by owner" in noted
    assert "- [x] approve" in noted


_SENDER = """\
agent:
  name: sender
  version: 1.0.0
  description: Sends what it is told
  runtime: prompt
  model: {preference: "demo:script"}
"""
_SEND = """\
from pathlib import Path

from atlas import tool


@tool(effect="external_side_effect", resources=("mail/{to}",))
def send(file: str, to: str) -> str:
    "Sends a mail."
    with Path(file).open("a") as out:
        out.write(to + "\\n")
    return f"sent to {to}"
"""


def test_arguments_edited_on_the_page_are_those_that_the_tool_is_called_with(stage: Stage) -> None:
    agent = stage.vault / "agents" / "sender"
    (agent / "tools").mkdir(parents=True)
    (agent / "agent.yaml").write_text(_SENDER)
    (agent / "tools" / "send.py").write_text(_SEND)
    calls = [{"name": "send", "args": {"file": str(stage.file), "to": to}} for to in ("ann", "bob", "cid")]
    (stage.vault / "script.yaml").write_text(json.dumps({"replies": [{"tool_calls": calls}, {"text": "done"}]}))
    providers = {"demo": {"kind": "scripted", "script": "script.yaml"}}
    (stage.vault / "atlas.config.yaml").write_text(json.dumps({"models": {"providers": providers}}))
    assert stage.atlas("run", "sender", "go")[0] == 4
    page = page_of(stage)
    assert page is not None
    text = page.read_text()
    assert [text.count(f'"to": "{name}"') for name in ("ann", "bob", "cid")] == [1, 1, 1]
    first, second, third = text.split("<!-- atlas question")[1:]
    first = first.replace('"ann"', '"eve"').replace("- [ ] approve", "- [x] approve")
    second = second.replace("- [ ] deny", "- [x] deny").replace("\nreason:", "\nreason: not bob")
    third = third.replace("- [ ] approve", "- [x] approve")
    page.write_text("<!-- atlas question".join([text.partition("<!-- atlas question")[0], first, second, third]))
    assert stage.atlas("up", "--until-idle")[0] == 0
    assert stage.state() == "succeeded"
    assert sorted(stage.marks) == ["cid", "eve"]
    assert page_of(stage) is None
