"""Schemas: made, brought forward, and never left half-way."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atlas.kernel.errors import Conflict
from atlas.ledger.migrate import APPLICATION_ID, prepare
from atlas.ledger.statement import load_migrations
from atlas.testing.clock import FakeClock

SHIPPED = load_migrations("sqlite")
NEXT = (
    len(SHIPPED) + 1,
    "ALTER TABLE run ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';\nCREATE TABLE extra (x TEXT);",
)
BROKEN = (len(SHIPPED) + 1, "ALTER TABLE run ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';\nSELECT * FROM nothing;")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    yield connection
    connection.close()


def bring(database: sqlite3.Connection, tmp_path: Path, migrations: list[tuple[int, str]]) -> None:
    prepare(database, tmp_path / "ledger.db", migrations, FakeClock(), 1.0)


def meta(database: sqlite3.Connection) -> dict[str, str]:
    return dict(database.execute("SELECT name, value FROM meta"))


def pragma(database: sqlite3.Connection, name: str) -> Any:
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_new_file_becomes_a_ledger(database: sqlite3.Connection, tmp_path: Path) -> None:
    bring(database, tmp_path, SHIPPED)
    assert pragma(database, "user_version") == len(SHIPPED)
    assert pragma(database, "application_id") == APPLICATION_ID
    assert pragma(database, "journal_mode") == "wal"
    made = meta(database)
    assert made["ledger_id"].startswith("led_")
    assert made["atlas_version"]


def test_an_older_ledger_is_brought_forward_and_keeps_its_name(database: sqlite3.Connection, tmp_path: Path) -> None:
    bring(database, tmp_path, SHIPPED)
    before = meta(database)
    database.execute("UPDATE meta SET value = '0.0.1' WHERE name = 'atlas_version'")
    bring(database, tmp_path, [*SHIPPED, NEXT])
    assert pragma(database, "user_version") == len(SHIPPED) + 1
    assert database.execute("SELECT count(colour) FROM run").fetchone() == (0,)
    assert meta(database) == before, "the version that changed the schema is noted"


def test_opening_again_changes_nothing(database: sqlite3.Connection, tmp_path: Path) -> None:
    bring(database, tmp_path, SHIPPED)
    changes, before = database.total_changes, meta(database)
    bring(database, tmp_path, SHIPPED)
    assert (database.total_changes, meta(database)) == (changes, before)


def test_a_migration_that_fails_leaves_the_old_schema_whole(database: sqlite3.Connection, tmp_path: Path) -> None:
    bring(database, tmp_path, SHIPPED)
    with pytest.raises(sqlite3.OperationalError):
        bring(database, tmp_path, [*SHIPPED, BROKEN])
    assert not database.in_transaction
    assert pragma(database, "user_version") == len(SHIPPED)
    assert "colour" not in [row[1] for row in database.execute("PRAGMA table_info(run)")]


def test_a_newer_ledger_is_refused_unchanged(database: sqlite3.Connection, tmp_path: Path) -> None:
    bring(database, tmp_path, [*SHIPPED, NEXT])
    with pytest.raises(Conflict, match=rf"schema {len(SHIPPED) + 1}.*schema {len(SHIPPED)}"):
        bring(database, tmp_path, SHIPPED)
    assert pragma(database, "user_version") == len(SHIPPED) + 1
