"""What counts as knowing that work was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from atlas.kernel.errors import LedgerUnavailable
from atlas.kernel.run import Lease
from atlas.ledger.job import Job
from atlas.ledger.lost import Lost

LEASE = Lease("run_1", "ann", 1, 0)


@pytest.fixture
def future() -> Iterator[asyncio.Future[None]]:
    loop = asyncio.new_event_loop()
    yield loop.create_future()
    loop.close()


def enter(lost: Lost, future: asyncio.Future[None]) -> Job:
    job = Job(print, future, is_write=True, lease=LEASE)
    lost.enter(job)
    return job


def lose(lost: Lost, job: Job) -> None:
    job.error = LedgerUnavailable("full")
    lost.add(job)


def hear(job: Job) -> None:
    assert job.told is not None
    job.told()


def test_hearing_of_one_loss_is_not_hearing_of_the_next(future: asyncio.Future[None]) -> None:
    lost = Lost()
    first, second = enter(lost, future), enter(lost, future)
    lose(lost, first)
    lose(lost, second)
    hear(first)
    with pytest.raises(LedgerUnavailable):
        lost.check(enter(lost, future))
    hear(second)
    lost.check(enter(lost, future))


def test_what_was_handed_over_before_hearing_builds_on_the_loss(future: asyncio.Future[None]) -> None:
    lost = Lost()
    first, behind = enter(lost, future), enter(lost, future)
    lose(lost, first)
    hear(first)
    knowing = enter(lost, future)
    with pytest.raises(LedgerUnavailable):
        lost.check(behind)
    lost.check(knowing)
    lost.check(enter(lost, future))
