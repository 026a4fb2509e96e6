"""`atlas run`: what is submitted, what is printed where, and the exit code of each way a run can rest."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas.control.report import InboxEntry
from atlas.kernel.errors import ErrorRecord, NotFound
from atlas.kernel.event import AttemptStarted, EffectAsked, Logged, OutputCaptured, Payload, RunEnded, TurnSteered
from atlas.kernel.run import RunState
from unit.cli.fake_host import make_events, make_row

RUN = "run_0193a1b2c3d47abc8def0123456789ab"
CHILD = "run_0193a1b2c3d47abd8def0123456789ab"


def submitted(host: Any) -> Any:
    [(_, _, value, options)] = [each for each in host.asked if each[0] == "submit"]
    return value, options


@pytest.fixture(autouse=True)
def queued_run(host: Any) -> None:
    host.add(make_row(RUN, "queued"), {"words": 3}, state="succeeded")


def test_text_becomes_the_text_of_the_input(atlas: Any, host: Any) -> None:
    assert atlas("run", "writer", "Some words.").exit_code == 0
    assert submitted(host)[0] == {"text": "Some words."}


def test_without_input_the_input_is_an_empty_object(atlas: Any, host: Any) -> None:
    atlas("run", "writer")
    assert submitted(host)[0] == {}


def test_input_comes_from_a_file_or_standard_input(atlas: Any, host: Any, tmp_path: Path) -> None:
    file = tmp_path / "day.json"
    file.write_text('{"day": 3}', encoding="utf-8")
    atlas("run", "writer", "--input", f"@{file}")
    assert submitted(host)[0] == {"day": 3}
    host.asked.clear()
    atlas("run", "writer", "--input", "-", stdin="[1, 2]")
    assert submitted(host)[0] == [1, 2]


def test_options_reach_the_use_case(atlas: Any, host: Any) -> None:
    atlas("run", "writer", "--session", "ses_1", "--key", "k", "--priority", "7", "--unattended")
    assert submitted(host)[1] == {"session_id": "ses_1", "key": "k", "priority": 7, "unattended": True}


def test_files_reach_the_use_case_in_order_and_need_no_words(atlas: Any, host: Any) -> None:
    atlas("run", "writer", "--file", "b.png", "--file", "a.txt", "--detach")
    value, options = submitted(host)
    assert value == {}
    assert options["files"] == [("b.png", b"content"), ("a.txt", b"content")]
    assert options["detached"] is True


@pytest.mark.parametrize(
    "value, where",
    [('{"a": 1,}', "--input:1:9"), ("", "--input:1:1"), ('{"a":\n  NaN}', "--input:2:3"), ('"\\ud800"', "--input:1:2")],
)
def test_input_that_is_not_json_is_refused_with_its_place(atlas: Any, host: Any, value: str, where: str) -> None:
    result = atlas("run", "writer", "--input", value)
    assert result.exit_code == 2
    assert result.stderr.startswith("error[not_json]: the value of --input is not JSON")
    assert f"  at {where}" in result.stderr
    assert host.asked == []


@pytest.mark.parametrize(
    "stdin, code, message",
    [
        (b'{"a": "\\ud83d\\ude00 \\udc00"}', "not_json", "\\udc00 is half of a character"),
        (b'{"a": "\xff"}', "not_utf8", "byte 0xff cannot stand there\n  at standard input:1:8"),
        (b"\xef\xbb\xbf{}", "not_utf8", "begins with a byte order mark of UTF-8"),
        (b"\xff\xfe{\x00}\x00", "not_utf8", "begins with a byte order mark of UTF-16"),
        (b" " * (16 * 1024 * 1024 + 1), "value_too_large", "larger than 16 MiB"),
    ],
)
def test_text_that_is_not_what_it_should_be_is_named(
    atlas: Any, host: Any, stdin: bytes, code: str, message: str
) -> None:
    result = atlas("run", "writer", "--input", "-", stdin=stdin)
    assert result.exit_code == 2
    assert f"error[{code}]" in result.stderr
    assert message in result.stderr
    assert host.asked == []


def test_an_escaped_backslash_before_a_surrogate_is_no_surrogate(atlas: Any, host: Any) -> None:
    atlas("run", "writer", "--input", '{"a": "\\\\ud800"}')
    assert submitted(host)[0] == {"a": "\\ud800"}


def test_an_endless_file_is_not_read_to_its_end(atlas: Any) -> None:
    assert "error[value_too_large]" in atlas("run", "writer", "--input", "@/dev/zero").stderr


def test_the_vault_is_looked_for_before_the_input_is_read(atlas: Any, program: Any) -> None:
    program.missing = NotFound("there is no vault here", code="vault_not_found")
    for words in (("run", "writer", "--input", "@/nowhere"), ("inbox", "done", "1", "--result", "@/nowhere")):
        assert "error[vault_not_found]" in atlas(*words).stderr


@pytest.mark.parametrize("option", ["--key", "--session"])
def test_an_empty_key_or_session_is_refused(atlas: Any, host: Any, option: str) -> None:
    result = atlas("run", "writer", option, "")
    assert (result.exit_code, "It is empty" in result.stderr) == (2, True)
    assert host.asked == []


def test_input_nested_beyond_reason_is_refused(atlas: Any) -> None:
    result = atlas("run", "writer", "--input", "[" * 100_000)
    assert (result.exit_code, "error[not_json]" in result.stderr) == (2, True)


def test_a_file_that_is_missing_is_not_found(atlas: Any) -> None:
    result = atlas("run", "writer", "--input", "@nowhere.json")
    assert (result.exit_code, "error[file_not_found]" in result.stderr) == (2, True)


def test_text_and_input_together_are_refused(atlas: Any) -> None:
    assert atlas("run", "writer", "words", "--input", "{}").exit_code == 2


def test_text_without_its_quotes_is_told_about_them(atlas: Any, host: Any) -> None:
    result = atlas("run", "writer", "Where", "is", "it?")
    assert (result.exit_code, 'put it in quotes, "Where is it?"' in result.stderr) == (2, True)
    assert host.asked == []


def test_text_that_is_not_utf8_is_refused(atlas: Any, host: Any) -> None:
    assert atlas("run", "writer", "\udcff").exit_code == 2
    assert host.asked == []


def test_the_output_is_all_there_is_on_standard_output(atlas: Any) -> None:
    result = atlas("run", "writer")
    assert json.loads(result.stdout) == {"words": 3}
    assert result.stderr.splitlines()[-1] == "succeeded  $0  0 tokens  3 steps  1.24s  run_0193a1b2c3d47abc"


@pytest.mark.parametrize("output", ["plain words", {"text": "plain words"}])
def test_an_output_that_is_only_text_is_printed_as_text(atlas: Any, host: Any, output: object) -> None:
    host.add(make_row(RUN, "queued"), output, state="succeeded")
    assert atlas("run", "writer").stdout == "plain words\n"


def test_an_output_with_text_and_more_stays_json(atlas: Any, host: Any) -> None:
    host.add(make_row(RUN, "queued"), {"text": "words", "n": 1}, state="succeeded")
    assert json.loads(atlas("run", "writer").stdout) == {"text": "words", "n": 1}


def test_json_prints_exactly_one_report_and_nothing_else(atlas: Any) -> None:
    result = atlas("run", "writer", "--json")
    report = json.loads(result.stdout)
    assert list(report) == [
        "run_id",
        "session_id",
        "agent",
        "state",
        "output",
        "text",
        "cost_usd",
        "tokens",
        "steps",
        "duration_ms",
        "error",
        "models",
    ]
    assert result.stderr == ""


@pytest.mark.parametrize(
    "state, code",
    [
        ("succeeded", 0),
        ("refused", 3),
        ("waiting", 4),
        ("in_doubt", 4),
        ("queued", 4),
        ("failed", 5),
        ("cancelled", 5),
    ],
)
def test_each_way_to_rest_has_its_exit_code(atlas: Any, host: Any, state: RunState, code: int) -> None:
    host.add(make_row(RUN, "queued"), state=state)
    assert atlas("run", "writer").exit_code == code
    assert atlas("run", "writer", "--json").exit_code == code


def test_a_failed_run_says_why_and_where(atlas: Any, host: Any) -> None:
    error = ErrorRecord("step_failed", "ValueError: no", "Look at it.", "agent.py:12", "a traceback")
    host.add(make_row(RUN, "queued"), state="failed", error=error)
    result = atlas("run", "writer")
    assert result.stdout == ""
    assert "error[step_failed]: ValueError: no\n  at agent.py:12\n  hint: Look at it." in result.stderr
    assert "a traceback" not in result.stderr


def test_a_run_that_waits_says_what_is_asked_and_how_to_answer(atlas: Any, host: Any) -> None:
    host.add(make_row(RUN, "queued"), state="waiting")
    args = msgspec.Raw(b'["bob@example.org"]')
    host.entries = [InboxEntry(RUN, "step:send:1:0", "approval", "writer", "send", args, "high_risk", "default", 0)]
    result = atlas("--vault", "my vault", "run", "writer")
    assert 'waits for a person: send (high_risk) ["bob@example.org"]' in result.stderr
    [line] = [line for line in result.stderr.splitlines() if "approve" in line]
    assert line.endswith(" --vault 'my vault'")
    number = line.split("approve ")[1].split()[0]
    assert atlas("approve", number).exit_code == 0
    assert host.asked[-1] == ("answer", RUN, "step:send:1:0", True, "")


def test_a_run_in_doubt_offers_the_three_answers(atlas: Any, host: Any) -> None:
    host.add(make_row(RUN, "queued"), state="in_doubt")
    host.entries = [InboxEntry(RUN, "e", "doubt", "writer", "send", msgspec.Raw(b"[]"), "high_risk", "crash", 0)]
    text = atlas("run", "writer").stderr
    for words in ("atlas inbox done", "atlas inbox not-done", "atlas inbox abandon"):
        assert words in text


def test_what_happens_meanwhile_goes_to_standard_error(atlas: Any, host: Any) -> None:
    host.add(make_row(CHILD, parent_run_id=RUN, root_run_id=RUN, agent="searcher"))
    asked = EffectAsked("e", "step", "send", Payload(), "h", "high_risk", "")
    host.ledger.late = [
        msgspec.structs.replace(event, position=position)
        for position, event in enumerate(
            [
                *make_events(
                    RUN,
                    AttemptStarted(1, "me"),
                    OutputCaptured("stdout", "half a "),
                    OutputCaptured("stdout", "line\nrest\x1b[2J"),
                    Logged("found 12 pages"),
                    Logged("slow", "warning"),
                    Logged("reading", fraction=0.4),
                    TurnSteered("should_continue_after_stop", 2, "continue", "test_oracle", text="Not\ndone yet."),
                    TurnSteered("soft_limit", 2, "extend", "critic", text="It goes on."),
                ),
                *make_events(CHILD, AttemptStarted(1, "me"), asked, RunEnded("succeeded")),
                *make_events("run_stranger", Logged("of another tree")),
            ],
            1,
        )
    ]
    host.add(make_row("run_stranger"))
    result = atlas("run", "writer")
    assert json.loads(result.stdout) == {"words": 3}
    lines = [line.strip() for line in result.stderr.splitlines()]
    assert lines[:-1] == [
        "| half a line",
        "found 12 pages",
        "warning: slow",
        "40% reading",
        "test_oracle: Not done yet.",
        f"[searcher] started as {CHILD[:20]}",
        "[searcher] send waits for a person (high_risk)",
        lines[7],
        "[searcher] succeeded after 2.00s",
        "| rest\\x1b[2J",
    ]
    assert lines[7].startswith("[searcher] answer it from another terminal: atlas approve ")


def crowd_of(host: Any, number: int) -> None:
    """Events of a run that spawned `number` others, each of which starts and ends; every tenth fails."""
    position = 0
    for index in range(number):
        child = f"run_child_{index:04}"
        host.add(make_row(child, parent_run_id=RUN, root_run_id=RUN, agent="searcher"))
        ended = RunEnded("failed" if index % 10 == 9 else "succeeded")
        for event in make_events(child, AttemptStarted(1, "me"), ended):
            position += 1
            host.ledger.late.append(msgspec.structs.replace(event, position=position))


def test_many_spawned_runs_are_counted_after_the_first_few(atlas: Any, host: Any) -> None:
    crowd_of(host, 100)
    lines = [line.strip() for line in atlas("run", "writer").stderr.splitlines()]
    assert sum("started as" in line for line in lines) == 10
    assert lines[-2] == "and 90 more spawned runs, 9 failed, 81 succeeded"
    assert len(lines) < 30


def test_quiet_leaves_only_the_result_and_what_went_wrong(atlas: Any, host: Any) -> None:
    crowd_of(host, 3)
    host.ledger.late += make_events(RUN, OutputCaptured("stdout", "noise\n"))
    result = atlas("run", "writer", "--quiet")
    assert (json.loads(result.stdout), result.stderr) == ({"words": 3}, "")
    host.add(make_row(RUN, "queued"), state="failed", error=ErrorRecord("step_failed", "ValueError: no"))
    result = atlas("run", "writer", "-q")
    assert "error[step_failed]: ValueError: no" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("failed")


@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}])
def test_a_pipe_gets_every_character_of_an_answer(atlas: Any, program: Any, host: Any, environ: dict[str, str]) -> None:
    text = "a \x1b[31mred\x1b[0m word\r\n\x07"
    program.environ = environ
    host.add(make_row(RUN, "queued"), text, state="succeeded")
    assert atlas("run", "writer").stdout_bytes == text.encode() + b"\n"


def test_a_run_that_has_ended_already_is_not_driven_again(atlas: Any, host: Any) -> None:
    host.add(make_row(RUN, "succeeded"), "as before")
    result = atlas("run", "writer", "--key", "k")
    assert result.stdout == "as before\n"
    assert [each[0] for each in host.asked] == ["submit"]


def test_detached_runs_are_queued_and_named(atlas: Any, host: Any) -> None:
    result = atlas("run", "writer", "--detach")
    assert (result.exit_code, result.stdout) == (0, f"{RUN}\n")
    assert [each[0] for each in host.asked] == ["submit"]


def test_others_in_hand_are_waited_for_and_that_is_said(atlas: Any, host: Any) -> None:
    host.in_hand = 2
    result = atlas("run", "writer")
    assert "waiting for 2 other runs picked up here" in result.stderr
    assert host.asked[-1] == ("finish_others",)


class Pressed:
    """A host that is interrupted while it drives: `presses` times."""

    def __init__(self, host: Any, presses: int) -> None:
        self.host = host
        self.presses = presses
        self.stopped = asyncio.Event()
        self.done: list[str] = []

    async def drive(self, run_id: str) -> RunState:
        os.kill(os.getpid(), signal.SIGINT)
        await self.stopped.wait()
        if self.presses > 1:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)
        self.done.append("parked")
        return "queued"

    def stop(self) -> None:
        self.done.append("stop")
        self.stopped.set()

    async def abort(self) -> None:
        self.done.append("abort")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)


@pytest.mark.parametrize("presses, done", [(1, ["stop", "parked"]), (2, ["stop", "abort"])])
def test_ctrl_c_parks_and_a_second_one_stops_at_once(
    atlas: Any, program: Any, host: Any, presses: int, done: list[str]
) -> None:
    host.add(make_row(RUN, "queued"), state="queued")
    program.host = Pressed(host, presses)
    result = atlas("run", "writer")
    assert result.exit_code == 130
    assert program.host.done == done
    assert "finishing the record; again to stop at once" in result.stderr
    assert result.stderr.splitlines()[-1] == "nothing is lost: the run continues with atlas up --until-idle"
    assert ("finish_others",) not in host.asked


def test_a_run_that_ends_while_it_is_being_stopped_keeps_its_result(atlas: Any, program: Any, host: Any) -> None:
    program.host = Pressed(host, 1)
    result = atlas("run", "writer")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"words": 3})
