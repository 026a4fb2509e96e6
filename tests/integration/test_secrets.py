"""Secrets on their way: to the code and the tools that a contract allows, and out of everything these say."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from atlas import AgentBase, AgentContext, tool
from atlas.app import open_host
from atlas.control.host import Host
from atlas.control.redacted import Listener, PublicEnviron, RedactedAsker, RedactedTools
from atlas.control.redaction import Redaction
from atlas.engine.tool_host import WorkerToolHost
from atlas.kernel.code import CallMade, Finished, FromCode, Printed
from atlas.kernel.errors import Invalid, PolicyRefused
from atlas.kernel.model import Asked, Delta, ModelError, OnDelta, Reply, Request, Tab, Text, Thinking, ToolCall, Usage
from atlas.testing.secrets import MemorySecrets
from atlas.tools.tool import define

TOKEN = "tok-3f9a77c1e2"
SEEN: list[str] = []


class Keeper(AgentBase):
    """Uses a secret."""

    contract = {"name": "keeper", "version": "1.0.0", "secrets": ["API_TOKEN", "UNSET"]}

    async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
        value = context.secret(input["name"])
        SEEN.append(value)
        context.log(f"has {value}")
        result = await context.step("use", use, value)
        SEEN.append(json.dumps(result))
        return {"value": value, "result": result}


class Stranger(Keeper):
    """Names no secret."""

    contract = {"name": "stranger", "version": "1.0.0"}


def use(value: str) -> dict[str, str]:
    SEEN.append(value)
    return {"used": value}


def in_host(root: Path, work: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        root.mkdir()
        (root / ".env.local").write_text(f"API_TOKEN={TOKEN}\n")
        async with asyncio.timeout(60), open_host(root, {}, agents=[Keeper, Stranger]) as host:
            await work(host)

    SEEN.clear()
    asyncio.run(main())


async def outcome(host: Host, agent: str, name: str) -> tuple[str, Any, bytes]:
    run_id = (await host.submit(agent, {"name": name})).run_id
    await host.drive(run_id)
    report = await host.report(run_id)
    events = b"".join(event.body for event in await host.ledger.events(run_id))
    return report.state if report.error is None else report.error.code, json.loads(bytes(report.output)), events


def test_code_gets_the_value_and_its_record_does_not(vault_dir: Path) -> None:
    async def work(host: Host) -> None:
        state, output, events = await outcome(host, "keeper", "API_TOKEN")
        assert state == "succeeded"
        assert SEEN[:2] == [TOKEN, TOKEN]
        # What the code goes on with is what it will be told when it runs again.
        assert json.loads(SEEN[2]) == {"used": "[secret:API_TOKEN]"}
        assert output == {"value": "[secret:API_TOKEN]", "result": {"used": "[secret:API_TOKEN]"}}
        assert TOKEN.encode() not in events
        assert b"has [secret:API_TOKEN]" in events

    in_host(vault_dir, work)


def test_a_run_that_used_a_secret_replays_as_it_was(vault_dir: Path) -> None:
    async def work(host: Host) -> None:
        run_id = (await host.submit("keeper", {"name": "API_TOKEN"})).run_id
        await host.drive(run_id)
        replayed = await host.replay(run_id)
        assert (replayed.identical, replayed.code) == (True, "identical")

    in_host(vault_dir, work)


@pytest.mark.parametrize(
    "agent, name, code",
    [
        ("stranger", "API_TOKEN", "secret_not_named"),
        ("keeper", "OTHER", "secret_not_named"),
        ("keeper", "UNSET", "secret_missing"),
    ],
)
def test_a_secret_that_is_not_named_or_not_set_is_refused(vault_dir: Path, agent: str, name: str, code: str) -> None:
    async def work(host: Host) -> None:
        assert (await outcome(host, agent, name))[0] == code

    in_host(vault_dir, work)


def test_a_value_in_the_input_never_reaches_code_or_record(vault_dir: Path) -> None:
    async def work(host: Host) -> None:
        run_id = (await host.submit("keeper", {"name": "API_TOKEN", "text": [TOKEN]}, key=TOKEN)).run_id
        (first, *_) = await host.ledger.events(run_id)
        assert TOKEN.encode() not in first.body
        assert b"[secret:API_TOKEN]" in first.body

    in_host(vault_dir, work)


# Tools

_TOOL = """\
import os
from atlas import tool

@tool(effect="read_only", secrets=["API_TOKEN"])
def show(text: str, secrets: dict[str, str]) -> str:
    "Shows."
    print("printed", secrets["API_TOKEN"])
    if text == "fail":
        raise ValueError(secrets["API_TOKEN"])
    return f"{text} {secrets['API_TOKEN'].upper()} {os.environ.get('VISIBLE')} {os.environ.get('HIDDEN')}"
