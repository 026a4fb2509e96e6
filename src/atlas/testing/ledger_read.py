"""The ledger's contract: what is read back: the feed, lists of runs, erased events and blobs."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from atlas.kernel.chain import check_chain
from atlas.kernel.errors import AtlasError, NotFound
from atlas.kernel.event import Event
from atlas.kernel.run import Append, Lease, RunQuery, RunState
from atlas.testing.ledger_rig import Scene, case, jumping_case, peer_case, refused


@case
async def a_new_ledger_is_empty(scene: Scene) -> None:
    assert await scene.ledger.head() == 0
    assert await scene.ledger.feed(0, 10) == []
    assert await scene.ledger.runs(RunQuery()) == await scene.ledger.runs(RunQuery(agent="x"))
    assert (await scene.ledger.inbox(), await scene.ledger.spend(), await scene.ledger.owners()) == ([], [], [])
    assert await scene.claim_ids() == []


@case
async def events_are_read_in_pages(scene: Scene) -> None:
    run, lease = await scene.hold()
    await scene.ledger.append(Append(lease, tuple(scene.note(str(n)) for n in range(9))))
    everything = await scene.ledger.events(run.run_id)
    assert [event.seq for event in everything] == list(range(1, 11))
    assert await scene.ledger.events(run.run_id, after=4) == everything[4:]
    assert await scene.ledger.events(run.run_id, after=4, limit=3) == everything[4:7]
    assert await scene.ledger.events(run.run_id, after=10) == []


@case
async def the_feed_is_read_in_pages(scene: Scene) -> None:
    for _ in range(7):
        await scene.submit()
    everything = await scene.ledger.feed(0, 100)
    assert [event.position for event in everything] == list(range(1, 8))
    assert await scene.ledger.feed(2, 3) == everything[2:5]
    assert await scene.ledger.feed(7, 10) == []


async def follow(scene: Scene, until: int) -> list[Event]:
    """Reads the feed as it grows, a few events at a time."""
    seen: list[Event] = []
    async with scene.ledger.wake(every_commit=True) as wake:
        while len(seen) < until:
            page = await scene.ledger.feed(seen[-1].position if seen else 0, 7)
            seen += page
            if not page:
                await wake.wait(5)
    return seen


async def write(scene: Scene, lease: Lease, count: int) -> None:
    """Appends batches of different sizes."""
    for number in range(count):
        drafts = tuple(scene.note("x") for _ in range(1 + number % 3))
        await scene.ledger.append(Append(lease, drafts))


async def feed_while_writing(writers: tuple[Scene, Scene], reader: Scene) -> None:
    """A reader follows while ten runs are written to; it must see every position, in order."""
    held = [await writers[0].hold() for _ in range(10)]
    total = 10 + 10 * sum(1 + number % 3 for number in range(12))
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(follow(reader, total))
        for number, (_, lease) in enumerate(held):
            group.create_task(write(writers[number % 2], lease, 12))
    seen = reading.result()
    assert [event.position for event in seen] == list(range(1, total + 1))
    for run, _ in held:
        mine = [event.seq for event in seen if event.run_id == run.run_id]
        assert mine == list(range(1, len(mine) + 1))


@case
async def the_feed_skips_nothing_under_concurrent_writers(scene: Scene) -> None:
    await feed_while_writing((scene, scene), scene)


@peer_case
async def the_feed_skips_nothing_when_two_ledgers_write(scene: Scene, other: Scene) -> None:
    await feed_while_writing((scene, other), other)


@case
async def what_was_awaited_is_read_at_once(scene: Scene) -> None:
    run, lease = await scene.hold()
    for number in range(1, 30):
        appended = await scene.ledger.append(Append(lease, (scene.note("x"),)))
        row, head = await scene.ledger.run(run.run_id), await scene.ledger.head()
        assert (row.head_seq, head) == (appended.seq, appended.position) == (number + 1, number + 1)


async def listed(scene: Scene, **query: Any) -> list[str]:
    """The runs of a list, read page by page, two at a time."""
    found: list[str] = []
    page = await scene.ledger.runs(RunQuery(limit=2, **query))
    found += [row.run_id for row in page.runs]
    while page.next:
        page = await scene.ledger.runs(RunQuery(limit=2, before=page.next, **query))
        assert page.runs, "a page that was promised is empty"
        found += [row.run_id for row in page.runs]
    return found


async def population(scene: Scene) -> list[dict[str, Any]]:
    """Runs of several agents, principals, trees and states, oldest first."""
    rows: list[dict[str, Any]] = []
    states: tuple[RunState, ...] = ("queued", "running", "waiting", "in_doubt", "succeeded", "failed", "refused")
    for number in range(21):
        agent, principal = ("tester", "writer", "critic")[number % 3], ("owner", "eve")[number % 2]
        run, lease = await scene.hold(agent=agent, principal=principal)
        family = [run]
        if number % 4 == 0:
            child = scene.new_child(run, agent="helper", principal=principal)
            await scene.ledger.append(Append(lease, children=(child,)))
            family.append(child)
        state = states[number % 7]
        if state != "running":
            await scene.ledger.append(Append(lease, state=state, release=True))
        for member in family:
            rows.append(
                {
                    "run_id": member.run_id,
                    "agent": member.agent,
                    "principal": principal,
                    "session_id": run.session_id,
                    "root_run_id": run.run_id,
                    "parent_run_id": member.parent_run_id,
                    "state": state if member is run else "queued",
                }
            )
    return rows


@case
async def runs_are_listed_newest_first_by_any_filter(scene: Scene) -> None:
    rows = await population(scene)
    root = rows[0]["run_id"]
    queries: list[dict[str, Any]] = [
        {},
        {"agent": "tester"},
        {"agent": "helper"},
        {"agent": "nobody"},
        {"principal": "eve"},
        {"states": ("queued",)},
        {"states": ("running", "failed", "cancelled")},
        {"session_id": rows[0]["session_id"]},
        {"root_run_id": root},
        {"parent_run_id": root},
        {"roots_only": True},
        {"agent": "tester", "states": ("succeeded", "running")},
        {"agent": "helper", "roots_only": True},
        {"principal": "eve", "states": ("waiting", "queued")},
        {"principal": "owner", "roots_only": True},
        {"states": ("queued",), "roots_only": True},
        {"session_id": rows[0]["session_id"], "states": ("queued",)},
        {"root_run_id": root, "agent": "helper", "principal": "owner"},
        {"parent_run_id": root, "roots_only": True},
        {"id_prefix": root[:-4]},
        {"id_prefix": "run_", "agent": "critic", "states": ("queued", "running")},
        {"id_prefix": "ses_"},
    ]
    for query in queries:
        expected = [row["run_id"] for row in reversed(rows) if _fits(row, query)]
        assert await listed(scene, **query) == expected, query


def _fits(row: dict[str, Any], query: dict[str, Any]) -> bool:
    for name, value in query.items():
        match name:
            case "states":
                fits = row["state"] in value
            case "roots_only":
                fits = not row["parent_run_id"]
            case "id_prefix":
                fits = row["run_id"].startswith(value)
            case _:
                fits = row[name] == value
        if not fits:
            return False
    return True


@case
async def pages_stay_stable_while_runs_are_added(scene: Scene) -> None:
    runs = [(await scene.submit()).run_id for _ in range(6)]
    first = await scene.ledger.runs(RunQuery(agent="tester", limit=3))
    for _ in range(3):
        await scene.submit()
    second = await scene.ledger.runs(RunQuery(agent="tester", limit=3, before=first.next))
    assert [row.run_id for row in (*first.runs, *second.runs)] == runs[::-1]
    assert second.next == ""


@case
async def a_page_that_is_just_full_is_the_last(scene: Scene) -> None:
    for _ in range(3):
        await scene.submit()
    assert (await scene.ledger.runs(RunQuery(limit=3))).next == ""
    assert (await scene.ledger.runs(RunQuery(limit=2))).next != ""


@jumping_case
async def the_last_children_are_those_that_ended_last(scene: Scene) -> None:
    root, lease = await scene.hold(lease_s=10_000)
    kinds: list[dict[str, Any]] = [{}, {}, {}, {"snapshot": "other"}, {"agent": "writer"}, {}]
    children = [scene.new_child(root, **changes) for changes in kinds]
    await scene.ledger.append(Append(lease, children=tuple(children)))
    ended: list[str] = []
    for number in (2, 0, 3, 4, 1):  # the last child stays open
        await scene.rig.advance(1)
        await scene.end(await scene.take(children[number].run_id), "failed" if number else "succeeded")
        ended.append(children[number].run_id)
    await scene.end(lease)
    found = await scene.ledger.last_children("tester", "snap", 10)
    assert [row.run_id for row in found] == [ended[4], ended[1], ended[0]]
    assert [row.state for row in found] == ["failed", "succeeded", "failed"]
    assert await scene.ledger.last_children("tester", "snap", 2) == found[:2]
    assert [row.run_id for row in await scene.ledger.last_children("tester", "other", 5)] == [ended[2]]


@case
async def an_erased_event_keeps_the_chain(scene: Scene) -> None:
    run, lease = await scene.hold()
    await scene.ledger.append(Append(lease, (scene.note("secret"), scene.note("plain"))))
    await scene.ledger.erase(run.run_id, 2)
    await scene.ledger.append(Append(lease, (scene.note("after"),)))
    events = await scene.ledger.events(run.run_id)
    assert (events[1].body, events[1].salt) == (b"", b"")
    assert (await scene.ledger.feed(1, 1))[0] == events[1]
    assert await scene.texts(run.run_id) == ["", "plain", "after"]
    await scene.check_chains([run.run_id])
    await scene.ledger.erase(run.run_id, 2)
    await scene.check_chains([run.run_id])


@case
async def erasing_what_is_not_there_is_not_found(scene: Scene) -> None:
    run = await scene.submit()
    for run_id, seq in ((run.run_id, 2), (run.run_id, 0), ("run_that_never_was", 1)):
        with refused(NotFound):
            await scene.ledger.erase(run_id, seq)


@case
async def a_chain_that_was_cut_is_found(scene: Scene) -> None:
    run, lease = await scene.hold()
    await scene.ledger.append(Append(lease, (scene.note("a"), scene.note("b"))))
    row, events = await scene.ledger.run(run.run_id), await scene.ledger.events(run.run_id)
    cut = check_chain(run.run_id, events[:-1], row.head_seq, row.head_hash)
    gap = check_chain(run.run_id, [events[0], events[2]], row.head_seq, row.head_hash)
    assert cut is not None
    assert gap is not None
    assert (cut.kind, gap.kind) == ("truncated", "missing")


@case
async def a_question_that_cannot_be_asked_is_refused_and_harms_nobody(scene: Scene) -> None:
    for _ in range(5):
        with refused(AtlasError):
            await scene.ledger.run("\ud800")
    run = await scene.submit()
    assert await scene.state(run.run_id) == "queued"


@case
async def blobs_come_back_exactly(scene: Scene) -> None:
    for data in (b"", b"x", bytes(range(256)) * 1000):
        digest = await scene.ledger.put_blob(data)
        assert digest == hashlib.sha256(data).hexdigest()
        assert await scene.ledger.put_blob(data) == digest
        assert await scene.ledger.get_blob(digest) == data


@case
async def unknown_blobs_are_not_found(scene: Scene) -> None:
    for name in ("0" * 64, "", "../../etc/passwd", "A" * 64, "0" * 63):
        with refused(NotFound):
            await scene.ledger.get_blob(name)


@case
async def one_blob_is_written_by_many_at_once(scene: Scene) -> None:
    data = b"same" * 50_000
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(scene.ledger.put_blob(data)) for _ in range(8)]
    assert len({task.result() for task in tasks}) == 1
    assert await scene.ledger.get_blob(tasks[0].result()) == data


@peer_case
async def another_ledger_sees_what_was_written(scene: Scene, other: Scene) -> None:
    run, lease = await scene.hold()
    await scene.ledger.append(Append(lease, (scene.note("here"),)))
    assert await other.texts(run.run_id) == ["here"]
    assert await other.ledger.run(run.run_id) == await scene.ledger.run(run.run_id)
    assert await other.ledger.get_blob(await scene.ledger.put_blob(b"shared")) == b"shared"
