"""Hooks and the critic through the real loop: what they decide is a fact, and nobody is asked twice for one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hook_package import install

from atlas.app import open_host
from atlas.control.account import events_of, read
from atlas.control.host import Host
from atlas.kernel.errors import Invalid
from atlas.kernel.event import AttemptStarted, EffectIntended, Logged, Payload, TurnSteered, decode_body, draft
from atlas.kernel.model import (
    Asked,
    Attempt,
    ModelError,
    OnDelta,
    Part,
    Reply,
    Request,
    StopReason,
    Tab,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from atlas.kernel.recall import parse_handle
from atlas.kernel.run import Append
from atlas.testing.clock import FakeClock

Said = tuple[tuple[Part, ...], StopReason]
Work = Callable[[Host, "Asker"], Awaitable[None]]

TOOLS = '''
from pathlib import Path
from atlas import tool


@tool(effect="reversible_write")
def write(name: str, text: str = "x") -> str:
    """Writes a file."""
    (Path(FOLDER) / name).write_text(text)
    return f"wrote {len(text)} characters to {name}"
'''


class Asker:
    """A model that is a function of what it is sent; `seconds` pass with every call."""

    def __init__(
        self, behaviour: Callable[[Request], Said], clock: FakeClock | None = None, seconds: float = 0
    ) -> None:
        self.behaviour = behaviour
        self.requests: list[Request] = []
        self.choices: list[str] = []
        self._clock = clock
        self._seconds = seconds

    async def ask(self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None) -> Asked:
        self.requests.append(request)
        self.choices.append(choice)
        if self._clock is not None:
            self._clock.advance(self._seconds)
        parts, stop = self.behaviour(request)
        usage = Usage(100, 10)
        attempt = Attempt("fake:one", usage, 7)
        if tab is not None:
            tab.attempts.append(attempt)
        return Asked(Reply(parts, stop, usage, "fake:one"), "fake:one", (attempt,))


def say(text: str) -> Said:
    return (Text(text),), "end"


def call(*calls: tuple[str, object]) -> Said:
    made = [ToolCall(f"c{n}", name, json.dumps(args)) for n, (name, args) in enumerate(calls)]
    return tuple(made), "tool_call"


def in_turn(*said: Said) -> Callable[[Request], Said]:
    """Says these one after the other, the last for ever."""
    return lambda request: said[min(request.step, len(said)) - 1]


def heard(request: Request) -> str:
    return "\n".join(part.text for part in request.messages[-1].parts if isinstance(part, Text | ToolResult))


def make_vault(root: Path, agent: dict[str, Any], config: dict[str, Any] | None = None) -> None:
    folder = root / "agents" / "advisor"
    (folder / "tools").mkdir(parents=True, exist_ok=True)
    (folder / "tools" / "main.py").write_text(f"FOLDER = {str(folder)!r}\n{TOOLS}")
    contract = {"name": "advisor", "version": "1.0.0", "description": "Helps", "runtime": "prompt", **agent}
    (folder / "agent.yaml").write_text(json.dumps({"agent": contract}))
    (root / "atlas.config.yaml").write_text(json.dumps(config or {}))


def on(root: Path, asker: Asker, work: Work, clock: FakeClock | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), open_host(root, {"PATH": "/usr/bin:/bin"}, asker=asker, clock=clock) as host:
            await work(host, asker)

    asyncio.run(main())


async def turn(host: Host) -> tuple[str, str, str]:
    """Runs a turn: its id, how it ended, and the error's code or the answer."""
    submitted = await host.submit("advisor", {"text": "go"}, session_id="ses_one")
    state = await host.drive(submitted.run_id)
    report = await host.report(submitted.run_id)
    return submitted.run_id, state, report.error.code if report.error is not None else report.text


async def facts(host: Host, run_id: str) -> list[TurnSteered]:
    events = await host.ledger.events(run_id)
    found = (decode_body(event.kind, event.version, event.body) for event in events)
    return [body for body in found if isinstance(body, TurnSteered)]


