"""New vaults and agents: valid from the first moment, and never over what is there."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from atlas.kernel.config import Config
from atlas.kernel.errors import Conflict, Invalid, NotFound
from atlas.vault.folder import FolderVault
from atlas.vault.scaffold import new_agent, new_vault, templates


@pytest.fixture
def vault(vault_dir: Path) -> FolderVault:
    return new_vault(vault_dir)


def agent_module(folder: Path) -> Any:
    spec = spec_from_file_location("agent_under_test", folder / "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def test_a_new_vault_has_the_default_settings_and_no_agents(vault: FolderVault) -> None:
    assert vault.config().execution == Config().execution
    assert vault.agents() == []
    assert ".atlas/" in vault.read_file(".gitignore").decode()


def test_a_vault_can_move_into_a_folder_with_files_and_leaves_them_alone(vault_dir: Path) -> None:
    vault_dir.mkdir()
    (vault_dir / ".gitignore").write_text("mine\n")
    vault = new_vault(vault_dir)
    assert vault.read_file(".gitignore") == b"mine\n"
    assert vault.config().execution == Config().execution


def test_a_vault_is_made_once(vault: FolderVault) -> None:
    (vault.root / "atlas.config.yaml").write_text("execution: {max_spawn_depth: 1}\n")
    with pytest.raises(Conflict):
        new_vault(vault.root)
    assert vault.config().execution.max_spawn_depth == 1


@pytest.mark.parametrize("template", ["python", "effects"])
def test_every_template_is_a_valid_agent_under_any_name(vault: FolderVault, template: str) -> None:
    assert template in templates()
    folder = new_agent(vault, "my-agent_1", template)
    assert folder == vault.root / "agents" / "my-agent_1"
    contract = vault.contract("my-agent_1")
    assert (contract.name, contract.runtime) == ("my-agent_1", "python")
    assert vault.agents() == ["my-agent_1"]
    assert "{{" not in "".join(file.read_text() for file in folder.iterdir())


def test_there_is_a_test_for_every_template() -> None:
    assert templates() == ["effects", "prompt", "python"]


def test_the_python_template_has_the_values_of_the_specification(vault: FolderVault) -> None:
    new_agent(vault, "summarizer")
    contract = vault.contract("summarizer")
    assert contract.version == "1.2.0"
    assert contract.description == "Summarizes text input to a target length"
    assert contract.input.schema == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "The text to summarize"},
            "max_length": {"type": "integer", "default": 200},
        },
        "required": ["text"],
    }
    assert contract.output.schema == {
        "type": "object",
        "properties": {"summary": {"type": "string"}, "token_count": {"type": "integer"}},
    }
    assert contract.capabilities == ("text-processing", "summarization")
    assert (contract.requires.platform_tools, contract.requires.spawn_agents, contract.requires.skills) == (
        False,
        False,
        (),
    )
    assert (contract.model.preference, contract.model.override_allowed) == ("fast", True)
    hardware = contract.hardware
    assert (hardware.gpu, hardware.gpu_vram_gb, hardware.min_memory_gb, hardware.min_cpu_cores) == (False, 0, 1, 1)
    assert (hardware.architecture, hardware.node_affinity, hardware.device_access) == ("any", "", ())
    assert (contract.dependencies.python, contract.dependencies.packages) == (">=3.11", ("langchain>=0.2.0",))
    lifecycle = contract.lifecycle
    assert (lifecycle.health, lifecycle.startup, lifecycle.shutdown) == ("/health", "on_startup", "on_shutdown")


@pytest.mark.parametrize("max_length", [0, 1, 5, 12, 200])
def test_the_summarizer_stays_within_its_length(vault: FolderVault, max_length: int) -> None:
    module = agent_module(new_agent(vault, "summarizer"))
    text = "The keeper wrote down every ship. One night the lamp failed. In the morning the book showed the ships."

    async def run() -> dict[str, Any]:
        agent = module.SummarizerAgent()
        await agent.on_startup()
        result: dict[str, Any] = await agent.execute({"text": text, "max_length": max_length}, None)
        await agent.on_shutdown()
        return result

    result = asyncio.run(run())
    assert result["token_count"] == len(result["summary"].split()) <= max_length
    assert (result["summary"] == text) == (max_length == 200)


def test_the_effects_agent_appends_once_and_can_tell(vault: FolderVault, tmp_path: Path) -> None:
    module = agent_module(new_agent(vault, "effects", "effects"))
    path = str(tmp_path / "deep" / "file.txt")
    assert module.find(path, "one") is None
    module.prepare(path)
    module.prepare(path)
    size = module.append(path, "one")
    assert module.find(path, "one").result == size
    assert module.find(path, "on") is None


def test_an_agent_that_exists_is_left_alone(vault: FolderVault) -> None:
    folder = new_agent(vault, "summarizer")
    (folder / "agent.py").write_text("mine")
    for template in templates():
        with pytest.raises(Conflict):
            new_agent(vault, "summarizer", template)
    assert (folder / "agent.py").read_text() == "mine"


def test_one_file_in_the_way_is_enough_to_write_nothing(vault: FolderVault) -> None:
    folder = vault.root / "agents" / "half"
    folder.mkdir()
    (folder / "agent.py").write_text("mine")
    with pytest.raises(Conflict):
        new_agent(vault, "half")
    assert [file.name for file in folder.iterdir()] == ["agent.py"]


@pytest.mark.parametrize("name", ["My Agent", "../x", "", "a" * 65, ".x"])
def test_a_name_that_is_none_is_refused(vault: FolderVault, name: str) -> None:
    with pytest.raises(Invalid):
        new_agent(vault, name)
    assert vault.agents() == []


def test_an_unknown_template_names_the_nearest(vault: FolderVault) -> None:
    with pytest.raises(NotFound) as caught:
        new_agent(vault, "a", "effect")
    assert caught.value.hint == "did you mean effects?"


def test_an_agent_needs_a_vault_to_live_in(vault_dir: Path) -> None:
    with pytest.raises(NotFound) as caught:
        new_agent(FolderVault(vault_dir), "a")
    assert "atlas new" in caught.value.hint
    assert not vault_dir.exists()
