"""A vault whose models stand on a local provider that keeps its own books, for tests about money.

`Till.bill` is what the provider itself counted, at the prices that are configured here a second time, by hand.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec

from atlas.app import open_host
from atlas.control.host import Host
from atlas.kernel.event import Body, EffectIntended, EffectReceived, EffectRefused, decode_body
from atlas.kernel.port import Clock
from atlas.testing.provider import ProviderProcess, Seen

# Dollars per million tokens: input, output, read from the cache, written to the cache.
PRICES = {
    "oa:big": (10.0, 40.0, 1.0, 12.5),
    "an:big": (10.0, 40.0, 1.0, 12.5),
    "oa:small": (1.0, 4.0, 0.1, 1.25),
}
_KEYS = ("input_usd_per_mtok", "output_usd_per_mtok", "cache_read_usd_per_mtok", "cache_write_usd_per_mtok")
_WIRES = {"openai": "oa", "anthropic": "an"}


class Till:
    """A vault at `root` with two providers that are one server; agents are added by hand."""

    def __init__(self, root: Path, provider: ProviderProcess, **config: Any) -> None:
        self.root = root
        self.provider = provider
        root.mkdir(parents=True, exist_ok=True)
        prices = {model: dict(zip(_KEYS, rates, strict=True)) for model, rates in PRICES.items()}
        models = {
            "providers": {
                "oa": {"kind": "openai", "base_url": f"{provider.url}/v1", "max_in_flight": 64},
                "an": {"kind": "anthropic", "base_url": provider.url, "max_in_flight": 64},
            },
            "tiers": {"fast": ["oa:big"], "balanced": ["an:big"], "powerful": ["oa:big", "an:big"]},
            "prices": prices,
        }
        whole = {"models": models, "execution": {"lease_s": 1, "cancel_grace_s": 1}} | config
        (root / "atlas.config.yaml").write_text(json.dumps(whole))

    def prompt(self, name: str, model: str = "fast", fallback: str = "", **contract: Any) -> None:
        """A prompt agent on that model."""
        asked = {"preference": model} | ({"fallback": fallback} if fallback else {})
        self._write(name, {"runtime": "prompt", "model": asked, **contract})
        persona = self.root / "agents" / name / "persona"
        persona.mkdir(exist_ok=True)
        (persona / "IDENTITY.md").write_text("You are the advisor.\n")

    def code(self, name: str, code: str, **contract: Any) -> None:
        """An agent in Python."""
        self._write(name, contract)
        (self.root / "agents" / name / "agent.py").write_text(code)

    def _write(self, name: str, contract: Mapping[str, Any]) -> None:
        folder = self.root / "agents" / name
        folder.mkdir(parents=True, exist_ok=True)
        whole = {"name": name, "version": "1.0.0", "description": "Helps", **contract}
        (folder / "agent.yaml").write_text(json.dumps({"agent": whole}))

    @asynccontextmanager
    async def host(self, clock: Clock | None = None) -> AsyncIterator[Host]:
        """The vault, open in this process."""
        async with asyncio.timeout(60), open_host(self.root, {}, clock=clock) as host:
            yield host

    @property
    def bill(self) -> int:
        """What the provider charges for everything it was asked, in micro-dollars."""
        return sum(self.price(seen) for seen in self.provider.record().seen)

    def price(self, seen: Seen) -> int:
        """What the provider charges for one request; nothing for an error."""
        if seen.billed is None:
            return 0
        model = f"{_WIRES[seen.wire]}:{msgspec.json.decode(seen.body)['model']}"
        paid, out, read, write = (round(rate * 1_000_000) for rate in PRICES[model])
        billed = seen.billed
        plain = billed.tokens_in - billed.cached_in - billed.cache_write_in
        pico = plain * paid + billed.cached_in * read + billed.cache_write_in * write + billed.tokens_out * out
        return -(-pico // 1_000_000)

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query finds in the ledger's file."""
        with closing(sqlite3.connect(self.root / ".atlas" / "ledger.db", timeout=10)) as database:
            return database.execute(sql, values).fetchall()

    def change(self, sql: str) -> None:
        """Does something to the ledger's file that Atlas would never do."""
        with closing(sqlite3.connect(self.root / ".atlas" / "ledger.db", timeout=10)) as database, database:
            database.execute(sql)

    def spent(self) -> int:
        """What the rows of all runs say."""
        return int(self.rows("SELECT coalesce(sum(cost_micro_usd), 0) FROM run")[0][0])

    def holds(self) -> int:
        """How many reservations are open."""
        return int(self.rows("SELECT count(*) FROM hold")[0][0])

    def meter(self, scope: str) -> tuple[int, int]:
        """What is spent and reserved on all buckets of a scope."""
        query = "SELECT coalesce(sum(spent_micro_usd), 0), coalesce(sum(held_micro_usd), 0) FROM meter WHERE scope = ?"
        ((spent, held),) = self.rows(query, scope)
        return spent, held

    def assert_never_above(self, scope: str, cap: int) -> None:
        """Adds up what the events say was reserved and settled, in the order of their commits; nothing is left over."""
        spent, held = 0, dict[tuple[str, str], int]()
        for run_id, kind, version, body in self.rows("SELECT run_id, kind, version, body FROM event ORDER BY position"):
            if kind not in ("effect.intended", "effect.received"):
                continue
            match decode_body(kind, version, bytes(body)):
                case EffectIntended(hold=hold) as intent if hold is not None and hold.model:
                    spent += intent.lost.cost_micro_usd
                    held[run_id, intent.effect] = hold.micro_usd
                    assert spent + sum(held.values()) <= cap
                case EffectReceived() as receipt if (run_id, receipt.effect) in held:
                    del held[run_id, receipt.effect]
                    spent += receipt.spend.cost_micro_usd
                case _:
                    pass
        assert not held
        assert self.meter(scope) == (spent, 0)


async def bodies(host: Host, run_id: str) -> list[Body]:
    """The events of a run."""
    events = await host.ledger.events(run_id)
    return [decode_body(event.kind, event.version, event.body) for event in events]


async def model_effects(host: Host, run_id: str) -> list[str]:
    """The intents, receipts and refusals of model calls, in short: `model:1 intended`."""
    found: list[str] = []
    for body in await bodies(host, run_id):
        match body:
            case EffectIntended(kind="model"):
                found.append(f"{body.effect} intended")
            case EffectReceived() if body.effect.startswith("model"):
                word = "failed" if body.error is not None else "received"
                found.append(f"{body.effect} {word}{' ~' if body.is_estimated else ''}")
            case EffectRefused(kind="model"):
                found.append(f"{body.effect} refused")
            case _:
                pass
    return found
