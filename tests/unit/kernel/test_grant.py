"""A remembered grant answers for exactly one call pattern, and for nothing that differs from it in any part."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from atlas.kernel.code import CallMade
from atlas.kernel.event import NULL, RunCreated
from atlas.kernel.grant import Grant, find_grant, hash_of
from atlas.kernel.state import State, initial

ARGS = b'{"to":"ann"}'
CALL = CallMade(1, "tool:1", "tool", "send", msgspec.Raw(ARGS), hash_of(ARGS), "external_side_effect", definition="d1")
GRANT = Grant(
    id="g-1",
    agent="clerk",
    principal="owner",
    kind="tool",
    name="send",
    args_hash=hash_of(ARGS),
    shown_hash=hash_of(ARGS),
    definition="d1",
    session_id="ses_1",
    granted_by="owner",
    granted_us=1,
)


def run(run_id: str = "run_1", principal: str = "owner", agent: str = "clerk", session: str = "ses_1") -> State:
    return initial(run_id, principal, RunCreated(agent, "1.0.0", NULL, "", session, ""))


def changed(**parts: Any) -> CallMade:
    return msgspec.structs.replace(CALL, **parts)


def test_it_answers_for_the_call_that_was_shown() -> None:
    assert find_grant([GRANT], run(), CALL) is GRANT
    assert find_grant([GRANT], run("run_2"), CALL) is GRANT


@pytest.mark.parametrize(
    "call",
    [
        changed(name="sendall"),
        changed(kind="step"),
        changed(definition="d2"),
        changed(definition=""),
        changed(args_hash=hash_of(b"{}")),
        changed(args=msgspec.Raw(b'{"to":"eve"}')),
        changed(args=msgspec.Raw(b'{"to": "ann"}')),
    ],
)
def test_another_call_is_asked_about(call: CallMade) -> None:
    assert find_grant([GRANT], run(), call) is None


@pytest.mark.parametrize("state", [run(principal="bob"), run(agent="other"), run(session="ses_2"), run(session="")])
def test_nobody_else_may_use_it(state: State) -> None:
    assert find_grant([GRANT], state, CALL) is None


def test_one_for_a_run_ends_with_it() -> None:
    mine = msgspec.structs.replace(GRANT, run_id="run_1")
    assert find_grant([mine], run("run_1"), CALL) is mine
    assert find_grant([mine], run("run_2"), CALL) is None
