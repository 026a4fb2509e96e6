"""The agent that crash proofs drive: every effect is a line in a file outside the vault.

An effect writes `begin` when it is entered and `end` when the world has changed. In between it looks for orders: a
file named KIND.SPOT.TARGET.NUMBER in the folder `orders` makes the first effect of that kind that finds it kill
its own process (`worker`) or the driver above it (`driver`), `before` or `after` the change.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

from atlas import AgentBase, AgentContext, Done


class ChaosAgent(AgentBase):
    """Does the effects it is asked for, one after the other, and adds up what they return."""

    def on_startup(self) -> None:
        """Remembers the driver while it is surely the parent: an order must not hit a stranger."""
        self._driver = os.getppid()

    async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
        """The sum over every effect of this run and its children."""
        outside = Outside(Path(input["outside"]), self._driver)
        total = 0
        for name in input["effects"]:
            match name:
                case "pair":
                    async with asyncio.TaskGroup() as group:
                        left = group.create_task(_step(context, outside, "left", input["number"]))
                        right = group.create_task(_step(context, outside, "right", input["number"]))
                    total += left.result() + right.result()
                case "parts":
                    for child in await context.spawn_many([("chaos", part) for part in input["parts"]]):
                        total += child["total"]
                case _:
                    total += await _step(context, outside, name, input["number"])
        return {"total": total}


async def _step(context: AgentContext, outside: Outside, name: str, number: int) -> int:
    options: dict[str, Any] = {
        "look": {"effect": "read_only"},
        "again": {"idempotent": True},
        "probed": {"probe": outside.probe},
        "asked": {"effect": "external_side_effect"},
    }
    result: int = await context.step(name, getattr(outside, name), number, **options.get(name, {}))
    return result


class Outside:
    """The world beyond the ledger: a file that only grows, and orders to die."""

    def __init__(self, folder: Path, driver: int) -> None:
        self._file = folder / "effects.jsonl"
        self._orders = folder / "orders"
        self._taken = folder / "taken"
        self._driver = driver

    def look(self, number: int, effect_key: str) -> int:
        """Changes nothing."""
        self._content()
        return number

    def left(self, number: int, effect_key: str) -> int:
        """Must not happen twice; runs beside `right`."""
        return self._act("left", number, effect_key)

    def right(self, number: int, effect_key: str) -> int:
        """Must not happen twice; runs beside `left`."""
        return self._act("right", number, effect_key)

    def once(self, number: int, effect_key: str) -> int:
        """Must not happen twice."""
        return self._act("once", number, effect_key)

    def asked(self, number: int, effect_key: str) -> int:
        """Must not happen twice, nor without a person's word."""
        return self._act("asked", number, effect_key)

    def again(self, number: int, effect_key: str) -> int:
        """May happen twice under the same key."""
        return self._act("again", number, effect_key)

    def probed(self, number: int, effect_key: str) -> int:
        """Must not happen twice, and can be looked up."""
        return self._act("probed", number, effect_key)

    def probe(self, number: int, effect_key: str) -> Done | None:
        """Whether `probed` happened: the file says so."""
        self._obey("probe", "before", "probed", effect_key)
        for line in self._content().splitlines():
            if effect_key.encode() in line and (found := json.loads(line))["mark"] == "end":
                return Done(found["result"])
        return None

    def _act(self, kind: str, number: int, effect_key: str) -> int:
        # Nothing slow stands before this: an effect entered before its intent is durable shall be seen to be.
        self._write("begin", kind, effect_key)
        self._obey(kind, "before", kind, effect_key)
        result = number + len(kind)
        self._write("end", kind, effect_key, result=result)
        self._obey(kind, "after", kind, effect_key)
        return result

    def _obey(self, wanted: str, spot: str, kind: str, effect_key: str) -> None:
        for order in sorted(os.listdir(self._orders)):
            meant, where, target, _number = order.split(".")
            if where != spot or not (meant == wanted or (meant == "redo" and self._is_redone(effect_key))):
                continue
            try:
                (self._orders / order).rename(self._taken / order)  # only one effect can take it
            except FileNotFoundError:
                continue
            self._write("struck", kind, effect_key, order=order)
            self._die(target)

    def _is_redone(self, effect_key: str) -> bool:
        return sum(effect_key.encode() in line for line in self._content().splitlines() if b'"begin"' in line) > 1

    def _die(self, target: str) -> NoReturn:
        if target == "driver" and os.getppid() == self._driver:
            os.kill(self._driver, signal.SIGKILL)
            time.sleep(60)  # a worker does not outlive its driver
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit  # not reached

    def _content(self) -> bytes:
        return self._file.read_bytes()

    def _write(self, mark: str, kind: str, effect_key: str, result: int = 0, order: str = "") -> None:
        line = {
            "mark": mark,
            "kind": kind,
            "key": effect_key,
            "pid": os.getpid(),
            "driver": os.getppid(),
            "result": result,
            "order": order,
        }
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, json.dumps(line).encode() + b"\n")
            if mark == "end":
                os.fsync(file)
        finally:
            os.close(file)
