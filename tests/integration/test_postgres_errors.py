"""What goes wrong on a server gets a clear error, loses nothing, and never shows the password."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from atlas.app import SystemClock
from atlas.kernel.errors import AtlasError, Conflict, Fault, Invalid, LedgerUnavailable
from atlas.kernel.run import Append
from atlas.ledger.migrate import split
from atlas.ledger.postgres import PostgresLedger
from atlas.ledger.statement import load_migrations, load_statements
from integration.postgres_stage import Server, open_scene, own_server

PASSWORD = "p-4ss/w0rd"

# Stands for a server that fails: an event of kind `fail.CODE` raises that error, the first `TIMES` times only.
_FAILING = """
CREATE SEQUENCE atlas.test_failures;
CREATE FUNCTION atlas.test_fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.kind LIKE 'fail.%%' AND nextval('atlas.test_failures') <= {times} THEN
        RAISE EXCEPTION 'a failure made for this test' USING ERRCODE = substr(NEW.kind, 6);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER test_fail BEFORE INSERT ON atlas.event FOR EACH ROW EXECUTE FUNCTION atlas.test_fail()
"""


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[Server]:
    """A server that asks `joe` for a password; `joe` may not write to schema atlas of database postgres."""
    with own_server() as server:
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE joe LOGIN PASSWORD '{PASSWORD}'".encode())
            rules = server.folder / "pg_hba.conf"
            rules.write_text(f"local all joe scram-sha-256\n{rules.read_text()}")
            admin.execute("SELECT pg_reload_conf()")
        yield server


def opening(url: str, folder: Path) -> AtlasError:
    """The error with which a ledger refuses to open."""

    async def check() -> AtlasError:
        ledger = PostgresLedger(url, clock=SystemClock(), blobs=folder)
        try:
            await ledger.open()
        except AtlasError as error:
            return error
        await ledger.close()
        raise AssertionError("the ledger opened")

    return asyncio.run(check())


def shown(error: AtlasError) -> str:
    """Everything a user or a log could get to see of the error."""
    return f"{error!r} {error.record()} {error.__cause__!r} {error.__context__!r}"


def test_a_wrong_password_is_said_without_the_password(guarded_server: Server, tmp_path: Path) -> None:
    error = opening(guarded_server.url.replace("postgres:@", "joe:wr0ng-p4ss@"), tmp_path)
    assert isinstance(error, LedgerUnavailable)
    assert (error.reason, "password" in error.hint) == ("login_refused", True)
    assert "wr0ng-p4ss" not in shown(error)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://joe:{}%zz@127.0.0.1:1/x",
        "postgresql://joe:{}@127.0.0.1:1/x?nonsense=1",
        "mysql://joe:{}@127.0.0.1/x",
        "host=127.0.0.1 password={} nonsense=1",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_the_password(url: str, tmp_path: Path) -> None:
    error = opening(url.format("s3cr3t"), tmp_path)
    assert isinstance(error, Invalid)
    assert error.reason == "bad_ledger_url"
    assert "s3cr3t" not in shown(error)


def test_a_server_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    error = opening("postgresql://joe:s3cr3t@127.0.0.1:1/x", tmp_path)
    assert isinstance(error, LedgerUnavailable)
    assert (error.reason, error.where) == ("unreachable", "postgresql://127.0.0.1/x")
    assert "s3cr3t" not in shown(error)


def test_a_database_that_does_not_exist_is_named(postgres_url: str, tmp_path: Path) -> None:
    error = opening(postgres_url.replace("/postgres?", "/nowhere?"), tmp_path)
    assert (error.reason, "nowhere" in error.message) == ("no_database", True)


def test_a_user_who_may_not_write_is_told_so(guarded_server: Server, tmp_path: Path) -> None:
    error = opening(guarded_server.url.replace("postgres:@", f"joe:{PASSWORD.replace('/', '%2F')}@"), tmp_path)
    assert isinstance(error, LedgerUnavailable)
    assert error.reason == "read_only"
    assert PASSWORD not in shown(error)


def test_without_the_driver_the_hint_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import asyncio; from pathlib import Path\n"
        "from atlas.app import SystemClock; from atlas.ledger.postgres import PostgresLedger\n"
        "ledger = PostgresLedger('postgresql://x/y', clock=SystemClock(), blobs=Path('.'))\n"
        "from atlas.kernel.errors import Unavailable\n"
        "try: asyncio.run(ledger.open())\n"
        "except Unavailable as error: print(error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "pip install 'atlas-agents[postgres]'"


def test_a_newer_schema_is_refused_with_the_version_that_can_read_it(pg_database: str, tmp_path: Path) -> None:
    async def make() -> None:
        async with open_scene(pg_database, tmp_path):
            pass

    asyncio.run(make())
    with psycopg.connect(pg_database, autocommit=True) as admin:
        admin.execute("UPDATE atlas.meta SET value = '99' WHERE name = 'schema'")
        admin.execute("UPDATE atlas.meta SET value = '7.8.9' WHERE name = 'atlas_version'")
    error = opening(pg_database, tmp_path)
    assert isinstance(error, Conflict)
    assert (error.reason, "7.8.9" in error.message, "7.8.9" in error.hint) == ("ledger_too_new", True, True)


def test_a_schema_that_becomes_newer_under_an_open_ledger_is_noticed(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene:
            await scene.submit()
            with psycopg.connect(pg_database, autocommit=True) as admin:
                admin.execute("UPDATE atlas.meta SET value = '99' WHERE name = 'schema'")
                admin.execute("UPDATE atlas.meta SET value = '7.8.9' WHERE name = 'atlas_version'")
            for _ in range(2):
                with pytest.raises(Conflict, match=r"7\.8\.9") as caught:
                    await scene.submit()
                assert caught.value.reason == "ledger_too_new"
            assert await scene.ledger.head() == 1, "nothing was written"

    asyncio.run(check())


def test_what_a_consumed_signal_said_is_kept_by_the_event_only(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene:
            run, lease = await scene.hold()
            signal = scene.new_signal(run.run_id, body=b'{"secret":1}')
            await scene.ledger.signal(signal)
            await scene.ledger.append(Append(lease, (scene.note("heard"),), consumed=(signal.id,)))

    asyncio.run(check())
    with psycopg.connect(pg_database) as admin:
        assert admin.execute("SELECT body, consumed_seq FROM atlas.signal").fetchall() == [(b"", 2)]


def test_a_schema_of_another_program_is_left_alone(pg_database: str, tmp_path: Path) -> None:
    with psycopg.connect(pg_database, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA atlas CREATE TABLE run (mine int)")
    assert opening(pg_database, tmp_path).reason == "not_a_ledger"


def test_many_may_open_an_empty_database_at_once(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        ledgers = [PostgresLedger(pg_database, clock=SystemClock(), blobs=tmp_path) for _ in range(6)]
        async with asyncio.TaskGroup() as group:
            for ledger in ledgers:
                group.create_task(ledger.open())
        for ledger in ledgers:
            await ledger.close()

    asyncio.run(check())
    with psycopg.connect(pg_database) as admin:
        [(count,)] = admin.execute("SELECT count(*) FROM atlas.meta WHERE name = 'ledger_id'").fetchall()
    assert count == 1


@pytest.mark.parametrize(
    "sqlstate, expected, reason",
    [
        ("53100", LedgerUnavailable, "disk_full"),
        ("25006", LedgerUnavailable, "read_only"),
        ("58030", LedgerUnavailable, "io_error"),
        ("53200", LedgerUnavailable, "server_busy"),
        ("XX001", Fault, "ledger_corrupt"),
        ("P0001", Fault, "ledger_fault"),
    ],
)
def test_what_the_server_refuses_fails_alone(
    sqlstate: str, expected: type[AtlasError], reason: str, pg_database: str, tmp_path: Path
) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene:
            with psycopg.connect(pg_database, autocommit=True) as admin:
                admin.execute(_FAILING.format(times=1000))
            first, one = await scene.hold()
            second, two = await scene.hold()
            bad = scene.note("bad")
            bad = type(bad)(f"fail.{sqlstate}", bad.time_us, bad.principal, bad.body)
            before = scene.ledger.append(Append(one, (scene.note("before"),)))
            guilty = scene.ledger.append(Append(two, (bad,)))
            after = scene.ledger.append(Append(one, (scene.note("after"),)))
            await before
            with pytest.raises(expected) as caught:
                await guilty
            assert caught.value.reason == reason
            await after
            assert await scene.texts(first.run_id) == ["before", "after"]
            assert await scene.texts(second.run_id) == []
            await scene.check_chains([first.run_id, second.run_id])

    asyncio.run(check())


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_a_conflict_that_passes_is_not_seen_by_anybody(sqlstate: str, pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene:
            with psycopg.connect(pg_database, autocommit=True) as admin:
                admin.execute(_FAILING.format(times=2))
            run, lease = await scene.hold()
            note = scene.note("kept")
            await scene.ledger.append(
                Append(lease, (type(note)(f"fail.{sqlstate}", note.time_us, note.principal, note.body),))
            )
            assert await scene.texts(run.run_id) == ["kept"]

    asyncio.run(check())


def test_a_lock_that_is_not_given_back_is_named(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path, lock_s=0.2) as scene:
            run, lease = await scene.hold()
            with psycopg.connect(pg_database, autocommit=True) as admin:
                admin.execute("BEGIN")
                admin.execute(load_statements("postgres")["lock_writes"])
                with pytest.raises(LedgerUnavailable) as caught:
                    await scene.ledger.append(Append(lease, (scene.note("locked out"),)))
                assert caught.value.reason == "ledger_locked"
            await scene.ledger.append(Append(lease, (scene.note("let in"),)))
            assert await scene.texts(run.run_id) == ["let in"]

    asyncio.run(check())


def test_what_cannot_be_stored_fails_alone(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene:
            run, lease = await scene.hold()
            good = scene.ledger.append(Append(lease, (scene.note("good"),)))
            bad = scene.ledger.signal(scene.new_signal(run.run_id, principal="a\0b"))
            with pytest.raises(Fault) as caught:
                await bad
            assert caught.value.reason == "bad_record"
            await good
            assert await scene.texts(run.run_id) == ["good"]

    asyncio.run(check())


def test_a_listener_that_lost_its_session_hears_again(pg_database: str, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_scene(pg_database, tmp_path) as scene, open_scene(pg_database, tmp_path) as other:
            async with scene.ledger.wake() as wake:
                with psycopg.connect(pg_database, autocommit=True) as admin:
                    admin.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
                    )
                await other.submit()
                assert await wake.wait(10.0)
                while await wake.wait(2.5):
                    pass  # once or twice more, until it listens again
                await other.submit()
                assert await wake.wait(10.0)

    asyncio.run(check())


def test_both_databases_have_the_same_tables_and_columns(pg_database: str, tmp_path: Path) -> None:
    async def make() -> None:
        async with open_scene(pg_database, tmp_path):
            pass

    asyncio.run(make())
    with psycopg.connect(pg_database) as server:
        theirs = server.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'atlas'"
        ).fetchall()
    file = sqlite3.connect(":memory:")
    for _, script in load_migrations("sqlite"):
        for statement in split(script):
            file.execute(statement)
    ours = file.execute(
        "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    ).fetchall()
    file.close()
    assert sorted(theirs) == sorted(ours)
