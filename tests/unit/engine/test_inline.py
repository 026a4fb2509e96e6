"""Code inside the driver's own process: lifetimes, hooks, stopping."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from atlas.engine.agent import AgentBase, AgentContext
from atlas.engine.inline import InlineExecutor
from atlas.kernel.code import Cancel, Noted
from atlas.kernel.errors import Fault, RunFailed
from unit.engine.fake_driver import FakeDriver, make_job


class Hooked(AgentBase):
    """Counts what happens to it, in lists that each test gives it."""

    events: list[str]
    fails: int = 0

    async def on_startup(self) -> None:
        await asyncio.sleep(0.01)
        self.events.append("startup")
        if type(self).fails:
            type(self).fails -= 1
            raise OSError("model not loaded")

    async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
        context.log("running")
        await asyncio.sleep(input.get("sleep_s", 0))
        return {}

    async def on_shutdown(self) -> None:
        self.events.append("shutdown")


@pytest.fixture
def hooked() -> type[Hooked]:
    """A class of its own for each test."""
    return type("Fresh", (Hooked,), {"events": []})


def test_startup_runs_once_for_runs_that_begin_together_and_shutdown_at_the_end(hooked: type[Hooked]) -> None:
    async def main() -> None:
        async with InlineExecutor({"demo": hooked}) as executor:
            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(FakeDriver(executor).output(make_job()))
            assert hooked.events == ["startup"]
        assert hooked.events == ["startup", "shutdown"]

    asyncio.run(main())


def test_failed_startup_fails_the_run_and_the_next_run_tries_again(hooked: type[Hooked]) -> None:
    hooked.fails = 1

    async def main() -> None:
        async with InlineExecutor({"demo": hooked}) as executor:
            error = await FakeDriver(executor).error(make_job())
            assert error.code == "startup_failed"
            assert error.message == "Fresh.on_startup failed: OSError: model not loaded"
            await FakeDriver(executor).output(make_job())

    asyncio.run(main())


def test_hook_that_does_not_exist_and_class_that_needs_arguments_are_explained(hooked: type[Hooked]) -> None:
    class Needy(AgentBase):
        def __init__(self, needed: str) -> None:
            self.needed = needed

    async def main() -> None:
        async with InlineExecutor({"demo": hooked, "needy": Needy}) as executor:
            error = await FakeDriver(executor).error(make_job(startup="warm_up"))
            assert (error.code, error.message) == ("startup_failed", "Fresh has no method 'warm_up'")
            error = await FakeDriver(executor).error(make_job(agent="needy"))
            assert error.code == "startup_failed"
            assert "'needed'" in error.message

    asyncio.run(main())


def test_unknown_agent_is_an_error_of_the_run() -> None:
    async def main() -> None:
        async with InlineExecutor({}) as executor:
            assert (await FakeDriver(executor).error(make_job())).code == "agent_class_missing"

    asyncio.run(main())


def test_class_without_execute_fails_its_runs() -> None:
    class Empty(AgentBase):
        pass

    async def main() -> None:
        async with InlineExecutor({"demo": Empty}) as executor:
            assert "Empty has no execute()" in (await FakeDriver(executor).error(make_job())).message

    asyncio.run(main())


def test_stop_ends_the_code_without_a_last_message(hooked: type[Hooked]) -> None:
    async def main() -> None:
        async with InlineExecutor({"demo": hooked}) as executor:
            driver = FakeDriver(executor)
            code = await driver.start(make_job({"sleep_s": 60}))
            assert code.process is None
            await driver.heard(lambda message: isinstance(message, Noted))
            await code.stop()
            await code.stop()
            assert driver.messages == [Noted("running")]
            code.send(Cancel())

    asyncio.run(main())


def test_stop_before_the_first_instruction_works(hooked: type[Hooked]) -> None:
    async def main() -> None:
        async with InlineExecutor({"demo": hooked}) as executor:
            driver = FakeDriver(executor)
            code = await driver.start(make_job())
            await code.stop()
            assert driver.messages == []
        assert hooked.events == []

    asyncio.run(main())


def test_stop_insists_when_the_code_swallows_a_cancellation() -> None:
    swallowed: list[int] = []

    class Stubborn(AgentBase):
        async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
            context.log("running")
            for attempt in range(3):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    swallowed.append(attempt)
            return {}

    async def main() -> None:
        async with InlineExecutor({"demo": Stubborn}) as executor:
            driver = FakeDriver(executor)
            code = await driver.start(make_job())
            await driver.heard(lambda message: isinstance(message, Noted))
            await code.stop()
            assert swallowed == [0, 1, 2]
            assert driver.messages == [Noted("running")]

    asyncio.run(main())


def test_code_that_never_ends_is_a_fault_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atlas.engine.inline._STOP_WAIT_S", 0.001)
    released = False

    class Immortal(AgentBase):
        async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
            context.log("running")
            while not released:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue
            return {}

    async def main() -> None:
        nonlocal released
        async with InlineExecutor({"demo": Immortal}) as executor:
            driver = FakeDriver(executor)
            code = await driver.start(make_job())
            await driver.heard(lambda message: isinstance(message, Noted))
            with pytest.raises(Fault, match="does not end when it is cancelled"):
                await code.stop()
            released = True
            await code.stop()

    asyncio.run(main())


def test_cancel_before_the_first_instruction_and_during_startup_ends_the_run(hooked: type[Hooked]) -> None:
    async def main() -> None:
        async with InlineExecutor({"demo": hooked}) as executor:
            early, late = FakeDriver(executor), FakeDriver(executor)
            (await early.start(make_job())).send(Cancel("early"))
            finished = await early.finished
            assert finished.error is not None
            assert (finished.error.code, finished.error.message) == ("cancelled", "early")
            await late.start(make_job())
            await asyncio.sleep(0)
            late.code.send(Cancel("late"))
            finished = await late.finished
            assert finished.error is not None
            assert finished.error.message == "late"
        assert hooked.events == []

    asyncio.run(main())


def test_leaving_stops_what_still_runs(hooked: type[Hooked]) -> None:
    async def main() -> None:
        async with InlineExecutor({"demo": hooked}) as executor:
            drivers = [FakeDriver(executor) for _ in range(3)]
            for driver in drivers:
                await driver.start(make_job({"sleep_s": 60}))
            for driver in drivers:
                await driver.heard(lambda message: isinstance(message, Noted))
        assert all(driver.messages == [Noted("running")] for driver in drivers)
        assert hooked.events == ["startup", "shutdown"]

    asyncio.run(main())


def test_failing_shutdown_hook_does_not_keep_the_others_from_running(hooked: type[Hooked]) -> None:
    class Broken(Hooked):
        events: list[str] = []

        async def on_shutdown(self) -> None:
            raise ValueError("stuck")

    async def main() -> None:
        async with InlineExecutor({"demo": hooked, "broken": Broken}) as executor:
            await FakeDriver(executor).output(make_job())
            await FakeDriver(executor).output(make_job(agent="broken"))
            with pytest.raises(RunFailed, match=r"Broken\.on_shutdown failed: ValueError: stuck"):
                await executor.drain()

    asyncio.run(main())
    assert hooked.events == ["startup", "shutdown"]


def test_one_failing_run_leaves_a_thousand_others_alone() -> None:
    class Steps(AgentBase):
        async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
            total = 0
            for number in range(5):
                total += await context.step("add", lambda n: n, number)
            if input["n"] == 500:
                raise ValueError("unlucky")
            return {"total": total, "n": input["n"]}

    async def main() -> None:
        async with InlineExecutor({"demo": Steps}) as executor:
            async with asyncio.TaskGroup() as group:
                runs = [group.create_task(FakeDriver(executor).run(make_job({"n": n}))) for n in range(1000)]
            outputs = [bytes(run.result().output) for run in runs]
            expected = [b'{"total":10,"n":%d}' % n for n in range(1000)]
            expected[500] = b"null"
            assert outputs == expected

    asyncio.run(main())
