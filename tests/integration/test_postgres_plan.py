"""What a Postgres ledger reads for an answer is bounded by the answer, not by what was recorded before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from atlas.kernel.run import RunQuery
from atlas.ledger import postgres_read
from atlas.ledger.statement import load_migrations, load_statements

RUNS = 20_000
EVENTS_PER_RUN = 5
SQL = load_statements("postgres")
MIDDLE = f"run_{RUNS // 2:08d}"

_FILL = f"""
INSERT INTO run
SELECT format('run_%s', lpad(i::text, 8, '0')), format('ses_%s', i / 10), i % 10, format('agent_%s', i % 4), '1.0.0',
    'snap', format('principal_%s', i % 3),
    CASE WHEN i % 5 = 0 THEN format('run_%s', lpad((i - 1)::text, 8, '0')) ELSE '' END, '',
    format('run_%s', lpad((CASE WHEN i % 5 = 0 THEN i - 1 ELSE i END)::text, 8, '0')), 0, 0, '', '',
    CASE WHEN i > {RUNS} - 30 THEN 'queued' WHEN i > {RUNS} - 60 THEN 'running' WHEN i % 7 = 0 THEN 'failed'
         ELSE 'succeeded' END,
    i, i, CASE WHEN i > {RUNS} - 60 THEN 0 ELSE i END, 0, CASE WHEN i BETWEEN {RUNS} - 59 AND {RUNS} - 30 THEN 'ann'
    ELSE '' END, 1, CASE WHEN i BETWEEN {RUNS} - 59 AND {RUNS} - 30 THEN 9000000000000000 ELSE 0 END,
    {EVENTS_PER_RUN}, '', 0, 0, 0, 0, 0, CASE WHEN i > {RUNS} - 30 THEN i ELSE 0 END
FROM generate_series(1, {RUNS}) AS i;
INSERT INTO event
SELECT i, format('run_%s', lpad(((i - 1) / {EVENTS_PER_RUN} + 1)::text, 8, '0')), (i - 1) % {EVENTS_PER_RUN} + 1, 0,
    'logged', 1, 'owner', '', '', '', '', ''
FROM generate_series(1, {RUNS * EVENTS_PER_RUN}) AS i;
INSERT INTO signal (id, run_id, kind, principal, body, created_us, consumed_seq, is_late)
SELECT 'sig_' || run_id, run_id, 'answer', 'owner', '', 0, CASE state WHEN 'running' THEN 0 ELSE 1 END, 0 FROM run
"""


class Watch:
    """A connection that asks, before each statement, how many rows answering it will have read."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.read = 0

    def execute(self, text: str, parameters: Any = ()) -> Any:
        explain = f"EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF, FORMAT JSON) {text}"
        [(plans,)] = self._connection.execute(explain.encode(), parameters).fetchall()
        self.read += sum(_rows_read(plan["Plan"]) for plan in plans)
        return self._connection.execute(text.encode(), parameters)


def _rows_read(plan: dict[str, Any]) -> int:
    rows = 0
    if plan["Node Type"].endswith("Scan"):
        kept = (
            plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
        )
        rows = round(kept * plan["Actual Loops"])
    return rows + sum(_rows_read(child) for child in plan.get("Plans", ()))


@pytest.fixture(params=["fresh", "analyzed"])
def watch(request: pytest.FixtureRequest, pg_database: str) -> Iterator[Watch]:
    """A ledger of 20,000 runs, once as it is while it grows and once after the server has counted it."""
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA atlas")
        connection.execute(SQL["set_up"].encode(), ("off", "10000", "0", "0"))
        for _, script in load_migrations("postgres"):
            connection.execute(script.encode())
        # Autovacuum would analyze at a time of its own choosing.
        for table in ("run", "event", "signal"):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
        connection.execute(_FILL.encode())
        if request.param == "analyzed":
            connection.execute("ANALYZE")
        yield Watch(connection)


QUERIES = [
    RunQuery(),
    RunQuery(before=MIDDLE),
    RunQuery(agent="agent_3"),
    RunQuery(agent="agent_3", before=MIDDLE),
    RunQuery(agent="agent_3", states=("failed", "queued")),
    RunQuery(states=("failed",)),
    RunQuery(states=("failed", "running"), before=MIDDLE),
    RunQuery(session_id="ses_777"),
    RunQuery(principal="principal_1"),
    RunQuery(root_run_id="run_00000004"),
    RunQuery(parent_run_id="run_00000004"),
    RunQuery(roots_only=True),
    RunQuery(id_prefix=MIDDLE),
]
STATEMENTS: dict[str, tuple[Any, ...]] = {
    "last_position": (),
    "run_head": (MIDDLE,),
    "run_heads": ([MIDDLE, "run_00000001"],),
    "run_events": (MIDDLE, 2, -1),
    "feed": (RUNS, 10),
    "open_signals": (MIDDLE,),
    "has_signal": (MIDDLE,),
    "count_running": (0,),
    "lapsed_runs": (0,),
    "ready_runs": ("", 5),
    "runs_come_due": (0,),
    "one_run": (MIDDLE,),
    "has_open_turn": ("ses_777",),
    "next_turn": ("ses_777",),
    "waiting_signals": (),
}


@pytest.mark.slow
def test_answers_are_read_along_an_index(watch: Watch) -> None:
    far = {}
    for query in QUERIES:
        watch.read = 0
        page = postgres_read.runs(watch, SQL, query)
        assert page.runs, query
        # Lists by agent read a page of each of the eight states.
        if watch.read > 8 * (query.limit + 1):
            far[str(query)] = watch.read
    for name, parameters in STATEMENTS.items():
        watch.read = 0
        watch.execute(SQL[name], parameters)
        if watch.read > 100:
            far[name] = watch.read
    assert far == {}
