"""What a ledger says about its runs, as bytes that can be compared: one picture per commit, nothing between them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from atlas.kernel.chain import check_chain
from atlas.kernel.event import Event
from atlas.kernel.port import Ledger
from atlas.kernel.run import InboxItem, RunQuery, RunRow, Signal


class Picture(msgspec.Struct, frozen=True):
    """Everything stored about one run: row, events by hash, signals, inbox and children."""

    row: RunRow
    events: tuple[str, ...]
    signals: tuple[Signal, ...]
    inbox: tuple[InboxItem, ...]
    children: tuple[str, ...]


async def take(ledger: Ledger, run_id: str) -> bytes:
    """One run as the ledger has it now, while nothing happens to that run."""
    row = await ledger.run(run_id)
    children = (await ledger.runs(RunQuery(parent_run_id=run_id))).runs
    events, signals, items = await ledger.events(run_id), await ledger.signals(run_id), await ledger.inbox(run_id)
    return _develop(row, events, signals, items, children)


async def take_all(ledger: Ledger) -> dict[str, bytes]:
    """Every run of a ledger in which nothing happens; fails when the feed has a gap."""
    rows = (await ledger.runs(RunQuery(limit=1000))).runs
    feed = await ledger.feed(0, 0)
    assert [event.position for event in feed] == list(range(1, len(feed) + 1)), "the feed has a gap"
    assert len(feed) == sum(row.head_seq for row in rows), "the feed holds more or less than the runs"
    all_items = await ledger.inbox()
    pictures: dict[str, bytes] = {}
    for row in rows:
        events = [event for event in feed if event.run_id == row.run_id]
        items = [item for item in all_items if item.run_id == row.run_id]
        children = [other for other in rows if other.parent_run_id == row.run_id]
        pictures[row.run_id] = _develop(row, events, await ledger.signals(row.run_id), items, children)
    return pictures


def _develop(
    row: RunRow,
    events: Sequence[Event],
    signals: Sequence[Signal],
    items: Sequence[InboxItem],
    children: Sequence[RunRow],
) -> bytes:
    finding = check_chain(row.run_id, events, row.head_seq, row.head_hash)
    assert finding is None, finding
    summaries = (f"{event.position} {event.hash.hex()} {hashlib.sha256(event.body).hexdigest()}" for event in events)
    picture = Picture(row, tuple(summaries), tuple(signals), tuple(items), tuple(child.run_id for child in children))
    return msgspec.json.encode(picture)