async def assert_reproducible(host: Host, asker: Asker, run_id: str) -> None:
    """The run replays identically, and every request can be shown as it was sent; nobody is asked for that."""
    sent = [request for request in asker.requests if request.system[0] != "judge" and request.tools]
    before = len(asker.requests)
    replayed = await host.replay(run_id)
    assert (replayed.identical, replayed.code) == (True, "identical")
    for step, request in enumerate(sent, start=1):
        built = await host.request(run_id, step)
        assert msgspec.json.encode(built.request) == msgspec.json.encode(request)
    assert len(asker.requests) == before


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """A third-party hook that is installed; gives the configuration that uses it."""
    monkeypatch.syspath_prepend(str(install(tmp_path / "site")))
    return lambda *at, **more: {"use": "acme_gate", "options": {"log": str(tmp_path / "log"), "at": list(at), **more}}


def asked(tmp_path: Path) -> list[str]:
    log = tmp_path / "log"
    return log.read_text().split() if log.exists() else []


WRITE = call(("write", {"name": "a.txt"}))


def test_a_hook_is_asked_at_its_eight_moments_in_order(vault_dir: Path, tmp_path: Path, gate: Any) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, state, text = await turn(host)
        assert (state, text) == ("succeeded", "done")
        assert asked(tmp_path) == [
            "reset_for_turn:0",
            "before_step:1",
            "prepare_messages:1",
            "record_step_usage:1",
            "authorize_tool:1",
            "transform_tool_result:1",
            "after_step:1",
            "before_step:2",
            "prepare_messages:2",
            "record_step_usage:2",
            "after_step:2",
            "should_continue_after_stop:2",
        ]
        # Saying nothing is no event, and executing the turn again asks nobody.
        assert await facts(host, run_id) == []
        await assert_reproducible(host, asker, run_id)
        assert len(asked(tmp_path)) == 12

    make_vault(vault_dir, {"hooks": [gate()]})
    on(vault_dir, Asker(in_turn(WRITE, say("done"))), work)


@pytest.mark.parametrize(
    "at, state, code, decision",
    [
        ("reset_for_turn:0", "refused", "refused_by_hook", "deny"),
        ("before_step:2", "refused", "refused_by_hook", "deny"),
        ("record_step_usage:1", "failed", "stopped_by_hook", "stop"),
        ("after_step:1", "failed", "stuck", "stop"),
    ],
)
def test_a_decision_that_ends_the_turn_ends_it_as_what_it_is(
    vault_dir: Path, tmp_path: Path, gate: Any, at: str, state: str, code: str, decision: str
) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, ended, found = await turn(host)
        assert (ended, found) == (state, code)
        (fact,) = await facts(host, run_id)
        assert (f"{fact.moment}:{fact.step}", fact.decision, fact.by) == (at, decision, "acme_gate")
        calls = len(asked(tmp_path))
        await assert_reproducible(host, asker, run_id)
        assert len(asked(tmp_path)) == calls

    make_vault(vault_dir, {"hooks": [gate(at)]})
    on(vault_dir, Asker(in_turn(WRITE, say("done"))), work)


def test_an_answer_that_is_sent_back_goes_on_with_the_feedback(vault_dir: Path, tmp_path: Path, gate: Any) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, state, text = await turn(host)
        assert (state, text) == ("succeeded", "second")
        assert heard(asker.requests[1]).endswith("Look again.")
        (fact,) = await facts(host, run_id)
        assert (fact.decision, fact.text) == ("continue", "Look again.")
        await assert_reproducible(host, asker, run_id)
        assert asked(tmp_path).count("should_continue_after_stop:1") == 1

    make_vault(vault_dir, {"hooks": [gate("should_continue_after_stop:1")]})
    on(vault_dir, Asker(in_turn(say("first"), say("second"))), work)


def test_an_added_block_is_part_of_the_recorded_request(vault_dir: Path, tmp_path: Path, gate: Any) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, state, _ = await turn(host)
        assert state == "succeeded"
        assert "Answer in rhyme." not in heard(asker.requests[0])
        assert "House style (from acme_gate)\nAnswer in rhyme." in heard(asker.requests[1])
        built = await host.request(run_id, 2)
        assert "added: House style (from acme_gate)" in [choice.block for choice in built.choices]
        await assert_reproducible(host, asker, run_id)

    make_vault(vault_dir, {"hooks": [gate("prepare_messages:2")]})
    on(vault_dir, Asker(in_turn(WRITE, say("done"))), work)


