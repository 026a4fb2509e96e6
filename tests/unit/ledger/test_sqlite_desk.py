"""The writer's transaction on SQLite: what it keeps to itself until the commit, and what it need not read again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from atlas.kernel.budget import Reservation, Settlement
from atlas.kernel.chain import check_chain
from atlas.kernel.errors import BudgetRefused, StaleLease
from atlas.kernel.event import NULL, Draft, Event, Logged, RunCreated, Spend, draft
from atlas.kernel.hold import Cap, Hold, Meter
from atlas.kernel.run import Append, Lease, NewRun, NewSignal
from atlas.ledger import commit, migrate, queue
from atlas.ledger.desk import CHANGE_HEAD
from atlas.ledger.known import Head
from atlas.ledger.sqlite_desk import SqliteDesk, connect
from atlas.ledger.statement import load_migrations, load_statements, repeat_values
from atlas.testing.clock import FakeClock

SQL = load_statements("sqlite")
NOTE = draft(Logged("x"), 0, "owner")
DAY = Meter("fleet", "2026-11-16")
CAP = Cap("day", "fleet", "2026-11-16", "2026-11-16", micro_usd=100)


class Office:
    """Desks on one file, each with a connection of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"
        self.clock = FakeClock()
        self.desks: list[SqliteDesk] = []

    def desk(self) -> SqliteDesk:
        """A new desk."""
        migrations = load_migrations("sqlite")
        connection = connect(self.path, busy_s=1.0, is_reader=False)
        migrate.prepare(connection, self.path, migrations, self.clock, 1.0)
        self.desks.append(SqliteDesk(connection, self.path, SQL, len(migrations), self.clock))
        return self.desks[-1]

    def run(self, desk: SqliteDesk, run_id: str) -> Lease:
        """A run of its own that the desk has claimed."""
        desk.begin(())
        created = draft(RunCreated("advisor", "1.0.0", NULL, "snap", "", "seed"), 0, "owner")
        commit.submit(desk, NewRun(run_id, "", "advisor", "1.0.0", "snap", "owner", created, run_id))
        [claimed] = queue.claim(desk, queue.Wanted("ann", 1, 60, 9, ("",), run_id))
        desk.commit()
        return claimed.lease


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    yield office
    for desk in office.desks:
        desk.close()


def test_a_run_that_is_taken_where_it_was_made_is_work_for_nobody_else(office: Office) -> None:
    desk = office.desk()
    office.run(desk, "run_1")
    assert not desk.work
    desk.begin(())
    commit.insert_signal(desk, NewSignal("sig_1", "run_1", "answer", "owner", b"{}"))
    assert desk.work == {"run_1"}
    desk.rollback()


def chain_of(desk: SqliteDesk, run_id: str) -> list[Event]:
    """The run's events as they are in the file; fails unless they lead to the head that its row names."""
    events = [Event(*row) for row in desk.connection.execute(SQL["run_events"], (run_id, 0, -1))]
    seq, link = desk.connection.execute("SELECT head_seq, head_hash FROM run WHERE run_id = ?", (run_id,)).fetchone()
    assert check_chain(run_id, events, seq, link) is None
    return events


def reserve(effect: str, micro_usd: int) -> Reservation:
    return Reservation(effect, Hold(micro_usd, 10, 10, "lab:small", (DAY,), "2026-11-16"), (CAP,))


def settle(effect: str, micro_usd: int) -> Settlement:
    return Settlement(effect, Spend(1, 5, 5, micro_usd), "lab:small")


def meter(desk: SqliteDesk) -> tuple[int, ...]:
    row: tuple[int, ...] = desk.connection.execute(SQL["get_meter"], (DAY.scope, DAY.bucket)).fetchone()
    return row


def test_every_statement_that_changes_what_a_head_says_makes_it_forgotten() -> None:
    columns = {"head_seq", "head_hash", *Head.__struct_fields__} - {"rowid", "seq", "hash"}
    for store in ("sqlite", "postgres"):
        found = set()
        for name, text in load_statements(store).items():
            if text.startswith("UPDATE run SET"):
                changed = set(re.findall(r"(\w+) =", text.partition(" SET ")[2].partition("WHERE")[0]))
                found |= {name} if changed & columns else set()
        assert found - {"touch_run", "touch_runs"} == CHANGE_HEAD, store


def test_a_step_writes_each_row_once(office: Office) -> None:
    desk = office.desk()
    lease = office.run(desk, "run_a")
    desk.begin(())
    commit.append(desk, Append(lease, (NOTE,), reserve=reserve("e1", 40)))
    desk.commit()
    seen: list[str] = []
    desk.connection.set_trace_callback(seen.append)
    desk.begin(())
    commit.append(desk, Append(lease, (NOTE, NOTE), settle=(settle("e1", 30),)))
    commit.append(desk, Append(lease, (NOTE, NOTE), reserve=reserve("e2", 50)))
    desk.commit()
    desk.connection.set_trace_callback(None)
    assert [" ".join(text.split()[:3]) for text in seen if not text.startswith(("BEGIN", "PRAGMA", "COMMIT"))] == [
        "DELETE FROM hold",
        "INSERT OR REPLACE",
        "INSERT INTO event",
        "UPDATE run SET",
        "INSERT INTO spend",
        "INSERT INTO meter",
    ]
    assert len(chain_of(desk, "run_a")) == 6
    assert meter(desk) == (30, 50, 10, 10)


