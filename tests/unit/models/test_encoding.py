"""Encodings: equal things are found, memory is bounded, and what is in use stays."""

from __future__ import annotations

from atlas.kernel.model import Message, Text
from atlas.models.encoding import Encodings


def message(text: str) -> Message:
    return Message("user", (Text(text),))


def test_equal_messages_share_their_bytes() -> None:
    kept = Encodings()
    assert kept.find(message("a")) is None
    data = kept.keep(message("a"), b"bytes")
    assert kept.find(message("a")) is data
    assert kept.find(message("b")) is None


def test_number_of_entries_is_bounded() -> None:
    kept = Encodings(limit_entries=10)
    for number in range(1000):
        kept.keep(number, b"x")
        assert len(kept) <= 10
    assert kept.find(999) == b"x"
    assert kept.find(900) is None


def test_bytes_are_bounded_and_too_large_ones_are_not_kept() -> None:
    kept = Encodings(limit_bytes=1000)
    assert kept.keep("huge", b"x" * 501) == b"x" * 501
    assert kept.find("huge") is None
    for number in range(100):
        kept.keep(number, b"x" * 100)
        assert len(kept) <= 10


def test_what_is_asked_for_again_and_again_is_never_forgotten() -> None:
    kept = Encodings(limit_entries=10)
    kept.keep("system", b"s")
    for number in range(1000):
        kept.keep(number, b"x")
        assert kept.find("system") == b"s"
