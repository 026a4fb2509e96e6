"""A SQLite connection as the ledger uses it, and the writer's transaction on one.

What a group of jobs writes is kept until its commit, and what was read or written stays known until another
connection has committed: a step of a run that goes on costs one statement for each table that it writes to.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from atlas.kernel.chain import SALT_BYTES, seal_all
from atlas.kernel.event import Draft, Event
from atlas.kernel.hold import Cap
from atlas.kernel.port import Clock
from atlas.ledger.budget import Held, Sums, decode_held, hold_row
from atlas.ledger.desk import CHANGE_HEAD
from atlas.ledger.known import Head, Known
from atlas.ledger.migrate import check_schema
from atlas.ledger.pending import Pending, Row
from atlas.ledger.statement import repeat_values

BUSY_S: Final = 10.0
_ERASE_CHECKPOINT_MS: Final = 200
_ROWS_MAX: Final = 16  # in one statement; there is one text for each number of rows
_KNOWN_MAX: Final = 8192  # reads that are remembered before all is forgotten
_UNKNOWN: Final = -1


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
        self.work: set[str] = set()
        self.changes = 0
        self._inserts = {
            name: repeat_values(sql[name], _ROWS_MAX) for name in ("insert_event", "add_spend", "add_meter")
        }
        self._pending = Pending()
        self._known = Known()
        self._known_version = _UNKNOWN
        self._known_position = 0
        self._seen_version = _UNKNOWN
        self._is_erasing = False

    def begin(self, run_ids: Sequence[str]) -> None:
        """Takes the write lock; time and position are known behind it, however long it was waited for.

        When another connection has committed since the last time, nothing is known any more, and the schema is looked
        at too. Behind the lock nobody can change either before this transaction ends.
        """
        self.cursor.execute("BEGIN IMMEDIATE")
        self.work = set()
        self.changes = 0
        version = self._version()
        if version != self._known_version or self._known.size > _KNOWN_MAX:
            check_schema(self.connection, self.path, self.schema)
            self._known = Known()
            self._known_position = self.one("last_position", ())[0] or 0
            self._known_version = version
        self.now_us = self.clock.now_us()
        self.position = self._known_position

    def commit(self) -> None:
        """Makes the transaction durable."""
        self.flush()
        self.cursor.execute("COMMIT")
        self._known_position = self.position
        if self._is_erasing:
            self._is_erasing = False
            self._flush_erased()

    def rollback(self) -> None:
        """Leaves no transaction open, also after an error that ended it already."""
        self._is_erasing = False
        if self.changes:  # what is known has followed writes that never happened
            self._pending = Pending()
            self._known_version = _UNKNOWN
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
        if name in CHANGE_HEAD:
            # Nothing is pending for a run that is not known, so whoever asks for it next may read its row.
            self._write_heads()
            self._known.drop_run(parameters[-1])
        count = self.cursor.execute(self.sql[name], parameters).rowcount
        self.changes += count
        return count

    def head(self, run_id: str) -> Head | None:
        """The run as it is now, or None when there is none."""
        head = self._known.heads.get(run_id)
        if head is None:
            row = self.one("run_head", (run_id,))
            if row is None:
                return None
            head = Head(*row)
            self._known.add_head(run_id, head)
        return head

    def touch(self, run_id: str, head: Head, seq: int, link: bytes, spend: Sequence[int]) -> None:
        """Moves the head, at the latest with the commit, and adds to the run's totals."""
        self.changes += 1
        self._known.move_head(run_id, seq, link)
        self._pending.touch(head.rowid, seq, link, self.now_us, spend)

    def write_events(self, run_id: str, drafts: Sequence[Draft], seq: int, link: bytes) -> tuple[int, bytes]:
        """Seals the drafts behind `seq` and stores them with the commit; the run's new last sequence number and hash."""
        count = len(drafts)
        events = seal_all(drafts, run_id, seq, self.position, link, self.clock.entropy(SALT_BYTES * count))
        self._pending.events += events
        self.position += count
        self.changes += count
        return seq + count, events[-1].hash

    def holds(self, run_id: str) -> Mapping[str, Held]:
        """Everything the run has reserved and not settled yet, by effect."""
        holds = self._known.holds.get(run_id)
        if holds is None:
            found = {effect: decode_held(body) for effect, body in self.all("run_holds", (run_id,))}
            self._known.add_holds(run_id, found)
            return found
        return holds

    def set_hold(self, run_id: str, effect: str, held: Held | None) -> None:
        """Stores what the effect has reserved now; None when that is nothing any more."""
        if held is None:
            self.do("drop_hold", (run_id, effect))
        else:
            self.do("set_hold", hold_row(run_id, effect, held, self.now_us))
        self._known.set_hold(run_id, effect, held)

    def sum_meters(self, caps: Sequence[Cap]) -> list[Sums]:
        """What the meters under each cap add up to."""
        found = []
        for cap in caps:
            sums = self._known.sums(cap)
            if sums is None:
                sums = self._read_sums(cap)
                self._known.add_sums(cap, sums)
            found.append(sums)
        return found

    def add_meters(self, changes: Mapping[tuple[str, str], Sums]) -> None:
        """Moves meters, at the latest with the commit."""
        self.changes += len(changes)
        self._known.move_meters(changes)
        self._pending.add_meters(changes)

    def add_total(self, key: tuple[Any, ...], used: Sequence[int]) -> None:
        """Adds to a total of the day, at the latest with the commit."""
        self.changes += 1
        self._pending.add_total(key, used)

    def erase(self, run_id: str, seq: int) -> bool:
        """Empties one event; after the commit the old bytes leave the write-ahead log too."""
        self.flush()
        self._is_erasing = True
        return self.do("erase_event", (run_id, seq)) == 1

    def flush(self) -> None:
        """Writes what is pending."""
        self._insert("insert_event", [_event_row(event) for event in self._pending.take_events()])
        self._write_heads()
        self._insert("add_spend", self._pending.take_totals())
        self._write_meters()

    def saw_others(self) -> bool:
        """Whether another connection has committed since the last call."""
        version = self._version()
        is_new = version != self._seen_version
        self._seen_version = version
        return is_new

    def _version(self) -> int:
        """A number that changes when another connection has committed, and never else while this one writes."""
        return int(self.cursor.execute("PRAGMA data_version").fetchone()[0])

    def _read_sums(self, cap: Cap) -> Sums:
        self._write_meters()
        if cap.first == cap.last:
            row = self.one("get_meter", (cap.scope, cap.first))
        else:
            row = self.one("sum_meters", (cap.scope, cap.first, cap.last))
        return row or (0, 0, 0, 0)

    def _write_heads(self) -> None:
        for values in self._pending.take_heads():
            self.cursor.execute(self.sql["touch_run"], values)

    def _write_meters(self) -> None:
        self._insert("add_meter", self._pending.take_meters())

    def _insert(self, name: str, rows: Sequence[Row]) -> None:
        """Writes the rows with as few statements as there can be."""
        while rows:
            some, rows = rows[:_ROWS_MAX], rows[_ROWS_MAX:]
            self.cursor.execute(self._inserts[name][len(some)], tuple(chain.from_iterable(some)))

    def _flush_erased(self) -> None:
        # Only a wish: a reader in another process may hold the log, and then the next checkpoint does it.
        with contextlib.suppress(sqlite3.Error):
            wait_ms = self.cursor.execute("PRAGMA busy_timeout").fetchone()[0]
            self.cursor.execute(f"PRAGMA busy_timeout = {_ERASE_CHECKPOINT_MS}")
            try:
                self.cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                self.cursor.execute(f"PRAGMA busy_timeout = {wait_ms}")


def _event_row(event: Event) -> Row:
    """The columns of `insert_event`."""
    # For a bytes object the driver looks for an adapter first, which costs more than to store it; not for a bytearray.
    return (
        *(event.run_id, event.seq, event.position, event.time_us, event.kind, event.version, event.principal),
        *(bytearray(event.digest), bytearray(event.prev), bytearray(event.hash), bytearray(event.salt)),
        bytearray(event.body),
    )
