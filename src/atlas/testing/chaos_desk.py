"""What a person does at a terminal beside a storm: submits runs, answers what waits, reads the record.

The person works through the ledger like every other process and drives nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

import msgspec

from atlas.control.agents import Agents
from atlas.control.history import bodies
from atlas.control.option import Options
from atlas.control.report import VerifyReport
from atlas.control.signal import AnswerBody, ResolveBody
from atlas.control.verify import verify_all
from atlas.kernel.event import Body, EffectAsked, Payload
from atlas.kernel.port import Ledger
from atlas.kernel.run import TERMINAL, InboxItem, NewSignal, RunQuery, RunRow, RunState
from atlas.testing.chaos_check import Order
from atlas.testing.chaos_site import AGENT, Site, WallClock
from atlas.vault.folder import FolderVault
from atlas.vault.validate import compile_schema, not_json

_UNENDED: Final[tuple[RunState, ...]] = ("queued", "running", "waiting", "in_doubt")


class Desk:
    """One person's view of a site."""

    def __init__(self, site: Site, ledger: Ledger) -> None:
        vault = FolderVault(site.vault)
        self.ledger = ledger
        self._site = site
        self._agents = Agents(vault, ledger, WallClock(), vault.config().execution, compile_schema, not_json)

    @classmethod
    @asynccontextmanager
    async def open(cls, site: Site) -> AsyncIterator[Self]:
        """A desk for as long as the block lasts."""
        async with site.ledger() as ledger:
            yield cls(site, ledger)

    async def submit(self, order: Order) -> str:
        """Queues a run for the order."""
        return (await self._agents.submit(AGENT, order.input(str(self._site.outside)), Options())).run_id

    async def answer_all(self, *, only_parked: bool = False) -> None:
        """Approves what asks, and settles what is in doubt after a look at the world outside.

        With `only_parked` a run that has not come to rest yet is left alone.
        """
        for item in await self.ledger.inbox():
            if only_parked and (await self.ledger.run(item.run_id)).owner:
                continue
            # One id per question: an answer that the run has not taken yet is not given again.
            signal_id = f"{item.kind}:{item.run_id}:{item.effect}:{item.created_us}"
            if item.kind == "approval":
                asked = msgspec.json.decode(item.body, type=EffectAsked)
                body = msgspec.json.encode(AnswerBody(item.effect, asked.args_hash, approved=True))
                await self.ledger.signal(NewSignal(signal_id, item.run_id, "answer", "owner", body))
            else:
                body = msgspec.json.encode(self._finding(item))
                await self.ledger.signal(NewSignal(signal_id, item.run_id, "resolve", "owner", body))

    async def rows(self, *states: RunState, roots_only: bool = False) -> list[RunRow]:
        """The newest 500 runs in these states, or in any."""
        return list((await self.ledger.runs(RunQuery(states=states, roots_only=roots_only, limit=500))).runs)

    async def unended(self) -> list[RunRow]:
        """Runs that have not ended."""
        return await self.rows(*_UNENDED)

    async def has_ended(self, run_id: str) -> bool:
        """Whether the run has."""
        return (await self.ledger.run(run_id)).state in TERMINAL

    async def record(self) -> dict[str, list[Body]]:
        """Everything on record, by run, in order."""
        position, found = 0, dict[str, list[Body]]()
        while page := await self.ledger.feed(position, 1000):
            for event, body in bodies(page):
                found.setdefault(event.run_id, []).append(body)
            position = page[-1].position
        return found

    async def verify(self) -> VerifyReport:
        """Recomputes every chain."""
        return await verify_all(self.ledger)

    def _finding(self, item: InboxItem) -> ResolveBody:
        key = f"{item.run_id}/{item.effect}"
        for line in self._site.lines():
            if line.key == key and line.mark == "end":
                result = msgspec.json.encode(line.result)
                return ResolveBody(item.effect, "done", Payload(msgspec.Raw(result), size=len(result)))
        return ResolveBody(item.effect, "not_done")
