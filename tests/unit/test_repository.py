"""The repository's own promises: no way out to the network, rooms that hold, sizes, pins, links and a whole wheel."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

import netguard
from atlas.kernel import event
from atlas.kernel.run import RunState

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# Documentation addresses (RFC 5737, RFC 3849) and a reserved name: nothing answers there, and nothing is ever sent.
FAR = "192.0.2.1"
FAR_V6 = "2001:db8::1"
FAR_NAME = "atlas.invalid"

MAKE = re.compile(r"(?:^|`)make ([a-z-]+)", re.MULTILINE)
ROOMS = ("app", "cli", "testing", "control", "vault", "ledger", "engine", "models", "tools", "kernel")


@pytest.mark.parametrize(
    "reach",
    [
        pytest.param(lambda tcp, udp: tcp.connect((FAR, 9)), id="connect"),
        pytest.param(lambda tcp, udp: tcp.connect_ex((FAR, 9)), id="connect_ex"),
        pytest.param(lambda tcp, udp: udp.sendto(b"x", (FAR, 9)), id="sendto"),
        pytest.param(lambda tcp, udp: udp.sendmsg([b"x"], [], 0, (FAR, 9)), id="sendmsg"),
        pytest.param(lambda tcp, udp: tcp.bind(("0.0.0.0", 0)), id="bind everywhere"),
        pytest.param(lambda tcp, udp: tcp.bind(("", 0)), id="bind to nothing in particular"),
        pytest.param(lambda tcp, udp: socket.getaddrinfo(FAR_NAME, 443), id="getaddrinfo"),
        pytest.param(lambda tcp, udp: socket.getaddrinfo(FAR_NAME.encode(), 443), id="getaddrinfo in bytes"),
        pytest.param(lambda tcp, udp: socket.getaddrinfo("127.0.0.1." + FAR_NAME, 443), id="a disguised name"),
        pytest.param(lambda tcp, udp: socket.gethostbyname(FAR_NAME), id="gethostbyname"),
        pytest.param(lambda tcp, udp: socket.gethostbyaddr(FAR), id="gethostbyaddr"),
        pytest.param(lambda tcp, udp: socket.getnameinfo((FAR, 9), 0), id="getnameinfo"),
        pytest.param(lambda tcp, udp: socket.create_connection((FAR, 9), timeout=1), id="create_connection"),
    ],
)
def test_tests_cannot_leave_the_machine(reach: Callable[[socket.socket, socket.socket], object]) -> None:
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.settimeout(1)
        with pytest.raises(netguard.NonLoopbackRefused):
            reach(tcp, udp)


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_tests_cannot_leave_the_machine_over_ipv6() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock, pytest.raises(netguard.NonLoopbackRefused):
        sock.sendto(b"x", (FAR_V6, 9))


def test_loopback_and_unix_sockets_stay_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(("localhost", server.getsockname()[1])):
            pass
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        # Relative: a socket's path has room for about a hundred bytes and this folder's does not fit everywhere.
        before = Path.cwd()
        os.chdir(tmp_path)
        try:
            receiver.bind("bell")
            sender.sendto(b"ring", "bell")
        finally:
            os.chdir(before)
        assert receiver.recv(16) == b"ring"


def test_child_processes_cannot_leave_the_machine_either() -> None:
    script = f"import socket\nsocket.create_connection(({FAR!r}, 9), timeout=1)"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert child.returncode == 1
    assert "NonLoopbackRefused" in child.stderr


def make_package(folder: Path, extra: dict[str, str]) -> None:
    """A package with Atlas's rooms and nothing in them but `extra` (module path: source)."""
    files = {"__init__.py": "", **{f"{room}/__init__.py": "" for room in ROOMS}, **extra}
    for name, source in files.items():
        path = folder / "atlas" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter with this repository's contracts over the package in `folder`."""
    return subprocess.run(
        [str(BIN / "lint-imports"), "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_arrows_that_point_down_are_kept(tmp_path: Path) -> None:
    make_package(
        tmp_path,
        {
            "app/__init__.py": "import atlas.cli, atlas.ledger",
            "control/__init__.py": "import atlas.kernel",
            "kernel/event.py": "import msgspec, hashlib",
        },
    )
    done = lint_imports(tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "module, source, broken",
    [
        ("kernel/event.py", "import atlas.ledger", "Import arrows point down only"),
        ("ledger/store.py", "import atlas.vault", "Import arrows point down only"),
        ("control/drive.py", "from atlas.app import main", "Import arrows point down only"),
        ("helpers/__init__.py", "", "Import arrows point down only"),
        ("control/drive.py", "import atlas.vault", "Control sees ports, never adapters"),
        ("kernel/event.py", "import os", "The kernel does no I/O"),
        ("kernel/event.py", "def later():\n    from time import time", "The kernel does no I/O"),
        ("kernel/event.py", "import atlas.kernel.run", "No import cycles between siblings, at any depth"),
    ],
)
def test_an_arrow_that_points_up_sideways_or_out_is_refused(
    tmp_path: Path, module: str, source: str, broken: str
) -> None:
    make_package(tmp_path, {"kernel/event.py": "", "kernel/run.py": "import atlas.kernel.event", module: source})
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    assert re.findall(r"^(.+) BROKEN$", done.stdout, flags=re.MULTILINE) == [broken], done.stdout


def run_size(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "size.py"), str(folder)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "source, fits",
    [
        ("x = 1\n" * 600, True),
        ("x = 1\n" * 601, False),
        ("def f():\n" + "    x = 1\n" * 99, True),
        ("def f():\n" + "    x = 1\n" * 100, False),
        ("class A:\n    async def f(self):\n" + "        x = 1\n" * 100, False),
    ],
)
def test_size_check_refuses_only_what_is_too_long(tmp_path: Path, source: str, fits: bool) -> None:
    (tmp_path / "module.py").write_text(source, encoding="utf-8")
    done = run_size(tmp_path)
    assert (done.returncode == 0) is fits, done.stdout + done.stderr


def test_size_check_refuses_an_empty_folder(tmp_path: Path) -> None:
    assert run_size(tmp_path).returncode == 1


def test_every_package_of_the_set_up_is_pinned_and_nothing_else_is_written_there() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", line)] == []
    pinned = {normal(line.split("==")[0]) for line in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {normal(name) for name in [*project["dependencies"], *extras["postgres"], *extras["dev"], "hatchling"]}
    assert wanted <= pinned


def normal(requirement: str) -> str:
    """The name alone, as package indexes compare it."""
    name = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name.group()).lower()


@pytest.mark.parametrize("ci, code", [("true", 1), ("", 0)])
def test_a_missing_system_program_is_named_and_fails_only_under_ci(tmp_path: Path, ci: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "system_parts.py")],
        env={"PATH": str(tmp_path), "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "missing: strace" in done.stderr


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in pages():
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = target.partition("#")
            if target.startswith(("http:", "https:", "mailto:")):
                continue
            aim = (page.parent / file).resolve() if file else page
            if not aim.exists() or (anchor and anchor not in anchors(aim)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The fragment names that a Markdown renderer gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_of_the_docs_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:", "mailto:")):
                todo.append((page.parent / target).resolve())
    assert set((ROOT / "docs").rglob("*.md")) - reached == set()


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {name for page in pages() for name in re.findall(MAKE, page.read_text(encoding="utf-8"))}
    assert {"start", "test"} <= named <= targets


def first_column(page: str) -> set[str]:
    """The words, without their code marks, in the first column of a page's tables."""
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {word.strip("`* ") for row in rows for word in row.split(",")}


def test_pages_name_every_state_event_kind_and_effect_class() -> None:
    assert set(get_args(RunState)) <= first_column("concepts/run.md")
    assert set(event._KINDS) <= first_column("concepts/event.md")
    assert set(get_args(event.EffectClass)) <= first_column("concepts/effect.md")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced examples of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_python_examples_of_the_pages_compile() -> None:
    examples = [(page, text) for page in pages() for text in blocks(page, "python")]
    assert len(examples) > 5
    for page, text in examples:
        compile(text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


@pytest.mark.parametrize(
    "page, agent, given, expected",
    [
        ("concepts/agent.md", "echo", {"a": [1, None]}, {"a": [1, None]}),
        ("start.md", "counter", {"text": "one two three"}, {"words": 3}),
    ],
)
def test_agents_written_out_in_the_pages_run(
    vault_dir: Path, page: str, agent: str, given: dict[str, object], expected: dict[str, object]
) -> None:
    atlas = str(BIN / "atlas")
    subprocess.run([atlas, "new", "--vault", str(vault_dir)], check=True, capture_output=True, timeout=60)
    for text in [*blocks(ROOT / "docs" / page, "yaml"), *blocks(ROOT / "docs" / page, "python")]:
        # The first line of such an example names its file: `# agents/echo/agent.yaml`.
        name = re.match(r"# (?:demo/)?(agents/\S+)\n", text)
        if name is not None:
            path = vault_dir / name.group(1)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace("/tmp/", f"{vault_dir}/"), encoding="utf-8")
    done = subprocess.run(
        [atlas, "run", agent, "--input", json.dumps(given), "--json", "--vault", str(vault_dir)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == expected


def test_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("atlas/")}
    source = ROOT / "src"
    written = {
        str(path.relative_to(source))
        for path in (source / "atlas").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == written