"""


def test_a_tools_process_gets_what_it_declares_and_says_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "show.py").write_text(_TOOL)

    async def main() -> None:
        redaction = Redaction(MemorySecrets({"API_TOKEN": TOKEN}))
        environ = PublicEnviron({**os.environ, "HIDDEN": f"Bearer {TOKEN}", "VISIBLE": "plain"}, redaction)
        async with asyncio.timeout(60), WorkerToolHost(environ=environ) as host:
            tools = RedactedTools(host, redaction)
            (definition,) = await tools.definitions(str(tmp_path))
            assert definition.secrets == ("API_TOKEN",)
            assert "HIDDEN" not in environ
            assert environ["VISIBLE"] == "plain"
            assert b"secrets" not in bytes(definition.spec.schema)
            given = await redaction.grant("x", ("API_TOKEN",), definition.secrets)
            done = await tools.call(str(tmp_path), "show", b'{"text":"a"}', "k", given)
            assert TOKEN.upper() in done.text  # it had the value; what it makes of it is its own
            assert "plain None" in done.text
            assert "printed [secret:API_TOKEN]" in done.text
            failed = await tools.call(str(tmp_path), "show", b'{"text":"fail"}', "k", given)
            assert failed.is_error
            assert TOKEN not in failed.text

    asyncio.run(main())


def test_a_tool_whose_contract_does_not_name_its_secret_is_refused() -> None:
    redaction = Redaction(MemorySecrets({"API_TOKEN": TOKEN}))
    with pytest.raises(PolicyRefused) as caught:
        asyncio.run(redaction.grant("advisor", ("OTHER",), ("API_TOKEN",)))
    assert caught.value.reason == "secret_not_named"


def test_a_tool_that_declares_secrets_has_a_parameter_for_them() -> None:
    def without(text: str) -> str:
        return text

    def own(secrets: list[str]) -> str:
        return secrets[0]

    with pytest.raises(Invalid) as caught:
        tool(secrets=["API_TOKEN"])(without)
    assert caught.value.reason == "tool_declaration"
    with pytest.raises(Invalid):
        tool(secrets=["not a name"])(own)
    # A parameter of that name belongs to the model as long as nothing is declared.
    assert "secrets" in define(own).signature.schema["properties"]


# Doors


def known(*values: tuple[str, str]) -> Redaction:
    redaction = Redaction(MemorySecrets(dict(values)))
    asyncio.run(redaction.refresh())
    return redaction


def test_a_value_printed_in_pieces_is_held_back_until_it_is_whole() -> None:
    heard: list[FromCode] = []
    listener = Listener(known(("KEY", TOKEN)), heard.append)
    listener.hear(Printed("stdout", f"a {TOKEN[:5]}"))
    listener.hear(Printed("stderr", TOKEN[:3]))
    listener.hear(Printed("stdout", f"{TOKEN[5:]} b"))
    listener.hear(Finished())
    out = "".join(m.text for m in heard if isinstance(m, Printed) and m.stream == "stdout")
    err = "".join(m.text for m in heard if isinstance(m, Printed) and m.stream == "stderr")
    assert (out, err) == ("a [secret:KEY] b", TOKEN[:3])
    assert isinstance(heard[-1], Finished)


def test_a_call_keeps_its_hash_and_loses_the_value() -> None:
    import msgspec

    heard: list[FromCode] = []
    call = CallMade(1, f"step:x:{TOKEN}", "step", "x", msgspec.Raw(json.dumps([TOKEN]).encode()), "h", "read_only")
    Listener(known(("KEY", TOKEN)), heard.append).hear(call)
    (made,) = heard
    assert isinstance(made, CallMade)
    assert (made.effect, bytes(made.args), made.args_hash) == ("step:x:[secret:KEY]", b'["[secret:KEY]"]', "h")


class Echo:
    """A model that gives away what it should not know."""

    def __init__(self, error: ModelError | None = None) -> None:
        self._error = error

    async def ask(self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None) -> Asked:
        if self._error is not None:
            raise self._error
        for start in range(0, len(TOKEN), 3):
            on_delta(Delta("text", TOKEN[start : start + 3]))
        on_delta(Delta("thinking", f"I know {TOKEN}"))
        parts = (Text(f"it is {TOKEN}"), Thinking(TOKEN, "signed"), ToolCall("1", "f", json.dumps({"key": TOKEN})))
        return Asked(Reply(parts, "end", Usage(), "m"), "lab:m", ())


def test_replies_and_deltas_lose_the_value() -> None:
    heard: list[Delta] = []
    asker = RedactedAsker(Echo(), Redaction(MemorySecrets({"KEY": TOKEN})))
    asked = asyncio.run(asker.ask("lab:m", Request("m", (), ()), heard.append))
    assert asked.reply.parts == (
        Text("it is [secret:KEY]"),
        Thinking("[secret:KEY]"),
        ToolCall("1", "f", '{"key": "[secret:KEY]"}'),
    )
    assert "".join(d.text for d in heard if d.kind == "text") == "[secret:KEY]"
    assert "".join(d.text for d in heard if d.kind == "thinking") == "I know [secret:KEY]"


def test_errors_of_providers_lose_the_value() -> None:
    error = ModelError("auth", f"lab answered 401: bad key {TOKEN}", hint=f"header {TOKEN}")
    asker = RedactedAsker(Echo(error), Redaction(MemorySecrets({"KEY": TOKEN})))
    with pytest.raises(ModelError) as caught:
        asyncio.run(asker.ask("lab:m", Request("m", (), ()), lambda delta: None))
    assert TOKEN not in f"{caught.value} {caught.value.hint} {caught.value.record()}"
    assert caught.value.kind == "auth"


def test_a_changed_value_and_the_one_before_are_both_kept_out() -> None:
    kept = {"KEY": TOKEN}
    redaction = Redaction(MemorySecrets(kept), refresh_s=0)
    asyncio.run(redaction.refresh())
    kept["KEY"] = "another-value"
    asyncio.run(redaction.refresh())
    assert redaction.text(f"{TOKEN} another-value") == "[secret:KEY] [secret:KEY]"


def test_an_agent_defined_in_code_may_have_what_its_tools_declare() -> None:
    from atlas.tools.agent import Agent

    @tool(effect="read_only", secrets=["B_KEY", "A_KEY"])
    def look(secrets: dict[str, str]) -> str:
        """Looks."""
        return ""

    assert Agent(name="helper", instructions="Be brief.", tools=[look]).contract.secrets == ("A_KEY", "B_KEY")
