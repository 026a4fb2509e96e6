"""A reader's session on Postgres, which connects again by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg

from atlas.kernel.errors import LedgerUnavailable
from atlas.ledger.postgres_error import is_fatal, is_hopeless, translate
from atlas.ledger.postgres_link import Connection, Link

T = TypeVar("T")
_PAUSE_S: Final = 0.1


class ReadSession:
    """One reader's connection. A read that lost it is run again on a new one, as long as there is patience."""

    def __init__(self, link: Link, sql: dict[str, str], patience_s: float, hurry: threading.Event) -> None:
        self._link = link
        self._sql = sql
        self._patience_s = patience_s
        self._hurry = hurry
        self._connection: Connection | None = None

    def run(self, query: Callable[..., T], *arguments: object) -> T:
        """What the query answers; raises AtlasError."""
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                if self._connection is None:
                    self._connection = self._link.connect("reader")
                return query(self._connection, self._sql, *arguments)
            except psycopg.Error as caught:
                may_pass = self._connection is None or self._connection.closed or is_fatal(caught)
                error = translate(caught, self._link.where)
                self.close()
            except LedgerUnavailable as caught:
                may_pass = not is_hopeless(caught)
                error = caught
            if not may_pass or time.monotonic() > deadline_s or self._hurry.is_set():
                raise error
            self._hurry.wait(_PAUSE_S)

    def close(self) -> None:
        """Gives the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
