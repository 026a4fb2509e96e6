"""What the owner before us may have left running: it ends before anything here decides what its effects became."""

from __future__ import annotations

from atlas.control.world import World
from atlas.kernel.run import Append, Claimed
from atlas.kernel.state import State


async def take_over(world: World, claimed: Claimed, state: State) -> None:
    """Ends the processes in which an owner that did not give the run back may still be performing its effects.

    A process that slept since its claim must not kill its successor's: the commit proves that all that was loaded is
    older than the lease.
    """
    has_tools = state.created.runtime == "prompt" and bool(claimed.previous_owner)
    if not state.is_leased or (state.worker is None and not has_tools):
        return
    await world.ledger.append(Append(lease=claimed.lease))
    if state.worker is not None:
        await world.kill(state.worker)
    if has_tools:
        await world.kill_tools(claimed.previous_owner)
