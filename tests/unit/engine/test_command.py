"""Commands: their exit code and output come back whole, and nothing of them is left, however they or we end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atlas.engine.command import OUTPUT_LIMIT, TIMED_OUT, run_command
from atlas.kernel.hook_shipped import OracleRun

ENVIRON = {"PATH": os.environ["PATH"], "ATLAS_LEDGER_URL": "postgresql://secret"}


def run(command: str, folder: Path, timeout_s: float = 20) -> OracleRun:
    return asyncio.run(run_command(command, str(folder), timeout_s, ENVIRON))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def assert_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


def pid_in(file: Path) -> int:
    deadline = time.monotonic() + 10
    while not (file.exists() and file.read_text().strip()):
        assert time.monotonic() < deadline, "the command never began"
        time.sleep(0.01)
    return int(file.read_text())


def test_exit_code_and_both_streams_come_back(tmp_path: Path) -> None:
    assert run("echo out; echo err >&2; exit 3", tmp_path) == OracleRun(3, "out\nerr\n")
    assert run("true", tmp_path) == OracleRun(0, "")


def test_it_runs_in_its_folder_with_no_input_and_no_settings_of_atlas(tmp_path: Path) -> None:
    found = run('pwd -P; cat; echo "[$ATLAS_LEDGER_URL][$ATLAS_RUN_ID]"', tmp_path)
    assert found == OracleRun(0, f"{tmp_path.resolve()}\n[][-]\n")


def test_a_command_that_a_signal_ends_has_failed(tmp_path: Path) -> None:
    assert run("kill -TERM $$", tmp_path).exit_code == 128 + signal.SIGTERM


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        run("true", tmp_path / "nowhere")


def test_a_late_command_is_ended_with_all_it_started_and_says_so(tmp_path: Path) -> None:
    found = run("echo before; sleep 300 & echo $! > child; wait", tmp_path, 0.5)
    assert found.exit_code == TIMED_OUT
    assert found.output == "before\n\n(stopped: it took longer than 0.5 s)"
    assert_gone(pid_in(tmp_path / "child"))


def test_what_a_command_leaves_running_is_ended_and_holds_nobody_up(tmp_path: Path) -> None:
    began = time.monotonic()
    assert run("sleep 300 & echo $! > child", tmp_path).exit_code == 0
    assert time.monotonic() - began < 10
    assert_gone(pid_in(tmp_path / "child"))


def test_cancelling_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run_command("echo $$ > shell; sleep 300", str(tmp_path), 60, ENVIRON))
            await asyncio.to_thread(pid_in, tmp_path / "shell")
            task.cancel()

    asyncio.run(main())
    assert_gone(pid_in(tmp_path / "shell"))


def test_a_flood_is_kept_at_both_ends(tmp_path: Path) -> None:
    found = run("echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last", tmp_path)
    assert found.exit_code == 0
    assert found.output.startswith("first\n")
    assert found.output.endswith("\nlast\n")
    assert "bytes in between were not kept" in found.output
    assert len(found.output) < OUTPUT_LIMIT + 100


def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, sys; from atlas.engine.command import run_command\n"
        "asyncio.run(run_command('echo $$ > shell; sleep 300', sys.argv[1], 60, dict(os.environ)))"
    )
    ours = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    shell = pid_in(tmp_path / "shell")
    assert is_running(shell)
    ours.send_signal(signal.SIGKILL)
    ours.wait()
    assert_gone(shell)
