"""Runs as rows: what the ledger keeps beside the events so that queues, leases and queries need no fold."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from atlas.kernel.budget import Reservation, Settlement, Warned
from atlas.kernel.errors import AtlasError, Fault
from atlas.kernel.event import NO_SPEND, Draft, Spend

RunState: TypeAlias = Literal["queued", "running", "waiting", "in_doubt", "succeeded", "failed", "refused", "cancelled"]

TERMINAL: Final[frozenset[RunState]] = frozenset({"succeeded", "failed", "refused", "cancelled"})
PARKED: Final[frozenset[RunState]] = frozenset({"waiting", "in_doubt"})

# running -> running is a takeover; waiting -> running is a parent whose child answered while it stayed warm.
TRANSITIONS: Final[dict[RunState, frozenset[RunState]]] = {
    "queued": frozenset({"running"}),
    "running": TERMINAL.union({"running", "waiting", "queued", "in_doubt"}),
    "waiting": TERMINAL.union({"running", "queued", "in_doubt"}),
    "in_doubt": frozenset({"queued"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "refused": frozenset(),
    "cancelled": frozenset(),
}


def transition(old: RunState, new: RunState) -> RunState:
    """`new`, when a run may go there from `old`."""
    if new != old and new not in TRANSITIONS[old]:
        raise Fault(f"a run cannot go from {old} to {new}", code="bad_transition")
    return new


class Lease(msgspec.Struct, frozen=True):
    """The right to append to a run, held by `owner` until `until_us` in the ledger's time."""

    run_id: str
    owner: str
    generation: int
    until_us: int


class Claimed(msgspec.Struct, frozen=True):
    """A lease just taken; `previous_owner` is who held the run and did not give it back."""

    lease: Lease
    previous_owner: str = ""


class NewRun(msgspec.Struct, frozen=True):
    """A run to be created: its row and its first event. A session that does not exist yet is created with it.

    `branch_turn` is the turn of `branch_of` that the first turn of a new session takes the place of.
    """

    run_id: str
    session_id: str
    agent: str
    version: str
    snapshot: str
    principal: str
    created: Draft
    root_run_id: str
    parent_run_id: str = ""
    parent_effect: str = ""
    depth: int = 0
    priority: int = 0
    due_us: int = 0
    place: str = ""
    key: str = ""
    fingerprint: str = ""
    branch_of: str = ""
    branch_turn: int = 0


class Submitted(msgspec.Struct, frozen=True):
    """The run that answers a submission; `is_new` is False when the key named an earlier one."""

    run_id: str
    is_new: bool


class TreeLimits(msgspec.Struct, frozen=True):
    """What a tree of runs may still start, checked in the same commit that starts it."""

    runs: int
    spawns_per_minute: int


class NewSignal(msgspec.Struct, frozen=True):
    """Something for a run's holder to turn into an event; inserted once per id."""

    id: str
    run_id: str
    kind: Literal["cancel", "answer", "resolve", "child_ended", "child_parked"]
    principal: str
    body: bytes


class Signal(msgspec.Struct, frozen=True):
    """A signal that no holder has consumed yet."""

    id: str
    run_id: str
    kind: str
    principal: str
    body: bytes
    created_us: int


class InboxItem(msgspec.Struct, frozen=True):
    """Something a person must decide: an effect that asks, or one in doubt."""

    run_id: str
    effect: str
    kind: Literal["approval", "doubt"]
    agent: str
    principal: str
    body: bytes
    created_us: int


class Append(msgspec.Struct, frozen=True):
    """One atomic commit by the holder of a lease.

    Events, the run's new state, the signals they consume, the children and signals they create, what they
    spent and what they put into or take out of the inbox become visible together or not at all. `lazy`
    means nobody waits for this commit alone: it may be held back a few milliseconds to share one with
    the next.

    `settle` is applied before `reserve` is admitted: a call that is asked again settles its first hold and reserves
    anew in one commit. What a settlement spent is added to the totals by the ledger; `spend` is what was used without
    any reservation, so nothing stands in both. `day` is the day that `spend` counts to; empty, the UTC day.
    """

    lease: Lease
    drafts: tuple[Draft, ...] = ()
    state: RunState | None = None
    release: bool = False
    due_us: int = 0
    consumed: tuple[str, ...] = ()
    children: tuple[NewRun, ...] = ()
    tree_limits: TreeLimits | None = None
    signals: tuple[NewSignal, ...] = ()
    spend: Spend = NO_SPEND
    inbox_open: tuple[InboxItem, ...] = ()
    inbox_close: tuple[str, ...] = ()
    lazy: bool = False
    reserve: Reservation | None = None
    settle: tuple[Settlement, ...] = ()
    day: str = ""


class Appended(msgspec.Struct, frozen=True):
    """Where a commit ended: the run's last sequence number, the ledger's last position, and alerts it raised.

    `refused`: why only what went before the batch was committed.
    """

    seq: int
    position: int
    warned: tuple[Warned, ...] = ()
    refused: AtlasError | None = None


class RunRow(msgspec.Struct, frozen=True):
    """A run as queries see it."""

    run_id: str
    session_id: str
    turn: int
    agent: str
    version: str
    snapshot: str
    principal: str
    parent_run_id: str
    parent_effect: str
    root_run_id: str
    depth: int
    priority: int
    place: str
    key: str
    state: RunState
    created_us: int
    updated_us: int
    ended_us: int
    due_us: int
    owner: str
    generation: int
    lease_until_us: int
    head_seq: int
    head_hash: bytes
    spend: Spend
    estimated_micro_usd: int = 0


class RunQuery(msgspec.Struct, frozen=True):
    """Which runs to list, newest first; `before` is the cursor a page gave."""

    agent: str = ""
    states: tuple[RunState, ...] = ()
    session_id: str = ""
    principal: str = ""
    root_run_id: str = ""
    parent_run_id: str = ""
    roots_only: bool = False
    id_prefix: str = ""
    before: str = ""
    limit: int = 50


class RunPage(msgspec.Struct, frozen=True):
    """One page of runs; `next` is empty on the last one."""

    runs: tuple[RunRow, ...]
    next: str = ""


class SpendRow(msgspec.Struct, frozen=True):
    """What one agent spent for one principal with one model on one day of the configured zone.

    What was only estimated stands in a row of its own. `cached_in` is the part of the tokens in that the provider's
    cache answered, and `saved_micro_usd` what that saved.
    """

    day: str
    agent: str
    principal: str
    spend: Spend
    model: str = ""
    is_estimated: bool = False
    cached_in: int = 0
    saved_micro_usd: int = 0


class SessionRow(msgspec.Struct, frozen=True):
    """A durable history of turns with one agent and one principal.

    `turns` is the last turn that was taken. One that branched off knows the session that it left, and at which turn.
    """

    session_id: str
    agent: str
    principal: str
    created_us: int
    turns: int
    branch_of: str = ""
    branch_turn: int = 0
