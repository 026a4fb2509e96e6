"""What an attempt acts through, and the messages that reach it."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from atlas.control.history import History
from atlas.kernel.budget import Quote, Settlement
from atlas.kernel.code import CallMade, Executor, FromCode, Job, Need
from atlas.kernel.errors import AtlasError, ErrorRecord, Fault, Unavailable
from atlas.kernel.event import Body, EffectIntended, EffectJudged, Process
from atlas.kernel.gate import DEFAULTS, Authority
from atlas.kernel.hold import Cap, Hold, Meter
from atlas.kernel.model import Tab
from atlas.kernel.policy import Ruling
from atlas.kernel.port import Clock, Ledger
from atlas.kernel.run import NewRun, Signal
from atlas.kernel.state import State


class Effected(msgspec.Struct, frozen=True):
    """What performing an effect gave, and which model said it; what it used is on its tab."""

    result: bytes
    model: str = ""


NOTHING: Final = Effected(b"null")


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


class Admitted(msgspec.Struct, frozen=True):
    """An intent is durable, and what it may use is reserved."""

    call: CallMade
    intent: EffectIntended


class NotAdmitted(msgspec.Struct, frozen=True):
    """A call got no money, or nobody knows what it would cost.

    `is_mandate_empty`: what should have answered in a person's place has no room for it, so the person is asked.
    With BudgetBusy nothing is decided: the attempt ends before there is room. `lost` settles an earlier try.
    """

    call: CallMade
    error: AtlasError
    is_mandate_empty: bool = False
    lost: Settlement | None = None


class Judged(msgspec.Struct, frozen=True):
    """A second opinion on a call, and what it settles."""

    call: CallMade
    fact: EffectJudged
    settle: tuple[Settlement, ...] = ()


class Bounds(msgspec.Struct, frozen=True):
    """What a call of a run is under now: the caps, the meters it counts on, the day it counts to.

    `falls_back`: at a cap it goes on with the cheaper model.
    """

    caps: tuple[Cap, ...] = ()
    meters: tuple[Meter, ...] = ()
    day: str = ""
    tokens_per_request: int | None = None
    falls_back: bool = False


class Stop(msgspec.Struct, frozen=True):
    """The driver wants to leave: finish recording and park."""


class Lost(msgspec.Struct, frozen=True):
    """The lease is gone or the ledger does not answer: nothing more may be written."""

    error: AtlasError


class Tick(msgspec.Struct, frozen=True):
    """A time that `decide` asked for has come."""


class Granted(msgspec.Struct, frozen=True):
    """The run has a slot again after it waited for children."""


Message: TypeAlias = (
    FromCode
    | Durable
    | Admitted
    | NotAdmitted
    | Judged
    | ChildStarted
    | ChildRefused
    | Stop
    | Lost
    | Tick
    | Granted
    | Signal
)


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


async def leaves_nothing(state: State, history: History, outcome: str) -> tuple[Body, ...]:
    """For runs that leave nothing behind but their outcome."""
    return ()


async def has_no_models(args: bytes, hold: Hold | None, tab: Tab) -> Effected:
    """For hosts that know no models."""
    raise Unavailable("this host has no models", code="no_models")


def unchanged(record: ErrorRecord) -> ErrorRecord:
    """For hosts without secrets."""
    return record


async def has_no_tools(owner: str) -> None:
    """For hosts whose tools are nowhere but in their own process."""


async def keeps_nothing(version: str) -> None:
    """For hosts without policies."""


def needs_nothing(args: bytes) -> Need | None:
    """For hosts that know no models."""
    return None


async def has_no_bounds(state: State, now_us: int) -> Bounds:
    """For hosts without budgets."""
    return Bounds()


async def has_no_judges(record: Any, call: CallMade, ruling: Ruling) -> Judged:
    """For hosts without rules; nobody is ever consulted there."""
    raise Fault("nobody gives second opinions here", code="no_judge")


async def costs_nothing(model: str, tokens_in: int) -> Quote:
    """For hosts whose models are free."""
    return Quote(lambda max_output_tokens: 0)


class World(msgspec.Struct, frozen=True):
    """Everything outside an attempt that it acts through."""

    ledger: Ledger
    clock: Clock
    agents: Agents
    executor: Callable[[State], Executor]
    slots: Slots
    kill: Callable[[Process], Awaitable[object]]
    boundary: Callable[[str], None]
    authority: Authority = DEFAULTS
    closing: Callable[[State, History, str], Awaitable[tuple[Body, ...]]] = leaves_nothing
    generate: Callable[[bytes, Hold | None, Tab], Awaitable[Effected]] = has_no_models
    bounds: Callable[[State, int], Awaitable[Bounds]] = has_no_bounds
    quote: Callable[[str, int], Awaitable[Quote]] = costs_nothing
    consult: Callable[[Any, CallMade, Ruling], Awaitable[Judged]] = has_no_judges
    need: Callable[[bytes], Need | None] = needs_nothing
    keep_policy: Callable[[str], Awaitable[None]] = keeps_nothing
    redact: Callable[[ErrorRecord], ErrorRecord] = unchanged
    kill_tools: Callable[[str], Awaitable[None]] = has_no_tools
    expire_after_us: int = 0

    def expires_us(self) -> int:
        """When a question that is put now is given up; 0 when it waits for ever."""
        return self.clock.now_us() + self.expire_after_us if self.expire_after_us else 0


def bug(error: BaseException) -> Fault:
    """An exception that nobody expected, as an error a person can report."""
    detail = "".join(traceback.format_exception(error)[-8:])
    hint = "This is a bug in Atlas; please report it."
    return Fault(f"{type(error).__name__}: {error}", hint=hint, detail=detail)
