"""A driver that slept past its lease and woke up after another took its runs, at every boundary of a run.

The sleeper is a real `atlas up` that stops itself with SIGSTOP at a named point; its workers go on, as they would. The
other driver takes over when the lease has lapsed. What each scenario did to the world is judged from outside.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from atlas.engine.process import is_alive
from atlas.kernel.errors import LedgerUnavailable
from atlas.kernel.event import AttemptStarted, Process
from atlas.kernel.run import RunRow
from atlas.testing.chaos_check import Order, judge
from atlas.testing.chaos_desk import Desk
from atlas.testing.chaos_driver import DriverProcess
from atlas.testing.chaos_site import Site
from atlas.testing.fault import POINTS
from e2e.stage import Stage, is_locked, until

ORDER = Order(1, ("again", "parts", "probed", "asked", "once"), (Order(100, ("once",)),))
AFTERWARDS = Order(2, ("once",))
AT_ONCE = 4
TRIES = 40  # code that a person's answer lets go on starts while that answer is being committed, four times in five
EARLY = 2
PATIENCE_S = 90.0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wakes", ["when all is over", "while the other works"])
def test_a_driver_that_slept_past_its_lease_changes_nothing(tmp_path: Path, wakes: str) -> None:
    async def main() -> dict[str, int]:
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            sweeps = {
                point: group.create_task(sweep(places, tmp_path, point, is_early=wakes.startswith("while")))
                for point in POINTS
            }
        return {point: task.result() for point, task in sweeps.items()}

    crossed = asyncio.run(main())
    assert min(crossed.values()) >= 1
    if wakes.startswith("while"):
        return
    # Five steps, each with an intent, a performance and a receipt; one child; one question; two ends.
    assert crossed["intent.durable"] == crossed["perform.sent"] == crossed["receipt.written"] == 5
    assert crossed["spawn.durable"] == crossed["asked"] == 1
    assert crossed["end.durable"] == 2


async def sweep(places: asyncio.Semaphore, folder: Path, point: str, *, is_early: bool) -> int:
    """Stops a driver each time it crosses the point, or the first times only; how often that is."""
    number = 1
    while await stop_at(places, folder / point, f"{point}:{number}", is_early=is_early):
        if is_early and number == EARLY:
            return number
        number += 1
    return number - 1


async def stop_at(places: asyncio.Semaphore, folder: Path, boundary: str, *, is_early: bool) -> bool:
    """Plays one boundary; False when no driver comes there that often."""
    async with places:
        for attempt in range(TRIES):
            site = Site(folder / f"{boundary.replace(':', '-')}-{attempt}")
            site.create()
            async with Desk.open(site) as desk:
                was_stopped = await Sleeper(site, desk, boundary, is_early).play()
            if was_stopped is not None:
                return was_stopped
        raise AssertionError(f"{boundary}: the driver stopped inside a commit {TRIES} times in a row")


def test_a_driver_that_slept_since_its_claim_spares_the_worker_of_its_successor(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.atlas(*stage.words("hold:a"), "--detach", "--json")
    with stage.started("up", fault="claimed:1:stop") as old:
        until(lambda: psutil.Process(old.pid).status() == psutil.STATUS_STOPPED, old)
        with stage.started("up") as new:
            until(lambda: stage.marks == ["a"], new)
            old.send_signal(signal.SIGCONT)
            old.send_signal(signal.SIGINT)
            assert old.wait(PATIENCE_S) == 130
            stage.go()
            until(lambda: stage.state() == "succeeded", new)
    assert stage.marks == ["a"]
    events = stage.atlas("show", "@last", "--events", "--json")[1]["events"]
    assert [event["kind"] for event in events].count("attempt.started") == 1


class Sleeper:
    """One scenario: a driver falls asleep at a boundary, another takes over, the first wakes up."""

    def __init__(self, site: Site, desk: Desk, boundary: str, is_early: bool) -> None:
        self._site = site
        self._desk = desk
        self._boundary = boundary
        self._is_early = is_early
        self._drivers: list[DriverProcess] = []

    async def play(self) -> bool | None:
        """Fails when anything was lost, done twice or appended by the stale owner.

        False when the run ended before the driver came to the boundary, None when it stopped where nobody can go on.
        """
        run_id = await self._desk.submit(ORDER)
        try:
            old = await self._start(f"{self._boundary}:stop")
            await self._until("the first driver", lambda: self._is_stopped_or_done(old, run_id))
            if not self._is_stopped(old):
                return False
            if is_locked(self._site.vault):
                return None
            events = await self._wake_early(old, run_id) if self._is_early else await self._wake_late(old, run_id)
            # The driver that was stale is none the worse for it: it alone is left to do this.
            later = await self._desk.submit(AFTERWARDS)
            await self._until("the first driver to go on", lambda: self._desk.has_ended(later))
            await self._leave(old)
            # Nothing was appended by the stale owner; it has tried by now, for it has left.
            assert (await self._desk.ledger.run(run_id)).head_seq == events, self._boundary
            await self._judge({run_id: ORDER, later: AFTERWARDS})
            return True
        finally:
            for driver in self._drivers:
                if driver.kill():
                    await driver.ended(PATIENCE_S)

    async def _wake_late(self, old: DriverProcess, run_id: str) -> int:
        """Wakes the sleeper when the other has finished; how many events the run has then."""
        held = await self._held_by(old)
        new = await self._start("")
        await self._until("the second driver to finish", lambda: self._desk.has_ended(run_id))
        # Nobody but the one that took over can have ended them, before it repeated anything.
        assert not [worker for worker in await self._workers(held) if is_alive(worker)], self._boundary
        os.kill(old.pid, signal.SIGCONT)
        await self._leave(new)
        return (await self._desk.ledger.run(run_id)).head_seq

    async def _wake_early(self, old: DriverProcess, run_id: str) -> int:
        """Wakes the sleeper as soon as the other has taken a run; how many events the run has when it has ended."""
        held = await self._held_by(old)
        new = await self._start("")
        await self._until("a takeover", lambda: self._is_taken_over(held))
        os.kill(old.pid, signal.SIGCONT)
        await self._until("the end of the run", lambda: self._desk.has_ended(run_id))
        await self._leave(new)
        return (await self._desk.ledger.run(run_id)).head_seq

    async def _held_by(self, driver: DriverProcess) -> list[RunRow]:
        return [row for row in await self._desk.rows() if f"|{driver.pid}|" in row.owner]

    async def _start(self, fault: str) -> DriverProcess:
        driver = await DriverProcess.start(self._site, len(self._drivers), ("up",), fault)
        self._drivers.append(driver)
        return driver

    async def _leave(self, driver: DriverProcess) -> None:
        await self._until("a driver to be up", lambda: self._has_spoken(driver))
        os.kill(driver.pid, signal.SIGINT)
        status = await driver.ended(PATIENCE_S)
        assert status == 130, f"{self._boundary}: {status} {driver.printed}"

    async def _has_spoken(self, driver: DriverProcess) -> bool:
        return bool(driver.printed)

    async def _until(self, what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Waits, and answers whatever waits for a person meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not await is_so():
            assert time.monotonic() < deadline, f"{self._boundary}: waited for {what} in vain"
            with suppress(LedgerUnavailable):  # stopped inside a commit: seen to as soon as it is known
                await self._desk.answer_all(only_parked=True)
            await asyncio.sleep(0.03)

    async def _is_stopped_or_done(self, driver: DriverProcess, run_id: str) -> bool:
        return self._is_stopped(driver) or await self._desk.has_ended(run_id)

    def _is_stopped(self, driver: DriverProcess) -> bool:
        try:
            return psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            raise AssertionError(f"{self._boundary}: the driver ended by itself: {driver.printed}") from None

    async def _is_taken_over(self, held: list[RunRow]) -> bool:
        rows = [await self._desk.ledger.run(row.run_id) for row in held]
        return not held or any(now.generation > row.generation for now, row in zip(rows, held, strict=True))

    async def _workers(self, held: list[RunRow]) -> list[Process]:
        """The workers in which the sleeper executed the runs that it held."""
        record = await self._desk.record()
        started = [body for row in held for body in record[row.run_id] if isinstance(body, AttemptStarted)]
        owners = {row.owner for row in held}
        return [body.worker for body in started if body.owner in owners and body.worker is not None]

    async def _judge(self, roots: dict[str, Order]) -> None:
        findings = judge(await self._desk.record(), self._site.lines(), roots)
        assert findings.complaints == [], self._boundary
        assert findings.completed == 3
        assert (await self._desk.verify()).ok
