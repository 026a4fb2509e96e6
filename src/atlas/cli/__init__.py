"""The terminal: commands that parse words, call use cases and print. No rules live here.

`root` is loaded when it is used: what says that a command was interrupted must not need it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what `typing` calls so, without the time that importing it takes
if TYPE_CHECKING:
    from typing import Any

    from atlas.cli.entry import root as root

__all__ = ["root"]


def __getattr__(name: str) -> Any:
    if name != "root":
        raise AttributeError(f"module 'atlas.cli' has no attribute {name!r}")
    from atlas.cli.entry import root

    return root
