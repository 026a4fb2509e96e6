"""The contract of the port `ToolHost`, as cases that every adapter must pass.

An author provides a rig (a new host that holds the tools of `tool_host_tools`) and runs each case on a new one:

    @pytest.mark.parametrize("case", tool_host.cases(can_kill=True))
    def test_my_tool_host(case, tmp_path):
        asyncio.run(case.check(MyRig(tmp_path)))
"""

from __future__ import annotations

from atlas.testing import tool_host_call, tool_host_stop
from atlas.testing.tool_host_rig import Case, Rig

__all__ = ["Case", "Rig", "cases"]


def cases(*, can_kill: bool) -> list[Case]:
    """Every case that a host can play: `can_kill` when its tools run in processes that it can end."""
    modules = (tool_host_call, tool_host_stop)
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Case)]
    return [case for case in found if can_kill or not case.needs_kill]
