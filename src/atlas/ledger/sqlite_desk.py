"""A SQLite connection as the ledger uses it, and the writer's transaction on one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import astuple

from atlas.kernel.chain import SALT_BYTES, seal
from atlas.kernel.event import Draft
from atlas.kernel.hold import Cap
from atlas.kernel.port import Clock
from atlas.ledger.migrate import check_schema

BUSY_S: Final = 10.0
_ERASE_CHECKPOINT_MS: Final = 200


def connect(path: Path, *, busy_s: float, is_reader: bool) -> sqlite3.Connection:
    """A connection in autocommit mode that waits `busy_s` for another process's lock."""
    connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, cached_statements=256)
    try:
        if is_reader:
            connection.execute("PRAGMA query_only = 1")
        else:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")  # what is erased is overwritten, not only unlinked
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class SqliteDesk:
    """The writer's side: inside a transaction it knows the time and the last position."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, sql: dict[str, str], schema: int, clock: Clock
    ) -> None:
        self.connection = connection
        self.path = path
        self.cursor = connection.cursor()
        self.sql = sql
        self.schema = schema
        self.clock = clock
        self.now_us = 0
        self.position = 0
        self.has_work = False
        self.data_version = 0
        self._changes_before = 0
        self._is_erasing = False

    @property
    def changes(self) -> int:
        """How many rows were written since `begin`."""
        return self.connection.total_changes - self._changes_before

    def begin(self, run_ids: Sequence[str]) -> None:
        """Takes the write lock; time and position are read behind it, however long it was waited for.

        The schema is looked at too: behind the lock nobody can change it before this transaction ends.
        """
        self.cursor.execute("BEGIN IMMEDIATE")
        check_schema(self.connection, self.path, self.schema)
        self.has_work = False
        self._changes_before = self.connection.total_changes
        self.now_us = self.clock.now_us()
        self.position = self.one("last_position", ())[0] or 0

    def commit(self) -> None:
        """Makes the transaction durable."""
        self.cursor.execute("COMMIT")
        if self._is_erasing:
            self._is_erasing = False
            self._flush_erased()

    def rollback(self) -> None:
        """Leaves no transaction open, also after an error that ended it already."""
        self._is_erasing = False
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.cursor.execute("ROLLBACK")

    def close(self) -> None:
        """Gives the connection back; the last one of all processes folds the write-ahead log into the file."""
        self.connection.close()

    def one(self, name: str, parameters: Sequence[Any]) -> Any:
        """The first row, or None."""
        return self.cursor.execute(self.sql[name], parameters).fetchone()

    def all(self, name: str, parameters: Sequence[Any]) -> list[Any]:
        """Every row."""
        return self.cursor.execute(self.sql[name], parameters).fetchall()

    def do(self, name: str, parameters: Sequence[Any]) -> int:
        """How many rows the statement changed."""
        return self.cursor.execute(self.sql[name], parameters).rowcount

    def write_events(self, run_id: str, drafts: Sequence[Draft], seq: int, head: bytes) -> tuple[int, bytes]:
        """Seals and stores the drafts behind `seq`; the run's new last sequence number and hash."""
        salts = self.clock.entropy(SALT_BYTES * len(drafts))
        rows = []
        for index, draft in enumerate(drafts):
            seq += 1
            self.position += 1
            salt = salts[index * SALT_BYTES : (index + 1) * SALT_BYTES]
            event = seal(draft, run_id, seq, self.position, head, salt)
            rows.append(astuple(event))
            head = event.hash
        self.cursor.executemany(self.sql["insert_event"], rows)
        return seq, head

    def sum_meters(self, caps: Sequence[Cap]) -> list[tuple[int, int, int, int]]:
        """What the meters under each cap add up to."""
        one, many, execute = self.sql["get_meter"], self.sql["sum_meters"], self.cursor.execute
        found: list[tuple[int, int, int, int]] = []
        for cap in caps:
            if cap.first == cap.last:
                found.append(execute(one, (cap.scope, cap.first)).fetchone() or (0, 0, 0, 0))
            else:
                found.append(execute(many, (cap.scope, cap.first, cap.last)).fetchone())
        return found

    def add_meters(self, rows: Sequence[tuple[str, str, int, int, int, int]]) -> None:
        """Moves meters, all in one statement."""
        self.cursor.executemany(self.sql["add_meter"], rows)

    def erase(self, run_id: str, seq: int) -> bool:
        """Empties one event; after the commit the old bytes leave the write-ahead log too."""
        self._is_erasing = True
        return self.do("erase_event", (run_id, seq)) == 1

    def saw_others(self) -> bool:
        """Whether another connection has committed since the last call."""
        version = int(self.cursor.execute("PRAGMA data_version").fetchone()[0])
        is_new = version != self.data_version
        self.data_version = version
        return is_new

    def _flush_erased(self) -> None:
        # Only a wish: a reader in another process may hold the log, and then the next checkpoint does it.
        with contextlib.suppress(sqlite3.Error):
            wait_ms = self.cursor.execute("PRAGMA busy_timeout").fetchone()[0]
            self.cursor.execute(f"PRAGMA busy_timeout = {_ERASE_CHECKPOINT_MS}")
            try:
                self.cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                self.cursor.execute(f"PRAGMA busy_timeout = {wait_ms}")
