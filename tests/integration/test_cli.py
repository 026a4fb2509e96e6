"""The real `atlas` command, as a person or a script uses it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atlas.vault.scaffold import templates

ATLAS = Path(sys.executable).with_name("atlas")
CONTRACT = "agent:\n  name: {name}\n  version: 0.1.0\n  description: for a test\n"

MAILER = """
from atlas import AgentBase

def send(to):
    return {"sent": to}

class Mailer(AgentBase):
    async def execute(self, input, context):
        print("hello from the agent")
        context.log("about to send")
        receipt = await context.step("send", send, "bob", effect="external_side_effect")
        return {"text": "sent to " + receipt["sent"]}
"""

# Each step appends a line and then takes a while, so that a signal always finds one under way.
COUNTER = """
import time
from pathlib import Path
from atlas import AgentBase

def count(path, number):
    with open(path, "a") as file:
        file.write(f"{number}\\n")
    time.sleep(0.2)
    return number

class Counter(AgentBase):
    async def execute(self, input, context):
        for number in range(6):
            context.progress(number / 6, f"counting {number}")
            await context.step("count", count, input["path"], number, key=f"count {number}")
        return "counted"
"""


class Command:
    """Runs `atlas` in a vault; keeps its environment clean."""

    def __init__(self, vault: Path) -> None:
        self.vault = vault
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("ATLAS_")}
        self.env |= {"ATLAS_VAULT": str(vault), "COLUMNS": "80"}

    def __call__(self, *words: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [ATLAS, *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).stdout)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [ATLAS, *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def add(self, name: str, code: str) -> None:
        folder = self.vault / "agents" / name
        folder.mkdir()
        (folder / "agent.yaml").write_text(CONTRACT.format(name=name), encoding="utf-8")
        (folder / "agent.py").write_text(code, encoding="utf-8")


@pytest.fixture
def atlas(tmp_path: Path) -> Command:
    made = Command(tmp_path / "vault")
    made("new", "--vault", str(made.vault))
    return made


@pytest.fixture
def tally(atlas: Command, tmp_path: Path) -> Path:
    atlas.add("counter", COUNTER)
    return tmp_path / "tally.txt"


@pytest.fixture
def started() -> Iterator[Callable[[subprocess.Popen[str]], subprocess.Popen[str]]]:
    """Makes sure that nothing a test started outlives it."""
    processes: list[subprocess.Popen[str]] = []

    def remember(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        processes.append(process)
        return process

    yield remember
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_lines(file: Path, number: int) -> None:
    """Returns when the agent has begun its step `number`; the agent shares nothing but the file with us."""
    deadline = time.monotonic() + 30
    while not file.exists() or len(file.read_text().splitlines()) < number:
        assert time.monotonic() < deadline, "the agent did not get that far"
        time.sleep(0.02)


def test_the_first_minutes(atlas: Command) -> None:
    done = atlas("run", "summarizer", "Some words to shorten.")
    assert "summary" in json.loads(done.stdout)
    assert done.stderr.startswith("succeeded  $0  0 tokens")
    [run] = atlas.json("runs")["runs"]
    assert run["run_id"][:20] in done.stderr
    trace = atlas.json("trace", "@last")
    assert (trace["trace_id"], trace["status"]) == (run["run_id"], "completed")
    assert "summarizer" in atlas("trace", run["run_id"][:20]).stdout
    assert atlas.json("show", "@last")["input"]["text"] == "Some words to shorten."
    assert atlas.json("replay", "@last")["identical"] is True
    assert atlas("verify", "--all").stdout.startswith("ok  1 run")
    assert atlas.json("doctor")["ok"] is True


def test_a_new_agent_runs_at_once(atlas: Command) -> None:
    made = atlas.json("new", "greeter")
    assert "agent.yaml" in made["files"]
    atlas("run", "greeter", "hello")
    assert "error[exists]" in atlas("new", "greeter", code=2).stderr


def test_a_run_without_requests_says_where_its_questions_are(atlas: Command) -> None:
    atlas("run", "summarizer", "hello")
    error = atlas.json("show", "@last", "--request", "1", code=2)["error"]
    assert (error["code"], "--events" in error["hint"]) == ("not_a_prompt", True)


@pytest.mark.parametrize("template", templates())
def test_every_template_can_be_named(atlas: Command, template: str) -> None:
    made = atlas.json("new", "helper", "--template", template)
    assert "agent.yaml" in made["files"]


def test_mistakes_get_an_answer_and_no_run(atlas: Command) -> None:
    error = atlas.json("run", "sumarizer", "x", code=2)["error"]
    assert (error["code"], "summarizer" in error["hint"]) == ("not_found", True)
    assert atlas.json("run", "summarizer", "--input", "{}", code=2)["error"]["code"] == "input_invalid"
    (atlas.vault / "agents" / "summarizer" / "agent.yaml").write_text("agent:\n  nam: x\n", encoding="utf-8")
    error = atlas.json("run", "summarizer", "x", code=2)["error"]
    assert 2 in [problem["line"] for problem in error["problems"]]
    assert atlas("doctor", code=5).stdout.count("fail") >= 1
    assert atlas.json("runs")["runs"] == []


def test_a_rule_of_a_script_answers_what_was_just_said_and_not_what_was_said_before(atlas: Command) -> None:
    for text, is_answered in (("Where is the kettle?", True), ("And the fork?", False), ("The kettle again?", True)):
        answer = atlas("run", "advisor", text, "--session", "ses_kitchen").stdout
        assert (answer == "Under the stair.\n") is is_answered, (text, answer)


def test_a_mistake_in_a_script_is_named_with_its_place(atlas: Command) -> None:
    script = atlas.vault / "scripts" / "demo.yaml"
    script.write_text("replies:\n- {txt: hello}\n", encoding="utf-8")
    error = atlas.json("run", "advisor", "x", code=2)["error"]
    assert (2, 4, "did you mean text?") in [(one["line"], one["column"], one.get("hint")) for one in error["problems"]]
    script.write_text("replies: [\n", encoding="utf-8")
    assert "at scripts/demo.yaml:2:1" in atlas("run", "advisor", "x", code=2).stderr
    listed = atlas.json("models", "list")["providers"]
    assert "scripts/demo.yaml:2:1" in next(row["why_not"] for row in listed if row["name"] == "demo")


def test_a_key_gives_the_same_run_and_other_input_is_a_conflict(atlas: Command) -> None:
    first = atlas.json("run", "summarizer", "words", "--key", "k")
    assert atlas.json("run", "summarizer", "words", "--key", "k") == first
    assert atlas("run", "summarizer", "words", "--key", "k", "--detach").stderr == "known by its key, succeeded\n"
    assert atlas.json("run", "summarizer", "other words", "--key", "k", code=2)["error"]["code"] == "key_reused"


def test_a_question_is_put_to_a_person_and_the_answer_continues_the_run(atlas: Command) -> None:
    atlas.add("mailer", MAILER)
    waiting = atlas("run", "mailer", code=4)
    assert "| hello from the agent" in waiting.stderr
    assert "about to send" in waiting.stderr
    [line] = [line for line in waiting.stderr.splitlines() if "atlas approve" in line]
    words = line.split(":", 1)[1].split()[1:]
    done = atlas(*words, "--run")
    assert done.stdout.splitlines()[-1] == "sent to bob"
    assert atlas.json("inbox")["items"] == []


def test_a_denied_effect_refuses_the_run(atlas: Command) -> None:
    atlas.add("mailer", MAILER)
    atlas("run", "mailer", code=4)
    atlas("deny", "@last", "--reason", "not today")
    ended = atlas("up", "--until-idle").stdout
    assert "refused" in ended
    assert "not today" in ended
    atlas("run", "mailer", "--unattended", code=3)


def test_detached_runs_are_driven_by_up(atlas: Command) -> None:
    run_id = atlas("run", "summarizer", "words", "--detach").stdout.strip()
    changes = [json.loads(line) for line in atlas("up", "--until-idle", "--json").stdout.splitlines()]
    assert [(change["run_id"], change["what"]) for change in changes] == [(run_id, "running"), (run_id, "succeeded")]


def test_one_interrupt_parks_the_run_and_nothing_is_repeated(
    atlas: Command, tally: Path, started: Callable[[subprocess.Popen[str]], subprocess.Popen[str]]
) -> None:
    words = ("run", "counter", "--input", json.dumps({"path": str(tally)}), "--key", "k")
    process = started(atlas.start(*words))
    wait_for_lines(tally, 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "finishing the record; again to stop at once" in err
    assert "continues with atlas up --until-idle" in err
    assert atlas.json("runs")["runs"][0]["state"] == "queued"
    assert atlas(*words).stdout == "counted\n"
    assert tally.read_text().split() == ["0", "1", "2", "3", "4", "5"]
    assert "(2 attempts)" in atlas("trace", "@last").stdout


def test_two_interrupts_stop_at_once_and_the_open_effect_is_in_doubt(
    atlas: Command, tally: Path, started: Callable[[subprocess.Popen[str]], subprocess.Popen[str]]
) -> None:
    process = started(atlas.start("run", "counter", "--input", json.dumps({"path": str(tally)})))
    wait_for_lines(tally, 2)
    process.send_signal(signal.SIGINT)
    # Two signals at once may become one, so the second waits until the first was answered.
    lines = []
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        if "finishing the record" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    counted = len(tally.read_text().split())
    atlas("up", "--until-idle")
    items = atlas.json("inbox")["items"]
    if not items:
        # The step came to its end before the second signal did.
        assert atlas.json("runs")["runs"][0]["state"] == "succeeded"
        return
    assert [item["kind"] for item in items] == ["doubt"]
    assert len(tally.read_text().split()) == counted
    done = atlas("inbox", "done", items[0]["item"], "--result", str(counted - 1), "--run")
    assert done.stdout.splitlines()[-1] == "counted"
    assert tally.read_text().split() == ["0", "1", "2", "3", "4", "5"]


def test_a_killed_command_is_continued_by_its_key(
    atlas: Command, tally: Path, started: Callable[[subprocess.Popen[str]], subprocess.Popen[str]]
) -> None:
    words = ("run", "counter", "--input", json.dumps({"path": str(tally)}), "--key", "k")
    process = started(atlas.start(*words))
    wait_for_lines(tally, 2)
    process.kill()
    process.communicate()
    report = atlas.json(*words, code=4)
    assert report["state"] == "in_doubt"
    [item] = atlas.json("inbox")["items"]
    assert "warn  inbox" in atlas("doctor").stdout
    result = str(len(tally.read_text().split()) - 1)
    assert (
        atlas.json("inbox", "done", item["run_id"], item["effect"], "--result", result, "--run")["output"] == "counted"
    )
    assert tally.read_text().split() == ["0", "1", "2", "3", "4", "5"]


def test_cancel_stops_a_run_that_nobody_drives(atlas: Command) -> None:
    atlas("run", "summarizer", "words", "--detach")
    assert atlas.json("cancel", "@last", "--reason", "changed my mind")["state"] == "cancelled"
    assert "changed my mind" in atlas("show", "@last").stdout


def test_a_fork_continues_from_the_record_and_repeats_nothing(atlas: Command, tally: Path) -> None:
    atlas("run", "counter", "--input", json.dumps({"path": str(tally)}))
    assert atlas("fork", "@last").stdout == "counted\n"
    assert tally.read_text().split() == ["0", "1", "2", "3", "4", "5"]


def test_show_follows_a_run_to_its_rest(
    atlas: Command, tally: Path, started: Callable[[subprocess.Popen[str]], subprocess.Popen[str]]
) -> None:
    run_id = atlas("run", "counter", "--input", json.dumps({"path": str(tally)}), "--detach").stdout.strip()
    process = started(atlas.start("show", run_id, "--follow", "--json"))
    atlas("up", "--until-idle")
    out, _ = process.communicate(timeout=30)
    events = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["kind"] == "run.ended"


def test_a_reader_that_leaves_early_is_no_error(atlas: Command) -> None:
    for number in range(3):
        atlas("run", "summarizer", f"words {number}", "--detach")
    line = f"'{ATLAS}' show @last --events | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=atlas.env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def on_a_terminal(atlas: Command, *words: str, **extra: str) -> str:
    """What a person would see: both streams are one terminal of 80 columns."""
    master, slave = pty.openpty()
    env = {**atlas.env, "TERM": "xterm-256color", **extra}
    process = subprocess.Popen([ATLAS, *words], env=env, stdin=slave, stdout=slave, stderr=slave, close_fds=True)
    os.close(slave)
    seen = b""
    try:
        while chunk := os.read(master, 65536):
            seen += chunk
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(master)
        assert process.wait(timeout=60) == 0
    return seen.decode()


def test_colours_only_where_a_person_looks_and_wants_them(atlas: Command) -> None:
    atlas("run", "summarizer", "words")
    for words in (("runs",), ("trace", "@last"), ("show", "@last"), ("doctor",)):
        assert "\x1b[" not in atlas(*words).stdout
    seen = on_a_terminal(atlas, "runs")
    assert "\x1b[32msucceeded" in seen
    assert "\x1b[32m" not in on_a_terminal(atlas, "runs", NO_COLOR="1")


def test_a_terminal_shows_progress_while_the_run_goes_on(atlas: Command, tally: Path) -> None:
    seen = on_a_terminal(atlas, "run", "counter", "--input", json.dumps({"path": str(tally)}))
    assert "counting 3" in seen
    assert "━━" in seen
    assert seen.rstrip().splitlines()[-2].endswith("counted")


def test_the_shell_completes_commands_options_and_agents(atlas: Command) -> None:
    def complete(line: str, word: int) -> list[str]:
        env = {**atlas.env, "_ATLAS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(word)}
        done = subprocess.run([ATLAS], env=env, capture_output=True, text=True, timeout=30, check=True)
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert complete("atlas ru", 1) == ["run", "runs"]
    assert complete("atlas run su", 2) == ["summarizer"]
    assert "--detach" in complete("atlas run --d", 2)
    assert complete("atlas inbox no", 2) == ["not-done"]


def test_an_interrupt_while_the_command_still_loads_is_a_clean_end(
    atlas: Command, started: Callable[[subprocess.Popen[str]], subprocess.Popen[str]]
) -> None:
    # Says when it begins to load a module, and takes as long for it as a very slow disk would.
    script = (
        "import sys, time\n"
        "slow = sys.argv.pop(1)\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == slow:\n"
        "            print('loading', file=sys.stderr, flush=True)\n"
        "            time.sleep(3)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from atlas.app import main\n"
        "main()\n"
    )
    modules = ("atlas.app.program", "msgspec", "click", "atlas.cli.commands.run", "asyncio", "atlas.control.host")
    for module in modules:
        for words in ((), ("--json",)):
            process = started(
                subprocess.Popen(
                    [sys.executable, "-c", script, module, "run", "summarizer", "x", *words],
                    env=atlas.env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            assert process.stderr is not None
            assert process.stderr.readline() == "loading\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
            assert process.returncode == 130, (module, err)
            if words:
                assert (json.loads(out)["error"]["code"], err.strip()) == ("interrupted", ""), module
            else:
                assert (out, err.strip()) == ("", "interrupted"), module


def test_an_interrupt_that_is_ignored_stays_ignored() -> None:
    script = (
        "import atexit, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "atexit.register(lambda: print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN))\n"
        "sys.argv = ['atlas', '--version']\n"
        "from atlas.app import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "True", done.stderr


@pytest.mark.parametrize("words", ["run summarizer --input - <&-", "chat advisor <&-", "secrets set TOKEN <&-"])
def test_who_reads_a_closed_standard_input_says_so(atlas: Command, words: str) -> None:
    done = shell(atlas, words)
    assert (done.returncode, "error[stdin_closed]" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("text", ["models: [", "time_zone: Europe/Berln", "modells: {}"])
def test_the_doctor_does_not_take_a_broken_configuration_for_a_broken_ledger(atlas: Command, text: str) -> None:
    (atlas.vault / "atlas.config.yaml").write_text(text)
    checks = {check["name"]: check["status"] for check in atlas.json("doctor", code=5)["checks"]}
    assert (checks.get("config"), checks.get("ledger")) == ("fail", None)


def test_a_request_names_the_model_that_answered_it(atlas: Command) -> None:
    atlas("run", "advisor", "hello")
    lines = atlas("show", "@last", "--request", "2").stdout.splitlines()
    assert lines[0].endswith(", to balanced")
    assert lines[1] == "answered by demo:script (scripted)"
    assert atlas.json("show", "@last", "--request", "1")["answered_by"] == "demo:script (scripted)"


@pytest.mark.parametrize("heeds, state", [(True, "queued"), (False, "succeeded")])
def test_a_terminal_that_is_closed_leaves_no_step_in_doubt(
    atlas: Command, tmp_path: Path, heeds: bool, state: str
) -> None:
    atlas.add("counter", COUNTER)
    file = tmp_path / "counted.txt"
    words = ["run", "counter", "--key", "k", "--input", json.dumps({"path": str(file)})]
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL if heeds else signal.SIG_IGN)  # ignored as under nohup
        os.execve(ATLAS, [str(ATLAS), *words], atlas.env)
    wait_for_lines(file, 2)
    os.close(terminal)
    os.waitpid(child, 0)
    assert [row["state"] for row in atlas.json("runs")["runs"]] == [state]
    atlas(*words)
    assert file.read_text().split() == list("012345")


def test_an_interrupt_when_all_is_done_changes_nothing(atlas: Command) -> None:
    ending = "threading.Thread(target=time.sleep, args=(3,)).start()"  # which the interpreter waits for
    code = (
        f"import sys, threading, time; sys.argv = ['atlas', '--version']; {ending}; from atlas.app import main; main()"
    )
    words = (sys.executable, "-c", code)
    with subprocess.Popen(words, env=atlas.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("atlas ")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_closed_standard_streams_spoil_nothing(atlas: Command) -> None:
    assert shell(atlas, "run summarizer hello >&-").returncode == 0
    assert shell(atlas, "run summarizer hello <&- >&- 2>&-").returncode == 0
    assert shell(atlas, "run nobody hello >&- 2>&-").returncode == 2
    assert [row["state"] for row in atlas.json("runs")["runs"]] == ["succeeded", "succeeded"]
    atlas("verify", "--all")


@pytest.mark.parametrize("words", ["run summarizer hello", "run advisor kettle", "runs --json"])
def test_a_result_that_cannot_be_written_is_said_and_is_no_bug_of_ours(atlas: Command, words: str) -> None:
    atlas("run", "summarizer", "hello")
    done = shell(atlas, f"{words} > /dev/full")
    assert done.returncode == 5
    assert "error[output_unwritable]: standard output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert shell(atlas, f"{words} > /dev/full 2> /dev/full").returncode == 5


def test_an_error_that_nobody_reads_is_no_traceback(atlas: Command) -> None:
    done = shell(atlas, "show nothing --json > /dev/full")
    assert (done.returncode, "error[not_found]" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("words", ["runs", "show @last", "run summarizer hello", "models list", "--help", "--version"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_the_disk_did_not_take_is_not_tried_again_at_the_end(
    atlas: Command, words: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    atlas("run", "summarizer", "hello")
    monkeypatch.setitem(atlas.env, "PYTHONUNBUFFERED", unbuffered)
    done = shell(atlas, f"{words} > /dev/full")
    assert done.returncode == 5
    assert "error[output_unwritable]" in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("words", ["--help", "runs --help", "--version", "runs"])
def test_a_reader_who_leaves_is_no_failure(atlas: Command, words: str) -> None:
    atlas("run", "summarizer", "hello")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([ATLAS, *words.split()], env=atlas.env, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def shell(atlas: Command, words: str) -> subprocess.CompletedProcess[str]:
    """The command with redirections, as a shell does them."""
    script = ["sh", "-c", f'exec "$0" {words}', str(ATLAS)]
    return subprocess.run(script, env=atlas.env, capture_output=True, text=True, timeout=60, check=False)


def test_an_answer_is_exact_in_a_pipe_and_visible_on_a_terminal(atlas: Command) -> None:
    atlas.add(
        "painter", 'from atlas import AgentBase\nclass P(AgentBase):\n def execute(self, i, c): return "\\x1b[31mred"\n'
    )
    assert atlas("run", "painter").stdout == "\x1b[31mred\n"
    assert "\\x1b[31mred\r\n" in on_a_terminal(atlas, "run", "painter")
