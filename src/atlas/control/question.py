"""Questions that an agent's code puts to models: asked by the driver, which has the keys and the lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from atlas.control.world import Effected, Message, World, bug
from atlas.kernel.code import CallMade, Performed
from atlas.kernel.errors import AtlasError, ErrorRecord


class Questions:
    """The questions of one attempt that are under way."""

    def __init__(self, world: World, tasks: asyncio.TaskGroup, post: Callable[[Message], None]) -> None:
        self._world = world
        self._tasks = tasks
        self._post = post
        self._asking: dict[int, asyncio.Task[None]] = {}

    def ask(self, call: CallMade) -> None:
        """Asks; `Performed` follows, whatever becomes of it, unless `stop` comes first."""
        self._asking[call.id] = self._tasks.create_task(self._ask(call))

    def is_answered(self, call_id: int) -> bool:
        """Whether the call was one of these; it is over now."""
        return self._asking.pop(call_id, None) is not None

    def stop(self) -> None:
        """Ends all of them."""
        for task in self._asking.values():
            task.cancel()
        self._asking.clear()

    async def _ask(self, call: CallMade) -> None:
        began_us = self._world.clock.now_us()
        failed: ErrorRecord | None = None
        done = Effected(b"null")
        try:
            done = await self._world.generate(bytes(call.args))
        except AtlasError as error:
            failed = error.record()
        except Exception as error:  # noqa: BLE001 - the driver's boundary: one run's bug must not end the others
            failed = bug(error).record()
        took_us = self._world.clock.now_us() - began_us
        self._post(Performed(call.id, msgspec.Raw(done.result), failed, took_us, done.spend, done.model))
