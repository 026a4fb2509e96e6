"""One lane of the crash proof of prompt runs: one run at a time, killed and taken up again until it has ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from atlas.control.history import bodies
from atlas.kernel.event import EffectIntended
from atlas.kernel.run import RunQuery
from atlas.testing.chaos_driver import DriverProcess
from atlas.testing.chaos_plan import AtPoint, AtRandom
from atlas.testing.chaos_prompt_check import PromptFindings, judge, step_of
from atlas.testing.chaos_prompt_site import PERSONA, STEPS, Kind, PromptDesk, PromptSite, acts
from atlas.testing.fault import COMMITS, POINTS
from atlas.testing.provider import ProviderProcess

_KILLED: Final = -9
_WAITS: Final = 4
_HANG_S: Final = 120.0
_SOON_S: Final = 10.0
_TRIES: Final = 40
# Those that a turn without children and questions crosses.
_POINTS: Final = tuple(point for point in POINTS if not point.startswith(("spawn", "asked", "park")))


class Lane:
    """A vault, a provider and the runs made there."""

    def __init__(self, site: PromptSite, provider: ProviderProcess, rng: Random) -> None:
        self.site = site
        self.hits: Counter[str] = Counter()
        self.runs: list[str] = []
        self.findings: list[PromptFindings] = []
        self.complaints: list[str] = []
        self.is_chain_ok = False
        self._provider = provider
        self._rng = rng
        self._reference: dict[Kind, dict[int, bytes]] = {}
        self._drivers = 0
        self._desk: PromptDesk

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """The ledger is open inside; on the way out every chain is recomputed."""
        async with PromptDesk.open(self.site) as self._desk:
            yield
            verified = await self._desk.verify()
        self.is_chain_ok = verified.ok
        self.complaints += [f"verify: {finding.message}" for finding in verified.findings]

    async def undisturbed(self, kind: Kind) -> None:
        """A run that nobody kills, whose requests are the measure for all others."""
        asked = await self._run(kind, ())
        self._reference[kind] = {step_of(body): body for body in asked}
        wanted = 0 if kind == "scripted" else len(STEPS) + 1
        if len(asked) != wanted or len(self._reference[kind]) != wanted:
            self.complaints.append(f"an undisturbed run asked {kind} {len(asked)} times, not {wanted}")
        await self._judge(kind, asked)

    async def struck(self, kind: Kind, point: str, number: int) -> bool:
        """A run that is killed there once; False when it never came there."""
        before = self.hits[point]
        await self._judge(kind, await self._run(kind, (AtPoint(point, number),)))
        return self.hits[point] > before

    async def random(self, kind: Kind, most: int) -> None:
        """A run that is struck up to `most` times, anywhere."""
        strikes = [self._draw() for _ in range(self._rng.randint(1, most))]
        await self._judge(kind, await self._run(kind, strikes))

    def _draw(self) -> AtPoint | AtRandom:
        match self._rng.randrange(4):
            case 0:
                return AtPoint(self._rng.choice(COMMITS), self._rng.randint(1, 16))
            case 1:
                return AtPoint(self._rng.choice(_POINTS), self._rng.randint(1, 3))
            case 2:
                return AtRandom("driver")
            case _:
                return AtRandom("worker")

    async def _run(self, kind: Kind, strikes: Iterable[AtPoint | AtRandom]) -> list[bytes]:
        """Takes a run to its end, through every strike; what the provider was sent meanwhile."""
        self._provider.plan(*acts(), by="turn")
        words = ("run", kind, "Do the ten steps.", "--key", f"{len(self.runs)}", "--json")
        left = iter(strikes)
        for number in range(_TRIES):
            status = await self._attempt(words, next(left, None))
            if status == _WAITS:
                await self._desk.answer_all()
            elif status != _KILLED:
                break
            if await self._has_asked():
                self.site.write_persona(kind, f"{PERSONA}Edited while process {number} was dead.\n")
        else:
            self.complaints.append(f"a run does not come to an end in {_TRIES} processes")
        self.site.write_persona(kind, PERSONA)
        self.runs.append(await self._newest())
        await self._while(lambda: self._provider.record().open > 0)
        return [seen.body for seen in self._provider.record().seen]

    async def _has_asked(self) -> bool:
        """Whether the run under way has its first request on record, and with it what its owner had written."""
        run_id = await self._newest()
        events = [] if run_id in self.runs else await self._desk.ledger.events(run_id)
        return any(isinstance(body, EffectIntended) and body.kind == "model" for _, body in bodies(events))

    async def _newest(self) -> str:
        rows = (await self._desk.ledger.runs(RunQuery(limit=1))).runs
        return rows[0].run_id if rows else ""

    async def _attempt(self, words: tuple[str, ...], strike: AtPoint | AtRandom | None) -> int:
        """One process, struck; how it ended."""
        self._drivers += 1
        fault = f"{strike.point}:{strike.number}:kill" if isinstance(strike, AtPoint) else ""
        driver = await DriverProcess.start(self.site, self._drivers, words, fault)
        if isinstance(strike, AtRandom):
            await self._while(lambda: driver.is_running and not driver.workers())
            await driver.ended(self._rng.uniform(0.0, 0.5))
            if strike.target == "worker":
                self.hits["random.worker"] += driver.kill_worker(self._rng.randrange(100))
            else:
                driver.kill()
        status = await driver.ended(_HANG_S)
        if status == _KILLED:
            self.hits["random.driver" if driver.was_killed else fault.partition(":")[0]] += 1
        elif status not in (0, _WAITS):
            self.complaints.append(f"a process ended with {status}: {driver.printed}")
        if driver.kill():
            await driver.ended(_HANG_S)
        return status if status is not None else 1

    async def _judge(self, kind: Kind, asked: list[bytes]) -> None:
        run_id = self.runs[-1]
        recorded = [body for _, body in bodies(await self._desk.ledger.events(run_id))]
        self.findings.append(judge(run_id, recorded, self.site.lines(), asked, self._reference[kind]))

    async def _while(self, goes_on: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SOON_S
        while goes_on() and time.monotonic() < deadline:  # noqa: ASYNC110 - other processes set no event of ours
            await asyncio.sleep(0.02)
