"""The writer thread: group commit, order, and who fails when something fails."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from atlas.kernel.errors import AtlasError, Conflict, Fault, LedgerUnavailable
from atlas.kernel.run import Lease
from atlas.ledger.sqlite_error import translate
from atlas.ledger.sqlite_writer import SqliteWriter
from atlas.ledger.writer import News, Writer


class NoteDesk:
    """A table of notes, and a count of the commits made on it."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("CREATE TABLE IF NOT EXISTS note (text TEXT UNIQUE)")
        self.commits = 0
        self.work: set[str] = set()
        self.before = 0

    @property
    def changes(self) -> int:
        return self.connection.total_changes - self.before

    def begin(self, run_ids: Sequence[str]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.before = self.connection.total_changes

    def commit(self) -> None:
        self.connection.execute("COMMIT")
        self.commits += 1

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        self.connection.close()


def note(text: str) -> Callable[[NoteDesk], str]:
    def work(desk: NoteDesk) -> str:
        desk.connection.execute("INSERT INTO note VALUES (?)", (text,))
        return text

    return work


def notes(desk: NoteDesk) -> list[str]:
    return [row[0] for row in desk.connection.execute("SELECT text FROM note ORDER BY rowid")]


def commits(desk: NoteDesk) -> int:
    return desk.commits


def play(tmp_path: Path, script: Callable[[Writer[NoteDesk]], Coroutine[Any, Any, None]]) -> list[News]:
    """Runs the script against a writer; what it announced."""
    announced: list[News] = []

    async def run() -> None:
        path = tmp_path / "notes.db"
        writer = SqliteWriter(
            lambda: NoteDesk(path), lambda error: translate(error, path), announced.append, lambda: None
        )
        await writer.start()
        try:
            await script(writer)
        finally:
            await writer.stop()

    asyncio.run(run())
    return announced


def blocked(writer: Writer[NoteDesk], gate: threading.Event) -> asyncio.Future[Any]:
    """Keeps the writer busy until the gate opens, so that what follows becomes one group."""
    entered = threading.Event()

    def wait(_desk: NoteDesk) -> bool:
        entered.set()
        return gate.wait(10)

    pending = writer.put(wait, is_write=False)
    assert entered.wait(10)  # else the thread might find what follows in its queue too
    return pending


async def outcome(pending: asyncio.Future[Any]) -> str:
    try:
        return str(await pending)
    except AtlasError as error:
        return error.reason


def test_all_that_waits_shares_one_commit(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        gate = threading.Event()
        first = blocked(writer, gate)
        pending = [writer.put(note(str(number))) for number in range(100)]
        gate.set()
        await first
        assert [await one for one in pending] == [str(number) for number in range(100)]
        assert await writer.put(commits, is_write=False) == 1
        assert await writer.put(notes, is_write=False) == [str(number) for number in range(100)]

    assert play(tmp_path, script) == [News.EVENTS]


def test_one_hand_over_for_a_whole_group(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        gate = threading.Event()
        first = blocked(writer, gate)
        pending = [writer.put(note(str(number))) for number in range(50)]
        turns = 0
        gate.set()
        await first
        while not all(one.done() for one in pending):
            done = [one.done() for one in pending]
            assert not any(done), "some were resolved before others"
            await asyncio.sleep(0.001)
            turns += 1

    play(tmp_path, script)


def test_lazy_work_waits_for_urgent_work_and_goes_with_it(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        pending = [writer.put(note("lazy 1"), is_lazy=True), writer.put(note("lazy 2"), is_lazy=True)]
        pending.append(writer.put(note("urgent")))
        for one in pending:
            await one
        assert await writer.put(notes, is_write=False) == ["lazy 1", "lazy 2", "urgent"]
        assert await writer.put(commits, is_write=False) == 1

    play(tmp_path, script)


def test_lazy_work_alone_is_done_soon(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        async with asyncio.timeout(5):
            assert await writer.put(note("lazy"), is_lazy=True) == "lazy"

    play(tmp_path, script)


def refuse(_desk: NoteDesk) -> None:
    raise Conflict("no")


def half(desk: NoteDesk) -> None:
    note("half")(desk)
    raise Conflict("no", code="half")


def group_with(tmp_path: Path, *guilty: Callable[[NoteDesk], Any]) -> tuple[list[str], list[str], int]:
    """Outcomes, notes and commits of a group in which some jobs are guilty."""
    found: list[Any] = []

    async def script(writer: Writer[NoteDesk]) -> None:
        gate = threading.Event()
        first = blocked(writer, gate)
        jobs = [note("a"), *guilty, note("b")]
        pending = [writer.put(job) for job in jobs]
        gate.set()
        await first
        found.append([await outcome(one) for one in pending])
        found.append(await writer.put(notes, is_write=False))
        found.append(await writer.put(commits, is_write=False))

    play(tmp_path, script)
    return found[0], found[1], found[2]


def test_a_job_refused_before_it_wrote_costs_its_group_nothing(tmp_path: Path) -> None:
    assert group_with(tmp_path, refuse, refuse) == (["a", "conflict", "conflict", "b"], ["a", "b"], 1)


def test_a_job_refused_after_it_wrote_is_undone_alone(tmp_path: Path) -> None:
    assert group_with(tmp_path, half, refuse) == (["a", "half", "conflict", "b"], ["a", "b"], 2)


def test_an_error_of_the_database_hits_only_its_job(tmp_path: Path) -> None:
    def twice(desk: NoteDesk) -> None:
        note("c")(desk)
        note("c")(desk)

    assert group_with(tmp_path, twice) == (["a", "ledger_fault", "b"], ["a", "b"], 2)


def test_a_value_that_cannot_be_stored_hits_only_its_job(tmp_path: Path) -> None:
    assert group_with(tmp_path, note("\ud800")) == (["a", "bad_record", "b"], ["a", "b"], 2)


ANN = Lease("run_1", "ann", 1, 0)
BOB = Lease("run_1", "bob", 2, 0)


def fail(_desk: NoteDesk) -> None:
    raise LedgerUnavailable("the disk is full", code="disk_full")


def test_nothing_is_done_behind_lost_work_of_the_same_lease(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        gate = threading.Event()
        first = blocked(writer, gate)
        pending = [writer.put(note("a"), lease=ANN), writer.put(fail, lease=ANN), writer.put(note("b"), lease=ANN)]
        pending += [writer.put(note("c"), lease=BOB), writer.put(note("d"))]
        gate.set()
        await first
        assert [await outcome(one) for one in pending] == ["a", "disk_full", "append_lost", "c", "d"]
        await asyncio.sleep(0)
        assert await writer.put(note("e"), lease=ANN) == "e", "the holder knows now"
        assert await writer.put(notes, is_write=False) == ["a", "c", "d", "e"]

    play(tmp_path, script)


def test_work_that_was_refused_is_not_lost(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        pending = [writer.put(refuse, lease=ANN), writer.put(note("a"), lease=ANN)]
        assert [await outcome(one) for one in pending] == ["conflict", "a"]

    play(tmp_path, script)


def test_the_holder_may_go_on_the_moment_it_hears(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        for number in range(50):
            assert await outcome(writer.put(fail, lease=ANN)) == "disk_full"
            assert await outcome(writer.put(note(str(number)), lease=ANN)) == str(number)

    play(tmp_path, script)


def test_a_holder_that_stopped_listening_hears_of_a_loss_by_the_next_answer(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        gate = threading.Event()
        first = blocked(writer, gate)
        writer.put(fail, lease=ANN).cancel()
        gate.set()
        await first
        assert await outcome(writer.put(note("a"), lease=ANN)) == "append_lost"
        assert await outcome(writer.put(note("b"), lease=ANN)) == "b"

    play(tmp_path, script)


def test_nothing_written_is_nothing_announced(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        await writer.put(notes)
        assert await outcome(writer.put(refuse)) == "conflict"
        assert await writer.put(commits, is_write=False) == 0

    assert play(tmp_path, script) == []


def test_work_is_announced_as_work(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        def work(desk: NoteDesk) -> None:
            note("w")(desk)
            desk.work.add("run_1")

        await writer.put(work)

    assert play(tmp_path, script) == [News.WORK]


def test_stopping_finishes_what_was_handed_over_and_takes_nothing_more(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "notes.db"
        writer = SqliteWriter(
            lambda: NoteDesk(path), lambda error: translate(error, path), lambda news: None, lambda: None
        )
        await writer.start()
        pending = [writer.put(note(str(number)), is_lazy=True) for number in range(20)]
        await writer.stop()
        assert [await one for one in pending] == [str(number) for number in range(20)]
        with pytest.raises(LedgerUnavailable):
            await writer.put(note("late"))

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_a_job_leaves_nobody_waiting(tmp_path: Path) -> None:
    def bug(_desk: NoteDesk) -> None:
        raise ZeroDivisionError

    async def script(writer: Writer[NoteDesk]) -> None:
        pending = [writer.put(bug), writer.put(note("a"))]
        async with asyncio.timeout(10):
            for one in pending:
                with pytest.raises(Fault):
                    await one
            with pytest.raises(LedgerUnavailable):
                await writer.put(note("b"))

    play(tmp_path, script)


def test_callers_on_several_loops_are_answered(tmp_path: Path) -> None:
    async def script(writer: Writer[NoteDesk]) -> None:
        answers: list[str] = []

        def elsewhere(name: str) -> None:
            async def put() -> None:
                for number in range(20):
                    answers.append(await writer.put(note(f"{name}{number}")))

            asyncio.run(put())

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(asyncio.to_thread(elsewhere, name))
        assert len(answers) == 60
        stored = await writer.put(notes, is_write=False)
        assert sorted(stored) == sorted(answers)
        for name in "abc":
            assert [text for text in stored if text[0] == name] == [f"{name}{number}" for number in range(20)]

    play(tmp_path, script)
