"""A driver that sleeps inside a tool call loses its run: what it left running dies before anybody decides about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TOOL = '''
import os, time
from atlas import tool


@tool(effect="reversible_write", timeout_s=60)
def jot(to: str) -> str:
    """Writes once; twice would be wrong."""
    here = {here!r}
    open(os.path.join(here, "begun"), "w").close()
    while not os.path.exists(os.path.join(here, "go")):
        time.sleep(0.02)
    with open(os.path.join(here, "paid"), "a") as book:
        book.write(to + "\\n")
    return "wrote " + to
'''


def atlas(root: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "atlas", *words, "--vault", str(root)]


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_a_sleeping_drivers_tool_dies_before_its_call_is_put_in_doubt(tmp_path: Path) -> None:
    agent = tmp_path / "agents" / "payer"
    (agent / "tools").mkdir(parents=True)
    (agent / "tools" / "pay.py").write_text(TOOL.format(here=str(tmp_path)))
    (agent / "agent.yaml").write_text(
        "agent: {name: payer, version: 1.0.0, description: pays, model: {preference: fast}}"
    )
    (tmp_path / "script.yaml").write_text(
        "replies:\n  - {tool_calls: [{name: jot, args: {to: ann}}]}\n  - {text: done}\n"
    )
    (tmp_path / "atlas.config.yaml").write_text(
        "models: {providers: {demo: {kind: scripted, script: script.yaml}}, tiers: {fast: ['demo:x']}}\n"
        "execution: {lease_s: 1}\n"
    )
    first = subprocess.Popen(
        atlas(tmp_path, "run", "payer", "pay ann", "--json"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for((tmp_path / "begun").exists)
        os.kill(first.pid, signal.SIGSTOP)
        time.sleep(1.5)  # its lease lapses
        taken = subprocess.run(atlas(tmp_path, "up", "--until-idle", "--json"), capture_output=True, timeout=60)
        shown = subprocess.run(atlas(tmp_path, "inbox", "--json"), capture_output=True, timeout=60, check=True)
        (item,) = json.loads(shown.stdout)["items"]
        assert (item["kind"], item["name"]) == ("doubt", "jot"), taken.stderr
        # Nothing of the first call is left that could still pay.
        (tmp_path / "go").touch()
        time.sleep(0.5)
        assert not (tmp_path / "paid").exists()
        settle = atlas(tmp_path, "inbox", "not-done", item["item"], "--run", "--json")
        done = subprocess.run(settle, capture_output=True, timeout=60)
        assert json.loads(done.stdout)["state"] == "succeeded", done.stderr
        assert (tmp_path / "paid").read_text() == "ann\n"
    finally:
        os.kill(first.pid, signal.SIGCONT)
        first.kill()
        first.wait(30)
    assert (tmp_path / "paid").read_text() == "ann\n"
