"""The first minutes with Atlas: makes the demo vault when it is missing, then shows real runs from end to end.

Everything happens through the `atlas` command, exactly as a person would type it. A small local model is fetched when
that takes no longer than a moment; without it a script stands in for the model, and says so.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
VAULT = "demo"
CONFIG = REPOSITORY / VAULT / "atlas.config.yaml"
ATLAS = Path(sys.executable).with_name("atlas")
LOCAL = "local:smollm2"
SCRIPTED_TIER, LOCAL_TIER = '["demo:script"]', f'["{LOCAL}", "demo:script"]'
PATIENCE_S = 40.0
TEXT = (
    "A lighthouse keeper wrote down every ship before it passed and again after it had passed. "
    "One night the lamp failed and the keeper fell asleep. In the morning the book showed which ships had come "
    "but not gone. Those were the only ships anybody had to look for."
)
NEXT = """
What to try next
  .venv/bin/atlas --vault demo runs                 every run of this vault
  .venv/bin/atlas --vault demo show @last --events  each event of the newest
  .venv/bin/atlas --vault demo models list          models that could answer
  .venv/bin/atlas --vault demo chat advisor         talk with it, turn by turn
  .venv/bin/atlas --vault demo new greeter          an agent of your own
  .venv/bin/atlas chaos --kills 20 --ledger sqlite  kill, and count the damage
  docs/start.md                                     ten minutes, step by step
"""


def main() -> int:
    """0 when the runs succeeded and the record verifies."""
    if CONFIG.exists():
        say("[3/4] the demo vault is there already: ./demo")
    else:
        say("[3/4] creating the demo vault: ./demo")
        show("new")
    has_model = fetch_model()
    say("\n[4/4] running agents")
    words = json.dumps({"text": TEXT, "max_length": 30})
    request = ("run", "summarizer", "--input", words, "--key", f"start-{uuid.uuid4().hex[:8]}")
    show(*request)
    say("\nThe same key names the same run: its recorded result comes back and nothing is executed again.")
    first = json.loads(show(*request, "--json", capture=True))
    show("trace", first["run_id"])
    say("\nThis agent reaches the world: each step is on disk as an intent before it happens and as a receipt after.")
    steps = json.dumps({"lines": 3, "pause_s": 0.1})
    second = json.loads(show("run", "effects", "--input", steps, "--json", capture=True))
    show("trace", second["run_id"])
    advise(has_model)
    say("\nEvery event is tied to the one before it by a hash. Nobody changed any:")
    show("verify", "--all")
    say(NEXT)
    return 0


def advise(has_model: bool) -> None:
    """The agent without code: answered by the local model, or by the script when that is not there or fails."""
    if has_model:
        use_tier(SCRIPTED_TIER, LOCAL_TIER)
        say(
            "\nThis agent has no code: a persona, a contract and a model. The model runs on this machine: real, but tiny."
        )
        if run(("run", "advisor", "Give me one reason to write things down.")).returncode == 0:
            return
        use_tier(LOCAL_TIER, SCRIPTED_TIER)
        say("\nThe local model did not manage. The same agent with a script in place of the model:")
    else:
        say("\nThis agent has no code: a persona, a contract and a model. The model here is a script, and says so.")
    show("run", "advisor", "Where is the kettle?")


def fetch_model() -> bool:
    """Whether the local model is there: installs what runs it and fetches its weights, within a bounded time."""
    say(f"\nA small local model lets an agent answer without a key (130 MB, at most {PATIENCE_S:.0f} s):")
    until = time.monotonic() + PATIENCE_S
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check", "--retries=1")
    engine = (*pip, "--only-binary=:all:", "--constraint", "constraints.txt", "xllamacpp")
    for command in (engine, (str(ATLAS), "models", "pull")):
        if not ended_well(command, until - time.monotonic()):
            say("  it could not be had just now, so a script stands in for the model. Later, for a real one:")
            say("  .venv/bin/pip install -c constraints.txt xllamacpp && .venv/bin/atlas models pull && make start")
            return False
    return True


def ended_well(command: tuple[str, ...], patience_s: float) -> bool:
    """Whether a command succeeded in time; whatever it started is ended with it."""
    # pip says at length what the caller says in one line.
    errors = subprocess.DEVNULL if "pip" in command else None
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True)
    try:
        return process.wait(max(1.0, patience_s)) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)  # it cleans up after itself
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def use_tier(old: str, new: str) -> None:
    """Changes the candidates of the demo's tiers, unless somebody wrote their own."""
    CONFIG.write_text(CONFIG.read_text(encoding="utf-8").replace(f": {old}", f": {new}"), encoding="utf-8")


def say(line: str) -> None:
    """Prints at once, so that progress is visible when the output goes to a file."""
    print(line, flush=True)


def show(*arguments: str, capture: bool = False) -> str:
    """Prints the command, runs it, and ends everything when it fails."""
    done = run(arguments, capture)
    if done.returncode != 0:
        say(f"`atlas {arguments[0]}` ended with exit code {done.returncode}; `make doctor` says what is wrong here")
        sys.exit(done.returncode)
    if capture:
        say(done.stdout.strip())
    return done.stdout or ""


def run(arguments: tuple[str, ...], capture: bool = False) -> subprocess.CompletedProcess[str]:
    """Prints the command and runs it."""
    words = [shlex.quote(f"{word[:40]}…" if len(word) > 48 else word) for word in arguments]
    say(f"\n$ atlas {' '.join(words)} --vault {VAULT}")
    return subprocess.run(
        [str(ATLAS), *arguments, "--vault", VAULT],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
