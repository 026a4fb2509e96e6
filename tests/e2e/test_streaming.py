"""`atlas run` of a prompt agent, as a person sees it: the answer appears while the model still speaks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas.testing.provider import ProviderProcess
from atlas.testing.provider_wire import Act, ActUsage, Wire, bill, render
from e2e.gate import Gate
from e2e.screen import CTRL_C, command, on_screen

FIRST, SECOND = "The first half, ", "and the second."
ANSWER = FIRST + SECOND
SPOKEN = Act(text=ANSWER, piece=len(FIRST), usage=ActUsage(120, 15))
SUMMARY = re.compile(r"^succeeded  \$[\d.]+  135 tokens  1 step  [\d.]+m?s  lab:m1  \S+$", re.MULTILINE)
wires = pytest.mark.parametrize("wire", ["openai", "anthropic"])


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderProcess]:
    with ProviderProcess() as process:
        yield process


def make_vault(vault: Path, wire: Wire, url: str) -> Path:
    agent = vault / "agents" / "advisor"
    (agent / "persona").mkdir(parents=True)
    (agent / "persona" / "IDENTITY.md").write_text("You are the advisor.\n")
    (agent / "agent.yaml").write_text(
        "agent: {name: advisor, version: 1.0.0, description: Helps, runtime: prompt, model: {preference: fast}}\n"
    )
    address = f"{url}/v1" if wire == "openai" else url
    lab = {"kind": wire, "base_url": address}
    config = {"models": {"providers": {"lab": lab}, "tiers": {"fast": ["lab:m1"]}}, "execution": {"lease_s": 1}}
    (vault / "atlas.config.yaml").write_text(json.dumps(config))
    return vault


@contextmanager
def piped(vault: Path, *words: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command with pipes for its output; killed at the end of the block if it still runs."""
    process = subprocess.Popen(
        command(vault, *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environ},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    assert b"Traceback" not in err, err.decode()
    return process.returncode, out.decode(), err.decode()


def run(vault: Path, *words: str, **environ: str) -> tuple[int, str, str]:
    with piped(vault, *words, **environ) as process:
        return finish(process)


def runs(vault: Path) -> list[dict[str, Any]]:
    """The runs of the vault, as `atlas runs` tells of them."""
    code, out, _ = run(vault, "runs", "--json")
    assert code == 0
    listed: list[dict[str, Any]] = json.loads(out)["runs"]
    return listed


def read_exactly(process: subprocess.Popen[bytes], size: int) -> str:
    """The next bytes of the output, as they come; blocks until they are there."""
    assert process.stdout is not None
    data = b""
    while len(data) < size:
        piece = os.read(process.stdout.fileno(), size - len(data))
        assert piece, f"the output ended after {data!r}"
        data += piece
    return data.decode()


# Streaming


@wires
def test_in_a_pipe_the_answer_comes_while_the_model_still_speaks(
    provider: ProviderProcess, tmp_path: Path, wire: Wire
) -> None:
    provider.plan(SPOKEN)
    with Gate(provider.url, FIRST) as gate:
        vault = make_vault(tmp_path, wire, gate.url)
        with piped(vault, "run", "advisor", "hello") as process:
            gate.wait()
            assert read_exactly(process, len(FIRST)) == FIRST
            assert gate.is_holding  # the provider has not said more yet
            gate.open()
            code, rest, err = finish(process)
    assert (code, rest) == (0, f"{SECOND}\n")
    assert SUMMARY.search(err), err


@wires
def test_on_a_terminal_the_answer_comes_while_the_model_still_speaks(
    provider: ProviderProcess, tmp_path: Path, wire: Wire
) -> None:
    provider.plan(SPOKEN)
    with Gate(provider.url, FIRST) as gate:
        vault = make_vault(tmp_path, wire, gate.url)
        with on_screen(vault, "run", "advisor", "hello") as screen:
            screen.wait_for(FIRST)
            assert gate.is_holding
            assert SECOND not in screen.text
            gate.open()
            assert screen.ended() == 0
    assert screen.text.count(FIRST) == screen.text.count(SECOND) == 1
    assert f"{ANSWER}\n" in screen.text
    assert SUMMARY.search(screen.text), screen.text


@wires
def test_as_json_there_is_one_object_and_no_stream(provider: ProviderProcess, tmp_path: Path, wire: Wire) -> None:
    provider.plan(SPOKEN)
    with Gate(provider.url, FIRST) as gate:
        vault = make_vault(tmp_path, wire, gate.url)
        with piped(vault, "run", "advisor", "hello", "--json") as process:
            gate.wait()
            gate.open()
            code, out, err = finish(process)
    report: dict[str, Any] = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert (report["state"], report["text"], report["output"]) == ("succeeded", ANSWER, {"text": ANSWER})
    assert (report["tokens"], report["steps"], report["models"]) == ({"in": 120, "out": 15}, 1, ["lab:m1"])
    assert report["error"] is None


def test_quietly_the_answer_still_streams_and_nothing_else_is_said(provider: ProviderProcess, tmp_path: Path) -> None:
    provider.plan(SPOKEN)
    vault = make_vault(tmp_path, "openai", provider.url)
    assert run(vault, "run", "advisor", "hello", "--quiet") == (0, f"{ANSWER}\n", "")


@wires
def test_an_answer_with_a_shape_is_printed_once_when_it_fits(
    provider: ProviderProcess, tmp_path: Path, wire: Wire
) -> None:
    provider.plan(Act(text='{"n": "five"}'), Act(text='{"n": 5}'))
    vault = make_vault(tmp_path, wire, provider.url)
    contract = vault / "agents" / "advisor" / "agent.yaml"
    schema = "{type: object, properties: {n: {type: integer}}}"
    contract.write_text(contract.read_text().replace("agent: {", f"agent: {{output: {{schema: {schema}}}, "))
    code, out, err = run(vault, "run", "advisor", "How many?")
    assert (code, json.loads(out)) == (0, {"n": 5}), err


# Readers that leave


def test_a_reader_that_leaves_does_not_end_the_run(provider: ProviderProcess, tmp_path: Path) -> None:
    provider.plan(SPOKEN)
    with Gate(provider.url, FIRST) as gate:
        vault = make_vault(tmp_path, "openai", gate.url)
        with piped(vault, "run", "advisor", "hello") as process:
            assert process.stdout is not None
            gate.wait()
            process.stdout.close()  # as `| head` does
            gate.open()
            assert process.wait(60) == 0
    assert [(one["state"], one["tokens"]["out"]) for one in runs(vault)] == [("succeeded", 15)]


def test_an_answer_that_cannot_be_written_is_kept(provider: ProviderProcess, tmp_path: Path) -> None:
    provider.plan(SPOKEN)
    vault = make_vault(tmp_path, "openai", provider.url)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(vault, "run", "advisor", "hello"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, "output_unwritable" in done.stderr) == (5, True)
    assert [(one["state"], one["tokens"]["out"]) for one in runs(vault)] == [("succeeded", 15)]


def test_in_a_log_of_both_streams_what_is_said_about_an_answer_has_a_line_of_its_own(
    provider: ProviderProcess, tmp_path: Path
) -> None:
    provider.plan(SPOKEN)
    vault = make_vault(tmp_path, "openai", provider.url)
    contract = vault / "agents" / "advisor" / "agent.yaml"
    hooks = "hooks: [{test_oracle: {command: exit 1, rounds: 1}}]"
    contract.write_text(contract.read_text().replace("runtime: prompt", f"runtime: prompt, {hooks}"))
    words = command(vault, "run", "advisor", "hello")
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 5
    assert [line for line in done.stdout.splitlines() if line.startswith("  test_oracle: ")], done.stdout
    assert "" not in done.stdout.splitlines()


def test_an_output_that_lacks_letters_shows_others_in_their_place(provider: ProviderProcess, tmp_path: Path) -> None:
    provider.plan(Act(text="a café, 咖啡", usage=ActUsage(120, 15)))
    vault = make_vault(tmp_path, "openai", provider.url)
    latin = {"PYTHONIOENCODING": "latin-1"}
    with piped(vault, "run", "advisor", "hello", **latin) as process:
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.decode("latin-1")) == (0, "a café, \\u5496\\u5561\n")
    for words in (("run", "advisor", "hello", "--json"), ("show", "@last", "--json")):
        with piped(vault, *words, **latin) as process:
            out, _ = process.communicate(timeout=60)
        assert "咖啡" in json.dumps(json.loads(out), ensure_ascii=False)
    with piped(vault, "show", "@last", **latin) as process:
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, b"\\u5496" in out) == (0, True)


