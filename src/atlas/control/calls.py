"""How a turn asks its driver for effects: each is answered from the record, or performed once its intent is durable."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from atlas.control.world import NOTHING, Effected
from atlas.kernel.code import Answer, CallMade, FromCode, Need, Perform, Performed, Probe, Probed, ToCode
from atlas.kernel.errors import AtlasError, Cancelled, ErrorRecord, Fault, from_record
from atlas.kernel.event import EffectClass, EffectKind, Spend
from atlas.kernel.hold import Hold
from atlas.kernel.model import Attempt, Tab
from atlas.kernel.port import Clock
from atlas.kernel.tool import ToolFinding, ToolOutcome

# How often a question is put whose answer was lost, each time reserved for anew.
MAX_TRIES: Final = 3
Performing: TypeAlias = Callable[[Perform, Tab], Awaitable[Effected]]
Probing: TypeAlias = Callable[[str], Awaitable[ToolFinding]]


class InDoubt(Exception):
    """An effect began and nobody knows how far it got."""


class Wanted(msgspec.Struct, frozen=True):
    """An effect that a turn wants, under its stable name."""

    effect: str
    kind: EffectKind
    name: str
    args: bytes
    effect_class: EffectClass = "read_only"
    idempotent: bool = False
    definition: str = ""
    need: Need | None = None


class Calls:
    """The effects of one turn that are under way."""

    def __init__(self, clock: Clock, receive: Callable[[FromCode], None]) -> None:
        self._clock = clock
        self._receive = receive
        self._waiting: dict[int, asyncio.Future[ToCode]] = {}
        self._last_id = 0
        self.is_cancelled = False

    def hear(self, message: Perform | Probe | Answer) -> None:
        """Takes what the driver says to one of them."""
        waiting = self._waiting.pop(message.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    async def make(self, wanted: Wanted, perform: Performing, probe: Probing | None = None) -> bytes:
        """The outcome of an effect; raises what it failed with, or why it was refused."""
        self._last_id += 1
        number = self._last_id
        waiting = self._expect(number)
        self._receive(
            CallMade(
                number,
                wanted.effect,
                wanted.kind,
                wanted.name,
                msgspec.Raw(wanted.args),
                hashlib.sha256(wanted.args).hexdigest(),
                wanted.effect_class,
                wanted.idempotent,
                probe is not None,
                wanted.definition,
                wanted.need,
            )
        )
        while True:
            match await waiting:
                case Answer(result=result, error=None):
                    return bytes(result)
                case Answer(error=ErrorRecord() as error):
                    raise from_record(error)
                case Perform() as leave:
                    return await self._perform(leave, perform, is_counted=wanted.kind == "model")
                case Probe(effect_key=key):
                    waiting = self._expect(number)
                    self._receive(await _probed(number, key, probe))

    def _expect(self, number: int) -> asyncio.Future[ToCode]:
        waiting: asyncio.Future[ToCode] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        return waiting

    async def _perform(self, leave: Perform, perform: Performing, *, is_counted: bool) -> bytes:
        began_us, tab = self._clock.now_us(), tab_for(leave.hold)
        try:
            done = await perform(leave, tab)
        except InDoubt as doubt:
            # Nobody knows what became of it: a person is asked, and the turn waits for the answer.
            waiting = self._expect(leave.id)
            self._receive(Probed(leave.id, "unknown", message=str(doubt)))
            await waiting
            raise Fault("an effect in doubt was answered", code="doubt_answered") from doubt
        except AtlasError as error:
            self._receive(self._performed(leave, NOTHING, tab, began_us, error.record()))
            raise
        except asyncio.CancelledError:
            # The tries of a cancelled call are on its tab, and nowhere else. A turn that is only interrupted will ask
            # again, so for it the call stays open.
            if self.is_cancelled and is_counted:
                cancelled = Cancelled("the run was cancelled").record()
                self._receive(self._performed(leave, NOTHING, tab, began_us, cancelled))
            raise
        self._receive(self._performed(leave, done, tab, began_us))
        return done.result

    def _performed(
        self, leave: Perform, done: Effected, tab: Tab, began_us: int, error: ErrorRecord | None = None
    ) -> Performed:
        return performed(leave.id, done, tab, self._clock.now_us() - began_us, error)


def performed(call_id: int, done: Effected, tab: Tab, took_us: int, error: ErrorRecord | None = None) -> Performed:
    """What an effect came to, with everything that is on its tab."""
    attempts = tab.attempts
    if not attempts:
        return Performed(call_id, msgspec.Raw(done.result), error, took_us, model=done.model)
    return Performed(
        call_id,
        msgspec.Raw(done.result),
        error,
        took_us,
        spend_of(attempts),
        done.model,
        tab.is_estimated,
        sum(one.usage.cached_in for one in attempts),
        sum(one.saved_micro_usd for one in attempts),
    )


def tab_for(hold: Hold | None, first: int = 0) -> Tab:
    """The tab of a question that was granted this much.

    With or without a cap: a process that dies leaves its hold behind and no tab, so no question may use more than that.
    """
    if hold is None or not hold.model:
        return Tab(first=first)
    # What a question with repairs reads grows from try to try; it is measured then.
    return Tab(hold.micro_usd, hold.tokens - hold.max_output_tokens if hold.asks == 1 else 0, first)


def spend_of(attempts: Sequence[Attempt]) -> Spend:
    """What all tries used together, failed ones included."""
    return Spend(
        tokens_in=sum(one.usage.tokens_in for one in attempts),
        tokens_out=sum(one.usage.tokens_out for one in attempts),
        cost_micro_usd=sum(one.cost_micro_usd for one in attempts),
    )


def settled_by(error: AtlasError, tab: Tab) -> AtlasError:
    """Why a question that is not put again got no answer: what was reserved for it is no reason, the last try's is."""
    last = tab.attempts[-1].error if tab.attempts and error.reason == "model_budget" else None
    return error if last is None else from_record(last)


async def _probed(number: int, key: str, probe: Probing | None) -> Probed:
    if probe is None:
        return Probed(number, "unknown", message="the tool no longer has a probe")
    found = await probe(key)
    raw = msgspec.Raw(msgspec.json.encode(ToolOutcome(found.text)))
    return Probed(number, found.found, raw, f"the probe could not tell: {found.message}" if found.message else "")
