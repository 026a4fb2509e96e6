"""Prompt agents through the real driver and ledger, with a model that is a function of what it is sent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agents_for_tests import AGENTS

from atlas import AgentBase, AgentContext
from atlas.app import open_host
from atlas.control.history import bodies, load
from atlas.control.host import Host
from atlas.kernel.budget import Reservation
from atlas.kernel.errors import AtlasError, Conflict, Invalid, NotFound
from atlas.kernel.event import AttemptStarted, EffectDoubted, EffectIntended, decode_body, draft
from atlas.kernel.model import (
    Asked,
    Attempt,
    Delta,
    ModelError,
    ModelErrorKind,
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
from atlas.kernel.run import Append

Behaviour = Callable[[Request], tuple[tuple[Part, ...], StopReason]]


class FakeAsker:
    """Asks a function; remembers every request."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[Request] = []

    async def ask(self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None) -> Asked:
        self.requests.append(request)
        parts, stop = self.behaviour(request)
        for part in parts:
            if isinstance(part, Text):
                on_delta(Delta("text", part.text))
        usage = Usage(100, 10)
        attempt = Attempt("fake:one", usage, 7)
        if tab is not None:
            tab.attempts.append(attempt)
        return Asked(Reply(parts, stop, usage, "fake:one"), "fake:one", (attempt,))


def say(text: str) -> tuple[tuple[Part, ...], StopReason]:
    return (Text(text),), "end"


def call(*calls: tuple[str, object]) -> tuple[tuple[Part, ...], StopReason]:
    made = [ToolCall(f"c{n}", name, msgspec.json.encode(args).decode()) for n, (name, args) in enumerate(calls)]
    return tuple(made), "tool_call"


def last_text(request: Request) -> str:
    return "\n".join(part.text for part in request.messages[-1].parts if isinstance(part, Text | ToolResult))


@asynccontextmanager
async def host_with(root: Path, asker: FakeAsker, extra: str = "") -> AsyncIterator[Host]:
    persona = root / "agents" / "advisor" / "persona"
    persona.mkdir(parents=True, exist_ok=True)
    (root / "atlas.config.yaml").touch()
    contract = "agent:\n  name: advisor\n  version: 1.0.0\n  description: Helps\n  runtime: prompt\n" + extra
    (root / "agents" / "advisor" / "agent.yaml").write_text(contract)
    (persona / "IDENTITY.md").write_text("You are the advisor.\n")
    async with asyncio.timeout(60), open_host(root, {}, asker=asker) as host:
        yield host


def with_host(
    root: Path, behaviour: Behaviour, work: Callable[[Host, FakeAsker], Awaitable[None]], extra: str = ""
) -> None:
    async def main() -> None:
        asker = FakeAsker(behaviour)
        async with host_with(root, asker, extra) as host:
            await work(host, asker)

    asyncio.run(main())


async def ask(host: Host, text: str, session: str = "ses_one") -> tuple[str, str]:
    submitted = await host.submit("advisor", {"text": text}, session_id=session)
    state = await host.drive(submitted.run_id)
    assert state == "succeeded", (await host.report(submitted.run_id)).error
    return submitted.run_id, (await host.report(submitted.run_id)).text


def test_a_turn_streams_answers_and_accounts_for_itself(vault_dir: Path) -> None:
    async def work(host: Host, asker: FakeAsker) -> None:
        submitted = await host.submit("advisor", {"text": "hello"})
        seen: list[str] = []
        with host.deltas.watch(submitted.run_id, lambda delta: seen.append(delta.text)):
            assert await host.drive(submitted.run_id) == "succeeded"
        report = await host.report(submitted.run_id)
        assert seen == ["good day"]
        assert report.text == "good day"
        assert (report.tokens.tokens_in, report.tokens.tokens_out, report.cost_usd) == (100, 10, 0.000007)
        assert report.models == ("fake:one",)
        assert "You are the advisor." in asker.requests[0].system[0]

    with_host(vault_dir, lambda request: say("good day"), work)


