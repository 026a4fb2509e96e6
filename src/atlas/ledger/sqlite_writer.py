"""Group commit on SQLite: what the writer does when the file cannot be locked or written."""

from __future__ import annotations

import sqlite3
from typing import TypeVar

from atlas.kernel.errors import AtlasError
from atlas.ledger.desk import Transaction
from atlas.ledger.job import Job
from atlas.ledger.rule import BAD_VALUE
from atlas.ledger.sqlite_error import is_busy
from atlas.ledger.writer import News, PartlyDone, Writer

D = TypeVar("D", bound=Transaction)


class SqliteWriter(Writer[D]):
    """Runs jobs in its thread, in order; answers come after the commit that holds them."""

    def _commit(self, desk: D, group: list[Job]) -> News:
        """Runs the group; afterwards each job has its result or its error, and no transaction is open."""
        try:
            return self._attempt(desk, group)
        except (sqlite3.Error, AtlasError, PartlyDone, *BAD_VALUE) as error:
            desk.rollback()
            failure = error
        return self._narrow(desk, group, failure, is_locked=isinstance(failure, sqlite3.Error) and is_busy(failure))
