"""Brings a Postgres database to the schema this Atlas knows; refuses a newer one.

Everything lives in schema `atlas` and changes in one transaction under an advisory lock, so that any number of
processes may open an empty database at once.
"""

from __future__ import annotations

from atlas.kernel.errors import Conflict
from atlas.kernel.ident import LEDGER, new_id
from atlas.kernel.port import Clock
from atlas.ledger.migrate import atlas_version
from atlas.ledger.postgres_link import Connection
from atlas.ledger.rule import too_new

_TABLES = "SELECT tablename::text FROM pg_catalog.pg_tables WHERE schemaname = 'atlas'"


def prepare(
    connection: Connection, sql: dict[str, str], migrations: list[tuple[int, str]], clock: Clock, where: str
) -> None:
    """Makes the database a ledger of the newest schema, or raises; then the caller closes, and nothing has changed."""
    if check_schema(connection, len(migrations), where) == len(migrations):
        return
    connection.execute(sql["begin"])
    connection.execute(sql["take_time"])
    connection.execute(sql["lock_schema"])
    connection.execute(sql["lock_writes"])
    # Looked up again behind the lock: another process may have migrated in between.
    found = check_schema(connection, len(migrations), where)
    if found == 0:
        connection.execute("CREATE SCHEMA IF NOT EXISTS atlas")
    for _, script in migrations[found:]:
        connection.execute(script)
    if found < len(migrations):
        _stamp(connection, clock, len(migrations), is_new=found == 0)
    connection.execute(sql["commit"])


def check_schema(connection: Connection, known: int, where: str) -> int:
    """The number of the database's schema, 0 for one that holds no ledger; Conflict when it is newer than `known`."""
    # Asked of the catalogue's tables: functions that look up names may answer from a cache that is out of date.
    tables = {name for (name,) in connection.execute(_TABLES)}
    if not tables:
        return 0
    if "meta" not in tables:
        raise Conflict(
            "schema atlas of this database belongs to another program",
            hint="Name another database for the ledger.",
            where=where,
            code="not_a_ledger",
        )
    meta: dict[str, str] = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    found = int(meta.get("schema", "0"))
    if found > known:
        raise too_new(found, known, meta.get("atlas_version", ""), where)
    return found


def _stamp(connection: Connection, clock: Clock, schema: int, *, is_new: bool) -> None:
    values = {"schema": str(schema), "atlas_version": atlas_version()}
    if is_new:
        row = connection.execute("SELECT now_us()").fetchone()
        now_us = int(row[0]) if row else clock.now_us()
        values |= {"ledger_id": new_id(LEDGER, now_us, clock.entropy(10)), "created_us": str(now_us)}
    for name, value in values.items():
        connection.execute(
            "INSERT INTO meta (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )
