"""A run's children: started in the commit that intends them, awaited without a slot, cancelled with their parent."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from atlas.control.admit import failed
from atlas.control.payload import inline, pack, unpack
from atlas.control.record import Record
from atlas.control.signal import ChildEndedBody, ChildParkedBody, cancel_signal
from atlas.control.underway import UnderWay
from atlas.control.world import ChildRefused, ChildStarted, Granted, Message, World
from atlas.kernel.code import Answer, CallMade
from atlas.kernel.errors import AtlasError
from atlas.kernel.event import EffectIntended, EffectReceived, RunEnded
from atlas.kernel.gate import Intend, ruled
from atlas.kernel.run import PARKED, NewSignal, Signal, TreeLimits
from atlas.kernel.state import STEP_SPEND


class Family:
    """The children of one run, and the slot it gives back while it waits for them."""

    def __init__(
        self,
        world: World,
        record: Record,
        calls: UnderWay,
        post: Callable[[Message], None],
        send: Callable[[Answer], None],
    ) -> None:
        self._world = world
        self._record = record
        self._calls = calls
        self._post = post
        self._send = send
        self._held: list[Answer] = []
        self._early: dict[str, Signal] = {}
        self._is_closed = False
        self._is_in_line = False
        self.has_slot = True

    async def start(self, command: Intend) -> None:
        """Starts a child; `ChildStarted` follows when it is durable, `ChildRefused` when its tree is full.

        Raises when the agent or its input is wrong, or the agent failed too often.
        """
        world, record, call = self._world, self._record, command.call
        child = await world.agents.child(record.state, call)
        intent = EffectIntended(
            call.effect,
            "spawn",
            call.name,
            inline(call.args) or await pack(world.ledger, call.args),
            call.args_hash,
            call.effect_class,
            idempotent=True,
            reason="within the limits of its tree",
            answered_by=command.answered_by,
            child_run_id=child.run_id,
            ruling=ruled(command.ruling),
        )
        limits = record.state.created.limits
        world.boundary("spawn.before")

        def refused(error: AtlasError) -> None:
            self._post(ChildRefused(call, error))

        tree = TreeLimits(limits.tree_runs, limits.spawns_per_minute)
        commit = record.write_child(intent, child, tree, refused)
        commit.add_done_callback(lambda done: None if failed(done) else self._post(ChildStarted(call, intent)))

    def expect(self, call: CallMade) -> None:
        """The code waits for this child from now on."""
        self._calls.drop(call)
        self._record.state.live.awaiting[call.effect] = call.id

    async def rejoin(self, call: CallMade) -> None:
        """The code waits for a child that an earlier attempt started."""
        child = await self._world.ledger.run(self._record.state.open[call.effect].child_run_id)
        self.expect(call)
        if child.state in PARKED and not child.owner:
            self._mark_parked(call.effect)
        self.yield_slot()

    def parked(self, signal: Signal) -> None:
        """Takes note that a child waits for a person."""
        self._record.write(consumed=(signal.id,), lazy=True)
        self._mark_parked(msgspec.json.decode(signal.body, type=ChildParkedBody).effect)

    def forget(self, effect: str) -> int | None:
        """The code no longer waits for this child; the call that did."""
        return self._record.state.live.awaiting.pop(effect, None)

    async def started(self, intent: EffectIntended) -> EffectReceived | None:
        """Takes note that a child is durable; its outcome, when that came first."""
        self._record.accept(intent)
        self._world.boundary("spawn.durable")
        early = self._early.pop(intent.effect, None)
        if early is not None:
            return await self.ended(early)
        self.yield_slot()
        return None

    async def ended(self, signal: Signal) -> EffectReceived | None:
        """Records a child's outcome and hands it to the code as soon as there is a slot; None when it is old news."""
        body = msgspec.json.decode(signal.body, type=ChildEndedBody)
        if body.effect not in self._record.state.open:
            if body.effect in self._record.state.live.awaiting:
                # Another process ran the whole child before this one heard that its start was durable.
                self._early[body.effect] = signal
            else:
                self._record.write(consumed=(signal.id,))
            return None
        receipt = EffectReceived(body.effect, body.output, body.error, source="child")
        self._record.write(receipt, consumed=(signal.id,), spend=STEP_SPEND, lazy=True)
        call_id = self.forget(body.effect)
        if call_id is not None:
            answer = Answer(call_id, await unpack(self._world.ledger, body.output), body.error)
            self._hand_over(answer)
        return receipt

    def yield_slot(self) -> None:
        """Gives the slot back while nothing but children can bring the run forward."""
        if self.has_slot and not self._held and self._record.state.is_waiting_for_children:
            self.has_slot = False
            self._world.slots.give_back()

    def resume(self) -> None:
        """Gives the code the answers that waited for a slot; the slot goes back if it waits for other children still.

        A parent that kept it would hold it against those very children.
        """
        for answer in self._held:
            self._send(answer)
        self._held.clear()
        self.yield_slot()

    def restart(self) -> None:
        """Forgets what was meant for code that is gone; its successor is answered from the record."""
        self._held.clear()
        self._early.clear()

    def close(self) -> None:
        """Gives the slot back for good, also one that is still to come."""
        self._is_closed = True
        if self.has_slot:
            self.has_slot = False
            self._world.slots.give_back()

    def cancel_all(self, reason: str) -> tuple[NewSignal, ...]:
        """What tells every child that is still running to stop."""
        state = self._record.state
        return tuple(
            cancel_signal(intent.child_run_id, state.principal, reason, f"cancel:{intent.child_run_id}")
            for intent in state.open.values()
            if intent.child_run_id
        )

    def tell_parent(self, ended: RunEnded) -> tuple[NewSignal, ...]:
        """What tells the run above that this one has ended."""
        state = self._record.state
        above = state.created.parent_run_id
        if not above:
            return ()
        body = ChildEndedBody(state.created.parent_effect, state.run_id, ended.state, ended.output, ended.error)
        encoded = msgspec.json.encode(body)
        return (NewSignal(f"end:{state.run_id}", above, "child_ended", state.principal, encoded),)

    def tell_parked(self) -> tuple[NewSignal, ...]:
        """What tells the run above that this one waits for a person."""
        state = self._record.state
        above = state.created.parent_run_id
        if not above:
            return ()
        encoded = msgspec.json.encode(ChildParkedBody(state.created.parent_effect))
        # One for each time it is held: a run that parks again without executing has the same attempt as before.
        signal_id = f"parked:{state.run_id}:{self._record.lease.generation}"
        return (NewSignal(signal_id, above, "child_parked", state.principal, encoded),)

    def _mark_parked(self, effect: str) -> None:
        self._record.observe(parked=self._record.state.live.parked | {effect})

    def _hand_over(self, answer: Answer) -> None:
        self._held.append(answer)
        if self.has_slot:
            self.resume()
        elif not self._is_in_line:
            self._is_in_line = True
            self._world.slots.take_again(self._granted)

    def _granted(self) -> None:
        self._is_in_line = False
        if self._is_closed:
            self._world.slots.give_back()
            return
        self.has_slot = True
        self._post(Granted())
