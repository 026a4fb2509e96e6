"""Atlas runs AI agents that live in a folder you own: durably, inside limits, under policy.

    from atlas import Atlas

    with Atlas("my-vault") as atlas:
        result = atlas.run("summarizer", {"text": "..."})

Importing this package touches no file, no network and no environment; names are loaded when used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what `typing` calls so, without the time that importing it takes
if TYPE_CHECKING:
    from typing import Any

    from atlas.api import Atlas as Atlas
    from atlas.control.report import Result as Result
    from atlas.engine.agent import AgentBase as AgentBase
    from atlas.engine.agent import AgentContext as AgentContext
    from atlas.engine.agent import Done as Done
    from atlas.kernel import errors as errors
    from atlas.kernel.errors import AtlasError as AtlasError
    from atlas.tools.agent import Agent as Agent
    from atlas.tools.tool import tool as tool

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "AgentBase",
    "AgentContext",
    "Atlas",
    "AtlasError",
    "Done",
    "Result",
    "__version__",
    "errors",
    "tool",
]

_HOMES = {
    "Agent": "atlas.tools.agent",
    "AgentBase": "atlas.engine.agent",
    "AgentContext": "atlas.engine.agent",
    "Atlas": "atlas.api",
    "AtlasError": "atlas.kernel.errors",
    "Done": "atlas.engine.agent",
    "Result": "atlas.control.report",
    "errors": "atlas.kernel",
    "tool": "atlas.tools.tool",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'atlas' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name) if name != "errors" else import_module("atlas.kernel.errors")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
