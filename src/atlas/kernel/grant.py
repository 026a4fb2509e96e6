"""Remembered grants: a person's leave to do exactly this call again without being asked, in one run or session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from atlas.kernel.code import CallMade
from atlas.kernel.contract import Part
from atlas.kernel.state import State


class Grant(Part, frozen=True, omit_defaults=True):
    """Leave for one call pattern: this tool as it was defined, with exactly these arguments; never for a whole tool.

    `args_hash` is of the arguments the call was made with, `shown_hash` of those the person saw, which a second opinion may
    have changed. `run_id` is empty when it holds for the whole session. `shown` is the beginning of what they saw.
    """

    id: str
    agent: str
    principal: str
    kind: str
    name: str
    args_hash: str
    shown_hash: str
    definition: str
    session_id: str
    granted_by: str
    granted_us: int
    run_id: str = ""
    shown: str = ""


class GrantFile(Part, frozen=True, omit_defaults=True):
    """The file `grants.yaml` of a vault; taking an entry out of it revokes the grant."""

    grants: tuple[Grant, ...] = ()


def find_grant(grants: Iterable[Grant], state: State, call: CallMade) -> Grant | None:
    """The grant that answers in a person's place for this call of this run."""
    created = state.created
    wanted = (
        *(created.agent, state.principal, created.session_id),
        *(call.kind, call.name, call.args_hash, hash_of(call.args), call.definition),
    )
    for grant in grants:
        given = (
            *(grant.agent, grant.principal, grant.session_id),
            *(grant.kind, grant.name, grant.args_hash, grant.shown_hash, grant.definition),
        )
        if given == wanted and grant.run_id in ("", state.run_id):
            return grant
    return None


def hash_of(args: bytes | msgspec.Raw) -> str:
    """Names arguments by their exact bytes."""
    return hashlib.sha256(args).hexdigest()
