"""Tools in worker processes: whatever a tool does, the call ends as text, and neither the driver nor another call suffers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas.engine.process import is_alive, process_of
from atlas.engine.tool_host import WorkerToolHost
from atlas.engine.tool_inline import InlineToolHost
from atlas.kernel.errors import Invalid, NotFound, Unavailable
from atlas.kernel.event import Process
from atlas.kernel.port import ToolHost
from atlas.kernel.tool import ToolFinding, ToolOutcome
from atlas.tools.discover import Discovery
from atlas.tools.tool import tool

HEAD = """
import asyncio, os, signal, subprocess, sys, threading, time
from dataclasses import dataclass
from typing import Annotated, Literal
from atlas.tools.tool import tool
"""

Write = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Write:
    """Writes files of tools, `main.py` with the usual imports on top, and gives their folder."""

    def write(main: str = "", **files: str) -> str:
        tools = tmp_path / "agent" / "tools"
        tools.mkdir(parents=True, exist_ok=True)
        if main:
            files["main"] = HEAD + textwrap.dedent(main)
        for name, text in files.items():
            (tools / f"{name}.py").write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return str(tools.parent)

    return write


def run(body: Callable[[WorkerToolHost], Awaitable[None]], **options: Any) -> None:
    """Runs the test's coroutine with a host, inside a time limit."""

    async def main() -> None:
        async with asyncio.timeout(60), WorkerToolHost(**{"grace_s": 0.3, **options}) as host:
            await body(host)

    asyncio.run(main())


async def call(host: ToolHost, folder: str, name: str, key: str = "key", **args: object) -> ToolOutcome:
    return await host.call(folder, name, json.dumps(args).encode(), key)


async def together(*calls: Awaitable[ToolOutcome]) -> list[ToolOutcome]:
    async def one(waiting: Awaitable[ToolOutcome]) -> ToolOutcome:
        return await waiting

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(waiting)) for waiting in calls]
    return [task.result() for task in tasks]


async def gone(process: Process, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while is_alive(process) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)  # it is not our child, so there is nothing to wait on but the process table
    return not is_alive(process)


# What goes right


def test_definitions_are_read_in_another_process_and_sorted_by_name(folder: Write, tmp_path: Path) -> None:
    here = folder(
        f"""
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))

        @tool(effect="external_side_effect", timeout_s=5, resources=("mail:{{to}}",))
        async def send(to: Annotated[str, "an address"], urgent: bool = False, *, effect_key: str) -> str:
            '''Sends a mail.'''
            return to

        @tool(effect="read_only")
        def look() -> str:
            return "x"
        """
    )

    async def body(host: WorkerToolHost) -> None:
        first, second = await host.definitions(here)
        assert (first.name, second.name) == ("look", "send")
        assert (second.effect, second.timeout_s, second.resources) == ("external_side_effect", 5.0, ("mail:{to}",))
        assert second.where == "tools/main.py:8"
        assert len(second.digest) == 64
        assert json.loads(bytes(second.spec.schema)) == {
            "type": "object",
            "properties": {
                "to": {"type": "string", "description": "an address"},
                "urgent": {"type": "boolean", "default": False},
            },
            "required": ["to"],
            "additionalProperties": False,
        }
        assert "tools.main" not in sys.modules
        assert int((tmp_path / "pid").read_text()) != os.getpid()

    run(body)


def test_results_become_text_and_the_effect_key_reaches_the_function(folder: Write) -> None:
    here = folder(
        """
        @dataclass
        class Point:
            x: int
            y: float = 0.5

        @tool
        def words(effect_key: str) -> str:
            return f"done as {effect_key} é"
        @tool
        def nothing():
            pass
        @tool
        async def data(at: Point, kind: Literal["a", "b"] = "a"):
            return {"at": at, "kind": kind, "is_point": isinstance(at, Point)}
        @tool
        def object_():
            return object()
        @tool
        def huge():
            return "x" * 5_000_000
        """
    )

    async def body(host: WorkerToolHost) -> None:
        assert (await call(host, here, "words", "k-17")).text == "done as k-17 é"
        assert (await call(host, here, "nothing")).text == "(done, no result)"
        found = await call(host, here, "data", at={"x": 1.0, "y": 0.5}, kind="b")
        assert json.loads(found.text) == {"at": {"x": 1, "y": 0.5}, "kind": "b", "is_point": True}
        assert not found.is_error
        for name, why in (("object_", "not JSON"), ("huge", "5000000 characters")):
            failed = await call(host, here, name)
            assert failed.is_error
            assert failed.text.startswith("it ran, but its result")
            assert why in failed.text
        unfit = await call(host, here, "data", at={"x": "much"})
        assert unfit.is_error
        assert "$.at.x" in unfit.text
        with pytest.raises(NotFound):
            await call(host, here, "missing")

    run(body)


