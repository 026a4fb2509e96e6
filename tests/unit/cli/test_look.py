"""Commands that only look: runs, show, trace, verify, replay."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from atlas.control.report import Mismatch, ReplayReport, VerifyReport
from atlas.kernel.chain import Finding
from atlas.kernel.errors import ErrorRecord
from atlas.kernel.event import (
    AttemptStarted,
    EffectIntended,
    EffectReceived,
    Logged,
    OutputCaptured,
    Payload,
    RunCreated,
    RunEnded,
    Spend,
)
from atlas.kernel.run import RunQuery
from unit.cli.fake_host import make_events, make_row

RUN = "run_0193a1b2c3d47abc8def0123456789ab"


def payload(value: object) -> Payload:
    return Payload(msgspec.Raw(msgspec.json.encode(value)))


def fill(host: Any) -> None:
    host.add(make_row(RUN, spend=Spend(1), agent="a-" + "very-" * 11 + "long-name"), {"words": 3})
    host.ledger.stored[RUN] = make_events(
        RUN,
        RunCreated("writer", "1.0.0", payload({"lines": 2}), "", "ses_1", "seed"),
        AttemptStarted(1, "me"),
        EffectIntended("e1", "step", "save", payload(["x"]), "h", "reversible_write"),
        EffectReceived("e1", payload({"size": 3}), duration_us=250_000),
        OutputCaptured("stdout", "printed \x1b[31mred\n"),
        Logged("noted"),
        RunEnded("succeeded", payload({"words": 3})),
    )


def test_runs_fit_80_columns_and_name_the_run(atlas: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(host)
    monkeypatch.setattr("atlas.cli.terminal.PIPE_WIDTH", 80)
    result = atlas("runs")
    head, line = result.stdout.splitlines()
    assert head.split() == ["RUN", "AGENT", "STATE", "STEPS", "COST", "TIME", "BEGAN"]
    assert line.startswith(RUN[:20])
    assert line.endswith("5s ago")
    assert max(len(head), len(line)) <= 80


def test_a_narrow_terminal_loses_no_column(atlas: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(host)
    monkeypatch.setattr("atlas.cli.terminal.PIPE_WIDTH", 40)
    head, line = atlas("runs").stdout.splitlines()
    assert head.split() == ["RUN", "AGENT", "STATE", "STEPS", "COST", "TIME", "BEGAN"]
    assert line.endswith("5s ago")
    assert ["OUTCOME", "TIME"] in [line.split()[-2:] for line in atlas("show", RUN).stdout.splitlines()]


def test_a_pipe_gets_names_whole(atlas: Any, host: Any) -> None:
    fill(host)
    assert host.rows[RUN].agent in atlas("runs").stdout


def test_runs_as_json_have_public_names_and_the_cursor(atlas: Any, host: Any) -> None:
    fill(host)
    host.next_page = "run_cursor"
    page = json.loads(atlas("runs", "--json").stdout)
    assert page["next"] == "run_cursor"
    [run] = page["runs"]
    assert (run["run_id"], run["state"], run["ended_at"]) == (RUN, "succeeded", "2027-01-15T07:59:59.000Z")
    assert not any(key.endswith("_us") or "hash" in key for key in run)


@pytest.mark.parametrize("state", ["running", "waiting"])
def test_a_run_whose_lease_has_lapsed_is_shown_as_lost(atlas: Any, host: Any, state: Any) -> None:
    fill(host)
    now_us = host.clock.now_us()
    for owner, until_us, shown in (("me", now_us, "lost"), ("me", now_us + 1, state), ("", now_us, state)):
        host.add(make_row(RUN, state, owner=owner, lease_until_us=until_us))
        assert shown in atlas("runs").stdout.split()
        assert json.loads(atlas("runs", "--json").stdout)["runs"][0]["state"] == shown
        assert shown in atlas("show", RUN).stdout.split()
        assert json.loads(atlas("show", RUN, "--json").stdout)["run"]["state"] == shown


@pytest.mark.parametrize("option", ["--agent", "--session", "--before"])
def test_an_empty_filter_is_refused(atlas: Any, host: Any, option: str) -> None:
    assert atlas("runs", option, "").exit_code == 2
    assert host.asked == []


def test_filters_reach_the_query_and_the_next_page_keeps_them(atlas: Any, host: Any) -> None:
    fill(host)
    host.next_page = "run_cursor"
    words = ("--agent", "writer", "--state", "failed", "--state", "in_doubt", "--session", "ses_1", "--limit", "5")
    result = atlas("runs", *words, "--all")
    query = RunQuery("writer", ("failed", "in_doubt"), "ses_1", limit=5)
    assert host.asked == [("runs", query)]
    host.asked.clear()
    more = result.stderr.removeprefix("more: atlas ").split()
    atlas(*more)
    assert host.asked == [("runs", msgspec.structs.replace(query, before="run_cursor"))]


def test_without_all_spawned_runs_are_left_out(atlas: Any, host: Any) -> None:
    assert "no runs yet" in atlas("runs").stderr
    assert host.asked[0][1].roots_only is True


@pytest.mark.parametrize(
    "words",
    [
        ("show", "@last", "--request", "1", "--events"),
        ("show", "@last", "--request", "1", "--follow"),
        ("show", "@last", "--events", "--follow"),
        ("costs", "@last", "--by", "model"),
        ("costs", "@last", "--since", "7d"),
        ("costs", "@last", "--limit", "5"),
    ],
)
def test_options_that_would_not_be_heard_are_refused(atlas: Any, host: Any, words: tuple[str, ...]) -> None:
    fill(host)
    result = atlas(*words)
    assert (result.exit_code, "error[usage]" in result.stderr) == (2, True)
    assert host.asked == []


def test_show_prints_every_part_of_a_run(atlas: Any, host: Any) -> None:
    fill(host)
    text = atlas("show", "@last", "--events").stdout
    for part in (RUN, "succeeded", "ses_1, turn 1", '"lines": 2', '"words": 3', "info: noted"):
        assert part in text
    [effect] = [line for line in text.splitlines() if line.startswith("  save")]
    assert effect.split() == ["save", "reversible_write", "#3", "#4", "completed", "250ms"]
    assert "printed \\x1b[31mred" in text
    assert [line.split()[2] for line in text.splitlines() if line.startswith("    ") and " +" in line] == [
        "run.created",
        "attempt.started",
        "effect.intended",
        "effect.received",
        "output.captured",
        "logged",
        "run.ended",
    ]


def test_show_as_json_has_exact_values_and_events_on_request(atlas: Any, host: Any) -> None:
    fill(host)
    detail = json.loads(atlas("show", RUN, "--json").stdout)
    assert (detail["input"], detail["output"]) == ({"lines": 2}, {"words": 3})
    assert (detail["effects"][0]["args"], detail["effects"][0]["result"]) == (["x"], {"size": 3})
    assert "events" not in detail
    detail = json.loads(atlas("show", RUN, "--json", "--events").stdout)
    assert [event["seq"] for event in detail["events"]] == [1, 2, 3, 4, 5, 6, 7]


def test_show_cuts_long_text_and_says_how_to_get_it(atlas: Any, host: Any) -> None:
    fill(host)
    host.ledger.stored[RUN] = make_events(RUN, OutputCaptured("stdout", "line\n" * 100))
    text = atlas("show", RUN).stdout
    assert text.count("  line") == 40
    assert "... 60 more lines; --json has all of it" in text
    host.ledger.stored[RUN] = make_events(RUN, OutputCaptured("stdout", "word " * 10_000))
    text = atlas("show", RUN).stdout
    assert len(text) < 20_000
    assert "... 40,000 more characters; --json has all of it" in text


def test_show_names_the_models_that_answered(atlas: Any, host: Any) -> None:
    fill(host)
    host.reports[RUN] = msgspec.structs.replace(host.reports[RUN], models=("demo:one (scripted)",))
    assert "answered demo:one (scripted)" in atlas("show", RUN).stdout
    assert json.loads(atlas("show", RUN, "--json").stdout)["models"] == ["demo:one (scripted)"]


def test_show_has_the_traceback_that_run_leaves_out(atlas: Any, host: Any) -> None:
    fill(host)
    host.add(make_row(RUN, "failed"), error=ErrorRecord("step_failed", "ValueError: no", "", "", "line 1\nline 2"))
    assert "    line 1\n    line 2" in atlas("show", RUN).stdout


def test_an_erased_event_is_shown_as_erased(atlas: Any, host: Any) -> None:
    fill(host)
    host.ledger.stored[RUN][5] = msgspec.structs.replace(host.ledger.stored[RUN][5], salt=b"", body=b"")
    assert "(erased)" in atlas("show", RUN, "--events").stdout
    events = json.loads(atlas("show", RUN, "--events", "--json").stdout)["events"]
    assert events[5]["body"] is None


def test_trace_as_json_has_the_public_shape_and_spans_on_request(atlas: Any, host: Any) -> None:
    fill(host)
    public = {
        "trace_id",
        "chain",
        "started_at",
        "completed_at",
        "status",
        "steps",
        "total_tokens",
        "total_cost_usd",
    }
    assert set(json.loads(atlas("trace", RUN, "--json").stdout)) == public
    assert set(json.loads(atlas("trace", RUN, "--json", "--spans").stdout)) == {*public, "spans"}


def test_trace_draws_a_line_per_step(atlas: Any, host: Any) -> None:
    fill(host)
    head, blank, run, step = atlas("trace", RUN).stdout.splitlines()
    assert RUN in head
    assert blank == ""
    assert "completed" in run
    assert step.startswith("└─ save")
    assert max(len(run), len(step)) <= 80


def test_verify_names_what_it_found_and_exits_5(atlas: Any, host: Any) -> None:
    fill(host)
    assert atlas("verify", "--all").stdout == "ok  1 run, 4 events\n"
    assert host.asked == [("verify", None)]
    finding = Finding("altered", RUN, 3, "the body of event 3 was altered")
    host.verdict = VerifyReport(1, 4, 1, False, (finding,))
    result = atlas("verify", RUN)
    assert result.exit_code == 5
    assert "altered: the body of event 3 was altered" in result.stdout
    assert atlas("verify", "--json").exit_code == 5
    assert atlas("verify", RUN, "--all").exit_code == 2


def test_replay_says_what_came_out_differently_and_exits_5(atlas: Any, host: Any) -> None:
    fill(host)
    assert atlas("replay", RUN).exit_code == 0
    host.replayed = ReplayReport(RUN, 3, False, (Mismatch(4, "allow", "deny"),), "identical")
    result = atlas("replay", RUN)
    assert result.exit_code == 5
    assert "1 came out differently" in result.stdout
    assert "event 4" in result.stdout
    host.replayed = ReplayReport(RUN, 3, False, (), "different: the output is not the recorded one")
    result = atlas("replay", RUN)
    assert result.exit_code == 5
    assert "all identical" in result.stdout
    assert "different: the output" in result.stdout
    assert atlas("replay", RUN, "--json").exit_code == 5


def test_an_unknown_run_is_not_found(atlas: Any) -> None:
    for command in ("show", "trace", "replay", "fork", "cancel", "approve", "deny"):
        result = atlas(command, "nope")
        assert (result.exit_code, "error[not_found]" in result.stderr) == (2, True), command
