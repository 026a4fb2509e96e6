"""`atlas doctor`: every finding has a fix, and one trouble does not hide the others."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas.control.report import InboxEntry
from atlas.kernel.errors import Invalid, LedgerUnavailable, Problem
from unit.cli.fake_host import NOW_US, make_row


@pytest.fixture(autouse=True)
def vault(host: Any, tmp_path: Path) -> Path:
    (tmp_path / "atlas.config.yaml").touch()
    connection = sqlite3.connect(tmp_path / ".atlas" / "ledger.db")
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    host.vault.known = {"writer": None}
    return tmp_path


def statuses(atlas: Any) -> dict[str, tuple[str, str, str]]:
    checks = json.loads(atlas("doctor", "--json").stdout)["checks"]
    return {check["name"]: (check["status"], check["message"], check["fix"]) for check in checks}


def test_a_healthy_machine_is_ready(atlas: Any) -> None:
    result = atlas("doctor")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "ready"
    assert {status for status, _, _ in statuses(atlas).values()} == {"ok"}


def test_the_ledger_is_asked_whether_it_takes_a_write(atlas: Any, vault: Path) -> None:
    assert statuses(atlas)["ledger"][1].startswith("SQLite, schema 7, journal wal")
    (vault / ".atlas" / "ledger.db").write_bytes(b"this is no database, whatever its name says" * 100)
    status, message, fix = statuses(atlas)["ledger"]
    assert (status, "ledger.db" in fix) == ("fail", True)
    assert "cannot be written" in message


def test_a_broken_contract_is_named_with_its_place_and_fails(atlas: Any, host: Any) -> None:
    problems = (
        Problem("unknown_key", "unknown key 'nam'", "agents/bad/agent.yaml", 2, 3, "did you mean name?"),
        Problem("missing", "name is missing", "agents/bad/agent.yaml", 1, 1),
    )
    host.vault.known["bad"] = Invalid("2 problems", problems=problems)
    found = statuses(atlas)
    assert found["agent bad"] == (
        "fail",
        "agents/bad/agent.yaml:2:3 unknown key 'nam' (and 1 more problem)",
        "did you mean name?",
    )
    assert found["agents"][:2] == ("ok", "1 valid contract: writer")
    assert atlas("doctor").exit_code == 5


@pytest.mark.parametrize(
    "trouble",
    [LedgerUnavailable("the disk is full", hint="Free some space."), PermissionError(13, "Permission denied")],
)
def test_a_ledger_that_cannot_be_opened_does_not_stop_the_other_checks(
    atlas: Any, program: Any, trouble: Exception
) -> None:
    program.trouble = trouble
    found = statuses(atlas)
    assert found["ledger"][0] == "fail"
    assert found["ledger"][2]
    assert found["worker"][0] == "ok"


def test_a_missing_vault_says_how_to_make_one(atlas: Any, program: Any) -> None:
    program.folder = program.folder / "nowhere"
    status, _, fix = statuses(atlas)["vault"]
    assert (status, fix) == ("fail", f"atlas new --vault {program.folder}")


def test_what_was_left_behind_is_a_warning(atlas: Any, host: Any) -> None:
    host.add(make_row("run_1", "running", owner="gone", lease_until_us=NOW_US - 1))
    host.add(make_row("run_2", "running", owner="here", lease_until_us=NOW_US + 1))
    host.entries = [InboxEntry("run_1", "e", "doubt", "writer", "send", msgspec.Raw(b"[]"), "high_risk", "", 0)]
    found = statuses(atlas)
    assert found["leases"] == ("warn", "1 run of processes that are gone", "atlas up --until-idle")
    assert found["inbox"] == ("warn", "1 effect in doubt", "atlas inbox")
    result = atlas("doctor")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "ready, 2 warnings")


def test_a_worker_that_does_not_answer_fails(atlas: Any, program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse() -> float:
        raise LedgerUnavailable("no process could be started", hint="Check ulimit -u.")

    monkeypatch.setattr(program, "probe_worker", refuse)
    assert statuses(atlas)["worker"] == ("fail", "no process could be started", "Check ulimit -u.")
    assert atlas("doctor").exit_code == 5
