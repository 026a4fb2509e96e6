"""What installed packages offer to Atlas by entry point. Nothing of a package is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def plugins(group: str) -> dict[str, Callable[[], Any]]:
    """Every offer of the group by its name; calling it imports the package."""
    from importlib import metadata

    return {entry.name: entry.load for entry in metadata.entry_points(group=group)}
