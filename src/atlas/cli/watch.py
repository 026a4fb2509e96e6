"""Events as they are committed, of one tree of runs or of all."""

from __future__ import annotations

from collections.abc import AsyncIterator

from atlas.control.history import bodies
from atlas.kernel.event import Body, Event, RunCreated
from atlas.kernel.port import Ledger
from atlas.kernel.run import RunRow

PAGE = 500
FALLBACK_S = 5.0


class Watch:
    """Reads the ledger's feed from a position on and knows which run each event belongs to."""

    def __init__(self, ledger: Ledger, root_run_id: str, position: int) -> None:
        self.position = position
        self._ledger = ledger
        self._root = root_run_id
        self._roots: dict[str, str] = {}
        self.agents: dict[str, str] = {}

    async def live(self) -> AsyncIterator[tuple[Event, Body]]:
        """Everything from now on; never ends by itself."""
        async with self._ledger.wake(every_commit=True) as wake:
            while True:
                async for pair in self.pending():
                    yield pair
                await wake.wait(FALLBACK_S)

    async def pending(self) -> AsyncIterator[tuple[Event, Body]]:
        """What was committed and not yet seen."""
        while events := await self._ledger.feed(self.position, PAGE):
            for event, body in bodies(events):
                is_inside = await self._is_inside(event, body)
                # Moves with each event, so that a reader who stops in between misses none and sees none twice.
                self.position = event.position
                if is_inside:
                    yield event, body
            self.position = events[-1].position

    async def _is_inside(self, event: Event, body: Body) -> bool:
        if event.run_id not in self._roots:
            if isinstance(body, RunCreated):
                self._roots[event.run_id] = body.root_run_id or event.run_id
                self.agents[event.run_id] = body.agent
            else:
                row: RunRow = await self._ledger.run(event.run_id)
                self._roots[event.run_id] = row.root_run_id
                self.agents[event.run_id] = row.agent
        return not self._root or self._roots[event.run_id] == self._root
