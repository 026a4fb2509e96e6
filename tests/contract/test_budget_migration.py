"""A ledger from before budgets keeps its totals when it is opened by an Atlas that has them."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import psycopg

from atlas.kernel.budget import Balance, Cap
from atlas.kernel.event import Spend
from atlas.kernel.run import SpendRow
from atlas.ledger.migrate import APPLICATION_ID, split
from atlas.ledger.postgres import PostgresLedger
from atlas.ledger.sqlite import SqliteLedger
from atlas.ledger.statement import load_migrations
from atlas.testing.clock import FakeClock

_SPENT = "INSERT INTO spend VALUES ('2026-01-02', 'tester', 'owner', 1, 2, 3, 4)"
_EXPECTED = [SpendRow("2026-01-02", "tester", "owner", Spend(1, 2, 3, 4))]


async def look(ledger: SqliteLedger | PostgresLedger) -> tuple[list[SpendRow], tuple[Balance, ...]]:
    await ledger.open()
    try:
        return await ledger.spend(), await ledger.balances((Cap("day", "fleet", "2026-01-02", "2026-01-02"),))
    finally:
        await ledger.close()


def test_an_old_sqlite_ledger_keeps_its_totals(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    old = sqlite3.connect(path, isolation_level=None)
    for statement in split(load_migrations("sqlite")[0][1]):
        old.execute(statement)
    old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    old.execute("PRAGMA user_version = 1")
    old.execute(_SPENT)
    old.close()
    ledger = SqliteLedger(path, clock=FakeClock(), blobs=tmp_path / "blobs")
    assert asyncio.run(look(ledger)) == (_EXPECTED, (Balance(),))


def test_an_old_postgres_ledger_keeps_its_totals(pg_database: str, tmp_path: Path) -> None:
    with psycopg.connect(pg_database, autocommit=True) as old:
        old.execute("CREATE SCHEMA atlas")
        old.execute("SET search_path TO atlas")
        old.execute(load_migrations("postgres")[0][1].encode())
        old.execute("INSERT INTO meta VALUES ('schema', '1')")
        old.execute(_SPENT.encode())
    ledger = PostgresLedger(pg_database, clock=FakeClock(), blobs=tmp_path / "blobs")
    assert asyncio.run(look(ledger)) == (_EXPECTED, (Balance(),))
