"""Budgets through the real driver, ledger and HTTP client, held against a local provider's own bill."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path

import pytest
from till import Till, bodies, model_effects

from atlas import Atlas
from atlas.control.account import events_of, read
from atlas.control.host import Host
from atlas.kernel.budget import fleet_caps, usd
from atlas.kernel.errors import Invalid
from atlas.kernel.event import EffectIntended, EffectReceived, RunCreated
from atlas.kernel.model import Message, ModelError, Request, Tab, Text
from atlas.kernel.recall import Handle
from atlas.models.http import Patience
from atlas.models.router import Router
from atlas.models.scripted import Script
from atlas.testing.clock import START_US, FakeClock
from atlas.testing.provider import ProviderProcess
from atlas.testing.provider_wire import Act, ActCall, ActUsage
from atlas.vault.folder import FolderVault

NOTE = ActCall("note", '{"kind": "fact", "text": "water is wet"}')
wires = pytest.mark.parametrize("model", ["oa:big", "an:big"])


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderProcess]:
    with ProviderProcess() as process:
        yield process


async def go(host: Host, agent: str = "advisor", state: str = "succeeded", **options: object) -> str:
    """The run, once it rests as it should."""
    submitted = await host.submit(agent, {"text": "go"}, **options)  # type: ignore[arg-type]
    assert await host.drive(submitted.run_id) == state, (await host.report(submitted.run_id)).error
    return submitted.run_id


async def assert_books_agree(till: Till, host: Host, *, is_exact: bool = True) -> None:
    """Every total is the same; it is the provider's, or, where an answer was lost, not below it and marked."""
    books = host.books
    total = (await books.costs("day", "30d", 20)).total
    spent = till.spent()
    assert round(total.cost_usd * 1e6) == spent
    assert till.meter("fleet") == (spent, 0)
    assert till.meter("hour/fleet") == (spent, 0)
    assert till.holds() == 0
    estimated = round(total.estimated_usd * 1e6)
    if is_exact:
        assert (spent, estimated) == (till.bill, 0)
    else:
        assert spent >= till.bill
        assert estimated > 0
    assert estimated == till.rows("SELECT sum(estimated_micro_usd) FROM run")[0][0]


# Where answers arrive, every total is the provider's own


@wires
def test_several_steps_cost_what_the_provider_bills_cache_included(
    vault_dir: Path, provider: ProviderProcess, model: str
) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", model, budget={"usd_per_run": 1.0})
    usage = [ActUsage(1_003, 17, 501, 77), ActUsage(1_101, 33, 900, 3), ActUsage(1_207, 41, 1_100, 0)]
    acts = [Act(tool_calls=(NOTE,), usage=usage[0]), Act(tool_calls=(NOTE,), usage=usage[1])]
    provider.plan(*acts, Act(text="done", usage=usage[2]))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host)
            await assert_books_agree(till, host)
            assert till.meter(f"tree/{run_id}") == (till.bill, 0)
            report = await host.report(run_id)
            assert round(report.cost_usd * 1e6) == till.bill
            assert (report.tokens.tokens_in, report.tokens.tokens_out) == (3_311, 91)
            assert (await host.replay(run_id)).identical

    asyncio.run(main())
    assert len(provider.record().seen) == 3


@wires
def test_tries_that_failed_before_an_answer_cost_nothing(
    vault_dir: Path, provider: ProviderProcess, model: str
) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", model, budget={"usd_per_run": 1.0})
    provider.plan(Act(status=500), Act(status=429, headers={"Retry-After": "0.01"}), Act(text="done"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host)
            await assert_books_agree(till, host)
            assert await model_effects(host, run_id) == ["model:1 intended", "model:1 received"]

    asyncio.run(main())
    assert len(provider.record().seen) == 3


def test_the_candidate_that_answers_is_the_one_that_is_paid(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "powerful", budget={"usd_per_run": 1.0})
    provider.plan(Act(status=401), Act(text="done", usage=ActUsage(400, 50, 100, 200)))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host)
            await assert_books_agree(till, host)
            assert (await host.report(run_id)).models == ("an:big",)

    asyncio.run(main())


