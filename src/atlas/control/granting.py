"""What a person let be remembered, beside the rules and the mandates: it answers an ASK, and never a DENY."""

from __future__ import annotations

from collections.abc import Callable

from atlas.control.judge import Proposing
from atlas.kernel.code import CallMade
from atlas.kernel.errors import Invalid, PolicyRefused
from atlas.kernel.gate import Standing
from atlas.kernel.grant import Grant, find_grant
from atlas.kernel.policy import Proposal, Ruling
from atlas.kernel.state import State


class GrantingAuthority:
    """An authority that knows remembered grants as well."""

    def __init__(self, inner: Proposing, grants: Callable[[], tuple[Grant, ...]]) -> None:
        self._inner = inner
        self._grants = grants

    def rule(self, state: State, call: CallMade) -> Ruling:
        """What all layers together say of the call."""
        return self._inner.rule(state, call)

    def standing(self, state: State, call: CallMade, now_us: int) -> Standing | None:
        """A grant for exactly this call, else a mandate; PolicyRefused when the grants cannot be read."""
        try:
            grants = self._grants()
        except Invalid as error:
            raise PolicyRefused(
                f"the remembered grants cannot be read: {error.message}",
                hint="Fix the file, or delete it: then a person is asked again.",
                where=error.where,
                code="policy_unreadable",
            ) from None
        grant = find_grant(grants, state, call)
        if grant is not None:
            return Standing(f"grant:{grant.id}", grant.granted_by)
        return self._inner.standing(state, call, now_us)

    def proposal(self, state: State, call: CallMade) -> Proposal:
        """The call as rules see it."""
        return self._inner.proposal(state, call)