def test_repeatable_calls_share_a_process_and_run_side_by_side(folder: Write) -> None:
    here = folder(
        """
        in_threads, on_loop = threading.Barrier(20), asyncio.Barrier(20)

        @tool(effect="read_only")
        def slow(n: int):
            in_threads.wait(40)
            return os.getpid()
        @tool(idempotent=True)
        async def idle(n: int):
            await on_loop.wait()
            return os.getpid()
        """
    )

    async def body(host: WorkerToolHost) -> None:
        await host.definitions(here)
        found = await together(*(call(host, here, name, n=n) for n in range(20) for name in ("slow", "idle")))
        assert not [one for one in found if one.is_error]
        assert len({one.text for one in found}) == 1

    run(body)


def test_calls_that_must_not_be_repeated_never_share_a_process(folder: Write) -> None:
    here = folder(
        """
        @tool(effect="external_side_effect")
        async def pay():
            await asyncio.sleep(0.2)
            return os.getpid()
        """
    )

    async def body(host: WorkerToolHost) -> None:
        found = await together(*(call(host, here, "pay") for _ in range(3)))
        assert len({one.text for one in found}) == 3
        again = await together(*(call(host, here, "pay") for _ in range(3)))
        assert {one.text for one in again} == {one.text for one in found}
        limited = await together(*(call(host, here, "pay") for _ in range(8)))
        assert len({one.text for one in limited}) == 4

    run(body, alone=4)


def test_no_call_joins_one_that_must_not_be_repeated(folder: Write, tmp_path: Path) -> None:
    here = folder(
        f"""
        @tool(effect="external_side_effect")
        async def pay():
            open({str(tmp_path / "began")!r}, "w").close()
            await asyncio.sleep(1)
            return os.getpid()
        @tool(effect="read_only")
        def look():
            return os.getpid()
        """
    )

    async def body(host: WorkerToolHost) -> None:
        async with asyncio.TaskGroup() as group:
            paying = group.create_task(call(host, here, "pay"))
            await appears(tmp_path / "began")
            looking = await call(host, here, "look")
            assert not paying.done()
        assert looking.text != paying.result().text

    run(body)


def test_files_may_import_each_other_and_shadow_nothing(folder: Write, tmp_path: Path) -> None:
    head = "from atlas.tools.tool import tool\n"
    here = folder(
        _shared="VALUE = 42\n",
        calendar=head + "import json\nfrom tools._shared import VALUE\n@tool\ndef a():\n    return VALUE\n",
        json=head + "import calendar\nfrom tools.calendar import a\n@tool\ndef b():\n    return calendar.MONDAY\n",
    )

    async def body(host: WorkerToolHost) -> None:
        assert [one.name for one in await host.definitions(here)] == ["a", "b"]
        assert (await call(host, here, "a")).text == "42"
        assert (await call(host, here, "b")).text == "0"
        assert not list(Path(here).rglob("__pycache__"))

    (tmp_path / "other" / "tools").mkdir(parents=True)
    (tmp_path / "other" / "tools" / "__init__.py").write_text("raise RuntimeError('the wrong package')\n")
    run(body, environ={**os.environ, "PYTHONPATH": str(tmp_path / "other")})


