"""Queries on Postgres that differ from those on other databases. Each sees one moment of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from atlas.kernel.budget import Balance
from atlas.kernel.hold import Cap
from atlas.kernel.run import RunPage, RunQuery
from atlas.ledger.desk import Database
from atlas.ledger.read import LAST_CHARACTER, STATES, Statements, page_of


def owners(db: Database, sql: Statements) -> list[str]:
    """Who holds live leases, by the server's time."""
    return [row[0] for row in db.execute(sql["lease_owners"])]


def balances(db: Database, sql: Statements, caps: Sequence[Cap]) -> tuple[Balance, ...]:
    """How far the meters under each cap have gone."""
    return tuple(Balance(*sums) for (sums,) in db.execute(sql["sum_caps"], cap_columns(caps)))


def cap_columns(caps: Sequence[Cap]) -> tuple[list[str], list[str], list[str]]:
    """The caps as `sum_caps` takes them."""
    return [cap.scope for cap in caps], [cap.first for cap in caps], [cap.last for cap in caps]


def runs(db: Database, sql: Statements, query: RunQuery) -> RunPage:
    """One page of runs, newest first, read along one index whatever the size of the ledger."""
    limit = max(query.limit, 1)
    values: dict[str, Any] = msgspec.structs.asdict(query)
    values |= {"states": list(query.states), "limit": limit + 1, "first": query.id_prefix}
    values["last"] = min(query.before or LAST_CHARACTER, query.id_prefix + LAST_CHARACTER)
    rows = db.execute(_list_statement(sql, query, values), values).fetchall()
    return page_of(rows, limit)


def _list_statement(sql: Statements, query: RunQuery, values: dict[str, Any]) -> str:
    """The statement of a list.

    The most selective column that is asked for drives. It is asked for as a range of (column, run_id) in the order of
    that range, which only the index on both can answer; no estimate of the planner leads it along another one.
    Lists by agent or state put together a page of each state, because only within one state is the index in order.
    """
    asked = [name for name in ("parent_run_id", "root_run_id", "session_id", "agent", "principal") if values[name]]
    driver = next((name for name in asked if name != "principal"), "state" if query.states else "")
    driver = driver or next(iter(asked), "parent_run_id" if query.roots_only else "")
    filters = [sql[f"if_{name}"] for name in asked if name != driver]
    if query.roots_only and (asked or driver != "parent_run_id"):
        filters.append(sql["if_roots_only"])
    if driver not in ("agent", "state"):
        if query.states:
            filters.append(sql["if_states"])
        return _page(sql, {driver: driver} if driver else {}, filters)
    pages = []
    for number, state in enumerate(dict.fromkeys(query.states or STATES)):
        values[f"state{number}"] = state
        columns = {"agent": "agent", "state": f"state{number}"} if driver == "agent" else {"state": f"state{number}"}
        pages.append(f"({_page(sql, columns, filters)})")
    return f"SELECT * FROM ({' UNION ALL '.join(pages)}) AS pages {sql['newest_first'].format(order='run_id DESC')}"


def _page(sql: Statements, columns: dict[str, str], filters: Sequence[str]) -> str:
    """The runs of a range: `columns` names the parameter that each leading column of the index is equal to."""
    names = [*columns, "run_id"]
    equal = [f"%({parameter})s" for parameter in columns.values()]
    between = sql["if_between"].format(
        columns=", ".join(names), first=", ".join([*equal, "%(first)s"]), last=", ".join([*equal, "%(last)s"])
    )
    order = sql["newest_first"].format(order=", ".join(f"{name} DESC" for name in names))
    return f"{sql['select_run']} WHERE {' AND '.join([between, *filters])} {order}"
