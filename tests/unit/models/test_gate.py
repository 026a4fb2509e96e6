"""The gate before a provider: never more than its lane holds, and left alone while it is down."""

from __future__ import annotations

import asyncio

import pytest

from atlas.models.gate import Breaker, Gate, LeftAlone


def test_breaker_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(3, 10.0)
    for _ in range(5):
        breaker.failed(0.0)
        breaker.failed(0.0)
        assert breaker.admit(0.0) == 0.0
        breaker.succeeded()
    for now in (1.0, 2.0, 3.0):
        breaker.failed(now)
    assert breaker.admit(4.0) == 9.0


def test_half_open_breaker_lets_exactly_one_call_try() -> None:
    breaker = Breaker(1, 10.0)
    breaker.failed(0.0)
    assert breaker.admit(9.9) > 0
    assert breaker.admit(10.0) == 0.0
    assert breaker.admit(10.0) > 0
    breaker.failed(11.0)
    assert breaker.admit(12.0) == 9.0
    assert breaker.admit(21.0) == 0.0
    breaker.succeeded()
    assert breaker.admit(21.0) == 0.0
    assert breaker.admit(21.0) == 0.0


def test_a_probe_that_was_cancelled_leaves_the_place_to_another() -> None:
    breaker = Breaker(1, 10.0)
    breaker.failed(0.0)
    assert breaker.admit(10.0) == 0.0
    breaker.given_up()
    assert breaker.admit(10.0) == 0.0


def test_lane_is_never_exceeded_and_is_first_come_first_served() -> None:
    async def run() -> None:
        gate, inside, most, order = Gate(3, 5, 1.0), 0, 0, []

        async def call(number: int) -> None:
            nonlocal inside, most
            async with gate.passed("p", 0.0):
                order.append(number)
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1
                gate.succeeded()

        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(call(number))
        assert most == 3
        assert order == list(range(40))

    asyncio.run(run())


def test_a_waiting_call_that_is_cancelled_takes_no_place() -> None:
    async def run() -> None:
        gate = Gate(1, 5, 1.0)
        async with gate.passed("p", 0.0):
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(gate.passed("p", 0.0).__aenter__())
                await asyncio.sleep(0)
                waiting.cancel()
        assert waiting.cancelled()
        async with asyncio.timeout(1), gate.passed("p", 0.0):
            pass

    asyncio.run(run())


def test_without_patience_a_provider_that_is_down_is_passed_over_at_once() -> None:
    async def run() -> None:
        gate = Gate(5, 1, 30.0)
        gate.failed("server")
        with pytest.raises(LeftAlone) as caught:
            async with gate.passed("p", 0.0):
                pass
        assert 29 < caught.value.retry_after_s <= 30

    asyncio.run(run())


def test_who_waits_for_a_provider_that_is_down_is_in_nobodys_way() -> None:
    async def run() -> None:
        gate, entered = Gate(1, 1, 30.0), asyncio.Event()

        async def wait() -> None:
            async with gate.passed("p", 60.0):
                entered.set()

        gate.failed("server")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(wait())
            await asyncio.sleep(0.02)
            async with asyncio.timeout(1):
                with pytest.raises(LeftAlone):
                    async with gate.passed("p", 0.0):
                        pass
            assert not entered.is_set()
            waiting.cancel()

    asyncio.run(run())


def test_who_stood_in_line_when_a_provider_went_down_does_not_ask_it() -> None:
    async def run() -> None:
        gate = Gate(1, 1, 30.0)

        async def come_second() -> None:
            with pytest.raises(LeftAlone):
                async with gate.passed("p", 0.0):
                    pass

        async with asyncio.timeout(1), asyncio.TaskGroup() as group:
            async with gate.passed("p", 0.0):
                group.create_task(come_second())
                await asyncio.sleep(0.02)
                gate.failed("server")

    asyncio.run(run())


def test_only_outages_are_held_against_a_provider() -> None:
    async def run() -> None:
        gate = Gate(5, 2, 30.0)
        for kind in ("rate_limit", "auth", "overflow", "refused", "invalid", "empty") * 3:
            gate.failed(kind)  # type: ignore[arg-type]
        gate.failed("timeout")
        gate.failed("rate_limit")
        gate.failed("connection")
        async with gate.passed("p", 0.0):
            gate.failed("connection")
        with pytest.raises(LeftAlone):
            async with gate.passed("p", 0.0):
                pass

    asyncio.run(run())


def test_those_who_wait_go_on_as_soon_as_the_probe_has_succeeded() -> None:
    async def run() -> None:
        gate, calls = Gate(10, 1, 30.0), []

        async def call(number: int) -> None:
            async with gate.passed("p", 5.0):
                calls.append(number)
                if len(calls) == 1:
                    await asyncio.sleep(0.05)
                    assert len(calls) == 1, "only the probe may be under way"
                gate.succeeded()

        gate._breaker.failed(asyncio.get_running_loop().time() - 30.0)  # the time to stay away has just passed
        async with asyncio.timeout(2), asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(call(number))
        assert len(calls) == 8

    asyncio.run(run())


def test_patience_with_a_provider_that_stays_down_ends() -> None:
    async def run() -> None:
        gate = Gate(10, 1, 5.0)
        gate.failed("server")
        async with asyncio.timeout(2):
            with pytest.raises(LeftAlone):
                async with gate.passed("p", 0.05):
                    pass

    asyncio.run(run())
