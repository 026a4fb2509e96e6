"""Queries on SQLite that differ from those on other databases. Each sees one moment of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from atlas.kernel.budget import Balance
from atlas.kernel.hold import Cap
from atlas.kernel.run import RunPage, RunQuery, RunState
from atlas.ledger.desk import Database
from atlas.ledger.read import LAST_CHARACTER, STATES, Statements, page_of


def owners(db: Database, sql: Statements, now_us: int) -> list[str]:
    """Who holds live leases at `now_us`."""
    return [row[0] for row in db.execute(sql["lease_owners"], (now_us,))]


def balances(db: Database, sql: Statements, caps: Sequence[Cap]) -> tuple[Balance, ...]:
    """How far the meters under each cap have gone."""
    db.execute("BEGIN")  # one moment for all caps
    rows = [db.execute(sql["sum_meters"], (cap.scope, cap.first, cap.last)).fetchone() for cap in caps]
    db.execute("COMMIT")
    return tuple(Balance(*row) for row in rows)


def runs(db: Database, sql: Statements, query: RunQuery) -> RunPage:
    """One page of runs, newest first, read along one index whatever the size of the ledger."""
    limit = max(query.limit, 1)
    text, states = _list_statement(sql, query)
    values: dict[str, Any] = msgspec.structs.asdict(query)
    values |= {"id_after": query.id_prefix + LAST_CHARACTER, "limit": limit + 1}
    values["states"] = msgspec.json.encode(query.states).decode()
    db.execute("BEGIN")  # one moment for all states: a run that changes state is listed once
    rows: list[Any] = []
    for state in states:
        rows += db.execute(text, values | {"state": state}).fetchall()
    db.execute("COMMIT")
    rows.sort(reverse=True)  # by run_id, the first column, which is unique
    return page_of(rows, limit)


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
    return " ".join(parts), query.states or STATES
