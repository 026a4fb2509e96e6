"""Lines about a run while it is driven, and the answer that they must not cut in two."""

from __future__ import annotations

import pytest

from atlas.cli.live import LiveView
from atlas.cli.terminal import Terminal
from atlas.kernel.event import Body, EffectReceived, Logged
from unit.cli.fake_host import FakeProgram, make_events


def show(view: LiveView, body: Body) -> None:
    [event] = make_events("run_1", body)
    view.show(event, body, "writer")


def test_a_line_waits_until_the_agent_has_said_all(program: FakeProgram, capsys: pytest.CaptureFixture[str]) -> None:
    with LiveView(Terminal(program, None, is_json=False), "run_1", "writer") as view:
        show(view, Logged("before"))
        view.is_speaking = True
        show(view, Logged("meanwhile"))
        view.say("a key was pressed")
        assert capsys.readouterr().err == "  before\na key was pressed\n"
        show(view, EffectReceived("model:1"))
        show(view, Logged("a tool works"))
        assert capsys.readouterr().err == "  meanwhile\n  a tool works\n"
        view.is_speaking = True
        show(view, Logged("at the end"))
    assert capsys.readouterr().err == "  at the end\n"
