"""The driver: claims runs, holds their leases, and has each one attempted until it rests.

    run          adopt what dead processes left -> claim -> deliver signals -> wait for a wake-up, until stopped
    beat         renew every lease at a third of its length; a lost one ends its attempt

Several drivers share one ledger. A driver never waits for a particular run to be free; it claims what is due,
and everything else reaches it as a signal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from atlas.control.attempt import Attempt
from atlas.control.history import Glance
from atlas.control.world import Lost, Stop, World
from atlas.kernel.errors import AtlasError, StaleLease, Unavailable
from atlas.kernel.event import Process
from atlas.kernel.port import Ledger, Wake
from atlas.kernel.run import PARKED, TERMINAL, Claimed, Lease, RunState

_REMEMBERED: Final = 256


class Owner(msgspec.Struct, frozen=True):
    """A driver's name in leases: the process it is, told apart from a later one with the same pid."""

    process: Process
    nonce: str

    @property
    def text(self) -> str:
        """As leases carry it."""
        process = self.process
        return f"{process.host}|{process.pid}|{process.started_us}|{self.nonce}"


def parse_owner(text: str) -> Owner | None:
    """The owner that a lease names, or None when something else wrote it."""
    parts = text.split("|")
    if len(parts) != 4 or not parts[1].isdigit() or not parts[2].isdigit():
        return None
    return Owner(Process(parts[0], int(parts[1]), int(parts[2])), parts[3])


class SlotPool:
    """At most `size` runs execute code at once; a parent that waits for children gives its place back.

    `freed` is told of a place that nobody waits for.
    """

    def __init__(self, size: int) -> None:
        self.free = size
        self.freed: Callable[[], None] = lambda: None
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self) -> None:
        """Occupies a place."""
        self.free -= 1

    def give_back(self) -> None:
        """Frees a place; a resuming parent gets it before any new run."""
        if self._waiting and self.free >= 0:
            self._waiting.popleft()()
        else:
            self.free += 1
            self.freed()

    def take_again(self, granted: Callable[[], None]) -> None:
        """Calls `granted` as soon as there is a place."""
        if self.free > 0 and not self._waiting:
            self.free -= 1
            granted()
        else:
            self._waiting.append(granted)


class DriverOptions(msgspec.Struct, frozen=True):
    """How a driver behaves."""

    owner: Owner
    lease_s: float
    max_running: int
    places: tuple[str, ...]
    is_alive: Callable[[Process], bool]


