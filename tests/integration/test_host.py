"""A whole run through ledger, driver and code in one process: every way it can go."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agents_for_tests import AGENTS, WORLD, Worker

from atlas.app import SystemClock, open_ephemeral, open_host
from atlas.control.host import Host
from atlas.engine.agent import AgentBase
from atlas.kernel.errors import Conflict, Invalid, NotFound
from atlas.kernel.event import AttemptStarted, EffectIntended, Payload, decode_body, draft
from atlas.kernel.port import Wake
from atlas.kernel.run import Append, RunQuery
from atlas.ledger.memory import MemoryLedger


@asynccontextmanager
async def host_at(root: Path, config: str = "", agents: tuple[type[AgentBase], ...] = AGENTS) -> AsyncIterator[Host]:
    root.mkdir(exist_ok=True)
    (root / "atlas.config.yaml").write_text(config)
    async with open_host(root, {}, agents=agents) as host:
        yield host


def in_host(root: Path, work: Callable[[Host], Awaitable[None]], config: str = "") -> None:
    async def main() -> None:
        async with asyncio.timeout(60), host_at(root, config) as host:
            await work(host)

    asyncio.run(main())


@pytest.fixture
def log() -> str:
    return uuid.uuid4().hex


async def start(host: Host, log: str, *do: str, **options: Any) -> str:
    return (await host.submit("worker", {"log": log, "do": list(do)}, **options)).run_id


async def finish(host: Host, log: str, *do: str, **options: Any) -> tuple[str, str]:
    run_id = await start(host, log, *do, **options)
    return run_id, await host.drive(run_id)


async def kinds(host: Host, run_id: str) -> list[str]:
    return [event.kind for event in await host.ledger.events(run_id)]


async def error_code(host: Host, run_id: str) -> str:
    error = (await host.report(run_id)).error
    return error.code if error else ""


def test_a_run_is_its_events(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, state = await finish(host, log, "write:a", "again:b", "now")
        assert state == "succeeded"
        assert await kinds(host, run_id) == [
            "run.created",
            "attempt.started",
            "effect.intended",
            "effect.received",
            "effect.intended",
            "effect.received",
            "value.recorded",
            "run.ended",
        ]
        report = await host.report(run_id)
        assert msgspec.json.decode(report.output)["results"][:2] == [{"touched": "a"}, {"touched": "b"}]
        assert report.steps == 2
        assert WORLD[log] == ["a", "b"]
        assert (await host.verify(None)).ok
        replayed = await host.replay(run_id)
        assert (replayed.identical, replayed.decisions, replayed.code) == (True, 2, "identical")
        assert WORLD[log] == ["a", "b"]

    in_host(vault_dir, work)


def test_what_is_told_of_a_run_at_its_end_is_what_its_record_tells(vault_dir: Path, log: str) -> None:
    async def work(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        for do in (["write:a"], ["spawn:2", "write:b"], ["write:c", "fail"]):
            run_id, _ = await finish(host, log, *do)
            with monkeypatch.context() as without:
                without.setattr(host.ledger, "events", None)
                at_once = await host.report(run_id)
            assert at_once == await host.report(run_id)
        forked = await host.fork(run_id, at=4)
        await host.drive(forked.run_id)
        assert await host.report(forked.run_id) == await host.report(forked.run_id)

    with pytest.MonkeyPatch.context() as monkeypatch:
        in_host(vault_dir, lambda host: work(host, monkeypatch))


def test_a_run_that_is_submitted_to_a_driver_is_taken_in_the_same_commit(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        await finish(host, log, "write:a")
        with closing(sqlite3.connect(vault_dir / ".atlas" / "ledger.db")) as database:
            for _ in range(50):
                run_id = await start(host, log, "write:b")
                [[state]] = database.execute("SELECT state FROM run WHERE run_id = ?", (run_id,)).fetchall()
                assert await host.drive(run_id) == "succeeded"
                if state == "running":
                    return
                await asyncio.sleep(0.05)  # a driver that is busy with another claim takes it a moment later
        pytest.fail("no run was taken in the commit that submitted it")

    in_host(vault_dir, work)


def test_input_is_checked_with_defaults_and_output_too(vault_dir: Path) -> None:
    async def work(host: Host) -> None:
        with pytest.raises(Invalid, match=r"\$\.n"):
            await host.submit("typed", {"n": "one"})
        with pytest.raises(NotFound):
            await host.submit("tpyed", {"n": 1})
        good = await host.submit("typed", {"n": 1})
        assert await host.drive(good.run_id) == "succeeded"
        assert bytes((await host.report(good.run_id)).output) == b'{"sum":8}'
        bad = await host.submit("typed", {"n": 100})
        assert await host.drive(bad.run_id) == "failed"
        error = (await host.report(bad.run_id)).error
        assert error is not None
        assert error.code == "output_invalid"
        assert "$.sum" in error.message

    in_host(vault_dir, work)


def test_a_key_names_one_run(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        first, _ = await finish(host, log, "write:a", key="k")
        second, state = await finish(host, log, "write:a", key="k")
        assert (second, state) == (first, "succeeded")
        assert WORLD[log] == ["a"]
        with pytest.raises(Conflict):
            await start(host, log, "write:b", key="k")
        other = await start(host, log, "write:a", key="k", principal="bob")
        assert other != first

    in_host(vault_dir, work)


def test_turns_of_a_session_run_one_after_the_other(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        turns = [await start(host, log, "sleep:0.05", f"write:{n}", session_id="ses_x") for n in range(4)]
        for run_id in turns:
            assert await host.drive(run_id) == "succeeded"
        assert WORLD[log] == ["0", "1", "2", "3"]
        assert [(await host.ledger.run(run_id)).turn for run_id in turns] == [1, 2, 3, 4]

    in_host(vault_dir, work)


def test_an_approval_parks_the_run_and_lets_it_go_on(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, state = await finish(host, log, "write:a", "mail:b")
        assert state == "waiting"
        assert (await host.ledger.run(run_id)).owner == ""
        (entry,) = await host.inbox()
        assert (entry.run_id, entry.name, bytes(entry.args)) == (run_id, "mail", msgspec.json.encode([log, "b"]))
        await host.answer(run_id, entry.effect, approved=True)
        with pytest.raises(Conflict, match="answered already"):
            await host.answer(run_id, entry.effect, approved=False)
        assert await host.drive(run_id) == "succeeded"
        assert WORLD[log] == ["a", "b"]
        assert await host.inbox() == []
        assert (await host.replay(run_id)).identical

    in_host(vault_dir, work)


def test_a_denial_refuses_the_run_that_does_not_catch_it(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, _ = await finish(host, log, "mail:b")
        (entry,) = await host.inbox()
        await host.answer(run_id, entry.effect, approved=False, reason="not today")
        assert await host.drive(run_id) == "refused"
        error = (await host.report(run_id)).error
        assert error is not None
        assert "not today" in error.message
        assert log not in WORLD

    in_host(vault_dir, work)


@pytest.mark.parametrize("word, code", [("mail:b", "approval_required"), ("risk:b", "policy_refused")])
def test_unattended_and_high_risk_effects_are_refused(vault_dir: Path, log: str, word: str, code: str) -> None:
    async def work(host: Host) -> None:
        run_id, state = await finish(host, log, word, unattended=True)
        assert (state, await error_code(host, run_id)) == ("refused", code)
        assert log not in WORLD
        assert "effect.refused" in await kinds(host, run_id)
        assert (await host.replay(run_id)).identical

    in_host(vault_dir, work)


async def crash_in_effect(host: Host, log: str, word: str, step: str, **changes: Any) -> str:
    """Leaves a run as a process does that dies right after the intent of its first effect became durable."""
    run_id = await start(host, log, word)
    await die_in_effect(host, run_id, step, [log, word.split(":")[1]], **changes)
    return run_id


async def die_in_effect(host: Host, run_id: str, step: str, given: list[str], **changes: Any) -> None:
    """Claims the run, writes the intent of one step and is gone."""
    agent = (await host.ledger.run(run_id)).agent
    (claimed,) = await host.ledger.claim(
        "dead", limit=1, lease_s=60, max_running=9, places=(f"inline:{agent}",), run_id=run_id
    )
    args = msgspec.json.encode(given)
    hashed = hashlib.sha256(args).hexdigest()
    intent = EffectIntended(
        f"step:{step}:{hashed[:12]}:0",
        "step",
        step,
        Payload(msgspec.Raw(args), size=len(args)),
        hashed,
        changes.pop("effect_class", "reversible_write"),
        **changes,
    )
    now = host.clock.now_us()
    facts = (AttemptStarted(1, "dead"), intent)
    await host.ledger.append(Append(claimed.lease, tuple(draft(fact, now, "owner") for fact in facts)))
    await host.ledger.expire("dead")


def test_an_intent_without_receipt_waits_for_a_person(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id = await crash_in_effect(host, log, "write:a", "write")
        assert await host.drive(run_id) == "in_doubt"
        assert log not in WORLD
        (entry,) = await host.inbox()
        assert (entry.kind, entry.name) == ("doubt", "write")
        await host.resolve(run_id, entry.effect, "done", b'{"touched":"by hand"}')
        assert await host.drive(run_id) == "succeeded"
        assert bytes((await host.report(run_id)).output) == b'{"results":[{"touched":"by hand"}]}'
        assert log not in WORLD
        assert (await host.replay(run_id)).identical
        assert (await host.verify(None)).ok

    in_host(vault_dir, work)


def test_what_was_not_done_is_performed_once(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id = await crash_in_effect(host, log, "write:a", "write")
        await host.drive(run_id)
        (entry,) = await host.inbox()
        await host.resolve(run_id, entry.effect, "not_done")
        assert await host.drive(run_id) == "succeeded"
        assert WORLD[log] == ["a"]
        # Intended anew, so that a crash while it is performed puts it in doubt again.
        assert (await kinds(host, run_id)).count("effect.intended") == 2

    in_host(vault_dir, work)


def test_an_abandoned_effect_ends_the_run(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id = await crash_in_effect(host, log, "write:a", "write")
        await host.drive(run_id)
        (entry,) = await host.inbox()
        await host.resolve(run_id, entry.effect, "abandon")
        assert await host.drive(run_id) == "failed"
        assert await error_code(host, run_id) == "effect_abandoned"
        assert await host.inbox() == []
        replayed = await host.replay(run_id)
        assert (replayed.identical, replayed.code) == (True, "skipped: the run ended with effect_abandoned")

    in_host(vault_dir, work)


@pytest.mark.parametrize("happened", [True, False])
def test_a_probe_settles_an_open_intent_without_a_person(vault_dir: Path, log: str, happened: bool) -> None:
    async def work(host: Host) -> None:
        run_id = await crash_in_effect(host, log, "probed:a", "probed", can_probe=True)
        if happened:
            WORLD[log] = ["a"]
        assert await host.drive(run_id) == "succeeded"
        assert WORLD[log] == ["a"]
        expected = {"probed": "a"} if happened else {"touched": "a"}
        assert msgspec.json.decode((await host.report(run_id)).output) == {"results": [expected]}

    in_host(vault_dir, work)


def test_an_idempotent_effect_is_repeated_without_a_new_intent(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id = await crash_in_effect(host, log, "again:a", "again", idempotent=True)
        assert await host.drive(run_id) == "succeeded"
        assert WORLD[log] == ["a"]
        assert (await kinds(host, run_id)).count("effect.intended") == 1

    in_host(vault_dir, work)


def test_code_that_asks_for_something_else_fails_clearly(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id = await crash_in_effect(host, log, "again:a", "other-step", idempotent=True)
        assert await host.drive(run_id) == "failed"
        assert await error_code(host, run_id) == "replay_mismatch"
        assert log not in WORLD

    in_host(vault_dir, work)


def test_cancelling_reaches_the_children(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id = await start(host, log, "kid-hangs")
        driving = asyncio.ensure_future(host.drive(run_id))
        while (
            len((await host.runs(RunQuery(root_run_id=run_id, states=("running",)))).runs) < 1
            or len((await host.runs(RunQuery(root_run_id=run_id))).runs) < 2
        ):
            await asyncio.sleep(0.01)
        assert await host.cancel(run_id, "enough") == "cancelled"
        assert await driving == "cancelled"
        child = next(row for row in (await host.runs(RunQuery(root_run_id=run_id))).runs if row.depth == 1)
        assert await host.drive(child.run_id) == "cancelled"

    in_host(vault_dir, work)


def test_a_queued_run_can_be_cancelled_before_it_ran(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id = await start(host, log, "write:a")
        assert await host.cancel(run_id, "changed my mind") == "cancelled"
        assert log not in WORLD
        assert "attempt.started" not in await kinds(host, run_id)

    in_host(vault_dir, work)


def test_time_limits_end_a_run(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, state = await finish(host, log, "hang")
        assert (state, await error_code(host, run_id)) == ("failed", "timeout")

    in_host(vault_dir, work, "execution: {timeouts: {agent: 0.3}}")


def test_a_tree_has_a_time_limit_of_its_own(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, state = await finish(host, log, "kid-hangs")
        assert (state, await error_code(host, run_id)) == ("failed", "tree_timeout")
        page = await host.runs(RunQuery(root_run_id=run_id))
        child = next(row for row in page.runs if row.depth == 1)
        assert await host.drive(child.run_id) == "cancelled"

    in_host(vault_dir, work, "execution: {timeouts: {agent: 30, chain: 1}, cancel_grace_s: 0.2}")


@pytest.mark.parametrize(
    "config, do, code",
    [
        ("execution: {max_spawn_depth: 2}", "deep:3", "max_spawn_depth"),
        ("execution: {max_children_per_run: 3}", "spawn:4", "max_children_per_run"),
        ("execution: {max_runs_per_tree: 3}", "spawn:4", "max_runs_per_tree"),
        ("execution: {max_spawns_per_minute: 2}", "spawn:4", "spawn_rate"),
    ],
)
def test_spawn_limits_refuse_and_are_recorded(vault_dir: Path, log: str, config: str, do: str, code: str) -> None:
    async def work(host: Host) -> None:
        run_id, state = await finish(host, log, do)
        assert state in ("refused", "failed")
        rows = (await host.runs(RunQuery(root_run_id=run_id))).runs
        refusals = [
            decode_body(event.kind, event.version, event.body).error.code  # type: ignore[union-attr]
            for row in rows
            for event in await host.ledger.events(row.run_id)
            if event.kind == "effect.refused"
        ]
        assert refusals
        assert set(refusals) == {code}

    in_host(vault_dir, work, config)


def test_an_agent_without_permission_cannot_spawn(vault_dir: Path) -> None:
    async def work(host: Host) -> None:
        run = await host.submit("loner", {})
        assert await host.drive(run.run_id) == "refused"
        assert await error_code(host, run.run_id) == "spawn_not_allowed"

    in_host(vault_dir, work)


def test_an_agent_that_keeps_failing_is_left_alone(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        codes = []
        for _ in range(4):
            run_id, _ = await finish(host, log, "kid-fails")
            codes.append(await error_code(host, run_id))
        assert codes[:3] == ["agent_failed"] * 3
        assert codes[3] == "circuit_open"

    in_host(vault_dir, work)


def test_parents_that_wait_for_children_never_deadlock(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        parents = [await start(host, log, "spawn:1") for _ in range(20)]
        for run_id in parents:
            assert await host.drive(run_id) == "succeeded"
        assert len(WORLD[log]) == 20

    in_host(vault_dir, work, "execution: {max_concurrent_agents: 2}")


def test_never_more_runs_at_once_than_allowed(vault_dir: Path, log: str) -> None:
    peak = 0
    now = 0

    class Counting(Worker):
        """Counts how many of itself run at the same time."""

        async def execute(self, input: dict[str, Any], context: Any) -> dict[str, Any]:
            nonlocal peak, now
            now += 1
            peak = max(peak, now)
            await asyncio.sleep(0.02)
            now -= 1
            return {}

    async def main() -> None:
        async with host_at(vault_dir, "execution: {max_concurrent_agents: 3}", (Counting,)) as host:
            runs = [(await host.submit("worker", {})).run_id for _ in range(12)]
            for run_id in runs:
                await host.drive(run_id)

    asyncio.run(main())
    assert 2 <= peak <= 4  # the run that is asked for by name may come on top


def test_what_there_was_no_place_for_is_taken_when_one_is_given_back() -> None:
    begun: list[str] = []
    all_begun = asyncio.Event()

    class Counting(Worker):
        """Says that it runs."""

        async def execute(self, input: dict[str, Any], context: Any) -> dict[str, Any]:
            begun.append(context.run_id)
            if len(begun) == 50:
                all_begun.set()
            return {}

    class Deaf(MemoryLedger):
        """Its waiters hear of no commit, as when the news of one is lost."""

        @asynccontextmanager
        async def wake(self, *, every_commit: bool = False) -> AsyncIterator[Wake]:
            yield Silence()

    class Silence:
        async def wait(self, timeout_s: float) -> bool:
            await asyncio.Event().wait()
            return True

    async def main() -> None:
        async with open_ephemeral({}, agents=(Counting,), ledger=Deaf(SystemClock())) as host:
            for _ in range(50):  # there are twenty places
                await host.submit("worker", {})
            host.start_driving()
            await all_begun.wait()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["effect.intended", "effect.asked"])
def test_code_that_ends_while_a_call_of_its_own_is_open_replays(vault_dir: Path, kind: str) -> None:
    others: list[asyncio.Task[Any]] = []

    class Hasty(AgentBase):
        """Does not wait for its other call."""

        contract = {"name": "hasty", "version": "1.0.0", "description": "does not wait"}

        async def execute(self, input: Any, context: Any) -> Any:
            effect = "external_side_effect" if kind == "effect.asked" else "read_only"
            other = context.step("other", asyncio.sleep, 30, effect=effect)
            others.append(asyncio.get_running_loop().create_task(other))
            await context.step("quick", time.sleep, 0.1, effect="read_only")
            raise ValueError("told to fail")

    async def main() -> None:
        async with asyncio.timeout(60), host_at(vault_dir, agents=(Hasty,)) as host:
            run_id = (await host.submit("hasty", {})).run_id
            assert await host.drive(run_id) == "failed"
            assert (await kinds(host, run_id)).count("effect.received") == 1
            assert kind in await kinds(host, run_id)
            assert (await host.replay(run_id)).code == "identical"
            for other in others:
                other.cancel()
            await asyncio.wait(others)

    asyncio.run(main())


def test_a_fork_repeats_nothing_and_runs_on(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, _ = await finish(host, log, "write:a", "write:b", "write:c")
        forked = await host.fork(run_id, at=6)
        assert await host.drive(forked.run_id) == "succeeded"
        assert WORLD[log] == ["a", "b", "c", "c"]
        row = await host.ledger.run(forked.run_id)
        original = await host.ledger.run(run_id)
        assert row.session_id != original.session_id
        assert (await host.ledger.session(row.session_id)).branch_of == original.session_id
        with pytest.raises(Conflict, match="cannot be forked"):
            await host.fork(run_id, at=5)
        assert (await host.verify(None)).ok
        assert (await host.replay(forked.run_id)).identical

    in_host(vault_dir, work)


def test_replay_notices_code_that_changed(vault_dir: Path, log: str) -> None:
    class Changed(Worker):
        """Asks for something else than before."""

        async def execute(self, input: dict[str, Any], context: Any) -> dict[str, Any]:
            return {"results": [await context.step("different", lambda: 1)]}

    async def main() -> None:
        async with host_at(vault_dir) as host:
            run_id, _ = await finish(host, log, "write:a")
        async with host_at(vault_dir, "", (Changed,)) as host:
            report = await host.replay(run_id)
            assert not report.identical
            assert "different" in report.code

    asyncio.run(main())


def test_large_values_travel_as_blobs(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, state = await finish(host, log, "big:200000")
        assert state == "succeeded"
        assert msgspec.json.decode((await host.report(run_id)).output) == {"results": ["x" * 200_000]}
        bodies = [event.body for event in await host.ledger.events(run_id)]
        assert max(map(len, bodies)) < 64 * 1024
        assert (await host.replay(run_id)).identical
        blob = next(path for path in (vault_dir / ".atlas" / "blobs").rglob("*") if path.is_file())
        blob.chmod(0o600)
        blob.write_bytes(b"tampered")
        report = await host.verify(run_id)
        assert not report.ok

    in_host(vault_dir, work)


@pytest.mark.parametrize(
    "sql, kind, seq",
    [
        ("UPDATE event SET body = x'7b7d' WHERE seq = 3", "altered", 3),
        ("UPDATE event SET time_us = time_us + 1 WHERE seq = 4", "altered", 4),
        ("DELETE FROM event WHERE seq = 2", "missing", 2),
        ("DELETE FROM event WHERE seq >= 4", "truncated", 4),
    ],
)
def test_verify_names_the_first_broken_event(vault_dir: Path, log: str, sql: str, kind: str, seq: int) -> None:
    async def work(host: Host) -> None:
        run_id, _ = await finish(host, log, "write:a")
        database = sqlite3.connect(vault_dir / ".atlas" / "ledger.db")
        database.execute(sql)
        database.commit()
        database.close()
        for report in (await host.verify(run_id), await host.verify(None)):
            assert not report.ok
            assert (report.findings[0].kind, report.findings[0].seq) == (kind, seq)

    in_host(vault_dir, work)


def test_verify_notices_a_run_that_was_taken_out_whole(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        gone, _ = await finish(host, log, "write:a")
        await finish(host, log, "write:b")
        database = sqlite3.connect(vault_dir / ".atlas" / "ledger.db")
        database.execute("DELETE FROM event WHERE run_id = ?", (gone,))
        database.execute("DELETE FROM run WHERE run_id = ?", (gone,))
        database.commit()
        database.close()
        report = await host.verify(None)
        assert not report.ok
        assert report.findings[0].kind == "missing"

    in_host(vault_dir, work)


def test_an_erased_event_is_said_and_the_chain_holds(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, _ = await finish(host, log, "write:secret")
        await host.erase(run_id, 4)
        report = await host.verify(run_id)
        assert (report.ok, report.erased) == (True, 1)
        assert all(b"touched" not in event.body or event.seq != 4 for event in await host.ledger.events(run_id))

    in_host(vault_dir, work)


def test_a_bug_in_one_run_does_not_end_the_others(vault_dir: Path, log: str) -> None:
    class Broken:
        """An executor with a bug of its own."""

        async def start(self, job: object, receive: object) -> object:
            raise ZeroDivisionError("a bug")

    async def work(host: Host) -> None:
        good = await start(host, log, "sleep:0.1", "write:a")
        bad = await start(host, log, "write:b")
        world = host._driver._world
        usual = world.executor
        patched = msgspec.structs.replace(
            world, executor=lambda state: Broken() if state.run_id == bad else usual(state)
        )
        host._driver._world = patched
        assert await host.drive(bad) == "failed"
        assert await error_code(host, bad) == "fault"
        assert await host.drive(good) == "succeeded"

    in_host(vault_dir, work)


def test_stopping_parks_and_the_next_process_goes_on(vault_dir: Path, log: str) -> None:
    async def main() -> None:
        async with host_at(vault_dir) as host:
            run_id = await start(host, log, "write:a", "sleep:0.4", "write:b")
            driving = asyncio.ensure_future(host.drive(run_id))
            while log not in WORLD:
                await asyncio.sleep(0.01)
            host.stop()
            assert await driving == "queued"
        async with host_at(vault_dir) as host:
            assert await host.drive(run_id) == "succeeded"
            assert WORLD[log] == ["a", "b"]
            assert "run.parked" in await kinds(host, run_id)

    asyncio.run(main())


def test_aborting_leaves_a_consistent_run(vault_dir: Path, log: str) -> None:
    async def main() -> None:
        async with host_at(vault_dir) as host:
            run_id = await start(host, log, "write:a", "hang")
            driving = asyncio.ensure_future(host.drive(run_id))
            while log not in WORLD:
                await asyncio.sleep(0.01)
            await host.abort()
            await driving
        async with host_at(vault_dir) as host:
            assert (await host.verify(None)).ok
            assert await host.cancel(run_id, "done with it") == "cancelled"
            assert WORLD[log] == ["a"]

    asyncio.run(main())


def test_a_parent_whose_child_waits_for_a_person_rests_too(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, state = await finish(host, log, "kid-mails")
        assert state == "waiting"
        rows = (await host.runs(RunQuery(root_run_id=run_id))).runs
        assert {(row.state, row.owner) for row in rows} == {("waiting", "")}
        (entry,) = await host.inbox()
        await host.answer(entry.run_id, entry.effect, approved=True)
        assert await host.drive(run_id) == "succeeded"
        assert WORLD[log] == ["k"]
        assert (await host.replay(run_id)).identical

    in_host(vault_dir, work)


def test_a_stream_follows_a_run_past_its_parking(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, _ = await finish(host, log, "mail:a")
        (entry,) = await host.inbox()
        await host.answer(run_id, entry.effect, approved=True)
        await host.drive(run_id)
        seen = [event.kind async for event, _ in host.follow(run_id)]
        assert "run.parked" in seen
        assert seen[-1] == "run.ended"

    in_host(vault_dir, work)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE run SET state = 'failed'",
        "UPDATE run SET agent = 'evil', principal = 'mallory'",
        "UPDATE run SET steps = 999",
        "UPDATE run SET snapshot = 'other'",
        "UPDATE run SET state = 'queued', ended_us = 0",
    ],
)
def test_verify_notices_a_row_that_says_what_no_event_says(vault_dir: Path, log: str, sql: str) -> None:
    async def work(host: Host) -> None:
        await finish(host, log, "write:a")
        database = sqlite3.connect(vault_dir / ".atlas" / "ledger.db")
        database.execute(sql)
        database.commit()
        database.close()
        report = await host.verify(None)
        assert not report.ok
        assert "row says" in report.findings[0].message

    in_host(vault_dir, work)


@pytest.mark.parametrize("value", [float("nan"), {"a": float("inf")}, {1: 2}, b"x", {"a": {1, 2}}, "\ud800", object()])
def test_an_input_that_is_not_json_is_refused_and_nothing_is_stored(vault_dir: Path, value: object) -> None:
    async def work(host: Host) -> None:
        with pytest.raises(Invalid, match="not JSON"):
            await host.submit("worker", value)
        assert (await host.runs(RunQuery())).runs == ()

    in_host(vault_dir, work)


@pytest.mark.parametrize("option", [{"key": 5}, {"unattended": "x"}, {"priority": "x"}, {"principal": None}])
def test_an_option_of_the_wrong_type_is_refused_before_anything_is_stored(
    vault_dir: Path, option: dict[str, Any]
) -> None:
    async def work(host: Host) -> None:
        with pytest.raises(Invalid, match="wrong type"):
            await host.submit("worker", {"log": "x", "do": []}, **option)
        assert (await host.runs(RunQuery())).runs == ()

    in_host(vault_dir, work)


def test_questions_asked_side_by_side_are_put_together(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        run_id, state = await finish(host, log, "mails:3")
        assert state == "waiting"
        entries = await host.inbox()
        assert len(entries) == 3
        await host.answer(run_id, entries[0].effect, approved=True)
        assert len(await host.inbox()) == 2
        for entry in entries[1:]:
            await host.answer(run_id, entry.effect, approved=True)
        assert await host.drive(run_id) == "succeeded"
        assert sorted(WORLD[log]) == ["0", "1", "2"]

    in_host(vault_dir, work)


def test_thousands_of_steps_side_by_side_cost_what_they_cost_one_by_one(vault_dir: Path, log: str) -> None:
    async def work(host: Host) -> None:
        spent: dict[int, float] = {}
        for count in (500, 4000):
            began = time.process_time()
            _, state = await finish(host, log, f"crowd:{count}")
            spent[count] = (time.process_time() - began) / count
            assert state == "succeeded"
        # Quadratic work would be eight times dearer per step.
        assert spent[4000] < spent[500] * 3

    in_host(vault_dir, work)


def test_a_run_that_cannot_be_executed_here_is_left_for_another_place(vault_dir: Path) -> None:
    async def main() -> None:
        agent = vault_dir / "agents" / "pinned"
        agent.mkdir(parents=True)
        contract = "agent: {name: pinned, version: 1.0.0, description: x}"
        (agent / "agent.yaml").write_text(contract)
        (agent / "agent.py").write_text("from atlas import AgentBase\nclass A(AgentBase): pass\n")
        async with host_at(vault_dir) as host:
            run = await host.submit("pinned", {})
        shutil.rmtree(vault_dir / ".atlas" / "snapshots")
        blobs = vault_dir / ".atlas" / "blobs"
        blobs.rename(vault_dir / "elsewhere")
        async with asyncio.timeout(30), host_at(vault_dir) as host:
            with pytest.raises(NotFound, match="blob"):
                await host.drive(run.run_id)
            row = await host.ledger.run(run.run_id)
            assert (row.state, row.owner) == ("queued", "")
            assert not (await host.verify(run.run_id)).ok

    asyncio.run(main())
