"""The local model with real weights: what it says is its own business, how it says it is ours."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from atlas.kernel.config import Models, Provider
from atlas.kernel.contract import Tiers
from atlas.kernel.model import (
    Attempt,
    Delta,
    Image,
    Message,
    ModelError,
    Request,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from atlas.models.local import LocalModel
from atlas.models.router import Router
from atlas.models.scripted import script_from
from atlas.models.weights import SMOLLM2, find_weights, has_engine
from atlas.testing.clock import FakeClock
from conftest import missing

T = TypeVar("T")
SCHEMA = msgspec.Raw(
    b'{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},'
    b'"required":["name","age"],"additionalProperties":false}'
)
LOOK = ToolSpec("look", "Looks.", msgspec.Raw(b'{"type":"object"}'))


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where `make setup` put the weights."""
    found = Path(sys.prefix) / "models"
    if not has_engine() or find_weights(found, SMOLLM2) is None:
        missing("the local model", "run `make setup`")
    return found


def question(text: str, **more: object) -> Request:
    request = Request("smollm2", ("Answer in a few words.",), (Message("user", (Text(text),)),), max_output_tokens=40)
    return msgspec.structs.replace(request, **more)


async def no_blob(digest: str) -> bytes:
    return b"\x89PNG"


def with_model(folder: Path, work: Callable[[LocalModel], Awaitable[T]]) -> T:
    async def main() -> T:
        model = LocalModel(folder, FakeClock(), no_blob)
        try:
            return await work(model)
        finally:
            await model.close()

    return asyncio.run(main())


def test_it_answers_streaming_and_counts_its_tokens(folder: Path) -> None:
    deltas: list[Delta] = []
    reply = with_model(folder, lambda model: model.ask(question("What is the capital of France?"), deltas.append))
    (said,) = reply.parts
    assert isinstance(said, Text)
    assert said.text.strip()
    assert "".join(delta.text for delta in deltas) == said.text
    assert len(deltas) > 1
    assert (reply.model, reply.remark, reply.is_scripted) == ("smollm2", "local, tiny", False)
    assert not reply.usage.is_estimated
    assert reply.usage.tokens_in > 20
    assert 0 < reply.usage.tokens_out <= 40


def test_an_answer_of_a_given_shape_has_it(folder: Path) -> None:
    request = question("Ada is 36 years old.", output_schema=SCHEMA, max_output_tokens=100)
    (said,) = with_model(folder, lambda model: model.ask(request, lambda delta: None)).parts
    assert isinstance(said, Text)
    assert msgspec.json.decode(said.text).keys() == {"name", "age"}


def test_tools_are_not_offered_and_earlier_calls_become_words(folder: Path) -> None:
    messages = (
        Message("user", (Text("Look."),)),
        Message("assistant", (ToolCall("c1", "look", '{"x": 1}'),)),
        Message("user", (ToolResult("c1", "a cat"), Text("Which animal is it?"))),
    )
    request = Request("smollm2", (), messages, (LOOK,), max_output_tokens=30)
    reply = with_model(folder, lambda model: model.ask(request, lambda delta: None))
    assert reply.remark == "local, tiny, no tools"
    assert all(isinstance(part, Text) for part in reply.parts)
    required = msgspec.structs.replace(request, tool_choice="required")
    with pytest.raises(ModelError, match="cannot call tools") as caught:
        with_model(folder, lambda model: model.ask(required, lambda delta: None))
    assert caught.value.kind == "auth"


def test_a_prompt_that_does_not_fit_is_an_overflow_and_the_next_one_is_answered(folder: Path) -> None:
    async def work(model: LocalModel) -> str:
        with pytest.raises(ModelError) as caught:
            await model.ask(question("word " * 9_000), lambda delta: None)
        await model.ask(question("Say yes."), lambda delta: None)
        return caught.value.kind

    assert with_model(folder, work) == "overflow"


def test_the_loop_goes_on_while_it_thinks_and_a_cancelled_answer_stops(folder: Path) -> None:
    async def work(model: LocalModel) -> None:
        await model.ask(question("Say yes."), lambda delta: None)  # loads the weights
        heard: list[Delta] = []
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(model.ask(question("word " * 4_000), heard.append))
            # As many turns as there are pieces of work: a loop that waits for each has no time left to cancel it.
            for _ in range(50):
                await asyncio.sleep(0.01)
            asking.cancel()
            began = time.monotonic()
        assert asking.cancelled()
        assert time.monotonic() - began < 5
        assert not heard  # it was still reading
        await model.ask(question("Say yes."), lambda delta: None)
        assert not heard

    with_model(folder, work)


