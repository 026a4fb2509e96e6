"""Queries on Postgres that differ from those on SQLite. Each is one statement and so sees one moment of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec

from atlas.kernel.event import Spend
from atlas.kernel.run import RunPage, RunQuery, RunRow, RunState

_STATES: Final[tuple[RunState, ...]] = get_args(RunState)
_LAST_CHARACTER: Final = "\U0010ffff"


def owners(db: Any, sql: dict[str, str]) -> list[str]:
    """Who holds live leases, by the server's time."""
    return [row[0] for row in db.execute(sql["lease_owners"])]


def runs(db: Any, sql: dict[str, str], query: RunQuery) -> RunPage:
    """One page of runs, newest first, in one statement and so of one moment."""
    limit = max(query.limit, 1)
    values: dict[str, Any] = msgspec.structs.asdict(query)
    values |= {"id_after": query.id_prefix + _LAST_CHARACTER, "limit": limit + 1, "states": list(query.states)}
    rows = db.execute(_list_statement(sql, query, values), values).fetchall()
    page = tuple(_run_row(row) for row in rows[:limit])
    return RunPage(page, page[-1].run_id if len(rows) > limit else "")


def _list_statement(sql: dict[str, str], query: RunQuery, values: dict[str, Any]) -> str:
    """The statement of a list.

    Lists by agent or by state alone read a page of each state and merge: only within one state are the indexes in
    the order of the list, so the work is bounded by the page and not by the ledger.
    """
    asked = [name for name in ("parent_run_id", "root_run_id", "session_id", "agent", "principal") if values[name]]
    where = [sql[f"if_{name}"] for name in asked]
    where += [sql[f"if_{name}"] for name in ("roots_only", "id_prefix", "before") if values[name]]
    if not _is_by_state(asked, query):
        if query.states:
            where.append(sql["if_states"])
        return _select(sql, where)
    pages = []
    for number, state in enumerate(dict.fromkeys(query.states or _STATES)):
        values[f"state{number}"] = state
        pages.append(f"({_select(sql, [*where, sql['if_state'].format(number)])})")
    return f"SELECT * FROM ({' UNION ALL '.join(pages)}) AS page {sql['newest_first']}"


def _is_by_state(asked: Sequence[str], query: RunQuery) -> bool:
    return asked[:1] == ["agent"] or (not asked and bool(query.states))


def _select(sql: dict[str, str], where: Sequence[str]) -> str:
    condition = f"WHERE {' AND '.join(where)}" if where else ""
    return f"{sql['select_run']} {condition} {sql['newest_first']}"


def _run_row(row: Any) -> RunRow:
    fields: tuple[Any, ...] = (*row[:-4], Spend(*row[-4:]))
    return RunRow(*fields)
