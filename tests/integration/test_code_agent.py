"""Agents defined in code, against a real provider: tools of this process, shapes, approvals, threads, pins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from atlas import Agent, AgentBase, Atlas, tool
from atlas.app import open_host
from atlas.control.report import result_of
from atlas.kernel.errors import Conflict, Invalid, NotFound
from atlas.kernel.event import RunCreated
from atlas.testing.provider import ProviderProcess
from atlas.testing.provider_wire import Act, ActCall


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderProcess]:
    with ProviderProcess() as process:
        yield process


@pytest.fixture
def environ(provider: ProviderProcess) -> dict[str, str]:
    return {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": f"{provider.url}/v1"}


@pytest.fixture
def root(vault_dir: Path) -> Path:
    vault_dir.mkdir()
    (vault_dir / "atlas.config.yaml").touch()
    return vault_dir


def add(left: int, right: int) -> int:
    """Adds two numbers."""
    return left + right


class Post:
    """Sends things, and remembers what it sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    @property
    def tools(self) -> list[Any]:
        sent = self.sent

        @tool(effect="external_side_effect")
        async def send(to: str) -> str:
            """Sends a letter."""
            sent.append(to)
            return f"sent to {to}"

        return [send]


def helper(**changes: Any) -> Agent:
    said: dict[str, Any] = {"name": "helper", "instructions": "You add.", "tools": [add], "model": "openai:m1"}
    return Agent(**said | changes)


ADDING = (Act(tool_calls=(ActCall("add", '{"left": 2, "right": 3}'),)), Act(text="It is 5."))
SENDING = (Act(tool_calls=(ActCall("send", '{"to": "ann"}'),)), Act(text="Done."))


