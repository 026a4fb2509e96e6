"""Writing a file: all or nothing, never over what somebody saved meanwhile, never outside the vault."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from atlas.kernel.errors import Conflict, Invalid, Unavailable
from atlas.vault.atomic import write_file
from atlas.vault.snapshot import content_hash


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def put(root: Path, path: str, data: bytes, expect: str | None = None) -> str:
    return write_file(root, path, data, expect=expect, lock=root / ".atlas" / "write.lock")


def leftovers(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*.tmp")]


def test_a_new_file_is_made_with_its_folders(root: Path) -> None:
    assert put(root, "a/b/note.md", b"hello") == content_hash(b"hello")
    assert (root / "a/b/note.md").read_bytes() == b"hello"
    assert leftovers(root) == []


def test_a_file_that_exists_is_never_overwritten_by_a_new_one(root: Path) -> None:
    (root / "note.md").write_bytes(b"theirs")
    with pytest.raises(Conflict):
        put(root, "note.md", b"ours")
    assert (root / "note.md").read_bytes() == b"theirs"
    assert leftovers(root) == []


def test_the_expected_content_is_replaced_and_keeps_its_permissions(root: Path) -> None:
    file = root / "note.md"
    file.write_bytes(b"old")
    file.chmod(0o640)
    put(root, "note.md", b"new", content_hash(b"old"))
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o640
    assert leftovers(root) == []


def test_an_edit_in_between_is_a_conflict_and_stays(root: Path) -> None:
    (root / "note.md").write_bytes(b"edited by a person")
    with pytest.raises(Conflict) as caught:
        put(root, "note.md", b"ours", content_hash(b"what we read"))
    assert caught.value.reason == "changed_meanwhile"
    assert (root / "note.md").read_bytes() == b"edited by a person"


def test_a_deleted_file_is_a_conflict_and_stays_deleted(root: Path) -> None:
    with pytest.raises(Conflict):
        put(root, "note.md", b"ours", content_hash(b"what we read"))
    assert not (root / "note.md").exists()


def test_links_are_never_followed(root: Path) -> None:
    outside = root / "outside"
    outside.mkdir()
    (outside / "target").write_bytes(b"old")
    vault = root / "vault"
    vault.mkdir()
    (vault / "folder").symlink_to(outside)
    (vault / "file").symlink_to(outside / "target")
    with pytest.raises(Invalid) as caught:
        put(vault, "folder/new", b"x")
    assert caught.value.reason == "unsafe_path"
    with pytest.raises(Invalid):
        put(vault, "file", b"x", content_hash(b"old"))
    with pytest.raises(Conflict):
        put(vault, "file", b"x")
    assert (outside / "target").read_bytes() == b"old"
    assert sorted(path.name for path in outside.iterdir()) == ["target"]


def test_a_file_where_a_folder_should_be_is_refused(root: Path) -> None:
    (root / "a").write_bytes(b"")
    with pytest.raises(Invalid):
        put(root, "a/b", b"x")


@pytest.mark.parametrize("path", ["../x", "/tmp/x", "a/../../x", "", "a//b", "."])
def test_no_path_leads_out(root: Path, path: str) -> None:
    with pytest.raises(Invalid):
        put(root, path, b"x")


def test_a_vault_that_is_not_there_is_not_made(root: Path) -> None:
    with pytest.raises(Unavailable):
        put(root / "nothing", "a", b"x")
    assert not (root / "nothing").exists()


def test_of_many_writers_that_saw_the_same_exactly_one_wins(root: Path) -> None:
    """Every writer replaces what it read and counts its wins: the file has had exactly that many versions."""
    file = root / "counter"
    file.write_bytes(b"0")
    wins: list[int] = []

    def work() -> None:
        won = 0
        while won < 15:
            seen = file.read_bytes()
            try:
                put(root, "counter", str(int(seen) + 1).encode(), content_hash(seen))
            except Conflict:
                continue
            won += 1
        wins.append(won)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(file.read_bytes()) == sum(wins) == 60


WRITER = """
import sys
from pathlib import Path
from atlas.kernel.errors import Conflict
from atlas.vault.atomic import write_file
from atlas.vault.snapshot import content_hash
root = Path(sys.argv[1])
try:
    write_file(root, "note.md", b"atlas", expect=content_hash(b"start"), lock=root / ".atlas/lock")
    print("written")
except Conflict as error:
    print(error.reason)
"""


@pytest.mark.parametrize("saves", [1, 2], ids=["saves once", "saves again while the first save is put back"])
def test_a_person_who_saves_in_the_last_instant_keeps_the_text(root: Path, strace: str, saves: int) -> None:
    """The exchange is held up between the look at the file and the write, long enough for an editor to save."""
    file = root / "note.md"
    file.write_bytes(b"start")
    hold = ["-e", "trace=renameat2", "-e", "inject=renameat2:delay_enter=700000"]
    command = [strace, "-f", "-o", os.devnull, *hold, sys.executable, "-c", WRITER, str(root)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: any(path.read_bytes() == b"atlas" for path in root.glob(".note.md.*.tmp")))
    time.sleep(0.3)  # the last call before the exchange is made by now
    save(file, b"person 1")
    if saves == 2:
        wait_until(lambda: file.read_bytes() == b"atlas")  # the exchange took the first save out
        save(file, b"person 2")
    answer, _ = writer.communicate(timeout=60)
    assert answer.strip() == "changed_meanwhile"
    assert file.read_bytes() == f"person {saves}".encode()
    assert leftovers(root) == []


def save(file: Path, data: bytes) -> None:
    """As editors do: a new file that takes the place of the old one."""
    swap = file.with_name("swap")
    swap.write_bytes(data)
    swap.rename(file)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_data_is_synced_before_it_gets_its_name_and_the_folder_after(root: Path, strace: str) -> None:
    """Power loss at any instant leaves the old or the new file: the order of system calls says so."""
    script = (
        "from pathlib import Path; from atlas.vault.atomic import write_file; import sys\n"
        "root = Path(sys.argv[1]); old = write_file(root, 'note', b'old', expect=None, lock=root / '.atlas/lock')\n"
        "write_file(root, 'note', b'new', expect=old, lock=root / '.atlas/lock')\n"
    )
    log = root / "calls"
    calls = "fsync,linkat,renameat2,rename,renameat"
    subprocess.run(
        [strace, "-f", "-o", str(log), "-e", f"trace={calls}", sys.executable, "-c", script, str(root)], check=True
    )
    names = [line.split("(")[0].split()[-1] for line in log.read_text().splitlines() if "(" in line]
    assert names == ["fsync", "linkat", "fsync", "fsync", "renameat2", "fsync"]


def test_what_the_system_refuses_is_said_and_leaves_nothing_behind(root: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        put(root, "n" * 300, b"x")
    assert caught.value.reason == "vault_unwritable"
    assert "too long" in caught.value.message
    assert [path.name for path in root.iterdir()] == [".atlas"]
