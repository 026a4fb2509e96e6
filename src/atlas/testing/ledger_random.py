"""The ledger's contract: any adapter, under any workload, does what the ledger in memory does.

A seeded random workload of some two hundred runs is played on both. After each step the answers are compared, and
from time to time everything that can be read. Times are left out, so that adapters with a clock of their own can
be held against the model too; leases lapse here because an owner is declared dead.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from atlas.kernel.errors import AtlasError
from atlas.kernel.event import Event, Spend
from atlas.kernel.port import Ledger
from atlas.kernel.run import (
    TERMINAL,
    Append,
    Claimed,
    InboxItem,
    Lease,
    NewRun,
    RunQuery,
    RunRow,
    RunState,
    SessionRow,
    Signal,
    SpendRow,
    TreeLimits,
)
from atlas.ledger.memory import MemoryLedger
from atlas.testing.ledger_rig import Case, Rig, Scene, open_scene

FAR_US = 10**15
LEASE_S = 100_000.0
RUNS = 200
OWNERS = ("ann", "bob", "eve")
PLACES = ("", "gpu")
STATES: tuple[RunState, ...] = ("running", "waiting", "in_doubt", "queued", "succeeded", "failed", "cancelled")


def comparable(value: Any) -> Any:
    """`value` without times, salts and what follows from them."""
    match value:
        case RunRow():
            due = value.due_us if value.due_us in (0, FAR_US) else -1
            changes = {"created_us": 0, "updated_us": 0, "lease_until_us": 0, "head_hash": b"", "due_us": due}
            return replace(value, ended_us=int(value.ended_us > 0), **changes)
        case Event():
            return (value.run_id, value.seq, value.position, value.kind, value.time_us, value.body, bool(value.salt))
        case Claimed():
            return (comparable(value.lease), value.previous_owner)
        case Lease():
            return (value.run_id, value.owner, value.generation)
        case Signal() | SessionRow():
            return replace(value, created_us=0)
        case SpendRow():
            return replace(value, day="")
        case list() | tuple():
            return [comparable(item) for item in value]
        case _:
            return value


class Workload:
    """Plays random steps on a ledger and on the model, and compares."""

    def __init__(self, scene: Scene, model: Ledger, seed: int) -> None:
        self.scene = scene
        self.model = model
        self.random = random.Random(seed)
        self.runs: list[NewRun] = []
        self.leases: dict[str, Lease] = {}
        self.old_leases: list[Lease] = []
        self.signals: list[str] = []

    async def both(self, what: str, action: Callable[[Ledger], Awaitable[Any]]) -> Any:
        """The model's answer, when the ledger under test gives the same."""
        expected, found = [await _answer(action, ledger) for ledger in (self.model, self.scene.ledger)]
        assert comparable(found) == comparable(expected), f"{what}: {found} instead of {expected}"
        return expected

    async def play(self) -> None:
        """Plays until there are enough runs."""
        steps = (self.submit, self.claim, self.claim_one, self.append, self.append, self.append, self.signal)
        rare = (self.renew, self.expire, self.erase, self.stale)
        number = 0
        while len(self.runs) < RUNS:
            number += 1
            step = self.random.choice(rare if self.random.random() < 0.06 else steps)
            await step()
            if number % 200 == 0:
                await self.compare()
        await self.compare()
        await self.scene.check_chains([run.run_id for run in self.runs])

    async def submit(self) -> None:
        """A new run, perhaps with a key or in a session that exists."""
        pick = self.random
        changes: dict[str, Any] = {"priority": pick.choice((0, 0, 0, 1)), "place": pick.choice(PLACES)}
        if pick.random() < 0.3:
            changes |= {"key": f"k{pick.randrange(12)}", "fingerprint": f"f{pick.randrange(2)}"}
        if pick.random() < 0.3 and self.runs:
            changes["session_id"] = pick.choice(self.runs).session_id
        if pick.random() < 0.1:
            changes["due_us"] = FAR_US
        changes |= {"agent": pick.choice(("tester", "writer")), "principal": pick.choice(("owner", "owner", "eve"))}
        run = self.scene.new_run(**changes)
        answer = await self.both("submit", lambda ledger: ledger.submit(run))
        if not isinstance(answer, str) and answer.is_new:
            self.runs.append(run)

    async def claim(self) -> None:
        """Some runs for some owner."""
        owner, limit, cap = self.random.choice(OWNERS), self.random.randrange(5), self.random.choice((6, 15, 40))
        places = self.random.choice((PLACES, ("",), ("gpu",)))
        claimed = await self.both(
            "claim",
            lambda ledger: ledger.claim(owner, limit=limit, lease_s=LEASE_S, max_running=cap, places=places),
        )
        self._hold(claimed)

    async def claim_one(self) -> None:
        """One run by name, whatever its state."""
        if not self.runs:
            return
        run, owner = self.random.choice(self.runs), self.random.choice(OWNERS)
        claimed = await self.both(
            "claim by name",
            lambda ledger: ledger.claim(
                owner, limit=1, lease_s=LEASE_S, max_running=1, places=PLACES, run_id=run.run_id
            ),
        )
        self._hold(claimed)

    async def append(self) -> None:
        """One batch of one of the holders."""
        if not self.leases:
            return
        pick = self.random
        run_id = pick.choice(sorted(self.leases))
        batch = await self._batch(run_id, self.leases[run_id])
        answer = await self.both("append", lambda ledger: _append(ledger, batch))
        if isinstance(answer, str):
            return
        self.runs += [child for child in batch.children if child.run_id not in {run.run_id for run in self.runs}]
        if (await self.model.run(run_id)).owner == "":
            self.old_leases.append(self.leases.pop(run_id))

    async def signal(self) -> None:
        """A signal, new or repeated."""
        if not self.runs:
            return
        signal = self.scene.new_signal(self.random.choice(self.runs).run_id)
        if self.signals and self.random.random() < 0.2:
            signal = replace(signal, id=self.random.choice(self.signals))
        self.signals.append(signal.id)
        await self.both("signal", lambda ledger: ledger.signal(signal))

    async def renew(self) -> None:
        """Leases held and leases lost."""
        leases = [*self.leases.values(), *self.old_leases[-5:]]
        await self.both("renew", lambda ledger: ledger.renew(leases, LEASE_S))

    async def expire(self) -> None:
        """An owner dies; its leases can be taken or used until they are."""
        owner = self.random.choice(OWNERS)
        await self.both("expire", lambda ledger: ledger.expire(owner))

    async def erase(self) -> None:
        """One event loses its body."""
        if self.runs:
            run_id, seq = self.random.choice(self.runs).run_id, self.random.randrange(4)
            await self.both("erase", lambda ledger: ledger.erase(run_id, seq))

    async def stale(self) -> None:
        """Somebody who lost a run tries to go on."""
        if self.old_leases:
            batch = Append(self.random.choice(self.old_leases), (self.scene.note("stale"),), state="failed")
            await self.both("stale append", lambda ledger: _append(ledger, batch))

    async def compare(self) -> None:
        """Everything that can be read is the same."""
        reads: list[Callable[[Ledger], Awaitable[Any]]] = [
            lambda ledger: ledger.feed(0, 0),
            lambda ledger: ledger.head(),
            lambda ledger: ledger.inbox(),
            lambda ledger: ledger.spend(),
            lambda ledger: ledger.owners(),
            lambda ledger: ledger.signals(),
        ]
        for read in reads:
            await self.both("read", read)
        for query in self._queries():
            await self.both("runs", lambda ledger, query=query: _runs(ledger, query))  # type: ignore[misc]
        for run in self.random.sample(self.runs, min(len(self.runs), 20)):
            await self.both("signals", lambda ledger, run_id=run.run_id: ledger.signals(run_id))  # type: ignore[misc]
            await self.both("session", lambda ledger, name=run.session_id: ledger.session(name))  # type: ignore[misc]

    def _queries(self) -> Sequence[RunQuery]:
        run = self.random.choice(self.runs)
        return (
            RunQuery(limit=1000),
            RunQuery(agent="writer", limit=7),
            RunQuery(states=("queued", "waiting"), limit=1000),
            RunQuery(agent="tester", states=("running", "succeeded"), roots_only=True, limit=9),
            RunQuery(session_id=run.session_id),
            RunQuery(root_run_id=run.root_run_id, before=run.run_id),
        )

    def _hold(self, claimed: Any) -> None:
        for one in claimed:
            if one.lease.run_id in self.leases:
                self.old_leases.append(self.leases[one.lease.run_id])
            self.leases[one.lease.run_id] = one.lease

    async def _batch(self, run_id: str, lease: Lease) -> Append:
        pick, scene = self.random, self.scene
        run = next(run for run in self.runs if run.run_id == run_id)
        batch = Append(lease, tuple(scene.note(str(pick.random())) for _ in range(pick.randrange(3))))
        if pick.random() < 0.5:
            batch = replace(batch, spend=Spend(1, pick.randrange(99), pick.randrange(99), pick.randrange(9999)))
        if pick.random() < 0.5:
            row = await self.model.run(run_id)
            state = None if row.state in TERMINAL else pick.choice(STATES)
            batch = replace(batch, state=state, release=pick.random() < 0.5, due_us=pick.choice((0, 0, FAR_US)))
        if pick.random() < 0.3:
            open_signals = [signal.id for signal in await self.model.signals(run_id)]
            wrong = ["sig_that_never_was"] if pick.random() < 0.1 else []
            batch = replace(batch, consumed=tuple(open_signals + wrong))
        if pick.random() < 0.2:
            children = tuple(
                scene.new_child(run, place=pick.choice(PLACES), principal=run.principal)
                for _ in range(1 + pick.randrange(4))
            )
            batch = replace(batch, children=children, tree_limits=TreeLimits(pick.choice((3, 50)), 10**6))
        if pick.random() < 0.2:
            batch = replace(batch, signals=(scene.new_signal(pick.choice(self.runs).run_id),))
        if pick.random() < 0.2:
            item = InboxItem(run_id, f"e{pick.randrange(3)}", "approval", run.agent, "owner", b"{}", pick.randrange(50))
            batch = replace(batch, inbox_open=(item,), inbox_close=(f"e{pick.randrange(3)}",))
        return batch


async def _append(ledger: Ledger, batch: Append) -> Any:
    return await ledger.append(batch)


async def _runs(ledger: Ledger, query: RunQuery) -> Any:
    page = await ledger.runs(query)
    return [list(page.runs), page.next]


async def _answer(action: Callable[[Ledger], Awaitable[Any]], ledger: Ledger) -> Any:
    """The answer, or the code of the refusal."""
    answer: Any = None
    with suppress(AtlasError):
        try:
            answer = await action(ledger)
        except AtlasError as error:
            answer = error.reason
            raise
    return answer


def _random_case(seed: int) -> Case:
    async def play(rig: Rig) -> None:
        model = MemoryLedger(rig.clock)
        await model.open()
        async with open_scene(rig) as scene:
            await Workload(scene, model, seed).play()

    return Case(f"a_random_workload_does_what_the_model_does_{seed}", play)


RANDOM_CASES = tuple(_random_case(seed) for seed in (1, 2, 3, 4))
