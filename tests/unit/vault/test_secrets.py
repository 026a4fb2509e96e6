"""Where the secrets of a vault come from, and what is refused before anything leaks."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from atlas.kernel.errors import Invalid, Unavailable
from atlas.vault.secrets import LayeredSecrets, open_secrets
from atlas.vault.secrets_dotenv import parse_dotenv
from atlas.vault.secrets_keyring import KeyringSource


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    (tmp_path / "vault").mkdir()
    return tmp_path / "vault"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def file_of(home: dict[str, str]) -> Path:
    return Path(home["XDG_CONFIG_HOME"]) / "atlas" / "secrets.json"


def test_the_environment_comes_before_the_file_of_the_vault_and_that_before_the_users(
    vault: Path, home: dict[str, str]
) -> None:
    open_secrets(vault, home).set("A", "from the file")
    assert open_secrets(vault, home).get("A") == "from the file"
    (vault / ".env.local").write_text("A=from the vault\n")
    assert open_secrets(vault, home).get("A") == "from the vault"
    store = open_secrets(vault, {**home, "A": "from the environment"})
    assert (store.get("A"), store.source("A")) == ("from the environment", "environment")


def test_an_empty_variable_is_no_value(vault: Path, home: dict[str, str]) -> None:
    (vault / ".env.local").write_text("A=\n")
    assert open_secrets(vault, {**home, "A": ""}, ["A"]).names() == ()


def test_names_are_found_as_variables_are_spelled(vault: Path, home: dict[str, str]) -> None:
    assert open_secrets(vault, {**home, "LAB_KEY": "value one"}).get("lab.key") == "value one"
    (vault / ".env.local").write_text("OTHER_KEY=value two\n")
    assert open_secrets(vault, home).get("other-key") == "value two"


def test_only_declared_variables_are_listed(vault: Path, home: dict[str, str]) -> None:
    environ = {**home, "PATH": "/bin:/usr/bin", "API_TOKEN": "value one"}
    assert open_secrets(vault, environ, ["API_TOKEN", "UNSET"]).names() == ("API_TOKEN",)


def test_a_changed_file_counts_at_the_next_call(vault: Path, home: dict[str, str]) -> None:
    store = open_secrets(vault, home)
    (vault / ".env.local").write_text("A=first value\n")
    assert store.get("A") == "first value"
    (vault / ".env.local").write_text("A=second value!\n")
    assert store.get("A") == "second value!"


def test_a_short_value_is_refused_wherever_it_comes_from(vault: Path, home: dict[str, str]) -> None:
    (vault / ".env.local").write_text("PIN=12z45\n")
    with pytest.raises(Invalid) as caught:
        open_secrets(vault, home).get("PIN")
    assert caught.value.reason == "secret_too_short"
    assert "12z45" not in str(caught.value) + caught.value.hint


def test_the_file_is_for_its_owner_alone(vault: Path, home: dict[str, str]) -> None:
    before = os.umask(0)
    try:
        open_secrets(vault, home).set("A", "value one")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file_of(home).stat().st_mode) == 0o600
    assert stat.S_IMODE(file_of(home).parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610])
def test_a_file_that_others_can_use_is_refused_with_the_fix(vault: Path, home: dict[str, str], mode: int) -> None:
    store = open_secrets(vault, home)
    store.set("A", "value one")
    file_of(home).chmod(mode)
    for act in (lambda: store.get("A"), store.names, lambda: store.set("B", "value two")):
        with pytest.raises(Invalid) as caught:
            act()
        assert caught.value.reason == "secrets_file_open"
        assert "chmod 600" in caught.value.hint


def test_a_broken_file_is_refused_and_not_shown(vault: Path, home: dict[str, str]) -> None:
    store = open_secrets(vault, home)
    store.set("A", "value one")
    file_of(home).write_text('{"vaults": {"x": {"A": "value one"')
    with pytest.raises(Invalid) as caught:
        store.get("A")
    assert caught.value.reason == "secrets_file_invalid"
    assert caught.value.__cause__ is None
    assert "value one" not in str(caught.value) + caught.value.detail


def test_one_vault_cannot_name_what_was_set_for_another(tmp_path: Path, vault: Path, home: dict[str, str]) -> None:
    open_secrets(vault, home).set("A", "value one")
    other = open_secrets(tmp_path / "other", home)
    assert (other.get("A"), other.names()) == (None, ())
    other.set("A", "value two")
    other.remove("A")
    assert open_secrets(vault, home).get("A") == "value one"


def test_nothing_is_written_into_the_vault(vault: Path, home: dict[str, str]) -> None:
    open_secrets(vault, home).set("A", "value one")
    assert list(vault.rglob("*")) == []


def test_processes_that_set_at_once_lose_nothing(vault: Path, home: dict[str, str]) -> None:
    code = (
        "import sys; from pathlib import Path; from atlas.vault.secrets import open_secrets\n"
        "for n in range(20): open_secrets(Path(sys.argv[1]), {'XDG_CONFIG_HOME': sys.argv[2]})"
        ".set(f'{sys.argv[3]}{n}', 'value one')"
    )
    words = [sys.executable, "-c", code, str(vault), home["XDG_CONFIG_HOME"]]
    running = [subprocess.Popen([*words, letter]) for letter in "ABC"]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(open_secrets(vault, home).names()) == 60


def test_without_a_home_there_is_nowhere_to_keep_and_nothing_to_read(vault: Path) -> None:
    with pytest.raises(Invalid) as caught:
        open_secrets(vault, {}).set("A", "value one")
    assert caught.value.reason == "secrets_nowhere"
    assert open_secrets(None, {"A": "value one"}, ["A"]).names() == ("A",)


def test_a_keyring_that_fails_says_so_without_the_value() -> None:
    class Locked:
        def get_password(self, service: str, name: str) -> None:
            raise OSError("cannot open for value one")

    with pytest.raises(Unavailable) as caught:
        LayeredSecrets([], [KeyringSource(Locked(), OSError, "/vault")]).get("A")
    assert "value one" not in str(caught.value)


def test_env_local_is_read_as_it_is_written() -> None:
    text = """\
