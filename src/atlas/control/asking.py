"""How a turn asks its model: a request that is built, recorded with all it was built from, and sent.

    ask    (build -> record -> send)* -> what was heard

A question that may have been billed and was lost is asked again as it was; one that is on record is neither built nor sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import count
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.control.calls import MAX_TRIES, Calls, Wanted, settled_by
from atlas.control.delta import wordless
from atlas.control.desk import Desk
from atlas.control.history import History, bodies
from atlas.control.payload import unpack
from atlas.control.service import Services
from atlas.control.world import Effected
from atlas.kernel.code import Need, Perform
from atlas.kernel.context import Builder, Built, Live, Session
from atlas.kernel.errors import AtlasError, Fault
from atlas.kernel.event import EffectIntended
from atlas.kernel.hold import Hold
from atlas.kernel.model import PASSED_ON, Request, Tab
from atlas.kernel.token import LOWEST_RATE, Heard, lightened, limits_of, lowered
from atlas.kernel.turn import Turn

Added: TypeAlias = tuple[tuple[str, str], ...]

_BYTES_PER_TOKEN: Final = 3
_UNANSWERED: Final = frozenset({"tier_empty", "model_unknown", *(f"model_{kind}" for kind in PASSED_ON)})
"""Why a contract's fallback is asked instead."""
_ENCODER: Final = msgspec.json.Encoder()


class Wish(msgspec.Struct, frozen=True):
    """A request to stop at instead of asking: the effect that sent it, among the recorded ones. Empty: none."""

    effect: str = ""
    intents: Mapping[str, EffectIntended] = {}


class Reached(Exception):
    """The turn came to the request that was wished for."""

    def __init__(self, built: Built) -> None:
        super().__init__()
        self.built = built


