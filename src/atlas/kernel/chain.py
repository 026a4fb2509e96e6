"""The hash chain of a run: what makes an altered, missing or truncated event visible.

A body is hashed with a salt of its own, and the chain hashes the envelope with that digest. Erasing a body
drops body and salt; the digest stays, so the chain still holds and the erased text cannot be guessed from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from atlas.kernel.event import Draft, Event

GENESIS: Final = b"\0" * 32
SALT_BYTES: Final = 16


class Finding(msgspec.Struct, frozen=True):
    """The first thing wrong with a chain: altered, missing or truncated, and where."""

    kind: str
    run_id: str
    seq: int
    message: str


def body_digest(salt: bytes, body: bytes) -> bytes:
    """The digest of a body that cannot be reversed without its salt."""
    return hashlib.sha256(salt + body).digest()


def envelope_hash(
    prev: bytes,
    run_id: str,
    seq: int,
    position: int,
    time_us: int,
    kind: str,
    version: int,
    principal: str,
    digest: bytes,
) -> bytes:
    """The hash that the next event of the run names as its predecessor."""
    # Fields are separated by a byte that cannot occur in any of them, so no two envelopes share a preimage.
    text = f"{run_id}\0{seq}\0{position}\0{time_us}\0{kind}\0{version}\0{principal}\0"
    return hashlib.sha256(prev + digest + text.encode()).digest()


def seal(draft: Draft, run_id: str, seq: int, position: int, prev: bytes, salt: bytes) -> Event:
    """`draft` in its envelope, at its place."""
    [event] = seal_all((draft,), run_id, seq - 1, position - 1, prev, salt)
    return event


def seal_all(drafts: Sequence[Draft], run_id: str, seq: int, position: int, prev: bytes, salts: bytes) -> list[Event]:
    """The drafts in their envelopes, one behind the other, after the event at `seq` and `position` whose hash is `prev`.

    `salts` has `SALT_BYTES` for each.
    """
    events: list[Event] = []
    for number, draft in enumerate(drafts):
        seq += 1
        position += 1
        salt = salts[number * SALT_BYTES : (number + 1) * SALT_BYTES]
        time_us, kind, version, principal, body = draft.time_us, draft.kind, draft.version, draft.principal, draft.body
        digest = body_digest(salt, body)
        link = envelope_hash(prev, run_id, seq, position, time_us, kind, version, principal, digest)
        sealed = Event(run_id, seq, position, time_us, kind, version, principal, digest, prev, link, salt, body)
        events.append(sealed)
        prev = link
    return events


def check_chain(run_id: str, events: Iterable[Event], head_seq: int, head_hash: bytes) -> Finding | None:
    """The first break in a run's events, or None when they lead unbroken from the genesis to the recorded head."""
    prev = GENESIS
    seq = 0
    for event in events:
        seq += 1
        if event.seq != seq:
            return Finding("missing", run_id, seq, f"event {seq} is missing; the next one stored is {event.seq}")
        if event.prev != prev:
            return Finding("altered", run_id, seq, f"event {seq} does not name event {seq - 1} as its predecessor")
        expected = envelope_hash(
            prev,
            run_id,
            event.seq,
            event.position,
            event.time_us,
            event.kind,
            event.version,
            event.principal,
            event.digest,
        )
        if expected != event.hash:
            return Finding("altered", run_id, seq, f"the envelope of event {seq} was altered")
        if event.salt and body_digest(event.salt, event.body) != event.digest:
            return Finding("altered", run_id, seq, f"the body of event {seq} was altered")
        if not event.salt and event.body:
            return Finding("altered", run_id, seq, f"event {seq} is marked erased but has a body")
        prev = event.hash
    if seq < head_seq:
        return Finding("truncated", run_id, seq + 1, f"events {seq + 1} to {head_seq} are gone from the end")
    if seq > head_seq or prev != head_hash:
        return Finding("altered", run_id, seq, "the recorded head of the run does not match its last event")
    return None
