"""A ledger of a million events answers as fast as one of ten thousand.

Work is counted in instructions of SQLite's virtual machine, never in time: what an answer costs must not depend on
how much was recorded before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atlas.kernel.chain import GENESIS, check_chain, seal
from atlas.kernel.event import Draft, Spend
from atlas.kernel.run import Append, InboxItem, Lease, NewRun, NewSignal, RunQuery, RunRow, TreeLimits
from atlas.ledger import commit, migrate, queue, read, sqlite_read
from atlas.ledger.sqlite_desk import SqliteDesk, connect
from atlas.ledger.statement import load_migrations, load_statements
from atlas.testing.clock import START_US, FakeClock

EVENTS_PER_RUN = 50
SMALL_RUNS = 200
LARGE_RUNS = 20_000
CHAINED = 20  # runs whose chains are real
OPEN = 30  # runs each that are queued, running and waiting: the same in both ledgers
OLD = 40  # runs of an agent, a principal and a state that nobody has seen since
PAGE = 2  # so short that both ledgers fill it, whatever is asked for
SQL = load_statements("sqlite")

# Run n of N: the newest are queued, then running, then waiting; all others have ended. Every fifth is a child of the
# run before it. Sessions hold ten runs. An agent, a principal and a state occur among the oldest runs only, so that
# whoever looks for them along the wrong index has to read everything that came later. Every fiftieth run is queued
# for a time far ahead.
_RUNS = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :runs),
shape AS (
    SELECT i, printf('run_%08d', i) AS id,
        CASE WHEN i > :runs - :open THEN 'queued' WHEN i > :runs - 2 * :open THEN 'running'
             WHEN i > :runs - 3 * :open THEN 'waiting' WHEN i < :old THEN 'refused' WHEN i % 50 = 1 THEN 'queued'
             WHEN i % 7 = 0 THEN 'failed' ELSE 'succeeded' END AS state,
        CASE WHEN i < :old THEN 'old' ELSE printf('%d', i % 4) END AS name,
        i % 5 = 0 AS is_child
    FROM n
)
INSERT INTO run
SELECT id, printf('ses_%08d', i / 10), CASE WHEN is_child THEN 0 ELSE i % 10 + 1 END,
    'agent_' || name, '1.0.0', 'snap', 'principal_' || name,
    CASE WHEN is_child THEN printf('run_%08d', i - 1) ELSE '' END, '',
    CASE WHEN is_child THEN printf('run_%08d', i - 1) ELSE id END, is_child, 0, '', '', state,
    :start + i, :start + i, CASE WHEN state IN ('succeeded', 'failed', 'refused') THEN :start + i ELSE 0 END,
    CASE WHEN state = 'queued' AND i <= :runs - :open THEN :start + 86400000000 ELSE 0 END,
    CASE state WHEN 'running' THEN 'ann' ELSE '' END, CASE state WHEN 'queued' THEN 0 ELSE 1 END,
    CASE state WHEN 'running' THEN :start + 3600000000 ELSE 0 END,
    :events, zeroblob(32), 1, 1, 1, 1, 0, CASE WHEN i > :runs - :open THEN i ELSE 0 END, 0
FROM shape
"""
_EVENTS = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :runs * :events)
INSERT INTO event (position, run_id, seq, time_us, kind, version, principal, digest, prev, hash, salt, body)
SELECT i, printf('run_%08d', (i - 1) / :events + 1), (i - 1) % :events + 1, :start, 'logged', 1, 'owner',
    zeroblob(32), zeroblob(32), zeroblob(32), zeroblob(16), :body
FROM n
"""
_REST = """
INSERT INTO session SELECT session_id, agent, principal, min(created_us), max(turn), '', 0 FROM run GROUP BY session_id;
INSERT INTO tree SELECT root_run_id, count(*) FROM run GROUP BY root_run_id;
INSERT INTO signal (id, run_id, kind, principal, body, created_us, consumed_seq, is_late)
    SELECT 'sig_' || run_id, run_id, 'answer', 'owner', x'7b7d', created_us, state <> 'waiting', 0 FROM run;
