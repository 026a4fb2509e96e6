"""A reader's session on SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from atlas.ledger.migrate import check_schema
from atlas.ledger.sqlite_desk import connect
from atlas.ledger.sqlite_error import translate

T = TypeVar("T")


class SqliteSession:
    """One reader's connection; it notices when a newer Atlas has changed the schema under it."""

    def __init__(self, path: Path, sql: dict[str, str], schema: int, busy_s: float) -> None:
        self._path = path
        self._sql = sql
        self._schema = schema
        self._busy_s = busy_s
        self._connection: sqlite3.Connection | None = None

    def run(self, query: Callable[..., T], *arguments: object) -> T:
        """What the query answers; raises AtlasError."""
        try:
            if self._connection is None:
                self._connection = connect(self._path, busy_s=self._busy_s, is_reader=True)
            check_schema(self._connection, self._path, self._schema)
            return query(self._connection, self._sql, *arguments)
        except sqlite3.Error as error:
            raise translate(error, self._path) from error
        finally:
            if self._connection is not None and self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.rollback()

    def close(self) -> None:
        """Gives the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
