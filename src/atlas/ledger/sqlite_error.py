"""What SQLite's errors mean to a user: unavailable, corrupt, or a bug of ours."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from atlas.kernel.errors import AtlasError, Fault, LedgerCorrupt, LedgerUnavailable
from atlas.ledger.rule import bad_record

_UNAVAILABLE: Final[dict[int, tuple[str, str, str]]] = {
    sqlite3.SQLITE_FULL: ("disk_full", "the disk is full", "Free some space and try again; nothing recorded was lost."),
    sqlite3.SQLITE_IOERR: ("io_error", "the disk refused to read or write", "Check the disk and its free space."),
    sqlite3.SQLITE_BUSY: (
        "ledger_locked",
        "another process keeps the ledger locked",
        "Find and end the program that holds the database open, then try again.",
    ),
    sqlite3.SQLITE_LOCKED: ("ledger_locked", "the ledger is locked", "Try again."),
    sqlite3.SQLITE_READONLY: (
        "read_only",
        "the ledger can only be read here",
        "Make the file and its folder writable for this user.",
    ),
    sqlite3.SQLITE_PERM: ("read_only", "the ledger may not be opened", "Check the permissions of the file."),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot_open",
        "the ledger cannot be opened",
        "Check that its folder exists and that this user may write there.",
    ),
    sqlite3.SQLITE_NOMEM: ("no_memory", "there is no memory left", "Free some memory and try again."),
    sqlite3.SQLITE_PROTOCOL: ("ledger_locked", "the ledger's lock could not be taken", "Try again."),
}
_CORRUPT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's code without its details, or 0 when the error did not come from SQLite itself."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else's lock is the reason."""
    return primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: BaseException, path: Path) -> AtlasError:
    """The error that a user meets in place of `error`."""
    if isinstance(error, AtlasError):
        return error
    if isinstance(error, OSError):
        name, message, hint = _UNAVAILABLE[sqlite3.SQLITE_IOERR]
        return LedgerUnavailable(f"{message}: {error}", hint=hint, where=str(path), code=name)
    if not isinstance(error, sqlite3.Error):
        return bad_record(error)
    code = primary_code(error)
    detail = str(getattr(error, "sqlite_errorname", "") or "")
    if code in _UNAVAILABLE:
        name, message, hint = _UNAVAILABLE[code]
        return LedgerUnavailable(f"{message}: {error}", hint=hint, where=str(path), code=name, detail=detail)
    # A text column that is not text comes as an error of the driver without a code.
    if code in _CORRUPT or (code == 0 and "decode" in str(error)):
        return LedgerCorrupt(
            f"the ledger's file is damaged: {error}",
            hint="Stop every Atlas process, keep a copy of the file and restore it from a backup.",
            where=str(path),
            detail=detail,
        )
    return Fault(f"the ledger failed: {error}", where=str(path), code="ledger_fault", detail=detail)