INSERT INTO inbox SELECT run_id, 'step:1', 'approval', agent, principal, x'7b7d', created_us
    FROM run WHERE state = 'waiting';
INSERT INTO spend SELECT '2026-01-01', agent, principal, '', 0, count(*), 1, 1, 1, 0, 0 FROM run
GROUP BY agent, principal;
INSERT INTO idempotency SELECT principal, agent, run_id, '', run_id FROM run;
"""


class Store:
    """A ledger with so many runs, on one connection whose work is counted."""

    def __init__(self, path: Path, runs: int) -> None:
        self.runs = runs
        self.clock = FakeClock(START_US + 60_000_000)
        self.db = connect(path, busy_s=1.0, is_reader=False)
        migrations = load_migrations("sqlite")
        migrate.prepare(self.db, path, migrations, self.clock, 1.0)
        self.desk = SqliteDesk(self.db, path, SQL, len(migrations), self.clock)
        self._fill()

    def id(self, back: int) -> str:
        """The run that is `back` before the newest one."""
        return f"run_{self.runs - back:08d}"

    def measure(self, work: Callable[[], Any], *, is_write: bool) -> tuple[int, list[str]]:
        """How many instructions the work takes once its statements are compiled, and these statements; undone after."""
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        statements: list[str] = []
        for _ in range(2):
            count = 0
            statements = []
            if is_write:
                self.desk.begin(())
            self.db.set_progress_handler(step, 1)
            self.db.set_trace_callback(statements.append)
            try:
                work()
                if is_write:
                    self.desk.flush()
            finally:
                self.db.set_progress_handler(None, 1)
                self.db.set_trace_callback(None)
                self.desk.rollback()
        return count, statements

    def full_scans(self, statements: list[str]) -> list[str]:
        """The plans that read run or event from end to end: not along an index, or without a limit."""
        found = []
        for statement in statements:
            if statement.startswith(("SELECT", "UPDATE", "DELETE")):
                for *_, plan in self.db.execute(f"EXPLAIN QUERY PLAN {statement}"):
                    is_cut = "USING" in plan and "LIMIT" in statement
                    if plan.startswith(("SCAN run", "SCAN event")) and not is_cut:
                        found.append(f"{plan}: {statement}")
        return found

    def _fill(self) -> None:
        values = {
            "runs": self.runs,
            "events": EVENTS_PER_RUN,
            "open": OPEN,
            "old": OLD,
            "start": START_US,
            "body": b'{"message":"something that was said"}',
        }
        self.db.execute("PRAGMA synchronous = OFF")
        self.db.execute("BEGIN")
        self.db.execute(_RUNS, values)
        self.db.execute(_EVENTS, values)
        for statement in _REST.strip().split(";\n"):
            self.db.execute(statement)
        for back in range(CHAINED):
            self._chain(self.id(back * self.runs // CHAINED))
        self.db.execute("COMMIT")
        assert self.db.execute("SELECT count(*) FROM event").fetchone() == (self.runs * EVENTS_PER_RUN,)

    def _chain(self, run_id: str) -> None:
        link = GENESIS
        for event in read.events(self.db, SQL, run_id, 0, 0):
            note = Draft(event.kind, event.time_us, event.principal, event.body)
            sealed = seal(note, run_id, event.seq, event.position, link, event.salt)
            link = sealed.hash
            self.db.execute(
                "UPDATE event SET digest = ?, prev = ?, hash = ? WHERE position = ?",
                (sealed.digest, sealed.prev, sealed.hash, event.position),
            )
        self.db.execute("UPDATE run SET head_hash = ? WHERE run_id = ?", (link, run_id))


def _queries(store: Store) -> dict[str, RunQuery]:
    middle = store.id(store.runs // 2)
    return {
        "all": RunQuery(limit=PAGE),
        "from the middle": RunQuery(before=middle, limit=PAGE),
        "agent": RunQuery(agent="agent_3", limit=PAGE),
        "agent from the middle": RunQuery(agent="agent_3", before=middle, limit=PAGE),
        "agent, failed": RunQuery(agent="agent_3", states=("failed",), limit=PAGE),
        "agent, roots": RunQuery(agent="agent_3", roots_only=True, limit=PAGE),
        "failed": RunQuery(states=("failed",), limit=PAGE),
        "failed or waiting, from the middle": RunQuery(states=("failed", "waiting"), before=middle, limit=PAGE),
        "running": RunQuery(states=("running",), limit=PAGE),
        "queued": RunQuery(states=("queued",), limit=PAGE),
        "session": RunQuery(session_id=f"ses_{store.runs // 20:08d}", limit=PAGE),
        "principal": RunQuery(principal="principal_1", limit=PAGE),
        "old agent": RunQuery(agent="agent_old", limit=PAGE),
        "old principal": RunQuery(principal="principal_old", limit=PAGE),
        "old state": RunQuery(states=("refused",), limit=PAGE),
        "old session": RunQuery(session_id="ses_00000001", limit=PAGE),
        "old tree": RunQuery(root_run_id=f"run_{4:08d}", limit=PAGE),
        "old children": RunQuery(parent_run_id=f"run_{4:08d}", limit=PAGE),
        "old agent, roots": RunQuery(agent="agent_old", roots_only=True, limit=PAGE),
        "principal, succeeded": RunQuery(principal="principal_1", states=("succeeded",), limit=PAGE),
        "tree": RunQuery(root_run_id=store.id(store.runs // 2 + 1), limit=PAGE),
        "children": RunQuery(parent_run_id=store.id(store.runs // 2 + 1), limit=PAGE),
        "roots": RunQuery(roots_only=True, limit=PAGE),
        "id": RunQuery(id_prefix=middle, limit=PAGE),
    }


def _reads(store: Store) -> dict[str, Callable[[], Any]]:
    db, middle = store.db, store.id(store.runs // 2)
    head = store.runs * EVENTS_PER_RUN
    works: dict[str, Callable[[], Any]] = {
        f"runs: {name}": partial(sqlite_read.runs, db, SQL, query) for name, query in _queries(store).items()
    }
    works |= {
        "run": lambda: read.run(db, SQL, middle),
        "events": lambda: read.events(db, SQL, middle, 0, 0),
        "events after": lambda: read.events(db, SQL, middle, 40, 5),
        "feed": lambda: read.feed(db, SQL, head // 2, 20),
        "newest of the feed": lambda: read.feed(db, SQL, head - 20, 20),
        "head": lambda: read.head(db, SQL),
        "signals of a run": lambda: read.signals(db, SQL, store.id(2 * OPEN)),
        "signals": lambda: read.signals(db, SQL, ""),
        "inbox": lambda: read.inbox(db, SQL, ""),
        "inbox of a run": lambda: read.inbox(db, SQL, store.id(2 * OPEN)),
        "session": lambda: read.session(db, SQL, f"ses_{store.runs // 20:08d}"),
        "spend": lambda: read.spend(db, SQL, "2026-01-01", "agent_3"),
        "last children": lambda: read.last_children(db, SQL, "agent_1", "snap", PAGE),
        "last children of an old agent": lambda: read.last_children(db, SQL, "agent_old", "snap", PAGE),
        "owners": lambda: sqlite_read.owners(db, SQL, store.clock.now_us()),
    }
    return works


def _writes(store: Store) -> dict[str, Callable[[], Any]]:
    desk, now_us = store.desk, store.clock.now_us()
    run_id = store.id(OPEN)
    lease = Lease(run_id, "ann", 1, now_us)
    parked = store.id(2 * OPEN)
    note = Draft("logged", now_us, "owner", b"{}")
    new = NewRun("run_new", "ses_new", "agent_3", "1.0.0", "snap", "owner", note, "run_new", key="k")
    child = replace(new, run_id="run_child", parent_run_id=run_id, root_run_id=run_id, key="", session_id="")
    item = InboxItem(run_id, "step:9", "approval", "agent_3", "owner", b"{}", now_us)
    next_turn = replace(new, session_id=f"ses_{store.runs // 20:08d}", agent="", principal="")
    session = read.session(store.db, SQL, next_turn.session_id)
    next_turn = replace(next_turn, agent=session.agent, principal=session.principal)
    wanted = queue.Wanted("bob", 5, 60.0, 1000, ("",), "")
    late = queue.Wanted("bob", 5, 60.0, 1000, ("",), parked)
    return {
        "submit": lambda: commit.submit(desk, new),
        "submit to an old session": lambda: commit.submit(desk, next_turn),
        "submit again": lambda: commit.submit(desk, replace(new, key=run_id, agent="agent_0", principal="x")),
        "claim": lambda: queue.claim(desk, wanted),
        "claim one": lambda: queue.claim(desk, late),
        "renew": lambda: queue.renew(desk, [lease], 60.0),
        "expire": lambda: queue.expire(desk, "ann"),
        "append": lambda: commit.append(desk, Append(lease, (note, note), spend=Spend(1, 2, 3, 4))),
        "append with all there is": lambda: commit.append(
            desk,
            Append(lease, (note,), children=(child,), tree_limits=TreeLimits(99, 99), inbox_open=(item,)),
        ),
        "park": lambda: commit.append(desk, Append(lease, (note,), state="waiting", release=True)),
        "end": lambda: commit.append(desk, Append(lease, (note,), state="succeeded")),
        "signal": lambda: commit.insert_signal(desk, NewSignal("sig_new", parked, "answer", "owner", b"{}")),
        "erase": lambda: commit.erase(desk, store.id(store.runs // 2), 25),
    }


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Store]]:
    """A ledger of ten thousand events and one of a million."""
    folder = tmp_path_factory.mktemp("million")
    small, large = Store(folder / "small.db", SMALL_RUNS), Store(folder / "large.db", LARGE_RUNS)
    yield small, large
    small.db.close()
    large.db.close()
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.slow
def test_a_hundred_times_the_events_cost_no_more_work(stores: tuple[Store, Store]) -> None:
    small, large = stores
    dearer = {}
    for is_write, works in ((False, _reads), (True, _writes)):
        for name, cheap in works(small).items():
            little, _ = small.measure(cheap, is_write=is_write)
            much, statements = large.measure(works(large)[name], is_write=is_write)
            assert large.full_scans(statements) == [], name
            assert little > 0, f"{name} did nothing"
            # A deeper tree costs a few instructions more; reading a hundred times as much costs a hundred times.
            if much > little * 1.3 + 20:
                dearer[name] = (little, much)
    assert dearer == {}


@pytest.mark.slow
def test_pages_of_a_million_events_hold_what_they_should(stores: tuple[Store, Store]) -> None:
    _, large = stores
    rows = [read._run_row(row) for row in large.db.execute(f"{SQL['select_run']} ORDER BY run_id DESC")]
    for name, query in _queries(large).items():
        expected = [row for row in rows if _matches(row, query)]
        page = sqlite_read.runs(large.db, SQL, query)
        assert list(page.runs) == expected[:PAGE], name
        assert page.next == (expected[PAGE - 1].run_id if len(expected) > PAGE else ""), name
    for number in range(CHAINED):
        row = read.run(large.db, SQL, large.id(number * large.runs // CHAINED))
        events = read.events(large.db, SQL, row.run_id, 0, 0)
        assert check_chain(row.run_id, events, row.head_seq, row.head_hash) is None


def _matches(row: RunRow, query: RunQuery) -> bool:
    asked = ("agent", "session_id", "principal", "root_run_id", "parent_run_id")
    return (
        all(getattr(query, name) in ("", getattr(row, name)) for name in asked)
        and (not query.states or row.state in query.states)
        and not (query.roots_only and row.parent_run_id)
        and row.run_id.startswith(query.id_prefix)
        and (not query.before or row.run_id < query.before)
    )


@pytest.mark.slow
def test_the_measure_finds_a_full_scan(stores: tuple[Store, Store]) -> None:
    small, large = stores
    text = "SELECT sum(length(body)) FROM event WHERE kind = 'logged'"
    little, _ = small.measure(lambda: small.db.execute(text).fetchall(), is_write=False)
    much, statements = large.measure(lambda: large.db.execute(text).fetchall(), is_write=False)
    assert much > little * 50
    assert large.full_scans(statements)
