"""Time zones by name, from the system or the tzdata package."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, tzinfo

from atlas.kernel.errors import Invalid


def zone_named(name: str) -> tzinfo | None:
    """The zone; None when there is none of that name."""
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def zone_of(name: str) -> tzinfo:
    """The zone in which days and months begin and end; Invalid when there is none of that name."""
    zone = zone_named(name)
    if zone is None:
        raise Invalid(
            f"there is no time zone {name!r} on this machine",
            hint="Write time_zone as in Europe/Berlin; where no zones are installed: pip install tzdata.",
            code="bad_time_zone",
        )
    return zone
