"""What people meet after a crash, a Ctrl-C, a question or a limit: through the real command line, process by process."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.stage import PATIENCE_S, Stage, is_locked, until

KEY = ("--key", "k", "--json")
FIRST_PRESS = "finishing the record"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def crash_in_doubt(stage: Stage, *after: str) -> str:
    """Leaves a run whose process was killed inside a step that must not happen twice."""
    stage.kill_in(*stage.words("hold:a", *after), *KEY, when=lambda: stage.marks == ["a"])
    code, _ = stage.atlas("up", "--until-idle")
    assert code == 0
    assert stage.state() == "in_doubt"
    return stage.run_id()


def only_item(stage: Stage) -> dict[str, Any]:
    code, inbox = stage.atlas("inbox", "--json")
    assert code == 0
    (item,) = inbox["items"]
    return dict(item)


# A process that was killed


def test_the_same_key_continues_a_run_whose_process_was_killed(stage: Stage) -> None:
    words = (*stage.words("mark:a", "again:b", "mark:c"), *KEY)
    stage.kill_in(*words, when=lambda: stage.marks == ["a", "b"])
    run_id = stage.run_id()
    stage.go()
    code, report = stage.atlas(*words)
    assert (code, report["run_id"], report["state"]) == (0, run_id, "succeeded")
    assert report["output"] == {"done": ["a", "b", "c"]}
    assert stage.marks == ["a", "b", "b", "c"]
    assert stage.atlas(*words) == (0, report)


def test_any_run_picks_up_what_a_dead_process_left(stage: Stage) -> None:
    stage.kill_in(*stage.words("mark:a", "again:b"), when=lambda: stage.marks == ["a", "b"])
    stage.go()
    code, report = stage.atlas(*stage.words("mark:z"), "--json")
    assert (code, report["output"]) == (0, {"done": ["z"]})
    assert stage.states() == ["succeeded", "succeeded"]
    assert sorted(stage.marks) == ["a", "b", "b", "z"]
    stage.assert_nobody_lives()


# Ctrl-C


def test_the_first_interrupt_parks_a_run_and_the_next_command_finishes_it(stage: Stage) -> None:
    words = (*stage.words("mark:a", "wait", "mark:b"), *KEY)
    with stage.started(*words) as process:
        until(lambda: stage.marks == ["a"], process)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    stage.assert_nobody_lives()
    assert stage.state() == "queued"
    stage.go()
    code, report = stage.atlas(*words)
    assert (code, report["output"]) == (0, {"done": ["a", "b"]})
    assert stage.marks == ["a", "b"]


def test_the_first_interrupt_lets_a_step_finish_and_records_it(stage: Stage) -> None:
    with stage.started(*stage.words("hold:a", "mark:b")) as process:
        until(lambda: stage.marks == ["a"], process)
        process.send_signal(signal.SIGINT)
        until(lambda: FIRST_PRESS in stage.printed, process)
        stage.go()
        assert process.wait(PATIENCE_S) == 130
    assert stage.state() == "queued"
    assert stage.atlas("up", "--until-idle")[0] == 0
    assert stage.state() == "succeeded"
    assert stage.marks == ["a", "b"]


def test_the_second_interrupt_stops_at_once_and_stays_consistent(stage: Stage) -> None:
    with stage.started(*stage.words("hold:a", "mark:b")) as process:
        until(lambda: stage.marks == ["a"], process)
        process.send_signal(signal.SIGINT)
        until(lambda: FIRST_PRESS in stage.printed, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    stage.assert_nobody_lives()
    assert stage.atlas("verify", "--all", "--json")[1]["ok"]
    stage.go()
    assert stage.atlas("up", "--until-idle")[0] == 0
    assert stage.state() == "in_doubt"
    assert only_item(stage)["name"] == "hold"
    assert stage.marks == ["a"]


# In doubt: nobody repeats the step but at a person's word


def test_an_effect_in_doubt_that_happened_is_answered_with_its_result(stage: Stage) -> None:
    run_id = crash_in_doubt(stage, "mark:b")
    item = only_item(stage)
    assert (item["kind"], item["run_id"], item["args"]) == ("doubt", run_id, [str(stage.file), "a"])
    assert stage.atlas("inbox", "done", item["item"], "--result", '"by hand"', "--json")[0] == 0
    stage.assert_nobody_lives()
    code, report = stage.atlas(*stage.words("hold:a", "mark:b"), *KEY)
    assert (code, report["run_id"], report["output"]) == (0, run_id, {"done": ["by hand", "b"]})
    assert stage.marks == ["a", "b"]
    assert stage.atlas("inbox", "--json")[1] == {"items": []}


def test_an_effect_in_doubt_that_did_not_happen_is_performed(stage: Stage) -> None:
    crash_in_doubt(stage)
    stage.go()
    assert stage.atlas("inbox", "not-done", only_item(stage)["item"], "--json")[0] == 0
    stage.assert_nobody_lives()
    code, report = stage.atlas(*stage.words("hold:a"), *KEY)
    assert (code, report["output"]) == (0, {"done": ["a"]})
    assert stage.marks == ["a", "a"]


def test_leave_to_perform_an_effect_is_good_for_one_try(stage: Stage) -> None:
    crash_in_doubt(stage)
    assert stage.atlas("inbox", "not-done", only_item(stage)["item"], "--json")[0] == 0
    stage.kill_in("up", "--until-idle", when=lambda: stage.marks == ["a", "a"])
    stage.go()
    assert stage.atlas("up", "--until-idle")[0] == 0
    assert stage.state() == "in_doubt"
    assert stage.marks == ["a", "a"]
    assert stage.atlas("inbox", "done", only_item(stage)["item"], "--result", '"a"', "--run", "--json")[0] == 0
    assert stage.marks == ["a", "a"]
    assert stage.atlas("replay", "@last", "--json")[1]["identical"]


def test_a_parent_rests_again_when_its_child_does(tmp_path: Path) -> None:
    for attempt in range(5):
        if rest_again(Stage(tmp_path / str(attempt), lease_s=20)):
            return
    pytest.fail("the driver stopped inside a commit each time")


def rest_again(stage: Stage) -> bool:
    """The child takes one of two answers and parks for the other just after its parent asked how it is."""
    words = (*stage.words("note:here", "kids", kids=({"do": ["both:a"]},)), *KEY)
    stage.kill_in(*words, when=lambda: sorted(stage.marks) == ["a1", "a2", "here"])
    assert stage.atlas("up", "--until-idle")[0] == 0
    assert stage.states() == ["waiting", "in_doubt"]
    first, _second = stage.atlas("inbox", "--json")[1]["items"]
    assert stage.atlas("inbox", "done", first["item"], "--json")[0] == 0
    before = stage.marks.count("here")
    with stage.started("up", fault="park.before:1:stop") as driver:
        until(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED, driver)
        if is_locked(stage.vault):
            return False
        with stage.started(*words) as process:
            until(lambda: stage.marks.count("here") > before, process)
            time.sleep(0.5)  # the question follows the mark at once and leaves no trace
            driver.send_signal(signal.SIGCONT)
            assert process.wait(PATIENCE_S) == 4
    assert stage.states() == ["waiting", "in_doubt"]
    return True


def test_abandoning_an_effect_in_doubt_fails_the_run(stage: Stage) -> None:
    crash_in_doubt(stage)
    assert stage.atlas("inbox", "abandon", only_item(stage)["item"], "--json")[0] == 0
    code, report = stage.atlas(*stage.words("hold:a"), *KEY)
    assert (code, report["state"], report["error"]["code"]) == (5, "failed", "effect_abandoned")
    assert stage.marks == ["a"]


# Approval: waiting for a person takes no process


def test_an_approved_effect_happens_once(stage: Stage) -> None:
    words = (*stage.words("mark:a", "ask:b", "mark:c"), *KEY)
    code, report = stage.atlas(*words)
    assert (code, report["state"]) == (4, "waiting")
    stage.assert_nobody_lives()
    assert stage.marks == ["a"]
    assert only_item(stage)["kind"] == "approval"
    assert stage.atlas("approve", "@last", "--json")[0] == 0
    stage.assert_nobody_lives()
    assert stage.marks == ["a"]
    code, again = stage.atlas(*words)
    assert (code, again["run_id"], again["output"]) == (0, report["run_id"], {"done": ["a", "b", "c"]})
    assert stage.marks == ["a", "b", "c"]


def test_a_denied_effect_never_happens(stage: Stage) -> None:
    words = (*stage.words("ask:b"), *KEY)
    assert stage.atlas(*words)[0] == 4
    assert stage.atlas("deny", "@last", "--reason", "no", "--json")[0] == 0
    code, report = stage.atlas(*words)
    assert (code, report["state"]) == (3, "refused")
    assert stage.marks == []


def test_an_unattended_run_refuses_what_needs_a_person(stage: Stage) -> None:
    code, report = stage.atlas(*stage.words("ask:b"), "--unattended", "--json")
    assert (code, report["error"]["code"]) == (3, "approval_required")
    assert stage.marks == []


# Cancelling reaches everything below


@pytest.mark.parametrize("where", ["running", "left by a dead process", "queued", "waiting"])
def test_cancelling_ends_a_run_and_its_children(stage: Stage, where: str) -> None:
    kids = ({"do": ["mark:a", "ask:x" if where == "waiting" else "wait"]},) * 2
    words = stage.words("kids", "mark:never", kids=kids)
    match where:
        case "left by a dead process":
            stage.kill_in(*words, when=lambda: stage.marks == ["a", "a"] and stage.receipts() == 2)
            assert cancel(stage) == (0, "cancelled")
        case "waiting":
            assert stage.atlas(*words, "--json")[0] == 4
            stage.assert_nobody_lives()
            assert stage.states() == ["waiting"] * 3
            assert cancel(stage) == (0, "cancelled")
        case _:
            with stage.started(*words) as process:
                until(lambda: stage.marks == ["a", "a"], process)
                if where == "queued":
                    process.send_signal(signal.SIGINT)
                    assert process.wait(PATIENCE_S) == 130
                    assert stage.states() == ["queued"] * 3
                assert cancel(stage) == (0, "cancelled")
                assert process.wait(PATIENCE_S) == (130 if where == "queued" else 5)
    until(lambda: settle(stage) == ["cancelled"] * 3)
    assert stage.marks == ["a", "a"]
    assert stage.atlas("inbox", "--json")[1] == {"items": []}
    stage.assert_nobody_lives()


def cancel(stage: Stage) -> tuple[int, str]:
    code, answer = stage.atlas("cancel", "@last", "--json")
    return code, str(answer["state"])


def settle(stage: Stage) -> list[str]:
    stage.atlas("up", "--until-idle")
    return stage.states()


def test_cancelling_inside_a_step_lists_what_nobody_knows(stage: Stage) -> None:
    with stage.started(*stage.words("hold:a")) as process:
        until(lambda: stage.marks == ["a"], process)
        assert cancel(stage) == (0, "cancelled")
        assert process.wait(PATIENCE_S) == 5
    item = only_item(stage)
    assert (item["kind"], item["name"]) == ("doubt", "hold")
    assert stage.atlas("inbox", "done", item["item"], "--json")[0] == 0
    assert stage.atlas("inbox", "--json")[1] == {"items": []}
    assert stage.state() == "cancelled"
    assert stage.atlas("verify", "--all", "--json")[1]["ok"]


# Limits


def test_a_run_ends_when_its_time_is_used(stage: Stage) -> None:
    stage.add_agent("hasty", timeout_s=1)
    code, report = stage.atlas(*stage.words("mark:a", "sleep:60", agent="hasty"), "--json")
    assert (code, report["state"], report["error"]["code"]) == (5, "failed", "timeout")
    stage.assert_nobody_lives()


def test_a_tree_ends_when_its_time_is_used_and_takes_its_children_along(tmp_path: Path) -> None:
    stage = Stage(tmp_path, timeouts={"chain": 2})
    code, report = stage.atlas(*stage.words("kids", kids=({"do": ["sleep:60"]},)), "--json")
    assert (code, report["state"], report["error"]["code"]) == (5, "failed", "tree_timeout")
    until(lambda: settle(stage) == ["failed", "cancelled"])
    stage.assert_nobody_lives()


def test_twenty_parents_that_wait_for_children_share_four_places(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_concurrent_agents=4)
    # One child ends at once; the other waits for a grandchild that is queued behind everything else.
    quick, slow = {"do": ["mark:quick"]}, {"do": ["kids"], "kids": [{"do": ["mark:slow"]}]}
    parents = ({"do": ["kids"], "kids": [quick, slow]},) * 20
    code, report = stage.atlas(*stage.words("kids", kids=parents), "--json")
    assert (code, report["state"]) == (0, "succeeded")
    assert sorted(stage.marks) == ["quick"] * 20 + ["slow"] * 20


def test_two_hundred_children_of_one_tree_do_not_starve_another_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_concurrent_agents=2, max_children_per_run=200)
    crowd = tuple({"do": ["sleep:0.05", "mark:crowd"]} for _ in range(200))
    stage.atlas(*stage.words("kids", kids=crowd), "--detach", "--json")
    with stage.started("up") as process:
        until(lambda: "crowd" in stage.marks, process)
        stage.atlas(*stage.words("mark:other"), "--detach", "--json")
        until(lambda: "other" in stage.marks, process)
        assert stage.marks.index("other") < 100
        until(lambda: stage.marks.count("crowd") == 200, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_a_command_that_finds_the_run_in_other_hands_waits_for_its_result(stage: Stage) -> None:
    words = (*stage.words("mark:a", "wait"), *KEY)
    with stage.started(*words) as process:
        until(lambda: stage.marks == ["a"], process)
        with subprocess.Popen(process.args, stdout=subprocess.PIPE, text=True) as second:
            stage.go()
            out, _ = second.communicate(timeout=PATIENCE_S)
        assert process.wait(PATIENCE_S) == 0
    assert second.returncode == 0
    assert '"done":["a"]' in out
    assert stage.marks == ["a"]