def test_output_is_appended_to_the_call_that_printed_it(folder: Write) -> None:
    here = folder(
        """
        @tool(effect="read_only")
        def chatty(who: str):
            for _ in range(3):
                print(who)
                time.sleep(0.02)
            print(who, "to stderr", file=sys.stderr)
            return "done"
        @tool(effect="read_only")
        def program(seconds: float = 0):
            subprocess.run(["echo", "from a program"], check=True)
            print("from python")
            time.sleep(seconds)
            return "done"
        @tool(effect="read_only")
        def flood():
            for _ in range(10_000):
                print("x" * 100)
            os.write(1, b"y" * 300_000)
            return "done"
        """
    )

    async def body(host: WorkerToolHost) -> None:
        first, second = await together(*(call(host, here, "chatty", who=who) for who in ("anna", "bert")))
        assert first.text == "done\n\n[printed]\nanna\nanna\nanna\nanna to stderr"
        assert second.text == "done\n\n[printed]\nbert\nbert\nbert\nbert to stderr"
        alone = (await call(host, here, "program")).text
        assert "from a program" in alone
        assert "from python" in alone
        other, _ = await together(call(host, here, "chatty", who="carl"), call(host, here, "program", seconds=0.5))
        assert "program" not in other.text
        flooded = await call(host, here, "flood")
        assert len(flooded.text) < 200_000
        assert "more characters]" in flooded.text
        assert "from a program" not in flooded.text

    run(body)


def test_environment_is_the_users_without_atlas_own(folder: Write) -> None:
    here = folder(
        """
        @tool
        def environment():
            return [os.environ.get("MINE"), [n for n in os.environ if n.startswith("ATLAS_")], os.getcwd()]
        """
    )
    environ = {**os.environ, "MINE": "yes", "ATLAS_LEDGER_URL": "postgres://secret"}

    async def body(host: WorkerToolHost) -> None:
        assert json.loads((await call(host, here, "environment")).text) == ["yes", ["ATLAS_RUN_ID"], here]

    run(body, environ=environ)


def test_functions_called_in_turn_share_a_thread_and_those_called_meanwhile_run_beside_it(folder: Write) -> None:
    here = folder(
        """
        @tool(effect="read_only")
        def thread(seconds: float = 0):
            time.sleep(seconds)
            return [threading.get_ident(), threading.current_thread() is threading.main_thread()]
        """
    )

    async def body(host: WorkerToolHost) -> None:
        first, second = [json.loads((await call(host, here, "thread")).text) for _ in range(2)]
        assert first == second
        assert not first[1]
        busy, beside = await together(call(host, here, "thread", seconds=0.5), call(host, here, "thread"))
        assert json.loads(busy.text) == first
        assert json.loads(beside.text)[0] != first[0]

    run(body)


def test_what_a_call_leaves_in_its_context_is_not_seen_by_the_next(folder: Write) -> None:
    here = folder(
        """
        from contextvars import ContextVar
        SEEN = ContextVar("seen", default="nothing")

        @tool(effect="read_only")
        def look(leave: str):
            before = SEEN.get()
            SEEN.set(leave)
            return before
        """
    )

    async def body(host: WorkerToolHost) -> None:
        for leave in ("a", "b"):
            assert (await call(host, here, "look", leave=leave)).text == "nothing"

    run(body)


def test_long_arguments_arrive_whole_and_in_order(folder: Write) -> None:
    here = folder(
        """
        import hashlib

        @tool(effect="read_only")
        def digest(text: str):
            return hashlib.sha256(text.encode()).hexdigest()
        """
    )

    async def body(host: WorkerToolHost) -> None:
        texts = [letter * 3_000_000 for letter in "abc"]
        found = await together(*(call(host, here, "digest", text=text) for text in texts))
        assert [one.text for one in found] == [hashlib.sha256(text.encode()).hexdigest() for text in texts]

    run(body)


def test_function_that_returns_a_coroutine_has_it_awaited_on_the_loop(folder: Write) -> None:
    here = folder(
        """
        async def later(n):
            print("later")
            await asyncio.sleep(0)
            if n < 0:
                raise ValueError("below zero")
            return [n, threading.current_thread() is threading.main_thread()]

        @tool(effect="read_only")
        def wrapped(n: int):
            return later(n)
        """
    )

    async def body(host: WorkerToolHost) -> None:
        assert (await call(host, here, "wrapped", n=3)).text == "[3,true]\n\n[printed]\nlater"
        failed = await call(host, here, "wrapped", n=-1)
        assert failed.is_error
        lines = failed.text.splitlines()
        assert lines[:2] == ["ValueError: below zero", "tools/main.py:10 in later"]
        assert "result" not in failed.text

    run(body)


