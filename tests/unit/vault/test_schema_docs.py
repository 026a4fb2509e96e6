"""The published JSON Schemas: generated from the types, checked for drift, and agreeing with the loader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from atlas.kernel.config import Config
from atlas.kernel.contract import AgentFile
from atlas.vault.schema_docs import SCHEMAS, drift, main, render, write

PUBLISHED = Path(__file__).parents[3] / "docs" / "reference" / "schemas"


def test_what_is_published_is_what_the_types_say() -> None:
    assert drift(PUBLISHED) == []


def test_writing_makes_the_folder_right_and_checking_notices_every_difference(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert drift(folder) == sorted(SCHEMAS)
    assert write(folder) == sorted(SCHEMAS)
    assert drift(folder) == write(folder) == []
    (folder / "agent.schema.json").write_text("{}")
    (folder / "old.schema.json").write_text("{}")
    assert drift(folder) == ["agent.schema.json", "old.schema.json"]
    assert main(["--check", str(folder)]) == 1
    assert write(folder) == ["agent.schema.json", "old.schema.json"]
    assert main(["--check", str(folder)]) == 0


def test_it_runs_as_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "atlas.vault.schema_docs"]
    assert subprocess.run([*command, "--check", str(tmp_path)], capture_output=True, check=False).returncode == 1
    subprocess.run([*command, str(tmp_path)], capture_output=True, check=True)
    subprocess.run([*command, "--check", str(tmp_path)], capture_output=True, check=True)
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


def agent(**more: Any) -> dict[str, Any]:
    return {"agent": {"name": "a", "version": "1.0.0", "description": "d", **more}}


@pytest.mark.parametrize(
    "kind, value, is_valid",
    [
        (AgentFile, agent(), True),
        (AgentFile, agent(input={"schema": {"type": "object"}}, budget={"usd_per_run": 1}), True),
        (AgentFile, agent(capabilites=[]), False),
        (AgentFile, agent(version="1.0"), False),
        (AgentFile, agent(type="tusk"), False),
        (AgentFile, agent(hardware={"gpu_vram_gb": -1}), False),
        (AgentFile, agent(input={"schema": {"type": "strin"}}), False),
        (AgentFile, {"agent": {"name": "a"}}, False),
        (Config, {}, True),
        (Config, {"execution": {"max_spawn_depth": 5}}, True),
        (Config, {"execution": {"max_spawn_dept": 5}}, False),
        (Config, {"models": {"providers": {"lab": {"kind": "openai", "key": "sk-123"}}}}, False),
    ],
)
def test_an_editor_agrees_with_the_loader(kind: Any, value: Any, is_valid: bool) -> None:
    schema = json.loads(render(kind, "test"))
    assert jsonschema_rs.Draft202012Validator(schema, offline=True).is_valid(value) is is_valid


def test_every_key_that_needs_words_has_a_description() -> None:
    contract = json.loads(render(AgentFile, "test"))["$defs"]["Contract"]["properties"]
    assert all("description" in part or "$ref" in part for part in contract.values())
