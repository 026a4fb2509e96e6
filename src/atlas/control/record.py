"""The only way a driver writes to a run: every event goes through `Record.write`, in order, under one lease.

`write` applies the bodies to the state at once, so the state is always what the ledger will say. Nothing outside acts
on it before the batch is durable: intents are awaited, and a receipt stands before any later intent. What is lazy is
held back for a moment and goes along with the next write, so that a step costs one commit and few statements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from atlas.kernel.budget import Reservation, Settlement
from atlas.kernel.errors import AtlasError
from atlas.kernel.event import NO_SPEND, Body, Draft, Spend, draft
from atlas.kernel.port import Clock, Ledger
from atlas.kernel.run import Append, Appended, InboxItem, Lease, NewRun, NewSignal, RunState, TreeLimits
from atlas.kernel.state import Live, State, apply

LAZY_S: Final = 0.005


class Record:
    """A run's state and its pen."""

    def __init__(
        self, ledger: Ledger, clock: Clock, lease: Lease, state: State, on_failure: Callable[[AtlasError], None]
    ) -> None:
        self.ledger = ledger
        self.clock = clock
        self.lease = lease
        self.state = state
        self._on_failure = on_failure
        self._row_state: RunState = "running"
        self._unconfirmed: set[asyncio.Future[Appended]] = set()
        self._held: Append | None = None
        self._promise: asyncio.Future[Appended] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._held_since_s = 0.0

    def observe(self, **changes: object) -> None:
        """Notes something about this attempt that is not a fact."""
        live: Live = replace(self.state.live, **changes)
        self.state = replace(self.state, live=live)

    def write(
        self,
        *bodies: Body,
        lazy: bool = False,
        state: RunState | None = None,
        release: bool = False,
        consumed: tuple[str, ...] = (),
        signals: tuple[NewSignal, ...] = (),
        spend: Spend = NO_SPEND,
        inbox_open: tuple[InboxItem, ...] = (),
        inbox_close: tuple[str, ...] = (),
        due_us: int = 0,
        settle: tuple[Settlement, ...] = (),
    ) -> asyncio.Future[Appended]:
        """Applies the bodies now; the future says when they are durable. A lazy one is cancelled if they cannot be."""
        drafts = self._apply(bodies)
        batch = Append(
            lease=self.lease,
            drafts=drafts,
            state=state or self._changed_state(),
            release=release,
            due_us=due_us,
            consumed=consumed,
            signals=signals,
            spend=spend,
            inbox_open=inbox_open,
            inbox_close=inbox_close,
            settle=settle,
        )
        return self._hold(batch) if lazy else self._enqueue(self._with_held(batch), self._on_failure)

    def write_admitted(
        self,
        intent: Body,
        reservation: Reservation,
        settle: tuple[Settlement, ...],
        refused: Callable[[AtlasError], None],
    ) -> asyncio.Future[Appended]:
        """Commits an intent together with what it reserves; applies nothing, because a cap may refuse it."""
        now_us = self.clock.now_us()
        drafts = (draft(intent, now_us, self.state.principal),)
        batch = Append(lease=self.lease, drafts=drafts, reserve=reservation, settle=settle)
        return self._enqueue(batch, refused, self._taken())

    def write_child(
        self, intent: Body, child: NewRun, limits: TreeLimits, refused: Callable[[AtlasError], None]
    ) -> asyncio.Future[Appended]:
        """Commits an intent together with the run it starts; applies nothing, because the tree may refuse it."""
        now_us = self.clock.now_us()
        batch = Append(
            lease=self.lease,
            drafts=(draft(intent, now_us, self.state.principal),),
            children=(child,),
            tree_limits=limits,
        )
        return self._enqueue(batch, refused, self._taken())

    def accept(self, body: Body) -> None:
        """Applies a body that is already durable."""
        self.state = apply(self.state, body, self.clock.now_us())
        self._report_row_state()

    def doubt_item(self, effect: str) -> InboxItem:
        """An effect in doubt, as the inbox keeps it."""
        return self.inbox_item(effect, "doubt", msgspec.json.encode(self.state.open[effect]))

    def inbox_item(self, effect: str, kind: Literal["approval", "doubt"], body: bytes) -> InboxItem:
        """Something for a person to decide about this run."""
        state = self.state
        now_us = self.clock.now_us()
        return InboxItem(state.run_id, effect, kind, state.created.agent, state.principal, body, now_us)

    def hand_over(self) -> None:
        """Gives what is held back to the ledger, ordered before everything that comes later."""
        if self._held is not None:
            self._enqueue(self._with_held(Append(lease=self.lease, lazy=True)), self._on_failure)

    async def flush(self) -> None:
        """Returns when everything written so far is durable."""
        self.hand_over()
        while self._unconfirmed:
            await asyncio.wait(list(self._unconfirmed))

    def _apply(self, bodies: tuple[Body, ...]) -> tuple[Draft, ...]:
        now_us, state = self.clock.now_us(), self.state
        drafts = []
        for body in bodies:
            state = apply(state, body, now_us)
            drafts.append(draft(body, now_us, state.principal))
        self.state = state
        return tuple(drafts)

    def _changed_state(self) -> RunState | None:
        """The row's state when it must follow the run: a parent that only waits for children is waiting."""
        actual: RunState = "waiting" if self.state.is_waiting_for_children else "running"
        if actual == self._row_state:
            return None
        self._row_state = actual
        return actual

    def _report_row_state(self) -> None:
        state = self._changed_state()
        if state is not None:
            self._hold(Append(lease=self.lease, state=state))

    def _hold(self, batch: Append) -> asyncio.Future[Appended]:
        """Keeps the batch for the next one that is in a hurry, and for a moment at most."""
        loop = asyncio.get_running_loop()
        if self._promise is None:
            self._promise = loop.create_future()
        if self._held is None:
            self._held, self._held_since_s = batch, loop.time()
        else:
            self._held = joined(self._held, batch)
        if self._timer is None:
            self._timer = loop.call_later(LAZY_S, self._release)
        return self._promise

    def _with_held(self, batch: Append) -> Append:
        held = self._taken()
        return batch if held is None else joined(held, batch)

    def _taken(self) -> Append | None:
        """What was held back, now somebody else's to write."""
        # The timer is left alone: one that runs out too early costs less than one that is set anew for each step.
        held, self._held = self._held, None
        return held

    def _release(self) -> None:
        """Gives what has been held for long enough to the ledger; what is newer may still go along with a later write."""
        self._timer = None
        if self._held is None:
            return
        loop, due_s = asyncio.get_running_loop(), self._held_since_s + LAZY_S
        if loop.time() < due_s:
            self._timer = loop.call_at(due_s, self._release)
        else:
            self.hand_over()

    def _enqueue(
        self, batch: Append, failed: Callable[[AtlasError], None], before: Append | None = None
    ) -> asyncio.Future[Appended]:
        future = asyncio.ensure_future(self.ledger.append(batch, before))
        self._unconfirmed.add(future)
        promise, self._promise = self._promise, None

        def confirm(done: asyncio.Future[Appended]) -> None:
            self._unconfirmed.discard(done)
            error = done.exception() if not done.cancelled() else None
            if promise is not None and not promise.done():
                promise.cancel() if done.cancelled() or error is not None else promise.set_result(done.result())
            if error is None and not done.cancelled():
                error = done.result().refused
            if isinstance(error, AtlasError):
                failed(error)
            elif error is not None:
                raise error

        future.add_done_callback(confirm)
        return future


def joined(first: Append, second: Append) -> Append:
    """Two batches of one lease as one, in this order; the first changes no more than the row's state."""
    return replace(
        second,
        drafts=first.drafts + second.drafts,
        state=second.state or first.state,
        consumed=first.consumed + second.consumed,
        signals=first.signals + second.signals,
        spend=first.spend.plus(second.spend),
        inbox_open=first.inbox_open + second.inbox_open,
        inbox_close=first.inbox_close + second.inbox_close,
        settle=first.settle + second.settle,
    )
