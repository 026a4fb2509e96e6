"""A process that spends from a pool it shares with others, until somebody kills it: `python -m` this, FOLDER OWNER SEED.

It is a driver in small: it claims runs, settles in full what a dead process left open, asks some of it again, makes
calls several at a time and ends the run. Every reservation and settlement is told in an event of the same commit, so
that the order in which things were admitted can be read from the feed afterwards.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from datetime import UTC as UTC_ZONE
from pathlib import Path

import msgspec
from msgspec.structs import replace

from atlas.kernel.budget import Cap, Hold, Pool, Reservation, Settlement, caps_at, day_at, in_full, meters_at
from atlas.kernel.contract import Budget
from atlas.kernel.errors import AtlasError, BudgetBusy, BudgetRefused, StaleLease
from atlas.kernel.event import Draft, Event, Logged, Spend, draft
from atlas.kernel.port import Ledger
from atlas.kernel.run import Append, Lease
from atlas.ledger.sqlite import SqliteLedger

LEASE_S = 60.0
CALLS_AT_ONCE = 3


class Share(msgspec.Struct, frozen=True):
    """What a schedule's processes need to know: the caps, and to which team each run belongs."""

    root: Pool
    teams: tuple[Pool, ...]
    fleet: Budget

    def pools(self, run_id: str) -> tuple[Pool, ...]:
        """The pools of a run: the tree's and its team's."""
        return (self.root, self.teams[int(run_id[-2:]) % len(self.teams)])


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one commit did to budgets."""

    settled: dict[str, Spend] = {}
    effect: str = ""
    hold: Hold | None = None
    caps: tuple[Cap, ...] = ()
    is_end: bool = False
    by: str = ""


class RealClock:
    """The machine's time and randomness."""

    def now_us(self) -> int:
        """Integer UTC microseconds."""
        return time.time_ns() // 1000

    def entropy(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        return os.urandom(size)


def open_ledger(folder: Path) -> SqliteLedger:
    """The ledger that all processes of a schedule share."""
    return SqliteLedger(folder / "ledger.db", clock=RealClock(), blobs=folder / "blobs")


def said_in(event: Event) -> Said | None:
    """What an event told about budgets, if it did."""
    if event.kind != "logged":
        return None
    return msgspec.json.decode(msgspec.json.decode(event.body, type=Logged).message, type=Said)


class Worker:
    """One process's work."""

    def __init__(self, ledger: Ledger, share: Share, owner: str, seed: str) -> None:
        self._ledger = ledger
        self._share = share
        self._owner = owner
        self._pick = random.Random(seed)
        self._clock = RealClock()
        self._number = 0

    async def work(self) -> None:
        """Drives runs until none is left."""
        while True:
            claimed = await self._ledger.claim(self._owner, limit=4, lease_s=LEASE_S, max_running=1000)
            if not claimed:
                return
            async with asyncio.TaskGroup() as group:
                for one in claimed:
                    group.create_task(self._drive(one.lease))

    async def _drive(self, lease: Lease) -> None:
        try:
            for effect, hold in (await self._left_open(lease.run_id)).items():
                await self._recover(lease, effect, hold)
            async with asyncio.TaskGroup() as group:
                for _ in range(self._pick.randrange(1, CALLS_AT_ONCE + 1)):
                    group.create_task(self._call(lease))
            await self._append(Append(lease, (self._told(Said(is_end=True)),), state="succeeded"))
        except StaleLease:
            return  # declared dead and taken over: the other one goes on

    async def _left_open(self, run_id: str) -> dict[str, Hold]:
        found: dict[str, Hold] = {}
        for event in await self._ledger.events(run_id):
            said = said_in(event)
            if said is not None:
                found = {effect: hold for effect, hold in found.items() if effect not in said.settled}
                if said.hold is not None:
                    found[said.effect] = said.hold
        return found

    async def _recover(self, lease: Lease, effect: str, hold: Hold) -> None:
        lost = in_full(effect, hold)
        if self._pick.random() < 0.5 and await self._reserve(lease, effect, (lost,)):
            return  # asked again; the end of the run settles it
        await self._settle(lease, lost)

    async def _call(self, lease: Lease) -> None:
        self._number += 1
        effect = f"{self._owner}.{self._number}"
        hold = await self._reserve(lease, effect, ())
        if hold is None:
            return
        await asyncio.sleep(self._pick.choice((0, 0.005, 0.02, 0.1)))  # the call itself
        used = self._pick.random()
        spend = Spend(1, int(hold.tokens * used), 0, int(hold.micro_usd * used))
        await self._settle(lease, Settlement(effect, spend, "sim"))

    async def _reserve(self, lease: Lease, effect: str, settle: tuple[Settlement, ...]) -> Hold | None:
        """What was admitted; None when it was refused, and then nothing was settled either."""
        pools, at_us = self._share.pools(lease.run_id), self._clock.now_us()
        names = ("sim", "owner")
        caps = caps_at(
            at_us, UTC_ZONE, fleet=self._share.fleet, contract=Budget(), agent=names[0], principal=names[1], pools=pools
        )
        meters = meters_at(at_us, UTC_ZONE, agent=names[0], principal=names[1], pools=pools)
        tokens = self._pick.randrange(2, 900)
        price = self._pick.choice((1, 3, 17, 90))
        hold = Hold(tokens * price, tokens, tokens // 2, f"sim:{price}", meters, day_at(at_us, UTC_ZONE))
        told = Said({one.effect: one.spend for one in settle}, effect, hold, caps)
        batch = Append(lease, (self._told(told),), settle=settle, reserve=Reservation(effect, hold, caps))
        try:
            await self._append(batch)
        except (BudgetRefused, BudgetBusy):
            return None
        return hold

    async def _settle(self, lease: Lease, settlement: Settlement) -> None:
        told = self._told(Said({settlement.effect: settlement.spend}))
        await self._append(Append(lease, (told,), settle=(settlement,)))

    async def _append(self, batch: Append) -> None:
        await self._ledger.append(batch)

    def _told(self, said: Said) -> Draft:
        said = replace(said, by=self._owner)
        return draft(Logged(msgspec.json.encode(said).decode()), self._clock.now_us(), "owner")


async def main(folder: Path, owner: str, seed: str) -> None:
    """Works on the schedule in the folder until it is done."""
    share = msgspec.json.decode((folder / "share.json").read_bytes(), type=Share)
    ledger = open_ledger(folder)
    await ledger.open()
    try:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await Worker(ledger, share, owner, seed).work()
    finally:
        await ledger.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
    except AtlasError as failed:
        sys.exit(f"{failed.reason}: {failed.message}")
