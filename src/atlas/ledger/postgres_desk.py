"""The writer's transaction on Postgres.

What a commit writes is kept here until somebody has to read, or until the end, and then travels in one piece: a
plain append costs two round trips, one that takes the lock and looks up the runs of the whole group, one that
writes and commits. Between the two the server counts us as idle and ends the session of a process that stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import psycopg
from msgspec.structs import astuple

from atlas.kernel.chain import SALT_BYTES, seal
from atlas.kernel.errors import Fault, LedgerUnavailable
from atlas.kernel.event import Draft, Event
from atlas.kernel.hold import Cap, Meter
from atlas.kernel.port import Clock
from atlas.ledger.postgres_error import is_fatal
from atlas.ledger.postgres_link import Connection, Link
from atlas.ledger.postgres_read import cap_columns
from atlas.ledger.postgres_schema import check_schema

# Whoever calls these wants to know how many rows they changed; the others need not be waited for.
_COUNTED: Final = frozenset({"consume_signal", "insert_signal", "renew_lease", "expire_owner", "erase_event"})
# These change what `run_head` reads, in the run that their last parameter names.
_CHANGE_HEAD: Final = frozenset({"move_run", "release_run", "end_run", "queue_run", "take_run"})


class Doubt(msgspec.Struct, frozen=True):
    """A transaction whose COMMIT was sent and not answered: it may have happened or not."""

    transaction: str
    last_event: Event | None


class PostgresDesk:
    """The writer's side: inside a transaction it knows the time and the last position."""

    def __init__(
        self, link: Link, connection: Connection, sql: dict[str, str], schema: int, clock: Clock, nonce: str
    ) -> None:
        self.link = link
        self.connection = connection
        self.sql = sql
        self.schema = schema
        self.clock = clock
        self._nonce = nonce
        self.now_us = 0
        self.position = 0
        self.has_work = False
        self.changes = 0
        self.doubt: Doubt | None = None
        self._transaction = ""
        self._last_event: Event | None = None
        self._heads: dict[str, tuple[Any, ...]] = {}
        self._queued: list[tuple[str, Sequence[Any]]] = []
        self._events: list[Event] = []
        self._touched: dict[str, list[Any]] = {}
        self._spent: dict[tuple[Any, ...], list[int]] = {}
        self._metered: dict[tuple[str, str], list[int]] = {}
        self._holds: dict[str, dict[str, bytes]] = {}
        self._sums: dict[tuple[str, str, str], tuple[Cap, list[int]]] = {}

    def begin(self, run_ids: Sequence[str]) -> None:
        """Takes the lock of writes and looks up what the group will need, the heads of these runs included.

        The lock is held until the commit is visible to everybody, and the last position is read behind it. So
        positions leave no gap, and whoever has read one will never see a lower one appear. Nor can anybody change the
        schema before this transaction ends.
        """
        self.doubt = None
        self._reset()
        connection = self.connection
        with _in_one_piece(connection):
            connection.execute(self.sql["begin"])
            connection.execute(self.sql["lock_writes"])
            moment = connection.execute(self.sql["moment"], binary=True)
            heads = connection.execute(self.sql["run_heads"], (run_ids,), binary=True) if run_ids else None
            holds = connection.execute(self.sql["group_holds"], (run_ids,), binary=True) if run_ids else None
        row = moment.fetchone()
        if row is None:
            raise Fault("the server did not tell the time", code="ledger_fault")
        self.now_us, self.position, self._transaction, schema = row
        if schema != str(self.schema):
            check_schema(connection, self.schema, self.link.where)
        if heads is not None:
            self._heads = {head[0]: head for head in heads}
        if holds is not None:
            self._holds = {run_id: {} for run_id in run_ids}
            for run_id, effect, body in holds:
                self._holds[run_id][effect] = body

    def commit(self) -> None:
        """Makes the transaction durable. When the answer is lost, `doubt` names the transaction."""
        connection = self.connection
        with _in_one_piece(connection):
            self._send()
            connection.execute(self.sql["announce_work" if self.has_work else "announce_events"], (self._nonce,))
            self.doubt = Doubt(self._transaction, self._last_event)
            answer = connection.execute(self.sql["commit"])
        # A transaction that had failed would answer ROLLBACK without any error.
        if answer.statusmessage != "COMMIT":
            self.doubt = None
            raise Fault(f"the server answered {answer.statusmessage} to a commit", code="ledger_fault")
        self.doubt = None

    def rollback(self) -> None:
        """Leaves no transaction open, also after an error that ended it already."""
        self.doubt = None
        self._reset()
        if not self.connection.closed:
            with contextlib.suppress(psycopg.Error):  # a lost connection has rolled back by itself
                self.connection.execute(self.sql["rollback"])

    def close(self) -> None:
        """Gives the connection back."""
        self.connection.close()

    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection is gone, so that only a new one can help."""
        return self.connection.closed or is_fatal(error)

    def reconnect(self) -> None:
        """A new connection in place of one that was lost; raises AtlasError when there is none to be had."""
        self.connection.close()
        self._reset()
        self.connection = self.link.connect("writer")

    def settle_doubt(self) -> bool:
        """Whether the commit in doubt happened, asked on a new connection.

        The lock comes first: while the lost session still works on its commit it holds that lock, so behind it the
        answer is final.
        """
        doubt = self.doubt
        if doubt is None:
            return False
        self.connection.execute(self.sql["begin"])
        self.connection.execute(self.sql["lock_writes"])
        happened = self._has_event(doubt.last_event) if doubt.last_event else self._has_committed(doubt.transaction)
        self.rollback()
        return happened

    def one(self, name: str, parameters: Sequence[Any]) -> Any:
        """The first row, or None."""
        if name == "run_head":
            return self._head(parameters[0])
        if name == "get_hold":
            run_id, effect = parameters
            body = self._held(run_id).get(effect)
            return (effect, body) if body is not None else None
        return self._ask(name, parameters).fetchone()

    def all(self, name: str, parameters: Sequence[Any]) -> list[Any]:
        """Every row."""
        if name == "run_holds":
            return sorted(self._held(parameters[0]).items())
        return self._ask(name, parameters).fetchall()

    def do(self, name: str, parameters: Sequence[Any]) -> int:
        """Carries the statement out, at the latest with the commit; how many rows it changed, where that matters."""
        if name in _COUNTED:
            count = self._ask(name, parameters).rowcount
            self.changes += count
            return count
        self.changes += 1
        match name:
            case "touch_run":
                seq, link, now_us, run_id = parameters
                self._touch(run_id, seq, link, now_us, (0, 0, 0, 0, 0))
            case "touch_run_spend":
                seq, link, now_us, *spend, run_id = parameters
                self._touch(run_id, seq, link, now_us, spend)
            case "add_spend":
                key, used = tuple(parameters[:5]), parameters[5:]
                total = self._spent.setdefault(key, [0] * len(used))
                total[:] = map(int.__add__, total, used)
            case "set_hold":
                self._held(parameters[0])[parameters[1]] = parameters[-1]
                self._queued.append((name, parameters))
            case "drop_hold":
                self._held(parameters[0]).pop(parameters[1], None)
                self._queued.append((name, parameters))
            case _:
                self._queued.append((name, parameters))
                if name in _CHANGE_HEAD:
                    self._heads.pop(parameters[-1], None)
        return 1

    def write_events(self, run_id: str, drafts: Sequence[Draft], seq: int, head: bytes) -> tuple[int, bytes]:
        """Seals and stores the drafts behind `seq`; the run's new last sequence number and hash."""
        salts = self.clock.entropy(SALT_BYTES * len(drafts))
        for index, draft in enumerate(drafts):
            seq += 1
            self.position += 1
            salt = salts[index * SALT_BYTES : (index + 1) * SALT_BYTES]
            event = seal(draft, run_id, seq, self.position, head, salt)
            self._events.append(event)
            self._last_event = event
            head = event.hash
        self.changes += len(drafts)
        return seq, head

    def sum_meters(self, caps: Sequence[Cap]) -> list[tuple[int, int, int, int]]:
        """What the meters under each cap add up to; asked of the server once in a transaction, then kept up here."""
        keys = [(cap.scope, cap.first, cap.last) for cap in caps]
        unknown = [cap for cap, key in zip(caps, keys, strict=True) if key not in self._sums]
        if unknown:
            rows = self._ask("sum_caps", cap_columns(unknown)).fetchall()
            for cap, (sums,) in zip(unknown, rows, strict=True):
                self._sums[cap.scope, cap.first, cap.last] = (cap, sums)
        return [(one[0], one[1], one[2], one[3]) for one in (self._sums[key][1] for key in keys)]

    def add_meters(self, rows: Sequence[tuple[str, str, int, int, int, int]]) -> None:
        """Moves meters, at the latest with the commit."""
        self.changes += len(rows)
        for scope, bucket, *change in rows:
            self._meter(Meter(scope, bucket), change)

    def erase(self, run_id: str, seq: int) -> bool:
        """Empties one event; the old bytes leave the server's files with its next vacuum."""
        return self.do("erase_event", (run_id, seq)) == 1

    def _has_event(self, event: Event) -> bool:
        # Its hash is salted: no other event has it, whichever server answers.
        row = self.connection.execute(self.sql["event_hash"], (event.position,)).fetchone()
        return row is not None and row[0] == event.hash

    def _has_committed(self, transaction: str) -> bool:
        try:
            row = self.connection.execute(self.sql["outcome"], (transaction,)).fetchone()
        except psycopg.errors.InvalidParameterValue:
            return False  # never had by this server: a replica that was promoted without it
        if row is None or row[0] not in ("committed", "aborted"):
            raise LedgerUnavailable(
                f"the server cannot tell what became of transaction {transaction}",
                hint="Look at the run before going on with it.",
                where=self.link.where,
                code="outcome_unknown",
            )
        return bool(row[0] == "committed")

    def _head(self, run_id: str) -> Any:
        if run_id not in self._heads:
            row = self._ask("run_head", (run_id,)).fetchone()
            if row is None:
                return None
            self._heads[run_id] = row
        return self._heads[run_id]

    def _held(self, run_id: str) -> dict[str, bytes]:
        if run_id not in self._holds:
            self._holds[run_id] = dict(self._ask("run_holds", (run_id,)).fetchall())
        return self._holds[run_id]

    def _meter(self, meter: Meter, change: Sequence[int]) -> None:
        moved = self._metered.setdefault((meter.scope, meter.bucket), [0, 0, 0, 0])
        moved[:] = map(int.__add__, moved, change)
        for cap, sums in self._sums.values():
            if cap.covers(meter):
                sums[:] = map(int.__add__, sums, change)

    def _touch(self, run_id: str, seq: int, link: bytes, now_us: int, spend: Sequence[int]) -> None:
        touched = self._touched.setdefault(run_id, [seq, link, now_us, 0, 0, 0, 0, 0])
        touched[:3] = seq, link, now_us
        touched[3:] = map(int.__add__, touched[3:], spend)
        head = self._heads.get(run_id)
        if head is not None:
            self._heads[run_id] = (*head[:4], seq, link, *head[6:])

    def _ask(self, name: str, parameters: Sequence[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        """The answer to a statement, after everything that was written before it."""
        if not (self._queued or self._events or self._touched or self._spent or self._metered):
            return self.connection.execute(self.sql[name], parameters, binary=True)
        with _in_one_piece(self.connection):
            self._send()
            return self.connection.execute(self.sql[name], parameters, binary=True)

    def _send(self) -> None:
        """Hands everything queued to the pipeline.

        Events go first, since no statement of a commit reads them. Touches go last: they set columns of the run that
        nothing else sets, except for the time of change, which is the same throughout, and never precede its row.
        """
        queued, events, touched = self._queued, self._events, self._touched
        spent, metered = self._spent, self._metered
        self._queued, self._events, self._touched, self._spent, self._metered = [], [], {}, {}, {}
        if events:
            self._bulk("insert_events", [astuple(event) for event in events])
        for name, parameters in queued:
            self.connection.execute(self.sql[name], parameters)
        if touched:
            self._bulk("touch_runs", [(run_id, *values) for run_id, values in touched.items()])
        if spent:
            self._bulk("add_spends", [(*key, *values) for key, values in spent.items()])
        if metered:
            self._bulk("add_meters", [(*key, *values) for key, values in metered.items()])

    def _bulk(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        self.connection.execute(self.sql[name], [list(column) for column in zip(*rows, strict=True)])

    def _reset(self) -> None:
        self.has_work = False
        self.changes = 0
        self._transaction = ""
        self._last_event = None
        self._heads = {}
        self._queued = []
        self._events = []
        self._touched = {}
        self._spent = {}
        self._metered = {}
        self._holds = {}
        self._sums = {}


@contextlib.contextmanager
def _in_one_piece(connection: Connection) -> Iterator[None]:
    """Statements that travel together; raises the error of the first that failed, and the rest did not happen."""
    first: psycopg.Error | None = None
    try:
        with connection.pipeline() as pipeline:
            try:
                yield
            except psycopg.Error as error:
                first = error
                # Taken here, or the driver would log each statement that the failed one has stopped.
                with contextlib.suppress(psycopg.Error):
                    pipeline.sync()
    except psycopg.Error as error:
        raise first or error from None
    if first is not None:
        raise first
