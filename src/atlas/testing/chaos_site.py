"""Where a storm takes place: a vault with the demo agent, and the world outside that its effects change.

vault/             the agent and its ledger
outside/           effects.jsonl, which only grows; orders/ and taken/ for effects that are to die
drivers/           what each driver printed
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from atlas.kernel.event import Body
from atlas.kernel.port import Clock, Ledger
from atlas.ledger.sqlite import SqliteLedger

AGENT: Final = "chaos"
# A dead owner of this machine is adopted at once; the lease only matters for one that is alive and silent.
_CONFIG: Final = """\
execution:
  lease_s: 1
  max_concurrent_agents: 4
  max_spawns_per_minute: 100000
  timeouts: {agent: 600, chain: 3600}
"""


class Line(msgspec.Struct, frozen=True):
    """One line of the outside file."""

    mark: Literal["begin", "end", "struck"]
    kind: str
    key: str
    pid: int
    driver: int
    result: int
    order: str


class Site(msgspec.Struct, frozen=True):
    """The folders of one storm and the ledger it is on; an empty `url` means SQLite in the vault."""

    root: Path
    url: str = ""

    @property
    def vault(self) -> Path:
        """The vault."""
        return self.root / "vault"

    @property
    def outside(self) -> Path:
        """The world outside."""
        return self.root / "outside"

    @property
    def drivers(self) -> Path:
        """What drivers printed."""
        return self.root / "drivers"

    def create(self) -> None:
        """Makes everything but the ledger."""
        agent = self.vault / "agents" / AGENT
        agent.mkdir(parents=True)
        for name in ("agent.yaml", "agent.py"):
            shutil.copyfile(Path(__file__).parent / "chaos_agent" / name, agent / name)
        (self.vault / "atlas.config.yaml").write_text(_CONFIG, encoding="utf-8")
        for folder in (self.vault / ".atlas", self.outside / "orders", self.outside / "taken", self.drivers):
            folder.mkdir(parents=True)
        (self.outside / "effects.jsonl").touch()

    def lines(self) -> list[Line]:
        """What the world outside has seen so far, in order."""
        data = (self.outside / "effects.jsonl").read_bytes()
        return msgspec.json.Decoder(Line).decode_lines(data)

    def keep(self, record: Mapping[str, Sequence[Body]]) -> None:
        """Writes down what every run recorded, for whoever looks into it when the ledger is gone."""
        told = {run_id: [{type(body).__name__: body} for body in bodies] for run_id, bodies in record.items()}
        (self.root / "record.json").write_bytes(msgspec.json.encode(told))

    def order(self, name: str) -> None:
        """Orders one effect to die."""
        (self.outside / "orders" / name).touch()

    def orders(self) -> list[str]:
        """The orders that no effect has taken."""
        return sorted(path.name for path in (self.outside / "orders").iterdir())

    def withdraw(self, name: str) -> bool:
        """Takes an order back; False when an effect has taken it."""
        try:
            (self.outside / "orders" / name).unlink()
        except FileNotFoundError:
            return False
        return True

    @asynccontextmanager
    async def ledger(self) -> AsyncIterator[Ledger]:
        """The open ledger of the vault."""
        ledger = self._ledger(WallClock())
        await ledger.open()
        try:
            yield ledger
        finally:
            await ledger.close()

    def _ledger(self, clock: Clock) -> Ledger:
        runtime = self.vault / ".atlas"
        if not self.url:
            return SqliteLedger(runtime / "ledger.db", clock=clock, blobs=runtime / "blobs")
        from atlas.ledger.postgres import PostgresLedger

        return PostgresLedger(self.url, clock=clock, blobs=runtime / "blobs")


class WallClock:
    """The machine's clock and randomness."""

    def now_us(self) -> int:
        """Integer UTC microseconds."""
        return time.time_ns() // 1000

    def entropy(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        return os.urandom(size)
