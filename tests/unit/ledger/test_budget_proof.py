"""The budget proof: a short one holds, and it fails on a ledger that does not look before it admits."""

from __future__ import annotations

from collections.abc import Sequence

from atlas.kernel.budget import Balance, Cap
from atlas.ledger.memory import MemoryLedger
from atlas.ledger.memory_budget import MemoryBook
from atlas.testing.budget_proof import play_chunk, prove
from atlas.testing.clock import FakeClock


class BlindBook(MemoryBook):
    """Finds every cap untouched, so that everything is admitted."""

    def balances(self, caps: Sequence[Cap]) -> list[Balance]:
        return [Balance()] * len(caps)


class UncheckedLedger(MemoryLedger):
    """Records reservations without asking whether there is room for them."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._book = BlindBook(self._set, self._drop)


def quiet(_line: str) -> None:
    return None


def test_no_schedule_in_memory_passes_a_cap() -> None:
    report = prove(schedules=20, processes=0, seed=11, report=quiet, make_ledger=MemoryLedger)
    assert report.ok, report
    assert (report.overshoots, report.worst_overshoot_micro_usd) == (0, 0)
    assert report.fullest_cap > 0.9, "the caps were never put to the test"
    for name in ("admissions", "refusals", "waits", "crashes", "retries", "calls_lost", "stale_owners_refused"):
        assert getattr(report, name) > 0, name
    assert report.counted_micro_usd >= report.billed_micro_usd > 0


def test_no_schedule_on_sqlite_passes_a_cap() -> None:
    count, tally = play_chunk("sqlite", range(3))
    assert (count, tally.overshoots, tally.complaints) == (3, 0, [])
    assert tally.admissions > 50


def test_no_schedule_with_killed_processes_passes_a_cap() -> None:
    report = prove(schedules=0, processes=2, seed=5, report=quiet)
    assert report.ok, report
    assert (report.overshoots, report.schedules_processes) == (0, 2)
    assert report.processes_killed > 0


def test_the_proof_fails_when_the_ledger_does_not_check() -> None:
    report = prove(schedules=5, processes=0, seed=11, report=quiet, make_ledger=UncheckedLedger)
    assert not report.ok
    assert report.overshoots > 0
    assert report.worst_overshoot_micro_usd > 0
