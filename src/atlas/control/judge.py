"""Second opinions on effects, before anything is done about them: from patterns, or from a model with its own budget.

An opinion can only narrow. Whatever keeps one from being had (no money, no answer, no model) is an opinion too: block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from atlas.control.calls import spend_of, tab_for
from atlas.control.generate import Wanted, need_of
from atlas.control.record import Record
from atlas.control.world import Bounds, Effected, Judged
from atlas.kernel import judge
from atlas.kernel.budget import Quote, Reservation, Settlement, micro_usd
from atlas.kernel.code import CallMade
from atlas.kernel.errors import AtlasError, StaleLease
from atlas.kernel.event import INLINE_LIMIT, NO_SPEND, NULL, EffectJudged, Payload
from atlas.kernel.gate import Authority
from atlas.kernel.hold import Cap, Hold, Meter
from atlas.kernel.model import Tab
from atlas.kernel.policy import Proposal, Ruling
from atlas.kernel.rule import Judging
from atlas.kernel.rule_table import Holds
from atlas.kernel.run import Append
from atlas.kernel.state import State


class Proposing(Authority, Protocol):
    """An authority that can say how rules see a call."""

    def proposal(self, state: State, call: CallMade) -> Proposal:
        """The call as rules see it."""
        ...


class Judges:
    """Gives second opinions for the runs of a host."""

    def __init__(
        self,
        authority: Proposing,
        holds: Holds,
        generate: Callable[[bytes, Hold | None, Tab], Awaitable[Effected]],
        bounds: Callable[[State, int], Awaitable[Bounds]],
        quote: Callable[[str, int], Awaitable[Quote]],
    ) -> None:
        self._authority = authority
        self._holds = holds
        self._generate = generate
        self._bounds = bounds
        self._quote = quote

    async def consult(self, record: Record, call: CallMade, ruling: Ruling) -> Judged:
        """What all judges that the rules want come to together."""
        proposal = self._authority.proposal(record.state, call)
        opinions: list[judge.Verdict] = []
        settled: list[Settlement] = []
        for number, judging in enumerate(ruling.judges):
            if judging.by == "rules":
                opinions.append(judge.by_rules(judging, proposal, ruling, self._holds))
                continue
            opinion, settlement = await self._ask(record, call, f"{call.effect}#{number}", judging, proposal, ruling)
            opinions.append(opinion)
            settled += [] if settlement is None else [settlement]
        found = judge.narrowed(opinions)
        raw = msgspec.json.encode(found.args)
        if len(raw) > INLINE_LIMIT:
            found = judge.failed("the arguments it wants instead are too large", proposal, ruling, found.by)
        args = NULL if found.word != "revise" else Payload(msgspec.Raw(raw), size=len(raw))
        spend = NO_SPEND
        for one in settled:
            spend = spend.plus(one.spend)
        fact = EffectJudged(
            call.effect, call.args_hash, found.word, found.by, found.reason, args, found.policy_version, spend
        )
        return Judged(call, fact, tuple(settled))

    async def _ask(
        self, record: Record, call: CallMade, name: str, judging: Judging, proposal: Proposal, ruling: Ruling
    ) -> tuple[judge.Verdict, Settlement | None]:
        """One model's opinion, paid from its own budget and from the run's."""
        question = judge.request(judging, proposal, ruling)
        wanted = Wanted(question.model, question.message, question.schema, question.system, max_output_tokens=500)
        args = msgspec.json.encode(wanted)
        asking = CallMade(0, name, "model", question.model, msgspec.Raw(args), "", "read_only")
        try:
            said = self._authority.rule(record.state, asking)
            if said.decision != "allow":
                why = f"the rules {said.decision} its model: {said.reason}"
                return judge.failed(why, proposal, ruling, judging.model), None
            hold, effect = await self._reserve(record, call, name, judging, args)
        except StaleLease:
            raise
        except AtlasError as error:
            return judge.failed(error.message, proposal, ruling, judging.model), None
        tab = tab_for(hold)
        try:
            async with asyncio.timeout(judging.timeout_s):
                done = await self._generate(args, hold, tab)
            opinion = judge.verdict(done.result, proposal, ruling, done.model)
        except TimeoutError:
            opinion = judge.failed(f"none within {judging.timeout_s:g} s", proposal, ruling, judging.model)
        except AtlasError as error:
            opinion = judge.failed(error.message, proposal, ruling, judging.model)
        return opinion, Settlement(effect, spend_of(tab.attempts), hold.model, tab.is_estimated)

    async def _reserve(
        self, record: Record, call: CallMade, name: str, judging: Judging, args: bytes
    ) -> tuple[Hold, str]:
        state, now_us = record.state, record.clock.now_us()
        bounds, need = await self._bounds(state, now_us), need_of(args)
        quote = await self._quote(need.model, need.tokens_in)
        meters, caps = bounds.meters, bounds.caps
        if judging.usd_per_day is not None:
            scope = f"judge/{state.principal}/{state.created.agent}"
            meters = (*meters, Meter(scope, bounds.day))
            limit = micro_usd(judging.usd_per_day)
            caps = (*caps, Cap("judge usd_per_day", scope, bounds.day, bounds.day, limit))
        hold = Hold(
            quote(need.max_output_tokens),
            need.tokens_in + need.max_output_tokens,
            need.max_output_tokens,
            need.model,
            meters,
            bounds.day,
            is_price_guessed=bool(quote.guessed),
            is_capped=True,
            asks=need.asks,
        )
        # A name for each attempt under each lease, whose first event may be lost in a crash that leaves the hold: what
        # is left reserved is settled in full when the run ends.
        effect = f"judge:{name}:{record.lease.generation}.{state.attempt}"
        await record.ledger.append(Append(lease=record.lease, reserve=Reservation(effect, hold, caps)))
        return hold, effect
