"""The crash proof: kills drivers and workers at every boundary and at random, and counts what was lost or repeated.

    main         one storm per ledger -> ChaosReport

Drivers are real `atlas up` processes, their workers real children, and every effect is a line in a file outside the
vault. What became of it all is judged from outside, by `chaos_check`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import Final, Literal

import msgspec

from atlas.testing.chaos_postgres import database
from atlas.testing.chaos_site import Site
from atlas.testing.chaos_storm import Outcome, Storm

_SHOWN: Final = 50


class ChaosReport(msgspec.Struct, frozen=True):
    """What the storms did and what became of the promises; `ok` is True when every one was kept."""

    ok: bool
    kills: int
    kills_by_point: dict[str, int]
    runs: int
    runs_completed: int
    effects: int
    effects_lost: int
    effects_duplicated: int
    in_doubt: int
    in_doubt_expected: int
    chain_ok: bool
    ledgers: tuple[str, ...]
    seed: int
    seconds: float
    complaints: tuple[str, ...]


def main(
    *,
    kills: int,
    ledger: Literal["sqlite", "postgres", "both"],
    seed: int | None,
    report: Callable[[str], None],
) -> ChaosReport:
    """Kills at least `kills` times on each ledger named; progress goes to `report`.

    The same seed draws the same plan; when each kill lands still depends on the machine. A Postgres server is started
    for the purpose unless ATLAS_LEDGER_URL names one, on which a database is made and dropped. The files of a
    storm that broke a promise are kept, and `report` says where.
    """
    chosen = SystemRandom().randrange(2**32) if seed is None else seed
    ledgers = ("sqlite", "postgres") if ledger == "both" else (ledger,)
    outcomes = [_storm(name, kills, chosen, report) for name in ledgers]
    hits: Counter[str] = Counter()
    for outcome in outcomes:
        hits.update(outcome.hits)
    complaints = tuple(complaint for outcome in outcomes for complaint in outcome.complaints)
    return ChaosReport(
        ok=not complaints,
        kills=hits.total(),
        kills_by_point=dict(sorted(hits.items())),
        runs=sum(outcome.runs for outcome in outcomes),
        runs_completed=sum(outcome.findings.completed for outcome in outcomes),
        effects=sum(outcome.findings.effects for outcome in outcomes),
        effects_lost=sum(outcome.findings.lost for outcome in outcomes),
        effects_duplicated=sum(outcome.findings.duplicated for outcome in outcomes),
        in_doubt=sum(outcome.findings.doubted for outcome in outcomes),
        in_doubt_expected=sum(outcome.findings.doubted_expected for outcome in outcomes),
        chain_ok=all(outcome.is_chain_ok for outcome in outcomes),
        ledgers=ledgers,
        seed=chosen,
        seconds=round(sum(outcome.seconds for outcome in outcomes), 1),
        complaints=complaints[:_SHOWN],
    )


def _storm(name: str, kills: int, seed: int, report: Callable[[str], None]) -> Outcome:
    root = Path(tempfile.mkdtemp(prefix="atlas-chaos-"))
    outcome: Outcome | None = None
    try:
        with database(name) as url:
            site = Site(root, url)
            site.create()
            outcome = asyncio.run(Storm(site, name, kills, seed, report).run())
    finally:
        if outcome is not None and not outcome.complaints:
            shutil.rmtree(root, ignore_errors=True)
        else:
            report(f"{name}: what the storm left is kept in {root}")
    return outcome
