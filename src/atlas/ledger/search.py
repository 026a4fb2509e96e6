"""Search over what was recorded: SQLite FTS5, derived from the ledger and rebuilt at will."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from atlas.kernel.errors import LedgerUnavailable
from atlas.kernel.recall import Candidate, Indexed, Passage, Query, gathered, shared_words, spread
from atlas.ledger.migrate import split
from atlas.ledger.sqlite_error import is_busy, primary_code
from atlas.ledger.statement import load_migrations, load_statements

_VERSION: Final = 6
_BUSY_S: Final = 10.0
_STORE: Final = "search"
_BROKEN: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteIndex:
    """An `Index` in one file, which may be deleted at any time; several processes share it.

    One connection behind one lock: calls come from threads of a pool and are short.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._sql = load_statements(_STORE)
        self._connection: sqlite3.Connection | None = None

    def reach(self, scope: str) -> int:
        """The last turn up to which every turn is indexed and over."""
        with self._open() as db:
            row = db.execute(self._sql["find_scope"], (scope,)).fetchone()
        return int(row[1]) if row else 0

    def run(self, scope: str, turn: int) -> Indexed | None:
        """The run of a turn, if it is indexed."""
        with self._open() as db:
            row = db.execute(self._sql["run_of_turn"], (scope, turn)).fetchone()
        return Indexed(row[0], row[1], row[2], row[3], bool(row[4])) if row else None

    def titles(self, scope: str) -> list[str]:
        """The titles of the turns that are over, newest first."""
        with self._open() as db:
            return [title for (title,) in db.execute(self._sql["titles"], (scope,))]

    def add(self, scope: str, run: Indexed, passages: Iterable[Passage], after: int) -> bool:
        """Adds what the run recorded after event `after`; 0 replaces all of it. False when another was faster."""
        with self._open() as db, self._transaction(db):
            known = db.execute(self._sql["seq_of"], (run.run_id,)).fetchone()
            if after and (known is None or known[0] != after):
                return False
            db.execute(self._sql["add_scope"], (scope,))
            number, reach = db.execute(self._sql["find_scope"], (scope,)).fetchone()
            if not after:
                self._drop(db, run.run_id)
            for passage in passages:
                piece = db.execute(self._sql["add_piece"], (run.run_id,)).lastrowid
                db.execute(
                    self._sql["add_passage"],
                    (
                        piece,
                        *map(spread, (passage.title, passage.near, passage.text)),
                        _mark(number, passage.is_retold),
                        *(passage.handle, passage.start, passage.at),
                        *map(_unlike, (passage.title, passage.text)),
                    ),
                )
            db.execute(self._sql["put_run"], (run.run_id, number, run.turn, run.title, run.seq, run.is_over))
            self._advance(db, number, reach)
        return True

    def find(self, scope: str, query: Query, limit: int) -> list[Candidate]:
        """The passages that share most with the query, newer first among equals; what was retold comes after.

        Where there are more than `limit`, also the newest that have the words which the best one shares with the query.
        """
        with self._open() as db:
            row = db.execute(self._sql["find_scope"], (scope,)).fetchone()
            if row is None or not query.words:
                return []
            wanted = " OR ".join(f'"{term}"' for term in (*query.words, *(" ".join(pair) for pair in query.pairs)))
            found: list[Candidate] = []
            for is_retold in (False, True):
                match = f"scope : {_mark(row[0], is_retold)} AND {{title near text}} : ({wanted})"
                for *kept, score in db.execute(self._sql["find"], (match, limit)):
                    passage = _passage(*kept, is_retold=is_retold)
                    found.append(Candidate(passage, score))
                if not is_retold and len(found) == limit:
                    found += self._newest(db, row[0], query, found, limit)
        return found

    def _newest(
        self, db: sqlite3.Connection, scope: int, query: Query, found: list[Candidate], limit: int
    ) -> list[Candidate]:
        """The last passages with the words that the best one found shares, as far as they were not found."""
        words = shared_words(query, found[0].passage)
        if not words:
            return []
        wanted = " AND ".join(f'"{word}"' for word in words)
        match = f"scope : {_mark(scope, False)} AND {{title text}} : ({wanted})"
        known = {(one.passage.handle, one.passage.start) for one in found}
        rows = [_passage(*kept, is_retold=False) for kept in db.execute(self._sql["newest"], (match, limit))]
        return [Candidate(one, found[-1].score) for one in rows if (one.handle, one.start) not in known]

    def forget(self, run_id: str) -> None:
        """Takes a run out, so that it is read again when it is next needed."""
        with self._open() as db, self._transaction(db):
            known = db.execute(self._sql["find_run"], (run_id,)).fetchone()
            if known is None:
                return
            self._drop(db, run_id)
            db.execute(self._sql["drop_run"], (run_id,))
            db.execute(self._sql["lower_reach"], (known[2] - 1, known[1]))

    def close(self) -> None:
        """Gives the file back."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _drop(self, db: sqlite3.Connection, run_id: str) -> None:
        db.execute(self._sql["drop_passages"], (run_id,))
        db.execute(self._sql["drop_pieces"], (run_id,))

    def _advance(self, db: sqlite3.Connection, scope: int, reach: int) -> None:
        """Moves the reach over every turn that is over now."""
        last = reach
        while (row := db.execute(self._sql["is_over"], (scope, last + 1)).fetchone()) and row[0]:
            last += 1
        if last != reach:
            db.execute(self._sql["move_reach"], (last, scope))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connect_or_renew()
                yield self._connection
            except sqlite3.Error as error:
                self._discard(error)
                raise LedgerUnavailable(
                    f"the search index cannot be used: {error}",
                    hint=f"It is derived: delete {self._path} and it is built again.",
                    code="index_unavailable",
                ) from error

    def _connect_or_renew(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if primary_code(error) not in _BROKEN:
                raise
            self._delete()
            return self._connect()

    def _discard(self, error: sqlite3.Error) -> None:
        """A broken file is no loss: the next use builds it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if primary_code(error) in _BROKEN:
            self._delete()

    def _delete(self) -> None:
        for ending in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, check_same_thread=False, timeout=_BUSY_S, isolation_level=None)
        try:
            if _version(db) not in (0, _VERSION):
                db.close()
                self._delete()
                return self._connect()
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA synchronous = OFF")
        try:
            db.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            # Another process is doing the same at this moment, and once is enough for all.
            if not is_busy(error):
                raise
        with self._transaction(db):
            if _version(db) == _VERSION:
                return
            for _, script in load_migrations(_STORE):
                for statement in split(script):
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _transaction(self, db: sqlite3.Connection) -> Iterator[None]:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _passage(
    handle: str,
    start: int,
    at: int,
    title: str,
    text: str,
    own_title: str | None,
    own_text: str | None,
    *,
    is_retold: bool,
) -> Passage:
    """A passage as it was added."""
    title = gathered(title) if own_title is None else own_title
    text = gathered(text) if own_text is None else own_text
    return Passage(handle, start, title, text, at, is_retold=is_retold)


def _unlike(text: str) -> str | None:
    """The text itself when it cannot be had back from what is searched."""
    return None if gathered(spread(text)) == text else text


def _mark(scope: int, is_retold: bool) -> str:
    """The word that every passage of a scope has, so that a search never looks at those of others."""
    return f"retold{scope}" if is_retold else f"told{scope}"
