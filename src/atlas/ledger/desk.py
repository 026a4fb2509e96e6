"""What the ledger's work is written against, so that the same work serves every SQL database.

A desk is the writer's: one transaction at a time, statements by name. A database is a reader's: text in, rows out.
Rows have no type of their own: whoever names a statement knows its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from atlas.kernel.event import Draft
from atlas.kernel.hold import Cap

T = TypeVar("T")


class Transaction(Protocol):
    """The writer's connection and what its transaction knows; made and used in the writer's thread only.

    `has_work` says whether the transaction made work for somebody: a submission, a signal, a run's new state.
    """

    has_work: bool

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

    def write_events(self, run_id: str, drafts: Sequence[Draft], seq: int, head: bytes) -> tuple[int, bytes]:
        """Seals and stores the drafts behind `seq`; the run's new last sequence number and hash."""
        ...

    def sum_meters(self, caps: Sequence[Cap]) -> list[tuple[int, int, int, int]]:
        """For each cap what its meters add up to: money spent and held, tokens spent and held."""
        ...

    def add_meters(self, rows: Sequence[tuple[str, str, int, int, int, int]]) -> None:
        """Moves meters: scope, bucket, and what is added to money spent and held, tokens spent and held."""
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