def test_a_denied_tool_never_runs_and_the_model_is_told(vault_dir: Path, tmp_path: Path, gate: Any) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, state, _ = await turn(host)
        assert state == "succeeded"
        assert not (vault_dir / "agents" / "advisor" / "a.txt").exists()
        (result,) = [part for part in asker.requests[1].messages[-1].parts if isinstance(part, ToolResult)]
        assert result.is_error
        assert "not that one" in result.text
        events = await host.ledger.events(run_id)
        bodies = [decode_body(event.kind, event.version, event.body) for event in events]
        assert [body.kind for body in bodies if isinstance(body, EffectIntended)] == ["model", "model"]
        await assert_reproducible(host, asker, run_id)
        assert asked(tmp_path).count("authorize_tool:1") == 1

    make_vault(vault_dir, {"hooks": [gate("authorize_tool:1")]})
    on(vault_dir, Asker(in_turn(WRITE, say("done"))), work)


def test_a_model_that_keeps_asking_for_what_is_denied_is_stuck(vault_dir: Path, gate: Any) -> None:
    async def work(host: Host, asker: Asker) -> None:
        _, state, code = await turn(host)
        assert (state, code) == ("failed", "stuck")
        assert len(asker.requests) == 10

    make_vault(vault_dir, {"hooks": [gate(*(f"authorize_tool:{n}" for n in range(1, 30)))]})
    on(vault_dir, Asker(in_turn(WRITE)), work)


def test_a_note_that_a_hook_denied_is_not_carried(vault_dir: Path, gate: Any) -> None:
    async def work(host: Host, asker: Asker) -> None:
        await turn(host)
        assert "There are none." in heard(asker.requests[2])
        await turn(host)
        assert "it is in the attic" not in heard(asker.requests[3])

    make_vault(vault_dir, {"hooks": [gate("authorize_tool:1")]})
    note = call(("note", {"kind": "fact", "key": "kettle", "text": "it is in the attic"}))
    on(vault_dir, Asker(in_turn(note, call(("recall", {"handle": "notes"})), say("done"))), work)


def test_a_changed_result_is_what_the_model_gets_and_the_original_can_be_recalled(
    vault_dir: Path, tmp_path: Path, gate: Any
) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, state, _ = await turn(host)
        assert state == "succeeded"
        assert "changed" in heard(asker.requests[1])
        assert "wrote" not in heard(asker.requests[1])
        assert "wrote 1 characters to a.txt" in heard(asker.requests[2])
        (fact,) = await facts(host, run_id)
        assert (fact.decision, fact.step, fact.call) == ("change", 1, 1)
        await assert_reproducible(host, asker, run_id)
        assert asked(tmp_path).count("transform_tool_result:1") == 1

    make_vault(vault_dir, {"hooks": [gate("transform_tool_result:1")]})
    on(vault_dir, Asker(in_turn(WRITE, call(("recall", {"handle": "t1.1.1"})), say("done"))), work)


@pytest.mark.parametrize(
    "at, does, handle",
    [
        ("authorize_tool:1", WRITE, "t1.1.1"),
        ("should_continue_after_stop:1", say("first"), "t1.1.1"),
        ("after_step:1", WRITE, "t1.1.2"),
        ("record_step_usage:1", WRITE, "t1.1.2"),
        ("reset_for_turn:0", WRITE, "t1.0.1"),
    ],
)
def test_the_handle_that_a_hooks_long_words_show_brings_them_back(
    vault_dir: Path, gate: Any, at: str, does: Said, handle: str
) -> None:
    words = " ".join(f"reason{number}" for number in range(1_000))

    async def work(host: Host, asker: Asker) -> None:
        run_id, _, _ = await turn(host)
        (fact,) = await facts(host, run_id)
        assert f"recall(handle='{handle}'" in fact.text
        account = await read(host.ledger, 1, await events_of(host.ledger, run_id))
        assert (wanted := parse_handle(handle)) is not None
        assert await account.text(wanted) == words

    make_vault(vault_dir, {"hooks": [gate(at, words=words)]})
    on(vault_dir, Asker(in_turn(does, say("done"))), work)


