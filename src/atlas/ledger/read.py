"""Queries that are the same on every database. Each is one statement and so sees one moment of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any, Final, TypeAlias, get_args

from atlas.kernel.budget import Warned
from atlas.kernel.event import Event, Spend
from atlas.kernel.run import InboxItem, RunPage, RunRow, RunState, SessionRow, Signal, SpendRow
from atlas.ledger.desk import Database
from atlas.ledger.rule import no_run, no_session

Statements: TypeAlias = dict[str, str]
STATES: Final[tuple[RunState, ...]] = get_args(RunState)
LAST_CHARACTER: Final = "\U0010ffff"


def events(db: Database, sql: Statements, run_id: str, after: int, limit: int) -> list[Event]:
    """Events of one run, in order."""
    return list(starmap(Event, db.execute(sql["run_events"], (run_id, after, limit or -1))))


def feed(db: Database, sql: Statements, after: int, limit: int) -> list[Event]:
    """Events of all runs, in commit order."""
    return list(starmap(Event, db.execute(sql["feed"], (after, limit or -1))))


def head(db: Database, sql: Statements) -> int:
    """The last position."""
    return int(db.execute(sql["last_position"]).fetchone()[0] or 0)


def run(db: Database, sql: Statements, run_id: str) -> RunRow:
    """One run's row."""
    row = db.execute(f"{sql['select_run']} {sql['where_run']}", (run_id,)).fetchone()
    if row is None:
        raise no_run(run_id)
    return _run_row(row)


def last_children(db: Database, sql: Statements, agent: str, snapshot: str, limit: int) -> list[RunRow]:
    """Ended children of an agent, newest end first."""
    rows = db.execute(f"{sql['select_run']} {sql['where_ended_child']}", (agent, snapshot, limit))
    return [_run_row(row) for row in rows]


def session(db: Database, sql: Statements, session_id: str) -> SessionRow:
    """One session."""
    row = db.execute(sql["get_session"], (session_id,)).fetchone()
    if row is None:
        raise no_session(session_id)
    return SessionRow(*row)


def signals(db: Database, sql: Statements, run_id: str) -> list[Signal]:
    """Open signals of one run, or of all that have not ended, oldest first."""
    rows = db.execute(sql["open_signals"], (run_id,)) if run_id else db.execute(sql["waiting_signals"])
    return list(starmap(Signal, rows))


def inbox(db: Database, sql: Statements, run_id: str) -> list[InboxItem]:
    """What waits for a person, oldest first."""
    rows = db.execute(sql["list_inbox_of_run"], (run_id,)) if run_id else db.execute(sql["list_inbox"])
    return list(starmap(InboxItem, rows))


def spend(db: Database, sql: Statements, since_day: str, agent: str) -> list[SpendRow]:
    """Totals by day, agent, principal and model."""
    if agent:
        rows = db.execute(sql["list_spend_of_agent"], (since_day, agent))
    else:
        rows = db.execute(sql["list_spend"], (since_day,))
    return [_spend_row(*row) for row in rows]


def warned(db: Database, sql: Statements, since_us: int) -> list[Warned]:
    """Alerts raised since a time, oldest first."""
    return list(starmap(Warned, db.execute(sql["list_warned"], (since_us,))))


def page_of(rows: Sequence[Any], limit: int) -> RunPage:
    """A page of at most `limit` runs; one row more says that there is a next one."""
    page = tuple(_run_row(row) for row in rows[:limit])
    return RunPage(page, page[-1].run_id if len(rows) > limit else "")


def _spend_row(day: str, agent: str, principal: str, *rest: Any) -> SpendRow:
    model, is_estimated, cached_in, saved = rest[4:]
    return SpendRow(day, agent, principal, Spend(*rest[:4]), model, bool(is_estimated), cached_in, saved)


def _run_row(row: Any) -> RunRow:
    fields: tuple[Any, ...] = (*row[:-5], Spend(*row[-5:-1]), row[-1])
    return RunRow(*fields)
