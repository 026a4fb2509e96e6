"""Tools that a vault shares: offered to its prompt agents, pinned with each run, never imported by the driver."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlas import Atlas
from atlas.app import open_host
from atlas.kernel.errors import Invalid
from atlas.testing.provider import ProviderProcess
from atlas.testing.provider_wire import Act, ActCall

SHARED = '''
from atlas import tool
from tools._words import GREETING

@tool(effect="read_only")
def greet(who: str) -> str:
    """Greets."""
    return f"{GREETING}, {who}"

@tool(effect="external_side_effect")
def post(text: str) -> str:
    """Posts."""
    return f"posted by version 1: {text}"
'''
CALL = Act(tool_calls=(ActCall("greet", '{"who": "Ann"}'),))


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderProcess]:
    with ProviderProcess() as process:
        yield process


@pytest.fixture
def environ(provider: ProviderProcess) -> dict[str, str]:
    return {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": f"{provider.url}/v1"}


@pytest.fixture
def root(vault_dir: Path) -> Path:
    (vault_dir / "tools" / "memory").mkdir(parents=True)
    (vault_dir / "tools" / "shared.py").write_text(SHARED)
    (vault_dir / "tools" / "_words.py").write_text('GREETING = "Hello"\n')
    (vault_dir / "tools" / "memory" / "data.txt").write_text("part of the tools, whatever its name")
    (vault_dir / "atlas.config.yaml").write_text('models: {tiers: {balanced: ["openai:m1"]}}\n')
    agent(vault_dir, "advisor")
    return vault_dir


def agent(root: Path, name: str, extra: str = "") -> Path:
    folder = root / "agents" / name
    folder.mkdir(parents=True)
    text = f"agent:\n  name: {name}\n  version: 1.0.0\n  description: x\n{extra}"
    (folder / "agent.yaml").write_text(text)
    return folder


def offered(provider: ProviderProcess) -> list[str]:
    return [one["function"]["name"] for one in provider.bodies()[-1]["tools"]]


def test_every_prompt_agent_is_offered_them_as_its_contract_allows(
    root: Path, provider: ProviderProcess, environ: dict[str, str]
) -> None:
    agent(root, "narrow", "  tools: {allow: [greet]}\n")
    agent(root, "denying", "  tools: {deny: ['p*']}\n")
    own = agent(root, "own") / "tools"
    own.mkdir()
    (own / "mine.py").write_text(
        "from atlas import tool\n@tool\ndef greet(who: str) -> str:\n    return f'my own greeting for {who}'\n"
    )
    provider.plan(CALL, Act(text="done"), by="turn")
    with Atlas(root, environ=environ) as atlas:
        assert atlas.run("advisor", "go").ok
        assert {"greet", "post"} <= set(offered(provider))
        assert "Hello, Ann" in provider.bodies()[-1]["messages"][-1]["content"]
        assert atlas.run("narrow", "go").ok
        assert offered(provider) == ["greet", "note", "recall", "wait"]
        assert atlas.run("denying", "go").ok
        assert "greet" in offered(provider)
        assert "post" not in offered(provider)
        assert atlas.run("own", "go").ok
        assert "my own greeting for Ann" in provider.bodies()[-1]["messages"][-1]["content"]


def test_the_driver_never_imports_them(
    root: Path, provider: ProviderProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    witness = tmp_path / "pids"
    code = f"import os\nopen({str(witness)!r}, 'a').write(f'{{os.getpid()}} ')\n"
    (root / "tools" / "shared.py").write_text(code + SHARED)
    provider.plan(CALL, Act(text="done"), by="turn")
    with Atlas(root, environ=environ) as atlas:
        assert atlas.run("advisor", "go").ok
    pids = {int(pid) for pid in witness.read_text().split()}
    assert pids
    assert os.getpid() not in pids


def test_a_run_that_goes_on_later_uses_the_bytes_it_began_with(
    root: Path, provider: ProviderProcess, environ: dict[str, str]
) -> None:
    act = Act(tool_calls=(ActCall("post", '{"text": "x"}'),))
    provider.plan(act, Act(text="done"), by="turn")
    with Atlas(root, environ=environ) as atlas:
        waiting = atlas.run("advisor", "go")
        assert waiting.state == "waiting"
    (root / "tools" / "shared.py").write_text(SHARED.replace("version 1", "version 2"))
    shutil.rmtree(root / ".atlas" / "snapshots")  # as on another machine, where only the ledger is shared
    with Atlas(root, environ=environ) as atlas:
        assert atlas.approve(waiting.run_id).text == "done"
        assert "posted by version 1: x" in provider.bodies()[-1]["messages"][-1]["content"]
        later = atlas.run("advisor", "go")
        assert atlas.approve(later.run_id).ok
        assert "posted by version 2: x" in provider.bodies()[-1]["messages"][-1]["content"]
    shutil.rmtree(root / "tools")

    async def afterwards() -> None:
        async with open_host(root, environ) as host:
            for run_id in (waiting.run_id, later.run_id):
                assert (await host.replay(run_id)).code == "identical"
            assert (await host.verify(None)).ok

    asyncio.run(afterwards())


def test_python_agents_pin_nothing_of_them_and_their_name_is_kept(root: Path) -> None:
    from atlas.vault.folder import FolderVault

    vault = FolderVault(root)
    code = agent(root, "coder")
    (code / "agent.py").write_text("from atlas import AgentBase\nclass A(AgentBase): ...\n")
    assert set(vault.snapshot("coder").files) == {"agent.yaml", "agent.py"}
    pinned = vault.snapshot("advisor")
    assert set(pinned.files) == {
        "agent.yaml",
        "@vault/tools/_words.py",
        "@vault/tools/memory/data.txt",
        "@vault/tools/shared.py",
    }
    assert vault.read("advisor", "@vault/tools/_words.py") == b'GREETING = "Hello"\n'
    folder = vault.place(pinned.digest, {path: vault.read("advisor", path) for path in pinned.files})
    assert vault.placed(pinned.digest) == folder
    (root / "agents" / "advisor" / "@vault").mkdir()
    (root / "agents" / "advisor" / "@vault" / "x.py").touch()
    with pytest.raises(Invalid, match="kept for what the vault shares"):
        vault.snapshot("advisor")


def test_a_link_out_of_the_vault_is_refused(root: Path, tmp_path: Path) -> None:
    from atlas.vault.folder import FolderVault

    outside = tmp_path / "outside"
    shutil.move(root / "tools", outside)
    (root / "tools").symlink_to(outside)
    with pytest.raises(Invalid, match="leads out of the vault"):
        FolderVault(root).snapshot("advisor")
    (root / "tools").unlink()
    (root / "tools").mkdir()
    (root / "tools" / "shared.py").symlink_to(outside / "shared.py")
    with pytest.raises(Invalid, match="leads out of"):
        FolderVault(root).snapshot("advisor")


def test_a_file_that_cannot_be_imported_fails_the_run_with_its_place(
    root: Path, provider: ProviderProcess, environ: dict[str, str]
) -> None:
    (root / "tools" / "broken.py").write_text("import nothing_of_that_name\n")
    provider.plan(Act(text="never"))
    with Atlas(root, environ=environ) as atlas:
        failed = atlas.run("advisor", "go")
    assert failed.error is not None
    assert failed.error.code == "tool_import_failed"
    assert "tools/broken.py" in failed.error.message
