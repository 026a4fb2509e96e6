"""`atlas chaos`: options in, a report out, and an exit code that a script can trust."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest


class Report(msgspec.Struct, frozen=True):
    ok: bool
    kills_by_point: dict[str, int]
    ledgers: tuple[str, ...]
    complaints: tuple[str, ...] = ()


class Storm(ModuleType):
    """Stands in for the part that kills."""

    def __init__(self, name: str, report: Report) -> None:
        super().__init__(name)
        self.answer = report
        self.asked: dict[str, Any] = {}

    def main(self, *, report: Any, **options: Any) -> Report:
        self.asked = options
        report("half way")
        return self.answer


def storm(monkeypatch: pytest.MonkeyPatch, ok: bool, name: str = "atlas.testing.chaos") -> Storm:
    made = Storm(name, Report(ok, {"intent.durable": 2}, ("sqlite", "postgres")))
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_options_reach_the_storm_and_its_report_is_printed(atlas: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = storm(monkeypatch, True)
    result = atlas("chaos", "--kills", "7", "--seed", "3")
    assert made.asked == {"kills": 7, "ledger": "both", "seed": 3}
    assert result.exit_code == 0
    assert "half way" in result.stderr
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["ok", "yes"],
        ["kills", "by", "point"],
        ["intent.durable", "2"],
        ["ledgers", "sqlite,", "postgres"],
        ["complaints", "none"],
    ]


def test_a_broken_promise_is_exit_code_5(atlas: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    storm(monkeypatch, False)
    result = atlas("chaos", "--json")
    assert result.exit_code == 5
    assert json.loads(result.stdout)["ok"] is False


def test_prompt_runs_have_a_storm_of_their_own(atlas: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = storm(monkeypatch, True, "atlas.testing.chaos_prompt")
    assert atlas("chaos", "--prompt", "--kills", "7", "--every", "9").exit_code == 0
    assert made.asked == {"kills": 7, "seed": None, "stride": 9}
