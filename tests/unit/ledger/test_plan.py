"""Every statement that a large ledger runs often is answered by an index, never by reading or sorting a table."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from atlas.kernel.run import RunQuery
from atlas.ledger.migrate import split
from atlas.ledger.sqlite_read import _list_statement
from atlas.ledger.statement import load_migrations, load_statements

SQL = load_statements("sqlite")


@pytest.fixture
def database() -> Any:
    connection = sqlite3.connect(":memory:")
    for _, script in load_migrations("sqlite"):
        for statement in split(script):
            connection.execute(statement)
    yield connection
    connection.close()


def plan(database: sqlite3.Connection, text: str, values: Any) -> list[str]:
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", values)]


# The inbox and the signals nobody has consumed are short lists that are read whole, along an index.
WHOLE = {"list_inbox", "waiting_signals"}
# Few runs are lapsed at a time; sorting them is cheap. Who holds leases is a short list.
SORTED = {"lapsed_runs", "lease_owners", "expire_owner", "list_inbox_of_run"}
# Spend has one row for each day, agent and principal.
SMALL = {"list_spend", "list_spend_of_agent"}


@pytest.mark.parametrize("name", sorted(SQL))
def test_statements_use_indexes(database: sqlite3.Connection, name: str) -> None:
    text = SQL[name]
    if name.startswith(("if_", "where_", "newest_", "insert_", "select_")):
        return
    steps = plan(database, text, (None,) * text.count("?"))
    if name not in WHOLE | SMALL:
        assert not [step for step in steps if step.startswith("SCAN")], steps
    if name not in SORTED | SMALL:
        assert not [step for step in steps if "TEMP B-TREE" in step], steps


QUEUE = {
    "runs_come_due": "run_later (due_us<?)",
    "ready_runs": "run_ready (place=?)",
    "lapsed_runs": "run_leased (lease_until_us<?)",
    "count_running": "COVERING INDEX run_leased (lease_until_us>?)",
    "lease_owners": "COVERING INDEX run_leased (lease_until_us>?)",
    "expire_owner": "run_leased (lease_until_us>?)",
    "has_open_turn": "run_turn (session_id=?",
    "next_turn": "run_turn (session_id=?",
    "has_signal": "signal_open (run_id=?)",
    "waiting_signals": "signal_waiting",
}


@pytest.mark.parametrize("name, index", QUEUE.items())
def test_the_queue_reads_only_what_is_queued_or_leased(database: sqlite3.Connection, name: str, index: str) -> None:
    steps = plan(database, SQL[name], (None,) * SQL[name].count("?"))
    assert index in steps[0], steps


QUERIES: list[tuple[RunQuery, str]] = [
    (RunQuery(), "sqlite_autoindex_run_1"),
    (RunQuery(before="x"), "sqlite_autoindex_run_1"),
    (RunQuery(id_prefix="run_0"), "sqlite_autoindex_run_1"),
    (RunQuery(agent="a"), "run_by_agent (agent=? AND state=?)"),
    (RunQuery(agent="a", before="x"), "run_by_agent (agent=? AND state=? AND run_id<?)"),
    (RunQuery(agent="a", states=("failed", "queued")), "run_by_agent (agent=? AND state=?)"),
    (RunQuery(agent="a", principal="p", roots_only=True), "run_by_agent (agent=? AND state=?)"),
    (RunQuery(states=("failed",)), "run_by_state (state=?)"),
    (RunQuery(states=("failed",), roots_only=True, principal="p"), "run_by_state (state=?)"),
    (RunQuery(principal="p"), "run_by_principal (principal=?)"),
    (RunQuery(principal="p", roots_only=True), "run_by_principal (principal=?)"),
    (RunQuery(roots_only=True), "run_by_parent (parent_run_id=?)"),
    (RunQuery(roots_only=True, before="x"), "run_by_parent (parent_run_id=? AND run_id<?)"),
    (RunQuery(session_id="s", agent="a", states=("queued",)), "run_by_session (session_id=?)"),
    (RunQuery(root_run_id="r", session_id="s"), "run_by_root (root_run_id=?)"),
    (RunQuery(parent_run_id="r", root_run_id="r", states=("queued",)), "run_by_parent (parent_run_id=?)"),
]


@pytest.mark.parametrize("query, index", QUERIES)
def test_lists_of_runs_read_one_index_in_order(database: sqlite3.Connection, query: RunQuery, index: str) -> None:
    text, _ = _list_statement(SQL, query)
    values = dict.fromkeys(
        ("agent", "state", "states", "session_id", "principal", "root_run_id", "parent_run_id", "id_prefix"), ""
    )
    steps = plan(database, text, values | {"id_after": "", "before": "", "limit": 1, "states": "[]"})
    assert index in steps[0], steps
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


def test_the_last_children_read_one_index_in_order(database: sqlite3.Connection) -> None:
    steps = plan(database, f"{SQL['select_run']} {SQL['where_ended_child']}", ("a", "s", 3))
    assert "run_ended_child (agent=? AND snapshot=? AND ended_us>?)" in steps[0]
    assert not [step for step in steps if "TEMP B-TREE" in step], steps