FAN = """
from atlas import AgentBase

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Fan(AgentBase):
    async def execute(self, input, context):
        one = await context.generate(SCHEMA, "a number", tier="fast")
        many = await context.fanout(["oa:big", "an:big"], [{"prompt": "a"}, {"prompt": "b"}])
        kids = await context.spawn_many([("advisor", {"text": str(n)}) for n in range(4)])
        return {"one": one, "many": [cell.output for cell in many], "kids": len(kids)}
"""


def test_generation_with_repairs_a_fan_out_and_children_cost_what_the_provider_bills(
    vault_dir: Path, provider: ProviderProcess
) -> None:
    till = Till(vault_dir, provider)
    till.code("fan", FAN, requires={"spawn_agents": True}, budget={"usd_per_run": 5.0})
    till.prompt("advisor", "an:big", budget={"usd_per_run": 1.0})
    provider.plan(Act(text="no json"), Act(text='{"n": "x"}'), Act(text='{"n": 3}'), Act(text="good"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, "fan")
            await assert_books_agree(till, host)
            assert till.meter(f"tree/{run_id}") == (till.bill, 0)
            output = json.loads(bytes((await host.report(run_id)).output))
            assert output == {"one": {"n": 3}, "many": ["good"] * 4, "kids": 4}

    asyncio.run(main())
    assert len(provider.record().seen) == 3 + 4 + 4


def test_an_answer_in_a_schema_is_paid_with_all_its_repairs(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    till.prompt("advisor", "fast", output={"schema": schema}, budget={"usd_per_run": 1.0})
    provider.plan(Act(text="no"), Act(text="no again"), Act(text='{"n": 3}'))

    async def main() -> None:
        async with till.host() as host:
            await go(host)
            await assert_books_agree(till, host)

    asyncio.run(main())


# A provider that bills more than was reserved


@wires
def test_a_bill_above_the_reservation_is_recorded_and_closes_the_pool(
    vault_dir: Path, provider: ProviderProcess, model: str
) -> None:
    till = Till(vault_dir, provider, budget={"usd_per_day": 2.0})
    till.prompt("advisor", model, budget={"usd_per_run": 0.5})
    provider.plan(Act(tool_calls=(NOTE,), usage=ActUsage(900, 60_000)), Act(text="never"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, state="refused")
            await assert_books_agree(till, host)
            error = (await host.report(run_id)).error
            assert error is not None
            assert error.code == "budget_refused"
            assert "usd_per" in error.message or "tree" in error.message
            assert usd(till.bill) in error.message
            books = host.books
            day = next(one for one in await books.standings() if one.cap == "fleet usd_per_day")
            assert round(day.debt_usd * 1e6) == till.bill - 2_000_000
            # The vault's day is closed for everybody, before anything is asked.
            await go(host, state="refused")

    asyncio.run(main())
    assert len(provider.record().seen) == 1


ASKER = """
from atlas import AgentBase


class Asker(AgentBase):
    async def execute(self, input, context):
        return {"text": await context.generate(None, "say something", tier="powerful")}
"""


# Where an answer is lost, the total is not below the bill, and says so


MOSTLY_WRITTEN = ActUsage(700, 1_500, 0, 650)


def cut(model: str, usage: ActUsage = MOSTLY_WRITTEN) -> Act:
    """An answer that breaks off in the middle, and that the provider bills as a whole: most of the request as written."""
    text = "a long answer that is never finished"
    return Act(text=text, usage=usage, cut_at=700 if model.startswith("an") else 450)


@wires
@pytest.mark.parametrize("budget", [{"usd_per_run": 0.5}, {}])
def test_a_stream_that_is_cut_is_counted_in_full_and_asked_again_as_an_effect_of_its_own(
    vault_dir: Path, provider: ProviderProcess, model: str, budget: dict[str, float]
) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", model, budget=budget)
    provider.plan(cut(model), Act(tool_calls=(NOTE,)), cut(model), Act(text="done"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host)
            assert (await host.report(run_id)).text == "done"
            await assert_books_agree(till, host, is_exact=False)
            assert await model_effects(host, run_id) == [
                *("model:1 intended", "model:1 failed ~", "model:1:2 intended", "model:1:2 received"),
                *("model:2 intended", "model:2 failed ~", "model:2:2 intended", "model:2:2 received"),
            ]
            assert (await host.replay(run_id)).identical
            account = await read(host.ledger, 1, await events_of(host.ledger, run_id))
            assert await account.text(Handle(1, 2)) == "done"

    asyncio.run(main())
    assert len(provider.record().seen) == 4


@wires
def test_a_small_request_that_is_cut_is_not_counted_below_the_bytes_that_were_sent(
    vault_dir: Path, provider: ProviderProcess, model: str
) -> None:
    """The frame is most of a small request, a provider counts it, and the answer was as long as it may be."""
    till = Till(vault_dir, provider)
    till.code("asker", ASKER.replace("powerful", model), budget={"usd_per_run": 0.5})
    provider.plan(Act(text="x" * 4 * 2_048, cut_at=900), Act(text="done"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, "asker")
            _, again = (body for body in await bodies(host, run_id) if isinstance(body, EffectIntended))
            (done,) = (body for body in await bodies(host, run_id) if isinstance(body, EffectReceived))
            first, second = provider.record().seen
            assert first.billed is not None
            assert again.lost.tokens_in >= first.billed.tokens_in
            assert again.lost.cost_micro_usd >= till.price(first)
            assert done.spend.cost_micro_usd == till.price(second)

    asyncio.run(main())


@wires
@pytest.mark.parametrize("act", [Act(text="late", before_s=5), Act(text="half of it", pause_at=500, pause_s=5)])
def test_silence_is_counted_as_the_most_that_the_call_may_have_cost(
    vault_dir: Path, provider: ProviderProcess, model: str, act: Act
) -> None:
    till = Till(vault_dir, provider)
    provider.plan(act)
    request = Request(model, (), (Message("user", (Text("how much is this?"),)),), max_output_tokens=300)

    async def load_blob(name: str) -> bytes:
        raise AssertionError(name)

    async def main() -> Tab:
        config = FolderVault(vault_dir).config().models
        patience = Patience(first_byte_s=0.3, silence_s=0.3)
        router = Router(config, clock=FakeClock(), load_blob=load_blob, load_script=_no_script, patience=patience)
        quote = await router.quote(model, 100)
        tab = Tab(quote(300), 100)
        try:
            with pytest.raises(ModelError) as caught:
                await router.ask(model, request, lambda delta: None, tab)
        finally:
            await router.close()
        assert caught.value.kind == "budget"
        assert tab.cost_micro_usd == quote(300)
        return tab

    tab = asyncio.run(main())
    assert tab.is_estimated
    while provider.record().open:
        time.sleep(0.05)
    assert len(provider.record().seen) == 1
    assert tab.cost_micro_usd >= till.bill > 0


def _no_script(name: str) -> Script:
    raise AssertionError(name)


def test_an_answer_without_a_count_is_estimated_and_not_below_the_bill(
    vault_dir: Path, provider: ProviderProcess
) -> None:
    till = Till(vault_dir, provider)
    for model in ("oa:big", "an:big"):
        agent = model.replace(":", "-")
        till.prompt(agent, model, budget={"usd_per_run": 0.5})
        provider.plan(Act(text="short", omit_usage=True))

        async def main(agent: str = agent) -> None:
            async with till.host() as host:
                run_id = await go(host, agent)
                (receipt,) = (body for body in await bodies(host, run_id) if isinstance(body, EffectReceived))
                assert receipt.is_estimated
                assert receipt.spend.cost_micro_usd >= till.bill

        asyncio.run(main())


def test_a_cut_stream_is_not_asked_again_when_the_money_is_gone(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big", budget={"usd_per_run": 0.1})
    provider.plan(cut("oa:big"), Act(text="never"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, state="refused")
            assert await model_effects(host, run_id) == ["model:1 intended", "model:1 failed ~", "model:1:2 refused"]
            await assert_books_agree(till, host, is_exact=False)
            spent, held = till.meter(f"tree/{run_id}")
            assert spent + held <= 100_000

    asyncio.run(main())
    assert len(provider.record().seen) == 1


def test_the_next_candidate_is_asked_after_one_that_breaks_off(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "powerful", budget={"usd_per_run": 0.5})
    provider.plan(cut("oa:big"), Act(text="done"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host)
            assert (await host.report(run_id)).models == ("an:big",)
            await assert_books_agree(till, host, is_exact=False)

    asyncio.run(main())


@pytest.mark.parametrize("budget", [{"usd_per_run": 1.0}, {}])
def test_a_question_of_code_that_is_cut_is_asked_again_when_there_is_money(
    vault_dir: Path, provider: ProviderProcess, budget: dict[str, float]
) -> None:
    till = Till(vault_dir, provider)
    till.code("asker", ASKER, budget=budget)
    provider.plan(cut("oa:big", ActUsage(20, 1_500, 0, 20)), Act(text="done"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, "asker")
            assert (await host.report(run_id)).text == "done"
            await assert_books_agree(till, host, is_exact=False)
            assert (await host.replay(run_id)).identical

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["prompt", "code"])
def test_a_cancelled_call_is_not_counted_below_the_bill(vault_dir: Path, provider: ProviderProcess, kind: str) -> None:
    till = Till(vault_dir, provider)
    if kind == "prompt":
        till.prompt("advisor", "an:big", budget={"usd_per_run": 0.5})
    else:
        till.code("advisor", ASKER, budget={"usd_per_run": 0.5})
    usage = ActUsage(700, 1_900, 0, 650) if kind == "prompt" else ActUsage(20, 1_900, 0, 20)
    provider.plan(Act(text="half an answer and more", usage=usage, pause_at=600, pause_s=30))

    async def main() -> None:
        async with till.host() as host:
            submitted = await host.submit("advisor", {"text": "go"})
            async with asyncio.TaskGroup() as group:
                driving = group.create_task(host.drive(submitted.run_id))
                while not provider.record().open:
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.1)
                await host.cancel(submitted.run_id, "enough")
                assert await driving == "cancelled"
            while provider.record().open:
                await asyncio.sleep(0.02)
            await assert_books_agree(till, host, is_exact=False)
            assert len([body for body in await bodies(host, submitted.run_id) if isinstance(body, EffectReceived)]) == 1

    asyncio.run(main())


# Caps


def test_a_short_purse_shortens_the_answer_before_it_refuses(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big", budget={"usd_per_run": 0.06})
    provider.plan(Act(text="done"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host)
            (intent,) = (body for body in await bodies(host, run_id) if isinstance(body, EffectIntended))
            assert intent.hold is not None
            assert 256 <= intent.hold.max_output_tokens < 2_048
            assert intent.hold.micro_usd <= 60_000
            (sent,) = provider.bodies()
            assert sent.get("max_completion_tokens", sent.get("max_tokens")) == intent.hold.max_output_tokens

    asyncio.run(main())


KIDS = """
from atlas import AgentBase, AtlasError


class Parent(AgentBase):
    async def execute(self, input, context):
        kids = [("advisor", {"text": str(n)}) for n in range(20)]
        found = await context.spawn_many(kids, return_errors=True)
        return {"found": [kid.reason if isinstance(kid, AtlasError) else kid["text"] for kid in found]}
"""


def test_children_wait_for_each_others_reservations_and_then_go_on(vault_dir: Path, provider: ProviderProcess) -> None:
    """Room for two full answers at a time, money for all: twenty children draw on the parent's pool, and none fails."""
    till = Till(vault_dir, provider)
    till.code("parent", KIDS, requires={"spawn_agents": True}, budget={"usd_per_run": 0.25})
    till.prompt("advisor", "oa:big")
    provider.plan(Act(text="fine", usage=ActUsage(500, 20), before_s=0.05))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, "parent")
            output = json.loads(bytes((await host.report(run_id)).output))
            assert output == {"found": ["fine"] * 20}
            assert till.meter(f"tree/{run_id}") == (till.bill, 0)
            await assert_books_agree(till, host)
            till.assert_never_above(f"tree/{run_id}", 250_000)

    asyncio.run(main())
    assert len(provider.record().seen) == 20


def test_children_for_whom_the_money_is_gone_end_as_refused(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.code("parent", KIDS, requires={"spawn_agents": True}, budget={"usd_per_run": 0.25})
    till.prompt("advisor", "oa:big")
    provider.plan(Act(text="fine", usage=ActUsage(1_000, 1_000), before_s=0.02))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, "parent")
            found = json.loads(bytes((await host.report(run_id)).output))["found"]
            assert set(found) == {"fine", "budget_refused"}
            assert found.count("fine") == len(provider.record().seen)
            spent, held = till.meter(f"tree/{run_id}")
            assert (spent, held) == (till.bill, 0)
            assert spent <= 250_000
            till.assert_never_above(f"tree/{run_id}", 250_000)
            states = till.rows("SELECT state, count(*) FROM run WHERE parent_run_id != '' GROUP BY state")
            assert dict(states) == {"succeeded": found.count("fine"), "refused": found.count("budget_refused")}

    asyncio.run(main())


def test_a_limit_of_one_request_refuses_with_a_word_of_its_own(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big", budget={"tokens_per_request": 300})
    provider.plan(Act(text="never"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, state="refused")
            error = (await host.report(run_id)).error
            assert error is not None
            assert (error.code, error.kind) == ("tokens_per_request", "limit_refused")
            assert till.meter("fleet") == (0, 0)

    asyncio.run(main())
    assert not provider.record().seen


def test_tokens_of_a_run_are_capped_too(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big", budget={"tokens_per_run": 6_000})
    provider.plan(Act(tool_calls=(NOTE,), usage=ActUsage(2_000, 1_900)))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, state="refused")
            error = (await host.report(run_id)).error
            assert error is not None
            assert error.code == "budget_refused"
            assert "6,000 tokens" in error.message

    asyncio.run(main())
    assert len(provider.record().seen) == 1


def test_at_a_cap_the_cheaper_model_goes_on_under_the_same_cap(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "fast", fallback="oa:small", budget={"usd_per_run": 0.05, "on_cap": "fallback"})
    provider.plan(Act(tool_calls=(NOTE,), usage=ActUsage(1_000, 900)), Act(text="done", usage=ActUsage(800, 90)))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host)
            await assert_books_agree(till, host)
            assert (await host.report(run_id)).models == ("oa:big", "oa:small")
            till.assert_never_above(f"tree/{run_id}", 50_000)
            provider.plan(Act(tool_calls=(NOTE,), usage=ActUsage(4_990, 0)))
            refused = await go(host, state="refused")
            assert (await host.report(refused)).models == ("oa:big",)

    asyncio.run(main())


def test_the_cheaper_model_is_not_taken_when_a_rule_denies_it(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big", fallback="oa:small", budget={"usd_per_run": 0.01, "on_cap": "fallback"})
    rule = {"id": "not-small", "match": {"model": "oa:small"}, "decision": "deny", "reason": "too small"}
    (vault_dir / "policy.yaml").write_text(json.dumps({"rules": [rule]}))
    provider.plan(Act(text="never"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, state="refused")
            error = (await host.report(run_id)).error
            assert error is not None
            assert error.code == "budget_refused"

    asyncio.run(main())
    assert not provider.record().seen


def test_a_day_ends_at_midnight_of_the_configured_zone(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider, budget={"usd_per_day": 0.1}, time_zone="Asia/Tokyo")
    till.prompt("advisor", "oa:big")
    provider.plan(Act(text="fine", usage=ActUsage(1_000, 1_900)))
    clock = FakeClock()  # midnight of UTC: nine in the morning there

    async def main() -> None:
        async with till.host(clock) as host:
            await go(host)
            clock.advance(14 * 3_600 + 3_500)
            run_id = await go(host, state="refused")
            error = (await host.report(run_id)).error
            assert error is not None
            assert "fleet usd_per_day" in error.message
            clock.advance(200)
            await go(host)
            days = dict(till.rows("SELECT bucket, spent_micro_usd FROM meter WHERE scope = 'fleet'"))
            assert days == {"2026-01-01": 86_000, "2026-01-02": 86_000}

    asyncio.run(main())


def test_seven_days_and_a_month_are_counted_for_one_agent_alone(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big", budget={"usd_per_7d": 0.1, "usd_per_month": 0.25})
    till.prompt("other", "oa:big", budget={"usd_per_7d": 0.1})
    provider.plan(Act(text="fine", usage=ActUsage(1_000, 1_900)))
    clock = FakeClock()

    async def main() -> None:
        async with till.host(clock) as host:
            await go(host)
            clock.advance(6 * 86_400)
            await go(host, state="refused")
            await go(host, "other")
            await go(host, principal="ann")
            clock.advance(2 * 86_400)
            await go(host)
            clock.advance(8 * 86_400)
            await go(host)
            clock.advance(8 * 86_400)
            run_id = await go(host, state="refused")
            error = (await host.report(run_id)).error
            assert error is not None
            assert "usd_per_month" in error.message
            clock.advance(8 * 86_400)
            await go(host)

    asyncio.run(main())


def test_an_alert_is_raised_once_in_a_period_and_stops_nothing(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider, budget={"usd_per_day": 0.2, "warn_at": [0.5, 0.7]})
    till.prompt("advisor", "oa:big")
    provider.plan(Act(text="fine", usage=ActUsage(1_000, 1_000)))
    clock = FakeClock()

    async def main() -> None:
        async with till.host(clock) as host:
            books = host.books

            async def alerts() -> list[tuple[str, float]]:
                return [(one.period, one.fraction) for one in (await books.costs("day", "30d", 20)).alerts]

            await go(host)
            assert await alerts() == []
            await go(host)
            assert await alerts() == [("2026-01-01", 0.5)]
            await go(host)
            assert await alerts() == [("2026-01-01", 0.5), ("2026-01-01", 0.7)]
            await go(host)
            assert len(await alerts()) == 2
            clock.advance(86_400)
            for _ in range(2):
                await go(host)
            assert ("2026-01-02", 0.5) in await alerts()

    asyncio.run(main())


def test_the_pool_of_a_tree_alerts_as_well(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big", budget={"usd_per_run": 0.2, "warn_at": [0.5]})
    provider.plan(Act(tool_calls=(NOTE,), usage=ActUsage(1_000, 1_500)), Act(text="fine", usage=ActUsage(1_000, 1_000)))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host)
            (alert,) = await host.ledger.warned()
            assert (alert.scope, alert.fraction) == (f"tree/{run_id}", 0.5)

    asyncio.run(main())


async def logged(host: Host, run_id: str) -> list[str]:
    from atlas.kernel.event import Logged

    return [body.message for body in await bodies(host, run_id) if isinstance(body, Logged)]


@pytest.mark.parametrize("model, least", [("nobody-knows-this", 14_001), ("claude-sonnet-4-5", 4_500)])
def test_a_model_without_a_price_costs_its_makers_or_the_highest_known_one_and_says_so(
    vault_dir: Path, provider: ProviderProcess, model: str, least: int
) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", f"oa:{model}", budget={"usd_per_run": 100.0})
    provider.plan(Act(text="fine", usage=ActUsage(1_000, 100)))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host)
            (intent,) = (body for body in await bodies(host, run_id) if isinstance(body, EffectIntended))
            assert intent.hold is not None
            assert intent.hold.is_price_guessed
            assert till.spent() >= least
            [said] = [line for line in await logged(host, run_id) if f"the price of oa:{model} is not known" in line]
            assert "its maker's is counted, else the highest known one; models.prices" in said

    asyncio.run(main())


def test_spending_that_cannot_be_read_lets_nothing_through(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big", budget={"usd_per_day": 1.0})
    provider.plan(Act(text="fine"))

    async def main() -> None:
        async with till.host() as host:
            await go(host)
            till.change("ALTER TABLE meter RENAME TO meter_gone")
            await go(host, state="failed")
            till.change("ALTER TABLE meter_gone RENAME TO meter")
            await go(host)

    asyncio.run(main())
    assert len(provider.record().seen) == 2


def test_a_run_that_waits_for_money_can_be_left_and_goes_on_later(vault_dir: Path, provider: ProviderProcess) -> None:
    """Somebody holds the day's money and does not settle it; Ctrl-C does not wait for that."""
    till = Till(vault_dir, provider, budget={"usd_per_day": 0.1})
    till.prompt("advisor", "oa:big")
    provider.plan(Act(text="fine", usage=ActUsage(100, 10)))

    async def main() -> None:
        async with till.host() as host:
            await go(host)
            till.change("UPDATE meter SET held_micro_usd = 90000 WHERE scope = 'fleet'")
            submitted = await host.submit("advisor", {"text": "go"})
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(host.drive(submitted.run_id))
                await asyncio.sleep(0.5)
                assert not waiting.done()
                host.stop()
                async with asyncio.timeout(20):
                    assert await waiting == "queued"
            assert await model_effects(host, submitted.run_id) == []
        till.change("UPDATE meter SET held_micro_usd = 0 WHERE scope = 'fleet'")
        async with till.host() as host:
            assert await host.drive(submitted.run_id) == "succeeded"
            await assert_books_agree(till, host)

    asyncio.run(main())


def test_a_run_that_waits_for_money_can_be_cancelled(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider, budget={"usd_per_day": 0.1})
    till.prompt("advisor", "oa:big")
    provider.plan(Act(text="slow", usage=ActUsage(100, 10), before_s=5))

    async def main() -> None:
        async with till.host() as host:
            slow = await host.submit("advisor", {"text": "go"})
            async with asyncio.TaskGroup() as group:
                driving = group.create_task(host.drive(slow.run_id))
                await until(lambda: provider.record().open == 1)
                waiting = await host.submit("advisor", {"text": "go"})
                other = group.create_task(host.drive(waiting.run_id))
                await asyncio.sleep(0.3)
                assert await host.cancel(waiting.run_id, "enough") == "cancelled"
                assert await other == "cancelled"
                assert await driving == "succeeded"
            await assert_books_agree(till, host)

    asyncio.run(main())
    assert len(provider.record().seen) == 1


def test_a_call_that_waited_past_midnight_counts_to_the_day_it_begins_on(
    vault_dir: Path, provider: ProviderProcess
) -> None:
    till = Till(vault_dir, provider, budget={"usd_per_day": 0.1})
    till.prompt("advisor", "oa:big")
    provider.plan(Act(text="slow", usage=ActUsage(1_000, 1_900), before_s=5), Act(text="fine", usage=ActUsage(100, 10)))
    clock = FakeClock(START_US + 86_399_600_000)

    async def main() -> None:
        async with till.host(clock) as host:
            slow = await host.submit("advisor", {"text": "go"})
            async with asyncio.TaskGroup() as group:
                driving = group.create_task(host.drive(slow.run_id))
                await until(lambda: provider.record().open == 1)
                waiting = await host.submit("advisor", {"text": "go"})
                other = group.create_task(host.drive(waiting.run_id))
                await asyncio.sleep(0.3)
                clock.advance(0.8)
                assert await other == "succeeded"
                assert await driving == "succeeded"
            days = dict(till.rows("SELECT bucket, spent_micro_usd FROM meter WHERE scope = 'fleet'"))
            assert days == {"2026-01-01": 86_000, "2026-01-02": 1_400}

    asyncio.run(main())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.02)


# What whoever submits a run may say


def test_a_run_is_given_a_budget_and_never_more_than_its_contract_allows(
    vault_dir: Path, provider: ProviderProcess
) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big", budget={"usd_per_run": 0.5})
    provider.plan(Act(text="fine"))

    async def main() -> None:
        async with till.host() as host:
            for given, expected in ((0.06, 60_000), (9.0, 500_000)):
                run_id = await go(host, budget_usd=given)
                created = next(body for body in await bodies(host, run_id) if isinstance(body, RunCreated))
                assert [pool.micro_usd for pool in created.pools] == [expected]
            run_id = await go(host, state="refused", budget_usd=0.001)
            error = (await host.report(run_id)).error
            assert error is not None
            assert "$0.001" in error.message

    asyncio.run(main())


def test_a_critical_run_passes_a_cap_by_what_it_was_granted_and_no_more(
    vault_dir: Path, provider: ProviderProcess
) -> None:
    till = Till(vault_dir, provider, budget={"usd_per_day": 0.1})
    till.code("parent", KIDS.replace("range(20)", "range(2)"), requires={"spawn_agents": True})
    till.prompt("advisor", "oa:big")
    provider.plan(Act(text="fine", usage=ActUsage(1_000, 1_900)), Act(text="fine", usage=ActUsage(1_000, 1_000)))

    async def main() -> None:
        async with till.host() as host:
            await go(host)
            await go(host, state="refused")
            run_id = await go(host, "parent", critical_usd=0.15, why="the report is due", principal="owner")
            created = next(body for body in await bodies(host, run_id) if isinstance(body, RunCreated))
            assert created.critical is not None
            assert (created.critical.micro_usd, created.critical.by) == (150_000, "owner")
            assert created.critical.why == "the report is due"
            assert json.loads(bytes((await host.report(run_id)).output))["found"] == ["fine", "fine"]
            (cap,) = fleet_caps(host.clock.now_us(), UTC, host.config.budget)
            (balance,) = await host.ledger.balances((cap,))
            assert balance.debt(cap) == 86_000
            await go(host, state="refused", critical_usd=0.08, why="no room even so")

    asyncio.run(main())


def test_a_critical_run_is_under_the_same_rules(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big")
    rule = {"id": "no-models", "match": {"kind": "model"}, "decision": "deny", "reason": "not today"}
    (vault_dir / "policy.yaml").write_text(json.dumps({"rules": [rule]}))
    provider.plan(Act(text="never"))

    async def main() -> None:
        async with till.host() as host:
            run_id = await go(host, state="refused", critical_usd=100.0, why="it must be")
            error = (await host.report(run_id)).error
            assert error is not None
            assert error.code == "policy_refused"

    asyncio.run(main())
    assert not provider.record().seen


@pytest.mark.parametrize(
    "options", [{"budget_usd": float("nan")}, {"budget_usd": -1.0}, {"critical_usd": float("inf"), "why": "x"}]
)
def test_what_is_no_amount_is_refused_before_there_is_a_run(
    vault_dir: Path, provider: ProviderProcess, options: dict[str, object]
) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big")

    async def main() -> None:
        async with till.host() as host:
            with pytest.raises(Invalid):
                await host.submit("advisor", {"text": "go"}, **options)  # type: ignore[arg-type]
            with pytest.raises(Invalid, match="say why"):
                await host.submit("advisor", {"text": "go"}, critical_usd=1.0)

    asyncio.run(main())


def test_the_python_api_takes_a_budget(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big")
    provider.plan(Act(text="fine"))
    with Atlas(vault_dir) as atlas:
        assert atlas.run("advisor", "go", budget_usd=0.5).state == "succeeded"
        refused = atlas.run("advisor", "go", budget_usd=0.001)
        assert refused.state == "refused"
    assert len(provider.record().seen) == 1


def atlas(root: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "atlas", *words, "--vault", str(root)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_the_command_line_gives_budgets_and_says_what_was_spent(vault_dir: Path, provider: ProviderProcess) -> None:
    till = Till(vault_dir, provider)
    till.prompt("advisor", "oa:big", budget={"usd_per_day": 0.1, "warn_at": [0.8]})
    provider.plan(Act(text="fine", usage=ActUsage(1_001, 1_903)))
    code, _, said = atlas(vault_dir, "run", "advisor", "go", "--budget", "0.09")
    assert code == 0, said
    assert "alert  agent advisor of owner usd_per_day: 80% reached" in said
    found = json.loads(atlas(vault_dir, "costs", "--json")[1])
    assert round(found["total"]["cost_usd"] * 1e6) == till.bill == 86_130
    code, _, said = atlas(vault_dir, "run", "advisor", "go")
    assert (code, "budget_refused" in said, "alert" in said) == (3, True, False)
    assert atlas(vault_dir, "run", "advisor", "go", "--critical", "0.2")[0] == 2
    code, _, said = atlas(vault_dir, "run", "advisor", "go", "--critical", "0.2", "--why", "the audit is today")
    assert code == 0, said
    shown = atlas(vault_dir, "show", "@last")[1]
    assert "the audit is today" in shown
    assert "$0.20" in shown
    for bad in (("--budget", "nan"), ("--budget", "-1"), ("--critical", "inf", "--why", "x"), ("--why", "x")):
        assert atlas(vault_dir, "run", "advisor", "go", *bad)[0] == 2
