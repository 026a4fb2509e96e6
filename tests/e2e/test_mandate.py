"""Mandates through real runs: they answer within their bounds, across crashes and side by side, and not beyond them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from atlas.app import open_host
from atlas.kernel.event import EffectIntended
from e2e.office import Office, Seen, play, play_once
from e2e.stage import until

pytestmark = pytest.mark.timeout(240)
FREE: dict[str, Any] = {"tools": ["refund"], "hazards": ["*"]}


@pytest.fixture
def office(tmp_path: Path) -> Office:
    made = Office(tmp_path)
    made.script([("refund", {"usd": 20})])
    return made


def answered_by(seen: Seen) -> list[str]:
    return [fact.answered_by for fact in seen.of(EffectIntended) if fact.kind in ("tool", "step")]


def test_it_answers_in_a_persons_place_and_the_effect_names_it(office: Office) -> None:
    office.mandate(**FREE)
    seen = play_once(office, unattended=True)
    assert (seen.report.state, office.marks) == ("succeeded", ["usd20.0"])
    assert answered_by(seen) == ["mandate:m1"]
    assert "under mandate:m1" in office.atlas("show", "@last")[1]
    assert office.atlas("replay", "@last", "--json")[1]["identical"] is True


@pytest.mark.parametrize("bound", [{"usd_per_day": 50}, {"usd_total": 50}, {"uses_per_day": 2}])
def test_its_bounds_hold_for_runs_side_by_side_and_a_person_is_asked_beyond_them(
    office: Office, bound: dict[str, Any]
) -> None:
    office.mandate(**FREE, amount="$.usd", **bound)

    async def main() -> list[Seen]:
        async with open_host(office.vault, {}) as host:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(play(host)) for _ in range(5)]
            seen = [task.result() for task in tasks]
            assert len(await host.inbox()) == 3
            return seen

    seen = asyncio.run(main())
    assert sorted(one.report.state for one in seen) == ["succeeded"] * 2 + ["waiting"] * 3
    assert office.marks == ["usd20.0"] * 2
    assert play_once(office, unattended=True).refusals == ["approval_required"]
    assert office.atlas("approve", waiting(seen))[0] == 0
    office.atlas("up", "--until-idle")
    assert office.marks == ["usd20.0"] * 3  # a person's answer is bound by no mandate


def waiting(seen: list[Seen]) -> str:
    return next(one.report.run_id for one in seen if one.report.state == "waiting")


def test_too_much_for_one_use_asks_a_person(office: Office) -> None:
    office.mandate(**FREE, amount="$.usd", usd_per_use=19.99)
    assert play_once(office).report.state == "waiting"


@pytest.mark.parametrize("word, marks", [("done", 1), ("not-done", 2), ("abandon", 1)])
def test_what_was_begun_before_a_crash_stays_counted(office: Office, word: str, marks: int) -> None:
    """Killed between intent and receipt: what a person says of it changes nothing about the money."""
    office.mandate(**FREE, amount="$[1]", usd_per_day=50)
    do = ["refund:external_side_effect:20"]
    given = {"file": str(office.file), "do": do}
    words = ("run", "boss", "--input", json.dumps(given))
    with office.started(*words, fault="receipt.before:1:kill") as process:
        until(lambda: process.poll() is not None)
    assert office.marks == ["20"]  # it happened, and nobody wrote down that it did
    office.atlas("up", "--until-idle")
    assert office.state() == "in_doubt"
    assert answered_by(play_once(office, "boss", given)) == ["mandate:m1"]
    assert play_once(office, "boss", given).report.state == "waiting"
    [doubt] = [item for item in office.inbox() if item["kind"] == "doubt"]
    office.atlas("inbox", word, doubt["item"], "--run")
    assert len(office.marks) == marks + 1
    assert play_once(office, "boss", given).report.state == "waiting"


def test_it_is_void_from_the_moment_it_is_revoked(office: Office) -> None:
    office.mandate(**FREE)
    assert play_once(office).report.state == "succeeded"

    async def main() -> str:
        async with open_host(office.vault, {}) as host:
            assert (await play(host)).report.state == "succeeded"
            (code, _) = await asyncio.to_thread(office.atlas, "mandate", "revoke", "m1")
            assert code == 0
            return (await play(host)).report.state

    assert asyncio.run(main()) == "waiting"
    assert len(office.marks) == 2


def test_it_is_void_when_it_has_expired_and_outside_its_window(office: Office) -> None:
    now = datetime.now(UTC)
    ago, later = now - timedelta(minutes=1), now + timedelta(hours=2)
    office.mandate(**FREE, expires_at=f"{ago:%Y-%m-%dT%H:%M:%SZ}")
    assert play_once(office).report.state == "waiting"
    window = {"start": f"{later:%H:%M}", "end": f"{later + timedelta(hours=1):%H:%M}"}
    office.mandate(**FREE, window=window)
    assert play_once(office).report.state == "waiting"
    window = {"start": f"{now - timedelta(hours=1):%H:%M}", "end": f"{later:%H:%M}"}
    office.mandate(**FREE, window=window, expires_at=f"{later:%Y-%m-%dT%H:%M:%SZ}")
    assert play_once(office).report.state == "succeeded"


def test_a_child_uses_its_own_agents_mandates_and_those_of_the_vault_only(office: Office) -> None:
    office.boss("worker")
    (office.vault / "agents" / "boss" / "mandates.yaml").write_text(
        "mandates: [{id: mine, granted_by: ada, tools: [refund], hazards: ['*']}]\n"
    )
    job = {"do": ["refund:external_side_effect:20"]}
    given = {"file": str(office.file), **job, "to": [["worker", job]]}
    seen = play_once(office, "boss", given)
    assert answered_by(seen)[0] == "mandate:boss/mine"
    assert (seen.report.state, office.marks) == ("waiting", ["20"])
