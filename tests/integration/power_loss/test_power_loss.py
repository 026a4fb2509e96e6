"""A loss of power at any write loses nothing that was acknowledged, and shows no half of a commit.

A real program runs on a real SQLite ledger under strace. From the recorded system calls every folder is rebuilt
that a loss of power could have left, with everything synced and any part of what was not; each is opened as after
a reboot and compared with what the program had been told by then.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.power_loss.replay import Replay, record
from integration.power_loss.strace_log import calls
from integration.power_loss.workload import WEAKNESSES

SEED = 20260101
LOG = """\
7 openat(AT_FDCWD, "\\x61", O_RDWR) = 15<\\x61>
7 close(15<\\x61> <unfinished ...>
8 openat(AT_FDCWD, "\\x62", O_RDWR) = 15<\\x62>
7 <... close resumed>) = 0
8 close(15<\\x62>) = 0
"""


def test_a_number_that_is_closed_is_free_for_another_thread_at_once(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    found = [(call.name, call.opened[1] or call.descriptor(0)[1]) for call in calls(tmp_path / "log")]
    assert found == [("openat", "a"), ("close", "a"), ("openat", "b"), ("close", "b")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_missing_after_any_loss_of_power(strace: str, tmp_path: Path) -> None:
    replay = Replay(record(strace, tmp_path, ""), seed=SEED, samples=2)
    loss = next(replay.losses(), "")
    assert loss == ""
    assert replay.opened > 1_000, "the recording is too short to prove anything"


@pytest.mark.slow
@pytest.mark.parametrize("weakness", WEAKNESSES)
def test_a_broken_promise_of_the_store_is_found(weakness: str, strace: str, tmp_path: Path) -> None:
    replay = Replay(record(strace, tmp_path, weakness), seed=SEED, samples=0)
    assert "acknowledged" in next(replay.losses(), "nothing was lost")