class Asking:
    """What a turn needs to ask: `limits` of its requests, the `system` text they share, and the `rate` of bytes to a token."""

    def __init__(
        self, services: Services, calls: Calls, history: History, desk: Desk, session: Session, wish: Wish
    ) -> None:
        self._services = services
        self._calls = calls
        self._history = history
        self._desk = desk
        self._session = session
        self._wish = wish
        self._run_id = history.state.run_id
        model = desk.contract.model
        self._model = history.state.created.model or model.preference
        self._fallback = model.fallback or ""
        self._added: Added = ()
        self._kept: tuple[Live, str] | None = None
        self._tried = 0
        self.rate = session.calibration.rate

    async def begin(self) -> None:
        """Takes what the turn's first request was built from; what was edited since counts from the next turn on."""
        contract, state = self._desk.contract, self._history.state
        first = await self._sent_live("") if self._history.answers or state.open else None
        self.system = self._desk.system if first is None else first.system
        self._window = await self._narrowest() if first is None else first.context_window
        self.limits = limits_of(contract.context, self._window, contract.model.max_output_tokens)
        self._builder = Builder(self.limits)

    async def ask(self, turn: Turn, step: int, added: Added = ()) -> Heard:
        """What the model says at a step; `added` are blocks that hooks put into its request."""
        self._tried, self._added = 0, added
        heard = msgspec.json.decode(await self._reply(turn, step), type=Heard)
        self.rate = lowered(self.rate, heard.sample)
        return heard

    async def ask_critic(self, effect: str, model: str, args: bytes) -> bytes:
        """What the critic's model says: on record, or asked now; a question that was lost is asked again as it was."""
        lost = self._history.state.open.get(effect)
        if lost is not None:
            args = bytes(await unpack(self._services.ledger, lost.args))
        return await self._calls.make(
            Wanted(effect, "model", model, args, need=self._services.need(args)),
            lambda leave, tab: self._services.generate(args, leave.hold, tab),
        )

    async def _reply(self, turn: Turn, step: int) -> bytes:
        """The answer at a step, as a new effect each time it is asked for.

        A try that was lost and may have been billed is made again as it was, and so is a request that was too long, in fewer
        bytes. What no model could answer is asked of the contract's fallback, which the rest of the turn stays with.
        """
        tries = lost = 0
        again = ""
        for number in count(1):
            effect = f"model:{step}" if number == 1 else f"model:{step}:{number}"
            try:
                return await self._ask_once(turn, step, effect, lost, again, is_last=tries == MAX_TRIES - 1)
            except AtlasError as error:
                is_complete = turn.partial and error.reason == "model_empty"
                if error.reason in _UNANSWERED and self._fallback and not is_complete:
                    self._model, self._fallback, tries, lost, again = self._fallback, "", 0, 0, ""
                    continue
                tries += 1
                is_too_long = error.reason == "model_overflow" and self.rate > LOWEST_RATE
                if tries == MAX_TRIES or not (is_too_long or error.reason == "model_budget"):
                    raise
                if is_too_long:
                    self.rate, again = lightened(self.rate), ""
                else:
                    lost, again = lost + 1, effect
        raise AssertionError

    async def _ask_once(self, turn: Turn, step: int, effect: str, lost: int, again: str, *, is_last: bool) -> bytes:
        if effect in self._history.answers and effect != self._wish.effect:
            return await self._calls.make(Wanted(effect, "model", "", b"null"), _never)
        live = (await self._sent_live(again) if again else None) or await self._live(effect)
        built = self._builder.build(turn, live)
        if effect == self._wish.effect:
            sent = self._wish.intents.get(effect)
            raise Reached(replace(built, request=granted(built.request, sent.hold if sent is not None else None)))
        args = _ENCODER.encode(
            {
                "step": step,
                "live": await self._keep_live(live),
                "request": hashlib.sha256(built.raw).hexdigest(),
                "tokens": built.tokens,
                "blocks": [[one.block, one.grade, one.tokens] for one in built.choices],
            }
        )
        self._check_rebuilt(effect, args)
        need = Need(live.model, _most_tokens(built), live.max_output_tokens, self._fallback)
        return await self._calls.make(
            Wanted(effect, "model", live.model, args, need=need),
            lambda leave, tab: self._perform_ask(built, leave.hold, tab, lost, is_last=is_last),
        )

    async def _live(self, effect: str) -> Live:
        """The live inputs of a request: recorded ones when it was sent before, else as they are now."""
        sent = self._history.state.open.get(effect) or self._wish.intents.get(effect)
        if sent is not None:
            return await self._recorded(sent)
        desk = self._desk
        schema = desk.contract.output.schema
        return Live(
            model=self._model,
            system=self.system,
            tools=tuple(tool.spec for tool in desk.tools.values()),
            files=await desk.files(),
            added=self._added,
            session=self._session,
            bytes_per_token=self.rate,
            max_output_tokens=self.limits.output,
            context_window=self._window,
            output_schema=schema or None,
        )

    async def _keep_live(self, live: Live) -> str:
        """Records the live inputs; the same ones are written once."""
        if self._kept is None or self._kept[0] != live:
            self._kept = (live, await self._services.ledger.put_blob(_ENCODER.encode(live)))
        return self._kept[1]

    def _check_rebuilt(self, effect: str, args: bytes) -> None:
        lost = self._history.state.open.get(effect)
        if lost is not None and lost.args_hash != hashlib.sha256(args).hexdigest():
            raise Fault(
                f"the request of {effect} cannot be built again as it was sent",
                hint="It was built by another version of Atlas; fork the run to go on from before it.",
                code="request_not_reproducible",
            )

    async def _perform_ask(self, built: Built, hold: Hold | None, tab: Tab, lost: int, *, is_last: bool) -> Effected:
        # A candidate whose answer was lost is not asked twice in a row when there is another.
        tab.first, tab.tried = lost, self._tried
        request = granted(built.request, hold)
        on_delta = self._services.on_delta(self._run_id)
        if request.output_schema is not None:  # a shape is no words: it is shown when it is whole and fits
            on_delta = wordless(on_delta)
        try:
            asked = await self._services.asker.ask(request.model, request, on_delta, tab)
        except AtlasError as error:
            if is_last:
                raise settled_by(error, tab) from error
            raise
        finally:
            self._tried = tab.tried + len(tab.attempts)
        heard = Heard(asked.reply, asked.model, asked.attempts, built.measure)
        return Effected(_ENCODER.encode(heard), model=asked.label)

    async def _sent_live(self, effect: str) -> Live | None:
        """What the request of an effect was built from, or without one the first of the turn; None when it was not sent.

        The first need not be `model:1`: that may have been refused, and a fork begins with a later one.
        """
        for _, body in bodies(await self._services.ledger.events(self._run_id)):
            if isinstance(body, EffectIntended) and body.effect.startswith("model:") and effect in ("", body.effect):
                return await self._recorded(body)
        return None

    async def _recorded(self, intent: EffectIntended) -> Live:
        ledger = self._services.ledger
        args = msgspec.json.decode(await unpack(ledger, intent.args))
        return msgspec.json.decode(await ledger.get_blob(args["live"]), type=Live)

    async def _narrowest(self) -> int:
        """How many tokens every model that may answer can take, as far as is known; 0 when nothing is."""
        windows = [await self._services.window(one) for one in (self._model, self._fallback) if one]
        return min(filter(None, windows), default=0)


def granted(request: Request, hold: Hold | None) -> Request:
    """The request as it is sent: to the model that was granted, with the limit to its answer that was granted."""
    if hold is None or not hold.model:
        return request
    return replace(request, model=hold.model, max_output_tokens=hold.max_output_tokens)


def _most_tokens(built: Built) -> int:
    """How many tokens a request may be counted as: rather too many, because it is what gets reserved."""
    return max(built.tokens, -(-len(built.raw) // _BYTES_PER_TOKEN))


async def _never(leave: Perform, tab: Tab) -> Effected:
    raise Fault("a recorded model call was about to be asked again", code="asked_twice")
