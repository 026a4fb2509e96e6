"""The checks of `atlas doctor`: each looks at one thing, says how it is, and never stops the others.

diagnose    Python -> packages -> vault -> agents -> disk -> SQLite -> ledger -> what was left -> worker
"""

from __future__ import annotations

import platform
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from atlas.cli.program import Program
from atlas.cli.text import count
from atlas.kernel.errors import AtlasError, Invalid
from atlas.kernel.run import RunQuery

if TYPE_CHECKING:
    from atlas.control.host import Host

MIN_PYTHON: Final = (3, 11)
MIN_SQLITE: Final = (3, 37, 0)  # the first with STRICT tables
LOW_DISK: Final = 1024**3
NO_DISK: Final = 64 * 1024**2
SLOW_WORKER_S: Final = 5.0
PACKAGES: Final = {
    "msgspec": "msgspec",
    "yaml": "PyYAML",
    "click": "click",
    "rich": "rich",
    "psutil": "psutil",
    "jsonschema_rs": "jsonschema-rs",
}


class Check(msgspec.Struct, frozen=True):
    """One thing looked at; `fix` says what to type or change, and is empty when all is well."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    fix: str = ""


async def diagnose(program: Program, vault: str | None) -> list[Check]:
    """Everything worth knowing, in an order in which a failure explains those after it."""
    checks = [_python(), *_packages(), _sqlite()]
    try:
        path = program.vault_path(vault)
    except AtlasError as error:
        return [*checks, _failed("vault", error), await _worker(program)]
    checks.append(_vault(path))
    if path.is_dir():
        checks.append(_disk(path))
        try:
            async with program.open(vault) as host:
                checks += [each async for each in _host(host, program, path)]
        except AtlasError as error:
            # What is not valid here is atlas.config.yaml: nothing else that a person writes is read to open the vault.
            checks.append(_failed("config" if isinstance(error, Invalid) else "ledger", error))
        except OSError as error:
            checks.append(Check("ledger", "fail", f"cannot be opened: {error}", f"Make {path} writable for this user."))
    return [*checks, await _worker(program)]


def _python() -> Check:
    found = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        return Check("python", "fail", f"{found} is too old", "Use Python 3.11 or newer.")
    return Check("python", "ok", f"{found} at {sys.executable}")


def _packages() -> Iterator[Check]:
    """One line when all are there; else one for each that is missing or cannot be loaded."""
    broken = [(name, problem) for module, name in PACKAGES.items() if (problem := _import_problem(module))]
    if not broken:
        yield Check("packages", "ok", ", ".join(PACKAGES.values()))
    for name, problem in broken:
        yield Check(
            "packages", "fail", f"{name}: {problem}", f"{sys.executable} -m pip install --force-reinstall {name}"
        )


def _import_problem(module: str) -> str:
    from importlib import import_module

    try:
        import_module(module)
    except ImportError as error:
        return str(error)
    return ""


def _sqlite() -> Check:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        wanted = ".".join(str(part) for part in MIN_SQLITE)
        return Check("sqlite", "fail", f"{version} is too old", f"Use a Python that brings SQLite {wanted} or newer.")
    return Check("sqlite", "ok", version)


def _vault(path: Path) -> Check:
    config = path / "atlas.config.yaml"
    if not path.is_dir():
        return Check("vault", "fail", f"there is no folder {path}", f"atlas new --vault {path}")
    if not config.is_file():
        return Check("vault", "warn", f"{path} has no atlas.config.yaml", f"Create an empty file {config}.")
    return Check("vault", "ok", str(path))


def _disk(path: Path) -> Check:
    free = shutil.disk_usage(path).free
    shown = f"{free / 1024**3:,.1f} GiB free"
    if free < NO_DISK:
        return Check("disk", "fail", shown, "Free some space; the ledger cannot grow.")
    if free < LOW_DISK:
        return Check("disk", "warn", shown, "Free some space soon.")
    return Check("disk", "ok", shown)


async def _host(host: Host, program: Program, path: Path) -> AsyncIterator[Check]:
    for check in _agents(host):
        yield check
    url = program.environ.get("ATLAS_LEDGER_URL") or host.config.ledger.url
    yield _postgres(await host.ledger.head()) if url else _sqlite_file(path, await host.ledger.head())
    yield await _leases(host)
    yield await _inbox(host)


def _agents(host: Host) -> Iterator[Check]:
    """One line for all good contracts, and one for each that is not."""
    good: list[str] = []
    for name in host.vault.agents():
        try:
            host.vault.contract(name)
            good.append(name)
        except Invalid as error:
            problems = [f"{each.where} {each.message}" for each in error.problems] or [error.message]
            more = f" (and {count(len(problems) - 1, 'more problem')})" if len(problems) > 1 else ""
            yield Check(f"agent {name}", "fail", problems[0] + more, error.hint or f"Edit {error.where}.")
        except AtlasError as error:
            yield _failed(f"agent {name}", error)
    if good:
        yield Check("agents", "ok", f"{count(len(good), 'valid contract')}: {', '.join(good)}")
    else:
        yield Check("agents", "warn", "no agent can run", "atlas new NAME")


def _postgres(head: int) -> Check:
    return Check("ledger", "ok", f"Postgres, {count(head, 'event')}")


def _sqlite_file(path: Path, head: int) -> Check:
    """Whether the file takes a write, asked for by beginning one and taking it back."""
    file = path / ".atlas" / "ledger.db"
    if not file.is_file():
        return Check("ledger", "ok", f"{count(head, 'event')}")
    try:
        connection = sqlite3.connect(file, timeout=5, isolation_level=None)
        try:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            schema = connection.execute("PRAGMA user_version").fetchone()[0]
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        finally:
            connection.close()
    except sqlite3.Error as error:
        return Check(
            "ledger", "fail", f"cannot be written: {error}", f"Check the permissions of {file} and its folder."
        )
    message = f"SQLite, schema {schema}, journal {mode}, {count(head, 'event')}"
    if mode != "wal":
        return Check("ledger", "warn", message, f"Keep {file} on a local disk; network file systems cannot share WAL.")
    return Check("ledger", "ok", message)


async def _leases(host: Host) -> Check:
    """Runs whose process has gone: nothing is wrong with them, somebody only has to come."""
    page = await host.runs(RunQuery(states=("running", "waiting"), limit=1000))
    now_us = host.clock.now_us()
    stale = [row for row in page.runs if row.owner and row.lease_until_us < now_us]
    if stale:
        return Check(
            "leases", "warn", f"{count(len(stale), 'run')} of processes that are gone", "atlas up --until-idle"
        )
    return Check("leases", "ok", "no run belongs to a process that is gone")


async def _inbox(host: Host) -> Check:
    entries = await host.inbox()
    doubts = sum(entry.kind == "doubt" for entry in entries)
    if doubts:
        return Check("inbox", "warn", f"{count(doubts, 'effect')} in doubt", "atlas inbox")
    waiting = f"{count(len(entries), 'approval')} waiting" if entries else "nothing waits for a person"
    return Check("inbox", "ok", waiting)


async def _worker(program: Program) -> Check:
    try:
        took_s = await program.probe_worker()
    except AtlasError as error:
        return _failed("worker", error)
    if took_s > SLOW_WORKER_S:
        return Check("worker", "warn", f"answered only after {took_s:.1f} s", "See what else keeps this machine busy.")
    return Check("worker", "ok", f"a worker process answered after {took_s:.2f} s")


def _failed(name: str, error: AtlasError) -> Check:
    where = f" at {error.where}" if error.where else ""
    return Check(name, "fail", f"{error.message}{where}", error.hint)
