"""Answers that are empty or break off, over a real socket: whom is asked then, and what a run says that got none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas import AgentBase, AgentContext
from atlas.app import open_host
from atlas.control.calls import MAX_TRIES
from atlas.kernel.errors import AtlasError
from atlas.kernel.event import EffectIntended, EffectReceived, decode_body
from atlas.testing.provider import ProviderProcess
from atlas.testing.provider_wire import Act

BLANK = Act(text=" ")
BROKEN = Act(text="abc", cut_at=200)
lost = pytest.mark.parametrize(
    "act, code", [pytest.param(BLANK, "model_empty", id="blank"), pytest.param(BROKEN, "model_connection", id="broken")]
)


@pytest.fixture(scope="module")
def first() -> Iterator[ProviderProcess]:
    with ProviderProcess() as process:
        yield process


@pytest.fixture(scope="module")
def second() -> Iterator[ProviderProcess]:
    with ProviderProcess() as process:
        yield process


class Asking(AgentBase):
    """Asks the first model, and says what came of it."""

    contract = {"name": "asking", "version": "1.0.0", "description": "asks a model"}

    async def execute(self, input: Any, context: AgentContext) -> Any:
        try:
            return {"text": await context.generate(None, "hi", tier="a:m1")}
        except AtlasError as error:
            return {"text": error.reason}


async def ended(
    root: Path, a: ProviderProcess, b: ProviderProcess, agent: str, model: object = None
) -> tuple[str, str]:
    """How a run ended, and its answer or its error's code."""
    folder = root / "agents" / "advisor"
    folder.mkdir(parents=True)
    contract = {"name": "advisor", "version": "1.0.0", "description": "Helps", "runtime": "prompt", "model": model}
    (folder / "agent.yaml").write_text(json.dumps({"agent": contract}))
    providers = {
        name: {"kind": "openai", "base_url": f"{one.url}/v1", "key": "secret:K"} for name, one in (("a", a), ("b", b))
    }
    (root / "atlas.config.yaml").write_text(json.dumps({"models": {"providers": providers}}))
    async with asyncio.timeout(60), open_host(root, {"K": "kkkkkkkkkk"}, agents=[Asking]) as host:
        submitted = await host.submit(agent, {"text": "go"})
        state = await host.drive(submitted.run_id)
        report = await host.report(submitted.run_id)
        assert (await host.replay(submitted.run_id)).identical
        bodies = [decode_body(one.kind, one.version, one.body) for one in await host.ledger.events(submitted.run_id)]
        holds = {one.effect: one.hold for one in bodies if isinstance(one, EffectIntended) and one.kind == "model"}
        for receipt in (one for one in bodies if isinstance(one, EffectReceived) and one.effect in holds):
            hold = holds[receipt.effect]
            assert hold is not None
            assert receipt.spend.cost_micro_usd <= hold.micro_usd, receipt.effect
        output = msgspec.json.decode(report.output) if report.error is None else {}
        return state, output.get("text", "") if report.error is None else report.error.code


@lost
def test_the_fallback_is_asked_when_every_answer_is_lost(
    vault_dir: Path, first: ProviderProcess, second: ProviderProcess, act: Act, code: str
) -> None:
    first.plan(act)
    second.plan(Act(text="from b"))
    model = {"preference": "a:m1", "fallback": "b:m2"}
    assert asyncio.run(ended(vault_dir, first, second, "advisor", model)) == ("succeeded", "from b")
    assert (len(first.bodies()), len(second.bodies())) == (MAX_TRIES, 1)


@lost
@pytest.mark.parametrize("fallback", [{}, {"fallback": "b:m2"}])
def test_a_run_whose_answers_were_all_lost_ends_with_what_the_provider_did_to_them(
    vault_dir: Path, first: ProviderProcess, second: ProviderProcess, act: Act, code: str, fallback: dict[str, str]
) -> None:
    first.plan(act)
    second.plan(act)
    model = {"preference": "a:m1", **fallback}
    assert asyncio.run(ended(vault_dir, first, second, "advisor", model)) == ("failed", code)
    assert (len(first.bodies()), len(second.bodies())) == (MAX_TRIES, MAX_TRIES if fallback else 0)


@pytest.mark.parametrize("model", [{"preference": "a:m1"}, {"preference": "a:m1", "fallback": "b:m2"}])
def test_an_answer_that_was_cut_off_at_its_end_is_the_answer(
    vault_dir: Path, first: ProviderProcess, second: ProviderProcess, model: dict[str, str]
) -> None:
    first.plan(Act(text="all of it", stop="length"), BLANK, BLANK, BLANK)
    second.plan(Act(text=" and more"))
    assert asyncio.run(ended(vault_dir, first, second, "advisor", model)) == ("succeeded", "all of it")
    assert second.bodies() == []


def test_a_reply_that_was_cut_off_while_thinking_is_asked_for_again(
    vault_dir: Path, first: ProviderProcess, second: ProviderProcess
) -> None:
    first.plan(Act(thinking="hm", stop="length"), Act(text="at last"))
    model = {"preference": "a:m1"}
    assert asyncio.run(ended(vault_dir, first, second, "advisor", model)) == ("succeeded", "at last")


@lost
def test_code_hears_what_the_provider_did_to_every_answer(
    vault_dir: Path, first: ProviderProcess, second: ProviderProcess, act: Act, code: str
) -> None:
    first.plan(act)
    assert asyncio.run(ended(vault_dir, first, second, "asking")) == ("succeeded", code)
    assert len(first.bodies()) == MAX_TRIES
