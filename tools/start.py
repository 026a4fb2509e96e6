"""The first minutes with Atlas: makes the demo vault when it is missing, then shows one real run from end to end.

Everything happens through the `atlas` command, exactly as a person would type it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
VAULT = "demo"
ATLAS = Path(sys.executable).with_name("atlas")
TEXT = (
    "A lighthouse keeper wrote down every ship before it passed and again after it had passed. "
    "One night the lamp failed and the keeper fell asleep. In the morning the book showed which ships had come "
    "but not gone. Those were the only ships anybody had to look for."
)
NEXT = """
What to try next
  .venv/bin/atlas --vault demo runs                 every run of this vault
  .venv/bin/atlas --vault demo show @last --events  every event of the newest one
  .venv/bin/atlas --vault demo new greeter          an agent of your own, ready to edit
  .venv/bin/atlas chaos --kills 20 --ledger sqlite  kill processes on purpose and count the damage
  docs/start.md                                     ten minutes, step by step
"""


def main() -> int:
    """0 when both runs succeeded and the record verifies."""
    if (REPOSITORY / VAULT / "atlas.config.yaml").exists():
        say("[3/4] the demo vault is there already: ./demo")
    else:
        say("[3/4] creating the demo vault: ./demo")
        show("new")
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
    say("\nThis agent has no code: a persona, a contract and a model. The model here is a script, and says so.")
    show("run", "advisor", "Where is the kettle?")
    say("\nEvery event is tied to the one before it by a hash. Nobody changed any:")
    show("verify", "--all")
    say(NEXT)
    return 0


def say(line: str) -> None:
    """Prints at once, so that progress is visible when the output goes to a file."""
    print(line, flush=True)


def show(*arguments: str, capture: bool = False) -> str:
    """Prints the command, runs it, and ends everything when it fails."""
    words = [shlex.quote(f"{word[:40]}…" if len(word) > 48 else word) for word in arguments]
    say(f"\n$ atlas {' '.join(words)} --vault {VAULT}")
    done = subprocess.run(
        [str(ATLAS), *arguments, "--vault", VAULT],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        say(f"`atlas {arguments[0]}` ended with exit code {done.returncode}; `make doctor` says what is wrong here")
        sys.exit(done.returncode)
    if capture:
        say(done.stdout.strip())
    return done.stdout or ""


if __name__ == "__main__":
    sys.exit(main())