def test_a_function_of_this_process_is_called_and_its_answer_reaches_the_model(
    provider: ProviderProcess, environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    provider.plan(*ADDING, by="turn")
    pieces: list[tuple[str, int | None]] = []
    with Atlas.ephemeral(environ=environ) as atlas:
        result = atlas.run(
            helper(), "What is 2 + 3?", on_text=lambda text: pieces.append((text, threading.get_ident()))
        )
        kinds = [event.kind for event, _ in atlas.stream(helper(), "What is 2 + 3?")]
    assert (result.state, result.text, result.steps, result.models) == ("succeeded", "It is 5.", 3, ("openai:m1",))
    assert "".join(text for text, _ in pieces) == "It is 5."
    assert {thread for _, thread in pieces} == {threading.get_ident()}
    assert (kinds[0], kinds[-1]) == ("run.created", "run.ended")
    first, second, *_ = provider.bodies()
    assert first["messages"][0]["content"].startswith("You add.")
    assert first["messages"][1] == {"role": "user", "content": "What is 2 + 3?"}
    assert [one["function"]["name"] for one in first["tools"]] == ["add", "note", "recall", "wait"]
    assert "\n5\n" in second["messages"][-1]["content"]
    assert list(tmp_path.iterdir()) == []


def test_what_the_guard_advises_can_be_done(provider: ProviderProcess, environ: Mapping[str, str]) -> None:
    @tool(effect="read_only")
    def status() -> str:
        """How far the job is."""
        return "running"

    ask = Act(tool_calls=(ActCall("status", "{}"),))
    provider.plan(ask, ask, ask, Act(tool_calls=(ActCall("wait", '{"seconds": 0}'),)), Act(text="It runs."), by="turn")
    with Atlas.ephemeral(environ=environ) as atlas:
        assert atlas.run(helper(tools=[status]), "Is it done?").text == "It runs."
    answered, waited = (body["messages"][-1]["content"] for body in provider.bodies()[3:])
    assert "call wait first" in answered
    assert "waited 0 s" in waited


def test_tiers_can_be_named_for_a_light_host(provider: ProviderProcess, environ: Mapping[str, str]) -> None:
    provider.plan(Act(text="hello"))
    with Atlas.ephemeral(environ=environ, models={"tiers": {"fast": ["openai:small"]}}) as atlas:
        assert atlas.run(helper(model="fast"), "hi").text == "hello"
    assert provider.bodies()[0]["model"] == "small"
    with pytest.raises(Invalid, match="tierz"):
        Atlas.ephemeral(environ=environ, models={"tierz": {}}).run(helper(), "hi")


def test_an_answer_with_a_shape_comes_back_decoded(provider: ProviderProcess, environ: Mapping[str, str]) -> None:
    provider.plan(Act(text='{"n": "five"}'), Act(text='{"n": 5}'))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with Atlas.ephemeral(environ=environ) as atlas:
        assert atlas.run(helper(output_schema=schema), "What is 2 + 3?").unwrap() == {"n": 5}
    assert provider.bodies()[0]["tools"][-1]["function"]["parameters"] == schema


@pytest.mark.parametrize("approved", [True, False])
def test_a_run_that_waits_for_a_person_says_so_and_goes_on_when_answered(
    provider: ProviderProcess, environ: Mapping[str, str], approved: bool
) -> None:
    post = Post()
    provider.plan(*SENDING, by="turn")
    with Atlas.ephemeral(environ=environ) as atlas:
        result = atlas.run(helper(tools=post.tools), "Write to Ann.")
        assert (result.state, result.ok, post.sent) == ("waiting", False, [])
        [asked] = atlas.inbox()
        assert (asked.run_id, asked.name, asked.args) == (result.run_id, "send", {"to": "ann"})
        answer = atlas.approve if approved else atlas.deny
        ended = answer(result.run_id, reason="because I say so")
        assert (ended.run_id, ended.state, ended.text) == (result.run_id, "succeeded", "Done.")
        assert atlas.inbox() == []
        with pytest.raises(NotFound, match="waits for an approval"):
            answer(result.run_id)
        assert atlas.result(result.run_id).text == "Done."
    assert post.sent == (["ann"] if approved else [])
    told = provider.bodies()[-1]["messages"][-1]["content"]
    assert ("sent to ann" in told) == approved
    assert ("because I say so" in told) == (not approved)


def test_two_questions_of_one_run_have_to_be_named(provider: ProviderProcess, environ: Mapping[str, str]) -> None:
    post = Post()
    calls = (ActCall("send", '{"to": "ann"}'), ActCall("send", '{"to": "bob"}'))
    provider.plan(Act(tool_calls=calls), Act(text="Done."), by="turn")

    async def main(atlas: Atlas) -> None:
        result = await atlas.run_async(helper(tools=post.tools), "Write to both.")
        while result.state == "waiting":
            waiting = await atlas.inbox_async()
            if len(waiting) > 1:
                with pytest.raises(Conflict, match="several"):
                    await atlas.approve_async(result.run_id)
            result = await atlas.approve_async(result.run_id, waiting[0].effect)
        assert result.text == "Done."

    with Atlas.ephemeral(environ=environ) as atlas:
        asyncio.run(main(atlas))
    assert sorted(post.sent) == ["ann", "bob"]


def test_tasks_and_threads_share_one_agent(provider: ProviderProcess, environ: Mapping[str, str]) -> None:
    provider.plan(*ADDING, by="turn")
    agent = helper()
    texts: list[str] = []

    async def main(atlas: Atlas) -> None:
        heard: list[str] = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(atlas.run_async(agent, "2 + 3?", on_text=heard.append)) for _ in range(4)]
        texts.extend(task.result().text for task in tasks)
        assert sorted("".join(heard)) == sorted("It is 5." * 4)

    with Atlas.ephemeral(environ=environ) as atlas:
        threads = [threading.Thread(target=lambda: texts.append(atlas.run(agent, "2 + 3?").text)) for _ in range(4)]
        for thread in threads:
            thread.start()
        asyncio.run(main(atlas))
        for thread in threads:
            thread.join()
    assert texts == ["It is 5."] * 8


