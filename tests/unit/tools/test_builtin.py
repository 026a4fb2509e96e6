"""Built-in tools: they read the agent's folder and nothing else, in pieces of bounded size."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from atlas.kernel.batch import claim, conflicts
from atlas.kernel.errors import Invalid
from atlas.kernel.tool import ToolOutcome
from atlas.tools.builtin import NAMES, BuiltIns
from atlas.tools.files import MAX_CHARACTERS, MAX_ENTRIES, SHORT, read_live, read_short_text, read_text
from atlas.vault.validate import compile_schema


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """An agent's folder with something in it, and something beside it that is none of its business."""
    folder = tmp_path / "agent"
    (folder / "wiki").mkdir(parents=True)
    (folder / "wiki" / "page.md").write_text("".join(f"line {n}\n" for n in range(1, 501)), encoding="utf-8")
    (folder / "empty.txt").write_text("")
    (folder / ".env").write_text("SECRET=1\n")
    (folder / "picture.bin").write_bytes(b"\xff\xfe\x00" * 100)
    (tmp_path / "secret.txt").write_text("the secret\n")
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "up").symlink_to(tmp_path)
    (folder / "inside.md").symlink_to(folder / "wiki" / "page.md")
    os.mkfifo(folder / "pipe")
    return folder


def call(folder: Path, name: str, **args: object) -> ToolOutcome:
    async def main() -> ToolOutcome:
        async with asyncio.timeout(10):
            return await BuiltIns().call(str(folder), name, json.dumps(args).encode())

    return asyncio.run(main())


def test_file_is_read_in_pieces_that_say_how_to_go_on(agent: Path) -> None:
    first = call(agent, "read_file", path="wiki/page.md")
    lines = first.text.splitlines()
    assert lines[0] == "wiki/page.md, lines 1 to 200 (go on with start=201):"
    assert lines[1:] == [f"line {n}" for n in range(1, 201)]
    assert not first.is_error
    last = call(agent, "read_file", path="wiki//./page.md", start=499, lines=10).text.splitlines()
    assert last == ["wiki//./page.md, lines 499 to 500 (the end):", "line 499", "line 500"]
    assert call(agent, "read_file", path="wiki/page.md", start=501).text == "wiki/page.md has 500 lines."
    assert call(agent, "read_file", path="empty.txt").text == "empty.txt has 0 lines."


@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=12))
@example([9_000] * 12)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_part_of_every_file_can_be_reached_in_bounded_pieces(agent: Path, lengths: list[int]) -> None:
    text = "".join("abcdefghij"[n % 10] * length + "\n" for n, length in enumerate(lengths))
    (agent / "long.txt").write_text(text)
    start, seen = 1, ""
    for _ in range(500):
        head, _, body = call(agent, "read_file", path="long.txt", start=start).text.partition("\n")
        assert len(body) <= MAX_CHARACTERS
        seen += body
        if "go on with start=" not in head:
            break
        start = int(head.rpartition("start=")[2].rstrip("):"))
    assert seen.replace("\n", "") == text.replace("\n", "")


@given(
    st.lists(
        st.sampled_from([b"a", b"\n", b"\r", b"\r\n", "é€".encode(), b"\xff", b"x" * 2_000, b"y" * 8_191]), max_size=9
    ),
    st.integers(1, 12),
    st.integers(1, 12),
)
@example([b"x" * 8_192, b"\n", b"x" * 8_191], 1, 1)
@example([b"x" * 8_192, b"\n", b"x" * 8_192], 1, 1)
@example([b"x\n", b"x" * 8_191, b"\xff"], 1, 1)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_short_file_reads_the_same_at_once_and_a_longer_one_is_left_to_a_thread(
    agent: Path, pieces: list[bytes], start: int, lines: int
) -> None:
    def told(read: Callable[[str, str, int, int], str | None]) -> str | None:
        try:
            return read(str(agent), "some.txt", start, lines)
        except Invalid as error:
            return error.message

    data = b"".join(pieces)
    (agent / "some.txt").write_bytes(data)
    assert told(read_short_text) == (told(read_text) if len(data) <= SHORT else None)
    assert call(agent, "read_file", path="some.txt", start=start, lines=lines).text.startswith("some.txt")


def test_short_file_is_read_without_another_thread(agent: Path) -> None:
    async def main() -> None:
        began: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_default_executor(executor := ThreadPoolExecutor(1, initializer=lambda: began.append(1)))
        tools = BuiltIns()
        await tools.call(str(agent), "read_file", b'{"path": "wiki/page.md"}')
        assert not began
        (agent / "long.txt").write_bytes(b"x" * (SHORT + 1))
        await tools.call(str(agent), "read_file", b'{"path": "long.txt"}')
        assert began
        executor.shutdown()

    asyncio.run(main())


