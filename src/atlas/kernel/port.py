"""The ports: what the core asks of the world, and the guarantees it relies on.

Control code sees these Protocols and never an adapter. The contract suites in `atlas.testing` state every
guarantee below as a test that each adapter must pass.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec

from atlas.kernel.budget import Balance, Cap, Warned
from atlas.kernel.contract import Contract
from atlas.kernel.event import Event
from atlas.kernel.run import (
    Append,
    Appended,
    Claimed,
    InboxItem,
    Lease,
    NewRun,
    NewSignal,
    RunPage,
    RunQuery,
    RunRow,
    SessionRow,
    Signal,
    SpendRow,
    Submitted,
)
from atlas.kernel.tool import ToolDefinition, ToolFinding, ToolOutcome


class Clock(Protocol):
    """Time and randomness."""

    def now_us(self) -> int:
        """Integer UTC microseconds."""
        ...

    def entropy(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        ...


class Wake(Protocol):
    """Tells a waiter that something was committed, by this process or another."""

    async def wait(self, timeout_s: float) -> bool:
        """True as soon as something was committed since the last call, False after `timeout_s`; never misses one."""
        ...


SHARED: Final = "@vault"
"""The folder of a prompt agent's snapshot that holds what the vault shares with all of them: its `tools`."""


class Snapshot(msgspec.Struct, frozen=True):
    """The files of an agent that a run pins, each path with the SHA-256 of its bytes; `digest` names them all.

    `digest` is the SHA-256 of the JSON object `files`, keys sorted: the name under which the ledger keeps it.
    """

    digest: str
    files: dict[str, str]


class Vault(Protocol):
    """The folder tree that people write."""

    def agents(self) -> list[str]:
        """The names of all agents, sorted."""
        ...

    def contract(self, name: str) -> Contract:
        """The agent's contract with its runtime resolved; NotFound, or Invalid with every problem of the file."""
        ...

    def snapshot(self, name: str) -> Snapshot:
        """What a run of the agent would pin now."""
        ...

    def read(self, name: str, path: str) -> bytes:
        """One file of an agent's snapshot."""
        ...

    def read_file(self, path: str) -> bytes:
        """One file of the vault, as it is now; NotFound when there is none."""
        ...

    def placed(self, digest: str) -> str | None:
        """The folder in which a snapshot's files lie complete and unchanged, if they do."""
        ...

    def place(self, digest: str, files: Mapping[str, bytes]) -> str:
        """Puts a snapshot's files into a folder of their own, all or nothing."""
        ...

    def contract_in(self, folder: str) -> Contract:
        """The contract of a placed snapshot."""
        ...


