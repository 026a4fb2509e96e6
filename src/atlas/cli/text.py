"""Values as people read them. Nothing here touches a stream."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, TextIO

SHORT_ID: Final = 20  # run_ and 16 digits: the time to a quarter of a microsecond
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_NOT_ASCII: Final = re.compile("[^\x00-\x7f]+")

STATE_COLORS: Final[dict[str, str]] = {
    "succeeded": "green",
    "completed": "green",
    "identical": "green",
    "approved": "green",
    "ok": "green",
    "running": "cyan",
    "queued": "cyan",
    "waiting": "yellow",
    "in_doubt": "magenta",
    "warn": "yellow",
    "refused": "yellow",
    "denied": "yellow",
    "cancelled": "yellow",
    "cut_off": "yellow",
    "lost": "magenta",
    "abandoned": "red",
    "failed": "red",
    "fail": "red",
}


def clean(text: str) -> str:
    """`text` with every character that could steer a terminal made visible; line ends and tabs stay."""
    return _CONTROL.sub(_visible, text.replace("\r\n", "\n"))


def is_unicode(stream: TextIO) -> bool:
    """Whether every character can be written there."""
    return (stream.encoding or "").lower().startswith("utf")


def json_text(value: object, *, is_indented: bool = False, is_ascii: bool = False) -> str:
    """`value` as JSON, in which other characters than ASCII may be escaped for a stream that lacks them."""
    import json

    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2 if is_indented else -1).decode()
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text) if is_ascii else text


def one_line(text: str, width: int) -> str:
    """The first `width` characters of `text` on one line."""
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= width else flat[: max(0, width - 1)] + "…"


def short(identifier: str) -> str:
    """An id that is still unique in practice, and that every command takes."""
    return identifier[:SHORT_ID]


def duration(time_us: int) -> str:
    """A stretch of time, at most seven characters."""
    if time_us < 1_000:
        return f"{time_us}us"
    if time_us < 999_500:
        return f"{round(time_us / 1_000)}ms"
    seconds = time_us / 1_000_000
    if seconds < 10:
        return f"{seconds:.2f}s"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


def ago(time_us: int, now_us: int) -> str:
    """How long ago, in one unit."""
    seconds = max(0, now_us - time_us) // 1_000_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def local_time(time_us: int) -> str:
    """Date and time on the wall clock here."""
    return f"{datetime.fromtimestamp(time_us // 1_000_000, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def money(usd: float) -> str:
    """An amount of dollars; small ones keep four decimals, and what these cannot show all six that are counted."""
    if not usd:
        return "$0"
    if usd < 0.00005:
        return f"${usd:.6f}"
    return f"${usd:,.2f}" if usd >= 100 else f"${usd:.4f}"


def count(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
