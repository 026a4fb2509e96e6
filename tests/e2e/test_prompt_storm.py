"""The crash proof of prompt runs: a short one, and proof that its judge would have seen a broken promise."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas.kernel.event import (
    AttemptStarted,
    Body,
    EffectDoubted,
    EffectIntended,
    EffectReceived,
    EffectResolved,
    Payload,
    RunEnded,
)
from atlas.testing.chaos_prompt import main
from atlas.testing.chaos_prompt_check import PromptFindings, judge
from atlas.testing.chaos_prompt_site import ANSWER, STEPS
from atlas.testing.chaos_site import Line
from e2e.stage import Stage

KILLS = 8


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_prompt_runs_killed_at_commits_and_at_random_ask_and_do_nothing_twice() -> None:
    report = main(kills=KILLS, seed=None, report=print, stride=24, kinds=("openai", "anthropic"))
    assert report.complaints == ()
    assert report.ok
    assert len(report.boundaries) == 4  # both sides of commits, on both wires
    assert report.kills >= KILLS + sum(report.boundaries.values())
    assert report.runs == report.runs_completed == report.replays_identical
    assert (report.effects_lost, report.effects_duplicated) == (0, 0)
    assert report.in_doubt == report.in_doubt_expected
    assert report.chain_ok


def test_a_fault_at_a_commit_leaves_exactly_what_went_before_it(tmp_path: Path) -> None:
    counts = []
    for number, fault in enumerate(("before:1", "after:1", "before:2", "after:3", "before:4", "after:4")):
        stage = Stage(tmp_path / str(number))
        with stage.started(*stage.words("mark:a", "mark:b"), fault=f"commit.{fault}:kill") as process:
            assert process.wait(60) == -signal.SIGKILL
        with closing(sqlite3.connect(stage.vault / ".atlas" / "ledger.db")) as database:
            counts.append(database.execute("SELECT count(*) FROM event").fetchone()[0])
    nothing, first, still_first, third, still_third, fourth = counts
    assert (nothing, first, still_first) == (0, 1, 1)
    assert first < third == still_third < fourth


def test_a_fault_at_a_commit_can_only_kill(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with stage.started(*stage.words("mark:a"), fault="commit.after:1:stop") as process:
        assert process.wait(60) == 2
    assert "not a fault plan" in stage.printed


# The judge

RUN = "run_1"
ENDED = RunEnded("succeeded", Payload(msgspec.Raw(msgspec.json.encode({"text": ANSWER}))))
STARTED = AttemptStarted(1, "owner")
TOOLS = {
    "look": {"effect_class": "read_only"},
    "again": {"effect_class": "reversible_write", "idempotent": True},
    "probed": {"effect_class": "reversible_write", "can_probe": True},
    "once": {"effect_class": "reversible_write"},
}
REFERENCE = {
    step: msgspec.json.encode({"messages": [{"role": "assistant", "n": n} for n in range(step - 1)]})
    for step in range(1, len(STEPS) + 2)
}
Edit = Callable[[list[Body], list[Line], list[bytes]], None]


def received(effect: str, result: Any) -> EffectReceived:
    return EffectReceived(effect, Payload(msgspec.Raw(msgspec.json.encode(result))))


def line(mark: str, effect: str) -> Line:
    return msgspec.convert(
        {"mark": mark, "kind": "", "key": f"{RUN}/{effect}", "pid": 1, "driver": 1, "result": 1, "order": ""}, Line
    )


def perfect() -> tuple[list[Body], list[Line], list[bytes]]:
    """A run that nobody disturbed: what it recorded, what its tools wrote, what its provider was sent."""
    record: list[Body] = [STARTED]
    lines: list[Line] = []
    for step in REFERENCE:
        model = f"model:{step}"
        record += [
            EffectIntended(model, "model", "m1", Payload(msgspec.Raw(b"1")), "", "read_only"),
            received(model, 1),
        ]
        for place, name in enumerate(STEPS[step - 1] if step <= len(STEPS) else (), 1):
            effect = f"tool:{step}.{place}:{name}"
            record.append(EffectIntended(effect, "tool", name, Payload(msgspec.Raw(b"1")), "", **TOOLS[name]))  # type: ignore[arg-type]
            lines += [line("begin", effect), line("end", effect)]
            record.append(received(effect, {"text": "done"}))
    return [*record, ENDED], lines, list(REFERENCE.values())


def judged(*edits: Edit) -> PromptFindings:
    record, lines, asked = perfect()
    for edit in edits:
        edit(record, lines, asked)
    return judge(RUN, record, lines, asked, REFERENCE)


def place_of(record: list[Body], kind: type, effect: str) -> int:
    return next(n for n, body in enumerate(record) if isinstance(body, kind) and getattr(body, "effect", "") == effect)


def after(kind: type, effect: str, *bodies: Body) -> Edit:
    """Puts bodies behind the first one of this kind about this effect."""

    def edit(record: list[Body], lines: list[Line], asked: list[bytes]) -> None:
        at = place_of(record, kind, effect) + 1
        record[at:at] = bodies

    return edit


def drop(kind: type, effect: str) -> Edit:
    return lambda record, lines, asked: record.pop(place_of(record, kind, effect)) and None


def wrote(*marks: str, effect: str) -> Edit:
    return lambda record, lines, asked: lines.extend(line(mark, effect) for mark in marks)


def asked_again(step: int, *, body: bytes | None = None, late: bool = False) -> Edit:
    return lambda record, lines, asked: asked.insert(len(asked) if late else step, body or REFERENCE[step])


ONCE, PROBED, AGAIN = "tool:4.1:once", "tool:3.1:probed", "tool:2.1:again"
INTENT_AGAIN = EffectIntended(ONCE, "tool", "once", Payload(msgspec.Raw(b"1")), "", "reversible_write")
NOT_DONE = EffectResolved(ONCE, "not_done", "owner")


@pytest.mark.parametrize(
    "edits",
    [
        (),
        (after(EffectIntended, "model:3", STARTED), asked_again(3)),
        (after(EffectIntended, "model:3", STARTED),),  # killed before it was sent
        (after(EffectIntended, AGAIN, STARTED), wrote("begin", "end", effect=AGAIN)),
        (after(EffectIntended, PROBED, STARTED), wrote("begin", effect=PROBED)),
        (
            after(EffectIntended, ONCE, EffectDoubted(ONCE, ""), NOT_DONE, STARTED, INTENT_AGAIN),
            wrote("begin", effect=ONCE),
        ),
    ],
)
def test_the_judge_is_content_with_what_may_happen(edits: tuple[Edit, ...]) -> None:
    assert judged(*edits).complaints == []


@pytest.mark.parametrize(
    "edits, what",
    [
        ((asked_again(3),), "step 3 was asked for 2 times; 1 times"),
        ((after(EffectReceived, "model:3", STARTED), asked_again(3)), "step 3 was asked for 2 times"),
        ((after(EffectIntended, "model:3", STARTED), asked_again(3, late=True)), "where its answer was on record"),
        ((after(EffectIntended, "model:3", STARTED), asked_again(3, body=REFERENCE[3] + b" ")), "with other bytes"),
        ((lambda record, lines, asked: asked.pop() and None,), "step 11 was asked for 0 times"),
        ((wrote("begin", "end", effect=ONCE),), "happened 2 times"),
        ((wrote("begin", "end", effect=PROBED),), "happened 2 times"),
        ((wrote("begin", effect=ONCE),), "begun 2 times under 1 intents"),
        ((wrote("begin", effect="tool:9.9:once"),), "never asked for"),
        ((drop(EffectReceived, AGAIN),), "0 receipts"),
        ((after(EffectReceived, AGAIN, received(AGAIN, {"text": ""})),), "2 receipts"),
        ((lambda record, lines, asked: lines.clear(),), "0 times in the book"),
        ((after(EffectIntended, ONCE, STARTED),), "in doubt are"),
        ((after(EffectReceived, ONCE, EffectDoubted(ONCE, "")),), "in doubt are"),
        ((after(EffectIntended, PROBED, EffectDoubted(PROBED, "")),), "in doubt are"),
        ((lambda record, lines, asked: record.pop() and None,), "0 terminal events"),
        ((lambda record, lines, asked: record.append(ENDED),), "2 terminal events"),
        (
            (lambda record, lines, asked: record.__setitem__(-1, RunEnded("succeeded", Payload(msgspec.Raw(b"{}")))),),
            "the answer is",
        ),
        (
            (
                drop(EffectReceived, ONCE),
                after(EffectIntended, ONCE, received(ONCE, {"text": "it failed", "is_error": True})),
            ),
            "happened, and the model was told that it failed",
        ),
    ],
)
def test_the_judge_complains_about_every_broken_promise(edits: tuple[Edit, ...], what: str) -> None:
    complaints = judged(*edits).complaints
    assert any(what in complaint for complaint in complaints), complaints
