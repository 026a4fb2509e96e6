"""Steps: named, performed once, recorded, replayed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from atlas.engine.agent import AgentContext, Done
from atlas.kernel.code import CallMade, Cancel, FromCode, Perform, Performed, Probed
from atlas.kernel.errors import AtlasError, Conflict, ErrorRecord, Invalid, PolicyRefused, RunFailed
from unit.engine.fake_driver import Open, make_job


def nested(levels: int) -> Any:
    """A list in a list in a list."""
    item: Any = 0
    for _ in range(levels):
        item = [item]
    return item


def test_step_is_asked_for_then_performed_then_reported(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        return await context.step("add", lambda a, b: a + b, 2, 3, effect="external_side_effect", idempotent=True)

    async def main() -> None:
        async with drive(body) as driver:
            assert await driver.output(make_job()) == 5
            call, performed = driver.of(CallMade, Performed)
            assert (call.kind, call.name, bytes(call.args)) == ("step", "add", b"[2,3]")
            assert (call.effect_class, call.idempotent, call.can_probe) == ("external_side_effect", True, False)
            assert call.effect == f"step:add:{call.args_hash[:12]}:0"
            assert (performed.id, bytes(performed.result), performed.error) == (call.id, b"5", None)

    asyncio.run(main())


def test_equal_calls_are_numbered_and_different_arguments_have_different_names(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        for argument in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}):
            await context.step("save", lambda value: None, argument)
        await context.step("other", lambda value: None, {"a": 1, "b": 2})

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            first, same, changed, other = (call.effect for call in driver.of(CallMade))
            assert first.endswith(":0")
            assert same == first[:-1] + "1"
            assert changed.endswith(":0")
            assert changed != first
            assert other == first.replace("save", "other")

    asyncio.run(main())


def test_second_attempt_answers_from_the_record_and_calls_nothing(drive: Open) -> None:
    performed: list[str] = []

    def act(name: str) -> str:
        performed.append(name)
        return name.upper()

    async def body(context: AgentContext) -> Any:
        return [await context.step("act", act, name) for name in ("a", "b", "a")]

    async def main() -> None:
        async with drive(body) as driver:
            first = await driver.output(make_job())
            again = await driver.output(make_job(attempt=2))
            assert first == again == ["A", "B", "A"]
            assert performed == ["a", "b", "a"]
            assert driver.of(Performed) == []

    asyncio.run(main())


def test_code_sees_live_what_a_replay_would_give(drive: Open) -> None:
    seen: list[Any] = []

    async def body(context: AgentContext) -> Any:
        seen.append(await context.step("make", lambda: {"t": (1, 2.5, None), 7: "x"}))

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            await driver.output(make_job())
            assert seen == [{"t": [1, 2.5, None], "7": "x"}] * 2

    asyncio.run(main())


@pytest.mark.parametrize(
    "result, problem",
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "it is a datetime"),
        ({"rows": [1, {"x": b""}]}, ".rows[1].x is a bytes"),
        ([float("nan")], "[0] is nan"),
        ("\ud800", "not valid Unicode"),
        ({(1, 2): 3}, "key that is not text"),
        (nested(150), "nested deeper"),
    ],
    ids=["date", "bytes", "nan", "surrogate", "key", "deep"],
)
def test_result_that_is_not_json_is_recorded_as_such_and_raised(drive: Open, result: Any, problem: str) -> None:
    async def body(context: AgentContext) -> Any:
        with pytest.raises(Invalid) as caught:
            await context.step("fetch", lambda: result)
        return [caught.value.reason, caught.value.message]

    async def main() -> None:
        async with drive(body) as driver:
            reason, message = await driver.output(make_job())
            assert reason == "result_not_json"
            assert "step 'fetch'" in message
            assert problem in message
            (performed,) = driver.of(Performed)
            assert performed.error.code == "result_not_json"
            assert "did happen" in performed.error.hint
            assert await driver.output(make_job()) == [reason, message]

    asyncio.run(main())


def test_result_beyond_the_size_limit_is_recorded_as_such(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        await context.step("read", lambda: "x" * (16 * 1024 * 1024))

    async def main() -> None:
        async with drive(body) as driver:
            assert (await driver.error(make_job())).code == "result_too_large"

    asyncio.run(main())


@pytest.mark.parametrize(
    "argument", [object(), {1, 2}, float("inf"), {"a": 1, 2: 3}], ids=["object", "set", "infinity", "keys"]
)
def test_argument_that_is_not_json_is_refused_before_anything_is_asked(drive: Open, argument: Any) -> None:
    async def body(context: AgentContext) -> Any:
        with pytest.raises(Invalid, match="an argument of step 'save' is not JSON") as caught:
            await context.step("save", print, argument)
        return caught.value.hint

    async def main() -> None:
        async with drive(body) as driver:
            assert "give key=" in await driver.output(make_job())
            assert driver.of(CallMade) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "make",
    [
        lambda context: context.step("", print),
        lambda context: context.step("a\nb", print),
        lambda context: context.step("x" * 201, print),
        lambda context: context.step("save", "not a function"),
        lambda context: context.step("save", print, effect="dangerous"),
        lambda context: context.step("save", print, probe=True),
        lambda context: context.step("save", print, key=""),
        lambda context: context.spawn("", {}),
        lambda context: context.spawn("helper", ["not", "a", "dict"]),
        lambda context: context.spawn("helper", {"when": object()}),
    ],
)
def test_wrong_use_of_a_call_is_explained(drive: Open, make: Callable[[AgentContext], Any]) -> None:
    async def body(context: AgentContext) -> Any:
        with pytest.raises(Invalid):
            await make(context)

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            assert driver.of(CallMade) == []

    asyncio.run(main())


def test_what_a_step_raises_is_recorded_and_raised_alike_live_and_replayed(drive: Open) -> None:
    caught: list[AtlasError] = []

    def fail() -> None:
        raise ValueError("no such row")

    async def body(context: AgentContext) -> Any:
        try:
            await context.step("load", fail)
        except AtlasError as error:
            caught.append(error)

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            (performed,) = driver.of(Performed)
            assert performed.error.code == "step_failed"
            assert performed.error.message == "ValueError: no such row"
            assert performed.error.where.startswith(__file__)
            assert "in fail" in performed.error.detail
            assert "conversation.py" not in performed.error.detail
            await driver.output(make_job())

    asyncio.run(main())
    live, replayed = caught
    assert isinstance(live.__cause__, ValueError)
    assert replayed.__cause__ is None
    assert type(live) is type(replayed) is RunFailed
    assert live.record() == replayed.record()


def test_error_of_atlas_keeps_its_code_and_class_through_a_step(drive: Open) -> None:
    def refuse() -> None:
        raise PolicyRefused("not on a Sunday", hint="Come back tomorrow.")

    async def body(context: AgentContext) -> Any:
        with pytest.raises(PolicyRefused, match="not on a Sunday"):
            await context.step("open", refuse)

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            assert driver.of(Performed)[0].error.code == "policy_refused"

    asyncio.run(main())


def test_refused_step_raises_the_refusal_and_is_not_performed(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        with pytest.raises(PolicyRefused, match="denied by rule 3"):
            await context.step("pay", lambda: pytest.fail("performed"))

    async def main() -> None:
        async with drive(body) as driver:
            driver.refused["pay"] = ErrorRecord("policy_refused", "denied by rule 3")
            await driver.output(make_job())

    asyncio.run(main())


def test_function_that_wants_the_effect_key_gets_it(drive: Open) -> None:
    def plain(order: str, effect_key: str) -> str:
        return effect_key

    async def coroutine(order: str, *, effect_key: str = "") -> str:
        return effect_key

    class Client:
        def method(self, order: str, effect_key: str) -> str:
            return effect_key

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> str:
        return plain(*args, **kwargs)

    async def body(context: AgentContext) -> Any:
        functions: tuple[Callable[..., Any], ...] = (
            plain,
            coroutine,
            Client().method,
            wrapped,
            functools.partial(plain),
        )
        return [await context.step("send", fn, "o1", key=str(n)) for n, fn in enumerate(functions)]

    async def main() -> None:
        async with drive(body) as driver:
            assert await driver.output(make_job()) == [f"key of step:send:{n}" for n in range(5)]

    asyncio.run(main())


def test_builtin_and_variadic_functions_get_no_effect_key(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        largest = await context.step("max", max, 3, 9)
        named = await context.step("names", lambda **names: sorted(names))
        return [largest, named]

    async def main() -> None:
        async with drive(body) as driver:
            assert await driver.output(make_job()) == [9, []]

    asyncio.run(main())


@pytest.mark.parametrize(
    "probe, found, output",
    [
        (lambda order: Done({"id": order}), "done", {"id": "o1"}),
        (lambda order: None, "not_done", "performed"),
        (lambda order: 1 / 0, "unknown", "in_doubt"),
        (lambda order: True, "unknown", "in_doubt"),
        (lambda order: Done(object()), "unknown", "in_doubt"),
        (lambda order, effect_key: Done(effect_key), "done", "key of step:pay:p"),
    ],
    ids=["done", "not-done", "raises", "neither", "not-json", "with-key"],
)
def test_probe_says_what_became_of_a_step(drive: Open, probe: Any, found: str, output: Any) -> None:
    async def body(context: AgentContext) -> Any:
        try:
            return await context.step("pay", lambda order: "performed", "o1", probe=probe, key="p")
        except RunFailed as error:
            return error.reason

    async def main() -> None:
        async with drive(body) as driver:
            driver.doubted.add("step:pay:p")
            assert await driver.output(make_job()) == output
            assert driver.of(CallMade)[0].can_probe
            assert [message.found for message in driver.of(Probed)] == [found]
            assert len(driver.of(Performed)) == (1 if found == "not_done" else 0)

    asyncio.run(main())


def test_asynchronous_probe_is_awaited(drive: Open) -> None:
    async def probe() -> Done:
        await asyncio.sleep(0)
        return Done("yes")

    async def body(context: AgentContext) -> Any:
        return await context.step("pay", lambda: "performed", probe=probe, key="p")

    async def main() -> None:
        async with drive(body) as driver:
            driver.doubted.add("step:pay:p")
            assert await driver.output(make_job()) == "yes"

    asyncio.run(main())


def test_key_used_for_other_arguments_is_a_conflict(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        await context.step("pay", lambda amount: amount, 1, key="k")
        with pytest.raises(Conflict) as caught:
            await context.step("pay", lambda amount: amount, 2, key="k")
        return caught.value.reason

    async def main() -> None:
        async with drive(body) as driver:
            assert await driver.output(make_job()) == "key_reused"

    asyncio.run(main())


def test_same_key_performs_once_even_when_two_tasks_use_it_at_once(drive: Open) -> None:
    performed: list[int] = []

    async def pay(amount: int) -> int:
        await asyncio.sleep(0.01)
        performed.append(amount)
        return len(performed)

    async def body(context: AgentContext) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(context.step("pay", pay, 5, key="k")) for _ in range(3)]
        return [task.result() for task in tasks]

    async def main() -> None:
        async with drive(body) as driver:
            assert await driver.output(make_job()) == [1, 1, 1]
            assert performed == [5]

    asyncio.run(main())


def test_step_whose_wait_timed_out_is_reported_as_not_performed(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await context.step("slow", lambda: pytest.fail("performed"))
        await context.step("next", lambda: None)

    async def main() -> None:
        async with drive(body) as driver:
            driver.held.add("slow")
            await driver.start(make_job())
            call = await driver.heard(lambda message: isinstance(message, CallMade) and message.name == "next")
            assert isinstance(call, CallMade)
            driver.code.send(Perform(1, "late"))
            await driver.finished
            assert [(m.id, m.error and m.error.code) for m in driver.of(Performed)] == [
                (1, "step_not_performed"),
                (2, None),
            ]

    asyncio.run(main())


def test_leave_that_arrives_together_with_a_cancellation_is_accounted_for(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        await context.step("pay", lambda: pytest.fail("performed"))

    async def main() -> None:
        async with drive(body) as driver:
            driver.held.add("pay")
            await driver.start(make_job())
            await driver.heard(_is_call)
            driver.code.send(Perform(1, "k"))
            driver.code.send(Cancel("changed my mind"))
            finished = await driver.finished
            assert finished.error is not None
            assert (finished.error.code, finished.error.message) == ("cancelled", "changed my mind")
            assert [message.error.code for message in driver.of(Performed)] == ["step_not_performed"]

    asyncio.run(main())


def test_step_cut_short_by_the_codes_own_timeout_is_an_outcome(drive: Open) -> None:
    async def body(context: AgentContext) -> Any:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await context.step("upload", lambda: asyncio.sleep(60))

    async def main() -> None:
        async with drive(body) as driver:
            await driver.output(make_job())
            assert driver.of(Performed)[0].error.code == "step_cancelled"

    asyncio.run(main())


def test_step_cut_short_by_a_cancelled_run_stays_in_doubt(drive: Open) -> None:
    running = asyncio.Event()

    async def upload() -> None:
        running.set()
        await asyncio.sleep(60)

    async def body(context: AgentContext) -> Any:
        await context.step("upload", upload)

    async def main() -> None:
        async with drive(body) as driver:
            await driver.start(make_job())
            await running.wait()
            driver.code.send(Cancel())
            finished = await driver.finished
            assert finished.error is not None
            assert finished.error.code == "cancelled"
            assert driver.of(Performed) == []

    asyncio.run(main())


def test_exit_inside_a_step_is_recorded_before_it_ends_the_code(drive: Open) -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def body(context: AgentContext) -> Any:
        await context.step("leave", leave)

    async def main() -> None:
        async with drive(body) as driver:
            assert (await driver.error(make_job())).code == "worker_exited"
            assert driver.of(Performed)[0].error.message == "SystemExit: 3"

    asyncio.run(main())


class Abort(BaseException):
    """No ordinary error."""


@pytest.mark.parametrize("kind", [Abort, KeyboardInterrupt])
def test_what_ordinary_code_does_not_catch_ends_the_step_or_the_run_and_nothing_else(
    drive: Open, kind: type[BaseException]
) -> None:
    def raising() -> None:
        raise kind("the way out")

    async def in_step(context: AgentContext) -> Any:
        await context.step("leave", raising)

    async def outside(context: AgentContext) -> Any:
        raising()

    async def main() -> None:
        async with drive(in_step) as driver:
            assert (await driver.error(make_job())).code == "step_failed"
            assert driver.of(Performed)[0].error.message == f"{kind.__name__}: the way out"
        async with drive(outside) as driver:
            assert (await driver.error(make_job())).code == "agent_failed"

    asyncio.run(main())


def _is_call(message: FromCode) -> bool:
    return isinstance(message, CallMade)
