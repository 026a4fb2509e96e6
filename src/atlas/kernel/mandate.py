"""Mandates: written, bounded, revocable authority that answers an ASK in a person's place, and never a DENY.

The types are what `mandates.yaml` may say. `answers` is pure: it finds the mandate that covers a proposal now, and what
has to be reserved against it. Money and uses are counted by the budget's meters in the commit of the intent, so that
two runs never share the last dollar and a crash forgets nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, field

from atlas.kernel.contract import Finding, Part, Usd
from atlas.kernel.hold import Cap, Meter
from atlas.kernel.pattern import fits, fits_strictly, parse_path, select, texts
from atlas.kernel.policy import Proposal, Ruling
from atlas.kernel.rule import ArgPath, Glob, Globs, RuleId

Day: TypeAlias = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
Zones: TypeAlias = Callable[[str], tzinfo | None]
"""The zone of a name; None for a name that is none. Given from outside: zones lie in files."""

DAYS: Final[tuple[Day, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVER: Final = "\U0010ffff"
"""Behind every bucket in the order of text."""
MICRO: Final = 1_000_000
MAX_MICRO: Final = 10**15

Clock = Annotated[
    str,
    Meta(
        pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$|^24:00$",
        description="A time of day, HH:MM.",
        extra={"expected": 'a time of day, written "09:00"'},
    ),
]
Instant = Annotated[
    str,
    Meta(
        pattern=r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2}))?$",
        description="A day (its end, in the mandate's zone), or a time such as 2027-01-31T18:00:00Z.",
        extra={"expected": "a day such as 2027-01-31, or a time such as 2027-01-31T18:00:00Z"},
    ),
]
ZoneName = Annotated[str, Meta(min_length=1, max_length=64, description="A time zone, such as Europe/Berlin.")]


class Window(Part, frozen=True, omit_defaults=True):
    """When a mandate holds; outside of it a person is asked. A window whose end is before its start spans midnight."""

    days: Annotated[tuple[Day, ...], Meta(min_length=1, description="Days of the week on which it begins.")] = DAYS
    start: Annotated[Clock, Meta(description="From this time of day on.")] = "00:00"
    end: Annotated[Clock, Meta(description="Until this time of day, not included.")] = "24:00"


class Mandate(Part, frozen=True, omit_defaults=True):
    """What somebody lets agents do without being asked each time, and within which bounds."""

    id: RuleId
    granted_by: Annotated[str, Meta(min_length=1, max_length=128, description="Who answers for it.")]
    tools: Annotated[tuple[Glob, ...], Meta(min_length=1, description="Tools and steps it is for.")]
    agents: Annotated[tuple[Glob, ...], Meta(min_length=1, description="Agents that may use it.")] = ("*",)
    principals: Annotated[tuple[Glob, ...], Meta(min_length=1, description="On whose behalf.")] = ("*",)
    targets: Annotated[
        dict[ArgPath, Globs], Meta(description="Patterns that all values at a path of the arguments must fit.")
    ] = field(default_factory=dict)
    hazards: Annotated[
        tuple[Glob, ...], Meta(description="Rules of the floor it answers as well; otherwise those ask a person.")
    ] = ()
    window: Annotated[Window | None, Meta(description="When it holds; left out, always.")] = None
    zone: Annotated[ZoneName | None, Meta(description="The zone of its days and times; left out, time_zone.")] = None
    amount: Annotated[
        ArgPath | None, Meta(description="Where in the arguments the money is, in dollars: $.amount_usd.")
    ] = None
    usd_per_use: Annotated[Usd | None, Meta(description="Money moved by one use, at most.")] = None
    usd_per_day: Annotated[Usd | None, Meta(description="Money moved in a day, at most.")] = None
    usd_total: Annotated[Usd | None, Meta(description="Money moved under it altogether, at most.")] = None
    uses_per_day: Annotated[Annotated[int, Meta(ge=1, le=10**9)] | None, Meta(description="Uses in a day.")] = None
    expires_at: Annotated[Instant | None, Meta(description="From then on it is void.")] = None
    revoked: Annotated[bool, Meta(description="It is void from this moment on.")] = False
    reason: Annotated[str, Meta(max_length=1024, description="Why it was granted.")] = ""

    @property
    def limits_money(self) -> bool:
        """Whether what is moved under it is limited."""
        return any(limit is not None for limit in (self.usd_per_use, self.usd_per_day, self.usd_total))


class MandateFile(Part, frozen=True, omit_defaults=True):
    """The file `mandates.yaml`, of the vault or of one agent."""

    mandates: tuple[Mandate, ...] = ()

    def findings(self, zones: Zones) -> Iterator[Finding]:
        """Every rule over several keys that the file breaks."""
        seen: set[str] = set()
        for index, mandate in enumerate(self.mandates):
            at = ("mandates", index)
            if mandate.id in seen:
                yield Finding((*at, "id"), "duplicate_mandate", f"there is another mandate called {mandate.id}")
            seen.add(mandate.id)
            for found in _findings(mandate, zones):
                yield msgspec.structs.replace(found, path=(*at, *found.path))


class Granted(msgspec.Struct, frozen=True):
    """A mandate answers: what one use of it takes, and the caps that it must stay within."""

    mandate: str
    by: str
    amount_micro_usd: int = 0
    uses: int = 0
    meters: tuple[Meter, ...] = ()
    caps: tuple[Cap, ...] = ()


def answers(
    proposal: Proposal,
    ruling: Ruling,
    mandates: Sequence[Mandate],
    now_us: int,
    zones: Zones,
    default_zone: tzinfo = UTC,
) -> Granted | None:
    """The first mandate that covers the proposal now; None when a person must be asked.

    Nothing answers a DENY, nor a rule that wants a second person. What the floor asks about is answered only by a
    mandate that names the floor's rule.
    """
    if ruling.decision != "ask" or ruling.second_person or proposal.kind not in ("tool", "step"):
        return None
    asked = [spoke.rule for spoke in ruling.spoke if spoke.layer == "floor"]
    for mandate in mandates:
        if not covers(mandate, proposal) or not all(fits(rule, mandate.hazards) for rule in asked):
            continue
        zone = zones(mandate.zone) if mandate.zone else default_zone
        if zone is None or not is_in_force(mandate, now_us, zone):
            continue
        granted = _within(mandate, proposal.args, _local(now_us, zone).date().isoformat())
        if granted is not None:
            return granted
    return None


def covers(mandate: Mandate, proposal: Proposal) -> bool:
    """Whether the proposal is of the kind the mandate is about, whenever and however often."""
    if not (
        fits(proposal.name, mandate.tools)
        and fits(proposal.agent, mandate.agents)
        and fits(proposal.principal, mandate.principals)
    ):
        return False
    for text, patterns in mandate.targets.items():
        path = parse_path(text)
        wanted = (patterns,) if isinstance(patterns, str) else patterns
        if path is None:
            return False
        if not fits_strictly([each for part in select(proposal.args, path) for each in texts(part)], wanted):
            return False
    return True


def is_in_force(mandate: Mandate, now_us: int, zone: tzinfo) -> bool:
    """Whether it is neither revoked nor expired, and now is inside its window."""
    if mandate.revoked:
        return False
    now = _local(now_us, zone)
    if mandate.expires_at is not None and now >= _expiry(mandate.expires_at, zone):
        return False
    return mandate.window is None or _is_inside(mandate.window, now)


def _within(mandate: Mandate, args: Any, day: str) -> Granted | None:
    """What a use takes; None when the amount cannot be read or is more than one use may move."""
    amount = 0
    if mandate.amount is not None:
        found = _micro_usd(args, mandate.amount)
        if found is None or (mandate.usd_per_use is not None and found > _cap(mandate.usd_per_use)):
            return None
        amount = found
    scope, name = f"mandate/{mandate.id}", f"mandate {mandate.id}"
    caps: list[Cap] = []
    if mandate.usd_per_day is not None:
        caps.append(Cap(f"{name} usd_per_day", scope, day, day, _cap(mandate.usd_per_day)))
    if mandate.usd_total is not None:
        caps.append(Cap(f"{name} usd_total", scope, "", EVER, _cap(mandate.usd_total)))
    if mandate.uses_per_day is not None:
        caps.append(Cap(f"{name} uses_per_day", scope, day, day, None, mandate.uses_per_day))
    return Granted(mandate.id, mandate.granted_by, amount, 1, (Meter(scope, day),), tuple(caps))


def _micro_usd(args: Any, path: str) -> int | None:
    """The one amount at the path, rounded up; None when there is none, several, or not a sensible number."""
    steps = parse_path(path)
    found = list(select(args, steps)) if steps is not None else []
    if len(found) != 1 or isinstance(found[0], bool) or not isinstance(found[0], int | float | str):
        return None
    try:
        micro = (Decimal(str(found[0]).strip()) * MICRO).to_integral_value(ROUND_CEILING)
        return int(micro) if 0 <= micro <= MAX_MICRO else None
    except (InvalidOperation, OverflowError, ValueError):
        return None


def _cap(usd: float) -> int:
    return int(Decimal(str(usd)) * MICRO)


def _is_inside(window: Window, now: datetime) -> bool:
    minute = now.hour * 60 + now.minute
    start, end = _minutes(window.start), _minutes(window.end)
    today, yesterday = DAYS[now.weekday()], DAYS[(now.weekday() - 1) % 7]
    if start < end:
        return today in window.days and start <= minute < end
    return (today in window.days and minute >= start) or (yesterday in window.days and minute < end)


def _minutes(clock: str) -> int:
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)


def _expiry(text: str, zone: tzinfo) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else (moment + timedelta(days=1)).replace(tzinfo=zone)


def _local(now_us: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(now_us / 1_000_000, UTC).astimezone(zone)


def _findings(mandate: Mandate, zones: Zones) -> Iterator[Finding]:
    for path in mandate.targets:
        if parse_path(path) is None:
            yield Finding(("targets", path), "bad_path", f"{path} is not a path", "write $.key or key.inner[0]")
    if mandate.amount is not None and parse_path(mandate.amount) is None:
        yield Finding(("amount",), "bad_path", f"{mandate.amount} is not a path", "write $.amount_usd")
    if mandate.limits_money and mandate.amount is None:
        message = "a limit on money needs to know where in the arguments the money is"
        yield Finding(("id",), "missing_amount", message, "add amount: $.amount_usd")
    if mandate.zone is not None and zones(mandate.zone) is None:
        yield Finding(("zone",), "unknown_zone", f"there is no time zone {mandate.zone}", "write Area/City, or UTC")
    if mandate.window is not None and mandate.window.start == mandate.window.end:
        yield Finding(("window", "end"), "empty_window", "the window ends when it starts", "leave both out for all day")
    if mandate.expires_at is not None:
        try:
            _expiry(mandate.expires_at, UTC)
        except (ValueError, OverflowError):
            yield Finding(("expires_at",), "bad_value", f"there is no such day or time: {mandate.expires_at}")
    if "*" in mandate.tools and not mandate.targets:
        message = "a mandate for every tool and every target would answer for anything"
        yield Finding(("tools",), "mandate_too_wide", message, "name the tools, or give targets")
