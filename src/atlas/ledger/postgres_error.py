"""What Postgres's errors mean to a user: unavailable, corrupt, or a bug of ours; never with a password in them.

Works on the codes and texts of the errors alone, so that it needs no driver to be installed.
"""

from __future__ import annotations

from typing import Final

from atlas.kernel.errors import AtlasError, Fault, LedgerCorrupt, LedgerUnavailable

_LOCKED: Final = (
    "ledger_locked",
    "another session keeps the ledger locked",
    "Find the session that holds the lock in pg_stat_activity and end it, then try again.",
)
_BUSY_SERVER: Final = ("server_busy", "the database server has no room for this", "Try again, or raise its limits.")
_GONE: Final = ("unreachable", "the database server cannot be reached", "Check that the server runs, then try again.")
_LOGIN: Final = (
    "login_refused",
    "the database server refused the login",
    "Check user and password in the ledger's address, or set PGPASSWORD.",
)
_NO_DATABASE: Final = ("no_database", "the database does not exist", "Create it with `createdb`, or correct the name.")
_READ_ONLY: Final = (
    "read_only",
    "the database only lets us read",
    "Connect to the primary server, with a user that may write to schema atlas.",
)

# By SQLSTATE, or by its class (the first two characters).
_UNAVAILABLE: Final[dict[str, tuple[str, str, str]]] = {
    "53100": ("disk_full", "the database server's disk is full", "Free some space there; nothing recorded was lost."),
    "53": _BUSY_SERVER,
    "54": _BUSY_SERVER,
    "58": ("io_error", "the database server's disk refused to read or write", "Check the server's disk and its log."),
    "25006": _READ_ONLY,
    "42501": _READ_ONLY,
    "55P03": _LOCKED,
    "57014": _LOCKED,
    "40": _LOCKED,
    "28": _LOGIN,
    "3D000": _NO_DATABASE,
    "57": _GONE,
    "08": _GONE,
    "25P03": _GONE,
    "25P04": _GONE,
}
_CORRUPT: Final = frozenset({"XX001", "XX002"})
_FATAL: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "08000", "08003", "08006"})
_BAD_VALUE: Final = frozenset({"22"})

# The driver's errors carry no SQLSTATE when the connection could not be made; then only the text tells.
_BY_TEXT: Final[tuple[tuple[str, tuple[str, str, str]], ...]] = (
    ("password", _LOGIN),
    ("authentication", _LOGIN),
    ("no pg_hba.conf entry", _LOGIN),
    ('role "', _LOGIN),
    ("too many", _BUSY_SERVER),
    ('database "', _NO_DATABASE),
)
_FOREVER: Final = frozenset({_LOGIN[0], _NO_DATABASE[0]})


def translate(error: BaseException, where: str) -> AtlasError:
    """The error that a user meets in place of `error`; `where` names server and database without the password."""
    if isinstance(error, AtlasError):
        return error
    state = str(getattr(error, "sqlstate", None) or "")
    detail = state or type(error).__name__
    if state in _CORRUPT:
        return LedgerCorrupt(
            f"the ledger's database is damaged: {_line(error)}",
            hint="Stop every Atlas process and restore the database from a backup.",
            where=where,
            detail=detail,
        )
    found = _UNAVAILABLE.get(state) or _UNAVAILABLE.get(state[:2])
    if found is None and not state and is_connection_error(error):
        text = str(error)
        found = next((meaning for mark, meaning in _BY_TEXT if mark in text), _GONE)
    if found is not None:
        name, message, hint = found
        return LedgerUnavailable(f"{message}: {_line(error)}", hint=hint, where=where, code=name, detail=detail)
    if state[:2] in _BAD_VALUE or not hasattr(error, "sqlstate") or (not state and _is_a(error, "DataError")):
        return Fault(
            f"the ledger was given something it cannot store: {_line(error)}", code="bad_record", detail=detail
        )
    return Fault(f"the ledger failed: {_line(error)}", where=where, code="ledger_fault", detail=detail)


def is_connection_error(error: BaseException) -> bool:
    """Whether the connection, rather than a statement, failed: the driver's OperationalError or InterfaceError."""
    return _is_a(error, "OperationalError", "InterfaceError")


def is_fatal(error: BaseException) -> bool:
    """Whether the server ended the session with this error: shut down, restarting, or the session was idle too long."""
    return str(getattr(error, "sqlstate", None) or "") in _FATAL


def is_locked(error: BaseException) -> bool:
    """Whether somebody else's lock is the reason."""
    return str(getattr(error, "sqlstate", None) or "") == "55P03"


def is_passing(error: BaseException) -> bool:
    """Whether running the same transaction again may succeed at once: serialization failure or deadlock."""
    return str(getattr(error, "sqlstate", None) or "") in ("40001", "40P01", "40003")


def is_hopeless(error: AtlasError) -> bool:
    """Whether trying to connect again is of no use until a person has changed something."""
    return error.reason in _FOREVER


def _is_a(error: BaseException, *names: str) -> bool:
    return any(cls.__name__ in names for cls in type(error).__mro__)


def _line(error: BaseException) -> str:
    """The first line of the error's text; what follows are positions and hints for people who write SQL."""
    return str(error).strip().partition("\n")[0]
