"""The rest of what an agent's code is given: children, notes, recorded values, cancellation, the ways a run ends."""

from __future__ import annotations

import asyncio
import threading
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from atlas.engine.agent import AgentBase, AgentContext, FanoutResult
from atlas.engine.inline import InlineExecutor
from atlas.kernel.code import CallMade, Cancel, FromCode, Noted, ValueTaken
from atlas.kernel.errors import CircuitOpen, ErrorRecord, Invalid, LimitRefused, RunFailed
from unit.engine.fake_driver import FakeDriver, Open, make_job


def play(agent: str, input: Any) -> Any:
    """Child agents: `double` doubles, anything else fails."""
    if agent.startswith("double"):
        return {"n": input["n"] * 2}
    return ErrorRecord("limit_refused" if agent == "limited" else "agent_failed", f"{agent} failed")


# Children


def test_spawn_gives_the_childs_output_and_replays_it(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        return await context.spawn("double", {"n": 4, "a": 1})

    async def main() -> None:
        async with drive(body, spawned=play) as driver:
            assert await driver.output(make_job()) == {"n": 8}
            (call,) = driver.of(CallMade)
            assert (call.kind, call.name, call.effect_class) == ("spawn", "double", "reversible_write")
            assert bytes(call.args) == b'{"agent":"double","input":{"n":4,"a":1}}'
            assert call.effect == f"spawn:double:{call.args_hash[:12]}:0"
            driver.spawned = None
            assert await driver.output(make_job()) == {"n": 8}

    asyncio.run(main())


def test_spawn_with_a_key_is_named_by_it(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        first = await context.spawn("double", {"n": 1}, key="only")
        return [first, await context.spawn("double", {"n": 1}, key="only")]

    async def main() -> None:
        async with drive(body, spawned=play) as driver:
            assert await driver.output(make_job()) == [{"n": 2}, {"n": 2}]
            assert {call.effect for call in driver.of(CallMade)} == {"spawn:double:only"}

    asyncio.run(main())


def test_failed_and_refused_children_raise_their_own_kind_of_error(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        with pytest.raises(RunFailed, match="broken failed"):
            await context.spawn("broken", {})
        with pytest.raises(LimitRefused, match="limited failed"):
            await context.spawn("limited", {})

    async def main() -> None:
        async with drive(body, spawned=play) as driver:
            await driver.output(make_job())

    asyncio.run(main())


def test_spawning_is_asked_for_even_when_it_is_not_allowed(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        await context.spawn("double", {"n": 1})

    async def main() -> None:
        async with drive(body) as driver:
            driver.refused["double"] = ErrorRecord("spawn_not_allowed", "no", "requires.spawn_agents: true")
            error = await driver.error(make_job(may_spawn=False))
            assert (error.code, error.hint) == ("spawn_not_allowed", "requires.spawn_agents: true")

    asyncio.run(main())


def test_many_children_are_all_asked_for_before_the_first_answer_and_keep_their_order(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        return await context.spawn_many([("double", {"n": n}) for n in (3, 1, 2, 1)])

    async def main() -> None:
        async with drive(body, spawned=play) as driver:
            driver.held.add("double")
            await driver.start(make_job())
            await driver.heard(lambda _: len(driver.calls) == 4)
            driver.held.clear()
            for call in reversed(driver.of(CallMade)):
                driver.receive(call)
            finished = await driver.finished
            assert bytes(finished.output) == b'[{"n":6},{"n":2},{"n":4},{"n":2}]'
            effects = [call.effect for call in driver.of(CallMade)[:4]]
            assert [effect[-2:] for effect in effects] == [":0", ":0", ":0", ":1"]

    asyncio.run(main())


def test_many_children_raise_the_first_error_in_order_or_return_all(drive: Open) -> None:
    children: list[tuple[str, dict[str, Any]]] = [("double", {"n": 1}), ("limited", {}), ("broken", {})]

    async def body(context: AgentContext) -> Any:
        with pytest.raises(LimitRefused):
            await context.spawn_many(children)
        results = await context.spawn_many(children, return_errors=True)
        return [getattr(result, "reason", result) for result in results]

    async def main() -> None:
        async with drive(body, spawned=play) as driver:
            assert await driver.output(make_job()) == [{"n": 2}, "limit_refused", "agent_failed"]

    asyncio.run(main())


def test_fanout_crosses_agents_with_inputs(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        results = await context.fanout(["double", "double:1.2.0", "broken"], [{"n": 1}, {"n": 2}])
        assert all(isinstance(result, FanoutResult) for result in results)
        return [[r.agent, r.input["n"], r.output and r.output["n"], r.error and r.error.reason] for r in results]

    async def main() -> None:
        async with drive(body, spawned=play) as driver:
            assert await driver.output(make_job()) == [
                ["double", 1, 2, None],
                ["double", 2, 4, None],
                ["double:1.2.0", 1, 2, None],
                ["double:1.2.0", 2, 4, None],
                ["broken", 1, None, "agent_failed"],
                ["broken", 2, None, "agent_failed"],
            ]

    asyncio.run(main())


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"prompt": 1},
        {"prompt": "hi", "temperature": 2},
        {"prompt": "hi", "schema": "string"},
        {"prompt": "hi", "schema": True},
        {"prompt": "hi", "system": 5},
    ],
)
def test_a_question_to_a_model_that_is_none_is_refused_before_it_is_asked(drive: Open, question: Any) -> None:
    async def body(context: AgentContext) -> Any:
        with pytest.raises(Invalid, match="has a prompt in words"):
            await context.fanout(["lab:small"], [question])

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            assert driver.of(CallMade) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "name", ["double", "org/double:latest", "double:1.2.0", "double:^1.2", "double:~1", "double:2.0.0-rc.1"]
)
def test_fanout_accepts_versions_of_agents(drive: Open, name: str) -> None:
    async def body(context: AgentContext) -> Any:
        return [result.output for result in await context.fanout([name], [{"n": 1}])]

    async def main() -> None:
        async with drive(body, spawned=lambda agent, input: agent) as driver:
            assert await driver.output(make_job()) == [name]

    asyncio.run(main())


# Notes


def test_progress_and_log_reach_the_driver_in_order(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        context.progress(0.25, "a quarter")
        context.log("hello")
        context.log({"not": "text"}, level="warning")
        context.progress(7)
        context.log("half \ud800 a pair")

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            assert driver.of(Noted) == [
                Noted("a quarter", "info", 0.25),
                Noted("hello"),
                Noted("{'not': 'text'}", "warning"),
                Noted("", "info", 1.0),
                Noted("half \\ud800 a pair"),
            ]

    asyncio.run(main())


def test_long_log_line_arrives_whole_in_pieces(drive: Open) -> None:
    line = "0123456789" * 5_000

    async def body(context: AgentContext) -> Any:
        context.log(line)

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            notes = driver.of(Noted)
            assert len(notes) > 1
            assert all(len(note.message) <= 16 * 1024 for note in notes)
            assert "".join(note.message for note in notes) == line

    asyncio.run(main())


def test_wrong_level_and_nan_progress_are_refused(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        with pytest.raises(Invalid, match="log level 'loud'"):
            context.log("x", level="loud")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="NaN"):
            context.progress(float("nan"))

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())

    asyncio.run(main())


def test_log_from_another_thread_reaches_the_driver_on_its_loop(drive: Open) -> None:
    threads: list[int] = []

    async def body(context: AgentContext) -> Any:
        await asyncio.to_thread(context.log, "from a thread")
        await asyncio.sleep(0)

    async def main() -> None:
        async with drive(body) as driver:
            plain = driver.receive

            def receive(message: FromCode) -> None:
                threads.append(threading.get_ident())
                plain(message)

            driver.receive = receive  # type: ignore[method-assign]
            await driver.output(make_job())
            assert driver.of(Noted) == [Noted("from a thread")]
            assert set(threads) == {threading.get_ident()}

    asyncio.run(main())


# Recorded values


def test_time_is_read_once_and_repeated_ever_after(drive: Open) -> None:
    seen: list[list[datetime]] = []

    async def body(context: AgentContext) -> Any:
        seen.append([context.now(), context.now()])

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            taken = driver.of(ValueTaken)
            assert [(value.name, value.occurrence) for value in taken] == [("now", 0), ("now", 1)]
            driver.values["now"].pop()
            await driver.output(make_job(attempt=2))
            assert [value.occurrence for value in driver.of(ValueTaken)] == [1]

    asyncio.run(main())
    (first, second), (first_again, later) = seen
    assert first.tzinfo is UTC
    assert abs(datetime.now(UTC) - first) < timedelta(minutes=1)
    assert first_again == first
    assert later > second


def test_random_numbers_and_uuids_repeat_for_a_seed_and_differ_between_seeds(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        return [context.random(), context.uuid(), context.random(), context.uuid()]

    async def main() -> None:
        async with drive(body) as driver:
            first = await driver.output(make_job(seed="a"))
            assert await driver.output(make_job(seed="a")) == first
            assert await driver.output(make_job(seed="b")) != first
            assert 0 <= first[0] < 1
            assert first[1] != first[3]
            parsed = uuid.UUID(first[1])
            assert (parsed.version, parsed.variant, str(parsed)) == (4, uuid.RFC_4122, first[1])

    asyncio.run(main())


def test_context_knows_who_it_runs_for_and_until_when(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        assert context.deadline == datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
        assert context.time_left_s() > 0
        assert not context.is_cancelled
        ids = [context.run_id, context.root_run_id, context.parent_run_id, context.session_id]
        return [*ids, context.principal, context.agent, context.attempt, context.tokens_left]

    async def main() -> None:
        deadline = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
        async with drive(body) as driver:
            output = await driver.output(make_job(deadline_us=int(deadline.timestamp()) * 1_000_000 + 6, attempt=3))
            assert output == ["run_1", "run_0", "run_0", "ses_1", "owner", "demo", 3, 1000]

    asyncio.run(main())


def test_time_left_never_goes_below_zero(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        return context.time_left_s()

    async def main() -> None:
        async with drive(body) as driver:
            assert await driver.output(make_job(deadline_us=1)) == 0

    asyncio.run(main())


# Cancellation and endings


def test_cancel_ends_the_code_at_its_next_await_and_says_why(drive: Open) -> None:
    seen: list[bool] = []

    async def body(context: AgentContext) -> Any:
        context.log("waiting")
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(context.is_cancelled)

    async def main() -> None:
        async with drive(body) as driver:
            await driver.start(make_job())
            await driver.heard(lambda message: isinstance(message, Noted))
            driver.code.send(Cancel("enough"))
            driver.code.send(Cancel("and again"))
            finished = await driver.finished
            assert finished.error is not None
            assert (finished.error.code, finished.error.message) == ("cancelled", "enough")
            assert seen == [True]

    asyncio.run(main())


def test_code_that_tidies_up_after_a_cancel_may_still_return(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        context.log("waiting")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "what there was"

    async def main() -> None:
        async with drive(body) as driver:
            await driver.start(make_job())
            await driver.heard(lambda message: isinstance(message, Noted))
            driver.code.send(Cancel())
            assert bytes((await driver.finished).output) == b'"what there was"'

    asyncio.run(main())


def test_exception_of_the_code_becomes_the_runs_error_with_its_place(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        return dict[str, int]()["missing"]

    async def main() -> None:
        async with drive(body) as driver:
            error = await driver.error(make_job())
            assert (error.code, error.message) == ("agent_failed", "KeyError: 'missing'")
            assert error.where.startswith(f"{__file__}:")
            assert 'dict[str, int]()["missing"]' in error.detail

    asyncio.run(main())


def test_error_of_a_call_that_the_code_lets_pass_ends_the_run_with_its_code(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        await context.spawn("busy", {})

    async def main() -> None:
        async with drive(body) as driver:
            driver.refused["busy"] = CircuitOpen("busy failed 3 times", hint="Wait 30 s.").record()
            error = await driver.error(make_job())
            assert (error.code, error.hint) == ("circuit_open", "Wait 30 s.")

    asyncio.run(main())


def test_group_of_errors_is_reported_by_its_first_and_counts_the_rest(drive: Open) -> None:
    async def fail(text: str) -> None:
        raise ValueError(text)

    async def body(context: AgentContext) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail("one"))
            group.create_task(fail("two"))

    async def main() -> None:
        async with drive(body) as driver:
            error = await driver.error(make_job())
            assert error.message == "ValueError: one"
            assert "1 more errors" in error.detail

    asyncio.run(main())


def test_code_that_cancels_itself_has_failed(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        raise asyncio.CancelledError

    async def main() -> None:
        async with drive(body) as driver:
            assert (await driver.error(make_job())).code == "agent_failed"

    asyncio.run(main())


def nested(levels: int) -> Any:
    """A dict in a dict in a dict."""
    item: Any = 0
    for _ in range(levels):
        item = {"in": item}
    return item


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error, message",
    [
        (Unprintable(), "Unprintable: (its text cannot be shown)"),
        (ValueError("\udcff"), "ValueError: \\udcff"),
        (ValueError("x" * 100_000), None),
        (ValueError(), "ValueError"),
    ],
    ids=["unprintable", "surrogate", "huge", "empty"],
)
def test_any_exception_can_be_recorded(drive: Open, error: Exception, message: str | None) -> None:
    async def body(context: AgentContext) -> Any:
        raise error

    async def main() -> None:
        async with drive(body) as driver:
            found = (await driver.error(make_job())).message
            assert len(found) <= 2_000
            assert message is None or found == message

    asyncio.run(main())


@pytest.mark.parametrize(
    "output, code",
    [
        ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, "output_not_json"),
        ({"n": float("nan")}, "output_not_json"),
        (nested(5_000), "output_not_json"),
        ("x" * (16 * 1024 * 1024), "output_too_large"),
    ],
    ids=["date", "nan", "deep", "large"],
)
def test_output_that_cannot_be_kept_fails_the_run(drive: Open, output: Any, code: str) -> None:
    async def body(context: AgentContext) -> Any:
        return output

    async def main() -> None:
        async with drive(body) as driver:
            error = await driver.error(make_job())
            assert error.code == code
            assert error.hint

    asyncio.run(main())


def test_input_that_cannot_be_read_fails_the_run(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        pytest.fail("ran")

    async def main() -> None:
        import msgspec

        async with drive(body) as driver:
            assert (await driver.error(make_job(input=msgspec.Raw(b"{")))).code == "input_not_json"

    asyncio.run(main())


def test_plain_function_as_execute_is_accepted() -> None:
    class Plain(AgentBase):
        def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
            context.log("plain")
            return {"got": input}

    async def main() -> None:
        async with InlineExecutor({"demo": Plain}) as executor:
            driver = FakeDriver(executor)
            assert await driver.output(make_job({"a": 1})) == {"got": {"a": 1}}
            assert driver.of(Noted) == [Noted("plain")]

    asyncio.run(main())


def test_nothing_is_said_after_the_end(drive: Open) -> None:
    kept: list[AgentContext] = []

    async def body(context: AgentContext) -> Any:
        kept.append(context)

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            said = len(driver.messages)
            kept[0].log("too late")
            kept[0].now()
            with pytest.raises(asyncio.CancelledError):
                await kept[0].step("late", print)
            assert len(driver.messages) == said

    asyncio.run(main())