def test_a_changed_result_that_is_too_long_to_show_can_be_read_to_its_end(vault_dir: Path, gate: Any) -> None:
    words = " ".join(f"line{number}" for number in range(2_000))

    async def work(host: Host, asker: Asker) -> None:
        _, state, _ = await turn(host)
        assert state == "succeeded"
        assert "line1000 line1001" not in heard(asker.requests[1])
        assert "line1000 line1001" in heard(asker.requests[2])

    def behaviour(request: Request) -> Said:
        match request.step:
            case 1:
                return WRITE
            case 2:
                start = words.index("line1000")
                return call(("recall", {"handle": "t1.1.1", "start": start}))
        return say("done")

    make_vault(vault_dir, {"hooks": [gate("transform_tool_result:1", words=words)]})
    on(vault_dir, Asker(behaviour), work)


@pytest.mark.parametrize("fails, state", [("closed", "refused"), ("open", "succeeded")])
def test_a_broken_hook_is_a_no_when_it_guards_and_nothing_when_it_advises(
    vault_dir: Path, gate: Any, fails: str, state: str
) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, ended, _ = await turn(host)
        assert ended == state
        events = await host.ledger.events(run_id)
        logged = [decode_body(event.kind, event.version, event.body) for event in events]
        texts = [body.message for body in logged if isinstance(body, Logged)]
        assert "hook acme_gate failed at before_step: RuntimeError: the gate is broken" in texts

    make_vault(vault_dir, {"hooks": [gate(fails=fails, breaks="before_step")]})
    on(vault_dir, Asker(in_turn(say("done"))), work)


MOMENTS = {
    "reset_for_turn": "refused_by_hook",
    "before_step": "refused_by_hook",
    "prepare_messages": "refused_by_hook",
    "record_step_usage": "stopped_by_hook",
    "after_step": "stopped_by_hook",
    "should_continue_after_stop": "stopped_by_hook",
    "authorize_tool": "done",
    "transform_tool_result": "done",
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "how",
    [
        "cancelled",
        "generator",
        "group",
        "exit",
        "unprintable",
        "cancels itself",
        "cancels itself and goes on",
        "cancels what it waits for",
        "unshown",
    ],
)
def test_a_hook_breaks_as_it_may_and_the_turn_ends_once_or_goes_on(
    vault_dir: Path, gate: Any, moment: str, how: str
) -> None:
    async def work(host: Host, asker: Asker) -> None:
        for fails, found in (("closed", MOMENTS[moment]), ("open", "done")):
            make_vault(vault_dir, {"hooks": [gate(fails=fails, breaks=moment, how=how)]})
            asker.requests.clear()
            run_id, _, ended = await turn(host)
            assert ended == found
            assert (vault_dir / "agents" / "advisor" / "a.txt").exists() or fails == "closed"
            events = await host.ledger.events(run_id)
            assert [event.kind for event in events].count("run.ended") == 1
            await assert_reproducible(host, asker, run_id)

    make_vault(vault_dir, {})
    on(vault_dir, Asker(in_turn(WRITE, say("done"))), work)


def test_cancelling_a_run_ends_a_hook_that_would_rather_go_on(vault_dir: Path, tmp_path: Path, gate: Any) -> None:
    async def work(host: Host, asker: Asker) -> None:
        submitted = await host.submit("advisor", {"text": "go"})
        async with asyncio.TaskGroup() as tasks:
            driven = tasks.create_task(host.drive(submitted.run_id))
            while not asked(tmp_path):
                await asyncio.sleep(0.01)
            await host.cancel(submitted.run_id, "enough")
        assert driven.result() == "cancelled"
        assert asker.requests == []

    make_vault(vault_dir, {"hooks": [gate(fails="open", breaks="reset_for_turn", how="holds on")]})
    on(vault_dir, Asker(in_turn(say("done"))), work)


def test_hooks_of_the_vault_hold_for_every_prompt_agent_and_come_first(vault_dir: Path, gate: Any) -> None:
    async def work(host: Host, asker: Asker) -> None:
        _, state, code = await turn(host)
        assert (state, code) == ("refused", "refused_by_hook")
        assert asker.requests == []

    make_vault(vault_dir, {"hooks": [{"token_ceiling": {"limit": 1}}]}, {"hooks": [gate("reset_for_turn:0")]})
    on(vault_dir, Asker(in_turn(say("done"))), work)


