"""Policies as they were: kept by version when they first decide something, so that a replay can decide again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from atlas.kernel.code import CallMade
from atlas.kernel.errors import NotFound
from atlas.kernel.gate import Standing
from atlas.kernel.policy import CompiledPolicy, Policy, Proposal, Ruling, document, policy_of, rule_for, rule_for_models
from atlas.kernel.port import Ledger
from atlas.kernel.rule import Layer
from atlas.kernel.rule_table import Holds
from atlas.kernel.state import State


class Shelf:
    """The policies of a ledger, by version."""

    def __init__(self, ledger: Ledger, current: Callable[[], CompiledPolicy], holds: Holds) -> None:
        self._ledger = ledger
        self._current = current
        self._holds = holds
        self._kept: set[str] = set()
        self._read: dict[str, CompiledPolicy] = {}

    def require(self) -> None:
        """Raises PolicyRefused while the policy cannot be read."""
        self._current()

    async def keep(self, version: str) -> None:
        """Makes sure that the policy behind a decision that is about to be recorded can be read again."""
        if not version or version in self._kept:
            return
        policy = self._current()
        if policy.version == version:
            await self._ledger.put_blob(document(policy.policy))
            self._kept.add(version)

    async def authority(self, version: str, answered_by: str, models: tuple[str, ...] = ()) -> PastAuthority:
        """The authority as it was when a decision was recorded; NotFound when its policy was not kept."""
        if version not in self._read:
            try:
                kept = msgspec.json.decode(await self._ledger.get_blob(version), type=Policy)
            except NotFound:
                raise NotFound(f"the policy {version[:12]} was not kept", code="policy_gone") from None
            self._read[version] = CompiledPolicy(policy_of(kept.layers))
        return PastAuthority(self._read[version], self._holds, answered_by, models)


class PastAuthority:
    """Rules by a policy that is past. That a mandate or a grant was there is a fact outside the run, taken as given."""

    def __init__(self, policy: CompiledPolicy, holds: Holds, answered_by: str, models: tuple[str, ...]) -> None:
        self._policy = policy
        self._holds = holds
        self._answered_by = answered_by
        self._models = models

    def rule(self, state: State, call: CallMade) -> Ruling:
        """What all layers together said of the call, for the run and for everybody it descends from."""
        created, narrow = state.created, state.created.narrow
        own = () if narrow is None else (Layer("run", allow=narrow.allow, deny=narrow.deny),)
        proposal = Proposal(
            call.kind,
            call.name,
            call.effect_class,
            msgspec.json.decode(call.args),
            created.agent,
            state.principal,
            call.name if call.kind == "model" else "",
            project="" if narrow is None else narrow.project,
        )
        if call.kind != "model":
            return rule_for(created.lineage, proposal, self._policy, self._holds, own)
        return rule_for_models(created.lineage, proposal, self._models, self._policy, self._holds, own)

    def standing(self, state: State, call: CallMade, now_us: int) -> Standing | None:
        """What answered then."""
        is_standing = self._answered_by.startswith(("mandate:", "grant:"))
        return Standing(self._answered_by, "") if is_standing else None
