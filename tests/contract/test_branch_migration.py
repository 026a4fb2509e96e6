"""A ledger from before branches knew their turn opens, and its branches are what they were."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import psycopg

from atlas.kernel.run import SessionRow
from atlas.ledger.migrate import APPLICATION_ID, split
from atlas.ledger.postgres import PostgresLedger
from atlas.ledger.sqlite import SqliteLedger
from atlas.ledger.statement import load_migrations
from atlas.testing.clock import FakeClock

_BRANCH = "INSERT INTO session VALUES ('ses_b', 'tester', 'owner', 7, 3, 'ses_a')"
_EXPECTED = SessionRow("ses_b", "tester", "owner", 7, 3, "ses_a", 0)


async def look(ledger: SqliteLedger | PostgresLedger) -> SessionRow:
    await ledger.open()
    try:
        return await ledger.session("ses_b")
    finally:
        await ledger.close()


def test_a_branch_of_an_old_sqlite_ledger_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    old = sqlite3.connect(path, isolation_level=None)
    for _, script in load_migrations("sqlite")[:2]:
        for statement in split(script):
            old.execute(statement)
    old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    old.execute("PRAGMA user_version = 2")
    old.execute(_BRANCH)
    old.close()
    ledger = SqliteLedger(path, clock=FakeClock(), blobs=tmp_path / "blobs")
    assert asyncio.run(look(ledger)) == _EXPECTED


def test_a_branch_of_an_old_postgres_ledger_stays_what_it_was(pg_database: str, tmp_path: Path) -> None:
    with psycopg.connect(pg_database, autocommit=True) as old:
        old.execute("CREATE SCHEMA atlas")
        old.execute("SET search_path TO atlas")
        for _, script in load_migrations("postgres")[:2]:
            old.execute(script.encode())
        old.execute("INSERT INTO meta VALUES ('schema', '2')")
        old.execute(_BRANCH.encode())
    ledger = PostgresLedger(pg_database, clock=FakeClock(), blobs=tmp_path / "blobs")
    assert asyncio.run(look(ledger)) == _EXPECTED
