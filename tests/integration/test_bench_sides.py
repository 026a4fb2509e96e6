"""Our sides of the benchmarks run: a measurement that nobody can take any more would be found out too late."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def answer(script: str, **options: Any) -> dict[str, Any]:
    command = [sys.executable, str(BENCH / script), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def folder(tmp_path: Path) -> str:
    shutil.copytree(BENCH / "vault", tmp_path / "vault")
    return str(tmp_path / "vault")


@pytest.mark.parametrize("is_in_worker", [False, True])
def test_a_run_and_loading_it(folder: str, is_in_worker: bool) -> None:
    ran = answer("atlas_side.py", case="once", folder=folder, steps=3, is_in_worker=is_in_worker)
    assert ran["bytes"] > 0
    loaded = answer("atlas_side.py", case="load", folder=folder, steps=3, is_in_worker=is_in_worker)
    assert loaded["load_ms"] > 0


def test_steps_and_a_crowd(folder: str) -> None:
    assert len(answer("atlas_side.py", case="steps", folder=folder, steps=3)["marks"]) == 3
    answer("atlas_side.py", case="crowd", folder=folder, runs=4, steps=2)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("is_builtin", [False, True])
def test_the_tool_loop(folder: str, is_builtin: bool, is_streamed: bool) -> None:
    command = [sys.executable, str(BENCH / "model_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            url = server.stdout.readline().decode().strip()
            asked = {"url": url, "folder": folder, "is_builtin": is_builtin, "is_streamed": is_streamed}
            assert answer("loop_atlas.py", case="loop", steps=3, runs=1, **asked)["runs_cpu_ms"] > 0
            assert answer("loop_atlas.py", case="crowd", steps=3, runs=5, **asked)["failed"] == 0
        finally:
            server.stdin.close()
