"""What an attempt acts through, and the messages that reach it."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from atlas.control.history import History
from atlas.kernel.code import CallMade, Executor, FromCode, Job
from atlas.kernel.errors import AtlasError, ErrorRecord, Fault, Unavailable
from atlas.kernel.event import NO_SPEND, Body, EffectIntended, Process, Spend
from atlas.kernel.port import Clock, Ledger
from atlas.kernel.run import NewRun, Signal
from atlas.kernel.state import State


class Effected(msgspec.Struct, frozen=True):
    """What performing an effect gave, and what it used."""

    result: bytes
    spend: Spend = NO_SPEND
    model: str = ""


class Durable(msgspec.Struct, frozen=True):
    """The intent of a call is durable, or the lease was confirmed: the code may go on."""

    call: CallMade
    probe: bool = False


class ChildStarted(msgspec.Struct, frozen=True):
    """The commit that started a child run is durable."""

    call: CallMade
    intent: EffectIntended


class ChildRefused(msgspec.Struct, frozen=True):
    """A child run could not be started."""

    call: CallMade
    error: AtlasError


class Stop(msgspec.Struct, frozen=True):
    """The driver wants to leave: finish recording and park."""


class Lost(msgspec.Struct, frozen=True):
    """The lease is gone or the ledger does not answer: nothing more may be written."""

    error: AtlasError


class Tick(msgspec.Struct, frozen=True):
    """A time that `decide` asked for has come."""


class Granted(msgspec.Struct, frozen=True):
    """The run has a slot again after it waited for children."""


Message: TypeAlias = FromCode | Durable | ChildStarted | ChildRefused | Stop | Lost | Tick | Granted | Signal


class Agents(Protocol):
    """What an attempt needs to know about agents."""

    async def job(self, state: State, history: History, now_us: int) -> Job:
        """The job that executes the run's pinned code."""
        ...

    async def child(self, parent: State, call: CallMade) -> NewRun:
        """The run that a spawn call asks for; raises when its agent or input is wrong or it failed too often."""
        ...

    async def check_output(self, state: State, output: msgspec.Raw) -> ErrorRecord | None:
        """What is wrong with an output under the run's pinned contract."""
        ...


class Slots(Protocol):
    """The places in which code may run at the same time."""

    def give_back(self) -> None:
        """Frees a place."""
        ...

    def take_again(self, granted: Callable[[], None]) -> None:
        """Calls `granted` when there is a place; before any new run gets it."""
        ...


async def leaves_nothing(state: State, outcome: str) -> tuple[Body, ...]:
    """For runs that leave nothing behind but their outcome."""
    return ()


async def has_no_models(args: bytes) -> Effected:
    """For hosts that know no models."""
    raise Unavailable("this host has no models", code="no_models")


class World(msgspec.Struct, frozen=True):
    """Everything outside an attempt that it acts through."""

    ledger: Ledger
    clock: Clock
    agents: Agents
    executor: Callable[[State], Executor]
    slots: Slots
    kill: Callable[[Process], Awaitable[object]]
    boundary: Callable[[str], None]
    closing: Callable[[State, str], Awaitable[tuple[Body, ...]]] = leaves_nothing
    generate: Callable[[bytes], Awaitable[Effected]] = has_no_models


def bug(error: Exception) -> Fault:
    """An exception that nobody expected, as an error a person can report."""
    detail = "".join(traceback.format_exception(error)[-8:])
    hint = "This is a bug in Atlas; please report it."
    return Fault(f"{type(error).__name__}: {error}", hint=hint, detail=detail)