class Ledger(Protocol):
    """The event store: append-only, fenced, durable once acknowledged.

    Every method raises LedgerUnavailable (disk full, locked, read-only, unreachable) or LedgerCorrupt, and
    then nothing acknowledged before is lost.
    """

    async def open(self) -> None:
        """Connects, migrates an older schema, refuses a newer one with the version that can read it."""
        ...

    async def close(self) -> None:
        """Everything acknowledged is durable; nothing is accepted after."""
        ...

    async def submit(self, run: NewRun, *, lazy: bool = False) -> Submitted:
        """Creates the run, its session when new, its first event and its place in the queue, in one commit.

        A lazy one may wait a moment for a claim of this process to go along with.
        With a key: the same principal, agent and key give the run made first; another fingerprint is a Conflict.
        An unknown `session_id` creates that session; an existing one of another agent or principal is a Conflict.
        A top-level run takes the session's next turn number; a child (with a parent) has turn 0.
        """
        ...

    async def claim(
        self,
        owner: str,
        *,
        limit: int,
        lease_s: float,
        max_running: int,
        places: Sequence[str] = ("",),
        run_id: str = "",
    ) -> list[Claimed]:
        """Takes up to `limit` runs that are due, or whose lease has lapsed, and makes them running.

        Only runs whose `place` is listed. Never lets runs in state running with a live lease exceed `max_running`.
        Order: lapsed leases first, then priority, then a fair share among trees (start-time fair queueing by
        root run), then age. A session's turn is not claimable while an earlier turn of it has not ended. With
        `run_id` only that run, whatever its due time or the caps, and when its state is terminal it stays so.
        """
        ...

    async def renew(self, leases: Sequence[Lease], lease_s: float) -> list[Lease]:
        """Extends the leases still held, also lapsed ones nobody took; those missing from the answer are lost."""
        ...

    async def owners(self) -> list[str]:
        """Who holds leases now."""
        ...

    async def expire(self, owner: str) -> int:
        """Lets the leases of an owner known to be dead lapse at once; how many there were."""
        ...

    def append(self, batch: Append, before: Append | None = None) -> Awaitable[Appended]:
        """Commits the batch; the answer comes when it is durable.

        `before`, of the same lease, goes first in the same commit and stands even if `batch` is refused; then the
        answer is that of `before` and says what refused the other, instead of raising it.

        Batches take effect in the order of the calls to `append`, from the moment of the call. StaleLease when
        the lease's generation is not the run's; LimitRefused when `tree_limits` would be passed; BudgetRefused when
        `reserve` would pass a cap, BudgetBusy when only other reservations block it; Fault for settling an effect that
        has nothing reserved. Then nothing of this batch happened, and other batches of the same group are untouched.
        A run that ends settles what it still holds in full, as estimated, in the same commit. Reaching a terminal state, or
        `release`, gives the lease back. With `release` and state queued the run is due at `due_us`. A released
        run that has unconsumed signals is queued instead of parked.
        """
        ...

    async def signal(self, signal: NewSignal) -> bool:
        """Inserts the signal, and queues the run when it is parked; False when this id was inserted before."""
        ...

    async def signals(self, run_id: str = "") -> list[Signal]:
        """Signals that nobody has consumed, oldest first: of one run, or of all that have not ended."""
        ...

    async def events(self, run_id: str, *, after: int = 0, limit: int = 0) -> list[Event]:
        """The run's events after a sequence number, in order; all of them when `limit` is 0."""
        ...

    async def feed(self, after: int, limit: int) -> list[Event]:
        """Events of all runs after a global position, in commit order, none ever skipped."""
        ...

    async def head(self) -> int:
        """The global position of the newest event."""
        ...

    async def run(self, run_id: str) -> RunRow:
        """The run's row, or NotFound."""
        ...

    async def runs(self, query: RunQuery) -> RunPage:
        """Runs newest first, one page; as fast at a million events as at ten."""
        ...

    async def last_children(self, agent: str, snapshot: str, limit: int) -> list[RunRow]:
        """The newest ended child runs of an agent with this snapshot, newest end first."""
        ...

    async def session(self, session_id: str) -> SessionRow:
        """The session, or NotFound."""
        ...

    async def inbox(self, run_id: str = "") -> list[InboxItem]:
        """What waits for a person, oldest first."""
        ...

    async def spend(self, since_day: str = "", agent: str = "") -> list[SpendRow]:
        """Totals by day, agent, principal and model, what is estimated apart; kept incrementally."""
        ...

    async def balances(self, caps: Sequence[Cap]) -> tuple[Balance, ...]:
        """How far the meters under each cap have gone, all read at one moment."""
        ...

    async def warned(self, since_us: int = 0) -> list[Warned]:
        """Alerts raised since a time, oldest first; each once in its period."""
        ...

    async def erase(self, run_id: str, seq: int) -> None:
        """Replaces body and salt of one event by nothing; the chain still verifies and says so."""
        ...

    async def put_blob(self, data: bytes) -> str:
        """The SHA-256 (hex) under which the bytes are durably kept."""
        ...

    async def get_blob(self, digest: str) -> bytes:
        """The exact bytes; NotFound, or LedgerCorrupt when they no longer match their name."""
        ...

    def wake(self, *, every_commit: bool = False) -> AbstractAsyncContextManager[Wake]:
        """A subscription to commits that make work: a submission, a signal, a change of a run's state.

        With `every_commit` also to those that only append events.
        """
        ...


class Secrets(Protocol):
    """Values by name, from wherever the vault keeps them. No message and no representation holds a value.

    Every method raises Invalid for what cannot be the name of a secret, and Unavailable when a store does not answer.
    """

    def get(self, name: str) -> str | None:
        """The value as it is now, or None; Invalid when it is too short to be kept out of texts."""
        ...

    def names(self) -> tuple[str, ...]:
        """Every name that has a value, as far as the stores can tell, sorted."""
        ...

    def source(self, name: str) -> str:
        """Where a name's value comes from, in a word; empty when it has none."""
        ...

    def set(self, name: str, value: str) -> str:
        """Keeps the value durably and returns where; Invalid when it cannot be a secret."""
        ...

    def remove(self, name: str) -> bool:
        """Forgets the value wherever this keeps it; False when it keeps none."""
        ...


class ToolHost(Protocol):
    """Runs the tools that lie in folders, away from the driver's own process or inside it.

    A `folder` is one whose `tools/*.py` never change while they are used: a placed snapshot. Every method raises
    Invalid with each problem of the files, NotFound for a tool that is not there, and Unavailable when no process
    can be had. What a tool itself does wrong is an outcome, never an exception.
    """

    async def definitions(self, folder: str) -> tuple[ToolDefinition, ...]:
        """What the folder's tools declare, by name."""
        ...

    async def resources(self, folder: str, name: str, args: bytes) -> tuple[str, ...]:
        """What a call would touch, for a tool that computes it; everything when it cannot say."""
        ...

    async def call(
        self, folder: str, name: str, args: bytes, effect_key: str, secrets: Mapping[str, str] | None = None
    ) -> ToolOutcome:
        """Performs the call once, or again with the same key when it may be repeated and its process was lost.

        Cancelling it stops the call, and is over when nothing of it runs any more. `secrets` are the values of those
        that the tool declares; they reach its function and are recorded nowhere.
        """
        ...

    async def probe(
        self, folder: str, name: str, args: bytes, effect_key: str, secrets: Mapping[str, str] | None = None
    ) -> ToolFinding:
        """Finds out whether a call that may have happened did."""
        ...

    async def drain(self) -> None:
        """Stops everything that runs and forgets it."""
        ...