def test_decisions_hold_when_the_hook_is_no_longer_configured(vault_dir: Path, gate: Any) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, state, _ = await turn(host)
        assert state == "succeeded"
        make_vault(vault_dir, {}, {})
        async with open_host(vault_dir, {}, asker=asker) as later:
            await assert_reproducible(later, asker, run_id)

    make_vault(vault_dir, {}, {"hooks": [gate("should_continue_after_stop:1", "transform_tool_result:2")]})
    on(vault_dir, Asker(in_turn(say("first"), WRITE, say("second"))), work)


# Configuration


@pytest.mark.parametrize(
    "hook, code, words",
    [
        ({"use": "acme_gat"}, "hook_unknown", "did you mean acme_gate?"),
        ({"use": "test_oracel"}, "hook_unknown", "did you mean test_oracle?"),
        ({"use": "test_oracle"}, "hook_name", "write it as a key"),
        ({"use": "acme_gate", "options": {"log": "x", "logg": "x"}}, "hook_options", "logg"),
        ({"use": "acme_gate", "options": {"log": 3}}, "hook_options", "TypeError: log is no path"),
        ({"use": "acme_gate", "options": {"log": None}}, "hook_options", "SystemExit: 3"),
        ({"use": "acme_number"}, "hook_broken", "is no hook"),
        ({"use": "acme_gone"}, "hook_broken", "acme_nowhere"),
        ({"use": "acme_exit"}, "hook_broken", "SystemExit: no licence"),
        ({"definition_of_done": {"round": 1}}, "unknown_key", "did you mean rounds?"),
        ({"test_oracle": {}}, "missing_key", "command"),
        ({"token_ceiling": {"limit": 0}}, "out_of_range", "at least 1"),
        ({"definition_of_done": {}, "use": "acme_gate"}, "hook_name", "exactly one"),
        ({}, "hook_name", "exactly one"),
        ({"definition_of_done": {}, "options": {"a": 1}}, "hook_options", "options go with use"),
    ],
)
def test_a_wrong_hook_is_refused_when_the_run_is_submitted(
    vault_dir: Path, gate: Any, hook: dict[str, Any], code: str, words: str
) -> None:
    async def work(host: Host, asker: Asker) -> None:
        with pytest.raises(Invalid) as raised:
            await host.submit("advisor", {"text": "go"})
        assert raised.value.reason == code
        assert words in f"{raised.value.message} {raised.value.hint}"
        assert raised.value.where

    make_vault(vault_dir, {"hooks": [hook]})
    on(vault_dir, Asker(in_turn(say("done"))), work)


def test_a_python_agent_takes_no_hooks(vault_dir: Path) -> None:
    async def work(host: Host, asker: Asker) -> None:
        with pytest.raises(Invalid, match="for prompt agents"):
            await host.submit("advisor", {"text": "go"})

    make_vault(vault_dir, {"runtime": "python", "hooks": [{"definition_of_done": {}}]})
    (vault_dir / "agents" / "advisor" / "agent.py").write_text("")
    on(vault_dir, Asker(in_turn(say("done"))), work)


@pytest.mark.parametrize(
    "agent, code",
    [
        ({"critic": {"use": "fast"}}, "critic_unasked"),
        ({"soft_timeout_s": 60, "timeout_s": 60}, "soft_timeout"),
        ({"soft_timeout_s": 5, "critic": {"use": "quick"}}, "bad_value"),
    ],
)
def test_a_critic_that_makes_no_sense_is_refused(vault_dir: Path, agent: dict[str, Any], code: str) -> None:
    async def work(host: Host, asker: Asker) -> None:
        with pytest.raises(Invalid) as raised:
            await host.submit("advisor", {"text": "go"})
        assert raised.value.reason == code

    make_vault(vault_dir, agent)
    on(vault_dir, Asker(in_turn(say("done"))), work)


# The hooks that come with Atlas


