"""The contract of the port `Ledger`, as cases that every adapter must pass.

An author provides a rig (one empty store and its time) and runs each case on a new one:

    @pytest.mark.parametrize("case", ledger.cases(can_jump=True, has_peers=True, can_lock=True))
    def test_my_ledger(case, tmp_path):
        asyncio.run(case.check(MyRig(tmp_path)))
"""

from __future__ import annotations

from types import ModuleType

from atlas.testing import (
    ledger_append,
    ledger_budget,
    ledger_lease,
    ledger_queue,
    ledger_random,
    ledger_read,
    ledger_signal,
    ledger_submit,
    ledger_wake,
)
from atlas.testing.ledger_rig import Case, Rig

__all__ = ["Case", "Rig", "cases"]


def cases(*, can_jump: bool, has_peers: bool, can_lock: bool) -> list[Case]:
    """Every case that a rig can play, by what it can do: let minutes pass at once, open its store twice, lock it."""
    modules: tuple[ModuleType, ...] = (
        *(ledger_lease, ledger_queue, ledger_signal, ledger_submit, ledger_append, ledger_read, ledger_wake),
        ledger_budget,
    )
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Case)]
    found += [*ledger_budget.RANDOM_BUDGETS, *ledger_random.RANDOM_CASES]
    able = {"": True, "jump": can_jump, "peers": has_peers, "lock": can_lock}
    return [case for case in found if able[case.needs]]