def test_ended_processes_leave_no_file_open(folder: Write) -> None:
    here = folder("@tool\ndef pid(): return os.getpid()\n")

    async def body(host: WorkerToolHost) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            await call(host, here, "pid")
            await host.drain()
        with pytest.raises(Unavailable):
            await host.definitions("/nowhere/at/all")
        assert len(os.listdir("/proc/self/fd")) == before

    run(body)


# What goes wrong in a tool


def test_exception_becomes_text_with_its_type_message_and_place(folder: Write) -> None:
    here = folder(
        """
        @tool
        def fail(n: int):
            print("before")
            raise ValueError(f"no such thing: {n}")
        @tool
        async def exits():
            sys.exit(3)
        """
    )

    async def body(host: WorkerToolHost) -> None:
        failed = await call(host, here, "fail", n=7)
        assert failed.is_error
        assert not failed.in_doubt
        lines = failed.text.splitlines()
        assert lines[0] == "ValueError: no such thing: 7"
        assert lines[1] == "tools/main.py:9 in fail"
        assert "raise ValueError" in lines[2]
        assert "atlas" not in failed.text
        assert lines[-1] == "before"
        assert "sys.exit(3)" in (await call(host, here, "exits")).text

    run(body)


def test_coroutine_that_is_late_is_stopped_and_its_process_lives(folder: Write) -> None:
    here = folder(
        """
        @tool(effect="read_only", timeout_s=2)
        async def late():
            print("began")
            await asyncio.sleep(60)
        @tool(effect="external_side_effect", timeout_s=0.3)
        async def pay():
            await asyncio.sleep(60)
        @tool(effect="read_only")
        def pid():
            return os.getpid()
        """
    )

    async def body(host: WorkerToolHost) -> None:
        before = await call(host, here, "pid")
        late = await call(host, here, "late")
        assert late.is_error
        assert not late.in_doubt
        assert late.text.startswith("late did not finish within 2 s and was stopped.")
        assert "began" in late.text
        assert (await call(host, here, "pid")).text == before.text
        doubtful = await call(host, here, "pay")
        assert doubtful.in_doubt
        assert "look before doing it again" in doubtful.text

    run(body)


@pytest.mark.parametrize("idle_s", [60.0, 0.3])
def test_each_call_has_its_own_time_whatever_else_the_process_does(folder: Write, idle_s: float) -> None:
    here = folder(
        """
        @tool(effect="read_only", timeout_s=0.8)
        async def brief(seconds: float):
            await asyncio.sleep(seconds)
            return "in time"
        @tool(effect="read_only", timeout_s=3)
        async def longer(seconds: float):
            await asyncio.sleep(seconds)
            return "in time"
        """
    )

    async def timed(waiting: Awaitable[ToolOutcome]) -> tuple[str, float]:
        began = time.monotonic()
        return (await waiting).text.partition("\n")[0], time.monotonic() - began

    async def body(host: WorkerToolHost) -> None:
        await host.definitions(here)
        async with asyncio.TaskGroup() as group:
            late = group.create_task(timed(call(host, here, "longer", seconds=30)))
            kept = group.create_task(timed(call(host, here, "longer", seconds=1.5)))
            for _ in range(2):
                brief, took_s = await timed(call(host, here, "brief", seconds=30))
                assert brief == "brief did not finish within 0.8 s and was stopped."
                assert 0.8 <= took_s < 20
        text, took_s = late.result()
        assert text == "longer did not finish within 3 s and was stopped."
        assert 3 <= took_s < 20
        assert kept.result()[0] == "in time"
        # What ended in time moved nothing: the next call has all of its own.
        assert (await call(host, here, "brief", seconds=0)).text == "in time"
        assert (await timed(call(host, here, "longer", seconds=1.5)))[0] == "in time"

    run(body, idle_s=idle_s)