def test_the_oracle_sends_a_failure_back_until_its_command_passes(vault_dir: Path) -> None:
    command = "echo run >> runs; test -f a.txt || { seq 1 5000; exit 3; }"

    async def work(host: Host, asker: Asker) -> None:
        run_id, state, text = await turn(host)
        assert (state, text) == ("succeeded", "now it is done")
        folder = vault_dir / "agents" / "advisor"
        assert (folder / "runs").read_text() == "run\nrun\n"
        told = heard(asker.requests[1])
        assert "failed with exit code 3" in told
        assert "recall(handle='t1.1.1', start=" in told
        assert len(told) < 4_000
        # All of the output is behind the handle, exactly.
        assert "1\n2\n3\n4\n" in heard(asker.requests[2])
        await assert_reproducible(host, asker, run_id)
        assert (folder / "runs").read_text() == "run\nrun\n"

    make_vault(vault_dir, {"hooks": [{"test_oracle": {"command": command, "rounds": 2, "timeout_s": 20}}]})
    recalled = call(("recall", {"handle": "t1.1.1"}))
    on(vault_dir, Asker(in_turn(say("done"), recalled, WRITE, say("now it is done"))), work)


@pytest.mark.parametrize("command", ["exec /nowhere/to/be/found", "sleep 60", "kill -9 $$"])
def test_an_oracle_that_cannot_run_forces_another_round_and_never_passes(vault_dir: Path, command: str) -> None:
    async def work(host: Host, asker: Asker) -> None:
        _, state, code = await turn(host)
        assert (state, code) == ("failed", "stuck")
        assert len(asker.requests) == 2

    make_vault(vault_dir, {"hooks": [{"test_oracle": {"command": command, "rounds": 1, "timeout_s": 0.2}}]})
    on(vault_dir, Asker(in_turn(say("done"))), work)


def test_what_an_oracle_gave_up_on_can_be_read_in_later_turns(vault_dir: Path) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, _, code = await turn(host)
        assert code == "stuck"
        error = (await host.report(run_id)).error
        assert error is not None
        handle = re.search(r"recall\(handle='([^']+)', start=\d+\)", error.message)
        assert handle is not None
        account = await read(host.ledger, 1, await events_of(host.ledger, run_id))
        assert (wanted := parse_handle(handle.group(1))) is not None
        assert await account.text(wanted) == "".join(f"{number}\n" for number in range(1, 3_001))

    make_vault(vault_dir, {"hooks": [{"test_oracle": {"command": "seq 1 3000; exit 1", "rounds": 1}}]})
    on(vault_dir, Asker(in_turn(say("done"))), work)


def test_cancelling_a_run_ends_the_command_of_its_oracle(vault_dir: Path) -> None:
    async def work(host: Host, asker: Asker) -> None:
        submitted = await host.submit("advisor", {"text": "go"})
        host.start_driving()
        began = vault_dir / "agents" / "advisor" / "pid"
        async with asyncio.timeout(20):
            while not (began.exists() and began.read_text().strip()):
                await asyncio.sleep(0.01)
        assert await host.cancel(submitted.run_id, "enough") == "cancelled"
        pid = int(began.read_text())
        async with asyncio.timeout(20):
            while Path(f"/proc/{pid}").exists():
                await asyncio.sleep(0.01)

    make_vault(vault_dir, {"hooks": [{"test_oracle": {"command": "echo $$ > pid; sleep 300"}}], "timeout_s": 100})
    on(vault_dir, Asker(in_turn(say("done"))), work)


def test_done_is_accepted_after_a_check_with_a_tool(vault_dir: Path) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, state, text = await turn(host)
        assert (state, text) == ("succeeded", "checked")
        assert "Before this is accepted as done" in heard(asker.requests[1])
        assert len(await facts(host, run_id)) == 1
        await assert_reproducible(host, asker, run_id)

    make_vault(vault_dir, {"hooks": [{"definition_of_done": {}}]})
    on(vault_dir, Asker(in_turn(say("done"), WRITE, say("checked"))), work)


@pytest.mark.parametrize("wrong", [call(("look_up", {})), call(("write", {"nam": "a.txt"}))])
def test_a_call_that_could_not_be_made_is_no_check(vault_dir: Path, wrong: Said) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, state, text = await turn(host)
        assert (state, text) == ("succeeded", "checked")
        assert len(await facts(host, run_id)) == 2
        await assert_reproducible(host, asker, run_id)

    make_vault(vault_dir, {"hooks": [{"definition_of_done": {}}]})
    on(vault_dir, Asker(in_turn(say("done"), wrong, say("done"), WRITE, say("checked"))), work)


