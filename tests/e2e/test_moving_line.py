"""The line that moves on a terminal while an agent works."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.screen import on_screen

CODE = """
from pathlib import Path
from time import sleep

from atlas import AgentBase


class Slow(AgentBase):
    async def execute(self, input, context):
        context.progress(0.5, input["text"])
        while not Path(input["go"]).exists():
            sleep(0.01)
        return {"text": "done"}
"""


def make_agent(vault: Path) -> None:
    agent = vault / "agents" / "slow"
    agent.mkdir(parents=True)
    (agent / "agent.yaml").write_text("agent: {name: slow, version: 1.0.0, description: Takes its time}\n")
    (agent / "agent.py").write_text(CODE)


def test_the_time_goes_on_while_nothing_is_recorded_and_brackets_are_words(tmp_path: Path) -> None:
    make_agent(tmp_path)
    go = tmp_path / "go"
    said = json.dumps({"text": "page [/3] of\n[b]all", "go": str(go)})
    with on_screen(tmp_path, "run", "slow", "--input", said) as screen:
        screen.wait_for_different(r"slow  (\S+)  0 steps  \S+ 50% page \[/3\] of \[b\]all", 5)
        go.touch()
        assert screen.ended() == 0
    assert "error" not in screen.text