@pytest.mark.parametrize("how", ["def late(): time.sleep(60)", "async def late(): time.sleep(60)"])
def test_function_that_does_not_stop_is_killed_and_neighbours_are_called_again(
    folder: Write, how: str, tmp_path: Path
) -> None:
    # The first call of the neighbour cannot end before the process does, when it can be seen to have begun.
    first_s = 60 if how.startswith("def") else 1.2
    here = folder(
        f"""
        @tool(effect="read_only", timeout_s=2)
        {how}
        @tool(effect="read_only")
        def neighbour(effect_key: str):
            with open({str(tmp_path / "calls")!r}, "a") as file:
                is_first = file.tell() == 0
                file.write(f"{{effect_key}} {{os.getpid()}}\\n")
            time.sleep({first_s} if is_first else 0)
            return os.getpid()
        """
    )

    async def body(host: WorkerToolHost) -> None:
        await host.definitions(here)
        began = time.monotonic()
        innocent, late = await together(call(host, here, "neighbour", "k1"), call(host, here, "late"))
        assert late.is_error
        assert time.monotonic() - began < 40
        assert not innocent.is_error
        calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
        assert [key for key, _ in calls] == ["k1"] * len(calls)
        assert innocent.text == calls[-1][1]
        if how.startswith("def"):
            assert len(calls) == 2
            first = int(calls[0][1])
            assert not Path(f"/proc/{first}").exists()

    run(body)