def test_a_tool_that_raises_tells_the_model_and_one_that_is_late_is_in_doubt(
    provider: ProviderProcess, environ: Mapping[str, str]
) -> None:
    def broken(x: int) -> str:
        raise ValueError(f"no {x} today")

    @tool(timeout_s=0.05)
    async def slow() -> str:
        await asyncio.sleep(60)
        return "never"

    provider.plan(Act(tool_calls=(ActCall("broken", '{"x": 7}'),)), Act(text="Sorry."), by="turn")
    with Atlas.ephemeral(environ=environ) as atlas:
        assert atlas.run(helper(name="one", tools=[broken]), "go").text == "Sorry."
        assert "no 7 today" in provider.bodies()[-1]["messages"][-1]["content"]
        provider.plan(Act(tool_calls=(ActCall("slow"),)), Act(text="Fine."), by="turn")
        doubtful = atlas.run(helper(name="two", tools=[slow]), "go")
        assert doubtful.state == "in_doubt"
        [item] = atlas.inbox()
        assert atlas.resolve(item.run_id, item.effect, "done").state == "succeeded"


@pytest.mark.parametrize(
    "result, shown",
    [
        ("it was done after all", "it was done after all"),
        ({"message_id": "a1"}, '{"message_id":"a1"}'),
        (["a", 1], '["a",1]'),
        (None, "(done, no result)"),
    ],
)
def test_what_a_person_says_that_a_call_came_to_reaches_the_model(
    provider: ProviderProcess, environ: Mapping[str, str], result: Any, shown: str
) -> None:
    @tool(timeout_s=0.05)
    async def slow() -> str:
        await asyncio.sleep(60)
        return "never"

    provider.plan(Act(tool_calls=(ActCall("slow"),)), Act(text="Fine."), by="turn")
    with Atlas.ephemeral(environ=environ) as atlas:
        doubtful = atlas.run(helper(tools=[slow]), "go")
        assert doubtful.state == "in_doubt"
        [item] = atlas.inbox()
        settled = atlas.resolve(item.run_id, item.effect, "done", result=result)
        assert (settled.state, settled.text) == ("succeeded", "Fine.")
    assert f"\n{shown}\n" in provider.bodies()[-1]["messages"][-1]["content"]


def test_code_on_the_loop_of_an_atlas_that_would_wait_for_itself_is_told_so(
    provider: ProviderProcess, environ: Mapping[str, str]
) -> None:
    with Atlas.ephemeral(environ=environ) as atlas:

        async def blocking() -> str:
            return atlas.run(helper(name="inner"), "go").text

        async def awaiting() -> str:
            return (await atlas.run_async(helper(name="inner"), "go")).text

        provider.plan(Act(tool_calls=(ActCall("blocking"), ActCall("awaiting"))), Act(text="Done."), by="turn")
        assert atlas.run(helper(tools=[blocking, awaiting]), "go").ok
        told = [message["content"] for message in provider.bodies()[-1]["messages"] if message["role"] == "tool"]
    assert "run_async" in told[0]
    assert "Done." in told[1]


def test_what_a_tool_raises_ends_no_run_and_harms_no_other(
    provider: ProviderProcess, environ: Mapping[str, str]
) -> None:
    class Abort(BaseException):
        pass

    async def interrupt() -> str:
        raise KeyboardInterrupt

    async def give_up() -> str:
        sleeping = asyncio.ensure_future(asyncio.sleep(60))
        sleeping.cancel()
        await sleeping
        return "never"

    def abort() -> str:
        raise Abort("no more")

    def exhaust() -> int:
        return next(one for one in (1, 2) if one > 2)

    tools = [interrupt, give_up, abort, exhaust]
    provider.plan(Act(tool_calls=tuple(ActCall(one.__name__) for one in tools)), Act(text="Fine."), by="turn")
    with Atlas.ephemeral(environ=environ) as atlas:
        assert atlas.run(helper(tools=tools), "go").text == "Fine."
        *_, told = provider.bodies()[-1]["messages"]
        said = "".join(str(one["content"]) for one in provider.bodies()[-1]["messages"])
        assert told["role"] == "tool"
        assert all(name in said for name in ("KeyboardInterrupt", "CancelledError", "Abort: no more", "StopIteration"))
        # One alone is performed in the turn's own task.
        for one in tools:
            provider.plan(Act(tool_calls=(ActCall(one.__name__),)), Act(text="Fine."), by="turn")
            assert atlas.run(helper(name=f"with_{one.__name__}", tools=[one]), "go").text == "Fine."