def test_wrong_tool_calls_go_back_to_the_model_and_never_end_the_run(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        if len(request.messages) == 1:
            broken = ToolCall("c9", "recall", "{not json")
            parts, stop = call(("nope", {}), ("recall", {"handel": "t1"}), ("note", {"kind": "wish"}))
            return (*parts, broken), stop
        return say("done")

    async def work(host: Host, asker: FakeAsker) -> None:
        assert (await ask(host, "go"))[1] == "done"
        results = [part for part in asker.requests[1].messages[-1].parts if isinstance(part, ToolResult)]
        assert [result.is_error for result in results] == [True, True, True, True]
        assert "no tool 'nope'" in results[0].text
        assert "handel" in results[1].text
        assert "not JSON" in results[3].text

    with_host(vault_dir, behaviour, work)


@pytest.mark.parametrize("name", ["recall", "note", "nope"])
@pytest.mark.parametrize("stop", ["tool_call", "length"])
@pytest.mark.parametrize(
    "args", ['{"find": ' + "[" * 300 + "]" * 300 + "}", '{"find": ' + "[" * 900 + "]" * 900 + "}", "[" * 8_000]
)
def test_a_call_whose_arguments_nest_without_end_goes_back_to_the_model(
    vault_dir: Path, name: str, stop: StopReason, args: str
) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        return ((ToolCall("c1", name, args),), stop) if request.step == 1 else say("done")

    async def work(host: Host, asker: FakeAsker) -> None:
        run_id, text = await ask(host, "go")
        assert text == "done"
        (result,) = [part for part in asker.requests[1].messages[-1].parts if isinstance(part, ToolResult)]
        assert result.is_error
        assert ("no tool 'nope'" if name == "nope" else "deeper than 100 levels") in result.text
        (shown,) = [part for part in asker.requests[1].messages[-2].parts if isinstance(part, ToolCall)]
        assert set(msgspec.json.decode(shown.args)) <= {"malformed", "shortened"}
        assert (await host.replay(run_id)).identical

    with_host(vault_dir, behaviour, work)


def test_the_record_says_why_nobody_knows_what_a_call_came_to(vault_dir: Path) -> None:
    tools = vault_dir / "agents" / "advisor" / "tools"
    tools.mkdir(parents=True)
    (tools / "leave.py").write_text(
        'import os\nfrom atlas import tool\n\n@tool\ndef leave() -> str:\n    """Leaves."""\n    os._exit(3)\n'
    )

    async def work(host: Host, asker: FakeAsker) -> None:
        submitted = await host.submit("advisor", {"text": "go"})
        assert await host.drive(submitted.run_id) == "in_doubt"
        events = await host.ledger.events(submitted.run_id)
        [doubt] = [body for _, body in bodies(events) if isinstance(body, EffectDoubted)]
        assert "exited with status 3" in doubt.reason
        assert "probe" not in doubt.reason, "it has none"

    with_host(vault_dir, lambda request: call(("leave", {})), work)


def test_an_answer_that_was_cut_off_is_continued(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        return ((Text("first half, "),), "length") if request.step == 1 else say("second half")

    async def work(host: Host, asker: FakeAsker) -> None:
        assert (await ask(host, "go"))[1] == "first half, second half"
        assert "cut off" in last_text(asker.requests[1])

    with_host(vault_dir, behaviour, work)


@pytest.mark.parametrize("begun", ["", "{}", '{"path": "wi'])
def test_a_call_that_was_cut_off_is_not_made_and_the_model_is_told(vault_dir: Path, begun: str) -> None:
    whole = ToolCall("c1", "note", '{"kind": "fact", "key": "k", "text": "t"}')

    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        # list_files would do without arguments.
        return ((whole, ToolCall("c2", "list_files", begun)), "length") if request.step == 1 else say("done")

    async def work(host: Host, asker: FakeAsker) -> None:
        assert (await ask(host, "go"))[1] == "done"
        results = [part for part in asker.requests[1].messages[-1].parts if isinstance(part, ToolResult)]
        assert [one.is_error for one in results] == [False, True]
        assert "The arguments are not JSON" in results[1].text
        assert "cut off at the limit of its length" in last_text(asker.requests[1])

    with_host(vault_dir, behaviour, work)


@pytest.mark.parametrize("stop", ["refusal", "filter"])
def test_a_model_that_declines_ends_the_run_as_that(vault_dir: Path, stop: StopReason) -> None:
    async def work(host: Host, asker: FakeAsker) -> None:
        submitted = await host.submit("advisor", {"text": "go"})
        assert await host.drive(submitted.run_id) == "failed"
        error = (await host.report(submitted.run_id)).error
        assert error is not None
        assert error.code == f"model_{stop}"

    with_host(vault_dir, lambda request: ((Text("I will not"),), stop), work)


def test_a_model_that_cannot_be_asked_fails_the_run_with_its_reason(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        raise ModelError("auth", "the key is wrong")

    async def work(host: Host, asker: FakeAsker) -> None:
        submitted = await host.submit("advisor", {"text": "go"})
        assert await host.drive(submitted.run_id) == "failed"
        error = (await host.report(submitted.run_id)).error
        assert error is not None
        assert (error.code, error.message) == ("model_auth", "the key is wrong")

    with_host(vault_dir, behaviour, work)


def test_a_request_that_is_too_long_for_the_model_is_made_again_in_fewer_bytes(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        if len(msgspec.json.encode(request.messages)) > 12_000:
            raise ModelError("overflow", "you are too verbose")
        return say("short enough")

    async def work(host: Host, asker: FakeAsker) -> None:
        files = [(f"{number}.txt", b"word " * 2_000) for number in range(6)]
        long = await host.submit("advisor", {"text": "go"}, files=files)
        assert await host.drive(long.run_id) == "succeeded", (await host.report(long.run_id)).error
        sizes = [len(msgspec.json.encode(request.messages)) for request in asker.requests]
        assert len(sizes) == 2
        assert sizes[0] > 12_000 > sizes[1] > 6_000, sizes
        assert (await host.replay(long.run_id)).code == "identical"
        asker.behaviour = lambda request: (_ for _ in ()).throw(ModelError("overflow", "always"))
        submitted = await host.submit("advisor", {"text": "go"}, session_id="ses_one")
        assert await host.drive(submitted.run_id) == "failed"
        assert len(asker.requests) == 2 + 3

    with_host(vault_dir, behaviour, work)


SCHEMA = "  output:\n    schema: {type: object, properties: {n: {type: integer}}, required: [n]}\n"


@pytest.mark.parametrize("broken", ["not json", "[" * 8_000, '{"n": ' + "[" * 900 + "]" * 900 + "}"])
def test_structured_output_is_repaired_twice_at_most(vault_dir: Path, broken: str) -> None:
    answers = [broken, '```json\n{"n": "x"}\n```', '{"n": 3}']

    async def work(host: Host, asker: FakeAsker) -> None:
        submitted = await host.submit("advisor", {"text": "go"})
        assert await host.drive(submitted.run_id) == "succeeded"
        assert bytes((await host.report(submitted.run_id)).output) == b'{"n": 3}'
        assert asker.requests[0].output_schema is not None
        assert "$.n" in last_text(asker.requests[2])
        for repair in asker.requests[1:]:  # a server may have kept the schema to itself
            assert bytes(asker.requests[0].output_schema).decode() in last_text(repair)
        assert (await host.replay(submitted.run_id)).identical

    with_host(vault_dir, lambda request: say(answers[request.step - 1]), work, SCHEMA)


def test_a_fork_of_a_later_turn_goes_on_in_its_session(vault_dir: Path) -> None:
    long = " ".join(f"fact{number}" for number in range(1_500))
    looks = call(("recall", {"handle": "t1.0", "start": long.index("fact700")}))
    does: list[tuple[tuple[Part, ...], StopReason]] = []

    async def work(host: Host, asker: FakeAsker) -> None:
        does[:] = [call(("note", {"kind": "mission", "key": "m", "text": "never forget the kettle"})), say("ok")]
        await ask(host, long)
        does[:] = [say("two")]
        await ask(host, "second")
        does[:] = [looks, say("three")]
        source, _ = await ask(host, "third")
        sent = asker.requests[-2:]
        does[:] = [say("four")]
        await ask(host, "fourth")
        received = [event.seq for event in await host.ledger.events(source) if event.kind == "effect.received"]
        for at, left in ((1, 2), (received[0], 1), (received[1], 1)):
            asker.requests.clear()
            does[:] = [looks, say("other")][-left:]
            forked = await host.fork(source, at)
            assert await host.drive(forked.run_id) == "succeeded"
            assert [request.messages for request in asker.requests] == [request.messages for request in sent[-left:]]
            assert "fact700 fact701" in last_text(asker.requests[-1])
            assert (await host.replay(forked.run_id)).identical
        branch = (await host.ledger.run(forked.run_id)).session_id
        does[:] = [call(("recall", {"handle": "t3"}), ("recall", {"handle": "turns"})), say("ok")]
        await ask(host, "and then?", branch)
        assert "never forget the kettle" in last_text(asker.requests[-2])
        assert "other" in last_text(asker.requests[-1])
        assert "fourth" not in last_text(asker.requests[-1])

    with_host(vault_dir, lambda request: does.pop(0), work)


def test_a_fork_tells_again_what_calls_came_to_whatever_their_tools_have_become(vault_dir: Path) -> None:
    does: list[tuple[tuple[Part, ...], StopReason]] = []
    source = (
        "from atlas import tool\n\n\n@tool(effect='read_only')\ndef look({name}: str) -> str:\n"
        '    """Looks."""\n    return \'{name}: \' + {name}\n'
    )
    tools = vault_dir / "agents" / "advisor" / "tools"
    tools.mkdir(parents=True)

    async def work(host: Host, asker: FakeAsker) -> None:
        (tools / "look.py").write_text(source.format(name="where"))
        does[:] = [call(("look", {"where": "attic"}), ("look", {"place": "cellar"})), say("one")]
        run_id, _ = await ask(host, "go")
        sent = asker.requests[-1]
        assert "where: attic" in last_text(sent)
        [*_, asked] = [event.seq for event in await host.ledger.events(run_id) if event.kind == "effect.intended"]
        (tools / "look.py").write_text(source.format(name="place"))
        does[:] = [say("other")]
        forked = await host.fork(run_id, asked - 1)
        assert await host.drive(forked.run_id) == "succeeded", (await host.report(forked.run_id)).error
        assert asker.requests[-1].messages == sent.messages
        assert asker.requests[-1].tools != sent.tools
        assert (await host.replay(forked.run_id)).identical
        shown = await host.request(forked.run_id, 2)
        assert shown.request.messages == sent.messages

    with_host(vault_dir, lambda request: does.pop(0), work)


def test_what_was_wrong_with_an_answer_comes_back_by_its_handle_and_is_found(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        match request.step:
            case 1:
                return say("not json at all")
            case 2:
                assert "Your answer does not fit: it is not JSON" in last_text(request)
                return call(("recall", {"handle": "t1.1.1"}))
            case 3:
                assert "t1.1.1 (observed), bytes" in last_text(request)
                assert "Your answer does not fit: it is not JSON" in last_text(request)
                return call(("recall", {"find": "answer does not fit"}))
        assert "recall(handle='t1.1.1') (observed) Your answer does not fit" in last_text(request)
        return say('{"n": 1}')

    async def work(host: Host, asker: FakeAsker) -> None:
        run_id, _ = await ask(host, "go")
        assert (await host.replay(run_id)).identical
        for step, request in enumerate(asker.requests, start=1):
            assert msgspec.json.encode((await host.request(run_id, step)).request) == msgspec.json.encode(request)
        kinds = [event.kind for event in await host.ledger.events(run_id)]
        assert kinds.count("turn.steered") == 1

    with_host(vault_dir, behaviour, work, SCHEMA)


def test_an_answer_that_never_fits_fails_the_run(vault_dir: Path) -> None:
    async def work(host: Host, asker: FakeAsker) -> None:
        submitted = await host.submit("advisor", {"text": "go"})
        assert await host.drive(submitted.run_id) == "failed"
        assert len(asker.requests) == 3

    with_host(vault_dir, lambda request: say("never json"), work, SCHEMA)


def test_turns_remember_each_other_and_notes_are_carried(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        if last_text(request).endswith("remember the tea"):
            return call(("note", {"kind": "requirement", "key": "tea", "text": "serve green tea"}))
        return say("as you wish")

    async def work(host: Host, asker: FakeAsker) -> None:
        await ask(host, "remember the tea")
        await ask(host, "what now?")
        shown = last_text(asker.requests[-1])
        assert "remember the tea" in shown
        assert "[ ] requirement tea: serve green tea" in shown
        await ask(host, "and in another session?", session="ses_two")
        assert "green tea" not in last_text(asker.requests[-1])

    with_host(vault_dir, behaviour, work)


def test_notes_whose_long_names_begin_alike_do_not_replace_each_other(vault_dir: Path) -> None:
    long = "tests/integration/test_prompt.py::test_notes_whose_long_names_begin_alike"

    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        notes = [{"kind": "plan", "key": f"{long}_{n}", "text": f"look at {n}"} for n in ("one", "two")]
        return call(*(("note", note) for note in notes)) if request.step == 1 else say("done")

    async def work(host: Host, asker: FakeAsker) -> None:
        await ask(host, "go")
        shown = last_text(asker.requests[-1])
        assert ("look at one" in shown) == ("look at two" in shown)
        assert "key" in shown
        assert "60" in shown

    with_host(vault_dir, behaviour, work)


NOTE = ("note", {"kind": "fact", "key": "kettle", "text": "it is in the attic"})


@pytest.mark.parametrize(
    "note, stop, extra",
    [
        (("note", {**NOTE[1], "importance": "high"}), "tool_call", ""),
        (NOTE, "tool_call", "  tools: {deny: [note]}\n"),
        (NOTE, "refusal", ""),
        (NOTE, "tool_call", "  hooks: [{token_ceiling: {limit: 100}}]\n"),
    ],
    ids=["arguments that do not fit", "a tool that is denied", "a reply that declines", "a turn that ended before it"],
)
def test_a_note_that_was_not_taken_is_not_carried(
    vault_dir: Path, note: tuple[str, Any], stop: StopReason, extra: str
) -> None:
    open_notes: list[str] = []

    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        if "later" in last_text(request) or open_notes:
            open_notes.append(last_text(request))
            return say("done")
        if request.step == 1:
            return call(note)[0], stop
        return call(("recall", {"handle": "notes"})) if request.step == 2 else say("done")

    async def work(host: Host, asker: FakeAsker) -> None:
        first = await host.submit("advisor", {"text": "go"}, session_id="ses_one")
        await host.drive(first.run_id)
        if len(asker.requests) > 1:
            assert "There are none." in last_text(asker.requests[-1])
        await host.drive((await host.submit("advisor", {"text": "later"}, session_id="ses_one")).run_id)
        assert open_notes
        assert "it is in the attic" not in open_notes[0]

    with_host(vault_dir, behaviour, work, extra)


def test_a_turn_that_is_cut_short_carries_no_note_that_was_refused(vault_dir: Path) -> None:
    refused = ("note", {**NOTE[1], "importance": "high"})

    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        taken = ("note", {"kind": "plan", "key": "tea", "text": "boil water"})
        return say("done") if "later" in last_text(request) else call(refused, taken, ("wait", {"seconds": 50}))

    async def work(host: Host, asker: FakeAsker) -> None:
        submitted = await host.submit("advisor", {"text": "go"}, session_id="ses_one")
        host.start_driving()
        while "model:1" not in (await load(host.ledger, submitted.run_id)).answers:
            await asyncio.sleep(0.02)
        assert await host.cancel(submitted.run_id, "enough") == "cancelled"
        await ask(host, "later")
        assert "boil water" in last_text(asker.requests[1])
        assert "it is in the attic" not in last_text(asker.requests[1])

    with_host(vault_dir, behaviour, work)


def test_all_that_a_failed_call_said_can_be_recalled(vault_dir: Path) -> None:
    tools = vault_dir / "agents" / "advisor" / "tools"

    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        if request.step == 1:
            return call(("build", {}))
        looks = re.search(r"recall\(handle='(t1.1.1)', start=", last_text(request))
        assert request.step == 3 or looks is not None
        return say("done") if request.step == 3 else call(("recall", {"find": "flux capacitor"}))

    async def work(host: Host, asker: FakeAsker) -> None:
        tools.mkdir()
        (tools / "build.py").write_text(
            "from atlas import tool\n\n\n"
            '@tool(effect="read_only")\ndef build() -> str:\n    """Builds."""\n'
            '    raise RuntimeError("a line. " * 900 + "The flux capacitor is missing. " + "a line. " * 900)\n'
        )
        await ask(host, "go")
        assert "The flux capacitor is missing." in last_text(asker.requests[-1])

    with_host(vault_dir, behaviour, work)


def test_recall_finds_and_returns_the_exact_words(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        text = last_text(request)
        if "where" in text and request.step == 1:
            return call(("recall", {"find": "kettle"}))
        if request.step == 2:
            return call(("recall", {"handle": "t1.0"}))
        return say("noted")

    async def work(host: Host, asker: FakeAsker) -> None:
        await ask(host, "the kettle is under the stair, third step")
        for number in range(5):
            await ask(host, f"filler {number}")
        await ask(host, "where did I put it?")
        assert "t1.0" in last_text(asker.requests[-2])
        assert "the kettle is under the stair, third step" in last_text(asker.requests[-1])

    with_host(vault_dir, behaviour, work)


def test_recall_reads_what_stands_before_it_in_its_own_step(vault_dir: Path) -> None:
    looks = [("recall", {"find": "brass kettle"}), ("recall", {"handle": "t1.1.1"}), ("recall", {"handle": "t1.1"})]

    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        if request.step == 2:
            return say("done")
        parts, stop = call(("read_file", {"path": "persona/kettle.md"}), *looks)
        return (Text("I look for the zinc gate."), *parts), stop

    async def work(host: Host, asker: FakeAsker) -> None:
        (vault_dir / "agents" / "advisor" / "persona" / "kettle.md").write_text("The brass kettle is in the attic.\n")
        await ask(host, "go")
        results = [part.text for part in asker.requests[1].messages[-1].parts if isinstance(part, ToolResult)]
        _, found, result, step = results
        assert "recall(handle='t1.1.1') (observed) The brass kettle is in the attic." in found
        assert "The brass kettle is in the attic." in result
        assert "I look for the zinc gate." in step

    with_host(vault_dir, behaviour, work)


def test_what_the_model_saw_can_be_shown_for_any_past_step(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        return say("done") if request.step == 4 else call(("recall", {"find": f"word{request.step}"}))

    async def work(host: Host, asker: FakeAsker) -> None:
        run_id, _ = await ask(host, "look around")
        (vault_dir / "agents" / "advisor" / "persona" / "IDENTITY.md").write_text("Somebody else now.\n")
        for step in range(1, 5):
            built = await host.request(run_id, step)
            assert msgspec.json.encode(built.request) == msgspec.json.encode(asker.requests[step - 1])
        with pytest.raises(NotFound) as caught:
            await host.request(run_id, 5)
        assert caught.value.hint == "Its requests are 1 to 4."
        replayed = await host.replay(run_id)
        assert (replayed.identical, replayed.code) == (True, "identical")
        assert len(asker.requests) == 4

    with_host(vault_dir, behaviour, work)


def test_a_lost_model_call_is_asked_again_with_the_recorded_request(vault_dir: Path) -> None:
    async def main() -> None:
        first = FakeAsker(lambda request: say("never recorded"))
        async with host_with(vault_dir, first) as host:
            submitted = await host.submit("advisor", {"text": "hello"})
            assert await host.drive(submitted.run_id) == "succeeded"
            events = await host.ledger.events(submitted.run_id)
            intent = next(event for event in events if event.kind == "effect.intended")
            recorded = decode_body(intent.kind, intent.version, intent.body)
            assert isinstance(recorded, EffectIntended)
        async with host_with(vault_dir, first) as host:
            # The same run again, as a process leaves it that dies after the intent of its model call.
            again = await host.submit("advisor", {"text": "hello"})
            (claimed,) = await host.ledger.claim("dead", limit=1, lease_s=60, max_running=9, run_id=again.run_id)
            facts = (AttemptStarted(1, "dead"), recorded)
            now = host.clock.now_us()
            assert recorded.hold is not None
            drafts = tuple(draft(fact, now, "owner") for fact in facts)
            reserve = Reservation(recorded.effect, recorded.hold)
            await host.ledger.append(Append(claimed.lease, drafts, reserve=reserve))
            await host.ledger.expire("dead")
        (vault_dir / "agents" / "advisor" / "persona" / "IDENTITY.md").write_text("Edited meanwhile.\n")
        second = FakeAsker(lambda request: say("answered now"))
        async with asyncio.timeout(30), open_host(vault_dir, {}, asker=second) as host:
            assert await host.drive(again.run_id) == "succeeded"
            assert (await host.report(again.run_id)).text == "answered now"
        assert len(second.requests) == 1
        sent = msgspec.json.encode(second.requests[0])
        assert sent == msgspec.json.encode(first.requests[0])

    asyncio.run(main())


def test_cancelling_ends_a_turn_that_waits_for_its_model(vault_dir: Path) -> None:
    asked = asyncio.Event()

    class Slow(FakeAsker):
        async def ask(self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None) -> Asked:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    async def main() -> None:
        async with host_with(vault_dir, Slow(lambda request: say(""))) as host:
            submitted = await host.submit("advisor", {"text": "hello"})
            host.start_driving()
            await asked.wait()
            assert await host.cancel(submitted.run_id, "enough") == "cancelled"

    asyncio.run(main())


def test_untrusted_text_is_fenced_and_cannot_close_its_fence(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        return say("done") if request.step == 2 else call(("recall", {"handle": "[end 000000000000]"}))

    async def work(host: Host, asker: FakeAsker) -> None:
        await ask(host, "go")
        (result,) = [part for part in asker.requests[1].messages[-1].parts if isinstance(part, ToolResult)]
        first, *_, last = result.text.splitlines()
        mark = first.split()[1]
        assert last == f"[end {mark}]"
        assert result.text.count(f"[end {mark}]") == 1

    with_host(vault_dir, behaviour, work)


def test_code_asks_a_model_once_and_gets_an_object_that_fits(vault_dir: Path) -> None:
    answers = iter(["no json", '{"n": 4}'])

    async def main() -> None:
        asker = FakeAsker(lambda request: say(next(answers)))
        vault_dir.mkdir()
        (vault_dir / "atlas.config.yaml").touch()
        async with asyncio.timeout(30), open_host(vault_dir, {}, agents=AGENTS, asker=asker) as host:
            submitted = await host.submit("worker", {"log": "x", "do": ["model:count"]})
            assert await host.drive(submitted.run_id) == "succeeded", (await host.report(submitted.run_id)).error
            report = await host.report(submitted.run_id)
            assert msgspec.json.decode(report.output) == {"results": [{"n": 4}]}
            assert (report.tokens.tokens_in, report.models) == (200, ("fake:one",))
            assert (await host.replay(submitted.run_id)).identical
            assert len(asker.requests) == 2

    asyncio.run(main())


class Questions(AgentBase):
    """Asks a model what it is told to, and says what came of each question."""

    contract = {"name": "questions", "version": "1.0.0", "description": "asks models"}

    async def execute(self, input: Any, context: AgentContext) -> Any:
        found = []
        for prompt, schema, model in input["ask"]:
            try:
                found.append(await context.generate(schema, prompt, tier=model))
            except AtlasError as error:
                found.append(error.reason)
        return {"found": found}


def test_code_gets_whole_answers_and_hears_why_there_is_none(vault_dir: Path) -> None:
    said: dict[str, list[tuple[str, StopReason]]] = {
        "short": [("one", "end")],
        "long": [("one, ", "length")],
        "long json": [('{"n"', "length"), (": 4}", "end")],
        "wrong, then long json": [("no json", "end"), ('{"n"', "length"), (": 4}", "end")],
        "json cut at its end": [('{"n": 4}', "length"), ("", "end")],
        "json cut and left": [('{"n"', "length"), ("", "end")],
        "endless json": [("[", "length")] * 3,
        "declined": [("I will not", "refusal")],
        "filtered": [("", "filter")],
    }
    schema = {"type": "object", "required": ["n"]}
    questions = [[prompt, schema if "json" in prompt else None, "fake"] for prompt in said]

    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        first = request.messages[0].parts[0]
        assert isinstance(first, Text)
        text, stop = said[first.text].pop(0)
        if not text and stop == "end":
            raise ModelError("empty", "nothing was said")
        return ((Text(text),) if text else (), stop)

    async def main() -> None:
        vault_dir.mkdir()
        (vault_dir / "atlas.config.yaml").touch()
        asker = FakeAsker(behaviour)
        async with asyncio.timeout(30), open_host(vault_dir, {}, agents=[Questions], asker=asker) as host:
            submitted = await host.submit("questions", {"ask": questions})
            assert await host.drive(submitted.run_id) == "succeeded", (await host.report(submitted.run_id)).error
            output = msgspec.json.decode((await host.report(submitted.run_id)).output)
            declined = ["model_refusal", "model_filter"]
            whole, empty, endless = {"n": 4}, "model_empty", "answer_endless"
            assert output["found"] == ["one", endless, whole, whole, whole, empty, endless, *declined]
            assert not any(said.values())

    asyncio.run(main())


def test_a_question_to_a_model_that_is_not_there_replays_as_it_was(vault_dir: Path) -> None:
    async def main() -> None:
        vault_dir.mkdir()
        (vault_dir / "atlas.config.yaml").touch()
        async with asyncio.timeout(30), open_host(vault_dir, {}, agents=[Questions]) as host:
            submitted = await host.submit("questions", {"ask": [["hi", None, "nowhere:m"], ["hi", None, "fast"]]})
            assert await host.drive(submitted.run_id) == "succeeded"
            output = msgspec.json.decode((await host.report(submitted.run_id)).output)
            assert output["found"] == ["model_unknown", "tier_empty"]
            assert (await host.replay(submitted.run_id)).identical

    asyncio.run(main())


def test_code_fans_out_over_models_and_prompts(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        if request.model == "fake:two":
            raise ModelError("server", "it is down")
        return say(f"{last_text(request)}!")

    async def main() -> None:
        vault_dir.mkdir()
        (vault_dir / "atlas.config.yaml").touch()
        asker = FakeAsker(behaviour)
        async with asyncio.timeout(30), open_host(vault_dir, {}, agents=AGENTS, asker=asker) as host:
            submitted = await host.submit("worker", {"log": "x", "do": ["models:hello"]})
            assert await host.drive(submitted.run_id) == "succeeded"
            output = msgspec.json.decode((await host.report(submitted.run_id)).output)
            assert output["results"][0] == [
                ["fake:one", "hello!", None],
                ["fake:one", "other!", None],
                ["fake:two", None, "model_server"],
                ["fake:two", None, "model_server"],
            ]

    asyncio.run(main())


LIVE_FILES = "  context: {files: [wiki/plan.md]}\n  tools: {allow: []}\n"


def test_files_of_the_contract_are_shown_as_they_are_at_each_step(vault_dir: Path) -> None:
    """Also what a person writes in the middle of a turn; the request of an earlier step stays what it was."""
    plan = vault_dir / "agents" / "advisor" / "wiki" / "plan.md"
    plan.parent.mkdir(parents=True)
    plan.write_text("Buy a kettle.\n")

    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        if len(request.messages) == 1:
            plan.write_text("Buy a teapot.\n")
            return call(("recall", {"find": "kettle"}))
        return say("done")

    async def work(host: Host, asker: FakeAsker) -> None:
        run_id, _ = await ask(host, "go")
        first, second = asker.requests
        assert "wiki/plan.md as it is now:" in last_text(first)
        assert "Buy a kettle." in last_text(first)
        assert "Buy a teapot." in last_text(second)
        assert "kettle" not in last_text(second).partition("as it is now")[2]
        # The rest of a long one is read with it, whatever else the agent may use.
        assert {tool.name for tool in first.tools} == {"note", "recall", "wait", "read_file"}
        built = await host.request(run_id, 1)
        assert built.request.messages == first.messages
        assert [choice.block for choice in built.choices if choice.block.startswith("file ")] == ["file wiki/plan.md"]

    with_host(vault_dir, behaviour, work, LIVE_FILES)


def test_the_rest_of_a_long_file_can_be_read_whatever_else_the_agent_may_use(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        return (
            call(("read_file", {"path": "wiki/plan.md", "start": 900})) if len(request.messages) == 1 else say("done")
        )

    async def work(host: Host, asker: FakeAsker) -> None:
        plan = vault_dir / "agents" / "advisor" / "wiki" / "plan.md"
        plan.parent.mkdir(parents=True)
        plan.write_text("".join(f"Buy kettle {n}.\n" for n in range(1_000)))
        await ask(host, "go")
        assert "Buy kettle 950." in last_text(asker.requests[1])

    with_host(vault_dir, behaviour, work, LIVE_FILES)


def test_a_file_that_is_gone_is_said_to_be_gone_and_the_turn_goes_on(vault_dir: Path) -> None:
    async def work(host: Host, asker: FakeAsker) -> None:
        await ask(host, "go")
        assert "wiki/plan.md as it is now: there is no wiki/plan.md" in last_text(asker.requests[0])

    with_host(vault_dir, lambda request: say("fine"), work, LIVE_FILES)


@pytest.mark.parametrize(
    "written, kept", [("", 2), *((f"  context: {{verbatim_exchanges: {kept}}}\n", kept) for kept in (0, 1, 4))]
)
def test_as_many_exchanges_as_the_contract_says_are_kept_word_for_word(
    vault_dir: Path, written: str, kept: int
) -> None:
    async def work(host: Host, asker: FakeAsker) -> None:
        for number in range(1, 7):
            await ask(host, f"question number {number}")
        shown = [number for number in range(1, 6) if f"t{number} user: question" in last_text(asker.requests[-1])]
        assert shown == list(range(6 - kept, 6))

    with_host(vault_dir, lambda request: say("an answer"), work, written)


def test_a_model_that_is_chosen_for_a_run_is_asked_and_recorded_and_the_next_turn_asks_the_usual_one(
    vault_dir: Path,
) -> None:
    async def work(host: Host, asker: FakeAsker) -> None:
        submitted = await host.submit("advisor", {"text": "go"}, session_id="ses_one", key="k", model="powerful")
        await host.drive(submitted.run_id)
        await ask(host, "again")
        assert [request.model for request in asker.requests] == ["powerful", "balanced"]
        with pytest.raises(Conflict):
            await host.submit("advisor", {"text": "go"}, session_id="ses_one", key="k", model="fast")
        assert (await host.replay(submitted.run_id)).identical

    with_host(vault_dir, lambda request: say("fine"), work)


def test_a_contract_may_say_that_no_other_model_is_asked(vault_dir: Path) -> None:
    async def work(host: Host, asker: FakeAsker) -> None:
        with pytest.raises(Invalid, match="asks no other model") as refused:
            await host.submit("advisor", {"text": "go"}, model="powerful")
        assert refused.value.reason == "model_fixed"
        assert (await host.submit("advisor", {"text": "go"}, model="fast")).is_new

    with_host(vault_dir, lambda request: say("fine"), work, "  model: {preference: fast, override_allowed: false}\n")


FALLBACK = "  model: {preference: balanced, fallback: fast}\n"


@pytest.mark.parametrize("kind", ["rate_limit", "connection", "auth"])
def test_what_no_model_of_the_tier_answers_is_asked_of_the_fallback_for_the_rest_of_the_turn(
    vault_dir: Path, kind: ModelErrorKind
) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        if request.model == "balanced":
            raise ModelError(kind, "nobody is there")
        return call(("recall", {"find": "x"})) if len(request.messages) == 1 else say("from the fallback")

    async def work(host: Host, asker: FakeAsker) -> None:
        run_id, text = await ask(host, "go")
        assert text == "from the fallback"
        assert [request.model for request in asker.requests] == ["balanced", "fast", "fast"]
        assert (await host.request(run_id, 1)).request.model == "fast"
        assert (await host.replay(run_id)).identical
        assert (await host.verify(run_id)).ok

    with_host(vault_dir, behaviour, work, FALLBACK)


@pytest.mark.parametrize("kind", ["refused", "invalid"])
def test_what_another_model_would_be_asked_the_same_is_not_asked_of_the_fallback(
    vault_dir: Path, kind: ModelErrorKind
) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        raise ModelError(kind, "no")

    async def work(host: Host, asker: FakeAsker) -> None:
        submitted = await host.submit("advisor", {"text": "go"})
        assert await host.drive(submitted.run_id) == "failed"
        assert [request.model for request in asker.requests] == ["balanced"]

    with_host(vault_dir, behaviour, work, FALLBACK)


def test_when_the_fallback_does_not_answer_either_the_run_ends_with_its_reason(vault_dir: Path) -> None:
    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        raise ModelError("server", f"{request.model} is down")

    async def work(host: Host, asker: FakeAsker) -> None:
        submitted = await host.submit("advisor", {"text": "go"})
        assert await host.drive(submitted.run_id) == "failed"
        error = (await host.report(submitted.run_id)).error
        assert error is not None
        assert (error.code, error.message) == ("model_server", "fast is down")
        assert [request.model for request in asker.requests] == ["balanced", "fast"]

    with_host(vault_dir, behaviour, work, FALLBACK)


def test_a_tier_that_names_nobody_is_passed_over_for_the_fallback(vault_dir: Path) -> None:
    models = "models: {providers: {demo: {kind: scripted, script: demo.yaml}}, tiers: {fast: ['demo:one']}}\n"

    async def main() -> None:
        async with host_with(vault_dir, FakeAsker(lambda request: say("")), FALLBACK):
            pass  # writes the agent
        (vault_dir / "demo.yaml").write_text("replies: [{text: from the script}]\n")
        (vault_dir / "atlas.config.yaml").write_text(models)
        async with asyncio.timeout(60), open_host(vault_dir, {}) as host:
            run_id, text = await ask(host, "go")
            assert text == "from the script"
            assert (await host.request(run_id, 1)).request.model == "fast"
            assert (await host.replay(run_id)).identical

    asyncio.run(main())


def test_a_contract_says_how_long_a_reply_may_be(vault_dir: Path) -> None:
    async def work(host: Host, asker: FakeAsker) -> None:
        await ask(host, "go")
        assert asker.requests[0].max_output_tokens == 9_000

    with_host(vault_dir, lambda request: say("long"), work, "  model: {max_output_tokens: 9000}\n")


def test_a_turn_whose_first_model_was_refused_goes_on_with_what_its_first_request_was_built_from(
    vault_dir: Path,
) -> None:
    models = "models: {providers: {demo: {kind: scripted, script: demo.yaml}}, tiers: {fast: ['demo:one']}}\n"
    script = "replies: [{tool_calls: [{name: recall, args: {find: x}}]}, {text: done, delay_ms: %d}]\n"

    async def main() -> None:
        async with host_with(vault_dir, FakeAsker(lambda request: say("")), FALLBACK):
            pass  # writes the agent
        (vault_dir / "demo.yaml").write_text(script % 60_000)
        (vault_dir / "atlas.config.yaml").write_text(models)
        async with asyncio.timeout(60), open_host(vault_dir, {}) as host:
            run_id = (await host.submit("advisor", {"text": "go"})).run_id
            host.start_driving()
            while "model:2" not in (await load(host.ledger, run_id)).state.open:
                await asyncio.sleep(0.02)
            await host.abort()
        (vault_dir / "agents" / "advisor" / "persona" / "IDENTITY.md").write_text("Edited meanwhile.\n")
        (vault_dir / "demo.yaml").write_text(
            (script % 0).replace("}}]}, {", "}}]}, {tool_calls: [{name: recall, args: {find: y}}]}, {")
        )
        async with asyncio.timeout(60), open_host(vault_dir, {}) as host:
            assert await host.drive(run_id) == "succeeded"
            first, *others = [(await host.request(run_id, step)).request.system for step in (1, 2, 3)]
            assert others == [first, first]
            with pytest.raises(NotFound) as caught:
                await host.request(run_id, 4)
            assert caught.value.hint == "Its requests are 1 to 3."
            assert (await host.replay(run_id)).identical

    asyncio.run(main())


@pytest.mark.parametrize("value", [None, {}, "", {"text": ""}, {"text": " \n"}])
def test_a_prompt_agent_to_whom_nothing_is_said_is_not_run(vault_dir: Path, value: object) -> None:
    async def work(host: Host, asker: FakeAsker) -> None:
        with pytest.raises(Invalid, match="nothing was said to advisor"):
            await host.submit("advisor", value)
        assert (await host.submit("advisor", {"text": "", "topic": "kettles"})).is_new

    with_host(vault_dir, lambda request: say("fine"), work)


def test_what_was_said_to_a_call_that_was_not_performed_comes_back_by_its_handle(vault_dir: Path) -> None:
    said: dict[str, str] = {}

    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        results = [part.text for part in request.messages[-1].parts if isinstance(part, ToolResult)]
        match request.step:
            case 1:
                return call(("read_file", {"start": 0}), ("no_such_tool", {}), ("note", {"kind": "fact"}))
            case 2:
                for number, text in enumerate(results, start=1):
                    said[f"t1.1.{number}"] = text.partition("\n")[2].rpartition("\n")[0]
                return call(*(("recall", {"handle": handle}) for handle in said))
        for text, wanted in zip(results, said.values(), strict=True):
            assert wanted in text
        return say("done")

    async def work(host: Host, asker: FakeAsker) -> None:
        run_id, _ = await ask(host, "go")
        assert all(said.values())
        assert len(set(said.values())) == 3
        kinds = [event.kind for event in await host.ledger.events(run_id)]
        assert kinds.count("call.answered") == 3
        assert (await host.replay(run_id)).identical

    with_host(vault_dir, behaviour, work)


def test_a_turn_that_goes_on_does_not_record_again_what_it_said_to_calls(vault_dir: Path) -> None:
    models = "models: {providers: {demo: {kind: scripted, script: demo.yaml}}, tiers: {balanced: ['demo:one']}}\n"
    script = "replies: [{tool_calls: [{name: no_such_tool, args: {}}]}, {text: done, delay_ms: %d}]\n"

    async def main() -> None:
        async with host_with(vault_dir, FakeAsker(lambda request: say(""))):
            pass  # writes the agent
        (vault_dir / "demo.yaml").write_text(script % 60_000)
        (vault_dir / "atlas.config.yaml").write_text(models)
        async with asyncio.timeout(60), open_host(vault_dir, {}) as host:
            run_id = (await host.submit("advisor", {"text": "go"})).run_id
            host.start_driving()
            while "model:2" not in (await load(host.ledger, run_id)).state.open:
                await asyncio.sleep(0.02)
            await host.abort()
        (vault_dir / "demo.yaml").write_text(script % 0)
        async with asyncio.timeout(60), open_host(vault_dir, {}) as host:
            assert await host.drive(run_id) == "succeeded"
            kinds = [event.kind for event in await host.ledger.events(run_id)]
            assert (kinds.count("attempt.started"), kinds.count("call.answered")) == (2, 1)
            assert (await host.replay(run_id)).identical

    asyncio.run(main())


def test_a_try_that_was_lost_is_made_again_as_it_was_whatever_was_edited_meanwhile(vault_dir: Path) -> None:
    plan = vault_dir / "agents" / "advisor" / "wiki" / "plan.md"
    plan.parent.mkdir(parents=True)
    plan.write_text("Buy a kettle.\n")

    def behaviour(request: Request) -> tuple[tuple[Part, ...], StopReason]:
        if plan.read_text() == "Buy a kettle.\n":
            plan.write_text("Buy a teapot.\n")
            raise ModelError("budget", "what was reserved does not cover another try")
        return call(("recall", {"find": "x"})) if request.step == 1 else say("done")

    async def work(host: Host, asker: FakeAsker) -> None:
        run_id, _ = await ask(host, "go")
        first, again, second = asker.requests
        assert first == again
        assert "Buy a teapot." in last_text(second)
        assert (await host.replay(run_id)).identical

    with_host(vault_dir, behaviour, work, LIVE_FILES)
