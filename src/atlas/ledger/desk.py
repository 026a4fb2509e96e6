"""What the ledger's work is written against, so that the same work serves every SQL database.

A desk is the writer's: one transaction at a time, statements by name. A database is a reader's: text in, rows out.
Rows have no type of their own: whoever names a statement knows its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from atlas.kernel.event import Draft
from atlas.kernel.hold import Cap
from atlas.ledger.budget import Held, Sums
from atlas.ledger.known import Head

# These statements change what a head says of the run that their last parameter names.
CHANGE_HEAD: Final = frozenset({"move_run", "release_run", "end_run", "queue_run", "take_run"})

T = TypeVar("T")


class Transaction(Protocol):
    """The writer's connection and what its transaction knows; made and used in the writer's thread only.

    `work` has the runs that the transaction made work of for somebody: by a submission, by a signal, or because they rest or
    have ended. One that is taken in the same transaction is nobody else's.
    """

    work: set[str]

    @property
    def changes(self) -> int:
        """How much was written since `begin`; grows with every write, whatever it counts."""
        ...

    def begin(self, run_ids: Sequence[str]) -> None:
        """Takes the write lock and looks up time and position; `run_ids` will be appended to."""
        ...

    def commit(self) -> None:
        """Makes the transaction durable."""
        ...

    def rollback(self) -> None:
        """Leaves no transaction open, also after an error that ended it already."""
        ...

    def close(self) -> None:
        """Gives the connection back."""
        ...


class Desk(Transaction, Protocol):
    """Inside a transaction: its time, the last position, and the statements that read and write."""

    now_us: int
    position: int

    def one(self, name: str, parameters: Sequence[Any]) -> Any:
        """The first row, or None."""
        ...

    def all(self, name: str, parameters: Sequence[Any]) -> list[Any]:
        """Every row."""
        ...

    def do(self, name: str, parameters: Sequence[Any]) -> int:
        """How many rows the statement changed, where that matters."""
        ...

    def head(self, run_id: str) -> Head | None:
        """The run as it is now, or None when there is none."""
        ...

    def touch(self, run_id: str, head: Head, seq: int, link: bytes, spend: Sequence[int]) -> None:
        """Moves the head, at the latest with the commit, and adds to the run's totals: the columns of `touch_run`."""
        ...

    def write_events(self, run_id: str, drafts: Sequence[Draft], seq: int, link: bytes) -> tuple[int, bytes]:
        """Seals the drafts behind `seq` and stores them with the commit; the run's new last sequence number and hash."""
        ...

    def holds(self, run_id: str) -> Mapping[str, Held]:
        """Everything the run has reserved and not settled yet, by effect."""
        ...

    def set_hold(self, run_id: str, effect: str, held: Held | None) -> None:
        """Stores what the effect has reserved now; None when that is nothing any more."""
        ...

    def sum_meters(self, caps: Sequence[Cap]) -> list[Sums]:
        """For each cap what its meters add up to: money spent and held, tokens spent and held."""
        ...

    def add_meters(self, changes: Mapping[tuple[str, str], Sums]) -> None:
        """Moves meters, at the latest with the commit: by scope and bucket, what is added to each of the four."""
        ...

    def add_total(self, key: tuple[Any, ...], used: Sequence[int]) -> None:
        """Adds to a total of the day, at the latest with the commit: the columns of `add_spend`."""
        ...

    def erase(self, run_id: str, seq: int) -> bool:
        """Empties one event; False when there is none."""
        ...


class Rows(Protocol):
    """What a statement found."""

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Every row that is left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection that queries read from."""

    def execute(self, text: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> Rows:
        """What the statement finds."""
        ...


class Session(Protocol):
    """One reader's connection, in its own thread; it connects when it has its first read."""

    def run(self, query: Callable[..., T], *arguments: object) -> T:
        """What `query(database, statements, *arguments)` answers; raises AtlasError."""
        ...

    def close(self) -> None:
        """Gives the connection back."""
        ...
