"""Questions that an agent's code puts to models: asked by the driver, which has the keys and the lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from atlas.control.calls import MAX_TRIES, performed, settled_by, tab_for
from atlas.control.record import Record
from atlas.control.world import NOTHING, Lost, Message, World, bug
from atlas.kernel.code import CallMade, Performed
from atlas.kernel.errors import AtlasError, Cancelled, ErrorRecord
from atlas.kernel.gate import Consult
from atlas.kernel.hold import Hold


class Questions:
    """The questions of one attempt that are under way."""

    def __init__(self, world: World, tasks: asyncio.TaskGroup, post: Callable[[Message], None]) -> None:
        self._world = world
        self._tasks = tasks
        self._post = post
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._asked: dict[int, tuple[CallMade, int]] = {}
        self._is_end = False

    def ask(self, call: CallMade, hold: Hold | None) -> None:
        """Asks; `Performed` follows, whatever becomes of it, unless `stop` comes first."""
        times = self._asked[call.id][1] + 1 if call.id in self._asked else 1
        self._asked[call.id] = call, times
        self._asking[call.id] = self._tasks.create_task(self._ask(call, hold, times - 1))

    def consult(self, record: Record, command: Consult) -> None:
        """Gets a second opinion; `Judged` follows, unless `stop` comes first."""
        self._asking[-command.call.id] = self._tasks.create_task(self._consult(record, command))

    def is_answered(self, call_id: int) -> bool:
        """Whether the call was one of these; it is over now."""
        self._asked.pop(call_id, None)
        return self._asking.pop(call_id, None) is not None

    def lapsed(self, message: Performed) -> CallMade | None:
        """The call to reserve for anew and ask again: its answer was lost, and what it was granted went with it."""
        call, times = self._asked.get(message.id, (None, 0))
        is_lost = message.error is not None and message.error.code == "model_budget"
        return call if is_lost and times < MAX_TRIES else None

    async def stop(self, *, is_end: bool = False) -> None:
        """Ends all of them; at the end of a run each still says what it used, because nobody will ask it again."""
        self._is_end = is_end
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._asking.clear()
        self._asked.clear()

    async def _consult(self, record: Record, command: Consult) -> None:
        try:
            judged = await self._world.consult(record, command.subject, command.ruling)
        except AtlasError as error:
            self._post(Lost(error))
            return
        except Exception as error:  # noqa: BLE001 - the driver's boundary: one run's bug must not end the others
            self._post(Lost(bug(error)))
            return
        self._asking.pop(-command.call.id, None)
        self._post(replace(judged, call=command.call))

    async def _ask(self, call: CallMade, hold: Hold | None, first: int) -> None:
        began_us = self._world.clock.now_us()
        failed: ErrorRecord | None = None
        done, tab = NOTHING, tab_for(hold, first)
        try:
            done = await self._world.generate(bytes(call.args), hold, tab)
        except AtlasError as error:
            failed = (settled_by(error, tab) if first == MAX_TRIES - 1 else error).record()
        except asyncio.CancelledError:
            if self._is_end:
                took_us = self._world.clock.now_us() - began_us
                self._post(performed(call.id, NOTHING, tab, took_us, Cancelled("the run ended").record()))
            raise
        except Exception as error:  # noqa: BLE001 - the driver's boundary: one run's bug must not end the others
            failed = self._world.redact(bug(error).record())
        self._post(performed(call.id, done, tab, self._world.clock.now_us() - began_us, failed))
