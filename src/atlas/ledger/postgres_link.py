"""Sessions on a Postgres server as the ledger needs them. The only module besides those it serves that needs psycopg."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from atlas.kernel.errors import Invalid, Unavailable
from atlas.ledger.postgres_error import translate

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

OLDEST_SERVER: Final = 14
CONNECT_S: Final = 5
# A process that stops inside a transaction would keep everybody else from writing. The server ends its session: soon
# when it is idle, and in any case (servers from 17 on) after a time that no honest transaction takes.
IDLE_MS: Final = 5_000
TRANSACTION_MS: Final = 60_000
# A peer that vanished without a word is noticed within half a minute.
_KEEPALIVE: Final = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


class Link:
    """The way to one database; `where` names it without the password."""

    def __init__(self, url: str, sql: dict[str, str], lock_s: float) -> None:
        self._sql = sql
        self._lock_ms = int(lock_s * 1000)
        given = _parse(url)
        if given is None:
            raise Invalid(
                "the ledger's address cannot be read",
                hint="Write it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with % and @ in the password encoded.",
                code="bad_ledger_url",
            )
        defaults: dict[str, Any] = {"connect_timeout": CONNECT_S, "application_name": "atlas", **_KEEPALIVE}
        self._address = make_conninfo(**{**defaults, **given})
        self.where = f"postgresql://{given.get('host') or 'localhost'}/{given.get('dbname') or given.get('user') or ''}"

    def connect(self, role: Literal["reader", "writer"]) -> Connection:
        """A session in autocommit mode, set up for its role; raises AtlasError."""
        connection: Connection | None = None
        try:
            connection = psycopg.connect(self._address, autocommit=True, prepare_threshold=1)
            if connection.info.server_version < OLDEST_SERVER * 10_000:
                raise Unavailable(
                    f"the ledger needs Postgres {OLDEST_SERVER} or newer, this server is {connection.info.server_version}",
                    hint="Upgrade the server.",
                    where=self.where,
                    code="server_too_old",
                )
            # Numbers always travel as bigint: with a type by size, each statement would be planned several times.
            connection.adapters.register_dumper(int, Int8Dumper)
            connection.adapters.register_dumper(int, Int8BinaryDumper)
            read_only = "on" if role == "reader" else "off"
            settings = (read_only, str(self._lock_ms), str(IDLE_MS), str(TRANSACTION_MS))
            connection.execute(self._sql["set_up"], settings)
            return connection
        except psycopg.Error as error:
            if connection is not None:
                connection.close()
            raise translate(error, self.where) from None
        except Unavailable:
            if connection is not None:
                connection.close()
            raise


def _parse(url: str) -> dict[str, Any] | None:
    # The driver's own error quotes what it could not read, and that may be the password: it must not travel on, not
    # even as the context of ours.
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        return None
