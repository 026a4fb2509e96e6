"""Identifiers: a prefix and a UUIDv7, so that ids sort by the time they were made."""

from __future__ import annotations

RUN = "run_"
SESSION = "ses_"
SIGNAL = "sig_"
LEDGER = "led_"


def new_id(prefix: str, now_us: int, entropy: bytes) -> str:
    """An id that sorts by `now_us` and is unique by `entropy` (10 random bytes)."""
    millis = now_us // 1000
    # 12 bits of the sub-millisecond part keep ids of one process in order within a millisecond.
    fine = (now_us % 1000) * 4096 // 1000
    tail = int.from_bytes(entropy[:8], "big") & ((1 << 62) - 1)
    value = (millis & ((1 << 48) - 1)) << 80 | 0x7 << 76 | fine << 64 | 0b10 << 62 | tail
    return f"{prefix}{value:032x}"
