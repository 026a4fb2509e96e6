"""One storm: runs are submitted, drivers started and struck, questions answered, until every run has ended.

    run          lanes, each: submit -> start a driver -> strike -> answer what waits -> ...
                 then peace, until every run has ended; then the judgement

Two lanes make two drivers share the vault most of the time. The person who answers looks at the file outside first.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final, assert_never

import msgspec

from atlas.testing.chaos_check import Findings, Order, judge
from atlas.testing.chaos_desk import Desk
from atlas.testing.chaos_driver import INTERRUPTED, DriverProcess
from atlas.testing.chaos_plan import AtPoint, AtRandom, InEffect, Strike, again, plan
from atlas.testing.chaos_site import Site

_LANES: Final = 2
_BACKLOG: Final = 6
_STRIKE_S: Final = 5.0
_STALL_S: Final = 90.0
_HANG_S: Final = 120.0
_DEATH_S: Final = 5.0
# What must happen to an effect first so that it is tried again, or probed.
_SEQUELS: Final = {"redo": "once.before.worker", "probe": "probed.after.worker"}
_CHILD: Final = ("look", "pair", "again", "probed", "once")


class Outcome(msgspec.Struct, frozen=True):
    """What one storm did and what was found after it."""

    hits: Counter[str]
    runs: int
    findings: Findings
    is_chain_ok: bool
    seconds: float
    complaints: tuple[str, ...]


class Storm:
    """One storm over one site."""

    def __init__(self, site: Site, name: str, kills: int, seed: int, report: Callable[[str], None]) -> None:
        self._site = site
        self._name = name
        self._kills = kills
        self._report = report
        self._rng = Random(f"{name} {seed}")
        self._plan: deque[Strike] = plan(kills, self._rng)
        self._roots: dict[str, Order] = {}
        self._drivers = 0
        self._orders = 0
        self._hits: Counter[str] = Counter()
        self._reported = 0
        self._moved_s = time.monotonic()
        self._complaints: list[str] = []
        self._desk: Desk

    async def run(self) -> Outcome:
        """Strikes as planned, lets the rest finish in peace, and judges."""
        began = time.monotonic()
        async with Desk.open(self._site) as self._desk:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(_LANES):
                    lanes.create_task(self._lane())
            await self._calm()
            record = await self._desk.record()
            verified = await self._desk.verify()
        findings = judge(record, self._site.lines(), self._roots)
        if left := await self._left_behind():
            self._complaints.append(f"processes were left behind: {left}")
        broken = [f"verify: {finding.message}" for finding in verified.findings]
        complaints = (*self._complaints, *findings.complaints, *broken)
        if complaints:
            self._site.keep(record)
        return Outcome(
            hits=self._all_hits(),
            runs=len(record),
            findings=findings,
            is_chain_ok=verified.ok,
            seconds=time.monotonic() - began,
            complaints=complaints,
        )

    # Strikes

    async def _lane(self) -> None:
        while (self._plan or self._all_hits().total() < self._kills) and not self._complaints:
            strike = self._plan.popleft() if self._plan else AtRandom("driver")
            await self._top_up()
            if not await self._strike(strike):
                self._missed(strike)
            await self._desk.answer_all()
            self._progress()

    def _missed(self, strike: Strike) -> None:
        another = again(strike)
        if another is not None:
            self._plan.append(another)
        elif isinstance(strike, AtPoint) and not self._hits[strike.point]:
            self._complaints.append(f"no driver ever came to {strike.point}")

    async def _strike(self, strike: Strike) -> bool:
        """Has the strike happen; False when it did not hit."""
        match strike:
            case AtPoint(point, number):
                return await self._finish(await self._start(f"{point}:{number}:kill")) == point
            case InEffect(kind, spot, target):
                self._orders += 1
                order = f"{kind}.{spot}.{target}.{self._orders}"
                if kind in _SEQUELS:
                    self._site.order(f"{_SEQUELS[kind]}.{self._orders}")
                self._site.order(order)
                await self._finish(await self._start(), lambda: order in self._site.orders())
                return not self._site.withdraw(order)
            case AtRandom(target):
                driver = await self._start(until_idle=True)
                await self._while(lambda: driver.is_running and not driver.workers())
                await asyncio.sleep(self._rng.uniform(0.0, 0.5))
                if target == "worker":
                    self._hits["random.worker"] += driver.kill_worker(self._rng.randrange(100))
                return await self._finish(driver, lambda: False) != ""
        assert_never(strike)

    async def _finish(self, driver: DriverProcess, is_needed: Callable[[], bool] = lambda: True) -> str:
        """Leaves the driver alone while it is needed, then soon kills it; what killed it, or nothing."""
        await self._while(lambda: driver.is_running and is_needed())
        if driver.is_running:
            await driver.ended(self._rng.uniform(0.0, 0.4))
            match self._rng.randrange(5):
                case 0 | 1:
                    self._hits["random.worker"] += driver.kill_worker(self._rng.randrange(100))
                case 2:
                    driver.interrupt()
            await driver.ended(self._rng.uniform(0.0, 0.2))
            driver.kill()
        return await self._end(driver)

    async def _while(self, goes_on: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _STRIKE_S
        while goes_on() and time.monotonic() < deadline:  # noqa: ASYNC110 - other processes set no event of ours
            await asyncio.sleep(0.03)

    async def _start(self, fault: str = "", *, until_idle: bool = False) -> DriverProcess:
        self._drivers += 1
        words = ("up", *(["--until-idle"] if until_idle else []))
        return await DriverProcess.start(self._site, self._drivers, words, fault)

    async def _end(self, driver: DriverProcess) -> str:
        """Waits for the driver's end; what killed it, or nothing."""
        status = await driver.ended(_HANG_S)
        if status == 0 or (status == INTERRUPTED and driver.was_interrupted):
            return ""
        if status == -9:
            if any(".driver." in line.order and line.driver == driver.pid for line in self._site.lines()):
                return "effect"  # counted by its line
            cause = "random.driver" if driver.was_killed else driver.fault.partition(":")[0]
            if not cause:
                self._complaints.append("a driver was killed by a stranger")
            self._hits[cause] += 1
            return cause
        self._complaints.append(f"a driver ended with {status}: {driver.printed}")
        if driver.kill():
            await driver.ended(_HANG_S)
        return ""

    def _all_hits(self) -> Counter[str]:
        orders = (line.order.split(".") for line in self._site.lines() if line.mark == "struck")
        return self._hits + Counter(f"effect.{spot}.{target}" for _, spot, target, _ in orders)

    def _progress(self) -> None:
        hits = self._all_hits().total()
        if hits - self._reported >= 10 or hits >= self._kills:
            self._reported = hits
            self._report(f"{self._name}: {hits} of {self._kills} kills, {len(self._roots)} trees of runs submitted")

    # Work, and the person

    async def _top_up(self) -> None:
        if time.monotonic() - self._moved_s > _STALL_S:
            self._complaints.append(f"no run has come to an end or to a person for {_STALL_S:g} s")
        waiting = await self._desk.rows("queued", "running", roots_only=True)
        for _ in range(_BACKLOG - len(waiting)):
            order = self._next_order()
            self._moved_s = time.monotonic()
            self._roots[await self._desk.submit(order)] = order

    def _next_order(self) -> Order:
        number = len(self._roots) + 1
        parts = tuple(Order(number * 100 + each, _CHILD) for each in range(self._rng.randrange(3)))
        asked = ("asked",) if self._rng.random() < 0.5 else ()
        return Order(number, ("look", "pair", "again", "parts", "probed", *asked, "once"), parts)

    async def _calm(self) -> None:
        """No more strikes: drives and answers until every run has ended."""
        for order in self._site.orders():
            self._site.withdraw(order)
        deadline = time.monotonic() + _HANG_S
        while not self._complaints:
            await self._desk.answer_all()
            rows = await self._desk.unended()
            if not rows:
                return
            if time.monotonic() > deadline:
                left = ", ".join(f"{row.run_id} {row.state}" for row in rows)
                self._complaints.append(f"these runs do not come to an end: {left}")
                return
            await self._end(await self._start(until_idle=True))

    async def _left_behind(self) -> list[str]:
        """Processes that still work in the vault although every driver has ended."""
        import psutil

        deadline = time.monotonic() + _DEATH_S
        while True:
            left = []
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if process.cwd().startswith(str(self._site.vault)):
                        left.append(f"{process.pid} {process.name()}")
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(0.05)
