"""Atlas inside a Python program: sync, async, several at once, and an import that touches nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from agents_for_tests import AGENTS

from atlas import AgentBase, AgentContext, Atlas
from atlas.kernel.errors import Invalid, NotFound, RunFailed
from atlas.kernel.run import RunQuery


@pytest.fixture
def root(vault_dir: Path) -> Path:
    vault_dir.mkdir()
    (vault_dir / "atlas.config.yaml").touch()
    return vault_dir


def test_run_returns_what_the_agent_returned(root: Path) -> None:
    with Atlas(root, agents=AGENTS) as atlas:
        result = atlas.run("typed", {"n": 1})
        assert result.ok
        assert result.unwrap() == {"sum": 8}
        failed = atlas.run("worker", {"log": "api", "do": ["fail"]})
        assert failed.state == "failed"
        with pytest.raises(RunFailed, match="told to fail"):
            failed.unwrap()
        with pytest.raises(Invalid):
            atlas.run("typed", {"n": "x"})
        with pytest.raises(NotFound):
            atlas.run("nobody", {})
        assert [row.agent for row in atlas.runs(RunQuery(limit=2)).runs] == ["worker", "typed"]


def test_stream_yields_events_until_the_run_rests(root: Path) -> None:
    with Atlas(root, agents=AGENTS) as atlas:
        kinds = [event.kind for event, _ in atlas.stream("worker", {"log": "api", "do": ["write:a"]})]
    assert kinds[0] == "run.created"
    assert kinds[-1] == "run.ended"
    assert "effect.received" in kinds


def test_async_code_shares_the_same_atlas(root: Path) -> None:
    async def main(atlas: Atlas) -> None:
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(atlas.run_async("typed", {"n": n})) for n in range(10)]
        assert [run.result().output["sum"] for run in runs] == [n + 7 for n in range(10)]
        seen = [event.kind async for event, _ in atlas.stream_async("typed", {"n": 1})]
        assert seen[-1] == "run.ended"
        assert len((await atlas.runs_async()).runs) == 11

    with Atlas(root, agents=AGENTS) as atlas:
        asyncio.run(main(atlas))


def test_two_vaults_live_in_one_process_at_the_same_time(tmp_path: Path) -> None:
    class Named(AgentBase):
        """Says which vault it runs in."""

        contract = {"name": "named", "version": "1.0.0", "description": "says who"}

        async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
            await asyncio.sleep(0.02)
            return {"run": context.run_id, "who": input["who"]}

    outcomes: dict[str, list[str]] = {}

    def work(name: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "atlas.config.yaml").touch()
        with Atlas(folder, agents=[Named]) as atlas:
            outcomes[name] = [atlas.run("named", {"who": name}).unwrap()["who"] for _ in range(5)]
            assert len(atlas.runs().runs) == 5

    threads = [threading.Thread(target=work, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {"left": ["left"] * 5, "right": ["right"] * 5}


def test_closing_twice_is_fine_and_a_missing_vault_is_a_clear_error(root: Path, tmp_path: Path) -> None:
    atlas = Atlas(root, agents=AGENTS)
    atlas.run("typed", {"n": 1})
    atlas.close()
    atlas.close()
    with pytest.raises(NotFound, match="vault"):
        Atlas(tmp_path / "nothing-here").run("typed", {"n": 1})


class Echo(AgentBase):
    """Says what it was told."""

    async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
        return {"said": input["text"], "step": await context.step("add", lambda: 2, effect="read_only")}


def test_an_ephemeral_atlas_runs_code_without_a_vault_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Atlas.ephemeral(agents=[Echo], environ={}) as atlas:
        assert atlas.run("echo", {"text": "hi"}).unwrap() == {"said": "hi", "step": 2}
        assert [row.agent for row in atlas.runs().runs] == ["echo"]
        kinds = [event.kind for event, _ in atlas.stream("echo", {"text": "hi"})]
        assert (kinds[0], kinds[-1]) == ("run.created", "run.ended")
    assert list(tmp_path.iterdir()) == []


class Misnamed(AgentBase):
    """Has a contract that is not valid."""

    contract = {"name": "Not A Name", "version": 7}


def test_whatever_hinders_the_opening_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with pytest.raises(Invalid, match="Misnamed is not valid") as caught:
            Atlas.ephemeral(agents=[Misnamed], environ={}).run("misnamed", {})
        assert (caught.value.reason, caught.value.exit_code) == ("contract_invalid", 2)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError):
        Atlas(environ={}).run("echo", {})
    assert [thread for thread in threading.enumerate() if thread.name == "atlas" and not thread.daemon] == []


def test_threads_that_come_at_once_share_one_loop(root: Path) -> None:
    gate = threading.Barrier(8)
    outcomes: list[Any] = []
    loops: set[int | None] = set()

    class Where(AgentBase):
        """Says which thread drives it."""

        async def execute(self, input: dict[str, Any], context: AgentContext) -> dict[str, Any]:
            loops.add(threading.get_ident())
            return {"n": input["n"]}

    atlas = Atlas(root, agents=[Where])

    def work(number: int) -> None:
        gate.wait()
        outcomes.append(atlas.run("where", {"n": number}).unwrap()["n"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    serving = [thread for thread in threading.enumerate() if thread.name == "atlas"]
    assert sorted(outcomes) == list(range(8))
    assert (len(loops), len(serving)) == (1, 1)
    closers = [threading.Thread(target=atlas.close) for _ in range(4)]
    for thread in closers:
        thread.start()
    for thread in closers:
        thread.join()
    assert not any(thread.is_alive() for thread in serving)


def test_an_atlas_that_is_forgotten_open_warns_and_stops(root: Path) -> None:
    atlas = Atlas(root, agents=[Echo])
    atlas.run("echo", {"text": "hi"})
    [serving] = [thread for thread in threading.enumerate() if thread.name == "atlas"]
    forgotten = [atlas]
    del atlas
    with pytest.warns(ResourceWarning, match="unclosed"):
        forgotten.clear()
    serving.join(10)
    assert not serving.is_alive()


def test_importing_atlas_touches_no_file_network_or_environment() -> None:
    code = textwrap.dedent(
        """
        import os, sys
        reads = []
        class Watched(type(os.environ)):
            def __getitem__(self, key):
                reads.append(key); return super().__getitem__(key)
        os.environ.__class__ = Watched
        touched = []
        def hook(event, args):
            if event.startswith(("socket.", "subprocess.", "os.mkdir", "os.rename", "os.putenv", "sqlite3.")):
                touched.append((event, str(args)))
            if event == "open" and isinstance(args[0], str):
                mode = args[1] or ""
                if any(flag in mode for flag in "wax+") or not args[0].endswith((".py", ".pyc", ".so")):
                    touched.append((event, str(args[0])))
        sys.addaudithook(hook)
        import atlas
        assert "msgspec" not in sys.modules and "asyncio" not in sys.modules
        assert not touched, touched
        assert not reads, reads
        print("clean")
        """
    )
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", f"import sys; sys.path.insert(0, {_source()!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "clean\n", done.stderr


def _source() -> str:
    import atlas

    return str(Path(atlas.__file__).parents[1])
