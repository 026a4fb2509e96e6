"""Measures what policy and budget add to one effect: CPU, with 1,000 rules and every kind of cap.

Usage: gate.py [--json]

`measure_gate` gives the numbers to the other measurements. The budget's part is the difference between an intent and
a receipt with a reservation and without, on the ledger's own commit code over SQLite, working out caps and meters
included. Nothing is read beforehand where there is room. Commits are not synced here: that costs the same either way.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

from atlas.kernel.budget import Pool, Reservation, Settlement, caps_at, day_at, meters_at
from atlas.kernel.contract import Budget
from atlas.kernel.event import NULL, Logged, RunCreated, Spend, draft
from atlas.kernel.hold import Hold
from atlas.kernel.policy import CompiledPolicy, Proposal, policy_of, rule_on
from atlas.kernel.rule import Layer, Match, Rule
from atlas.kernel.run import Append, Lease, NewRun
from atlas.ledger import commit, migrate, queue
from atlas.ledger.sqlite_desk import SqliteDesk, connect
from atlas.ledger.statement import load_migrations, load_statements
from atlas.testing.clock import FakeClock

RULES = 1_000
LIMIT_MS = 0.2
_ROUNDS = 7
_EFFECTS = 400
_BUDGET = Budget(usd_per_day=1000, usd_per_7d=5000, usd_per_month=9000, warn_at=(0.5, 0.8))
_POOLS = (Pool("run_root", 10**12), Pool("run_middle", 10**12), Pool("run_own", 10**12, 10**12))


def measure_gate() -> dict[str, float]:
    """CPU milliseconds per effect: of policy, of budget, of both, and what is allowed; each the best of several rounds."""
    policy_ms = min(_policy() for _ in range(_ROUNDS))
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(Path(folder))
        with_ms = min(bench.round(has_budget=True) for _ in range(_ROUNDS))
        without_ms = min(bench.round(has_budget=False) for _ in range(_ROUNDS))
        bench.close()
    budget_ms = max(0.0, with_ms - without_ms)
    return {
        "policy_ms": round(policy_ms, 4),
        "budget_ms": round(budget_ms, 4),
        "gate_ms": round(policy_ms + budget_ms, 4),
        "limit_ms": LIMIT_MS,
    }


def _policy() -> float:
    rules = tuple(
        Rule(f"r{number}", "ask", Match(tool=f"tool_{number}_*", args={"path": "/srv/*"}), "asked")
        for number in range(RULES - 2)
    )
    owner = (Rule("web", "allow", Match(tool="web_fetch")), Rule("all", "allow", Match(tool="*_fetch", agent="adv*")))
    compiled = CompiledPolicy(policy_of([Layer("fleet", True, owner), Layer("project", False, rules)]))
    proposal = Proposal("tool", "web_fetch", "external_side_effect", {"url": "http://127.0.0.1/x"}, "advisor", "owner")
    return _cpu_ms(lambda: rule_on(proposal, compiled, lambda _text, _values: True))


class _Bench:
    """One run on a SQLite ledger; a week of hours has been spent in before."""

    def __init__(self, folder: Path) -> None:
        self._clock = FakeClock()
        path = folder / "ledger.db"
        migrations = load_migrations("sqlite")
        connection = connect(path, busy_s=1.0, is_reader=False)
        migrate.prepare(connection, path, migrations, self._clock, 1.0)
        self._desk = SqliteDesk(connection, path, load_statements("sqlite"), len(migrations), self._clock)
        self._note = draft(Logged("x" * 200), 0, "owner")
        self._desk.begin(())
        created = draft(RunCreated("advisor", "1.0.0", NULL, "snap", "", "seed"), 0, "owner")
        commit.submit(self._desk, NewRun("run_own", "", "advisor", "1.0.0", "snap", "owner", created, "run_own"))
        [claimed] = queue.claim(self._desk, queue.Wanted("ann", 1, 10**9, 9, ("",), "run_own"))
        self._lease: Lease = claimed.lease
        for _ in range(24 * 8):
            self._effect("past", has_budget=True)
            self._clock.advance(3_600)
        self._desk.commit()
        self._number = 0

    def round(self, *, has_budget: bool) -> float:
        """CPU milliseconds of an intent and its receipt."""
        self._desk.begin(())

        def effect() -> None:
            self._number += 1
            self._effect(f"e{self._number}", has_budget=has_budget)
            self._desk.flush()

        try:
            return _cpu_ms(effect)
        finally:
            self._desk.commit()

    def close(self) -> None:
        """Gives the file back."""
        self._desk.close()

    def _effect(self, effect: str, *, has_budget: bool) -> None:
        if not has_budget:
            commit.append(self._desk, Append(self._lease, (self._note,)))
            commit.append(self._desk, Append(self._lease, (self._note,), spend=Spend(1, 90, 20, 7)))
            return
        at_us = self._clock.now_us()
        caps = caps_at(at_us, UTC, fleet=_BUDGET, contract=_BUDGET, agent="advisor", principal="owner", pools=_POOLS)
        meters = meters_at(at_us, UTC, agent="advisor", principal="owner", pools=_POOLS)
        hold = Hold(5_096, 5_096, 4_096, "lab:small", meters, day_at(at_us, UTC))
        reserve = Reservation(effect, hold, caps)
        commit.append(self._desk, Append(self._lease, (self._note,), reserve=reserve))
        settled = Settlement(effect, Spend(1, 90, 20, 7), "lab:small")
        commit.append(self._desk, Append(self._lease, (self._note,), settle=(settled,)))


def _cpu_ms(work: Callable[[], object]) -> float:
    began_ns = time.process_time_ns()
    for _ in range(_EFFECTS):
        work()
    return (time.process_time_ns() - began_ns) / _EFFECTS / 1e6


def main() -> int:
    """Prints the numbers; 1 when the gate costs more than it may."""
    found = measure_gate()
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        for name, value in found.items():
            sys.stdout.write(f"{name:10} {value}\n")
    return 0 if found["gate_ms"] <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