def test_the_ceiling_ends_the_turn_that_reaches_it(vault_dir: Path) -> None:
    async def work(host: Host, asker: Asker) -> None:
        run_id, state, code = await turn(host)
        assert (state, code) == ("failed", "stopped_by_hook")
        assert len(asker.requests) == 3
        await assert_reproducible(host, asker, run_id)

    make_vault(vault_dir, {"hooks": [{"token_ceiling": {"limit": 330}}]})
    on(vault_dir, Asker(lambda request: call(("write", {"name": f"{request.step}.txt"}))), work)


# The critic


def work_on(request: Request) -> Said:
    """Brings something new with every step, and is done after twelve."""
    return say("done") if request.step > 12 else call(("write", {"name": f"{request.step}.txt"}))


def dawdle(request: Request) -> Said:
    """Asks for the same again and again."""
    return call(("recall", {"find": "nothing of the kind"}))


def test_a_turn_that_moves_is_extended_by_the_rule(vault_dir: Path) -> None:
    clock = FakeClock()

    async def work(host: Host, asker: Asker) -> None:
        run_id, state, text = await turn(host)
        assert (state, text) == ("succeeded", "done")
        verdicts = await facts(host, run_id)
        assert [(fact.step, fact.decision) for fact in verdicts] == [(5, "extend"), (8, "extend"), (11, "extend")]
        assert [fact.active_us for fact in verdicts] == [8_000_000, 14_000_000, 20_000_000]
        clock.advance(1_000)
        await assert_reproducible(host, asker, run_id)

    make_vault(vault_dir, {"soft_timeout_s": 8, "critic": {"extend_s": 5}, "timeout_s": 100})
    on(vault_dir, Asker(work_on, clock, seconds=2), work, clock)


def test_a_turn_that_does_not_move_is_nudged_then_stopped_by_the_rule(vault_dir: Path) -> None:
    clock = FakeClock()

    async def work(host: Host, asker: Asker) -> None:
        run_id, state, code = await turn(host)
        assert (state, code) == ("failed", "stopped_by_critic")
        assert [fact.decision for fact in await facts(host, run_id)] == ["extend", "nudge", "stop"]
        nudged = [request.step for request in asker.requests if "nothing new came of it lately" in heard(request)]
        assert nudged == [5]
        await assert_reproducible(host, asker, run_id)

    make_vault(vault_dir, {"soft_timeout_s": 4, "timeout_s": 100, "critic": {"extend_s": 4}})
    on(vault_dir, Asker(dawdle, clock, seconds=2), work, clock)


def judged(verdict: str) -> Callable[[Request], Said]:
    """A turn that works on; the critic's model is the one without tools."""
    return lambda request: work_on(request) if request.tools else say(verdict)


@pytest.mark.parametrize(
    "verdict, decision, state",
    [
        ('{"verdict": "extend", "message": "fine"}', "extend", "succeeded"),
        ('{"verdict": "nudge", "message": "Write the last file now."}', "nudge", "succeeded"),
        ('{"verdict": "stop", "message": "It writes the same thing."}', "stop", "failed"),
        ("I would rather not say", "nudge", "succeeded"),
    ],
)
def test_a_model_is_the_critic(vault_dir: Path, verdict: str, decision: str, state: str) -> None:
    clock = FakeClock()

    async def work(host: Host, asker: Asker) -> None:
        run_id, ended, found = await turn(host)
        assert ended == state
        assert found == ("done" if state == "succeeded" else "stopped_by_critic")
        fact = (await facts(host, run_id))[0]
        assert (fact.decision, fact.by) == (decision, "critic (fast)")
        question = next(request for request in asker.requests if not request.tools)
        assert "fast" in asker.choices
        assert "write(" in heard(question)
        if decision == "nudge":
            after = next(request for request in asker.requests if request.step == 6 and request.tools)
            assert fact.text in heard(after)
            assert "nothing new came of it" not in fact.text  # each of its calls wrote something else
        if "{" in verdict:  # what the critic costs is what the run costs
            assert (await host.report(run_id)).tokens.tokens_in == 100 * len(asker.requests)
        await assert_reproducible(host, asker, run_id)

    make_vault(vault_dir, {"soft_timeout_s": 10, "timeout_s": 100, "critic": {"use": "fast", "extend_s": 60}})
    on(vault_dir, Asker(judged(verdict), clock, seconds=2), work, clock)


