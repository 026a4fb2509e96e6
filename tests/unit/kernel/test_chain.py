"""The chain names the first altered, missing or truncated event, and survives erasure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from atlas.kernel.chain import GENESIS, check_chain, envelope_hash, seal
from atlas.kernel.event import Draft, Event


def chain(length: int) -> list[Event]:
    events: list[Event] = []
    prev = GENESIS
    for seq in range(1, length + 1):
        draft = Draft("logged", 1000 + seq, "owner", b'{"message":"%d"}' % seq)
        event = seal(draft, "run_1", seq, 10 + seq, prev, bytes([seq]) * 16)
        events.append(event)
        prev = event.hash
    return events


def finding(events: list[Event], head: Event) -> tuple[str, int] | None:
    found = check_chain("run_1", events, head.seq, head.hash)
    return (found.kind, found.seq) if found else None


def test_an_untouched_chain_is_sound() -> None:
    events = chain(5)
    assert finding(events, events[-1]) is None


ALTERATIONS = {
    "body": b'{"message":"x"}',
    "time_us": 5,
    "kind": "run.ended",
    "principal": "mallory",
    "position": 99,
    "version": 2,
    "digest": b"\1" * 32,
    "hash": b"\1" * 32,
    "prev": b"\1" * 32,
    "salt": b"\xff" * 16,
}


@pytest.mark.parametrize("field", sorted(ALTERATIONS))
@given(at=st.integers(1, 5))
def test_any_altered_field_is_found_where_it_is(field: str, at: int) -> None:
    events = chain(5)
    head = events[-1]
    events[at - 1] = replace(events[at - 1], **{field: ALTERATIONS[field]})
    assert finding(events, head) == ("altered", at)


@given(at=st.integers(1, 4))
def test_a_missing_event_is_named(at: int) -> None:
    events = chain(5)
    head = events[-1]
    del events[at - 1]
    assert finding(events, head) == ("missing", at)


@given(left=st.integers(0, 4))
def test_a_truncated_tail_is_named(left: int) -> None:
    events = chain(5)
    assert finding(events[:left], events[-1]) == ("truncated", left + 1)


def test_a_forged_tail_does_not_reach_the_recorded_head() -> None:
    events = chain(5)
    head = events[-1]
    forged = seal(Draft("logged", 1, "owner", b"{}"), "run_1", 5, 15, events[3].hash, b"s" * 16)
    assert finding([*events[:4], forged], head) == ("altered", 5)


def test_an_erased_body_keeps_the_chain_sound() -> None:
    events = chain(5)
    events[2] = replace(events[2], body=b"", salt=b"")
    assert finding(events, events[-1]) is None
    events[2] = replace(events[2], body=b"{}")
    assert finding(events, events[-1]) == ("altered", 3)


def test_envelopes_that_read_alike_when_joined_hash_differently() -> None:
    one = envelope_hash(GENESIS, "run_1", 11, 1, 1, "k", 1, "p", GENESIS)
    two = envelope_hash(GENESIS, "run_1", 1, 11, 1, "k", 1, "p", GENESIS)
    assert one != two
