"""The loop guard through the real loop: a scripted model, real tools in a worker, a real vault and ledger.

A model that goes round in circles ends within ten calls without progress, whatever the circle looks like; one that
re-reads, polls or explores honestly is left alone.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from atlas.app import open_host
from atlas.kernel.event import EffectIntended, decode_body

TOOLS = '''
import time
import uuid
from pathlib import Path
from atlas import tool


@tool(effect="read_only")
def look(path: str, depth: int = 0) -> str:
    """Looks at something."""
    return f"all about {Path(path).name.lower()}"


@tool(effect="read_only")
def fetch(path: str) -> str:
    """Fetches what is not there."""
    raise ValueError(f"{path}: no such thing")


@tool(effect="read_only")
def quote(path: str) -> str:
    """Looks at something and says where it did."""
    return f"{path}: nothing to see"


@tool(effect="read_only")
def flaky(path: str) -> str:
    """Fails in the same way, each time with another number for it."""
    raise ValueError(f"500 after {time.monotonic_ns() % 977} ms, request {uuid.uuid4()} at {time.time()}")


@tool(effect="read_only")
def dull(question: str) -> str:
    """Answers every question alike."""
    return "nobody knows"


@tool(effect="read_only")
def search(words: str, request_id: str = "") -> str:
    """Finds nothing and quotes the id of the request."""
    return f"{request_id}: no hits"


@tool(effect="reversible_write")
def edit(path: str, text: str = "") -> str:
    """Fails to change anything."""
    raise ValueError(f"{text!r} does not occur in {path}")


@tool(effect="read_only")
def poll(job: str) -> str:
    """How far a job is: one part further each time."""
    count = Path(__file__).with_name(f"{job}.count")
    done = int(count.read_text()) + 1 if count.exists() else 1
    count.write_text(str(done))
    return f"{done} parts of {job} are done"


@tool(effect="read_only")
def busy(job: str) -> str:
    """Whether a job is done: it never is."""
    return "still at it"
'''

Call = tuple[str, dict[str, Any]]


def run(root: Path, steps: list[list[Call]]) -> tuple[str, str, int]:
    """Runs a model that makes these calls, step by step, the last ones for ever; how it ended, and how many it made."""
    replies: list[dict[str, Any]] = [
        {"text": "done"} if not calls else {"tool_calls": [{"name": name, "args": args} for name, args in calls]}
        for calls in steps
    ]
    agent = root / "agents" / "stubborn"
    (agent / "tools").mkdir(parents=True)
    (agent / "tools" / "main.py").write_text(TOOLS)
    (agent / "agent.yaml").write_text(
        "agent: {name: stubborn, version: 1.0.0, description: Never gives up, runtime: prompt, timeout_s: 100,"
        " model: {preference: 'demo:one'}}\n"
    )
    (root / "script.yaml").write_text(json.dumps({"replies": replies}))
    (root / "atlas.config.yaml").write_text("models: {providers: {demo: {kind: scripted, script: script.yaml}}}\n")
    return asyncio.run(_run(root))


async def _run(root: Path) -> tuple[str, str, int]:
    async with asyncio.timeout(110), open_host(root, {}) as host:
        submitted = await host.submit("stubborn", {"text": "go"})
        state = await host.drive(submitted.run_id)
        error = (await host.report(submitted.run_id)).error
        bodies = [decode_body(one.kind, one.version, one.body) for one in await host.ledger.events(submitted.run_id)]
        asked = [body for body in bodies if isinstance(body, EffectIntended) and body.kind == "model"]
        assert (await host.replay(submitted.run_id)).identical
        return state, error.code if error is not None else "", len(asked)


COSMETIC: list[Call] = [
    ("fetch", {"path": "src/a.py"}),
    ("fetch", {"path": " src/a.py "}),
    ("fetch", {"path": "./src/a.py"}),
    ("fetch", {"path": "SRC//A.py"}),
]
STUBBORN: dict[str, tuple[list[Call], int]] = {
    # What is called round and round, and how many of these calls tell something for the first time, be it a failure.
    "the same failing call": ([("fetch", {"path": "x"})], 1),
    "cosmetic changes of a failing call": (COSMETIC, 1),
    "the same read": ([("look", {"path": "a.md"})], 1),
    "cosmetic changes of a read": (
        [("look", {"path": "a.md"}), ("look", {"depth": 0, "path": "./A.md"}), ("look", {"path": " a.md", "depth": 0})],
        1,
    ),
    "A-B-A-B of reads": ([("look", {"path": "a.md"}), ("look", {"path": "b.md"})], 2),
    "A-B-A-B of failures": ([("fetch", {"path": "x"}), ("edit", {"path": "x", "text": "t"})], 1),
    "A-B-A-B of a read and a failing change": ([("look", {"path": "a.md"}), ("edit", {"path": "a.md"})], 1),
    "the same output": ([("dull", {"question": f"what about {n}?"}) for n in range(40)], 1),
    "failed changes, each another one": ([("edit", {"path": "a.md", "text": f"line {n}"}) for n in range(40)], 0),
    "tools that do not exist": ([(f"tool_{n}", {}) for n in range(40)], 0),
    "arguments that do not fit": ([("look", {"pth": "a.md"})], 0),
    "arguments that do not fit, each time others": ([("look", {f"p{n}": "a.md"}) for n in range(40)], 0),
    "arguments of the wrong type, each time others": ([("look", {"path": n}) for n in range(40)], 0),
    "one path by way of many folders": ([("quote", {"path": f"src/x{n}/../a.py"}) for n in range(40)], 1),
    "the same failure under other numbers": ([("flaky", {"path": "a"})], 1),
    "A-B-A-B of failures under other numbers": ([("flaky", {"path": "a"}), ("flaky", {"path": "b"})], 1),
    "a read under ever new ids of its request": (
        [("search", {"words": "kettle", "request_id": f"r-{n}"}) for n in range(60)],
        1,
    ),
    "the same lines in smaller and smaller portions": (
        [("read_file", {"path": "tools/main.py", "lines": 60 - n}) for n in range(40)],
        1,
    ),
    "handles that lead nowhere": ([("recall", {"handle": f"t{n}.1"}) for n in range(2, 42)], 1),
    "recalling nothing": ([("recall", {"start": n}) for n in range(40)], 1),
    "the same note": ([("note", {"kind": "fact", "key": "k", "text": "t"})], 1),
    "notes and nothing else": ([("note", {"kind": "plan", "key": "k", "text": f"t{n}"}) for n in range(60)], 40),
    "waiting for nothing": ([("wait", {"seconds": 0})], 0),
}


@pytest.mark.parametrize("name", STUBBORN)
def test_a_stubborn_model_ends_within_ten_calls_without_progress(vault_dir: Path, name: str) -> None:
    circle, new = STUBBORN[name]
    state, code, asked = run(vault_dir, [[circle[n % len(circle)]] for n in range(60)])
    assert (state, code) == ("failed", "stuck")
    assert asked <= 10 + new


def test_a_stubborn_model_that_calls_several_tools_at_once_ends_too(vault_dir: Path) -> None:
    both: list[Call] = [("fetch", {"path": "x"}), ("look", {"path": "a.md"})]
    state, code, asked = run(vault_dir, [both])
    assert (state, code) == ("failed", "stuck")
    assert asked <= 10


def test_harmless_rereads_between_work_are_not_stopped(vault_dir: Path) -> None:
    steps: list[list[Call]] = []
    for number in range(20):
        steps += [
            [("look", {"path": "index.md"})],
            [("look", {"path": f"page{number}.md"})],
            [("dull", {"question": "?"})],
        ]
    state, code, asked = run(vault_dir, [*steps, []])
    assert (state, code, asked) == ("succeeded", "", 61)


def test_honest_polling_is_not_stopped(vault_dir: Path) -> None:
    state, code, asked = run(vault_dir, [*([("poll", {"job": "build"})] for _ in range(40)), []])
    assert (state, code, asked) == ("succeeded", "", 41)


@pytest.mark.slow
def test_polling_that_waits_is_not_stopped_though_nothing_changes(vault_dir: Path) -> None:
    rounds: list[list[Call]] = [[("wait", {"seconds": 1}), ("busy", {"job": "build"})] for _ in range(12)]
    state, code, asked = run(vault_dir, [*rounds, []])
    assert (state, code, asked) == ("succeeded", "", 13)


def test_an_exploration_of_two_hundred_steps_is_not_stopped(vault_dir: Path) -> None:
    state, code, asked = run(vault_dir, [*([("look", {"path": f"file{n}.md"})] for n in range(200)), []])
    assert (state, code, asked) == ("succeeded", "", 201)