# a comment
A=plain value # with a mark
 export B = 'single $quoted\\n'
C="line one\\nline \\"two\\" \\\\ \\$3"
D=
E=x=y=z
"""
    assert parse_dotenv(text, ".env.local") == {
        "A": "plain value # with a mark",
        "B": "single $quoted\\n",
        "C": 'line one\nline "two" \\ $3',
        "D": "",
        "E": "x=y=z",
    }


@pytest.mark.parametrize(
    "line", ["s3cr3t", "=s3cr3t", "A B=s3cr3t", "A='s3cr3t", 'A="s3cr3t', 'A="s3\\q"', "A='s3'cr3t'", 'A="s3"cr3t"']
)
def test_a_line_that_cannot_be_read_is_placed_and_not_shown(line: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_dotenv(f"A=fine\n\n{line}\n", ".env.local")
    (problem,) = caught.value.problems
    assert problem.where == ".env.local:3:1"
    assert "s3" not in problem.message + problem.hint


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        parse_dotenv("A=one\nA=two\n", ".env.local")
    assert caught.value.reason == "dotenv_twice"


def run_with(folder: Path, code: str) -> str:
    """What a program prints that finds the packages in `folder` installed."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_RING = """\
entries = {}
class Backend: priority = %s
def get_keyring(): return Backend()
def get_password(service, name): return entries.get((service, name))
def set_password(service, name, value): entries[service, name] = value
"""


@pytest.mark.parametrize("priority, place", [(5, "keyring"), (0, "file")])
def test_an_installed_keyring_is_used_when_it_has_a_backend(
    tmp_path: Path, vault: Path, priority: int, place: str
) -> None:
    package = tmp_path / "site" / "keyring"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_RING % priority)
    (package / "errors.py").write_text("class KeyringError(Exception): pass\n")
    code = f"""
from pathlib import Path
from atlas.vault.secrets import open_secrets
store = open_secrets(Path({str(vault)!r}), {{"HOME": {str(tmp_path)!r}}})
print(store.set("A", "value one"), store.get("A") == "value one", store.names())
"""
    assert run_with(tmp_path / "site", code) == f"{place} True ('A',)"


def test_a_store_of_an_installed_package_is_asked_last(tmp_path: Path, vault: Path) -> None:
    site = tmp_path / "site"
    (site / "cloud-1.dist-info").mkdir(parents=True)
    (site / "cloud-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: cloud\nVersion: 1\n")
    (site / "cloud-1.dist-info" / "entry_points.txt").write_text("[atlas.secrets]\ncloud = cloud:Cloud\n")
    (site / "cloud.py").write_text(
        "class Cloud:\n"
        "    label = 'cloud'\n"
        "    def __init__(self, vault, environ): pass\n"
        "    def get(self, name): return f'{name} in the cloud' if name != 'NONE' else None\n"
        "    def names(self): return []\n"
    )
    (vault / ".env.local").write_text("A=from the vault\n")
    code = f"""
from pathlib import Path
from atlas.vault.secrets import open_secrets
store = open_secrets(Path({str(vault)!r}), {{}})
print(store.get("A"), "|", store.get("B"), "|", store.source("B"), "|", store.get("NONE"))
"""
    assert run_with(site, code) == "from the vault | B in the cloud | cloud | None"
