"""A schedule with real processes: several spend from one pool in one SQLite file, and are killed at random.

Judged from outside: the feed tells every reservation and settlement in the order of commits, so the second books are
kept from it and looked at after each admission.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

import msgspec

from atlas.kernel.budget import Pool, in_full
from atlas.kernel.contract import Budget
from atlas.kernel.errors import Fault
from atlas.kernel.event import NULL, Logged, RunCreated, draft
from atlas.kernel.port import Ledger
from atlas.kernel.run import Append, NewRun
from atlas.testing.budget_book import ShadowBook
from atlas.testing.budget_process import LEASE_S, RealClock, Said, Share, open_ledger, said_in
from atlas.testing.budget_sim import CHILDREN, TEAMS, Tally

_PROCESSES = 3
_START_S = 60.0


class KillSchedule:
    """One tree, its processes and the killing."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._pick = random.Random(f"kill {seed}")
        self._seed = seed
        money = self._pick.randrange(20_000, 900_000)
        root = Pool("run_kill_root", money, self._pick.randrange(10_000, 100_000))
        teams = tuple(Pool(f"run_kill_team{index}", int(money * 0.4)) for index in range(TEAMS))
        day = self._pick.choice((None, money / 1e6 * 0.8))
        self._share = Share(root, teams, Budget(usd_per_day=day, usd_per_7d=money / 1e6))
        self._clock = RealClock()
        self.kills = 0

    async def play(self) -> Tally:
        """Plays to the end and judges it."""
        ledger = open_ledger(self._folder)
        await ledger.open()
        try:
            await self._set_up(ledger)
            running = {f"p{number}": await self._start(f"p{number}") for number in range(_PROCESSES)}
            try:
                await self._storm(ledger, running)
            finally:
                for process in running.values():
                    await _kill(process)
            for owner in await ledger.owners():
                await ledger.expire(owner)
            await self._finish(ledger)
            return await self._judge(ledger)
        finally:
            await ledger.close()

    async def _set_up(self, ledger: Ledger) -> None:
        (self._folder / "share.json").write_bytes(msgspec.json.encode(self._share))
        for index in range(CHILDREN):
            created = draft(RunCreated("sim", "1.0.0", NULL, "snap", "", "seed"), self._clock.now_us(), "owner")
            run_id = f"run_kill_{index:02d}"
            root = self._share.root.run_id
            await ledger.submit(NewRun(run_id, "", "sim", "1.0.0", "snap", "owner", created, root, depth=1))

    async def _start(self, owner: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "atlas.testing.budget_process", str(self._folder), owner, f"{self._seed}/{owner}"),
            stdin=DEVNULL,
            stdout=PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(_START_S):
            line = await process.stdout.readline()
        if line.strip() != b"ready":
            await _kill(process)
            raise Fault("a process of the proof did not start", code="proof_broken")
        return process

    async def _storm(self, ledger: Ledger, running: dict[str, Process]) -> None:
        """Kills at moments of its own choosing, until every run has ended or enough processes were lost."""
        for round_number in range(self._pick.randrange(1, _PROCESSES + 1)):
            await asyncio.sleep(self._pick.random() ** 2 * 0.25)
            owner = self._pick.choice(sorted(running))
            process = running.pop(owner)
            self.kills += process.returncode is None
            await _kill(process)
            await ledger.expire(owner)
            if self._pick.random() < 0.5:
                name = f"r{round_number}"
                running[name] = await self._start(name)
        for process in running.values():
            async with asyncio.timeout(_START_S):
                if await process.wait():
                    raise Fault("a process of the proof failed", code="proof_broken")

    async def _finish(self, ledger: Ledger) -> None:
        """Ends what nobody ended; what it held is settled in full."""
        for claimed in await ledger.claim("judge", limit=CHILDREN, lease_s=LEASE_S, max_running=1000):
            told = Logged(msgspec.json.encode(Said(is_end=True)).decode())
            note = draft(told, self._clock.now_us(), "owner")
            await ledger.append(Append(claimed.lease, (note,), state="failed"))

    async def _judge(self, ledger: Ledger) -> Tally:
        book, tally = ShadowBook(), Tally(crashes=self.kills)
        for event in await ledger.feed(0, 0):
            said = said_in(event)
            if said is None:
                continue
            for effect, spend in said.settled.items():
                book.settled(event.run_id, effect, spend)
                tally.lost += not effect.startswith(f"{said.by}.")
            if said.hold is not None:
                book.reserved(event.run_id, said.effect, said.hold, said.caps)
            if said.is_end:
                for effect in book.open_effects(event.run_id):
                    hold = book.holds[event.run_id, effect]
                    tally.lost += not effect.startswith(f"{said.by}.")
                    book.settled(event.run_id, effect, in_full(effect, hold).spend)
        caps = book.caps()
        found = await ledger.balances(caps)
        name = f"processes, schedule {self._seed}"
        if [book.balance(cap) for cap in caps] != list(found):
            tally.complaints.append(f"{name}: the ledger and its own feed differ")
        if book.holds or any(one.held_micro_usd or one.held_tokens for one in found):
            tally.complaints.append(f"{name}: something is still reserved after every run has ended")
        tally.admissions, tally.settlements = book.admissions, book.settlements
        tally.overshoots, tally.worst_overshoot_micro_usd = book.overshoots, book.worst_overshoot
        tally.fullest = book.fullest
        return tally


async def _kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def play_killed(seed: int) -> Tally:
    """What one schedule with real processes came to; its files are removed."""
    folder = Path(tempfile.mkdtemp(prefix="atlas-budget-"))
    try:
        return asyncio.run(KillSchedule(folder, seed).play())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
