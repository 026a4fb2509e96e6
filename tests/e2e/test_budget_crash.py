"""kill -9 between a model call and its settlement: recovered elsewhere, never below the provider's bill, never above a cap."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from till import Till, model_effects

from atlas.control.report import RunReport
from atlas.testing.provider import ProviderProcess
from atlas.testing.provider_wire import Act, ActCall, ActUsage

CAP = 1_000_000
NOTE = ActCall("note", '{"kind": "fact", "text": "water is wet"}')
ACTS = (Act(tool_calls=(NOTE,), usage=ActUsage(700, 61, 200, 300)), Act(tool_calls=(NOTE,)), Act(text="done"))
POINTS = (
    "code.started:1",
    *(f"{point}:{number}" for point in ("intent.before", "intent.durable", "perform.sent") for number in (1, 3)),
    *(f"{point}:{number}" for point in ("receipt.before", "receipt.written") for number in (1, 2, 3)),
    *(f"commit.{side}:{number}" for side in ("before", "after") for number in range(2, 6)),
    "end.before:1",
    "end.durable:1",
)


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderProcess]:
    with ProviderProcess() as process:
        yield process


def started(root: Path, fault: str = "", agent: str = "advisor") -> subprocess.Popen[bytes]:
    """`atlas run` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "atlas", "run", agent, "go", "--key", "k", "--vault", str(root), "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "ATLAS_FAULT": fault},
    )


def killed_at(root: Path, point: str, agent: str = "advisor") -> None:
    """Runs until the process kills itself there."""
    with started(root, f"{point}:kill", agent) as process:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, said.decode()


def recovered(till: Till, agent: str = "advisor") -> tuple[RunReport, list[str]]:
    """The same request again, in this process: how the run ended, and its model calls."""

    async def main() -> tuple[RunReport, list[str]]:
        async with till.host() as host:
            submitted = await host.submit(agent, {"text": "go"}, key="k")
            await host.drive(submitted.run_id)
            report = await host.report(submitted.run_id)
            if report.state == "succeeded":
                assert (await host.replay(submitted.run_id)).identical
            assert (await host.verify(submitted.run_id)).ok
            return report, await model_effects(host, submitted.run_id)

    return asyncio.run(main())


def assert_books(till: Till, run_id: str, cap: int = CAP) -> None:
    """Nothing is reserved any more, no total is below the bill, and what is above it is marked as estimated."""
    spent, bill = till.spent(), till.bill
    (estimated,) = till.rows("SELECT sum(estimated_micro_usd) FROM run")[0]
    assert till.holds() == 0
    assert spent >= bill
    assert spent - bill <= estimated
    assert till.meter("fleet") == (spent, 0)
    assert till.rows("SELECT sum(cost_micro_usd) FROM spend") == [(spent,)]
    till.assert_never_above(f"tree/{run_id}", cap)


@pytest.mark.parametrize("point", POINTS)
def test_a_turn_killed_at_this_point_is_paid_for_and_finishes(
    tmp_path: Path, provider: ProviderProcess, point: str
) -> None:
    till = Till(tmp_path / "vault", provider)
    till.prompt("advisor", "an:big", budget={"usd_per_run": CAP / 1e6})
    provider.plan(*ACTS, by="turn")
    killed_at(till.root, point)
    report, effects = recovered(till)
    assert (report.state, report.text) == ("succeeded", "done"), report.error
    assert_books(till, report.run_id)
    assert [effect for effect in effects if effect.endswith("received")] == [f"model:{n} received" for n in (1, 2, 3)]
    lost = len([effect for effect in effects if effect.endswith("intended")]) - 3
    assert lost in (0, 1)
    if not lost:
        assert till.spent() == till.bill
    assert round(report.cost_usd * 1e6) == till.spent()


