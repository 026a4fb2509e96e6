"""Brings a SQLite file to the schema this Atlas knows; refuses a newer one and files that are not ledgers."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from atlas.kernel.errors import Conflict
from atlas.kernel.ident import LEDGER, new_id
from atlas.kernel.port import Clock
from atlas.ledger.rule import too_new
from atlas.ledger.sqlite_error import is_busy

APPLICATION_ID: Final = 0x41544C53  # "ATLS" in the file's header
_RETRY_S: Final = 0.01


def prepare(
    connection: sqlite3.Connection, path: Path, migrations: list[tuple[int, str]], clock: Clock, busy_s: float
) -> None:
    """Makes the file a ledger of the newest schema, or raises and leaves it as it was."""
    # One snapshot for all that is looked at: another process may be making the file at this moment.
    connection.execute("BEGIN")
    try:
        found = _schema(connection, path, len(migrations))
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    _enter_wal(connection, busy_s)
    if found == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Looked up again behind the lock: another process may have migrated in between.
        found = _schema(connection, path, len(migrations))
        for number, script in migrations[found:]:
            for statement in split(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        if found < len(migrations):
            _stamp(connection, clock, is_new=found == 0)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    # The file's own name has to survive a power loss too; SQLite only syncs the names of its logs.
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def split(script: str) -> list[str]:
    """The statements of a script, one by one: `executescript` would commit on its own."""
    statements: list[str] = []
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            statements.append(text.strip())
            text = ""
    return statements


def check_schema(connection: sqlite3.Connection, path: Path, known: int) -> int:
    """The number of the file's schema; Conflict when it is newer than `known`."""
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > known:
        row = connection.execute("SELECT value FROM meta WHERE name = 'atlas_version'").fetchone()
        raise too_new(found, known, row[0] if row else "", str(path))
    return found


def atlas_version() -> str:
    """The version of this Atlas, as a ledger notes it when its schema changes."""
    from importlib import metadata  # slow to import, and only needed when a schema changes

    try:
        return metadata.version("atlas-agents")
    except metadata.PackageNotFoundError:
        return "from source"


def _schema(connection: sqlite3.Connection, path: Path, known: int) -> int:
    """The number of the file's schema, 0 for an empty file; Conflict when it is newer or no ledger's."""
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    is_empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
    if application != APPLICATION_ID and not (is_empty and found == 0):
        raise Conflict(
            f"{path} is a database of another program",
            hint="Name another file for the ledger.",
            where=str(path),
            code="not_a_ledger",
        )
    return check_schema(connection, path, known)


def _enter_wal(connection: sqlite3.Connection, busy_s: float) -> None:
    """Switches to the write-ahead log.

    When two processes do so at once, SQLite tells one of them at once that the file is busy without waiting, and
    there is nothing to be notified by; so it is asked again until the time is up.
    """
    deadline_s = time.monotonic() + busy_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline_s:
                raise
            time.sleep(_RETRY_S)


def _stamp(connection: sqlite3.Connection, clock: Clock, *, is_new: bool) -> None:
    now_us = clock.now_us()
    values = {"atlas_version": atlas_version()}
    if is_new:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        values |= {"ledger_id": new_id(LEDGER, now_us, clock.entropy(10)), "created_us": str(now_us)}
    connection.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", values.items())
