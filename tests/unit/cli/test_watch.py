"""Watching the feed: nothing missed and nothing twice, whenever the reader stops."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from atlas.cli.watch import Watch
from atlas.kernel.event import Logged
from unit.cli.fake_host import FakeHost, make_events, make_row


def feed(host: FakeHost, *run_ids: str) -> None:
    for run_id in run_ids:
        host.rows.setdefault(run_id, make_row(run_id, agent=f"agent of {run_id}"))
    host.ledger.late = [
        msgspec.structs.replace(make_events(run_id, Logged(str(position)))[0], position=position)
        for position, run_id in enumerate(run_ids, 1)
    ]


async def read(watch: Watch, most: int = 100) -> list[str]:
    found: list[str] = []
    async for _, body in watch.pending():
        assert isinstance(body, Logged)
        found.append(body.message)
        if len(found) == most:
            break
    return found


def test_a_reader_that_stops_in_the_middle_goes_on_where_it_was(host: Any) -> None:
    feed(host, "run_a", "run_a", "run_a")

    async def scenario() -> list[list[str]]:
        watch = Watch(host.ledger, "", 0)
        return [await read(watch, 1), await read(watch), await read(watch)]

    assert asyncio.run(scenario()) == [["1"], ["2", "3"], []]


def test_only_the_tree_is_shown_and_each_run_is_known_by_its_agent(host: Any) -> None:
    feed(host, "run_a", "run_b", "run_a")
    watch = Watch(host.ledger, "run_a", 0)
    assert asyncio.run(read(watch)) == ["1", "3"]
    assert watch.position == 3
    assert watch.agents["run_a"] == "agent of run_a"


def test_an_erased_event_is_passed_over_and_not_met_again(host: Any) -> None:
    feed(host, "run_a", "run_a")
    host.ledger.late[1] = msgspec.structs.replace(host.ledger.late[1], salt=b"", body=b"")
    watch = Watch(host.ledger, "", 0)
    assert asyncio.run(read(watch)) == ["1"]
    assert watch.position == 2
