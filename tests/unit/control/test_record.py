"""What a driver writes reaches the ledger in its order, and what nobody waits for shares the next commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from atlas.control.record import LAZY_S, Record
from atlas.kernel.errors import AtlasError, LedgerUnavailable
from atlas.kernel.event import NULL, EffectReceived, Logged, RunCreated, Spend, draft
from atlas.kernel.run import Append, Appended, NewRun, TreeLimits
from atlas.kernel.state import initial, with_live
from atlas.ledger.memory import MemoryLedger
from atlas.testing.clock import FakeClock

CREATED = RunCreated("advisor", "1.0.0", NULL, "snap", "", "seed")


class Watched(MemoryLedger):
    """The ledger in memory, which remembers how it was written to, and can be told to fail."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.batches: list[Append] = []
        self.is_failing = False

    def append(self, batch: Append, before: Append | None = None) -> Awaitable[Appended]:
        self.batches += [batch] if before is None else [before, batch]
        if self.is_failing:
            failed: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            failed.set_exception(LedgerUnavailable("the disk is full"))
            return failed
        return super().append(batch, before)

    async def said(self) -> list[str]:
        """What the run's events log, in their order."""
        bodies = [event.body.decode() for event in await self.events("run_1")]
        return [body.partition('"message":"')[2].partition('"')[0] for body in bodies if '"message"' in body]


def with_record(work: Callable[[Record, Watched, list[AtlasError]], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = FakeClock()
        ledger = Watched(clock)
        await ledger.open()
        made = draft(CREATED, clock.now_us(), "owner")
        await ledger.submit(NewRun("run_1", "", "advisor", "1.0.0", "snap", "owner", made, "run_1"))
        [claimed] = await ledger.claim("ann", limit=1, lease_s=60, max_running=9)
        lost: list[AtlasError] = []
        state = with_live(initial("run_1", "owner", CREATED))
        async with asyncio.timeout(10):
            await work(Record(ledger, clock, claimed.lease, state, lost.append), ledger, lost)
        await ledger.close()

    asyncio.run(main())


def test_what_is_lazy_goes_along_with_the_next_write_in_one_batch() -> None:
    async def work(record: Record, ledger: Watched, lost: list[AtlasError]) -> None:
        record.write(Logged("one"), lazy=True, spend=Spend(tokens_in=1))
        record.write(Logged("two"), lazy=True, spend=Spend(tokens_in=2))
        assert ledger.batches == []
        await record.write(Logged("three"), spend=Spend(tokens_in=4))
        assert [(len(batch.drafts), batch.spend.tokens_in) for batch in ledger.batches] == [(3, 7)]
        assert await ledger.said() == ["one", "two", "three"]

    with_record(work)


def test_what_is_lazy_becomes_durable_by_itself_in_a_moment() -> None:
    async def work(record: Record, ledger: Watched, lost: list[AtlasError]) -> None:
        await record.write(Logged("one"), lazy=True)
        await record.write(Logged("two"), lazy=True)
        assert await ledger.said() == ["one", "two"]
        await asyncio.sleep(LAZY_S * 2)
        assert len(ledger.batches) == 2, "nothing is handed over twice"

    with_record(work)


def test_what_was_only_just_held_back_is_not_handed_over_with_what_was_before_it() -> None:
    async def work(record: Record, ledger: Watched, lost: list[AtlasError]) -> None:
        loop = asyncio.get_running_loop()
        record.write(Logged("one"), lazy=True)
        await record.write(Logged("two"))
        await asyncio.sleep(LAZY_S * 0.6)
        began_s = loop.time()
        await record.write(Logged("three"), lazy=True)
        assert loop.time() - began_s >= LAZY_S
        assert await ledger.said() == ["one", "two", "three"]

    with_record(work)


def test_the_state_knows_at_once_what_is_held_back() -> None:
    async def work(record: Record, ledger: Watched, lost: list[AtlasError]) -> None:
        record.write(EffectReceived("step:1", spend=Spend(tokens_in=5)), lazy=True)
        assert record.state.spend.tokens_in == 5
        assert ledger.batches == []
        await record.flush()
        assert len(ledger.batches) == 1

    with_record(work)


def test_a_child_that_is_refused_takes_nothing_along() -> None:
    async def work(record: Record, ledger: Watched, lost: list[AtlasError]) -> None:
        refused: list[AtlasError] = []
        record.write(Logged("before"), lazy=True)
        made = draft(CREATED, 1, "owner")
        child = NewRun("run_2", "", "advisor", "1.0.0", "snap", "owner", made, "run_1", "run_1", depth=1)
        record.write_child(Logged("intent"), child, TreeLimits(1, 100), refused.append)
        await record.flush()
        assert len(refused) == 1
        assert await ledger.said() == ["before"]
        assert lost == []

    with_record(work)


def test_a_failure_is_told_once_and_cancels_the_promise() -> None:
    async def work(record: Record, ledger: Watched, lost: list[AtlasError]) -> None:
        ledger.is_failing = True
        promise = record.write(Logged("one"), lazy=True)
        with pytest.raises(LedgerUnavailable):
            await record.write(Logged("two"))
        await asyncio.sleep(0)
        assert promise.cancelled()
        assert [str(error) for error in lost] == ["the disk is full"]

    with_record(work)


def test_handing_over_twice_writes_once() -> None:
    async def work(record: Record, ledger: Watched, lost: list[AtlasError]) -> None:
        record.write(Logged("one"), lazy=True)
        record.hand_over()
        record.hand_over()
        await record.flush()
        assert (len(ledger.batches), ledger.batches[0].lazy) == (1, True)

    with_record(work)
