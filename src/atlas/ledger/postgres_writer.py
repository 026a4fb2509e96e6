"""Group commit on Postgres: the writer's thread, and what it does when the server goes away.

A group whose connection was lost before its COMMIT was sent has not happened and is run again on a new one. After
that the server is asked what became of it, so that nothing is written twice and nothing that is there is reported
as failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import psycopg

from atlas.kernel.errors import AtlasError, LedgerUnavailable
from atlas.ledger.job import Job
from atlas.ledger.postgres_desk import PostgresDesk
from atlas.ledger.postgres_error import is_hopeless, is_locked, is_passing
from atlas.ledger.rule import BAD_VALUE
from atlas.ledger.writer import News, PartlyDone, Writer

_RETRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5


class PostgresWriter(Writer[PostgresDesk]):
    """Runs jobs in its thread, in order; answers come after the commit that holds them."""

    def __init__(
        self,
        open_desk: Callable[[], PostgresDesk],
        translate: Callable[[BaseException], AtlasError],
        committed: Callable[[News], None],
        *,
        patience_s: float,
        hurry: threading.Event,
    ) -> None:
        super().__init__(open_desk, translate, committed, _nothing)
        self._patience_s = patience_s
        self._hurry = hurry

    def _commit(self, desk: PostgresDesk, group: list[Job]) -> News:
        """Runs the group; afterwards each job has its result or its error, and no transaction is open."""
        deadline_s = time.monotonic() + self._patience_s
        error: BaseException
        for _ in range(_RETRIES):
            try:
                return self._attempt(desk, group)
            except (psycopg.Error, AtlasError, PartlyDone, *BAD_VALUE) as caught:
                error = caught
            if desk.is_lost(error):
                news = self._recover(desk, group, deadline_s)
                if news is not None:
                    return news
                continue
            desk.rollback()
            if not is_passing(error):
                break
        return self._narrow(desk, group, error, is_locked=is_locked(error))

    def _recover(self, desk: PostgresDesk, group: list[Job], deadline_s: float) -> News | None:
        """Connects again and finds out what became of the group: None when it has to be run again."""
        news = News.WORK if desk.work else News.EVENTS
        in_doubt = desk.doubt is not None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                desk.reconnect()
                return news if in_doubt and desk.settle_doubt() else None
            except (AtlasError, psycopg.Error) as caught:
                error = self._translate(caught)
            # There is nothing that would tell us when a server is back, so it is asked again until time is up.
            is_over = time.monotonic() >= deadline_s or self._hurry.is_set()
            if is_over or is_hopeless(error):
                return self._fail(group, _unknown(error) if in_doubt else error)
            self._hurry.wait(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _unknown(error: AtlasError) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"the server went away during a commit, and whether it happened is not known yet: {error.message}",
        hint="When the server is back, look at the run before going on with it.",
        where=error.where,
        code="outcome_unknown",
        detail=error.detail,
    )


def _nothing() -> None:
    return None
