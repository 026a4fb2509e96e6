"""The crash proof itself: a short storm on each ledger, and proof that the judge would have seen a broken promise."""

from __future__ import annotations

import msgspec
import pytest

from atlas.kernel.event import (
    AttemptStarted,
    Body,
    EffectDoubted,
    EffectIntended,
    EffectReceived,
    Payload,
    RunCreated,
    RunEnded,
)
from atlas.testing.chaos import ChaosReport, main
from atlas.testing.chaos_check import Findings, Order, judge
from atlas.testing.chaos_site import Line
from atlas.testing.fault import POINTS

KILLS = 40


def assert_every_promise_was_kept(report: ChaosReport) -> None:
    assert report.complaints == ()
    assert report.ok
    assert report.kills >= KILLS
    assert set(POINTS) <= set(report.kills_by_point)
    assert report.runs_completed == report.runs > 0
    assert (report.effects_lost, report.effects_duplicated) == (0, 0)
    assert report.in_doubt == report.in_doubt_expected
    assert report.chain_ok


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_storm_on_sqlite_loses_and_repeats_nothing() -> None:
    assert_every_promise_was_kept(main(kills=KILLS, ledger="sqlite", seed=None, report=print))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_storm_on_postgres_loses_and_repeats_nothing(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATLAS_LEDGER_URL", postgres_url)
    assert_every_promise_was_kept(main(kills=KILLS, ledger="postgres", seed=None, report=print))


# The judge

RUN = "run_1"
EFFECT = "step:once:0"
ORDER = Order(1, ("once",))
RESULT = 1 + len("once")


def payload(value: object) -> Payload:
    return Payload(msgspec.Raw(msgspec.json.encode(value)))


CREATED = RunCreated("chaos", "1.0.0", payload({"number": 1}), "", "", "")
ATTEMPT = AttemptStarted(1, "owner")
INTENT = EffectIntended(EFFECT, "step", "once", payload([1]), "", "reversible_write")
RECEIPT = EffectReceived(EFFECT, payload(RESULT))
ENDED = RunEnded("succeeded", payload({"total": RESULT}))
DOUBT = EffectDoubted(EFFECT, "")


def line(mark: str) -> Line:
    return msgspec.convert(
        {"mark": mark, "kind": "once", "key": f"{RUN}/{EFFECT}", "pid": 1, "driver": 1, "result": RESULT, "order": ""},
        Line,
    )


def findings(record: list[Body], *marks: str) -> Findings:
    return judge({RUN: record}, [line(mark) for mark in marks], {RUN: ORDER})


def test_the_judge_is_content_with_a_run_that_kept_every_promise() -> None:
    found = findings([CREATED, ATTEMPT, INTENT, RECEIPT, ENDED], "begin", "end")
    assert found.complaints == []
    assert (found.completed, found.effects, found.lost, found.duplicated) == (1, 1, 0, 0)


def test_the_judge_accepts_a_second_try_after_a_doubt() -> None:
    record: list[Body] = [CREATED, ATTEMPT, INTENT, DOUBT, ATTEMPT, INTENT, RECEIPT, ENDED]
    found = findings(record, "begin", "struck", "begin", "end")
    assert found.complaints == []
    assert found.doubted == found.doubted_expected == 1


@pytest.mark.parametrize(
    "record, marks, what",
    [
        ([CREATED, ATTEMPT, INTENT, RECEIPT, ENDED], ("begin", "end", "begin", "end"), "happened 2 times"),
        ([CREATED, ATTEMPT, INTENT, RECEIPT, ENDED], ("begin", "begin", "end"), "begun 2 times under 1 intents"),
        ([CREATED, ATTEMPT, INTENT, RECEIPT, ENDED], ("begin",), "the world never saw it"),
        ([CREATED, ATTEMPT, INTENT, ENDED], ("begin", "end"), "no single receipt"),
        ([CREATED, ATTEMPT, INTENT, RECEIPT, RECEIPT, ENDED], ("begin", "end"), "2 receipts"),
        ([CREATED, ATTEMPT, ENDED], ("begin", "end"), "without a recorded intent"),
        ([CREATED, ATTEMPT, INTENT, RECEIPT], ("begin", "end"), "0 terminal events"),
        ([CREATED, ATTEMPT, INTENT, RECEIPT, ENDED, ENDED], ("begin", "end"), "2 terminal events"),
        ([CREATED, ATTEMPT, INTENT, ATTEMPT, RECEIPT, ENDED], ("begin", "end"), "in doubt are"),
        ([CREATED, ATTEMPT, INTENT, RECEIPT, DOUBT, ENDED], ("begin", "end"), "in doubt are"),
        ([CREATED, ATTEMPT, INTENT, RECEIPT, ENDED], ("begin", "struck", "end"), "struck 1 times"),
    ],
)
def test_the_judge_complains_about_every_broken_promise(record: list[Body], marks: tuple[str, ...], what: str) -> None:
    assert any(what in complaint for complaint in findings(record, *marks).complaints)


def test_the_judge_complains_about_a_wrong_output_and_a_lost_run() -> None:
    wrong = RunEnded("succeeded", payload({"total": 0}))
    assert findings([CREATED, ATTEMPT, INTENT, RECEIPT, wrong], "begin", "end").complaints
    assert judge({}, [], {RUN: ORDER}).lost == 1
