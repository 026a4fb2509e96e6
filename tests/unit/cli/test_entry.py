"""The root command: help that loads nothing, options at any place, and errors that never are tracebacks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from atlas.cli import root
from atlas.cli.entry import SECTIONS
from atlas.kernel.errors import Conflict, Invalid, LimitRefused, Problem, Unavailable

ENTRIES = {name: text for section in SECTIONS.values() for name, (_, text) in section.items()}


def every_command(group: click.Group = root, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None, name
        yield " ".join((*path, name)), found
        if isinstance(found, click.Group):
            yield from every_command(found, (*path, name))


COMMANDS = dict(every_command())


def test_the_commands_are_those_that_were_promised() -> None:
    promised = (
        "new run chat runs show trace replay fork cancel inbox approve deny verify doctor chaos bench up completion models "
        "policy budget mandate secrets grants costs"
    )
    assert set(ENTRIES) == set(promised.split())


@pytest.mark.parametrize("name", ENTRIES)
def test_the_table_says_what_the_command_says(name: str) -> None:
    assert (COMMANDS[name].help or "").splitlines()[0] == ENTRIES[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_and_the_shared_options(name: str, atlas: Any) -> None:
    result = atlas(*name.split(), "--help")
    assert result.exit_code == 0
    assert f"\nExamples:\n  {'eval' if name == 'completion' else 'atlas'}" in result.output
    for option in ("--vault PATH", "--json", "--debug", "--help"):
        assert option in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80


def test_help_loads_no_command_and_nothing_heavy() -> None:
    script = (
        "import sys; from atlas.cli import root\n"
        "try: root(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'asyncio', 'msgspec', 'yaml', 'atlas.control', 'atlas.vault', 'atlas.kernel'}\n"
        "found = heavy & set(sys.modules) | {m for m in sys.modules if m.startswith('atlas.cli.commands')}\n"
        "print('LOADED', sorted(found))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_without_a_command_the_help_is_printed(atlas: Any) -> None:
    result = atlas()
    assert result.exit_code == 0
    assert "Usage: atlas" in result.stdout


@pytest.mark.parametrize(
    "words", [("--vault", "there", "runs"), ("runs", "--vault", "there"), ("runs", "--vault=there")]
)
def test_the_vault_is_taken_before_and_after_the_command(atlas: Any, program: Any, words: tuple[str, ...]) -> None:
    assert atlas(*words).exit_code == 0
    assert program.opened == ["there"]


def test_the_later_vault_wins(atlas: Any, program: Any) -> None:
    atlas("--vault", "one", "runs", "--vault", "two")
    assert program.opened == ["two"]


@pytest.mark.parametrize(
    "words",
    [("--json", "inbox"), ("inbox", "--json"), ("inbox", "done", "1", "--json"), ("--json", "inbox", "done", "1")],
)
def test_json_is_taken_at_every_place(atlas: Any, words: tuple[str, ...]) -> None:
    assert isinstance(json.loads(atlas(*words).stdout), dict)


def test_a_mistyped_command_gets_a_suggestion(atlas: Any) -> None:
    result = atlas("tracee")
    assert result.exit_code == 2
    assert "error[usage]: There is no command 'tracee'. Did you mean trace?" in result.stderr


def test_a_usage_error_names_the_help_and_is_json_on_request(atlas: Any) -> None:
    assert "hint: 'atlas run --help'" in atlas("run").stderr
    error = json.loads(atlas("run", "--json").stdout)["error"]
    assert (error["code"], set(error)) == ("usage", {"code", "message", "hint", "where"})


@pytest.mark.parametrize(
    "error, code",
    [
        (Invalid("bad"), 2),
        (Conflict("other input"), 2),
        (LimitRefused("too deep"), 3),
        (Unavailable("later"), 5),
        (Unavailable("hardware placement", code="not_available_yet"), 3),
        (ExceptionGroup("tasks", [ValueError("x"), LimitRefused("too deep")]), 3),
    ],
)
def test_each_error_has_its_exit_code(atlas: Any, host: Any, error: Exception, code: int) -> None:
    host.error = error
    assert atlas("run", "writer").exit_code == code


PROBLEMS = (
    Problem("unknown_key", "unknown key 'capabilites'", "agents/x/agent.yaml", 3, 5, "did you mean capabilities?"),
    Problem("bad_version", "not a version", "agents/x/agent.yaml", 4, 12),
)


def test_an_error_says_code_place_and_hint(atlas: Any, host: Any) -> None:
    host.error = Invalid("unknown key 'capabilites'", problems=PROBLEMS[:1], code="unknown_key")
    result = atlas("run", "x")
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "error[unknown_key]: unknown key 'capabilites'",
        "  at agents/x/agent.yaml:3:5",
        "  hint: did you mean capabilities?",
    ]


def test_all_problems_are_listed(atlas: Any, host: Any) -> None:
    host.error = Invalid("the contract has 2 problems", problems=PROBLEMS)
    result = atlas("run", "x")
    assert "1. unknown key 'capabilites' [unknown_key]" in result.stderr
    assert "2. not a version [bad_version]\n     at agents/x/agent.yaml:4:12" in result.stderr
    error = json.loads(atlas("run", "x", "--json").stdout)["error"]
    assert [problem["line"] for problem in error["problems"]] == [3, 4]


def test_an_unexpected_error_is_one_line_and_its_details_are_kept(atlas: Any, host: Any, tmp_path: Path) -> None:
    host.error = ZeroDivisionError("division by zero")
    result = atlas("run", "x")
    assert result.exit_code == 5
    first, hint = result.stderr.splitlines()
    assert first == "error[fault]: ZeroDivisionError: division by zero"
    assert "--debug" in hint
    [file] = (tmp_path / ".atlas" / "faults").iterdir()
    assert str(file) in hint
    assert "Traceback" in file.read_text(encoding="utf-8")


def test_debug_prints_the_traceback(atlas: Any, host: Any, tmp_path: Path) -> None:
    host.error = ZeroDivisionError("division by zero")
    result = atlas("run", "x", "--debug")
    assert "Traceback (most recent call last)" in result.stderr
    assert "again with --debug" not in result.stderr


def test_what_an_error_quotes_cannot_steer_the_terminal(atlas: Any, host: Any) -> None:
    host.error = Invalid("bad \x1b[31mname\x07", where="x\x1b]0;title\x07")
    assert "\x1b]" not in atlas("run", "x").stderr
    assert "bad \\x1b[31mname\\x07" in atlas("run", "x").stderr


def test_ctrl_c_ends_with_130_and_no_traceback(atlas: Any, host: Any) -> None:
    host.error = KeyboardInterrupt()
    result = atlas("run", "x")
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_ctrl_c_with_json_is_one_object(atlas: Any, host: Any) -> None:
    host.error = KeyboardInterrupt()
    result = atlas("run", "x", "--json")
    assert result.exit_code == 130
    error = json.loads(result.stdout)["error"]
    assert (error["code"], set(error)) == ("interrupted", {"code", "message", "hint", "where"})
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_before_the_work_has_begun_leaves_no_warning() -> None:
    # The import of asyncio is the first thing that takes time after the work was made.
    script = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'asyncio': raise KeyboardInterrupt\n"
        "from atlas.cli.terminal import Terminal\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "async def work(): pass\n"
        "class Program: environ = {}\n"
        "try: Terminal(Program(), None, False).run(work())\n"
        "except KeyboardInterrupt: print('pressed')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert (done.stdout, done.stderr) == ("pressed\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_for_the_shell(atlas: Any, shell: str) -> None:
    script = atlas("completion", shell).stdout
    assert f"_ATLAS_COMPLETE={shell}_complete" in script


def test_completion_takes_the_shell_in_use_or_asks(atlas: Any, program: Any) -> None:
    program.environ = {"SHELL": "/usr/bin/fish"}
    assert "fish_complete" in atlas("completion").stdout
    program.environ = {"SHELL": "/bin/tcsh"}
    assert atlas("completion").exit_code == 2


def test_the_version_is_printed(atlas: Any) -> None:
    assert atlas("--version").stdout.startswith("atlas 0.")


@pytest.mark.parametrize("words", [("--json", "--version"), ("--version", "--json")])
def test_the_version_is_an_object_with_json(atlas: Any, words: tuple[str, ...]) -> None:
    assert json.loads(atlas(*words).stdout)["version"].startswith("0.")


@pytest.mark.parametrize("words", [("--json", "--help"), ("run", "--help", "--json"), ("--json", "run", "-h")])
def test_help_is_an_object_with_json(atlas: Any, words: tuple[str, ...]) -> None:
    told = json.loads(atlas(*words).stdout)
    assert told["help"].startswith("Usage: ")
    assert told["command"].endswith("run" if "run" in words else "atlas")


def test_a_pipe_that_breaks_inside_is_not_taken_for_a_reader_that_left(atlas: Any, host: Any) -> None:
    host.error = BrokenPipeError(32, "Broken pipe")
    result = atlas("run", "x")
    assert result.exit_code == 5
    assert "error[fault]" in result.stderr


def test_a_group_without_a_command_names_its_commands(atlas: Any) -> None:
    result = atlas("secrets")
    assert result.exit_code == 2
    assert result.stderr == (
        "error[usage]: 'atlas secrets' needs a command: list, prove, rm, set.\n"
        "  hint: 'atlas secrets --help' explains them.\n"
    )
