"""Time zones by name, from the system or the tzdata package."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, tzinfo


def zone_named(name: str) -> tzinfo | None:
    """The zone; None when there is none of that name."""
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None
