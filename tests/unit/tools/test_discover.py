"""Discovery: an agent's own tools hide the vault's, built-in names are reserved, the contract's deny wins."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atlas.engine.tool_inline import InlineToolHost
from atlas.kernel.errors import Invalid
from atlas.tools.builtin import BuiltIns
from atlas.tools.discover import Discovery, Offer, tools_digest
from atlas.tools.tool import tool


@tool
def send() -> None:
    """The agent's own."""


@tool(name="send")
def shared_send() -> None:
    """The vault's."""


@tool(effect="read_only")
def lookup() -> None:
    """The vault's too."""


@tool
def wait() -> None:
    """Has a name that is taken."""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """The agent's folder and the vault's. What is in their files does not matter to a host of functions."""
    for name in ("agent", "vault"):
        (tmp_path / name / "tools").mkdir(parents=True)
        (tmp_path / name / "tools" / "x.py").write_text(f"# {name}\n")
    return str(tmp_path / "agent"), str(tmp_path / "vault")


def catalogue(folders: tuple[str, str], *own: object, **rules: object) -> dict[str, Offer]:
    host = InlineToolHost({folders[0]: own or (send,), folders[1]: [shared_send, lookup]})
    return asyncio.run(Discovery(host, BuiltIns().definitions).catalogue(dict.fromkeys(folders), **rules))  # type: ignore[arg-type]


def test_own_tools_hide_shared_ones_and_all_come_in_a_stable_order(folders: tuple[str, str]) -> None:
    found = catalogue(folders)
    assert list(found) == ["list_files", "lookup", "note", "read_file", "recall", "send", "wait"]
    assert found["send"].folder == folders[0]
    assert found["send"].definition.spec.description == "The agent's own."
    assert found["lookup"].folder == folders[1]
    assert found["note"].folder == ""


def test_contract_narrows_and_deny_wins(folders: tuple[str, str]) -> None:
    assert list(catalogue(folders, allow=["send", "re*"])) == ["read_file", "recall", "send"]
    assert list(catalogue(folders, allow=["send", "re*"], deny=["read_*"])) == ["recall", "send"]
    assert list(catalogue(folders, allow=[])) == []
    assert "send" not in catalogue(folders, deny=["*nd"])


def test_name_of_a_built_in_tool_is_refused_with_its_place(folders: tuple[str, str]) -> None:
    with pytest.raises(Invalid, match="wait is the name of a built-in tool") as caught:
        catalogue(folders, wait)
    assert "test_discover.py" in caught.value.where


def test_digest_names_the_content_of_every_file_under_tools(tmp_path: Path) -> None:
    assert tools_digest(str(tmp_path)) == ""
    tools = tmp_path / "tools"
    (tools / "lib").mkdir(parents=True)
    (tools / "_shared.py").write_text("A = 1\n")
    assert tools_digest(str(tmp_path)) == ""
    (tools / "one.py").write_text("")
    seen = {tools_digest(str(tmp_path))}
    for path, text in (("one.py", "#"), ("_shared.py", "A = 2\n"), ("lib/deep.py", ""), ("lib/deep.py", "x")):
        (tools / path).write_text(text)
        seen.add(tools_digest(str(tmp_path)))
    (tools / "one.py").rename(tools / "two.py")
    seen.add(tools_digest(str(tmp_path)))
    assert len(seen) == 6
    assert "" not in seen
