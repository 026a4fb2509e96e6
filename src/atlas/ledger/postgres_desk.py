"""The writer's transaction on Postgres.

What a commit writes is kept here until somebody has to read, or until the end, and then travels in one piece: a
plain append costs two round trips, one that takes the lock and looks up the runs of the whole group, one that
writes and commits. Between the two the server counts us as idle and ends the session of a process that stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import psycopg
from msgspec.structs import astuple

from atlas.kernel.chain import SALT_BYTES, seal_all
from atlas.kernel.errors import Fault, LedgerUnavailable
from atlas.kernel.event import Draft, Event
from atlas.kernel.hold import Cap
from atlas.kernel.port import Clock
from atlas.ledger.budget import Held, Sums, decode_held, hold_row
from atlas.ledger.desk import CHANGE_HEAD
from atlas.ledger.known import Head, Known
from atlas.ledger.pending import Pending, Row
from atlas.ledger.postgres_error import is_fatal
from atlas.ledger.postgres_link import Connection, Link
from atlas.ledger.postgres_read import cap_columns
from atlas.ledger.postgres_schema import check_schema

# Whoever calls these wants to know how many rows they changed; the others need not be waited for.
_COUNTED: Final = frozenset({"consume_signal", "insert_signal", "renew_lease", "expire_owner", "erase_event"})


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
        self.work: set[str] = set()
        self.changes = 0
        self.doubt: Doubt | None = None
        self._transaction = ""
        self._last_event: Event | None = None
        self._known = Known()
        self._pending = Pending()
        self._queued: list[tuple[str, Sequence[Any]]] = []

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
        if heads is not None and holds is not None:
            self._know(run_ids, heads, holds)

    def commit(self) -> None:
        """Makes the transaction durable. When the answer is lost, `doubt` names the transaction."""
        connection = self.connection
        with _in_one_piece(connection):
            self._send()
            connection.execute(self.sql["announce_work" if self.work else "announce_events"], (self._nonce,))
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
        return self._ask(name, parameters).fetchone()

    def all(self, name: str, parameters: Sequence[Any]) -> list[Any]:
        """Every row."""
        return self._ask(name, parameters).fetchall()

    def do(self, name: str, parameters: Sequence[Any]) -> int:
        """Carries the statement out, at the latest with the commit; how many rows it changed, where that matters."""
        if name in _COUNTED:
            count = self._ask(name, parameters).rowcount
            self.changes += count
            return count
        self.changes += 1
        self._queued.append((name, parameters))
        if name in CHANGE_HEAD:
            self._known.drop_run(parameters[-1])
        return 1

    def head(self, run_id: str) -> Head | None:
        """The run as it is now, or None when there is none."""
        head = self._known.heads.get(run_id)
        if head is None:
            row = self._ask("run_head", (run_id,)).fetchone()
            if row is None:
                return None
            head = Head(*row)
            self._known.add_head(run_id, head)
        return head

    def touch(self, run_id: str, head: Head, seq: int, link: bytes, spend: Sequence[int]) -> None:
        """Moves the head, at the latest with the commit, and adds to the run's totals."""
        self.changes += 1
        self._known.move_head(run_id, seq, link)
        self._pending.touch(head.rowid, seq, link, self.now_us, spend)

    def write_events(self, run_id: str, drafts: Sequence[Draft], seq: int, link: bytes) -> tuple[int, bytes]:
        """Seals the drafts behind `seq` and stores them with the commit; the run's new last sequence number and hash."""
        count = len(drafts)
        events = seal_all(drafts, run_id, seq, self.position, link, self.clock.entropy(SALT_BYTES * count))
        self._pending.events += events
        self._last_event = events[-1]
        self.position += count
        self.changes += count
        return seq + count, events[-1].hash

    def holds(self, run_id: str) -> Mapping[str, Held]:
        """Everything the run has reserved and not settled yet, by effect."""
        holds = self._known.holds.get(run_id)
        if holds is None:
            found = {effect: decode_held(body) for effect, body in self._ask("run_holds", (run_id,))}
            self._known.add_holds(run_id, found)
            return found
        return holds

    def set_hold(self, run_id: str, effect: str, held: Held | None) -> None:
        """Stores what the effect has reserved now; None when that is nothing any more."""
        if held is None:
            self.do("drop_hold", (run_id, effect))
        else:
            self.do("set_hold", hold_row(run_id, effect, held, self.now_us))
        self._known.set_hold(run_id, effect, held)

    def sum_meters(self, caps: Sequence[Cap]) -> list[Sums]:
        """What the meters under each cap add up to; asked of the server once in a transaction, then followed here."""
        unknown = [cap for cap in caps if self._known.sums(cap) is None]
        if unknown:
            rows = self._ask("sum_caps", cap_columns(unknown)).fetchall()
            for cap, (sums,) in zip(unknown, rows, strict=True):
                self._known.add_sums(cap, (sums[0], sums[1], sums[2], sums[3]))
        return [self._known.sums(cap) or (0, 0, 0, 0) for cap in caps]

    def add_meters(self, changes: Mapping[tuple[str, str], Sums]) -> None:
        """Moves meters, at the latest with the commit."""
        self.changes += len(changes)
        self._known.move_meters(changes)
        self._pending.add_meters(changes)

    def add_total(self, key: tuple[Any, ...], used: Sequence[int]) -> None:
        """Adds to a total of the day, at the latest with the commit."""
        self.changes += 1
        self._pending.add_total(key, used)

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

    def _know(self, run_ids: Sequence[str], heads: Iterable[Row], holds: Iterable[Row]) -> None:
        for row in heads:
            self._known.add_head(row[0], Head(*row))
        found: dict[str, dict[str, Held]] = {run_id: {} for run_id in run_ids}
        for run_id, effect, body in holds:
            found[run_id][effect] = decode_held(body)
        for run_id, held in found.items():
            self._known.add_holds(run_id, held)

    def _ask(self, name: str, parameters: Sequence[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        """The answer to a statement, after everything that was written before it."""
        if not (self._queued or self._pending):
            return self.connection.execute(self.sql[name], parameters, binary=True)
        with _in_one_piece(self.connection):
            self._send()
            return self.connection.execute(self.sql[name], parameters, binary=True)

    def _send(self) -> None:
        """Hands everything queued to the pipeline.

        Events go first, since no statement of a commit reads them. Touches go last: they set columns of the run that
        nothing else sets, except for the time of change, which is the same throughout, and never precede its row.
        """
        queued, self._queued = self._queued, []
        self._bulk("insert_events", [astuple(event) for event in self._pending.take_events()])
        for name, parameters in queued:
            self.connection.execute(self.sql[name], parameters)
        self._bulk("touch_runs", self._pending.take_heads())
        self._bulk("add_spends", self._pending.take_totals())
        self._bulk("add_meters", self._pending.take_meters())

    def _bulk(self, name: str, rows: Sequence[Row]) -> None:
        if rows:
            self.connection.execute(self.sql[name], [list(column) for column in zip(*rows, strict=True)])

    def _reset(self) -> None:
        self.work = set()
        self.changes = 0
        self._transaction = ""
        self._last_event = None
        self._known = Known()
        self._pending = Pending()
        self._queued = []


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
