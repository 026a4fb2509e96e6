"""How a run comes to rest: parked, given back, or ended. The one place that appends a terminal event."""

from __future__ import annotations

from typing import Final

from atlas.control.family import Family
from atlas.control.history import History
from atlas.control.payload import pack
from atlas.control.record import Record
from atlas.control.world import World
from atlas.kernel.budget import in_full
from atlas.kernel.decide import End, Park, is_recoverable
from atlas.kernel.errors import AtlasError, Cancelled
from atlas.kernel.event import NULL, Body, EffectReceived, Logged, RunEnded, RunParked
from atlas.kernel.run import RunState
from atlas.kernel.state import STEP_SPEND, clock

NOT_HERE_US: Final = 10_000_000
_PARKED_AS: Final[dict[str, RunState]] = {
    "person": "waiting",
    "children": "waiting",
    "doubt": "in_doubt",
    "interrupted": "queued",
}


class Rest:
    """Brings one run to rest; its code has been stopped before. Each answers with the state it rests in."""

    def __init__(self, world: World, record: Record, family: Family) -> None:
        self._world = world
        self._record = record
        self._family = family

    async def park(self, command: Park) -> RunState:
        """Gives the lease back until something wakes the run."""
        state = _PARKED_AS[command.reason]
        signals = self._family.tell_parked() if state != "queued" else ()
        self._world.boundary("park.before")
        await self._record.write(RunParked(command.reason), state=state, release=True, signals=signals)
        self._world.boundary("park.durable")
        return state

    async def give_back(self, error: AtlasError) -> RunState:
        """Leaves a run that cannot be executed here and now for later, or for another machine: it is not its fault."""
        due_us = self._world.clock.now_us() + NOT_HERE_US
        said = Logged(f"cannot be executed here: {error.message}", "error")
        await self._record.write(said, RunParked("interrupted"), state="queued", release=True, due_us=due_us)
        return "queued"

    async def end(self, command: End, history: History) -> RunState:
        """Appends the terminal event; `history` knows the outcomes of all settled effects, in their order."""
        self._settle_lost()
        ended = await self._terminal_event(command)
        state = self._record.state
        known = {*state.doubted, state.abandoned}
        doubts = tuple(self._record.doubt_item(effect) for effect in ended.unresolved if effect not in known)
        signals = self._family.cancel_all("the parent run ended") + self._family.tell_parent(ended)
        closing = await self._closing(ended.state, history)
        self._world.boundary("end.before")
        await self._record.write(
            *closing, ended, state=ended.state, signals=signals, inbox_open=doubts, inbox_close=tuple(state.asked)
        )
        self._world.boundary("end.durable")
        return ended.state

    def _settle_lost(self) -> None:
        """Counts model calls whose answer nobody will wait for as all that they may have used; in the commit of the end."""
        for effect, intent in tuple(self._record.state.open.items()):
            if intent.hold is not None and intent.hold.model:
                lost = in_full(effect, intent.hold)
                error = Cancelled("the run ended before its answer was recorded").record()
                receipt = EffectReceived(effect, error=error, spend=lost.spend, is_estimated=True)
                self._record.write(receipt, lazy=True, spend=STEP_SPEND, settle=(lost,))

    async def _closing(self, outcome: str, history: History) -> tuple[Body, ...]:
        """What the run leaves behind beside its outcome, told from what stands before it in the record."""
        if self._record.state.created.runtime != "prompt":
            return ()
        return await self._world.closing(self._record.state, history, outcome)

    async def _terminal_event(self, command: End) -> RunEnded:
        state = self._record.state
        outcome, error, output = command.outcome, command.error, NULL
        if command.finished is not None:
            error = await self._world.agents.check_output(state, command.finished.output)
            outcome = "failed" if error is not None else outcome
            output = NULL if error is not None else await pack(self._world.ledger, command.finished.output)
        unresolved = tuple(effect for effect, intent in state.open.items() if not is_recoverable(intent))
        active_us, _ = clock(state, self._world.clock.now_us())
        return RunEnded(outcome, output, error, unresolved, state.spend, active_us)