@pytest.mark.parametrize(
    "deed, said",
    [
        ("os._exit(4)", "exited with status 4"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("os.closerange(3, 100)", ""),
    ],
)
def test_crash_is_the_outcome_of_that_call_alone(folder: Write, deed: str, said: str) -> None:
    here = folder(
        f"""
        @tool(effect="external_side_effect")
        def crash():
            {deed}
            time.sleep(30)
        @tool(effect="read_only")
        def crash_reading():
            {deed}
            time.sleep(30)
        @tool(effect="external_side_effect")
        async def pay():
            await asyncio.sleep(0.5)
            return "paid"
        """
    )

    async def body(host: WorkerToolHost) -> None:
        await host.definitions(here)
        crashed, paid, reading = await together(
            call(host, here, "crash"), call(host, here, "pay"), call(host, here, "crash_reading")
        )
        assert crashed.is_error
        assert crashed.in_doubt
        assert reading.is_error
        assert not reading.in_doubt
        assert said in crashed.text
        assert "agent" not in crashed.text.replace(here, "")
        assert paid.text == "paid"
        assert (await call(host, here, "pay")).text == "paid"

    run(body)


def test_interrupt_that_a_tool_raises_is_its_outcome_and_its_process_goes_on(folder: Write) -> None:
    here = folder(
        """
        @tool
        def interrupt():
            raise KeyboardInterrupt("enough")
        @tool
        def pid():
            return os.getpid()
        """
    )

    async def body(host: WorkerToolHost) -> None:
        first = (await call(host, here, "pid")).text
        interrupted = await call(host, here, "interrupt")
        assert (interrupted.is_error, interrupted.in_doubt) == (True, False)
        assert interrupted.text.startswith("KeyboardInterrupt: enough\ntools/main.py:")
        assert (await call(host, here, "pid")).text == first

    run(body)


@pytest.mark.parametrize(
    "child", ["sys.exit(0)", "return 'child'", "raise ValueError('child')", "os.setsid(); return 1"]
)
def test_a_child_that_a_tool_forks_off_is_no_second_server(folder: Write, child: str) -> None:
    here = folder(
        f"""
        @tool(effect="read_only")
        def daemonize():
            if os.fork() == 0:
                {child}
            time.sleep(0.2)
            return "started"
        @tool
        def pid():
            return os.getpid()
        """
    )

    async def body(host: WorkerToolHost) -> None:
        first = (await call(host, here, "pid")).text
        assert (await call(host, here, "daemonize")).text == "started"
        assert {(await call(host, here, "pid")).text for _ in range(20)} == {first}

    run(body)


def test_a_process_that_can_no_longer_complain_ends_all_the_same(folder: Write) -> None:
    here = folder(
        """
        @tool(timeout_s=30)
        def silence():
            sys.stderr = None
            os.closerange(2, 64)
        """
    )

    async def body(host: WorkerToolHost) -> None:
        await host.definitions(here)
        async with asyncio.timeout(10):
            assert (await call(host, here, "silence")).in_doubt

    run(body)


def test_a_call_that_must_not_be_repeated_shares_no_process_that_is_just_starting(folder: Write) -> None:
    here = folder(
        """
        @tool(effect="read_only")
        def crash():
            time.sleep(0.2)
            os._exit(3)
        @tool(effect="external_side_effect")
        def send():
            time.sleep(0.5)
            return "sent"
        """
    )

    async def body(host: WorkerToolHost) -> None:
        await host.definitions(here)
        await asyncio.sleep(0.5)  # nothing runs any more, and what the tools declare is known
        crashed, sent = await together(call(host, here, "crash"), call(host, here, "send"))
        assert crashed.is_error
        assert (sent.text, sent.in_doubt) == ("sent", False)

    run(body, idle_s=0.2)


def test_what_is_printed_between_calls_belongs_to_none(folder: Write) -> None:
    here = folder(
        """
        @tool(effect="read_only")
        def background():
            subprocess.Popen(["sh", "-c", "sleep 0.1; echo late"])
            return "one"
        @tool(effect="read_only")
        def other():
            return "two"
        """
    )

    async def body(host: WorkerToolHost) -> None:
        assert (await call(host, here, "background")).text == "one"
        await asyncio.sleep(0.4)
        assert (await call(host, here, "other")).text == "two"

    run(body)


def test_memory_is_limited(folder: Write) -> None:
    here = folder(
        """
        @tool(effect="read_only")
        def hog():
            return len(bytearray(2_000_000_000))
        @tool(effect="read_only")
        def fine():
            return "fine"
        """
    )

    async def body(host: WorkerToolHost) -> None:
        hog = await call(host, here, "hog")
        assert hog.is_error
        assert "memory" in hog.text
        assert (await call(host, here, "fine")).text == "fine"

    run(body, memory_mb=512)


# Cancelling and ending


def test_cancelled_coroutine_is_cancelled_in_its_process(folder: Write, tmp_path: Path) -> None:
    here = folder(
        f"""
        @tool
        async def works():
            open({str(tmp_path / "began")!r}, "w").close()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                open({str(tmp_path / "cancelled")!r}, "w").close()
                raise
        @tool
        def pid():
            return os.getpid()
        """
    )

    async def body(host: WorkerToolHost) -> None:
        before = await call(host, here, "pid")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call(host, here, "works"))
            await appears(tmp_path / "began")
            task.cancel()
        assert task.cancelled()
        assert (tmp_path / "cancelled").exists()
        assert (await call(host, here, "pid")).text == before.text

    run(body)


def test_cancelled_function_in_a_thread_is_killed_after_the_grace_period(folder: Write, tmp_path: Path) -> None:
    here = folder(
        f"""
        @tool
        def works():
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            open({str(tmp_path / "began")!r}, "w").close()
            while True:
                time.sleep(0.05)
        """
    )

    async def body(host: WorkerToolHost) -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call(host, here, "works"))
            await appears(tmp_path / "began")
            process = process_of(int((tmp_path / "pid").read_text()))
            task.cancel()
        assert task.cancelled()
        assert not is_alive(process)

    run(body)


async def appears(path: Path) -> None:
    """Another process writes the file, so there is nothing to wait on but the folder."""
    async with asyncio.timeout(20):
        while not path.exists():
            await asyncio.sleep(0.01)


def test_idle_process_ends_and_draining_ends_the_rest(folder: Write) -> None:
    here = folder("@tool(effect='read_only')\ndef pid(): return os.getpid()\n@tool\ndef hang(): time.sleep(60)\n")

    async def body(host: WorkerToolHost) -> None:
        first = process_of(int((await call(host, here, "pid")).text))
        assert await gone(first)
        second = int((await call(host, here, "pid")).text)
        assert second != first.pid
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(call(host, here, "hang"))
            await asyncio.sleep(0.3)
            await host.drain()
        assert hanging.result().in_doubt

    run(body, idle_s=0.2)


