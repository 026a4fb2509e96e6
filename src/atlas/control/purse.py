"""What a run may spend at this moment: the caps of its tree, its agent and the vault, read when it is about to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import tzinfo
from typing import Final

from atlas.control.world import Bounds
from atlas.kernel.budget import caps_at, day_at, meters_at, minute_at
from atlas.kernel.contract import Budget, Contract
from atlas.kernel.event import RunCreated
from atlas.kernel.state import State

MAX_KEPT: Final = 1024


class Purse:
    """Knows every budget that is written down. What it keeps is only a memory of what it worked out this minute."""

    def __init__(self, fleet: Budget, zone: tzinfo, contract: Callable[[RunCreated], Awaitable[Contract]]) -> None:
        self._fleet = fleet
        self._zone = zone
        self._contract = contract
        self._minute = -1
        self._kept: dict[str, tuple[RunCreated, Budget, Bounds]] = {}

    async def bounds(self, state: State, now_us: int) -> Bounds:
        """What a call of the run is under, in the period that this moment belongs to."""
        own, minute = (await self._contract(state.created)).budget, minute_at(now_us)
        if minute != self._minute or len(self._kept) >= MAX_KEPT:
            self._minute, self._kept = minute, {}
        kept = self._kept.get(state.run_id)
        if kept is None or kept[0] is not state.created or kept[1] is not own:
            kept = self._kept[state.run_id] = (state.created, own, self._work_out(state, own, now_us))
        return kept[2]

    def _work_out(self, state: State, own: Budget, now_us: int) -> Bounds:
        created, principal = state.created, state.principal
        raised = 0 if created.critical is None else created.critical.micro_usd
        limits = [limit for limit in (own.tokens_per_request, self._fleet.tokens_per_request) if limit is not None]
        return Bounds(
            caps=caps_at(
                now_us,
                self._zone,
                fleet=self._fleet,
                contract=own,
                agent=created.agent,
                principal=principal,
                pools=created.pools,
                raised_micro_usd=raised,
            ),
            meters=meters_at(now_us, self._zone, agent=created.agent, principal=principal, pools=created.pools),
            day=day_at(now_us, self._zone),
            tokens_per_request=min(limits, default=None),
            falls_back=own.on_cap == "fallback",
        )
