"""Queries on SQLite. Each runs on a reader's connection and sees one moment of the ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import starmap
from typing import Any, get_args

import msgspec

from atlas.kernel.event import Event, Spend
from atlas.kernel.run import InboxItem, RunPage, RunQuery, RunRow, RunState, SessionRow, Signal, SpendRow
from atlas.ledger.rule import no_run, no_session

Statements = dict[str, str]
_STATES: tuple[RunState, ...] = get_args(RunState)
_LAST_CHARACTER = "\U0010ffff"


def events(db: sqlite3.Connection, sql: Statements, run_id: str, after: int, limit: int) -> list[Event]:
    """Events of one run, in order."""
    return list(starmap(Event, db.execute(sql["run_events"], (run_id, after, limit or -1))))


def feed(db: sqlite3.Connection, sql: Statements, after: int, limit: int) -> list[Event]:
    """Events of all runs, in commit order."""
    return list(starmap(Event, db.execute(sql["feed"], (after, limit or -1))))


def head(db: sqlite3.Connection, sql: Statements) -> int:
    """The last position."""
    return int(db.execute(sql["last_position"]).fetchone()[0] or 0)


def run(db: sqlite3.Connection, sql: Statements, run_id: str) -> RunRow:
    """One run's row."""
    row = db.execute(f"{sql['select_run']} {sql['where_run']}", (run_id,)).fetchone()
    if row is None:
        raise no_run(run_id)
    return _run_row(row)


def runs(db: sqlite3.Connection, sql: Statements, query: RunQuery) -> RunPage:
    """One page of runs, newest first, read along one index whatever the size of the ledger."""
    limit = max(query.limit, 1)
    text, states = _list_statement(sql, query)
    values: dict[str, Any] = msgspec.structs.asdict(query)
    values |= {"id_after": query.id_prefix + _LAST_CHARACTER, "limit": limit + 1}
    values["states"] = msgspec.json.encode(query.states).decode()
    db.execute("BEGIN")  # one moment for all states: a run that changes state is listed once
    rows: list[Any] = []
    for state in states:
        rows += db.execute(text, values | {"state": state}).fetchall()
    db.execute("COMMIT")
    rows.sort(reverse=True)  # by run_id, the first column, which is unique
    page = tuple(_run_row(row) for row in rows[:limit])
    return RunPage(page, page[-1].run_id if len(rows) > limit else "")


def last_children(db: sqlite3.Connection, sql: Statements, agent: str, snapshot: str, limit: int) -> list[RunRow]:
    """Ended children of an agent, newest end first."""
    rows = db.execute(f"{sql['select_run']} {sql['where_ended_child']}", (agent, snapshot, limit))
    return [_run_row(row) for row in rows]


def session(db: sqlite3.Connection, sql: Statements, session_id: str) -> SessionRow:
    """One session."""
    row = db.execute(sql["get_session"], (session_id,)).fetchone()
    if row is None:
        raise no_session(session_id)
    return SessionRow(*row)


def signals(db: sqlite3.Connection, sql: Statements, run_id: str) -> list[Signal]:
    """Open signals of one run, or of all that have not ended, oldest first."""
    rows = db.execute(sql["open_signals"], (run_id,)) if run_id else db.execute(sql["waiting_signals"])
    return list(starmap(Signal, rows))


def inbox(db: sqlite3.Connection, sql: Statements, run_id: str) -> list[InboxItem]:
    """What waits for a person, oldest first."""
    rows = db.execute(sql["list_inbox_of_run"], (run_id,)) if run_id else db.execute(sql["list_inbox"])
    return list(starmap(InboxItem, rows))


def spend(db: sqlite3.Connection, sql: Statements, since_day: str, agent: str) -> list[SpendRow]:
    """Totals by day, agent and principal."""
    if agent:
        rows = db.execute(sql["list_spend_of_agent"], (since_day, agent))
    else:
        rows = db.execute(sql["list_spend"], (since_day,))
    return [SpendRow(day, name, principal, Spend(*spent)) for day, name, principal, *spent in rows]


def owners(db: sqlite3.Connection, sql: Statements, now_us: int) -> list[str]:
    """Who holds live leases."""
    return [row[0] for row in db.execute(sql["lease_owners"], (now_us,))]


def _list_statement(sql: Statements, query: RunQuery) -> tuple[str, Sequence[RunState]]:
    """The statement of a list, and the states it has to be run for, one by one.

    The most selective column that is asked for drives. Lists by agent or state read one state at a time, because
    only within one state is the index in the order of the list.
    """
    columns = ("parent_run_id", "root_run_id", "session_id", "agent", "principal")
    asked = [name for name in columns if getattr(query, name)]
    # A principal may have most of the runs, so a state drives rather than it.
    driver = next((name for name in asked if name != "principal"), "state" if query.states else "principal")
    by_state = driver in ("agent", "state")
    where = [sql[f"if_{name}"] if name == driver else f"+{sql[f'if_{name}']}" for name in asked]
    if by_state:
        where.append(sql["if_state"])
    elif query.states:
        where.append(f"+{sql['if_states']}")
    if query.roots_only:
        where.append(f"+{sql['if_roots_only']}" if where else sql["if_roots_only"])
    where += [sql[f"if_{name}"] for name in ("id_prefix", "before") if getattr(query, name)]
    parts = [sql["select_run"], f"WHERE {' AND '.join(where)}" if where else "", sql["newest_first"]]
    if not by_state:
        return " ".join(parts), ("queued",)  # run once; the statement does not look at :state
    return " ".join(parts), query.states or _STATES


def _run_row(row: Any) -> RunRow:
    fields: tuple[Any, ...] = (*row[:-4], Spend(*row[-4:]))
    return RunRow(*fields)
