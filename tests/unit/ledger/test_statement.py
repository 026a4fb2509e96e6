"""Named SQL and migrations as they are loaded from files."""

from __future__ import annotations

import sqlite3

from atlas.ledger.migrate import split
from atlas.ledger.statement import load_migrations, load_statements


def test_every_statement_is_one_statement_that_sqlite_accepts() -> None:
    connection = sqlite3.connect(":memory:")
    for _, script in load_migrations("sqlite"):
        for statement in split(script):
            connection.execute(statement)
    whole = {
        name: text
        for name, text in load_statements("sqlite").items()
        if not name.startswith(("if_", "where_", "newest_"))
    }
    assert len(whole) > 40
    for name, text in whole.items():
        assert not text.endswith(";"), name
        connection.execute(f"EXPLAIN {text}", (None,) * text.count("?"))
    connection.close()


def test_migrations_are_numbered_from_one_without_gaps() -> None:
    numbers = [number for number, _ in load_migrations("sqlite")]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_script_is_split_at_its_statements_only() -> None:
    script = "-- a; comment\nCREATE TABLE a (b TEXT DEFAULT ';');\n\nINSERT INTO a\nVALUES ('x;y');\n-- end\n"
    assert len(split(script)) == 2
