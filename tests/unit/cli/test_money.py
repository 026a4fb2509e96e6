"""`atlas costs` and `atlas budget` as people, scripts and spreadsheets read them."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from typing import Any

import pytest

from atlas.cli.commands.costs import print_costs
from atlas.cli.terminal import Terminal
from atlas.kernel.budget import Cap, Hold, Meter, Reservation, Settlement
from atlas.kernel.config import Config
from atlas.kernel.contract import Budget
from atlas.kernel.errors import NotFound
from atlas.kernel.event import NULL, RunCreated, Spend, draft
from atlas.kernel.run import Append, NewRun
from atlas.ledger.memory import MemoryLedger
from atlas.testing.clock import START_US, FakeClock
from unit.cli.fake_host import FakeHost, FakeProgram

DAY = "2026-01-01"


@pytest.fixture
def spent(host: FakeHost) -> MemoryLedger:
    """Two calls on one day, one of them estimated and dear, under a cap of two dollars."""
    clock = FakeClock(START_US + 3_600_000_000)
    ledger = MemoryLedger(clock)
    stand_in: Any = host
    stand_in.ledger, stand_in.clock = ledger, clock
    host.config = Config(budget=Budget(usd_per_day=2))
    host.vault.known["writer"] = NotFound("deleted since")

    async def fill() -> None:
        await ledger.open()
        created = draft(RunCreated("writer", "1.0.0", NULL, "snap", "", "seed"), clock.now_us(), "owner")
        await ledger.submit(NewRun("run_1", "", "writer", "1.0.0", "snap", "owner", created, "run_1"))
        [claimed] = await ledger.claim("ann", limit=1, lease_s=99, max_running=9, run_id="run_1")
        cap = Cap("fleet usd_per_day", "fleet", DAY, DAY, 2_000_000, warn_at=(0.5,))
        for effect, model, micro, guess in (("e1", "lab:small", 400_000, False), ("e2", "=cmd()", 1_700_000, True)):
            hold = Hold(400_000, 9, 4, model, (Meter("fleet", DAY),), DAY)
            await ledger.append(Append(claimed.lease, reserve=Reservation(effect, hold, (cap,))))
            settled = Settlement(effect, Spend(1, 10, 5, micro), model, guess, cached_in=4, saved_micro_usd=90)
            await ledger.append(Append(claimed.lease, settle=(settled,)))

    asyncio.run(fill())
    return ledger


def test_days_have_bars_and_what_is_estimated_is_marked(atlas: Any, spent: MemoryLedger) -> None:
    result = atlas("costs")
    assert result.exit_code == 0, result.output
    assert re.search(rf"^{DAY}  +~\$2\.1000  (█|#)+  20 in \(8 cached\), 10 out$", result.output, re.MULTILINE)
    assert "~ $1.7000 of this is estimated" in result.output
    assert "saved by providers' caches: $0.0002" in result.output
    assert "fleet usd_per_day  $2.1000 of $2.0000 spent" in result.output
    assert "debt $0.1000" in result.output
    assert "50% reached" in result.output


@pytest.mark.parametrize("width, bar", [(80, 24), (60, 12), (50, 0)])
def test_on_a_terminal_a_row_is_one_line_as_long_as_its_words_fit(
    program: FakeProgram,
    host: FakeHost,
    spent: MemoryLedger,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    bar: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    terminal = Terminal(program, None, is_json=False)
    terminal.is_screen = True
    print_costs(terminal, asyncio.run(host.books.costs("model", "30d", 20)))
    [dear, cheap, total] = capsys.readouterr().out.splitlines()[:3]
    assert (dear.count("█"), dear.index(" in (") - total.index(" in (")) == (bar, 0)
    assert max(map(len, (dear, cheap, total))) <= width


def test_json_holds_everything_that_is_shown(atlas: Any, spent: MemoryLedger) -> None:
    found = json.loads(atlas("costs", "--by", "model", "--json").output)
    assert [row["name"] for row in found["rows"]] == ["=cmd()", "lab:small"]
    assert found["total"]["cost_usd"] == 2.1
    assert found["caps"][0]["debt_usd"] == pytest.approx(0.1)
    assert found["alerts"][0]["fraction"] == 0.5


def test_csv_is_exact_and_starts_no_formula(atlas: Any, spent: MemoryLedger) -> None:
    rows = list(csv.DictReader(io.StringIO(atlas("costs", "--by", "model", "--csv").output)))
    assert [(row["name"], row["cost_usd"], row["estimated_usd"]) for row in rows] == [
        ("'=cmd()", "1.700000", "1.700000"),
        ("lab:small", "0.400000", "0.000000"),
    ]


def test_one_run_is_shown_with_what_it_spawned(atlas: Any, host: FakeHost, spent: MemoryLedger) -> None:
    host.add(asyncio.run(spent.run("run_1")))
    result = atlas("costs", "run_1")
    assert result.exit_code == 0, result.output
    assert "run_1  writer" in result.output
    assert "~$2.1000" in result.output


def test_json_and_csv_at_once_are_a_mistake(atlas: Any, spent: MemoryLedger) -> None:
    assert atlas("costs", "--json", "--csv").exit_code == 2


def test_a_wrong_day_is_told(atlas: Any, spent: MemoryLedger) -> None:
    result = atlas("costs", "--since", "soon")
    assert result.exit_code == 2
    assert "is no day" in result.output


def test_budget_lists_the_caps(atlas: Any, spent: MemoryLedger) -> None:
    assert "fleet usd_per_day" in atlas("budget").output
    assert json.loads(atlas("budget", "--json").output)["pools"] == []


def test_prove_prints_its_numbers(atlas: Any) -> None:
    result = atlas("budget", "prove", "--schedules", "3", "--processes", "0", "--seed", "3", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"], found["overshoots"], found["schedules_memory"]) == (0, True, 0, 3)
