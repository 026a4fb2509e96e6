"""An outcome that others report while the code is already asking for it again."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest
from agents_for_tests import WORLD, touch
from test_host import die_in_effect, host_at, in_host, kinds

from atlas import AgentBase, AgentContext
from atlas.control.attempt import Attempt
from atlas.control.host import Host
from atlas.control.world import Message
from atlas.kernel.code import CallMade
from atlas.kernel.event import Resolution
from atlas.kernel.run import RunQuery, Signal


class Impatient(AgentBase):
    """Stops waiting for an answer and asks for it again while it is on its way."""

    contract = {"name": "impatient", "version": "1.0.0", "description": "cannot wait"}

    async def execute(self, input: dict[str, str], context: AgentContext) -> dict[str, object]:
        def ask() -> asyncio.Future[object]:
            return asyncio.ensure_future(context.generate(None, "say", tier="demo:m", key="k"))

        first = ask()
        await asyncio.sleep(0.1)
        first.cancel()
        return {"answer": await ask()}


class Unsure(AgentBase):
    """Has an effect that nobody can look for, beside one that takes its time."""

    contract = {"name": "unsure", "version": "1.0.0", "description": "cannot tell"}

    async def execute(self, input: dict[str, str], context: AgentContext) -> dict[str, object]:
        log = input["log"]

        def cannot_tell(*args: object) -> None:
            raise OSError("the other side does not answer")

        unsure = asyncio.ensure_future(context.step("unsure", touch, log, "a", probe=cannot_tell))
        slow = asyncio.ensure_future(context.step("slow", linger, effect="read_only"))
        return {"results": [await unsure, await slow]}


async def linger() -> str:
    """Gives a person the time to answer."""
    await asyncio.sleep(1.5)
    return "slow"


def test_a_child_that_ends_while_its_parent_asks_again_is_not_started_again(
    vault_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, news = uuid.uuid4().hex, list[Signal]()
    post = Attempt.post

    def late(attempt: Attempt, message: Message) -> None:
        """Holds the news of the child back until the code has asked for it."""
        if isinstance(message, Signal) and message.kind == "child_ended":
            news.append(message)
            return
        post(attempt, message)
        if isinstance(message, CallMade) and message.kind == "spawn":
            while news:
                post(attempt, news.pop())

    async def work(host: Host) -> None:
        run_id = (await host.submit("worker", {"log": log, "do": ["kid-mails"]})).run_id
        assert await host.drive(run_id) == "waiting"
        (entry,) = await host.inbox()
        monkeypatch.setattr(Attempt, "post", late)
        await host.answer(entry.run_id, entry.effect, approved=True)
        assert await host.drive(entry.run_id) == "succeeded"
        assert await host.drive(run_id) == "succeeded"
        assert len((await host.runs(RunQuery(root_run_id=run_id))).runs) == 2
        assert (await kinds(host, run_id)).count("effect.intended") == 1
        assert WORLD[log] == ["k"]
        assert (await host.replay(run_id)).identical

    in_host(vault_dir, work)


def test_a_model_that_is_asked_again_while_it_answers_is_asked_once(vault_dir: Path) -> None:
    vault_dir.mkdir(exist_ok=True)
    says = '{text: "%s", delay_ms: %d, usage: {in: 10, out: 5}}'
    (vault_dir / "script.yaml").write_text(f"replies: [{says % ('one', 400)}, {says % ('two', 10)}]")
    config = "models: {providers: {demo: {kind: scripted, script: script.yaml}}}"

    async def main() -> None:
        async with asyncio.timeout(30), host_at(vault_dir, config, agents=(Impatient,)) as host:
            run_id = (await host.submit("impatient", {})).run_id
            assert await host.drive(run_id) == "succeeded"
            assert bytes((await host.report(run_id)).output) == b'{"answer":"one"}'
            assert (await kinds(host, run_id)).count("effect.intended") == 1

    asyncio.run(main())


@pytest.mark.parametrize("said,seen", [("done", []), ("not_done", ["a"])])
def test_a_doubt_that_is_settled_while_the_code_runs_lets_it_go_on(
    vault_dir: Path, said: Resolution, seen: list[str]
) -> None:
    log = uuid.uuid4().hex

    async def work(host: Host) -> None:
        run_id = (await host.submit("unsure", {"log": log})).run_id
        await die_in_effect(host, run_id, "unsure", [log, "a"], can_probe=True)
        driving = asyncio.ensure_future(host.drive(run_id))
        while not (entries := await host.inbox()):
            await asyncio.sleep(0.01)
        assert not driving.done()
        await host.resolve(run_id, entries[0].effect, said, b'"by hand"')
        assert await driving == "succeeded"
        assert WORLD.get(log, []) == seen
        assert "run.parked" not in await kinds(host, run_id)
        assert (await host.replay(run_id)).identical

    async def main() -> None:
        async with asyncio.timeout(30), host_at(vault_dir, agents=(Unsure,)) as host:
            await work(host)

    asyncio.run(main())
