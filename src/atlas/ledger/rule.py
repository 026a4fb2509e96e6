"""The rules every adapter of the ledger applies inside its commit, as pure functions.

Fencing, what a released run becomes, tree limits and the fair share live here once, so that adapters differ in how
they store and never in what they decide.
"""

from __future__ import annotations

from datetime import date, timedelta
from functools import lru_cache
from typing import Final

from atlas.kernel.errors import Conflict, Fault, LedgerUnavailable, LimitRefused, NotFound, StaleLease
from atlas.kernel.run import PARKED, TERMINAL, Append, Lease, NewRun, RunState, TreeLimits, transition

MINUTE_S: Final = 60
# What a value that cannot be stored raises.
BAD_VALUE: Final = (ValueError, TypeError, OverflowError)
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)


def check_fence(lease: Lease, owner: str, generation: int) -> None:
    """StaleLease unless the run is still held under this very lease; a lapsed one nobody took still counts."""
    if generation == lease.generation and owner == lease.owner:
        return
    holder = f"{owner} holds it now" if owner else "nobody holds it now"
    raise StaleLease(
        f"run {lease.run_id} is no longer held by {lease.owner} under generation {lease.generation}: "
        f"{holder}, generation {generation}",
        hint="Nothing was appended. Claim the run again before going on with it.",
    )


def settle(old: RunState, batch: Append) -> tuple[RunState, bool]:
    """The state that `batch` leads to, and whether it gives the lease back."""
    new = old if batch.state is None else transition(old, batch.state)
    released = batch.release or new == "queued" or (new in TERMINAL and old not in TERMINAL)
    # Running means a live lease, so a run given back while it runs has to be claimable again.
    return ("queued" if released and new == "running" else new), released


def park(state: RunState, has_signals: bool) -> RunState:
    """The state of a run that was just given back: one that would sleep over a signal is queued instead."""
    return transition(state, "queued") if has_signals and state in PARKED else state


def claimed_state(state: RunState) -> RunState:
    """The state of a run that was just claimed; a terminal one stays as it is."""
    if state in TERMINAL:
        return state
    if state == "in_doubt":
        state = transition(state, "queued")
    return transition(state, "running")


def next_tag(virtual_time: int, last: int) -> int:
    """The fair-share tag of a run that becomes claimable, given the last tag of its tree in the same lane."""
    return max(virtual_time, last + 1)


def check_limits(limits: TreeLimits, runs: int, last_minute: int, new: int) -> None:
    """LimitRefused when `new` more children would pass a limit of the tree."""
    if runs + new > limits.runs:
        raise LimitRefused(
            f"the tree has {runs} runs and may have {limits.runs}; {new} more were asked for",
            hint="Raise the limit of runs per tree, or spawn fewer.",
            code="max_runs_per_tree",
        )
    if last_minute + new > limits.spawns_per_minute:
        raise LimitRefused(
            f"the tree started {last_minute} runs in the last minute and may start {limits.spawns_per_minute}; "
            f"{new} more were asked for",
            hint="Wait, raise the limit of spawns per minute, or spawn fewer.",
            code="spawn_rate",
        )


def minute_start(now_us: int) -> int:
    """The first second that belongs to the last minute; the second it begins in counts whole."""
    return now_us // 1_000_000 - MINUTE_S


def check_key(run: NewRun, fingerprint: str, run_id: str) -> None:
    """Conflict when the key was used before for something else."""
    if fingerprint != run.fingerprint:
        raise Conflict(
            f"key {run.key!r} of {run.principal} for agent {run.agent} belongs to run {run_id}, "
            "which was submitted with another input or other options",
            hint="Use a new key, or submit exactly what was submitted first.",
            code="key_reused",
        )


def check_session(run: NewRun, agent: str, principal: str) -> None:
    """Conflict when the session belongs to somebody else.

    A child runs inside its parent's session whatever its agent is; it takes no turn there.
    """
    if principal == run.principal and (agent == run.agent or run.parent_run_id):
        return
    raise Conflict(
        f"session {run.session_id} belongs to agent {agent} and principal {principal}, "
        f"not to agent {run.agent} and principal {run.principal}",
        hint="Leave the session out to start a new one.",
        code="session_mismatch",
    )


def is_turn(run: NewRun) -> bool:
    """Whether the run takes a turn of a session."""
    return bool(run.session_id) and not run.parent_run_id


def first_turn(run: NewRun) -> int:
    """The turn of the run in a session that is made with it; 0 when it takes none."""
    return max(run.branch_turn, 1) if is_turn(run) else 0


def utc_day(now_us: int) -> str:
    """The UTC day, as YYYY-MM-DD."""
    return _day_text(now_us // _DAY_US)


def lease_us(lease_s: float) -> int:
    """A lease's length in microseconds."""
    return int(lease_s * 1_000_000)


def no_run(run_id: str) -> NotFound:
    """The error for a run that does not exist."""
    return NotFound(f"there is no run {run_id}", hint="`atlas runs` lists the runs of this vault.")


def no_session(session_id: str) -> NotFound:
    """The error for a session that does not exist."""
    return NotFound(f"there is no session {session_id}", hint="Leave the session out to start a new one.")


def no_event(run_id: str, seq: int) -> NotFound:
    """The error for an event that does not exist."""
    return NotFound(f"run {run_id} has no event {seq}")


def signal_gone(run_id: str, signal_id: str) -> Conflict:
    """The error for consuming a signal that is not there, or was consumed before."""
    return Conflict(f"run {run_id} has no open signal {signal_id}", code="signal_gone")


def bad_record(error: BaseException) -> Fault:
    """The error for a value that cannot be stored."""
    return Fault(f"the ledger was given something it cannot store: {error}", code="bad_record")


def too_new(found: int, known: int, version: str, where: str) -> Conflict:
    """The error for a store whose schema a newer Atlas has made or changed."""
    version = version or "a newer version"
    return Conflict(
        f"this ledger was written by Atlas {version} with schema {found}; this Atlas knows schema {known}",
        hint=f"Open it with Atlas {version} or newer.",
        where=where,
        code="ledger_too_new",
    )


def closed() -> LedgerUnavailable:
    """The error for using a ledger that is not open."""
    return LedgerUnavailable(
        "the ledger is not open", hint="Open it first; after close() it takes nothing.", code="ledger_closed"
    )


def forked() -> Fault:
    """The error for using a ledger in another process than the one that opened it."""
    return Fault(
        "this ledger was opened by another process and was carried here by a fork",
        hint="Open a new ledger in each process; a database connection cannot cross a fork.",
        code="ledger_forked",
    )


@lru_cache(maxsize=4)
def _day_text(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).isoformat()
