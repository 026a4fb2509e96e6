"""Search over what sessions recorded: SQLite FTS5, derived from the ledger and rebuilt at will."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from atlas.kernel.errors import LedgerUnavailable
from atlas.kernel.recall import Found, Passage

_SCHEMA: Final = """
CREATE VIRTUAL TABLE IF NOT EXISTS passage USING fts5(
    title, text, session UNINDEXED, handle UNINDEXED, start UNINDEXED, at UNINDEXED, tokenize = 'porter unicode61'
);
CREATE TABLE IF NOT EXISTS indexed (session TEXT, run_id TEXT, seq INTEGER, PRIMARY KEY (session, run_id));
"""
_FIND: Final = """
SELECT handle, start, title, snippet(passage, 1, '', '', ' ... ', 24), bm25(passage, 2.0, 1.0) AS rank, at
FROM passage WHERE passage MATCH ? AND session = ? ORDER BY rank, at DESC LIMIT ?
"""
# Words that carry no meaning of their own would match everything.
_STOP: Final = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "did",
        "do",
        "does",
        "for",
        "from",
        "had",
        "has",
        "have",
        "how",
        "i",
        "in",
        "is",
        "it",
        "its",
        "me",
        "my",
        "of",
        "on",
        "or",
        "our",
        "that",
        "the",
        "their",
        "this",
        "to",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "will",
        "with",
        "you",
        "your",
    ]
)


class SqliteIndex:
    """An `Index` in one file; safe to delete."""

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def seen(self, session_id: str) -> dict[str, int]:
        """How far each run of the session is indexed."""
        with self._lock:
            rows = self._db().execute("SELECT run_id, seq FROM indexed WHERE session = ?", (session_id,))
            return {str(run_id): int(seq) for run_id, seq in rows}

    def add(self, session_id: str, run_id: str, seq: int, passages: Iterable[Passage]) -> None:
        """Indexes passages of a run up to an event; doing it twice is the same as once."""
        with self._lock:
            database = self._db()
            with database:
                database.execute("INSERT OR REPLACE INTO indexed VALUES (?, ?, ?)", (session_id, run_id, seq))
                database.executemany(
                    "INSERT INTO passage (title, text, session, handle, start, at) VALUES (?, ?, ?, ?, ?, ?)",
                    [(one.title, one.text, session_id, one.handle, one.start, one.at) for one in passages],
                )

    def find(self, session_id: str, words: str, limit: int) -> list[Found]:
        """The passages that share most with the words, best first, newer first among equals."""
        terms = [word for word in re.findall(r"\w+", words.lower()) if word not in _STOP][:24]
        if not terms:
            return []
        query = " OR ".join(f'"{term}"' for term in dict.fromkeys(terms))
        with self._lock:
            rows = self._db().execute(_FIND, (query, session_id, limit)).fetchall()
        return [Found(handle, int(start), title, snippet) for handle, start, title, snippet, _, _ in rows]

    def close(self) -> None:
        """Gives the file back."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self._connection = sqlite3.connect(self._path, check_same_thread=False, timeout=10.0)
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = OFF")
                self._connection.executescript(_SCHEMA)
            except sqlite3.Error as error:
                raise LedgerUnavailable(
                    f"the search index cannot be opened: {error}",
                    hint=f"It is derived: delete {self._path} and it is built again.",
                    code="index_unavailable",
                ) from error
        return self._connection
