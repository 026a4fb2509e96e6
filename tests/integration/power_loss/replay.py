"""Opens every folder that a loss of power could have left, and says what is missing there."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from atlas.kernel.errors import AtlasError, LedgerCorrupt, NotFound
from atlas.ledger.sqlite import SqliteLedger
from integration.power_loss import workload
from integration.power_loss.crash import Recording, crashes
from integration.power_loss.disk import Image
from integration.power_loss.picture import take_all
from integration.power_loss.strace_log import FLAGS


class Told(msgspec.Struct, frozen=True):
    """What the program had been told at a moment: the last commit of each run, and the blobs."""

    commits: dict[str, int]
    blobs: frozenset[str]


class Script(msgspec.Struct, frozen=True):
    """What the program wrote down: each run's picture after each commit, and what it had been told when."""

    pictures: dict[str, dict[bytes, int]]
    told: dict[int, Told]
    blobs: frozenset[str]


class Recovered(msgspec.Struct, frozen=True):
    """What a ledger holds after the power came back; `wrong` when it contradicts itself."""

    commits: dict[str, int] = {}
    blobs: frozenset[str] = frozenset()
    wrong: str = ""


def record(strace: str, folder: Path, weakness: str) -> Recording:
    """The program's system calls, from its first to its last."""
    recording = Recording(folder / "strace.log", folder / "vault", folder / "acknowledgements")
    recording.root.mkdir()
    recording.acknowledgements.touch()
    arguments = (str(recording.root), str(recording.acknowledgements), weakness)
    command = (sys.executable, "-m", "integration.power_loss.workload", *arguments)
    # Where this file's package and atlas are found; nothing else of the environment matters to the program.
    paths = [str(Path(__file__).parents[2]), *(path for path in sys.path if path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(
        [strace, *FLAGS, "-o", str(recording.log), *command], cwd=folder, env=environment, check=True, timeout=60
    )
    return recording


def read_script(recording: Recording) -> Script:
    """The acknowledgements, by how many bytes of them had been written."""
    pictures: dict[str, dict[bytes, int]] = {}
    commits: dict[str, int] = {}
    blobs: frozenset[str] = frozenset()
    told = {0: Told({}, blobs)}
    size = 0
    decoder = msgspec.json.Decoder(workload.Line)
    for text in recording.acknowledgements.read_bytes().splitlines(keepends=True):
        match decoder.decode(text):
            case workload.Acked(run_id, commit):
                commits = commits | {run_id: commit}
            case workload.Seen(run_id, commit, picture):
                pictures.setdefault(run_id, {})[bytes(picture)] = commit
            case workload.Kept(digest):
                blobs = blobs | {digest}
        size += len(text)
        told[size] = Told(commits, blobs)
    return Script(pictures, told, blobs)


class Replay:
    """One recording, judged state by state."""

    def __init__(self, recording: Recording, *, seed: int, samples: int) -> None:
        self._recording = recording
        self._seed = seed
        self._samples = samples
        self._script = read_script(recording)
        self.moments = 0
        self.opened = 0

    def losses(self) -> Iterator[str]:
        """What is wrong, for each crash state with which something is."""
        known: dict[bytes, Recovered] = {}
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="atlas-power-", dir=memory) as scratch, asyncio.Runner() as runner:
            for crash in crashes(self._recording, seed=self._seed, samples=self._samples):
                self.moments += 1
                found = known.get(crash.key)
                if found is None:
                    self.opened += 1
                    folder = Path(scratch) / str(self.opened)
                    _write(folder, crash.image)
                    found = known[crash.key] = runner.run(self._recover(folder))
                    shutil.rmtree(folder)
                loss = found.wrong or _missing(found, self._script.told[crash.acknowledged])
                if loss:
                    yield f"{loss} (power lost at line {crash.moment + 1} of the trace, kept {crash.kept})"

    async def _recover(self, folder: Path) -> Recovered:
        try:
            return await self._read(folder)
        except (AtlasError, AssertionError, sqlite3.Error) as error:
            return Recovered(wrong=f"the ledger cannot be read: {error}")

    async def _read(self, folder: Path) -> Recovered:
        ledger = workload.open_ledger(folder, workload.SystemClock())
        await ledger.open()
        try:
            commits: dict[str, int] = {}
            for run_id, picture in (await take_all(ledger)).items():
                commit = self._script.pictures.get(run_id, {}).get(picture)
                if commit is None:
                    return Recovered(wrong=f"{run_id} looks as it never did after a commit")
                commits[run_id] = commit
            found = [digest for digest in self._script.blobs if await _has_blob(ledger, digest)]
        finally:
            await ledger.close()
        return Recovered(commits, frozenset(found), _contradiction(folder))


async def _has_blob(ledger: SqliteLedger, digest: str) -> bool:
    # The bytes are checked against the name by the ledger.
    try:
        return len(await ledger.get_blob(digest)) == workload.BLOB_BYTES
    except (NotFound, LedgerCorrupt):
        return False


def _contradiction(folder: Path) -> str:
    """What the tables disagree about, and what SQLite itself finds wrong with the file."""
    connection = sqlite3.connect(folder / workload.DATABASE)
    try:
        [damage] = connection.execute("PRAGMA integrity_check").fetchone()
        if damage != "ok":
            return f"the file is damaged: {damage}"
        for left, right in (
            ("SELECT count(*) FROM run WHERE key <> ''", "SELECT count(*) FROM idempotency"),
            ("SELECT count(DISTINCT session_id) FROM run", "SELECT count(*) FROM session"),
            ("SELECT count(*) FROM run", "SELECT coalesce(sum(runs), 0) FROM tree"),
            ("SELECT total(cost_micro_usd) FROM run", "SELECT total(cost_micro_usd) FROM spend"),
        ):
            if connection.execute(left).fetchone() != connection.execute(right).fetchone():
                return f"half of a commit: {left} is not {right}"
        return ""
    finally:
        connection.close()


def _missing(found: Recovered, told: Told) -> str:
    for run_id, commit in told.commits.items():
        if found.commits.get(run_id, 0) < commit:
            return f"commit {commit} of {run_id} was acknowledged, and the ledger has {found.commits.get(run_id, 0)}"
    lost = told.blobs - found.blobs
    return f"blob {min(lost)} was acknowledged and is gone" if lost else ""


def _write(folder: Path, image: Image) -> None:
    folder.mkdir()
    for path in sorted(image):
        content = image[path]
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
