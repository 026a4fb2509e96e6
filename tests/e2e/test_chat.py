"""`atlas chat` at a real terminal: turns of one session, Ctrl-C, Ctrl-D, and questions answered where they are asked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atlas.testing.provider import ProviderProcess
from atlas.testing.provider_wire import Act, ActCall, ActUsage
from e2e.gate import Gate
from e2e.screen import CTRL_C, CTRL_D, command, on_screen

TOOL = '''
from atlas import tool


@tool(effect="external_side_effect")
def send(to: str) -> str:
    """Sends a letter."""
    with open({book!r}, "a") as book:
        book.write(to + "\\n")
    return "sent"
'''
SUMMARY = re.compile(r"^succeeded  \$[\d.]+  [\d,]+ tokens  \d steps?  [\d.]+m?s  lab:m1  \S+$", re.MULTILINE)
SEND = Act(tool_calls=(ActCall("send", '{"to": "ann"}'),))


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderProcess]:
    with ProviderProcess() as process:
        yield process


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    return tmp_path / "vault"


def make_vault(vault: Path, url: str) -> Path:
    agent = vault / "agents" / "advisor"
    (agent / "tools").mkdir(parents=True)
    (agent / "tools" / "post.py").write_text(TOOL.format(book=str(vault / "book.txt")))
    (agent / "agent.yaml").write_text(
        "agent: {name: advisor, version: 1.0.0, description: Helps, runtime: prompt, model: {preference: fast}}\n"
    )
    lab = {"kind": "openai", "base_url": f"{url}/v1"}
    config = {"models": {"providers": {"lab": lab}, "tiers": {"fast": ["lab:m1"]}}, "execution": {"lease_s": 1}}
    (vault / "atlas.config.yaml").write_text(json.dumps(config))
    return vault


def piped(vault: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(vault, *words),
        input=given,
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=90,
        check=False,
    )


def runs(vault: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(piped(vault, "runs", "--json").stdout)["runs"]
    return found[::-1]


def session_in(text: str) -> str:
    found = re.search(r"atlas chat advisor --session (ses_\w+)", text)
    assert found, text
    return found[1]


def test_turns_stream_share_a_session_and_say_what_they_cost(provider: ProviderProcess, vault: Path) -> None:
    provider.plan(
        Act(text="Under the stair.", usage=ActUsage(100, 20)), Act(text="As I said.", usage=ActUsage(100, 20))
    )
    with Gate(provider.url, "Under th") as gate:
        make_vault(vault, gate.url)
        with on_screen(vault, "chat", "advisor") as screen:
            screen.wait_for_prompt()
            screen.press("Where is the kettle?\n")
            screen.wait_for("Under th")
            assert gate.is_holding  # it streams
            gate.open()
            screen.wait_for("lab:m1")
            screen.wait_for_prompt()
            screen.press("Where again?\n")
            screen.wait_for("As I said.")
            screen.wait_for("lab:m1", 2)
            screen.wait_for_prompt()
            screen.press(CTRL_D)
            assert screen.ended() == 0
    assert len(SUMMARY.findall(screen.text)) == 2, screen.text
    session = session_in(screen.text)
    assert [(run["session_id"], run["state"]) for run in runs(vault)] == [(session, "succeeded")] * 2
    assert "Where is the kettle?" in json.dumps(provider.bodies()[1])


def test_ctrl_c_stops_the_turn_and_keeps_the_chat(provider: ProviderProcess, vault: Path) -> None:
    provider.plan(Act(text="A very long story.", piece=7), Act(text="Short."))
    with Gate(provider.url, "A very ") as gate:
        make_vault(vault, gate.url)
        with on_screen(vault, "chat", "advisor") as screen:
            screen.wait_for_prompt()
            screen.press("Tell me.\n")
            screen.wait_for("A very ")
            screen.press(CTRL_C)
            screen.wait_for("cancelled")
            screen.wait_for_prompt()
            gate.open()
            screen.press("Shorter.\n")
            screen.wait_for("Short.")
            screen.wait_for_prompt()
            screen.press(CTRL_D)
            assert screen.ended() == 0
    assert [run["state"] for run in runs(vault)] == ["cancelled", "succeeded"]
    assert "Traceback" not in screen.text


def test_ctrl_c_before_the_answer_begins_leaves_a_line_of_its_own(provider: ProviderProcess, vault: Path) -> None:
    provider.plan(Act(text="Never heard.", before_s=30.0))
    make_vault(vault, provider.url)
    with on_screen(vault, "chat", "advisor") as screen:
        screen.wait_for_prompt()
        screen.press("Tell me.\n")
        while not provider.record().open:
            time.sleep(0.05)
        screen.press(CTRL_C)
        screen.wait_for("cancelled")
        screen.wait_for_prompt()
    assert "^C\ncancelled" in screen.text, screen.text


def test_ctrl_c_at_the_prompt_drops_the_line_and_keeps_the_chat(provider: ProviderProcess, vault: Path) -> None:
    provider.plan(Act(text="Good day."))
    make_vault(vault, provider.url)
    with on_screen(vault, "chat", "advisor") as screen:
        screen.wait_for_prompt()
        screen.press("never said")
        screen.wait_for("never said")
        screen.press_until(CTRL_C, "nothing was sent")
        screen.wait_for_prompt()
        screen.press("hello\n")
        screen.wait_for("Good day.\n")
        screen.wait_for("lab:m1")
        screen.wait_for_prompt()
        screen.press(CTRL_D)
        assert screen.ended() == 0
    assert "never said" not in json.dumps(provider.bodies())


def test_an_approval_is_asked_for_and_given_in_the_chat(provider: ProviderProcess, vault: Path) -> None:
    provider.plan(SEND, Act(text="It is on its way."))
    make_vault(vault, provider.url)
    with on_screen(vault, "chat", "advisor") as screen:
        screen.wait_for_prompt()
        screen.press("Write to Ann.\n")
        screen.wait_for("allow it?")
        assert '{"to":"ann"}' in screen.text.replace(": ", ":")
        assert not (vault / "book.txt").exists()
        screen.press("perhaps\n")
        screen.wait_for("allow it?", 2)
        screen.press("y she waits\n")
        screen.wait_for("It is on its way.")
        screen.wait_for_prompt()
        screen.press(CTRL_D)
        assert screen.ended() == 0
    assert (vault / "book.txt").read_text() == "ann\n"


def test_a_question_that_was_answered_elsewhere_is_told_and_the_chat_goes_on(
    provider: ProviderProcess, vault: Path
) -> None:
    provider.plan(SEND, Act(text="It is on its way."))
    make_vault(vault, provider.url)
    with on_screen(vault, "chat", "advisor") as screen:
        screen.wait_for_prompt()
        screen.press("Write to Ann.\n")
        screen.wait_for("allow it?")
        assert subprocess.run(command(vault, "approve", "@last"), capture_output=True, check=False).returncode == 0
        screen.press("n\n")
        screen.wait_for("It is on its way.")
        screen.wait_for_prompt()
        screen.press(CTRL_D)
        assert screen.ended() == 0
    assert (vault / "book.txt").read_text() == "ann\n"
    assert "error[" in screen.text


def test_a_refusal_reaches_the_model_with_its_reason(provider: ProviderProcess, vault: Path) -> None:
    provider.plan(SEND, Act(text="Then not."))
    make_vault(vault, provider.url)
    with on_screen(vault, "chat", "advisor") as screen:
        screen.wait_for_prompt()
        screen.press("Write to Ann.\n")
        screen.wait_for("allow it?")
        screen.press("n she moved away\n")
        screen.wait_for("Then not.")
        screen.wait_for_prompt()
        screen.press(CTRL_D)
        assert screen.ended() == 0
    assert not (vault / "book.txt").exists()
    assert "she moved away" in json.dumps(provider.bodies()[-1])


def test_a_question_left_open_is_asked_again_when_the_chat_goes_on(provider: ProviderProcess, vault: Path) -> None:
    provider.plan(SEND, Act(text="It is on its way."))
    make_vault(vault, provider.url)
    with on_screen(vault, "chat", "advisor") as screen:
        screen.wait_for_prompt()
        screen.press("Write to Ann.\n")
        screen.wait_for("allow it?")
        screen.press(CTRL_D)
        assert screen.ended() == 0
    with on_screen(vault, "chat", "advisor", "--session", session_in(screen.text)) as screen:
        screen.wait_for("allow it?")
        screen.press("y\n")
        screen.wait_for("It is on its way.")
        screen.wait_for_prompt()
        screen.press(CTRL_D)
        assert screen.ended() == 0
    assert (vault / "book.txt").read_text() == "ann\n"


def test_as_json_each_line_is_a_turn(provider: ProviderProcess, vault: Path) -> None:
    provider.plan(Act(text="One."), Act(text="Two."))
    make_vault(vault, provider.url)
    done = piped(vault, "chat", "advisor", "--json", given="first\n\nsecond\n")
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [report["text"] for report in reports] == ["One.", "Two."]
    assert len({report["session_id"] for report in reports}) == 1


def test_as_json_a_turn_that_waits_for_a_person_ends_the_chat_with_that_code(
    provider: ProviderProcess, vault: Path
) -> None:
    provider.plan(SEND, Act(text="Never said."))
    make_vault(vault, provider.url)
    done = piped(vault, "chat", "advisor", "--json", given="first\nsecond\n")
    [report] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, report["state"]) == (4, "waiting")


def test_piped_lines_get_piped_answers(provider: ProviderProcess, vault: Path) -> None:
    provider.plan(Act(text="One."), Act(text="Two."))
    make_vault(vault, provider.url)
    done = piped(vault, "chat", "advisor", given="first\nsecond")
    assert (done.returncode, done.stdout) == (0, "One.\nTwo.\n")
    assert len(SUMMARY.findall(done.stderr)) == 2


@pytest.mark.parametrize(
    "words, code", [(("nobody",), "not_found"), (("advisor", "--session", "ses_none"), "not_found")]
)
def test_what_is_not_there_is_said_before_anything_is_typed(
    provider: ProviderProcess, vault: Path, words: tuple[str, ...], code: str
) -> None:
    make_vault(vault, provider.url)
    done = piped(vault, "chat", *words, "--json", given="hello\n")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == code
    assert runs(vault) == []
