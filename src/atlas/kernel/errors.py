"""Every error a user of Atlas can meet.

    AtlasError
    ├── Refused            a rule said no before anything happened
    │   ├── PolicyRefused      an effect class, rule or person denied the effect
    │   ├── LimitRefused       a spawn, time or size limit would have been passed
    │   ├── BudgetRefused      money or tokens would have passed a cap
    │   └── ApprovalRequired   a person must decide and nobody is there to ask
    ├── NotFound           the thing named does not exist
    ├── Conflict           the request contradicts what is recorded
    │   ├── StaleLease         another owner holds the run now
    │   └── ReplayMismatch     code asked for something other than what it asked before
    ├── Invalid            the input is wrong and nothing was done
    ├── Unavailable        try again later; nothing was lost
    │   ├── LedgerUnavailable  disk full, locked, read-only, unreachable
    │   ├── CircuitOpen        the agent failed too often just now
    │   └── BudgetBusy         only what others have reserved stands in the way of a cap
    ├── RunFailed          a run ended without a result
    ├── Cancelled          a person or a parent cancelled the run
    └── Fault              a bug or a broken machine
        └── LedgerCorrupt      stored history contradicts itself

Catch `AtlasError` for everything, a branch for a kind, a leaf for one cause. Each error has a stable
`code`, a message, a `hint` that says what to do next and, where there is one, a `where` (file:line:column).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One defect of a file or a value, with its place."""

    code: str
    message: str
    path: str = ""
    line: int = 0
    column: int = 0
    hint: str = ""

    @property
    def where(self) -> str:
        """`file:line:column`, or the file alone, or nothing."""
        return f"{self.path}:{self.line}:{self.column}" if self.line else self.path


class ErrorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as data: what events, JSON output and other processes carry.

    `kind` is the code of the error's class when `code` is more specific than that.
    """

    code: str
    message: str
    hint: str = ""
    where: str = ""
    detail: str = ""
    kind: str = ""


class AtlasError(Exception):
    """Anything Atlas refuses or fails to do."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 5
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str = "", where: str = "", code: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where
        self.detail = detail
        self.reason = code or self.code

    def record(self) -> ErrorRecord:
        """This error as data."""
        kind = self.code if self.reason != self.code else ""
        return ErrorRecord(self.reason, self.message, self.hint, self.where, self.detail, kind)


class Refused(AtlasError):
    """A rule said no before anything happened."""

    code = "refused"
    exit_code = 3
    http_status = 403


class PolicyRefused(Refused):
    """An effect class, a rule or a person denied the effect."""

    code = "policy_refused"


class LimitRefused(Refused):
    """A limit would have been passed."""

    code = "limit_refused"
    http_status = 429


class BudgetRefused(Refused):
    """Money or tokens would have passed a cap; nothing was spent."""

    code = "budget_refused"


class ApprovalRequired(Refused):
    """A person must decide, and the run was submitted as unattended."""

    code = "approval_required"


class NotFound(AtlasError):
    """The thing named does not exist."""

    code = "not_found"
    exit_code = 2
    http_status = 404


class Conflict(AtlasError):
    """The request contradicts what is recorded."""

    code = "conflict"
    exit_code = 2
    http_status = 409


class StaleLease(Conflict):
    """Another owner holds the run now; nothing was appended."""

    code = "stale_lease"


class ReplayMismatch(Conflict):
    """The code asked for something other than what the record says it asked."""

    code = "replay_mismatch"
    exit_code = 5


class Invalid(AtlasError):
    """The input is wrong and nothing was done; `problems` lists every defect found."""

    code = "invalid"
    exit_code = 2
    http_status = 422

    def __init__(
        self,
        message: str,
        *,
        problems: tuple[Problem, ...] = (),
        hint: str = "",
        where: str = "",
        code: str = "",
        detail: str = "",
    ) -> None:
        first = problems[0] if problems else None
        super().__init__(
            message,
            hint=hint or (first.hint if first else ""),
            where=where or (first.where if first else ""),
            code=code,
            detail=detail,
        )
        self.problems = problems


class Unavailable(AtlasError):
    """Something needed is not there now; trying again later may work, and nothing was lost."""

    code = "unavailable"
    http_status = 503


class LedgerUnavailable(Unavailable):
    """The ledger cannot write or read now: disk full, locked, read-only, unreachable."""

    code = "ledger_unavailable"


class CircuitOpen(Unavailable):
    """The agent failed too often just now and is not started again yet."""

    code = "circuit_open"
    exit_code = 3


class BudgetBusy(Unavailable):
    """A cap has room once what others reserved is settled; nothing was reserved."""

    code = "budget_busy"
    exit_code = 3
    http_status = 429


class RunFailed(AtlasError):
    """A run ended without a result."""

    code = "run_failed"


class Cancelled(AtlasError):
    """The run was cancelled."""

    code = "cancelled"
    http_status = 409


class Fault(AtlasError):
    """A bug of ours or a broken machine."""

    code = "fault"


class LedgerCorrupt(Fault):
    """Stored history contradicts itself."""

    code = "ledger_corrupt"


_BY_CODE: dict[str, type[AtlasError]] = {}


def _collect(cls: type[AtlasError]) -> None:
    _BY_CODE[cls.code] = cls
    for sub in cls.__subclasses__():
        _collect(sub)


_collect(AtlasError)


def from_record(record: ErrorRecord) -> AtlasError:
    """The error that `record` was made from; an unknown code becomes RunFailed with that code."""
    cls = _BY_CODE.get(record.kind or record.code, RunFailed)
    return cls(record.message, hint=record.hint, where=record.where, code=record.code, detail=record.detail)