# Ctrl-C


def test_ctrl_c_keeps_an_answer_that_is_still_coming_and_the_run_goes_on_later(
    provider: ProviderProcess, tmp_path: Path
) -> None:
    provider.plan(SPOKEN)
    words = ("run", "advisor", "hello", "--key", "k")
    with Gate(provider.url, FIRST) as gate:
        vault = make_vault(tmp_path, "openai", gate.url)
        with on_screen(vault, *words) as screen:
            screen.wait_for(FIRST)
            screen.press(CTRL_C)
            screen.wait_for("finishing the record; again to stop at once\n")
            # On a line of its own, also when the word about the price comes before the key or between the two.
            assert re.search(r"^finishing the record", screen.text, re.MULTILINE), screen.text
            gate.open()
            # The answer may have been the whole turn before the driver had put its pen down.
            if screen.ended() == 130:
                assert "nothing is lost" in screen.text
            else:
                assert SECOND in screen.text
        code, out, _ = run(vault, *words)
    assert (code, out) == (0, f"{ANSWER}\n")
    assert len(provider.record().seen) == 1  # it was paid for once


def test_ctrl_c_twice_ends_at_once_and_the_same_request_is_asked_again_later(
    provider: ProviderProcess, tmp_path: Path
) -> None:
    provider.plan(SPOKEN)
    words = ("run", "advisor", "hello", "--key", "k")
    with Gate(provider.url, FIRST) as gate:
        vault = make_vault(tmp_path, "openai", gate.url)
        with on_screen(vault, *words) as screen:
            screen.wait_for(FIRST)
            screen.press(CTRL_C)
            screen.wait_for("again to stop at once")
            screen.press(CTRL_C)
            assert screen.ended() == 130  # although the provider still holds its answer back
            assert gate.is_holding
            assert "Traceback" not in screen.text
        gate.open()
        code, out, err = run(vault, *words)
    assert (code, out) == (0, f"{ANSWER}\n"), err
    first, second = (seen.body for seen in provider.record().seen)
    assert first == second
    assert run(vault, "verify", "--all")[0] == 0