class Driver:
    """This process's hands on the ledger's runs."""

    def __init__(self, world: World, slots: SlotPool, options: DriverOptions) -> None:
        self._world = world
        self._ledger: Ledger = world.ledger
        self._slots = slots
        self._options = options
        self._attempts: dict[str, Attempt] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watched: dict[str, list[asyncio.Future[RunState]]] = {}
        self._ended: dict[str, Glance] = {}
        self._wanted: set[str] = set()
        self._is_driving = False
        self._is_stopping = False
        self._is_finishing = False
        self._leaves_when_idle = False
        self._may_be_due = True
        self._is_claiming = False
        self._nudged = asyncio.Event()
        slots.freed = self._nudged.set
        self._places = options.places

    @property
    def in_hand(self) -> int:
        """How many runs this process holds."""
        return len(self._attempts)

    async def run(self) -> None:
        """Drives runs until `stop`; returns when nothing is in hand any more."""
        async with asyncio.TaskGroup() as upkeep:
            beat = upkeep.create_task(self._beat())
            async with asyncio.TaskGroup() as attempts, self._ledger.wake() as wake:
                listening = upkeep.create_task(self._listen(wake))
                await self._adopt()
                next_adoption_us = self._next_adoption_us()
                self._is_driving = True
                while not self._is_stopping:
                    started = await self._claim(attempts)
                    await self._answer_watchers()
                    if self._world.clock.now_us() >= next_adoption_us:
                        await self._adopt()
                        next_adoption_us = self._next_adoption_us()
                    if self._leaves_when_idle and not started and not self._tasks:
                        break
                    # Whatever lets it take more, a run that comes, one that ends, a slot that is given back, nudges.
                    await self._nudged.wait()
                    self._nudged.clear()
                self._is_driving = False
                listening.cancel()
                for attempt in self._attempts.values():
                    attempt.post(Stop())
            beat.cancel()
        await self._answer_watchers()

    def expect(self) -> bool:
        """Whether a run that is submitted now can go along, in one commit, with the claim that takes it."""
        if not self._is_driving or self._is_finishing or self._slots.free <= 0:
            return False
        self._look_for_work()
        return True

    async def rest_of(self, run_id: str) -> RunState:
        """The state in which the run comes to rest, whoever drives it."""
        future: asyncio.Future[RunState] = asyncio.get_running_loop().create_future()
        self._watched.setdefault(run_id, []).append(future)
        if run_id not in self._attempts:
            self._wanted.add(run_id)
            # A claim that is on its way may well bring it; if not, it is claimed by its name.
            self._may_be_due = self._may_be_due or not self._is_claiming
            self._nudged.set()
        return await future

    def seen(self, run_id: str) -> Glance | None:
        """What a result says of a run that ended here just now; told once, because the ledger can tell it again."""
        return self._ended.pop(run_id, None)

    def serve(self, place: str) -> None:
        """Claims runs of one more place from here on."""
        if place not in self._places:
            self._places = (*self._places, place)
            self._look_for_work()

    def finish(self) -> None:
        """Claims nothing new from here on, except what runs in hand wait for."""
        self._is_finishing = True
        self._nudged.set()

    def leave_when_idle(self) -> None:
        """Stops by itself as soon as nothing is in hand and nothing is due."""
        self._leaves_when_idle = True
        self._nudged.set()

    async def idle(self) -> None:
        """Returns when nothing is in hand."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def stop(self) -> None:
        """Finishes recording and parks everything."""
        self._is_stopping = True
        self._nudged.set()

    async def abort(self) -> None:
        """Ends everything at once; what was under way is settled by whoever comes next."""
        self._is_stopping = True
        self._nudged.set()
        for task in list(self._tasks.values()):
            task.cancel()
        await self.idle()
        with suppress(Unavailable):
            await self._ledger.expire(self._options.owner.text)

    def _look_for_work(self) -> None:
        self._may_be_due = True
        self._nudged.set()

    async def _listen(self, wake: Wake) -> None:
        while True:
            await wake.wait(self._options.lease_s / 3)
            self._look_for_work()

    async def _claim(self, tasks: asyncio.TaskGroup) -> bool:
        """Takes what may be taken now; True when anything was."""
        claimed = await self._claim_due()
        # Nearly always they are among those just taken, all in one commit.
        claimed += await self._claim_wanted({each.lease.run_id for each in claimed})
        # Signals are read after claiming: one that was sent before cannot be missed, one sent later wakes us.
        signals = await self._ledger.signals() if claimed or self._attempts else ()
        for each in claimed:
            self._start(each, tasks)
        for signal in signals:
            attempt = self._attempts.get(signal.run_id)
            if attempt is not None:
                attempt.post(signal)
        return bool(claimed)

    async def _claim_due(self) -> list[Claimed]:
        """Takes what is due, as far as there are places; without asking when nothing can have come since the last time."""
        needed = not self._is_finishing or any(attempt.waits_for_children for attempt in self._attempts.values())
        room, options = self._slots.free, self._options
        is_asked = self._may_be_due or self._leaves_when_idle
        if not (is_asked and needed and room > 0):
            return []
        self._may_be_due, self._is_claiming = False, True
        try:
            claimed = await self._ledger.claim(
                options.owner.text,
                limit=room,
                lease_s=options.lease_s,
                max_running=options.max_running,
                places=self._places,
            )
        finally:
            self._is_claiming = False
        # What there was no room for is still there when a place is given back; all else that comes or ends wakes us.
        self._may_be_due = self._may_be_due or len(claimed) == room
        return claimed

    async def _claim_wanted(self, taken: set[str]) -> list[Claimed]:
        """Takes the runs that somebody waits for, however many are in hand."""
        claimed: list[Claimed] = []
        for run_id in list(self._wanted):
            self._wanted.discard(run_id)
            if run_id in self._attempts or run_id in taken:
                continue
            row = await self._ledger.run(run_id)
            if row.state in TERMINAL:
                continue
            options = self._options
            claimed += await self._ledger.claim(
                options.owner.text,
                limit=1,
                lease_s=options.lease_s,
                max_running=options.max_running,
                places=self._places,
                run_id=run_id,
            )
        return claimed

    def _start(self, claimed: Claimed, tasks: asyncio.TaskGroup) -> None:
        run_id = claimed.lease.run_id
        self._slots.take()
        attempt = Attempt(self._world, claimed, tasks)
        self._attempts[run_id] = attempt
        self._world.boundary("claimed")
        task = tasks.create_task(self._attempt(attempt))
        self._tasks[run_id] = task
        task.add_done_callback(lambda done: self._forget(run_id, done))

    def _forget(self, run_id: str, task: asyncio.Task[None]) -> None:
        # A run that was queued in the commit that parked it may be in hand again before the old task is done.
        if self._tasks.get(run_id) is task:
            del self._tasks[run_id]

    async def _attempt(self, attempt: Attempt) -> None:
        try:
            state = await attempt.run()
        except Exception as error:  # noqa: BLE001 - the driver's boundary: one run's bug must not end the others
            state = await attempt.fail(error)
        finally:
            if self._attempts.get(attempt.run_id) is attempt:
                del self._attempts[attempt.run_id]
        # A parked run may have been queued again in the commit that parked it: its row knows.
        if state in TERMINAL:
            self._remember(attempt)
            self._settle(attempt.run_id, state)
        elif attempt.lost is not None and not isinstance(attempt.lost, StaleLease):
            self._disappoint(attempt.run_id, attempt.lost)
        self._nudged.set()

    def _remember(self, attempt: Attempt) -> None:
        self._ended[attempt.run_id] = attempt.seen
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _settle(self, run_id: str, state: RunState) -> None:
        for future in self._watched.pop(run_id, []):
            if not future.done():
                future.set_result(state)

    def _disappoint(self, run_id: str, error: AtlasError) -> None:
        """Tells those who wait that this process cannot go on with the run now; others may."""
        for future in self._watched.pop(run_id, []):
            if not future.done():
                future.set_exception(error)

    async def _answer_watchers(self) -> None:
        """Tells those who wait for runs that other processes drive, or that nobody will drive now."""
        for run_id in [name for name in self._watched if name not in self._attempts]:
            if run_id in self._wanted and not self._is_stopping:
                continue  # it was asked for after the last claim, and that comes first
            row = await self._ledger.run(run_id)
            is_parked = row.state in PARKED and not row.owner
            if row.state in TERMINAL or is_parked or self._is_stopping:
                self._settle(run_id, row.state)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._options.lease_s / 3)
            held = {attempt.lease.run_id: attempt for attempt in self._attempts.values()}
            if not held:
                continue
            try:
                renewed = await self._ledger.renew([one.lease for one in held.values()], self._options.lease_s)
            except Unavailable:
                continue  # Appends are fenced by generation, so a lease that lapses meanwhile harms nobody.
            kept: dict[str, Lease] = {lease.run_id: lease for lease in renewed}
            for run_id, attempt in held.items():
                if run_id in kept:
                    attempt.lease = kept[run_id]
                else:
                    attempt.post(Lost(StaleLease(f"run {run_id} has another owner now")))

    async def _adopt(self) -> None:
        """Lets the leases of dead processes of this machine lapse now instead of when they run out."""
        mine = self._options.owner
        for text in await self._ledger.owners():
            owner = parse_owner(text)
            if owner is None or owner == mine or owner.process.host != mine.process.host:
                continue
            if not self._options.is_alive(owner.process):
                await self._ledger.expire(text)

    def _next_adoption_us(self) -> int:
        return self._world.clock.now_us() + int(self._options.lease_s / 3 * 1_000_000)
