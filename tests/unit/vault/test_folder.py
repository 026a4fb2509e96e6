"""The folder vault: finding it, reading contracts and configuration, placing snapshots."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from atlas.kernel.config import Config
from atlas.kernel.errors import Conflict, Invalid, NotFound
from atlas.kernel.port import Vault
from atlas.vault.folder import FolderVault, find_vault
from atlas.vault.snapshot import content_hash

CONTRACT = "agent:\n  name: {name}\n  version: 1.0.0\n  description: d\n"


@pytest.fixture
def vault(vault_dir: Path) -> FolderVault:
    (vault_dir / "agents").mkdir(parents=True)
    add(vault_dir, "echo")
    (vault_dir / "agents/echo/agent.py").write_text("code")
    add(vault_dir, "adviser")
    return FolderVault(vault_dir)


def add(root: Path, folder: str, text: str = "") -> Path:
    place = root / "agents" / folder
    place.mkdir()
    (place / "agent.yaml").write_text(text or CONTRACT.format(name=folder))
    return place


def place(vault: FolderVault, name: str) -> tuple[str, str]:
    snapshot = vault.snapshot(name)
    return snapshot.digest, vault.place(snapshot.digest, {path: vault.read(name, path) for path in snapshot.files})


def test_it_is_the_port(vault: FolderVault) -> None:
    port: Vault = vault
    assert port.agents() == ["adviser", "echo"]


def test_the_vault_is_found_by_option_environment_configuration_or_home(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work" / "deep"
    work.mkdir(parents=True)
    assert find_vault(None, {}, work, home) == home / "atlas"
    (tmp_path / "work" / "atlas.config.yaml").touch()
    assert find_vault(None, {}, work, home) == tmp_path / "work"
    assert find_vault(None, {"ATLAS_VAULT": ""}, work, home) == tmp_path / "work"
    assert find_vault(None, {"ATLAS_VAULT": "/v"}, work, home) == Path("/v")
    assert find_vault("x", {"ATLAS_VAULT": "/v"}, work, home) == work / "x"
    assert find_vault("../x", {}, work, home) == tmp_path / "work" / "x"
    assert find_vault("~/x", {}, work, home) == home / "x"
    assert find_vault("~", {}, work, home) == home
    assert find_vault(Path("/p"), {}, work, home) == Path("/p")


def test_agents_are_the_folders_with_a_contract(vault: FolderVault) -> None:
    (vault.root / "agents/empty").mkdir()
    (vault.root / "agents/.hidden").mkdir()
    (vault.root / "agents/.hidden/agent.yaml").touch()
    (vault.root / "agents/readme.md").touch()
    assert vault.agents() == ["adviser", "echo"]


def test_a_vault_without_agents_has_none(tmp_path: Path) -> None:
    assert FolderVault(tmp_path).agents() == []


def test_the_runtime_follows_from_the_files(vault: FolderVault) -> None:
    assert vault.contract("echo").runtime == "python"
    assert vault.contract("adviser").runtime == "prompt"


def test_a_python_agent_without_code_is_refused_at_its_runtime(vault: FolderVault) -> None:
    add(vault.root, "bare", CONTRACT.format(name="bare") + "  runtime: python\n")
    with pytest.raises(Invalid) as caught:
        vault.contract("bare")
    (problem,) = caught.value.problems
    assert (problem.code, problem.line) == ("missing_code", 5)
    assert problem.path == str(vault.root / "agents/bare/agent.yaml")


def test_an_agent_and_its_folder_have_one_name(vault: FolderVault) -> None:
    add(vault.root, "other", CONTRACT.format(name="another"))
    with pytest.raises(Invalid) as caught:
        vault.contract("other")
    assert (caught.value.reason, caught.value.problems[0].line) == ("name_mismatch", 2)


def test_an_unknown_agent_is_not_found_and_the_nearest_is_named(vault: FolderVault) -> None:
    with pytest.raises(NotFound) as caught:
        vault.contract("eccho")
    assert caught.value.hint == "did you mean echo?"
    with pytest.raises(NotFound) as caught:
        vault.contract("zzzzzz")
    assert caught.value.hint == "the agents are adviser, echo"


@pytest.mark.parametrize("name", ["", ".", "..", "../agents/echo", "echo/../echo", "/etc", ".atlas", "a\0b", "echo\n"])
def test_no_name_leads_out_of_the_agents(vault: FolderVault, name: str) -> None:
    for ask in (vault.contract, vault.snapshot):
        with pytest.raises(NotFound):
            ask(name)


def test_an_agent_that_is_a_link_out_of_the_vault_is_refused(vault: FolderVault, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(vault.root / "agents/echo", outside)
    (vault.root / "agents/linked").symlink_to(outside)
    (tmp_path / "contract").write_text(CONTRACT.format(name="half"))
    (vault.root / "agents/half").mkdir()
    (vault.root / "agents/half/agent.yaml").symlink_to(tmp_path / "contract")
    for name in ("linked", "half"):
        for ask in (vault.contract, vault.snapshot):
            with pytest.raises(Invalid) as caught:
                ask(name)
            assert caught.value.reason == "unsafe_path"


def test_an_unreadable_contract_is_a_problem_of_that_file(vault: FolderVault) -> None:
    file = vault.root / "agents/echo/agent.yaml"
    file.write_bytes(b"x" * 2_000_000)
    with pytest.raises(Invalid) as caught:
        vault.contract("echo")
    assert caught.value.reason == "file_too_large"
    assert vault.contract("adviser").name == "adviser"


def test_the_configuration_is_optional_but_not_the_vault(vault: FolderVault) -> None:
    assert vault.config() == Config()
    (vault.root / "atlas.config.yaml").write_text("execution: {max_spawn_depth: 2}\n")
    assert vault.config().execution.max_spawn_depth == 2
    (vault.root / "atlas.config.yaml").write_text("execution: {max_spawn_dept: 2}\n")
    with pytest.raises(Invalid) as caught:
        vault.config()
    assert caught.value.problems[0].hint == "did you mean max_spawn_depth?"
    with pytest.raises(NotFound) as missing:
        FolderVault(vault.root / "not here").config()
    assert missing.value.hint.endswith("/not here'; or name yours by --vault")


def test_a_snapshot_is_placed_whole_and_found_again(vault: FolderVault) -> None:
    snapshot = vault.snapshot("echo")
    assert vault.placed(snapshot.digest) is None
    digest, folder = place(vault, "echo")
    assert vault.placed(digest) == folder
    assert (Path(folder) / "agent.py").read_text() == "code"
    contract = vault.contract_in(folder)
    assert (contract.name, contract.runtime) == ("echo", "python")
    assert vault.place(digest, {path: vault.read("echo", path) for path in snapshot.files}) == folder


def test_a_placed_snapshot_stays_what_it_was_when_the_agent_changes(vault: FolderVault) -> None:
    _, folder = place(vault, "echo")
    (vault.root / "agents/echo/agent.py").write_text("newer")
    assert (Path(folder) / "agent.py").read_text() == "code"
    newer, other = place(vault, "echo")
    assert other != folder
    assert (Path(other) / "agent.py").read_text() == "newer"
    assert newer == vault.snapshot("echo").digest


@pytest.mark.parametrize("damage", ["change", "remove", "add"])
def test_a_damaged_placement_is_noticed_and_replaced(vault: FolderVault, damage: str) -> None:
    digest, folder = place(vault, "echo")
    file = Path(folder) / "agent.py"
    if damage == "change":
        file.chmod(0o644)
        file.write_text("tampered")
    elif damage == "remove":
        file.unlink()
    else:
        (Path(folder) / "extra.py").touch()
    assert vault.placed(digest) is None
    assert place(vault, "echo") == (digest, folder)
    assert vault.placed(digest) == folder
    assert [path.name for path in (vault.root / ".atlas/snapshots").iterdir()] == [digest]


def test_files_that_are_not_the_snapshot_are_not_placed(vault: FolderVault) -> None:
    snapshot = vault.snapshot("echo")
    with pytest.raises(Invalid) as caught:
        vault.place(snapshot.digest, {"agent.yaml": b"something else"})
    assert caught.value.reason == "snapshot_mismatch"
    assert vault.placed(snapshot.digest) is None


def test_a_manifest_from_elsewhere_cannot_write_outside(vault: FolderVault) -> None:
    from atlas.vault.snapshot import snapshot_digest

    files = {"../../../evil": b"x"}
    digest = snapshot_digest({path: content_hash(data) for path, data in files.items()})
    with pytest.raises(Invalid) as caught:
        vault.place(digest, files)
    assert caught.value.reason == "unsafe_path"
    assert not list(vault.root.rglob("evil"))
    with pytest.raises(Invalid):
        vault.placed("../../agents/echo")


def test_a_broken_contract_is_shown_in_the_file_that_people_edit(vault: FolderVault) -> None:
    place(vault, "echo")
    file = vault.root / "agents/echo/agent.yaml"
    file.write_text(file.read_text() + "  oops: 1\n")
    with pytest.raises(Invalid) as caught:
        vault.snapshot("echo")
    assert caught.value.where == f"{file}:5:3"


def test_files_are_read_and_written_by_what_they_were(vault: FolderVault) -> None:
    first = vault.write("agents/echo/memory/a.md", b"one", expect=None)
    assert vault.read_file("agents/echo/memory/a.md") == b"one"
    vault.write("agents/echo/memory/a.md", b"two", expect=first)
    with pytest.raises(Conflict):
        vault.write("agents/echo/memory/a.md", b"three", expect=first)
    assert vault.read_file("agents/echo/memory/a.md") == b"two"
    with pytest.raises(NotFound):
        vault.read_file("missing")


def test_the_runtimes_own_files_are_out_of_reach(vault: FolderVault, tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        vault.write(".atlas/ledger.db", b"", expect=None)
    (tmp_path / "secret").write_text("x")
    (vault.root / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(Invalid):
        vault.read_file("link")
    with pytest.raises(Invalid):
        vault.read_file("../secret")


def test_the_vault_itself_may_be_a_link(vault: FolderVault, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(vault.root)
    linked = FolderVault(tmp_path / "linked")
    assert linked.contract("echo").name == "echo"
    assert linked.snapshot("echo") == vault.snapshot("echo")
    linked.write("note.md", b"x", expect=None)
    assert vault.read_file("note.md") == b"x"
