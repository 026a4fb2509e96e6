"""Money before the effect: what a call may use is reserved in the commit of its intent, or the call does not begin.

    begin      how much at most -> reserve with the intent -> `Admitted`
    seek       no room: a shorter answer, the cheaper model, or waiting for what others have reserved -> or a refusal

Nothing is read beforehand where there is room, which is nearly always: the ledger checks every cap inside the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from atlas.control.record import Record
from atlas.control.world import Admitted, Bounds, Message, NotAdmitted, World
from atlas.kernel.budget import (
    Balance,
    Grant,
    Need,
    Quote,
    Reservation,
    Settlement,
    Wait,
    grant,
    in_full,
    within_request,
)
from atlas.kernel.code import CallMade, Performed
from atlas.kernel.code import Need as Asked
from atlas.kernel.errors import AtlasError, BudgetBusy, BudgetRefused
from atlas.kernel.event import NO_SPEND, EffectIntended, EffectReceived, Logged, Spend
from atlas.kernel.gate import Standing
from atlas.kernel.hold import Cap, Hold, Meter
from atlas.kernel.run import Appended

_WAIT_S: Final = 1.0
_LEAVING: Final = BudgetBusy("this process leaves before there is room")


class Wish(msgspec.Struct, frozen=True):
    """A call that wants money: what it may need, under which bounds, and how its cost grows with its answer.

    `lost` settles what an earlier try of it used; then it is asked again exactly as it was or not at all.
    """

    call: CallMade
    intent: EffectIntended
    need: Asked
    bounds: Bounds
    quote: Quote
    standing: Standing | None = None
    lost: Settlement | None = None

    @property
    def caps(self) -> tuple[Cap, ...]:
        """Everything it has to stay within."""
        return self.bounds.caps if self.standing is None else (*self.bounds.caps, *self.standing.caps)

    @property
    def meters(self) -> tuple[Meter, ...]:
        """Everything it counts on."""
        return self.bounds.meters if self.standing is None else (*self.bounds.meters, *self.standing.meters)


class Admissions:
    """The calls of one attempt that wait for money."""

    def __init__(self, world: World, record: Record, tasks: asyncio.TaskGroup, post: Callable[[Message], None]) -> None:
        self._world = world
        self._record = record
        self._tasks = tasks
        self._post = post
        self._seeking: dict[asyncio.Task[None], CallMade] = {}
        self._is_leaving = False
        self._guessed: set[str] = set()

    def stop(self) -> None:
        """Nobody waits for money any more."""
        for task in self._seeking:
            task.cancel()
        self._seeking.clear()

    def leave(self) -> None:
        """Lets go of the calls that wait for what others reserved: that can take longer than this process stays."""
        self._is_leaving = True
        waiting = tuple(self._seeking.values())
        self.stop()
        for call in waiting:
            self._post(NotAdmitted(call, _LEAVING))

    async def begin(
        self,
        call: CallMade,
        intent: EffectIntended,
        standing: Standing | None = None,
        lapsed: Performed | None = None,
    ) -> None:
        """Reserves what the call may use, together with its intent; `Admitted` or `NotAdmitted` follows.

        What an earlier try of it reserved is settled with that: as it `lapsed`, or in full when nobody knows.
        """
        if call.need is None:
            caps = () if standing is None else standing.caps
            self._reserve(call, intent, _under(standing), caps, None, self._refused(call))
            return
        lost = None
        if intent.hold is not None:
            lost = in_full(call.effect, intent.hold) if lapsed is None else _used(call.effect, lapsed)
        try:
            wish = await self._wish(call, intent, call.need, standing, lost)
        except AtlasError as error:
            self._post(NotAdmitted(call, error, lost=lost))
            return
        self._reserve_for(wish, wish.need.max_output_tokens)

    async def _wish(
        self,
        call: CallMade,
        intent: EffectIntended,
        need: Asked,
        standing: Standing | None,
        lost: Settlement | None,
    ) -> Wish:
        bounds = await self._bounds()
        if intent.hold is not None:
            # A lost call is asked again as it was, with the same limit to its answer.
            limit = intent.hold.max_output_tokens
            need = replace(need, model=intent.hold.model, max_output_tokens=limit, fallback="")
        cut = within_request(Need(need.tokens_in, need.max_output_tokens), bounds.tokens_per_request)
        need = replace(need, max_output_tokens=cut.max_output_tokens)
        quote = await self._world.quote(need.model, need.tokens_in)
        return Wish(call, intent, need, bounds, quote, standing, lost)

    async def _bounds(self) -> Bounds:
        return await self._world.bounds(self._record.state, self._world.clock.now_us())

    def _reserve_for(self, wish: Wish, max_output_tokens: int) -> None:
        hold = _held(wish, max_output_tokens)
        self._warn(wish.quote)
        self._reserve(wish.call, wish.intent, hold, wish.caps, wish.lost, lambda error: self._no_room(wish, error))

    def _reserve(
        self,
        call: CallMade,
        intent: EffectIntended,
        hold: Hold,
        caps: tuple[Cap, ...],
        lost: Settlement | None,
        refused: Callable[[AtlasError], None],
    ) -> None:
        """Writes the intent with its hold; the state learns of it when it is durable, because it may be refused."""
        intent = replace(intent, hold=hold, lost=intent.lost if lost is None else lost.spend)
        settle = () if lost is None else (lost,)
        commit = self._record.write_admitted(intent, Reservation(call.effect, hold, caps), settle, refused)
        commit.add_done_callback(lambda done: None if failed(done) else self._post(Admitted(call, intent)))

    def _warn(self, quote: Quote) -> None:
        """Says once in an attempt that a price is a guess."""
        for model in quote.guessed:
            if model not in self._guessed:
                self._guessed.add(model)
                said = f"the price of {model} is not known: its maker's is counted, else the highest known one"
                self._record.write(Logged(f"{said}; models.prices in atlas.config.yaml sets it", "warning"), lazy=True)

    def _refused(self, call: CallMade) -> Callable[[AtlasError], None]:
        # Uses of a mandate are settled as they were reserved, so one that waits for others' would wait in vain.
        return lambda error: self._post(NotAdmitted(call, error, isinstance(error, BudgetRefused | BudgetBusy)))

    def _no_room(self, wish: Wish, error: AtlasError) -> None:
        if not isinstance(error, BudgetRefused | BudgetBusy):
            self._post(NotAdmitted(wish.call, error, lost=wish.lost))
        elif self._is_leaving:
            self._post(NotAdmitted(wish.call, _LEAVING))
        else:
            task = self._tasks.create_task(self._seek(wish))
            self._seeking[task] = wish.call
            task.add_done_callback(lambda done: self._seeking.pop(done, None))

    async def _seek(self, wish: Wish) -> None:
        """Admits the call with what can be afforded, once only other calls stand in its way and have ended."""
        ledger = self._world.ledger
        try:
            async with ledger.wake(every_commit=True) as wake:
                while True:
                    # The day may have ended while it waited.
                    wish = replace(wish, bounds=await self._bounds())
                    match _granted(wish, await ledger.balances(wish.caps)):
                        case Grant(max_output_tokens=limit):
                            self._reserve_for(wish, limit)
                            return
                        case Wait():
                            await wake.wait(_WAIT_S)
                        case BudgetRefused() if self._may_fall_back(wish):
                            wish = await self._cheaper(wish)
                        case BudgetRefused() as refusal:
                            raise refusal
        except AtlasError as error:
            self._post(NotAdmitted(wish.call, error, lost=wish.lost))

    def _may_fall_back(self, wish: Wish) -> bool:
        """Whether there is a cheaper model to go on with that the rules allow as well: they ruled on the other one."""
        if not (wish.bounds.falls_back and wish.need.fallback):
            return False
        call = replace(wish.call, name=wish.need.fallback)
        return self._world.authority.rule(self._record.state, call).decision == "allow"

    async def _cheaper(self, wish: Wish) -> Wish:
        need = replace(wish.need, model=wish.need.fallback, fallback="")
        return replace(wish, need=need, quote=await self._world.quote(need.model, need.tokens_in))


def _granted(wish: Wish, balances: Sequence[Balance]) -> Grant | Wait | BudgetRefused:
    """What can be afforded once its own lost try is settled, which happens in the same commit."""
    need = Need(wish.need.tokens_in, wish.need.max_output_tokens)
    if wish.lost is None or wish.intent.hold is None:
        return grant(need, wish.quote, wish.caps, balances)
    held, used = wish.intent.hold, wish.lost.spend
    change = (used.cost_micro_usd, -held.micro_usd, used.tokens_in + used.tokens_out, -held.tokens)
    after = [
        balance.plus(*change) if any(map(cap.covers, held.meters)) else balance
        for cap, balance in zip(wish.caps, balances, strict=True)
    ]
    return grant(need, wish.quote, wish.caps, after, floor=need.max_output_tokens)


def _used(effect: str, lapsed: Performed) -> Settlement:
    return Settlement(effect, lapsed.spend, is_estimated=lapsed.is_estimated)


def _held(wish: Wish, max_output_tokens: int) -> Hold:
    return Hold(
        micro_usd=wish.quote(max_output_tokens),
        tokens=wish.need.tokens_in + max_output_tokens,
        max_output_tokens=max_output_tokens,
        model=wish.need.model,
        meters=wish.meters,
        day=wish.bounds.day,
        is_price_guessed=bool(wish.quote.guessed),
        is_capped=bool(wish.caps),
        asks=wish.need.asks,
    )


def unaffordable(intent: EffectIntended, message: NotAdmitted) -> EffectReceived:
    """How a call ends whose earlier try was lost, and for which there is no money now."""
    lost = message.lost
    if lost is None and intent.hold is not None:
        lost = in_full(intent.effect, intent.hold)
    spend = NO_SPEND if lost is None else lost.spend
    return EffectReceived(intent.effect, error=message.error.record(), spend=spend, is_estimated=True)


def settled(
    intent: EffectIntended | None, receipt: EffectReceived, message: Performed | None = None
) -> tuple[Settlement, ...]:
    """What the receipt of an effect settles; nothing when nothing was reserved for it."""
    if intent is None or intent.hold is None:
        return ()
    if not intent.hold.model:
        # Money that a mandate lets a tool move: it counts on the mandate's meters, whether the tool says so or not.
        used = Spend(tokens_in=intent.hold.tokens, cost_micro_usd=intent.hold.micro_usd)
        return (Settlement(intent.effect, used),)
    cached = (0, 0) if message is None else (message.cached_in, message.saved_micro_usd)
    is_estimated = receipt.is_estimated
    return (Settlement(intent.effect, receipt.spend, receipt.model, is_estimated, True, *cached),)


def _under(standing: Standing | None) -> Hold:
    return Hold() if standing is None else Hold(standing.amount_micro_usd, standing.uses, meters=standing.meters)


def failed(done: asyncio.Future[Appended]) -> bool:
    """Whether a commit did not happen, or only that of what went before."""
    return done.cancelled() or done.exception() is not None or done.result().refused is not None
