"""What a case of the ledger's contract works with: a rig that the adapter's author provides, and a scene on it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.kernel.chain import check_chain
from atlas.kernel.errors import AtlasError
from atlas.kernel.event import NULL, Draft, Logged, RunCreated, draft
from atlas.kernel.ident import RUN, SESSION, SIGNAL, new_id
from atlas.kernel.port import Clock, Ledger
from atlas.kernel.run import Append, Claimed, Lease, NewRun, NewSignal, RunState

LONG_S: Final = 60.0  # a lease that never lapses during a case
SHORT_S: Final = 0.2  # a lease that lapses when `PASS_S` pass
PASS_S: Final = 0.3

Need: TypeAlias = Literal["", "jump", "peers", "lock"]


class Rig(Protocol):
    """One empty store and its time. Provided by the author of an adapter, new for each case."""

    @property
    def clock(self) -> Clock:
        """The time and randomness that the adapter was given."""
        ...

    def open(self) -> AbstractAsyncContextManager[Ledger]:
        """An open ledger on the store; called more than once, when the adapter can share a store."""
        ...

    async def advance(self, seconds: float) -> None:
        """Lets that much of the ledger's time pass: by moving a fake clock, or by sleeping."""
        ...

    def lock(self) -> AbstractAsyncContextManager[None]:
        """Keeps every ledger on the store from writing; they give up after a moment and raise LedgerUnavailable."""
        ...


class Case(msgspec.Struct, frozen=True):
    """One guarantee of the port, as a test. `needs` names what not every rig can do.

    jump: let minutes pass in no time. peers: open the same store more than once. lock: keep ledgers from writing.
    """

    name: str
    check: Callable[[Rig], Coroutine[Any, Any, None]]
    needs: Need = ""


Check: TypeAlias = Callable[["Scene"], Coroutine[Any, Any, None]]


def case(check: Check) -> Case:
    """A case that needs one ledger."""
    return _case(check, "")


def jumping_case(check: Check) -> Case:
    """A case in which minutes pass."""
    return _case(check, "jump")


def locking_case(check: Check) -> Case:
    """A case in which the store takes nothing for a while."""
    return _case(check, "lock")


def peer_case(check: Callable[[Scene, Scene], Coroutine[Any, Any, None]]) -> Case:
    """A case with two ledgers on one store, as two processes have them."""

    async def play(rig: Rig) -> None:
        async with open_scene(rig) as scene, rig.open() as other:
            await check(scene, Scene(rig, other))

    return Case(check.__name__, play, "peers")


def _case(check: Check, needs: Need) -> Case:
    async def play(rig: Rig) -> None:
        async with open_scene(rig) as scene:
            await check(scene)

    return Case(check.__name__, play, needs)


@contextmanager
def refused(kind: type[AtlasError], code: str = "") -> Iterator[None]:
    """Fails unless the body raises an error of this kind, and with this code when one is named."""
    found: AtlasError | None = None
    try:
        yield
    except kind as error:
        found = error
    assert found is not None, f"nothing raised {kind.__name__}"
    assert code in ("", found.reason), found.record()


@asynccontextmanager
async def open_scene(rig: Rig) -> AsyncIterator[Scene]:
    """A scene on a newly opened ledger."""
    async with rig.open() as ledger:
        yield Scene(rig, ledger)


class Scene:
    """A ledger under test and short ways to do common things to it."""

    def __init__(self, rig: Rig, ledger: Ledger) -> None:
        self.rig = rig
        self.ledger = ledger
        self._numbers = itertools.count(1)

    @property
    def now_us(self) -> int:
        """The time."""
        return self.rig.clock.now_us()

    def new_id(self, prefix: str) -> str:
        """An id that sorts after every earlier one of this scene."""
        return new_id(prefix, self.now_us + 1000 * next(self._numbers), self.rig.clock.entropy(10))

    def new_run(self, **changes: Any) -> NewRun:
        """A run without a parent, in a session of its own."""
        run_id = changes.pop("run_id", "") or self.new_id(RUN)
        session_id = changes.pop("session_id", "") or self.new_id(SESSION)
        created = RunCreated("tester", "1.0.0", NULL, "snap", session_id, "seed")
        made = draft(created, self.now_us, "owner")
        return replace(NewRun(run_id, session_id, "tester", "1.0.0", "snap", "owner", made, run_id), **changes)

    def new_child(self, parent: NewRun, **changes: Any) -> NewRun:
        """A run below `parent`, in its session."""
        changes = {
            "session_id": parent.session_id,
            "root_run_id": parent.root_run_id,
            "parent_run_id": parent.run_id,
            "depth": parent.depth + 1,
        } | changes
        return self.new_run(**changes)

    def new_signal(self, run_id: str, **changes: Any) -> NewSignal:
        """A signal for a run."""
        return replace(NewSignal(self.new_id(SIGNAL), run_id, "answer", "owner", b"{}"), **changes)

    def note(self, text: str) -> Draft:
        """An event that says `text`."""
        return draft(Logged(text), self.now_us, "owner")

    async def submit(self, **changes: Any) -> NewRun:
        """A run that is queued."""
        run = self.new_run(**changes)
        await self.ledger.submit(run)
        return run

    async def claim(
        self,
        owner: str = "ann",
        *,
        limit: int = 1,
        lease_s: float = LONG_S,
        max_running: int = 100_000,
        places: Sequence[str] = ("",),
        run_id: str = "",
    ) -> list[Claimed]:
        """What `owner` gets."""
        return await self.ledger.claim(
            owner, limit=limit, lease_s=lease_s, max_running=max_running, places=places, run_id=run_id
        )

    async def claim_ids(self, limit: int = 1000, **options: Any) -> list[str]:
        """The runs that a claim gives, in order."""
        return [claimed.lease.run_id for claimed in await self.claim(limit=limit, **options)]

    async def hold(self, owner: str = "ann", lease_s: float = LONG_S, **changes: Any) -> tuple[NewRun, Lease]:
        """A run that `owner` holds."""
        run = await self.submit(**changes)
        return run, await self.take(run.run_id, owner, lease_s, run.place)

    async def take(self, run_id: str, owner: str = "ann", lease_s: float = LONG_S, place: str = "") -> Lease:
        """The lease of one run."""
        [claimed] = await self.claim(owner, lease_s=lease_s, run_id=run_id, places=(place,))
        return claimed.lease

    async def park(self, lease: Lease, state: RunState = "waiting") -> None:
        """Gives the run back to wait for somebody."""
        await self.ledger.append(Append(lease, state=state, release=True))

    async def end(self, lease: Lease, state: RunState = "succeeded") -> None:
        """Ends the run."""
        await self.ledger.append(Append(lease, (self.note("end"),), state=state))

    async def texts(self, run_id: str) -> list[str]:
        """What the run's events after the first say."""
        events = await self.ledger.events(run_id, after=1)
        return [msgspec.json.decode(event.body, type=Logged).message if event.body else "" for event in events]

    async def state(self, run_id: str) -> RunState:
        """The state of a run."""
        return (await self.ledger.run(run_id)).state

    async def check_chains(self, run_ids: Sequence[str]) -> None:
        """Fails when a run's events do not lead unbroken to its recorded head."""
        for run_id in run_ids:
            row = await self.ledger.run(run_id)
            finding = check_chain(run_id, await self.ledger.events(run_id), row.head_seq, row.head_hash)
            assert finding is None, finding
