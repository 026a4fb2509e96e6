"""A fake program, and a way to type commands at it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from atlas.cli import root
from unit.cli.fake_host import FakeHost, FakeProgram


@pytest.fixture
def program(tmp_path: Path) -> FakeProgram:
    (tmp_path / ".atlas").mkdir()
    return FakeProgram(tmp_path)


@pytest.fixture
def host(program: FakeProgram) -> FakeHost:
    return program.host


class Atlas:
    """Types a command line."""

    def __init__(self, program: FakeProgram) -> None:
        self.program = program

    def __call__(self, *words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(root, list(words), input=stdin, obj=self.program)


@pytest.fixture
def atlas(program: FakeProgram) -> Atlas:
    return Atlas(program)