@pytest.mark.parametrize(
    "path",
    [
        *("../secret.txt", "/etc/passwd", "wiki/../../secret.txt", "out.txt", "up/secret.txt", "inside.md", ".env"),
        *("wiki\\page.md", "a\0b", "pipe", "wiki", "missing.md", "empty.txt/x", "picture.bin", "", "x" * 5000),
    ],
)
def test_nothing_else_can_be_read(agent: Path, path: str) -> None:
    found = call(agent, "read_file", path=path)
    assert found.is_error
    assert "secret\n" not in found.text
    assert "SECRET" not in found.text
    assert found.text.endswith(".")


@pytest.mark.parametrize("path", ["..", "/", "up", "wiki/..", ".git", "empty.txt", "missing"])
def test_nothing_else_can_be_listed(agent: Path, path: str) -> None:
    assert call(agent, "list_files", path=path).is_error


def test_folder_is_listed_without_hidden_files_and_in_pieces(agent: Path) -> None:
    lines = call(agent, "list_files").text.splitlines()
    assert lines[0] == ".: 7 entries"
    assert lines[1:] == [
        *("empty.txt (0 bytes)", "inside.md (link)", "out.txt (link)", "picture.bin (300 bytes)", "pipe (0 bytes)"),
        *("up (link)", "wiki/"),
    ]
    for n in range(450):
        (agent / "wiki" / f"p{n:03}.md").touch()
    first = call(agent, "list_files", path="wiki").text.splitlines()
    assert first[0] == f"wiki: 451 entries, 1 to {MAX_ENTRIES} shown (go on with start=201)"
    assert len(first) == MAX_ENTRIES + 1
    assert (
        call(agent, "list_files", path="wiki", start=401).text.splitlines()[0] == "wiki: 451 entries, 401 to 451 shown"
    )


def test_folder_that_is_gone_is_an_outcome(tmp_path: Path) -> None:
    assert call(tmp_path / "nowhere", "list_files").is_error


def test_wait_waits_and_keeps_what_follows_it_in_a_batch_waiting() -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    found = asyncio.run(BuiltIns(sleep).call("", "wait", b'{"seconds": 30}'))
    assert found.text == "waited 30 s"
    assert waited == [30]
    definitions = {one.name: one for one in BuiltIns().definitions}
    first = claim(definitions["wait"], {"seconds": 1})
    assert all(conflicts(first, claim(one, {})) for one in definitions.values())
    assert asyncio.run(BuiltIns(sleep).call("", "wait", b'{"seconds": 61}')).is_error


def test_declarations_are_sound() -> None:
    found = {one.name: one for one in BuiltIns().definitions}
    assert set(found) == {"note", "recall", "read_file", "list_files", "wait"}
    for definition in found.values():
        schema = msgspec.json.decode(definition.spec.schema)
        compile_schema(schema)
        assert not {"folder", "sleep"} & set(schema["properties"])
        assert definition.is_repeatable
    kinds = msgspec.json.decode(found["note"].spec.schema)["properties"]["kind"]["enum"]
    assert set(kinds) == {"requirement", "plan", "mission", "report", "fact"}


@given(st.text(max_size=40))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_raises_or_leads_out(agent: Path, path: str) -> None:
    for name in ("read_file", "list_files"):
        assert "the secret" not in call(agent, name, path=path).text


def test_the_names_that_are_kept_are_those_of_the_built_in_tools() -> None:
    assert {one.name for one in BuiltIns().definitions} == NAMES


def test_live_files_begin_as_read_file_shows_them_and_say_where_they_cannot_be_read(agent: Path) -> None:
    (agent / "long.txt").write_text("".join(f"{n} {'x' * 2_500}\n" for n in range(100)))
    page, long, empty = read_live(str(agent), ("wiki/page.md", "long.txt", "empty.txt"))
    assert page.lines == tuple(f"line {n}" for n in range(1, 501))
    assert (page.is_whole, long.is_whole, empty.is_whole, empty.lines) == (True, False, True, ())
    assert sum(map(len, long.lines)) <= MAX_CHARACTERS
    onward = call(agent, "read_file", path="long.txt", start=len(long.lines) + 1).text.split("\n", 1)[1]
    read = call(agent, "read_file", path="long.txt").text.split("\n", 1)[1].split("\n")
    assert long.lines == tuple(read)[: len(long.lines)]
    assert onward.split("\n")[0] not in long.lines
    problems = [one.problem for one in read_live(str(agent), ("gone.md", "picture.bin", "out.txt", "pipe", "wiki"))]
    assert problems[:2] == ["there is no gone.md", "picture.bin is not a text file"]
    assert all(problems)
    assert not any("the secret" in str(one) for one in read_live(str(agent), ("out.txt", "up/secret.txt")))