def test_a_critic_that_cannot_be_asked_is_a_nudge(vault_dir: Path) -> None:
    clock = FakeClock()

    def behaviour(request: Request) -> Said:
        if request.tools:
            return work_on(request)
        raise ModelError("server", "it is down")

    async def work(host: Host, asker: Asker) -> None:
        run_id, state, _ = await turn(host)
        assert state == "succeeded"
        assert [fact.decision for fact in await facts(host, run_id)] == ["nudge"]
        await assert_reproducible(host, asker, run_id)

    make_vault(vault_dir, {"soft_timeout_s": 10, "timeout_s": 100, "critic": {"use": "fast", "extend_s": 60}})
    on(vault_dir, Asker(behaviour, clock, seconds=2), work, clock)


def test_the_soft_limit_counts_leased_time_only(vault_dir: Path) -> None:
    clock = FakeClock()
    make_vault(vault_dir, {"soft_timeout_s": 8, "timeout_s": 100})
    stopped = asyncio.Event()

    class Interrupted(Asker):
        async def ask(self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None) -> Asked:
            if request.step == 3:
                stopped.set()
                await asyncio.sleep(0.2)  # meanwhile its host begins to close, which waits for this answer
            return await super().ask(choice, request, on_delta, tab)

    run_ids: list[str] = []

    async def begin(host: Host, asker: Asker) -> None:
        submitted = await host.submit("advisor", {"text": "go"}, session_id="ses_one")
        run_ids.append(submitted.run_id)
        host.start_driving()
        await stopped.wait()

    async def go_on(host: Host, asker: Asker) -> None:
        assert await host.drive(run_ids[0]) == "succeeded"
        # Three steps before the pause and one after it make eight seconds; the pause itself does not count.
        first = (await facts(host, run_ids[0]))[0]
        assert (first.step, first.active_us) == (5, 8_000_000)

    on(vault_dir, Interrupted(work_on, clock, seconds=2), begin, clock)
    clock.advance(1_000)
    on(vault_dir, Asker(work_on, clock, seconds=2), go_on, clock)


def test_a_question_to_the_critic_that_was_lost_is_asked_again_as_it_was(vault_dir: Path) -> None:
    wanted = {"model": "fast", "prompt": "as it was asked", "output_schema": {"type": "object"}}

    async def work(host: Host, asker: Asker) -> None:
        # A run as a process leaves it that dies while it asks the critic, before its first step.
        submitted = await host.submit("advisor", {"text": "go"})
        (claimed,) = await host.ledger.claim("dead", limit=1, lease_s=60, max_running=9, run_id=submitted.run_id)
        raw = msgspec.json.encode(wanted)
        intent = EffectIntended(
            "critic:1", "model", "fast", Payload(msgspec.Raw(raw)), hashlib.sha256(raw).hexdigest(), "read_only"
        )
        now_us = host.clock.now_us()
        begun = (draft(AttemptStarted(1, "dead"), now_us, "owner"), draft(intent, now_us, "owner"))
        await host.ledger.append(Append(claimed.lease, begun))
        await host.ledger.expire("dead")
        assert await host.drive(submitted.run_id) == "succeeded"
        assert heard(asker.requests[0]) == "as it was asked"
        assert [(fact.step, fact.decision) for fact in await facts(host, submitted.run_id)] == [(1, "extend")]
        assert len([request for request in asker.requests if not request.tools]) == 1

    make_vault(vault_dir, {"soft_timeout_s": 50, "timeout_s": 100, "critic": {"use": "fast"}})
    on(vault_dir, Asker(judged('{"verdict": "extend", "message": ""}')), work)


def test_no_secret_lands_by_way_of_a_hook(vault_dir: Path) -> None:
    value = "correct-horse-battery-staple"

    async def work(host: Host, asker: Asker) -> None:
        run_id, state, code = await turn(host)
        assert (state, code) == ("failed", "stuck")
        assert "[secret:TOKEN]" in heard(asker.requests[1])
        assert not any(value in heard(request) for request in asker.requests)
        assert all(value.encode() not in event.body for event in await host.ledger.events(run_id))

    make_vault(vault_dir, {"hooks": [{"test_oracle": {"command": f"echo {value}; false", "rounds": 1}}]})
    (vault_dir / ".env.local").write_text(f"TOKEN={value}\n")
    (vault_dir / ".env.local").chmod(0o600)
    on(vault_dir, Asker(in_turn(say("done"))), work)