def test_functions_that_never_return_hold_up_neither_others_nor_closing(
    provider: ProviderProcess, environ: Mapping[str, str]
) -> None:
    release = threading.Event()

    @tool(effect="read_only", timeout_s=0.05, resources=())
    def hang(n: int) -> str:
        release.wait(60)
        return "late"

    # More than the event loop has threads of its own.
    hangs = tuple(ActCall("hang", f'{{"n": {n}}}') for n in range(40))
    try:
        with Atlas.ephemeral(environ=environ) as atlas:
            provider.plan(Act(tool_calls=hangs), Act(text="None came back."), by="turn")
            assert atlas.run(helper(name="hanging", tools=[hang]), "go").text == "None came back."
            provider.plan(*ADDING, by="turn")
            assert atlas.run(helper(), "What is 2 + 3?").text == "It is 5."
            assert "\n5\n" in provider.bodies()[-1]["messages"][-1]["content"]
        assert not release.is_set()
    finally:
        release.set()


# Kept until the process ends: a task that is collected while it waits would complain in the middle of another test.
LEFT_BEHIND: list[object] = []


def test_a_coroutine_that_swallows_its_cancellation_passes_no_limit(
    provider: ProviderProcess, environ: Mapping[str, str]
) -> None:
    async def insist() -> str:
        LEFT_BEHIND.append(asyncio.current_task())
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    async def insist_once() -> str:
        return await insist()

    tools = [tool(effect="read_only", timeout_s=0.05)(insist), insist_once]
    with Atlas.ephemeral(environ=environ) as atlas:
        provider.plan(Act(tool_calls=(ActCall("insist"),)), Act(text="It was late."), by="turn")
        assert atlas.run(helper(name="late", tools=tools), "go").text == "It was late."
        assert "did not finish within 0.05 s" in str(provider.bodies()[-1]["messages"][-1])
        provider.plan(Act(tool_calls=(ActCall("insist_once"),)), Act(text="Never."), by="turn")
        result = atlas.run(helper(name="ended", tools=tools, timeout_s=0.5), "go")
    assert result.error is not None
    assert result.error.code == "timeout"


