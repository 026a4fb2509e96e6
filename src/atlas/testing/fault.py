"""Faults at named points of a driver: how crash claims are proved without guessing where a process is.

A plan is `POINT:NUMBER:ACTION`, for example `intent.durable:3:kill`: the third time the driver crosses that point
it kills itself with SIGKILL (`kill`) or stops itself with SIGSTOP (`stop`), as a power cut or a sleeping laptop would.
`commit.before:N:kill` and `commit.after:N:kill` strike at what a process writes, whatever it is: exactly the first
N - 1, or N, of its submissions and appends become durable, and nothing of a later one ever does.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

from atlas.kernel.errors import Invalid
from atlas.kernel.port import Ledger
from atlas.kernel.run import Append, Appended, NewRun, Submitted

T = TypeVar("T")

POINTS: Final = (
    "claimed",
    "loaded",
    "code.started",
    "intent.before",
    "intent.durable",
    "perform.sent",
    "receipt.before",
    "receipt.written",
    "spawn.before",
    "spawn.durable",
    "asked",
    "park.before",
    "park.durable",
    "end.before",
    "end.durable",
)
COMMITS: Final = ("commit.before", "commit.after")
_ACTIONS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def fault_at(plan: str) -> Callable[[str], None]:
    """A boundary that strikes once, as the plan says; never when the plan is about a commit."""
    fault = _parsed(plan)
    left = fault.number

    def cross(name: str) -> None:
        nonlocal left
        if name == fault.point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), fault.signal)

    return cross


def faulty_ledger(ledger: Ledger, plan: str) -> Ledger:
    """The ledger, which strikes once when the plan is about a commit; otherwise the ledger itself."""
    fault = _parsed(plan)
    return cast(Ledger, _FaultyLedger(ledger, fault)) if fault.point in COMMITS else ledger


class _Fault(NamedTuple):
    point: str
    number: int
    signal: signal.Signals


def _parsed(plan: str) -> _Fault:
    point, _, rest = plan.partition(":")
    number, _, action = rest.partition(":")
    is_known = point in POINTS or (point in COMMITS and action == "kill")
    if not is_known or not number.isdigit() or action not in _ACTIONS:
        raise Invalid(
            f"{plan!r} is not a fault plan",
            hint="Write POINT:NUMBER:kill or POINT:NUMBER:stop; at a commit, kill only.",
        )
    return _Fault(point, int(number), _ACTIONS[action])


class _FaultyLedger:
    """Passes everything on until the commit that the fault names; after that one, nothing that would be durable."""

    def __init__(self, ledger: Ledger, fault: _Fault) -> None:
        self._ledger = ledger
        self._fault = fault
        self._left = fault.number
        self._last: asyncio.Future[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def submit(self, run: NewRun, *, lazy: bool = False) -> Submitted:
        """A commit."""
        return await self._commit(lambda: self._ledger.submit(run, lazy=lazy))

    def append(self, batch: Append, before: Append | None = None) -> Awaitable[Appended]:
        """A commit."""
        return self._commit(lambda: self._ledger.append(batch, before))

    def _commit(self, begin: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        self._left -= 1
        is_before = self._fault.point == "commit.before"
        if self._left < 0 or (self._left == 0 and is_before):
            # What went before becomes durable first: commits are durable in the order in which they were made.
            if self._left == 0:
                self._strike_after(self._last)
            return asyncio.get_running_loop().create_future()
        self._last = asyncio.ensure_future(begin())
        if self._left == 0:
            self._strike_after(self._last)
        return self._last

    def _strike_after(self, commit: asyncio.Future[Any] | None) -> None:
        if commit is None or commit.done():
            os.kill(os.getpid(), self._fault.signal)
        else:
            # Added before anybody else can add theirs, so nobody hears that the commit is durable.
            commit.add_done_callback(lambda _: os.kill(os.getpid(), self._fault.signal))