def test_nothing_listens_where_somebody_could_reach_it(folder: Path) -> None:
    async def work(model: LocalModel) -> None:
        await model.ask(question("Say yes."), lambda delta: None)
        mine = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)}
        inodes = {name.removeprefix("socket:[").removesuffix("]") for name in mine if name.startswith("socket:")}
        for table in ("tcp", "tcp6"):
            rows = [line.split() for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]]
            assert not [row for row in rows if row[3] == "0A" and row[9] in inodes]
        sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        paths = [row[7] for row in sockets if len(row) > 7 and row[6] in inodes]
        assert any(path.endswith("local.sock") for path in paths), paths
        for path in paths:
            assert not Path(path).exists()
            assert not path.endswith("local.sock") or not Path(path).parent.exists()

    with_model(folder, work)


def _is_link(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


def test_it_prints_nothing_and_leaves_no_thread(folder: Path) -> None:
    code = f"""
import asyncio, sys, threading
sys.path[:0] = {[str(Path(__file__).parent)]!r}
from pathlib import Path
from test_local_model import question, with_model
from atlas.models.weights import SMOLLM2
with_model(Path({str(folder)!r}), lambda model: model.ask(question("Say yes."), lambda delta: None))
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
"""
    tests = str(Path(__file__).parent.parent)
    around = {**os.environ, "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=around)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_weights_that_are_dropped_as_soon_as_they_are_loaded_are_let_go(folder: Path) -> None:
    # In a process of its own: an engine that does not end holds the interpreter's lock, so no timeout would be noticed.
    code = f"""
from pathlib import Path
from atlas.models.local import _Engine
from atlas.models.weights import SMOLLM2, find_weights
engine = _Engine()
for _ in range(10):
    engine._load(SMOLLM2, find_weights(Path({str(folder)!r}), SMOLLM2))
    engine.unload()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_tier_without_candidates_is_the_local_model_when_it_is_alone(folder: Path) -> None:
    attempts: list[Attempt] = []

    async def main() -> str:
        router = Router(
            Models(),
            clock=FakeClock(),
            load_blob=no_blob,
            load_script=lambda path: script_from({"replies": [{"text": "x"}]}),
            environ={"ATLAS_MODELS": str(folder)},
        )
        asked = await router.ask("balanced", question("Say yes."), lambda delta: None)
        attempts.extend(asked.attempts)
        assert router.context_window("fast") == await router.window("fast") == SMOLLM2.context
        assert router.resolve("smollm2") == ("local:smollm2",)
        await router.close()
        return asked.label

    assert asyncio.run(main()) == "local:smollm2 (local, tiny)"
    assert [(attempt.model, attempt.cost_micro_usd, attempt.error) for attempt in attempts] == [
        ("local:smollm2", 0, None)
    ]


def test_weights_that_are_damaged_are_a_server_error_with_the_fix(tmp_path: Path, folder: Path) -> None:
    damaged = tmp_path / SMOLLM2.file_name
    with open(damaged, "wb") as file:
        file.truncate(SMOLLM2.size)
    with pytest.raises(ModelError, match="could not be loaded") as caught:
        with_model(tmp_path, lambda model: model.ask(question("Say yes."), lambda delta: None))
    assert (caught.value.kind, caught.value.hint) == ("server", "Fetch the weights again: atlas models pull smollm2")


def test_what_is_missing_is_said_and_the_next_candidate_answers(tmp_path: Path) -> None:
    providers = {"mini": Provider(kind="local"), "demo": Provider(kind="scripted", script="s")}
    config = Models(providers=providers, tiers=Tiers(fast=("mini:smollm2", "demo:one")))

    async def main() -> str:
        router = Router(
            config,
            clock=FakeClock(),
            load_blob=no_blob,
            load_script=lambda path: script_from({"replies": [{"text": "x"}]}),
            environ={"ATLAS_MODELS": str(tmp_path)},
        )
        with pytest.raises(ModelError) as caught:
            await router.ask("mini:smollm2", question("Say yes."), lambda delta: None)
        assert caught.value.kind == "auth"
        assert "Run: " in caught.value.hint
        return (await router.ask("fast", question("Say yes."), lambda delta: None)).model

    assert asyncio.run(main()) == "demo:one"


def test_a_picture_is_for_the_next_candidate(folder: Path) -> None:
    seeing = question("", messages=(Message("user", (Text("?"), Image("application/pdf", "doc"))),))
    with pytest.raises(ModelError, match="local:smollm2 takes neither pictures nor PDFs") as caught:
        with_model(folder, lambda model: model.ask(seeing, lambda delta: None))
    assert caught.value.kind == "auth"