def untyped(x):  # type: ignore[no-untyped-def]
    """Has no types."""


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"name": "Not A Name"}, "Not A Name"),
        ({"instructions": " "}, "no instructions"),
        ({"instructions": None}, "no instructions"),
        ({"tools": [untyped]}, "parameter x has no type hint"),
        ({"tools": ["add"]}, "not a str"),
        ({"tools": add}, "list of functions"),
        ({"tools": [add, add]}, "two tools add"),
        ({"model": "the best"}, "model"),
        ({"budget": {"usd_per_rum": 1}}, "usd_per_rum"),
        ({"budget": -1.0}, "usd_per_run"),
        ({"budget": "1"}, "usd_per_run"),
        ({"output_schema": "object"}, "output.schema"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_an_agent_that_could_not_run_cannot_be_made(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(Invalid, match=match):
        helper(**changes)


def test_a_hint_is_about_what_is_wrong() -> None:
    with pytest.raises(Invalid) as caught:
        helper(budget={"usd_per_rum": 1})
    assert "agent.yaml" in caught.value.hint
    with pytest.raises(Invalid) as caught:
        helper(model="the best")
    assert "provider:model" in caught.value.hint


def test_a_tool_cannot_have_a_built_in_name() -> None:
    def recall(x: int) -> str:
        return str(x)

    with pytest.raises(Invalid, match="built-in"):
        helper(tools=[recall])


def test_without_a_model_the_error_says_what_to_set_and_nothing_happens() -> None:
    with Atlas.ephemeral(environ={}) as atlas:
        with pytest.raises(Invalid, match="no model is configured") as caught:
            atlas.run(helper(), "hi")
        assert "OPENAI_API_KEY" in caught.value.hint
        assert "ANTHROPIC_API_KEY" in caught.value.hint
        assert "atlas-agents[local]" in caught.value.hint
        assert atlas.runs().runs == ()
    with Atlas.ephemeral(environ={"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}) as atlas:
        with pytest.raises(Invalid, match="no model is configured for the tier fast") as caught:
            atlas.run(helper(model="fast"), "hi")
        assert "models={'tiers': {'fast': ['provider:model']}}" in caught.value.hint
        assert atlas.runs().runs == ()


class Namesake(AgentBase):
    """Has the name of another."""

    contract = {"name": "helper"}


def test_two_agents_with_one_name_are_refused(
    root: Path, provider: ProviderProcess, environ: Mapping[str, str]
) -> None:
    with pytest.raises(Conflict, match="another agent called helper"):
        Atlas.ephemeral(environ=environ, agents=[helper(), Namesake]).runs()
    provider.plan(Act(text="ok"))
    with Atlas.ephemeral(environ=environ, agents=[helper()]) as atlas:
        assert atlas.run("helper", "hi").ok
        assert atlas.run(helper(), "hi").ok
        with pytest.raises(Conflict, match="another agent called helper"):
            atlas.run(helper(instructions="You subtract."), "hi")
    folder = root / "agents" / "helper"
    folder.mkdir(parents=True)
    (folder / "agent.yaml").write_text("agent: {name: helper, version: 1.0.0, description: x}\n")
    with pytest.raises(Conflict, match="this vault has another agent"), Atlas(root, environ=environ) as atlas:
        atlas.run(helper(), "hi")
    with pytest.raises(Invalid, match="is not an agent"):
        Atlas.ephemeral(agents=["helper"], environ=environ).runs()  # type: ignore[list-item]


def test_a_run_on_a_vault_keeps_its_words_and_is_only_driven_where_its_functions_are(
    root: Path, provider: ProviderProcess, environ: Mapping[str, str]
) -> None:
    post = Post()
    provider.plan(*SENDING, by="turn")
    with Atlas(root, environ=environ) as atlas:
        waiting = atlas.run(helper(tools=post.tools, instructions="You send."), "Write to Ann.")
        assert waiting.state == "waiting"

    async def elsewhere() -> None:
        """A process without the agent: can look, verify and answer, and drives nothing of it."""
        async with open_host(root, environ) as host:
            [created] = [body async for _, body in host.follow(waiting.run_id) if isinstance(body, RunCreated)]
            assert created.place == "inline:helper"
            built = await host.request(waiting.run_id, 1)
            assert built.request.system[0] == "You send."
            await host.answer(waiting.run_id, "tool:1.1:send", True)
            await host.drive_all(until_idle=True)
            assert (await host.ledger.run(waiting.run_id)).state == "queued"

    asyncio.run(elsewhere())
    # The words changed meanwhile; the run goes on with those it began with.
    changed = helper(tools=post.tools, instructions="You send nothing.")
    with Atlas(root, agents=[changed], environ=environ) as atlas:
        assert atlas.result(waiting.run_id).text == "Done."
    assert post.sent == ["ann"]
    assert provider.bodies()[-1]["messages"][0]["content"].startswith("You send.\n")

    async def afterwards() -> None:
        async with open_host(root, {}) as host:
            replayed = await host.replay(waiting.run_id)
            assert (replayed.identical, replayed.code) == (True, "identical")
            assert (await host.verify(None)).ok
            assert result_of(await host.report(waiting.run_id)).text == "Done."

    asyncio.run(afterwards())


def test_the_examples_of_the_guide_run_as_they_stand(
    provider: ProviderProcess, environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    ordering = Act(tool_calls=(ActCall("order", '{"item": "kettle", "count": 10}'),))
    guide = Path(__file__).parents[2] / "docs" / "guides" / "python-api.md"
    examples = [part.partition("```")[0] for part in guide.read_text().split("```python\n")[1:]]
    names: dict[str, Any] = {}
    for example in examples:
        is_ordering = "effect=" in example
        provider.plan(*((ordering,) if is_ordering else ()), Act(text="Three."), by="turn")
        exec(compile(example, str(guide), "exec"), names)  # the guide's own words
        assert not is_ordering or names["result"].text == "Three."
    assert len(examples) == 7
