"""Blobs as files: durable before they are named, verified when read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from atlas.kernel.errors import LedgerCorrupt, LedgerUnavailable, NotFound
from atlas.ledger.blob import FileBlobs
from atlas.testing.clock import FakeClock


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(tmp_path / "deep" / "blobs", FakeClock())


def place(tmp_path: Path, digest: str) -> Path:
    return tmp_path / "deep" / "blobs" / digest[:2] / digest[2:]


def test_a_blob_lies_under_the_name_of_its_bytes(tmp_path: Path, blobs: FileBlobs) -> None:
    digest = blobs.put(b"hello")
    assert digest == hashlib.sha256(b"hello").hexdigest()
    assert place(tmp_path, digest).read_bytes() == b"hello"
    assert blobs.get(digest) == b"hello"


def test_nothing_but_blobs_is_left_behind(tmp_path: Path, blobs: FileBlobs) -> None:
    digests = {blobs.put(data) for data in (b"a", b"b", b"a")}
    files = {path for path in (tmp_path / "deep").rglob("*") if path.is_file()}
    assert files == {place(tmp_path, digest) for digest in digests}


def test_altered_bytes_are_not_given_out(tmp_path: Path, blobs: FileBlobs) -> None:
    digest = blobs.put(b"hello")
    place(tmp_path, digest).write_bytes(b"hellO")
    with pytest.raises(LedgerCorrupt) as caught:
        blobs.get(digest)
    assert caught.value.where == str(place(tmp_path, digest))


def test_putting_a_damaged_blob_again_heals_it(tmp_path: Path, blobs: FileBlobs) -> None:
    digest = blobs.put(b"hello")
    place(tmp_path, digest).write_bytes(b"")
    assert blobs.put(b"hello") == digest
    assert blobs.get(digest) == b"hello"


def test_bytes_are_found_only_while_their_file_is_the_one_that_was_synced(tmp_path: Path, blobs: FileBlobs) -> None:
    assert blobs.find(b"hello") is None
    digest = blobs.put(b"hello")
    assert blobs.find(b"hello") == digest
    assert FileBlobs(tmp_path / "deep" / "blobs", FakeClock()).find(b"hello") is None, "another process must sync"
    twin = tmp_path / "twin"
    twin.write_bytes(b"hello")
    twin.rename(place(tmp_path, digest))
    assert blobs.find(b"hello") is None
    blobs.put(b"hello")
    place(tmp_path, digest).write_bytes(b"hellO")
    assert blobs.find(b"hello") is None
    blobs.put(b"hello")
    place(tmp_path, digest).unlink()
    assert blobs.find(b"hello") is None


@pytest.mark.parametrize("name", ["", "0" * 64, "0" * 63, "../" * 20 + "etc/passwd", "G" * 64])
def test_what_is_no_blob_is_not_found(blobs: FileBlobs, name: str) -> None:
    with pytest.raises(NotFound):
        blobs.get(name)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LedgerUnavailable) as caught:
        FileBlobs(tmp_path / "file" / "blobs", FakeClock()).put(b"x")
    assert caught.value.hint


def test_bytes_and_names_are_synced_in_order(tmp_path: Path, strace: str) -> None:
    """The data is synced before the rename, the folders after it; then the digest is given out."""
    import subprocess
    import sys

    (tmp_path / "b").mkdir()  # as by another process that has not come to sync its name yet
    script = (
        "import os, sys; from pathlib import Path; from atlas.ledger.blob import FileBlobs;"
        "from atlas.testing.clock import FakeClock; blobs = FileBlobs(Path(sys.argv[1]), FakeClock());"
        "print(blobs.put(b'hello'), flush=True); print(blobs.put(b'hello'), flush=True)"
    )
    log = tmp_path / "log"
    calls = "trace=fsync,rename,write"
    command = [strace, "-f", "-y", "-e", calls, "-o", str(log), sys.executable, "-c", script, str(tmp_path / "b")]
    subprocess.run(command, check=True, capture_output=True)
    lines = [line for line in log.read_text().splitlines() if str(tmp_path) in line or "write(1<" in line]
    digest = hashlib.sha256(b"hello").hexdigest()
    folder = f"{tmp_path}/b/{digest[:2]}"

    def first(text: str) -> int:
        return next(number for number, line in enumerate(lines) if text in line)

    renamed = first("rename(")
    assert f"{folder}/." in lines[first(".tmp>")], "the bytes go to a draft in the same folder"
    assert any("fsync(" in line and ".tmp>" in line for line in lines[:renamed])
    after = [line for line in lines[renamed:] if "fsync(" in line or "write(1<" in line]
    assert f"{folder}>" in after[0]
    assert f"{tmp_path}/b>" in after[1]
    assert f"{tmp_path}>" in after[2]
    assert "write(1<" in after[3]
    syncs = [line for line in after if "fsync(" in line]
    assert len(syncs) == 5, "the second time, the name of the folder itself is on disk"
    assert os.path.exists(f"{folder}/{digest[2:]}")