def test_draining_starts_nothing_again(folder: Write, tmp_path: Path) -> None:
    here = folder(
        f"""
        open({str(tmp_path / "starts")!r}, "a").write("x")

        @tool(effect="read_only")
        def look():
            open({str(tmp_path / "began")!r}, "w").close()
            time.sleep(60)
        @tool
        def act():
            time.sleep(60)
        """
    )

    async def body(host: WorkerToolHost) -> None:
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(call(host, here, "look"))
            acting = [group.create_task(outcome_or_refusal(host, here, "act")) for _ in range(3)]
            await appears(tmp_path / "began")
            await asyncio.sleep(0.5)
            await host.drain()
        assert looking.result().is_error
        assert sorted(str(one.result()) for one in acting) == ["doubt", "refused", "refused"]
        starts = (tmp_path / "starts").read_text()
        await asyncio.sleep(0.3)
        assert (tmp_path / "starts").read_text() == starts == "xx"

    run(body, alone=1)


async def outcome_or_refusal(host: WorkerToolHost, here: str, name: str) -> str:
    try:
        return "doubt" if (await call(host, here, name)).in_doubt else "done"
    except Unavailable:
        return "refused"


def test_process_that_dies_while_idle_is_replaced(folder: Write) -> None:
    here = folder("@tool\ndef pid(): return os.getpid()\n")

    async def body(host: WorkerToolHost) -> None:
        pid = int((await call(host, here, "pid")).text)
        process = process_of(pid)
        os.kill(pid, signal.SIGKILL)  # a process that this test's host started
        assert await gone(process)
        await asyncio.sleep(0.05)
        assert int((await call(host, here, "pid")).text) != pid

    run(body)


# Files with problems


SPOILED = ("a_syntax", "b_hint", "c_import", "d_abort", "d_exit", "f_twice")


def test_every_problem_of_the_files_is_told_with_its_place(folder: Write) -> None:
    head = "from atlas.tools.tool import tool\n"
    here = folder(
        a_syntax="def broken(:\n    pass\n",
        b_hint=head + "\n@tool\ndef fine(x: object):\n    pass\n",
        c_import="import no_such_module_anywhere\n",
        d_abort="class Abort(BaseException): pass\nraise Abort('enough')\n",
        d_exit="import sys\nsys.exit(1)\n",
        e_fine=head + "@tool\ndef fine_one(x: int):\n    pass\n",
        f_twice=head + "@tool(name='fine_one')\ndef other(x: int):\n    pass\n",
    )

    async def body(host: WorkerToolHost) -> None:
        with pytest.raises(Invalid) as caught:
            await host.definitions(here)
        found = {problem.path: (problem.line, problem.code, problem.message) for problem in caught.value.problems}
        assert set(found) == {f"tools/{name}.py" for name in SPOILED}
        assert found["tools/a_syntax.py"][0] == 1
        assert found["tools/b_hint.py"][0] == 3
        assert "parameter x" in found["tools/b_hint.py"][2]
        assert "no_such_module_anywhere" in found["tools/c_import.py"][2]
        assert found["tools/f_twice.py"][1] == "tool_defined_twice"
        with pytest.raises(Invalid):
            await call(host, here, "fine_one", x=1)

    run(body)


def test_import_that_crashes_or_hangs_is_unavailable(folder: Write) -> None:
    crashing = folder("os._exit(3)")

    async def crash(host: WorkerToolHost) -> None:
        with pytest.raises(Unavailable, match="status 3"):
            await host.definitions(crashing)
        with pytest.raises(Unavailable, match="could be started"):
            await host.definitions("/nowhere/at/all")

    async def hang(host: WorkerToolHost) -> None:
        with pytest.raises(Unavailable, match="within 1 s"):
            await host.definitions(folder("time.sleep(60)"))

    run(crash)
    run(hang, startup_timeout_s=1)


# Probes and resources


