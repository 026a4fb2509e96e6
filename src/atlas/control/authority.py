"""The authority of a vault: the rules that are in force at this moment, and the mandates that answer in their place.

Implements the gate's `Authority` over files that may change at any time. A change counts from the next effect on,
also for runs under way: what was tightened is tight at once. What cannot be read refuses, and is read again for the next
effect. Decisions themselves are the kernel's; here is only what they are made from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from atlas.kernel.code import CallMade
from atlas.kernel.contract import Tools
from atlas.kernel.gate import Standing
from atlas.kernel.mandate import Mandate, Zones, answers
from atlas.kernel.policy import (
    CompiledPolicy,
    Policy,
    Proposal,
    Ruling,
    minds_arguments,
    policy_of,
    rule_for,
    rule_for_models,
)
from atlas.kernel.rule import Ancestor, Layer
from atlas.kernel.rule_table import Holds
from atlas.kernel.state import State

T = TypeVar("T")


class Files(Protocol):
    """Where policies, lists of tools and mandates are written; each with a stamp that changes when it does.

    Reading raises PolicyRefused (policy_unreadable) for what is there and cannot be read.
    """

    def stamp(self) -> object: ...
    def policy(self) -> Policy: ...
    def tools_stamp(self, agent: str) -> object: ...
    def tools(self, agent: str) -> Tools | None: ...
    def mandates_stamp(self, agent: str) -> object: ...
    def mandates(self, agent: str) -> tuple[Mandate, ...]: ...


class NoFiles:
    """A host without a vault: no rules but the floor, and no mandates."""

    def stamp(self) -> object:
        """Never changes."""
        return None

    def policy(self) -> Policy:
        """The floor alone."""
        return policy_of(())

    def tools_stamp(self, agent: str) -> object:
        """Never changes."""
        return None

    def tools(self, agent: str) -> Tools | None:
        """No lists but those of the contract that a run pins."""
        return None

    def mandates_stamp(self, agent: str) -> object:
        """Never changes."""
        return None

    def mandates(self, agent: str) -> tuple[Mandate, ...]:
        """None."""
        return ()


def no_zone(name: str) -> tzinfo | None:
    """Knows no zones but UTC, so that a mandate with another one answers nothing."""
    return UTC if name == "UTC" else None


class FileAuthority:
    """Rules by what the files say now. Sync, and as pure as files allow: same files, same answers."""

    def __init__(
        self,
        files: Files,
        holds: Holds,
        *,
        zones: Zones = no_zone,
        zone: tzinfo = UTC,
        server_of: Callable[[str], str] = lambda name: "",
        candidates: Callable[[str], Sequence[str]] = lambda choice: (),
    ) -> None:
        self._files = files
        self._holds = holds
        self._zones = zones
        self._zone = zone
        self._server_of = server_of
        self._candidates = candidates
        self._policy = _Fresh(lambda: CompiledPolicy(files.policy()))
        self._tools: dict[str, _Fresh[Tools | None]] = {}
        self._mandates: dict[str, _Fresh[tuple[Mandate, ...]]] = {}

    def policy(self) -> CompiledPolicy:
        """The policy as it is now; PolicyRefused when it cannot be read."""
        return self._policy.at(self._files.stamp())

    def rule(self, state: State, call: CallMade) -> Ruling:
        """What all layers together say of the call, for the run and for everybody it descends from."""
        created = state.created
        live = self.tools(created.agent)
        policy = self.policy()
        is_model = call.kind == "model"
        server = self._server_of(call.name) if call.kind == "tool" else ""
        models = tuple(self._candidates(call.name)) if is_model else ()
        # Everything that a ruling depends on beside the policy, the arguments apart.
        key = (
            *(call.kind, call.name, call.effect_class, server, models),
            *(created.agent, state.principal, created.narrow, created.lineage, live),
        )
        ruling = policy.recall(key)
        if ruling is not None:
            return ruling
        own = _own_layers(live, created.narrow)
        proposal = self.proposal(state, call)
        if is_model:
            ruling = rule_for_models(created.lineage, proposal, models, policy, self._holds, own)
        else:
            ruling = rule_for(created.lineage, proposal, policy, self._holds, own)
        if not minds_arguments(created.lineage, proposal, models, policy):
            policy.keep(key, ruling)
        return ruling

    def standing(self, state: State, call: CallMade, now_us: int) -> Standing | None:
        """The mandate that answers in a person's place; never for what is denied."""
        mandates = self.mandates(state.created.agent)
        if not mandates:
            return None
        ruling = self.rule(state, call)
        granted = answers(self.proposal(state, call), ruling, mandates, now_us, self._zones, self._zone)
        if granted is None:
            return None
        return Standing(
            id=f"mandate:{granted.mandate}",
            by=granted.by,
            amount_micro_usd=granted.amount_micro_usd,
            meters=granted.meters,
            caps=granted.caps,
            uses=granted.uses,
        )

    def tools(self, agent: str) -> Tools | None:
        """The lists of tools in the agent's contract as it is now."""
        fresh = self._tools.get(agent)
        if fresh is None:
            fresh = self._tools[agent] = _Fresh(lambda: self._files.tools(agent))
        return fresh.at(self._files.tools_stamp(agent))

    def mandates(self, agent: str) -> tuple[Mandate, ...]:
        """The mandates that the agent may use now."""
        fresh = self._mandates.get(agent)
        if fresh is None:
            fresh = self._mandates[agent] = _Fresh(lambda: self._files.mandates(agent))
        return fresh.at(self._files.mandates_stamp(agent))

    def proposal(self, state: State, call: CallMade) -> Proposal:
        """The call as rules see it."""
        return Proposal(
            call.kind,
            call.name,
            call.effect_class,
            _decoded(call.args),
            state.created.agent,
            state.principal,
            call.name if call.kind == "model" else "",
            self._server_of(call.name) if call.kind == "tool" else "",
            state.created.narrow.project if state.created.narrow is not None else "",
        )


class _Fresh(Generic[T]):
    """A value that is made again when its stamp changes, and whenever making it failed."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._stamp: object = None
        self._value: tuple[T] | None = None

    def at(self, stamp: object) -> T:
        """The value of this stamp. The stamp was taken before reading, so a change meanwhile is seen next time."""
        if self._value is None or self._stamp != stamp:
            self._value = None
            self._value = (self._make(),)
            self._stamp = stamp
        return self._value[0]


def _own_layers(live: Tools | None, narrow: Ancestor | None) -> list[Layer]:
    """The lists of the agent's contract as it is now, and of what its run was narrowed to."""
    own = [] if live is None else [Layer("agent", allow=live.allow, deny=live.deny)]
    return own if narrow is None else [*own, Layer("run", allow=narrow.allow, deny=narrow.deny)]


def _decoded(args: msgspec.Raw) -> Any:
    return msgspec.json.decode(args)