def test_a_run_that_was_moved_is_read_with_what_was_pending_for_it(office: Office) -> None:
    desk = office.desk()
    lease = office.run(desk, "run_a")
    desk.begin(())
    commit.append(desk, Append(lease, (NOTE, NOTE), state="waiting"))
    commit.append(desk, Append(lease, (NOTE,), spend=Spend(1, 2, 3, 4)))
    desk.commit()
    assert [event.seq for event in chain_of(desk, "run_a")] == [1, 2, 3, 4]


def test_what_was_rolled_back_is_not_known(office: Office) -> None:
    desk = office.desk()
    lease = office.run(desk, "run_a")
    for is_kept in (True, False, True):
        desk.begin(())
        effect = f"e{office.clock.now_us()}{is_kept}"
        commit.append(desk, Append(lease, (NOTE,), reserve=reserve(effect, 60)))
        commit.append(desk, Append(lease, (NOTE,), settle=(settle(effect, 20),)))
        if is_kept:
            desk.commit()
        else:
            desk.rollback()
        office.clock.advance(1)
    events = chain_of(desk, "run_a")
    assert [event.position for event in events] == [1, 2, 3, 4, 5]
    assert meter(desk) == (40, 0, 20, 0)


def test_a_hold_of_a_transaction_that_was_rolled_back_can_be_made_again(office: Office) -> None:
    desk = office.desk()
    lease = office.run(desk, "run_a")
    for _ in range(2):
        desk.begin(())
        commit.append(desk, Append(lease, (NOTE,), reserve=reserve("e1", 60)))
        desk.rollback()
    assert meter(desk) is None


def test_who_lost_a_run_to_another_process_cannot_append(office: Office) -> None:
    mine, other = office.desk(), office.desk()
    lease = office.run(mine, "run_a")
    mine.begin(())
    commit.append(mine, Append(lease, (NOTE,)))
    mine.commit()
    office.clock.advance(120)
    other.begin(())
    assert queue.claim(other, queue.Wanted("bob", 1, 60, 9, ("",), "run_a"))
    other.commit()
    mine.begin(())
    with pytest.raises(StaleLease):
        commit.append(mine, Append(lease, (NOTE,)))
    mine.rollback()


@pytest.mark.parametrize("is_cap_known", [True, False])
@pytest.mark.parametrize("is_one_group", [True, False])
def test_money_is_counted_before_it_is_written(office: Office, is_cap_known: bool, is_one_group: bool) -> None:
    desk = office.desk()
    lease = office.run(desk, "run_a")
    first = reserve("e1", 60)
    desk.begin(())
    commit.append(desk, Append(lease, reserve=first if is_cap_known else replace(first, caps=())))
    commit.append(desk, Append(lease, settle=(settle("e1", 60),)))
    if not is_one_group:
        desk.commit()
        desk.begin(())
    with pytest.raises(BudgetRefused, match=r"0\.00006 spent"):
        commit.append(desk, Append(lease, reserve=reserve("e2", 41)))
    commit.append(desk, Append(lease, reserve=reserve("e2", 40)))
    desk.commit()
    assert meter(desk) == (60, 40, 10, 10)


def test_money_that_another_process_reserved_is_counted(office: Office) -> None:
    mine, other = office.desk(), office.desk()
    first, second = office.run(mine, "run_a"), office.run(other, "run_b")
    mine.begin(())
    commit.append(mine, Append(first, (NOTE,), reserve=reserve("e1", 10)))
    mine.commit()
    other.begin(())
    commit.append(other, Append(second, (NOTE,), reserve=reserve("e1", 80)))
    commit.append(other, Append(second, (NOTE,), settle=(settle("e1", 80),)))
    other.commit()
    mine.begin(())
    with pytest.raises(BudgetRefused):
        commit.append(mine, Append(first, (NOTE,), reserve=reserve("e2", 30)))
    mine.rollback()
    assert meter(mine) == (80, 10, 10, 10)


def test_positions_go_on_behind_those_of_another_process(office: Office) -> None:
    mine, other = office.desk(), office.desk()
    leases = [office.run(mine, "run_a"), office.run(other, "run_b")]
    for _ in range(3):
        for desk, lease in zip((mine, other), leases, strict=True):
            desk.begin(())
            commit.append(desk, Append(lease, (NOTE,)))
            desk.commit()
    found = [row[0] for row in mine.connection.execute("SELECT position FROM event ORDER BY position")]
    assert found == list(range(1, 9))
    assert chain_of(mine, "run_a")
    assert chain_of(mine, "run_b")


def test_a_batch_may_have_more_events_than_a_statement(office: Office) -> None:
    desk = office.desk()
    lease = office.run(desk, "run_a")
    desk.begin(())
    commit.append(desk, Append(lease, tuple(Draft("logged", at, "owner", b"%d" % at) for at in range(50))))
    desk.commit()
    assert [event.body for event in chain_of(desk, "run_a")[1:]] == [b"%d" % at for at in range(50)]


def test_an_event_can_be_erased_in_the_transaction_that_wrote_it(office: Office) -> None:
    desk = office.desk()
    lease = office.run(desk, "run_a")
    desk.begin(())
    commit.append(desk, Append(lease, (NOTE,)))
    commit.erase(desk, "run_a", 2)
    desk.commit()
    assert [event.body == b"" for event in chain_of(desk, "run_a")] == [False, True]


def test_a_row_of_values_is_repeated_and_nothing_else() -> None:
    text = "INSERT INTO a (b, c) VALUES (?, ?) ON CONFLICT (b) DO UPDATE SET c = c + excluded.c"
    texts = repeat_values(text, 3)
    assert texts[1] == text
    assert texts[3] == text.replace("(?, ?)", "(?, ?), (?, ?), (?, ?)")