PROBES = """
from atlas import Done

def find(what: str, effect_key: str):
    if what == "done":
        return Done({"key": effect_key})
    if what == "odd":
        return 17
    if what == "broken":
        raise OSError("cannot look")
    return None

@tool(effect="external_side_effect", probe=find)
def deed(what: str):
    return what

@tool(resources=lambda what: [f"file:{what}", "read:mail"] if what != "broken" else 1 / 0)
def touching(what: str):
    return what

@tool(effect="read_only", resources=("read:a",))
def declared():
    return 1

@tool
def undeclared():
    return 1
"""


def test_probes_tell_what_became_of_a_call(folder: Write) -> None:
    here = folder(PROBES)

    async def body(host: WorkerToolHost) -> None:
        async def probe(name: str, what: str) -> ToolFinding:
            return await host.probe(here, name, msgspec.json.encode({"what": what}), "k9")

        assert await probe("deed", "done") == ToolFinding("done", '{"key":"k9"}')
        assert await probe("deed", "other") == ToolFinding("not_done")
        assert (await probe("deed", "odd")).found == "unknown"
        assert "cannot look" in (await probe("deed", "broken")).message
        assert (await probe("touching", "done")).found == "unknown"

    run(body)


def test_resources_are_what_the_tool_says_and_everything_when_it_cannot(folder: Write) -> None:
    here = folder(PROBES)

    async def body(host: WorkerToolHost) -> None:
        assert await host.resources(here, "touching", b'{"what":"x"}') == ("file:x", "read:mail")
        assert await host.resources(here, "touching", b'{"what":"broken"}') == ("*",)
        assert await host.resources(here, "declared", b"{}") == ("read:a",)
        assert await host.resources(here, "undeclared", b"{}") == ("*",)

    run(body)


# Discovery and tools of this process


def test_discovery_reads_each_content_once_each_folder_once_and_starts_nothing_for_a_folder_without_tools(
    folder: Write, tmp_path: Path
) -> None:
    here = folder("@tool\ndef one(): pass\n", _not_a_tool="raise RuntimeError('never imported')\n")
    copy = tmp_path / "copy"
    (copy / "tools").mkdir(parents=True)
    for file in Path(here, "tools").iterdir():
        (copy / "tools" / file.name).write_bytes(file.read_bytes())
    empty = tmp_path / "empty"
    empty.mkdir()

    async def body(host: WorkerToolHost) -> None:
        discovery = Discovery(host)
        assert await discovery.catalogue({str(empty): None}) == {}
        assert list(await discovery.catalogue({here: None})) == ["one"]
        await host.drain()
        with pytest.MonkeyPatch.context() as without:
            without.setattr(host, "definitions", None)
            assert list(await discovery.catalogue({str(copy): None})) == ["one"]
        (copy / "tools" / "more.py").write_text("from atlas.tools.tool import tool\n@tool\ndef two(): pass\n")
        assert list(await discovery.catalogue({str(copy): None})) == ["one"], "what is pinned does not change"
        assert list(await discovery.catalogue({str(copy.rename(tmp_path / "new")): None})) == ["one", "two"]

    run(body)


def test_functions_of_this_process_are_called_in_it() -> None:
    @tool(effect="read_only", timeout_s=0.1)
    async def here(n: int, effect_key: str) -> list[object]:
        """Tells where it is."""
        if n < 0:
            await asyncio.sleep(10)
        if n == 0:
            raise ValueError("none")
        return [n, effect_key, os.getpid()]

    def plain() -> None:
        pass

    async def main() -> None:
        host = InlineToolHost({"demo": [here]})
        assert [one.name for one in await host.definitions("demo")] == ["here"]
        assert json.loads((await call(host, "demo", "here", n=1)).text) == [1, "key", os.getpid()]
        assert re.match("ValueError: none\n.*test_tools.py:", (await call(host, "demo", "here", n=0)).text)
        late = await call(host, "demo", "here", n=-1)
        assert (late.is_error, late.in_doubt) == (True, False)
        assert await host.resources("demo", "here", b'{"n":1}') == ("*",)
        with pytest.raises(NotFound):
            await call(host, "other", "here", n=1)
        with pytest.raises(Invalid, match="not a tool"):
            InlineToolHost({"demo": [plain]})
        with pytest.raises(Invalid, match="two tools"):
            InlineToolHost({"demo": [here, here]})

    asyncio.run(main())
