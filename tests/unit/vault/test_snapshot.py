"""What a run pins: which files, under which name, and what is refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from atlas.kernel.errors import Invalid, NotFound
from atlas.vault import snapshot
from atlas.vault.snapshot import content_hash, pinned_files, read_pinned, safe_parts, snapshot_digest


def write(folder: Path, *paths: str) -> None:
    for path in paths:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)


def digest(folder: Path) -> str:
    return snapshot_digest(pinned_files(folder))


def refusal(folder: Path) -> Invalid:
    with pytest.raises(Invalid) as caught:
        pinned_files(folder)
    assert caught.value.problems[0].path
    return caught.value


def test_code_and_contract_are_pinned_by_content(tmp_path: Path) -> None:
    write(tmp_path, "agent.yaml", "agent.py", "tools/mail.py", "skills/a/SKILL.md", "tools/log/x.py")
    assert pinned_files(tmp_path) == {
        path: content_hash(path.encode())
        for path in ("agent.py", "agent.yaml", "skills/a/SKILL.md", "tools/log/x.py", "tools/mail.py")
    }


def test_what_people_keep_writing_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "agent.yaml")
    before = digest(tmp_path)
    write(
        tmp_path, "goal.md", "mandates.yaml", ".hidden", ".git/config", "__pycache__/a.pyc", "tools/__pycache__/b.pyc"
    )
    for name in ("persona", "memory", "wiki", "raw", "journal", "log", "evals", "inbox"):
        write(tmp_path, f"{name}/note.md", f"{name}/deep/er.md")
    assert digest(tmp_path) == before


def test_the_digest_follows_content_and_paths_and_nothing_else(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, "agent.yaml", "a.py", "b.py")
    write(two, "b.py", "a.py", "agent.yaml")
    os.utime(two / "a.py", (1, 1))
    (two / "b.py").chmod(0o755)
    assert digest(one) == digest(two)
    (two / "a.py").write_text("changed")
    assert digest(one) != digest(two)
    (two / "a.py").write_text("a.py")
    (two / "a.py").rename(two / "c.py")
    assert digest(one) != digest(two)


def test_the_order_of_the_manifest_does_not_matter() -> None:
    assert snapshot_digest({"b": "1", "a": "2"}) == snapshot_digest({"a": "2", "b": "1"})


def test_a_link_inside_the_folder_is_the_file_it_leads_to(tmp_path: Path) -> None:
    write(tmp_path, "agent.yaml", "real.py")
    (tmp_path / "link.py").symlink_to("real.py")
    assert pinned_files(tmp_path)["link.py"] == content_hash(b"real.py")
    assert read_pinned(tmp_path, "link.py") == b"real.py"


@pytest.mark.parametrize(
    "target, words",
    [
        ("../secret", "out of"),
        ("/etc/passwd", "out of"),
        ("nowhere", "nowhere"),
        ("link", "nowhere"),
        ("tools", "file"),
    ],
)
def test_a_link_that_leads_elsewhere_is_refused(tmp_path: Path, target: str, words: str) -> None:
    folder = tmp_path / "agent"
    write(folder, "agent.yaml", "tools/a.py")
    write(tmp_path, "secret")
    (folder / "link").symlink_to(target)
    error = refusal(folder)
    assert error.reason == "snapshot_symlink"
    assert words in error.message
    with pytest.raises(Invalid):
        read_pinned(folder, "link")


def test_a_linked_folder_is_not_a_way_out_either(tmp_path: Path) -> None:
    write(tmp_path, "agent/agent.yaml", "outside/x.py")
    (tmp_path / "agent" / "tools").symlink_to(tmp_path / "outside")
    assert refusal(tmp_path / "agent").reason == "snapshot_symlink"
    with pytest.raises(Invalid):
        read_pinned(tmp_path / "agent", "tools/x.py")


def test_only_regular_files_count(tmp_path: Path) -> None:
    write(tmp_path, "agent.yaml")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(".", os.O_RDONLY)
        os.chdir(tmp_path)  # a unix socket's path is short
        try:
            server.bind("sock")
        finally:
            os.fchdir(here)
            os.close(here)
        assert list(pinned_files(tmp_path)) == ["agent.yaml"]


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    for number in range(snapshot.MAX_FILES + 1):
        (tmp_path / str(number)).touch()
    assert refusal(tmp_path).reason == "snapshot_too_many"


def test_too_many_bytes_are_refused_without_reading_them(tmp_path: Path) -> None:
    with (tmp_path / "model.bin").open("wb") as file:
        file.truncate(snapshot.MAX_TOTAL_BYTES + 1)  # sparse: takes no space
    error = refusal(tmp_path)
    assert error.reason == "snapshot_too_large"
    assert "64 MiB" in error.message


def test_folders_without_end_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "/".join(["d"] * (snapshot.MAX_DEPTH + 1)) + "/file")
    assert refusal(tmp_path).reason == "snapshot_too_deep"


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.py")).touch()
    assert refusal(tmp_path).reason == "snapshot_name"


@pytest.mark.parametrize("path", ["", "/", "/etc/passwd", "..", "a/../../b", "./a", "a//b", "a/", "a\0b", "a\\b"])
def test_a_path_that_could_lead_out_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(Invalid):
        safe_parts(path)
    with pytest.raises(Invalid):
        read_pinned(tmp_path, path)


def test_only_pinned_files_can_be_read(tmp_path: Path) -> None:
    write(tmp_path, "agent.yaml", "memory/x.md", ".env")
    assert read_pinned(tmp_path, "agent.yaml") == b"agent.yaml"
    for path in ("memory/x.md", ".env", "missing.py"):
        with pytest.raises((NotFound, Invalid)):
            read_pinned(tmp_path, path)


def test_a_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        pinned_files(tmp_path / "nothing")
