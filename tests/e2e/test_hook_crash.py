"""A turn with hooks is killed in the middle: what was decided is taken from the record, and its command is not run again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hook_package import install

from atlas.app import open_host
from atlas.kernel.event import TurnSteered, decode_body

TOOLS = '''
from pathlib import Path
from atlas import tool


@tool(effect="reversible_write", idempotent=True)
def fix() -> str:
    """Makes the check pass."""
    Path({fixed!r}).write_text("yes")
    return "fixed"
'''


def make_vault(root: Path) -> None:
    agent = root / "agents" / "fixer"
    (agent / "tools").mkdir(parents=True)
    (agent / "tools" / "main.py").write_text(TOOLS.format(fixed=str(agent / "fixed")))
    hooks = [
        {"test_oracle": {"command": "echo run >> runs; test -f fixed"}},
        {"use": "acme_gate", "options": {"log": str(root / "log"), "at": ["transform_tool_result:2"]}},
    ]
    contract = {"name": "fixer", "version": "1.0.0", "description": "fixes", "runtime": "prompt", "hooks": hooks}
    (agent / "agent.yaml").write_text(json.dumps({"agent": {**contract, "model": {"preference": "fast"}}}))
    replies = [{"text": "done"}, {"tool_calls": [{"name": "fix"}]}, {"text": "really done"}]
    (root / "script.yaml").write_text(json.dumps({"replies": replies}))
    (root / "atlas.config.yaml").write_text(
        "models: {providers: {demo: {kind: scripted, script: script.yaml}}, tiers: {fast: ['demo:x']}}\n"
        "execution: {lease_s: 1}\n"
    )


def atlas(root: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(root / "site"), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, "-m", "atlas", *words, "--vault", str(root)],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, runs, looks",
    [
        (
            "receipt.written:1",
            (2, 3),
            (1,),
        ),  # the first answer is on record, and the oracle may have begun to look at it
        (
            "intent.durable:2",
            (2,),
            (1,),
        ),  # it has looked, and its feedback is durable before the next question is asked
        ("perform.sent:3", (2,), (1,)),  # the tool is about to run
        ("receipt.written:3", (2,), (1, 2)),  # it ran, and the hook may have begun to look at its result
        ("intent.durable:4", (2,), (1,)),  # the changed result is durable before the next question is asked
        ("end.before:1", (3,), (1,)),  # the answer was accepted, which is no event: that one look is taken again
    ],
)
def test_a_recorded_decision_is_never_asked_for_again(
    tmp_path: Path, fault: str, runs: tuple[int, ...], looks: tuple[int, ...]
) -> None:
    make_vault(tmp_path)
    install(tmp_path / "site")
    run = ("run", "fixer", "go", "--key", "k", "--json")
    killed = atlas(tmp_path, *run, ATLAS_FAULT=f"{fault}:kill")
    assert killed.returncode == -signal.SIGKILL, (killed.stdout, killed.stderr)
    report = json.loads(atlas(tmp_path, *run).stdout)
    assert (report["state"], report["text"]) == ("succeeded", "really done"), report
    asked = (tmp_path / "log").read_text().split()
    ran = (tmp_path / "agents" / "fixer" / "runs").read_text().split()
    assert len(ran) in runs
    assert asked.count("transform_tool_result:2") in looks
    if fault.startswith(("intent.durable", "perform.sent")):
        # The record goes on past every moment before an intent: where nothing was said, nobody is asked again either.
        assert len(set(asked)) == len(asked)
    # The package of the hook is not even there where the run is looked at again.
    asyncio.run(look_again(tmp_path, report["run_id"]))
    assert (tmp_path / "log").read_text().split() == asked
    assert (tmp_path / "agents" / "fixer" / "runs").read_text().split() == ran


async def look_again(root: Path, run_id: str) -> None:
    async with open_host(root, {}) as host:
        events = await host.ledger.events(run_id)
        bodies = [decode_body(event.kind, event.version, event.body) for event in events]
        assert [body.decision for body in bodies if isinstance(body, TurnSteered)] == ["continue", "change"]
        replayed = await host.replay(run_id)
        assert (replayed.identical, replayed.code) == (True, "identical")
        assert b"test -f fixed" in (await host.request(run_id, 2)).raw
        assert b"changed" in (await host.request(run_id, 3)).raw