def test_a_call_that_is_killed_while_the_model_speaks_is_counted_in_full(
    tmp_path: Path, provider: ProviderProcess
) -> None:
    till = Till(tmp_path / "vault", provider)
    till.prompt("advisor", "oa:big", budget={"usd_per_run": CAP / 1e6})
    provider.plan(Act(text="x" * 7_000, pause_at=2_000, pause_s=30), Act(text="done"))
    with started(till.root) as process:
        until_asked(provider)
        process.kill()
        process.communicate(timeout=60)
    while provider.record().open:
        time.sleep(0.02)
    assert till.bill > 70_000
    report, effects = recovered(till)
    assert (report.state, report.text) == ("succeeded", "done"), report.error
    assert effects == ["model:1 intended", "model:1 intended", "model:1 received"]
    assert_books(till, report.run_id)


def until_asked(provider: ProviderProcess) -> None:
    deadline = time.monotonic() + 60
    while not provider.record().open:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_lost_call_for_which_there_is_no_money_twice_is_refused_and_does_not_wait_for_itself(
    tmp_path: Path, provider: ProviderProcess
) -> None:
    till = Till(tmp_path / "vault", provider)
    till.prompt("advisor", "oa:big", budget={"usd_per_run": 0.1})
    provider.plan(Act(text="done"))
    killed_at(till.root, "receipt.before:1")
    began = time.monotonic()
    report, effects = recovered(till)
    assert time.monotonic() - began < 20
    assert report.state == "refused"
    assert report.error is not None
    assert report.error.code == "budget_refused"
    assert effects == ["model:1 intended", "model:1 failed ~"]
    assert len(provider.record().seen) == 1
    assert_books(till, report.run_id, 100_000)


FAN = """
from atlas import AgentBase

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Fan(AgentBase):
    async def execute(self, input, context):
        one = await context.generate(SCHEMA, "a number", tier="oa:big")
        kids = await context.spawn_many([("kid", {"text": str(n)}) for n in range(3)])
        return {"text": f"{one['n']} {len(kids)}"}
"""


@pytest.mark.parametrize(
    "point",
    [*(f"intent.durable:{n}" for n in (1, 2, 4)), *(f"receipt.before:{n}" for n in (1, 3)), "commit.after:9"],
)
def test_a_tree_killed_at_this_point_is_paid_for_and_finishes(
    tmp_path: Path, provider: ProviderProcess, point: str
) -> None:
    till = Till(tmp_path / "vault", provider)
    till.code("fan", FAN, requires={"spawn_agents": True}, budget={"usd_per_run": CAP / 1e6})
    till.prompt("kid", "an:big", budget={"usd_per_run": 0.5})
    provider.plan(Act(text='{"n": 3}'))
    killed_at(till.root, point, "fan")
    report, _ = recovered(till, "fan")
    assert (report.state, report.text) == ("succeeded", "3 3"), report.error
    assert_books(till, report.run_id)


def test_a_process_that_is_told_twice_to_stop_leaves_its_call_to_be_counted_in_full(
    tmp_path: Path, provider: ProviderProcess
) -> None:
    till = Till(tmp_path / "vault", provider)
    till.prompt("advisor", "an:big", budget={"usd_per_run": CAP / 1e6})
    provider.plan(Act(text="x" * 7_000, pause_at=2_000, pause_s=30), Act(text="done"))
    with started(till.root) as process:
        until_asked(provider)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
    report, effects = recovered(till)
    assert (report.state, report.text) == ("succeeded", "done"), report.error
    assert effects == ["model:1 intended", "model:1 intended", "model:1 received"]
    assert_books(till, report.run_id)


def test_a_run_cancelled_from_another_process_is_paid_for(tmp_path: Path, provider: ProviderProcess) -> None:
    till = Till(tmp_path / "vault", provider)
    till.prompt("advisor", "an:big", budget={"usd_per_run": CAP / 1e6})
    provider.plan(Act(text="x" * 7_000, pause_at=2_000, pause_s=30))
    with started(till.root) as process:
        until_asked(provider)
        cancel = [sys.executable, "-m", "atlas", "cancel", "@last", "--vault", str(till.root)]
        assert subprocess.run(cancel, capture_output=True, timeout=60, check=False).returncode in (0, 5)
        process.communicate(timeout=60)
        assert process.returncode == 5
    while provider.record().open:
        time.sleep(0.02)
    ((run_id, state),) = till.rows("SELECT run_id, state FROM run")
    assert state == "cancelled"
    assert_books(till, run_id)
    assert len(provider.record().seen) == 1


