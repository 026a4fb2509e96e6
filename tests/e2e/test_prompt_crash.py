"""A prompt agent with real tools is killed at every boundary of its turn: nothing is asked or done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atlas.testing.fault import POINTS

TOOLS = '''
import os
from atlas import tool


def _write(line: str) -> str:
    with open({book!r}, "a", encoding="utf-8") as book:
        book.write(line + "\\n")
        book.flush()
        os.fsync(book.fileno())
    return "wrote " + line


@tool(effect="reversible_write", idempotent=True)
def again(line: str) -> str:
    """Writes a line; twice is as good as once."""
    return _write("again " + line)


@tool(effect="reversible_write")
def once(line: str) -> str:
    """Writes a line; twice would be wrong."""
    return _write("once " + line)
'''
STEPS = 4


def make_vault(root: Path) -> Path:
    book = root / "book.txt"
    agent = root / "agents" / "writer"
    (agent / "tools").mkdir(parents=True)
    (agent / "tools" / "book.py").write_text(TOOLS.format(book=str(book)))
    (agent / "agent.yaml").write_text(
        "agent: {name: writer, version: 1.0.0, description: writes, runtime: prompt, model: {preference: fast}}"
    )
    replies = [
        f"  - {{tool_calls: [{{name: once, args: {{line: '{n}'}}}}, {{name: again, args: {{line: '{n}'}}}}]}}"
        for n in range(STEPS)
    ]
    (root / "script.yaml").write_text("\n".join(["replies:", *replies, "  - {text: done}"]) + "\n")
    (root / "atlas.config.yaml").write_text(
        "models: {providers: {demo: {kind: scripted, script: script.yaml}}, tiers: {fast: ['demo:x']}}\n"
        "execution: {lease_s: 1}\n"
    )
    return book


def atlas(root: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "atlas", *words, "--vault", str(root)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def settle(root: Path, book: Path) -> None:
    """Says of every effect in doubt what became of it, after a look into the book, as a person would."""
    for item in json.loads(atlas(root, "inbox", "--json").stdout)["items"]:
        line = f"once {item['args']['line']}"
        done = book.exists() and line in book.read_text().splitlines()
        word = ("done", str(item["item"]), "--result", json.dumps({"text": f"wrote {line}"}))
        said = atlas(root, "inbox", *(word if done else ("not-done", str(item["item"]))))
        assert said.returncode in (0, 4), said.stderr


@pytest.mark.parametrize("point", [point for point in POINTS if not point.startswith(("spawn", "asked", "park"))])
def test_a_turn_killed_at_this_point_finishes_and_does_nothing_twice(tmp_path: Path, point: str) -> None:
    book = make_vault(tmp_path)
    run = ("run", "writer", "go", "--key", "k", "--json")
    killed = atlas(
        tmp_path,
        *run,
        ATLAS_FAULT=f"{point}:{2 if point.count('.') and 'code' not in point and 'end' not in point else 1}:kill",
    )
    assert killed.returncode == -signal.SIGKILL, (killed.stdout, killed.stderr)
    for _ in range(6):
        done = atlas(tmp_path, *run)
        if done.returncode != 4:
            break
        settle(tmp_path, book)
    report = json.loads(done.stdout)
    assert (report["state"], report["text"]) == ("succeeded", "done"), report
    lines = book.read_text().splitlines()
    assert [line for line in lines if line.startswith("once")] == [f"once {n}" for n in range(STEPS)]
    assert atlas(tmp_path, "verify", "--all").returncode == 0
    replayed = json.loads(atlas(tmp_path, "replay", report["run_id"], "--json").stdout)
    assert replayed["identical"], replayed