def test_a_request_to_terminate_is_heard_like_ctrl_c(provider: ProviderProcess, tmp_path: Path) -> None:
    provider.plan(SPOKEN)
    with Gate(provider.url, FIRST) as gate:
        vault = make_vault(tmp_path, "openai", gate.url)
        with piped(vault, "run", "advisor", "hello", "--json") as process:
            gate.wait()
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert b"again to stop at once" in process.stderr.readline()
            gate.open()
            code, out, _ = finish(process)
    assert (code, json.loads(out)["state"]) in ((130, "queued"), (0, "succeeded"))  # the turn may be over first


# A provider that dies


@wires
def test_an_answer_that_breaks_off_is_asked_for_again_below_what_was_heard(
    provider: ProviderProcess, tmp_path: Path, wire: Wire
) -> None:
    first_event = render(wire, SPOKEN, "m1", bill(SPOKEN, 0), True).index(FIRST.encode())
    provider.plan(msgspec.structs.replace(SPOKEN, cut_at=first_event + 100), SPOKEN)
    code, out, err = run(make_vault(tmp_path, wire, provider.url), "run", "advisor", "again")
    assert (code, out) == (0, f"{FIRST}\n{ANSWER}\n"), err
    assert len(provider.record().seen) == 2


def test_a_provider_that_died_ends_the_run_with_a_clear_error(tmp_path: Path) -> None:
    with ProviderProcess() as mortal:
        mortal.plan(SPOKEN)
        with Gate(mortal.url, FIRST) as gate:
            vault = make_vault(tmp_path, "openai", gate.url)
            with piped(vault, "run", "advisor", "hello") as process:
                gate.wait()
                assert read_exactly(process, len(FIRST)) == FIRST
                mortal.__exit__(None, None, None)
                gate.cut()
                gate.open()
                code, out, err = finish(process)
    assert code == 5
    assert out in ("\n", "")  # what was heard is left standing, and nothing claims to be the answer
    assert "lab" in err
    assert "failed  " in err


# Nobody to ask


def test_without_a_key_and_without_a_network_the_script_answers_and_says_so(tmp_path: Path) -> None:
    vault = tmp_path / "demo"
    nothing = {"OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": "", "OPENAI_BASE_URL": "", "ANTHROPIC_BASE_URL": ""}
    assert run(vault, "new", **nothing)[0] == 0
    code, out, err = run(vault, "run", "advisor", "hello", **nothing)
    assert code == 0
    assert "scripted model" in out
    assert re.search(
        r"^succeeded  \$0  [\d,]+ tokens  2 steps  [\d.]+m?s  demo:script \(scripted\)  \S+$", err, re.MULTILINE
    ), err
    report = json.loads(run(vault, "run", "advisor", "hello", "--json", **nothing)[1])
    assert report["models"] == ["demo:script (scripted)"]
