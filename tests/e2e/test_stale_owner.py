"""A driver that slept past its lease and woke up after another took its runs, at every boundary of a run.

The sleeper is a real `atlas up` that stops itself with SIGSTOP at a named point; its workers go on, as they would. The
other driver takes over when the lease has lapsed. What each scenario did to the world is judged from outside.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from atlas.control.host import Host
from atlas.engine.process import is_alive
from atlas.kernel.event import AttemptStarted, Process
from atlas.kernel.run import TERMINAL, RunQuery, RunRow
from atlas.testing.chaos_check import Order, judge
from atlas.testing.chaos_desk import all_bodies, answer_all
from atlas.testing.chaos_driver import DriverProcess
from atlas.testing.chaos_site import AGENT, Site
from atlas.testing.fault import POINTS

ORDER = Order(1, ("again", "parts", "probed", "asked", "once"), (Order(100, ("once",)),))
AFTERWARDS = Order(2, ("once",))
AT_ONCE = 4
PATIENCE_S = 90.0


class Boundary(msgspec.Struct, frozen=True):
    """The `number`-th time a driver crosses a point."""

    point: str
    number: int

    def __str__(self) -> str:
        return f"{self.point}:{self.number}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wakes", ["after the others finished", "while the others work"])
def test_a_driver_that_slept_past_its_lease_changes_nothing(tmp_path: Path, wakes: str) -> None:
    async def main() -> None:
        boundaries = await crossed(Site(tmp_path / "awake"))
        assert {boundary.point for boundary in boundaries} == set(POINTS)
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for boundary in boundaries:
                site = Site(tmp_path / str(boundary).replace(":", "-"))
                group.create_task(one_at_a_place(places, Sleeper(site, boundary, wakes.startswith("while"))))

    asyncio.run(main())


async def one_at_a_place(places: asyncio.Semaphore, sleeper: Sleeper) -> None:
    async with places:
        await sleeper.play()


async def crossed(site: Site) -> list[Boundary]:
    """Every boundary that a driver crosses when nothing goes wrong."""
    points: list[str] = []
    site.create()
    async with site.open(points.append) as host:
        run_id = (await host.submit(AGENT, ORDER.input(str(site.outside)))).run_id
        while await host.drive(run_id) not in TERMINAL:
            await answer_all(host, site)
    return [Boundary(point, number) for point, count in Counter(points).items() for number in range(1, count + 1)]


class Sleeper:
    """One scenario: a driver falls asleep at a boundary, another takes over, the first wakes up."""

    def __init__(self, site: Site, boundary: Boundary, is_early: bool) -> None:
        self._site = site
        self._boundary = boundary
        self._is_early = is_early
        self._host: Host

    async def play(self) -> None:
        """Fails when anything was lost, done twice or appended by the stale owner."""
        self._site.create()
        async with self._site.open() as self._host:
            run_id = await self._submit(ORDER)
            old = await DriverProcess.start(self._site, 1, f"{self._boundary}:stop", until_idle=False)
            new: DriverProcess | None = None
            try:
                await self._until("the first driver to stop", lambda: self._is_stopped(old))
                held = await self._held_by(old)
                new = await DriverProcess.start(self._site, 2, "", until_idle=False)
                if self._is_early:
                    await self._until("a takeover", lambda: self._is_taken_over(held))
                else:
                    await self._until("the second driver to finish", lambda: self._has_ended(run_id))
                    assert not [worker for worker in await self._workers(held) if is_alive(worker)], self._boundary
                head = (await self._host.ledger.run(run_id)).head_seq
                os.kill(old.pid, signal.SIGCONT)
                await self._until("the end of the run", lambda: self._has_ended(run_id))
                await self._leaves(new)
                # The driver that was stale is none the worse for it: it alone is left to do this.
                later = await self._submit(AFTERWARDS)
                await self._until("the first driver to go on", lambda: self._has_ended(later))
                await self._leaves(old)
                if not self._is_early:
                    assert (await self._host.ledger.run(run_id)).head_seq == head, self._boundary
                await self._judge({run_id: ORDER, later: AFTERWARDS})
            finally:
                for driver in (old, new):
                    if driver is not None and driver.kill():
                        await driver.ended(PATIENCE_S)

    async def _submit(self, order: Order) -> str:
        return (await self._host.submit(AGENT, order.input(str(self._site.outside)))).run_id

    async def _until(self, what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Waits, and answers whatever waits for a person meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not await is_so():
            assert time.monotonic() < deadline, f"{self._boundary}: waited for {what} in vain"
            await answer_all(self._host, self._site)
            await asyncio.sleep(0.03)

    async def _is_stopped(self, driver: DriverProcess) -> bool:
        assert driver.is_running, f"{self._boundary}: {driver.printed}"
        return psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED

    async def _held_by(self, driver: DriverProcess) -> list[RunRow]:
        rows = (await self._host.runs(RunQuery(limit=100))).runs
        return [row for row in rows if f"|{driver.pid}|" in row.owner]

    async def _is_taken_over(self, held: list[RunRow]) -> bool:
        rows = [await self._host.ledger.run(row.run_id) for row in held]
        return not held or any(now.generation > row.generation for now, row in zip(rows, held, strict=True))

    async def _has_ended(self, run_id: str) -> bool:
        return (await self._host.ledger.run(run_id)).state in TERMINAL

    async def _workers(self, held: list[RunRow]) -> list[Process]:
        """The workers in which the sleeper executed the runs that it held."""
        bodies = await all_bodies(self._host)
        started = [body for row in held for body in bodies[row.run_id] if isinstance(body, AttemptStarted)]
        owners = {row.owner for row in held}
        return [body.worker for body in started if body.owner in owners and body.worker is not None]

    async def _leaves(self, driver: DriverProcess) -> None:
        os.kill(driver.pid, signal.SIGINT)
        status = await driver.ended(PATIENCE_S)
        assert status == 130, f"{self._boundary}: {status} {driver.printed}"

    async def _judge(self, roots: dict[str, Order]) -> None:
        findings = judge(await all_bodies(self._host), self._site.lines(), roots)
        assert findings.complaints == [], self._boundary
        assert findings.completed == 3
        assert (await self._host.verify(None)).ok
