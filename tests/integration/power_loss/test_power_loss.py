"""A loss of power at any write loses nothing that was acknowledged, and shows no half of a commit.

A real program runs on a real SQLite ledger under strace. From the recorded system calls every folder is rebuilt
that a loss of power could have left, with everything synced and any part of what was not; each is opened as after
a reboot and compared with what the program had been told by then.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.power_loss.replay import Replay, record
from integration.power_loss.workload import WEAKNESSES

SEED = 20260101


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
