"""The budget proof: no schedule of children, crashes, retries and late settlements gets past a cap.

    prove        schedules in memory and on SQLite, then schedules with real processes that are killed -> BudgetProof

The ledgers are the production ones. Most schedules play in memory, where one takes milliseconds; every twentieth plays
on a SQLite file, with the commits of a burst in one group; those with processes play on SQLite too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from random import SystemRandom
from typing import Final

import msgspec

from atlas.kernel.port import Ledger
from atlas.ledger.memory import MemoryLedger
from atlas.ledger.sqlite import SqliteLedger
from atlas.testing.budget_kill import play_killed
from atlas.testing.budget_sim import CHILDREN, Schedule, Tally
from atlas.testing.clock import FakeClock

SQLITE_SHARE: Final = 20  # one schedule in so many
_CHUNK: Final = 50
_SHOWN: Final = 20


class BudgetProof(msgspec.Struct, frozen=True):
    """What was tried and what became of the promise; `ok` is True when no cap was ever passed."""

    ok: bool
    overshoots: int
    worst_overshoot_micro_usd: int
    fullest_cap: float
    schedules_memory: int
    schedules_sqlite: int
    schedules_processes: int
    children_per_schedule: int
    admissions: int
    refusals: int
    waits: int
    settlements: int
    crashes: int
    processes_killed: int
    calls_lost: int
    calls_lost_by_kills: int
    retries: int
    late_settlements: int
    stale_owners_refused: int
    billed_micro_usd: int
    counted_micro_usd: int
    seed: int
    seconds: float
    complaints: tuple[str, ...]


def prove(
    *,
    schedules: int,
    processes: int,
    seed: int | None,
    report: Callable[[str], None],
    make_ledger: Callable[[FakeClock], Ledger] | None = None,
) -> BudgetProof:
    """Plays `schedules` in this program and `processes` with real processes; progress goes to `report`.

    The same seed draws the same schedules. With `make_ledger` all in-process schedules play on such a ledger, one after
    another: that is how the proof is shown to fail on a ledger that does not check.
    """
    began_s = time.monotonic()
    chosen = SystemRandom().randrange(2**32) if seed is None else seed
    sqlite = 0 if make_ledger else schedules // SQLITE_SHARE
    memory = schedules - sqlite
    total, killed = Tally(), Tally()
    if make_ledger is not None:
        total.add(asyncio.run(_on_memory(range(chosen, chosen + memory), make_ledger)))
    else:
        _spread(total, chosen, memory, sqlite, report)
    for number in range(processes):
        killed.add(play_killed(chosen + number))
        if (number + 1) % 20 == 0:
            report(f"processes: {number + 1} of {processes} schedules, {killed.crashes} killed, {_told(killed)}")
    lost = total.crashes
    total.add(killed)
    complaints = list(total.complaints)
    if total.overshoots:
        complaints.insert(0, f"a cap was passed at {total.overshoots} of {total.admissions} admissions")
    return BudgetProof(
        ok=not complaints and total.admissions > 0,
        overshoots=total.overshoots,
        worst_overshoot_micro_usd=total.worst_overshoot_micro_usd,
        fullest_cap=round(total.fullest, 6),
        schedules_memory=memory,
        schedules_sqlite=sqlite,
        schedules_processes=processes,
        children_per_schedule=CHILDREN,
        admissions=total.admissions,
        refusals=total.refusals,
        waits=total.waits,
        settlements=total.settlements,
        crashes=lost,
        processes_killed=killed.crashes,
        calls_lost=total.lost,
        calls_lost_by_kills=killed.lost,
        retries=total.retries,
        late_settlements=total.late,
        stale_owners_refused=total.stale,
        billed_micro_usd=total.billed_micro_usd,
        counted_micro_usd=total.counted_micro_usd,
        seed=chosen,
        seconds=round(time.monotonic() - began_s, 1),
        complaints=tuple(complaints[:_SHOWN]),
    )


def _spread(total: Tally, seed: int, memory: int, sqlite: int, report: Callable[[str], None]) -> None:
    """Plays on every core of the machine: schedules share nothing."""
    chunks = [("memory", chunk) for chunk in _chunks(range(seed, seed + memory))]
    chunks += [("sqlite", chunk) for chunk in _chunks(range(seed + memory, seed + memory + sqlite))]
    done = told = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), context) as pool:
        for future in as_completed([pool.submit(play_chunk, kind, chunk) for kind, chunk in chunks]):
            size, tally = future.result()
            total.add(tally)
            done += size
            if done - told >= (memory + sqlite) / 10:
                told = done
                report(f"schedules: {done} of {memory + sqlite}, {_told(total)}")


def play_chunk(kind: str, seeds: range) -> tuple[int, Tally]:
    """How many schedules were played, and what they came to; runs in a process of its own."""
    if kind == "memory":
        return len(seeds), asyncio.run(_on_memory(seeds, MemoryLedger))
    return len(seeds), asyncio.run(_on_sqlite(seeds))


async def _on_memory(seeds: Iterable[int], make_ledger: Callable[[FakeClock], Ledger]) -> Tally:
    total = Tally()
    for seed in seeds:
        clock = FakeClock()
        ledger = make_ledger(clock)
        await ledger.open()
        total.add(await Schedule(ledger, clock, seed, f"run_{seed}").play())
        await ledger.close()
    return total


async def _on_sqlite(seeds: Iterable[int]) -> Tally:
    """A file for each schedule: meters of periods are shared by all that is in one."""
    total = Tally()
    for seed in seeds:
        folder = Path(tempfile.mkdtemp(prefix="atlas-budget-"))
        clock = FakeClock()
        ledger = SqliteLedger(folder / "ledger.db", clock=clock, blobs=folder / "blobs")
        await ledger.open()
        try:
            total.add(await Schedule(ledger, clock, seed, f"run_{seed}").play())
        finally:
            await ledger.close()
            shutil.rmtree(folder, ignore_errors=True)
    return total


def _chunks(seeds: range) -> list[range]:
    return [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]


def _told(tally: Tally) -> str:
    return f"{tally.admissions:,} admissions, {tally.overshoots} past a cap, fullest {tally.fullest:.1%}"
