"""One adversarial schedule: fifty children of one tree reserve, settle, crash and retry in a random order.

The ledger is a real one. What reaches it is as hostile as a driver can be without lying about its lease: callers
that ask for more than they were told they can afford, settle late, lose their process between intent and
settlement, are taken over while their old process still talks, or end with calls open. Providers bill at most what
was reserved.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable
from zoneinfo import ZoneInfo

import msgspec

from atlas.kernel.budget import (
    Balance,
    Cap,
    Hold,
    Need,
    Pool,
    Reservation,
    Settlement,
    Wait,
    caps_at,
    day_at,
    grant,
    in_full,
    meters_at,
)
from atlas.kernel.contract import Budget
from atlas.kernel.errors import AtlasError, BudgetBusy, BudgetRefused, StaleLease
from atlas.kernel.event import NULL, Draft, Logged, RunCreated, Spend, draft
from atlas.kernel.port import Ledger
from atlas.kernel.run import Append, Lease, NewRun
from atlas.testing.budget_book import ShadowBook
from atlas.testing.clock import FakeClock

CHILDREN = 50
TEAMS = 5
_ZONE = ZoneInfo("Pacific/Auckland")
_LEASE_S = 10**6


class Tally(msgspec.Struct):
    """What happened in a schedule, and what was wrong with it."""

    admissions: int = 0
    settlements: int = 0
    refusals: int = 0
    waits: int = 0
    crashes: int = 0
    lost: int = 0
    retries: int = 0
    stale: int = 0
    late: int = 0
    overshoots: int = 0
    worst_overshoot_micro_usd: int = 0
    fullest: float = 0.0
    billed_micro_usd: int = 0
    counted_micro_usd: int = 0
    complaints: list[str] = msgspec.field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Takes in another one."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            is_peak = name in ("fullest", "worst_overshoot_micro_usd")
            setattr(self, name, max(mine, theirs) if is_peak else mine + theirs)


class Call(msgspec.Struct):
    """A model call under way: what its provider will bill, and the tick at which its answer arrives."""

    effect: str
    hold: Hold
    bill: Spend
    due: int


class Child:
    """One run of the tree, its lease, its pools and its calls under way."""

    def __init__(self, run_id: str, pools: tuple[Pool, ...], calls_left: int) -> None:
        self.run_id = run_id
        self.pools = pools
        self.calls_left = calls_left
        self.lease: Lease | None = None
        self.old_leases: list[Lease] = []
        self.calls: list[Call] = []
        self.number = 0


class Schedule:
    """A tree on a ledger and the random order of what happens to it."""

    def __init__(self, ledger: Ledger, clock: FakeClock, seed: int, name: str) -> None:
        self.ledger = ledger
        self.clock = clock
        self.pick = random.Random(seed)
        self.name = name
        self.book = ShadowBook()
        self.tally = Tally()
        self.tick = 0
        money = self.pick.randrange(2_000, 60_000)
        share = self.pick.uniform(0.15, 0.6)
        # Sums of what one pool, a few pools or one day may hold: each is sometimes the tightest.
        self.fleet = Budget(
            usd_per_day=self._some(money / 1e6),
            usd_per_7d=self._some(money / 1e6),
            usd_per_month=self._some(money / 1e6),
        )
        self.contract = Budget(usd_per_day=self._some(money / 1e6))
        root = Pool(f"{name}_root", money, self.pick.randrange(20_000, 400_000))
        teams = [Pool(f"{name}_team{index}", int(money * share)) for index in range(TEAMS)]
        self.root = Child(root.run_id, (root,), 0)
        self.children = [
            Child(f"{name}_c{index:02d}", self._path(root, teams[index % TEAMS], index), self.pick.randrange(1, 4))
            for index in range(CHILDREN)
        ]
        self.by_id = {child.run_id: child for child in (*self.children, self.root)}

    async def play(self) -> Tally:
        """Plays to the end and judges it."""
        await self._set_up()
        alive = list(self.children)
        while alive:
            self.tick += 1
            if self.pick.random() < 0.05:
                self.clock.advance(self.pick.choice((60, 3_600, 7 * 3_600)))
            burst = self.pick.sample(alive, min(len(alive), self.pick.choice((1, 4, 16))))
            # The order of effect is that of these calls: none is awaited before the last one was made.
            begun = [await self._act(child) for child in burst]
            for answers in begun:
                for answer, applied in answers:
                    await self._take_in(answer, applied)
            alive = [child for child in alive if child.calls_left or child.calls]
        await self._close()
        return self.tally

    def _some(self, amount: float) -> float | None:
        return round(amount * self.pick.uniform(0.5, 1.5), 6) if self.pick.random() < 0.7 else None

    def _path(self, root: Pool, team: Pool, index: int) -> tuple[Pool, ...]:
        own = Pool(f"{self.name}_c{index:02d}", (root.micro_usd or 0) // self.pick.choice((4, 8)))
        return (root, team, own) if self.pick.random() < 0.5 else (root, team)

    async def _set_up(self) -> None:
        await self.ledger.submit(self._new_run(self.root))
        children = tuple(self._new_run(child, parent=self.root.run_id) for child in self.children)
        await self._claim(self.root, "root")
        assert self.root.lease is not None
        await self.ledger.append(Append(self.root.lease, children=children))
        for child in self.children:
            await self._claim(child, "first")

    def _new_run(self, child: Child, parent: str = "") -> NewRun:
        created = draft(RunCreated("sim", "1.0.0", NULL, "snap", "", "seed"), self.clock.now_us(), "owner")
        root = self.root.run_id
        return NewRun(child.run_id, "", "sim", "1.0.0", "snap", "owner", created, root, parent, depth=int(bool(parent)))

    async def _claim(self, child: Child, owner: str) -> None:
        name = f"{owner}|{child.run_id}"
        [claimed] = await self.ledger.claim(name, limit=1, lease_s=_LEASE_S, max_running=10**6, run_id=child.run_id)
        child.lease = claimed.lease

    async def _act(self, child: Child) -> list[tuple[Awaitable[object], Append]]:
        """Begins what this child does next: commits that were handed over and not answered yet."""
        roll = self.pick.random()
        if child.calls and roll < 0.10:
            return await self._crash(child)
        due = [call for call in child.calls if call.due <= self.tick]
        if due and (roll < 0.7 or not child.calls_left):
            return [self._settle(child, self.pick.choice(due))]
        if child.calls_left and len(child.calls) < 3:
            return [await self._reserve(child)]
        if child.calls and roll > 0.97:  # ends with calls open: the ledger settles them
            child.calls_left = 0
            return [self._begin(Append(self._lease(child), state="failed"))]
        return []

    async def _reserve(self, child: Child) -> tuple[Awaitable[object], Append]:
        child.number += 1
        child.calls_left -= 1
        asked = await self._asked(child, f"e{child.number}")
        return self._begin(Append(self._lease(child), (self._note("intent"),), reserve=asked))

    async def _asked(self, child: Child, effect: str) -> Reservation:
        at_us = self.clock.now_us()
        caps = caps_at(
            at_us,
            _ZONE,
            fleet=self.fleet,
            contract=self.contract,
            agent="sim",
            principal="owner",
            pools=child.pools,
        )
        meters = meters_at(at_us, _ZONE, agent="sim", principal="owner", pools=child.pools)
        price = self.pick.choice((0, 1, 3, 17, 90))  # micro-dollars per token, random as providers are
        need = Need(self.pick.randrange(1, 400), self.pick.randrange(1, 600))
        granted = self._afford(need, price, caps, await self.ledger.balances(caps))
        output = granted if granted is not None and self.pick.random() < 0.7 else need.max_output_tokens
        tokens = need.tokens_in + output
        hold = Hold(tokens * price, tokens, output, f"sim:{price}", meters, day_at(at_us, _ZONE))
        return Reservation(effect, hold, caps)

    def _afford(self, need: Need, price: int, caps: tuple[Cap, ...], balances: tuple[Balance, ...]) -> int | None:
        found = grant(need, lambda output: (need.tokens_in + output) * price, caps, balances)
        return None if isinstance(found, Wait | BudgetRefused) else found.max_output_tokens

    def _settle(self, child: Child, call: Call) -> tuple[Awaitable[object], Append]:
        self.tally.late += call.due < self.tick - 20
        return self._begin(Append(self._lease(child), settle=(Settlement(call.effect, call.bill, "sim"),)))

    async def _crash(self, child: Child) -> list[tuple[Awaitable[object], Append]]:
        """The process is lost with calls open; the next one settles them in full and asks some of them again."""
        old = self._lease(child)
        child.old_leases.append(old)
        self.tally.crashes += 1
        self.tally.lost += len(child.calls)
        await self.ledger.expire(old.owner)
        await self._claim(child, f"again{self.tick}")
        begun: list[tuple[Awaitable[object], Append]] = []
        for call in list(child.calls):
            settled = (in_full(call.effect, call.hold),)
            if self.pick.random() < 0.5:
                again = await self._asked(child, call.effect)
                self.tally.retries += 1
                begun.append(self._begin(Append(self._lease(child), settle=settled, reserve=again)))
            else:
                begun.append(self._begin(Append(self._lease(child), settle=settled)))
        if self.pick.random() < 0.5:  # the old process wakes up and goes on
            stale = Append(old, settle=(in_full(child.calls[0].effect, child.calls[0].hold),))
            begun.append(self._begin(stale))
        return begun

    def _begin(self, batch: Append) -> tuple[Awaitable[object], Append]:
        return self.ledger.append(batch), batch

    async def _take_in(self, answer: Awaitable[object], batch: Append) -> None:
        """Notes in the second books what an acknowledged commit did, in the order in which commits took effect."""
        child = self.by_id[batch.lease.run_id]
        try:
            await answer
        except StaleLease:
            self.tally.stale += 1
            return
        except (BudgetRefused, BudgetBusy) as error:
            self.tally.waits += isinstance(error, BudgetBusy)
            self.tally.refusals += isinstance(error, BudgetRefused)
            self._after_refusal(child, batch)
            return
        if batch.lease != child.lease:
            self.tally.complaints.append(f"{child.run_id}: a stale owner was obeyed")
        for settlement in batch.settle:
            self.book.settled(child.run_id, settlement.effect, settlement.spend)
            child.calls = [call for call in child.calls if call.effect != settlement.effect]
        if batch.state is not None:
            for call in child.calls:
                self.book.settled(child.run_id, call.effect, in_full(call.effect, call.hold).spend)
            child.calls = []
        if batch.reserve is not None:
            asked = batch.reserve
            self.book.reserved(child.run_id, asked.effect, asked.hold, asked.caps)
            used, slow = self.pick.choice((0.0, 1.0, self.pick.random())), self.pick.choice((1, 3, 60))
            bill = Spend(1, int(asked.hold.tokens * used), 0, int(asked.hold.micro_usd * used))
            self.tally.billed_micro_usd += bill.cost_micro_usd
            child.calls.append(Call(asked.effect, asked.hold, bill, self.tick + slow))

    def _after_refusal(self, child: Child, batch: Append) -> None:
        # Asked again with a settlement: the whole batch was refused, so the first hold still stands. It is settled
        # when its answer "arrives".
        if not batch.settle and self.pick.random() < 0.5:
            child.calls_left += 1
        if self.tick > 400:
            child.calls_left = 0

    async def _close(self) -> None:
        for child in (*self.children, self.root):
            row = await self.ledger.run(child.run_id)
            if not row.ended_us:
                await self.ledger.append(Append(self._lease(child), state="succeeded"))
        caps = self.book.caps()
        found = await self.ledger.balances(caps)
        expected = [self.book.balance(cap) for cap in caps]
        wrong = [cap.scope for cap, one, other in zip(caps, found, expected, strict=True) if one != other]
        if wrong:
            self.tally.complaints.append(f"{self.name}: the ledger and the second books differ on {', '.join(wrong)}")
        if any(one.held_micro_usd or one.held_tokens for one in found):
            self.tally.complaints.append(f"{self.name}: something is still reserved after every run has ended")
        [pool] = await self.ledger.balances((Cap("root", self.root.pools[0].scope),))
        self.tally.counted_micro_usd = pool.spent_micro_usd
        if self.tally.billed_micro_usd > pool.spent_micro_usd:
            self.tally.complaints.append(f"{self.name}: providers billed more than was counted")
        book = self.book
        self.tally.admissions, self.tally.settlements = book.admissions, book.settlements
        self.tally.overshoots, self.tally.fullest = book.overshoots, book.fullest
        self.tally.worst_overshoot_micro_usd = book.worst_overshoot

    def _lease(self, child: Child) -> Lease:
        if child.lease is None:
            raise AtlasError(f"{child.run_id} is held by nobody")
        return child.lease

    def _note(self, text: str) -> Draft:
        return draft(Logged(text), self.clock.now_us(), "owner")