def test_a_lost_call_of_a_run_that_nobody_continues_is_counted_in_full_at_its_end(
    tmp_path: Path, provider: ProviderProcess
) -> None:
    till = Till(tmp_path / "vault", provider)
    till.prompt("advisor", "an:big", budget={"usd_per_run": CAP / 1e6})
    provider.plan(*ACTS, by="turn")
    killed_at(till.root, "receipt.before:2")
    assert till.holds() == 1

    async def main() -> None:
        async with till.host() as host:
            row = await host.find_run("@last")
            assert await host.cancel(row.run_id, "enough") == "cancelled"
            assert (await host.verify(row.run_id)).ok
            assert (await model_effects(host, row.run_id))[-2:] == ["model:2 intended", "model:2 failed ~"]

    asyncio.run(main())
    (estimated,) = till.rows("SELECT estimated_micro_usd FROM run")[0]
    assert (till.holds(), len(provider.record().seen)) == (0, 2)
    assert till.spent() >= till.bill
    assert estimated > 0
    assert till.meter("fleet") == (till.spent(), 0)


def test_a_lost_call_for_an_answer_in_a_schema_is_asked_again_as_it_was(
    tmp_path: Path, provider: ProviderProcess
) -> None:
    till = Till(tmp_path / "vault", provider)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    till.prompt("advisor", "oa:big", budget={"usd_per_run": CAP / 1e6}, output={"schema": schema})
    provider.plan(Act(text="no json"), Act(text='{"n": 3}'))
    killed_at(till.root, "receipt.before:2")
    report, _ = recovered(till)
    assert (report.state, bytes(report.output)) == ("succeeded", b'{"n": 3}'), report.error
    first, second, third = (seen.body for seen in provider.record().seen)
    assert first != second == third
    assert_books(till, report.run_id)


def judged_till(root: Path, provider: ProviderProcess) -> Till:
    """An agent whose every question to its model is looked at by another one first."""
    till = Till(root, provider)
    till.prompt("advisor", "oa:big", budget={"usd_per_run": CAP / 1e6})
    judge = {"by": "model", "model": "oa:small"}
    rule = {"id": "look", "match": {"kind": "model"}, "decision": "allow", "judge": judge, "reason": "to be sure"}
    (till.root / "policy.yaml").write_text(json.dumps({"rules": [rule]}))
    return till


@pytest.mark.parametrize("number", range(2, 6))
def test_a_second_opinion_is_had_anew_after_a_crash_at_any_commit_before_it_is_on_record(
    tmp_path: Path, provider: ProviderProcess, number: int
) -> None:
    till = judged_till(tmp_path / "vault", provider)
    fine = Act(text='{"verdict": "allow", "reason": "fine"}')
    provider.plan(fine, fine, Act(text="done"))
    killed_at(till.root, f"commit.after:{number}")
    report, _ = recovered(till)
    assert report.state == "succeeded", report.error
    assert till.holds() == 0
    assert till.spent() >= till.bill


def test_a_second_opinion_lost_with_its_process_is_paid_for_and_the_record_still_verifies(
    tmp_path: Path, provider: ProviderProcess
) -> None:
    till = judged_till(tmp_path / "vault", provider)
    provider.plan(Act(text="x" * 800, pause_at=300, pause_s=30), Act(text='{"verdict": "allow", "reason": "fine"}'))
    with started(till.root) as process:
        until_asked(provider)
        process.kill()
        process.communicate(timeout=60)
    while provider.record().open:
        time.sleep(0.02)
    report, effects = recovered(till)
    assert (report.state, effects) == ("succeeded", ["model:1 intended", "model:1 received"]), report.error
    assert till.holds() == 0
    assert till.spent() >= till.bill
    assert till.meter("fleet") == (till.spent(), 0)
    till.change("UPDATE run SET cost_micro_usd = cost_micro_usd + estimated_micro_usd + 1")

    async def main() -> None:
        async with till.host() as host:
            assert not (await host.verify(report.run_id)).ok

    asyncio.run(main())
