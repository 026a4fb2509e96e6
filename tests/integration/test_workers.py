"""Worker processes: every way an agent's code can go wrong ends as a clear failed run, and the next run works."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

import atlas
from atlas.engine.pool import WorkerPool
from atlas.engine.process import is_alive, process_of
from atlas.kernel.code import CallMade, Cancel, Finished, FromCode, Job, Noted, Perform, Performed, Printed
from atlas.kernel.event import Process
from unit.engine.fake_driver import FakeDriver, make_job

Agent = Callable[..., Job]

HEAD = """
import asyncio, os, signal, subprocess, sys, time
from atlas import AgentBase, AgentContext, Done

class Demo(AgentBase):
"""


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """Writes an agent's folder and gives a job for it: a whole file, or the body of the class, or of `execute`."""

    def write(
        code: str, input: Any = None, *, whole: bool = False, methods: bool = False, name: str = "demo", **job: Any
    ) -> Job:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        text = textwrap.dedent(code).strip("\n")
        if not whole:
            if not methods:
                text = "async def execute(self, input, context):\n" + textwrap.indent(text, "    ")
            text = HEAD + textwrap.indent(text, "    ")
        (folder / "agent.py").write_text(text + "\n", encoding="utf-8")
        return make_job(input, folder=str(folder), snapshot=name, agent=name, **job)

    return write


def is_note(message: FromCode) -> bool:
    return isinstance(message, Noted)


def gone(process: Process | None, within_s: float = 1.0) -> bool:
    """Whether the process ends in time. It is not ours, so there is nothing to wait on but the process table."""
    assert process is not None
    deadline = time.monotonic() + within_s
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.005)
    return not is_alive(process)


# What goes right


def test_run_in_a_worker_uses_the_whole_context(agent: Agent) -> None:
    job = agent(
        """
        context.progress(0.5, "half")
        total = await context.step("add", lambda a, b: a + b, 2, 3, effect="read_only")
        child = await context.spawn("double", {"n": total})
        now = context.now()
        assert context.run_id == "run_1" and not context.is_cancelled
        return {"total": total, "child": child, "year": now.year, "dice": context.random(), "cwd": os.getcwd()}
        """,
        {"text": "hi"},
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool, spawned=lambda agent, input: {"n": input["n"] * 2})
            first = await driver.output(job)
            assert (first["total"], first["child"], first["cwd"]) == (5, {"n": 10}, job.folder)
            assert [type(message).__name__ for message in driver.messages] == [
                *("Noted", "CallMade", "Performed", "CallMade", "ValueTaken", "Finished")
            ]
            assert await driver.output(job) == first
            assert driver.of(Performed) == []

    asyncio.run(main())


def test_worker_stays_warm_starts_up_once_and_runs_one_job_at_a_time(agent: Agent) -> None:
    job = agent(
        """
        runs = 0
        async def on_startup(self):
            self.started = os.getpid()
        async def execute(self, input, context):
            self.runs += 1
            await context.step("wait", asyncio.sleep, 0.05)
            return [self.started, self.runs]
        """,
        methods=True,
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            first = await FakeDriver(pool).output(job)
            assert await FakeDriver(pool).output(job) == [first[0], 2]
            async with asyncio.TaskGroup() as group:
                both = [group.create_task(FakeDriver(pool).output(job)) for _ in range(2)]
            pids = {task.result()[0] for task in both}
            assert len(pids) == 2
            assert first[0] in pids

    asyncio.run(main())


def test_twenty_workers_at_once(agent: Agent) -> None:
    job = agent('context.log("up")\nawait context.step("go", lambda: 1)\nreturn os.getpid()')

    async def main() -> None:
        async with WorkerPool() as pool:
            drivers = [FakeDriver(pool) for _ in range(20)]
            for driver in drivers:
                driver.held.add("go")
                await driver.start(job)
            for driver in drivers:
                await driver.heard(lambda message: isinstance(message, CallMade), 60)
            for driver in drivers:
                driver.code.send(Perform(1, "k"))
            pids = {bytes((await driver.finished).output) for driver in drivers}
            assert len(pids) == 20

    asyncio.run(main())


def test_two_snapshots_of_one_agent_never_share_code_nor_get_files(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    old = agent("import helper\nreturn helper.VERSION", name="one")
    new = agent("import helper\nreturn helper.VERSION", name="two")
    (Path(old.folder) / "helper.py").write_text("VERSION = 'old'\n")
    (Path(new.folder) / "helper.py").write_text("VERSION = 'new'\n")
    new = msgspec.structs.replace(new, agent="one")

    async def main() -> None:
        async with WorkerPool() as pool:
            for job, version in ((old, "old"), (new, "new"), (old, "old"), (new, "new")):
                assert await FakeDriver(pool).output(job) == version

    asyncio.run(main())
    for job in (old, new):
        assert sorted(path.name for path in Path(job.folder).iterdir()) == ["agent.py", "helper.py"]


def test_atlas_in_a_worker_is_this_package_even_when_the_folder_has_one_of_its_own(agent: Agent) -> None:
    job = agent("import atlas, json\nreturn [atlas.__file__, json.__name__]")
    for name in ("atlas.py", "asyncio.py", "msgspec.py"):
        (Path(job.folder) / name).write_text("raise RuntimeError('the wrong module')\n")

    async def main() -> None:
        async with WorkerPool() as pool:
            assert await FakeDriver(pool).output(job) == [atlas.__file__, "json"]

    asyncio.run(main())


def test_environment_is_the_users_without_atlas_own(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATLAS_LEDGER_URL", "postgres://user:password@127.0.0.1/db")
    monkeypatch.setenv("MY_SETTING", "kept")
    given = {**os.environ, "MY_SETTING": "given"}
    job = agent(
        """
        own = {name: text for name, text in os.environ.items() if name.startswith("ATLAS_")}
        return [own, os.environ["MY_SETTING"], sys.stdin.read(), sys.argv]
        """
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            own = {"ATLAS_RUN_ID": job.run_id}  # so that nothing it starts answers in a person's place
            assert await FakeDriver(pool).output(job) == [own, "kept", "", ["agent.py"]]
            other = msgspec.structs.replace(job, run_id="run_other")
            assert (await FakeDriver(pool).output(other))[0] == {"ATLAS_RUN_ID": "run_other"}
        async with WorkerPool(environ=given) as pool:
            assert await FakeDriver(pool).output(job) == [own, "given", "", ["agent.py"]]

    asyncio.run(main())


def test_idle_worker_is_shut_down_with_its_hook(agent: Agent, tmp_path: Path) -> None:
    marker = tmp_path / "closed"
    job = agent(
        f"""
        async def execute(self, input, context):
            return None
        async def goodbye(self):
            open({str(marker)!r}, "w").write("goodbye")
        """,
        methods=True,
        shutdown="goodbye",
    )

    async def main() -> None:
        async with WorkerPool(idle_s=0.05) as pool:
            driver = FakeDriver(pool)
            await driver.output(job)
            process = driver.code.process
            assert await asyncio.to_thread(gone, process, 5.0)
            assert marker.read_text() == "goodbye"
            await driver.output(job)
            assert driver.code.process != process
            marker.unlink()
            await asyncio.sleep(0.06)  # idle for long enough: it is told to go while the pool is left
        assert marker.read_text() == "goodbye"

    asyncio.run(main())


def test_drain_lets_idle_workers_close_and_kills_a_hook_that_hangs(agent: Agent, tmp_path: Path) -> None:
    marker = tmp_path / "closed"
    good = agent(
        f"""
        def execute(self, input, context):
            return None
        def on_shutdown(self):
            open({str(marker)!r}, "w").close()
        """,
        methods=True,
        name="good",
    )
    hung = agent(
        """
        def execute(self, input, context):
            return None
        def on_shutdown(self):
            time.sleep(60)
        """,
        methods=True,
        name="hung",
    )

    async def main() -> None:
        pool = WorkerPool(grace_s=0.3)
        drivers = [FakeDriver(pool), FakeDriver(pool)]
        for driver, job in zip(drivers, (good, hung), strict=True):
            await driver.output(job)
        await pool.drain()
        assert marker.exists()
        for driver in drivers:
            assert driver.code.process is not None
            assert not is_alive(driver.code.process)
        await drivers[0].output(good)
        await pool.drain()

    asyncio.run(main())


# What it prints


def test_output_is_captured_in_order_and_before_what_is_said_after_it(agent: Agent) -> None:
    job = agent(
        """
        print("one")
        print("to stderr é", file=sys.stderr)
        await context.step("s", lambda: print("in the step"))
        subprocess.run(["echo", "from a child"], check=True)
        os.write(1, b"bytes \\xff and half a character \\xc3")
        context.log("logged")
        print("no newline", end="")
        return None
        """
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            await driver.output(job)
            assert driver.text() == (
                "one\nin the step\nfrom a child\nbytes \ufffd and half a character \ufffdno newline"
            )
            assert driver.text("stderr") == "to stderr é\n"
            kinds = [type(message) for message in driver.messages]
            assert kinds.index(Printed) < kinds.index(CallMade)
            assert kinds[-1] is Finished
            step = driver.messages.index(driver.of(Performed)[0])
            before = "".join(m.text for m in driver.messages[:step] if isinstance(m, Printed) and m.stream == "stdout")
            assert before.startswith("one\nin the step\n")

    asyncio.run(main())


def test_each_run_gets_its_own_output_in_pieces_of_bounded_size(agent: Agent) -> None:
    job = agent("print(input['word'] * 10_000)\nreturn None", {"word": "abcde"})
    other = msgspec.structs.replace(job, input=msgspec.Raw(b'{"word": "xyz"}'))

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            await driver.output(job)
            assert driver.text() == "abcde" * 10_000 + "\n"
            assert max(len(message.text) for message in driver.of(Printed)) <= 16 * 1024
            await driver.output(other)
            assert driver.text() == "xyz" * 10_000 + "\n"

    asyncio.run(main())


@pytest.mark.parametrize(
    "flood", ["while True: print('x' * 1000)", "while True: context.log('x' * 1000)", "while True: context.now()"]
)
def test_flood_is_stopped_at_the_limit(agent: Agent, flood: str) -> None:
    job = agent(flood, output_limit_bytes=200_000)

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            error = await driver.error(job)
            assert error.code == "output_flood"
            assert "200000 bytes" in error.message
            assert len(driver.text()) <= 200_000
            assert driver.code.process is not None
            assert not is_alive(driver.code.process)

    asyncio.run(main())


def test_output_just_under_the_limit_is_no_flood(agent: Agent) -> None:
    job = agent("print('x' * 199_998)\nreturn None", output_limit_bytes=199_999)

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            await driver.output(job)
            assert len(driver.text()) == 199_999

    asyncio.run(main())


# What goes wrong

BAD_RUNS = {
    "segfault": ("import ctypes; ctypes.string_at(0)", "worker_crashed", "SIGSEGV"),
    "abort": ("os.abort()", "worker_crashed", "SIGABRT"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "worker_killed", "SIGKILL"),
    "os-exit": ("os._exit(7)", "worker_exited", "status 7"),
    "os-exit-zero": ("os._exit(0)", "worker_exited", "status 0"),
    "sys-exit": ("sys.exit(3)", "worker_exited", "status 3"),
    "exit-in-task": ("t = asyncio.ensure_future(leave())\nawait t", "worker_exited", "status 4"),
    "exception": ("raise ValueError('broken input')", "agent_failed", "ValueError: broken input"),
    "recursion": ("deep = lambda: deep()\ndeep()", "agent_failed", "RecursionError"),
    "memory": ("x = bytearray(10**9)", "memory_limit", "memory"),
    "memory-slowly": ("x = []\nwhile True: x.append('y' * 100_000)", "memory_limit", "memory"),
    "memory-in-step": ("await context.step('big', lambda: bytearray(10**9))", "memory_limit", "memory"),
    "not-json": ("return {'when': object()}", "output_not_json", ".when is a object"),
    "too-large": ("return 'x' * (17 * 1024 * 1024)", "output_too_large", "17825794 bytes"),
    "bad-frame": ("write_to_socket(b'\\0\\0\\0\\2{}')", "bad_frame", "unreadable"),
    "long-frame": ("write_to_socket(b'\\xff' * 100)", "bad_frame", "unreadable"),
    "closed-socket": ("close_socket()\nawait asyncio.sleep(60)", "worker_crashed", "closed its connection"),
}

BAD_HEAD = """
async def leave():
    sys.exit(4)

def sockets():
    import stat
    return [fd for fd in range(3, 50) if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode)]

def write_to_socket(data):
    for fd in sockets():
        try:
            os.write(fd, data)
        except OSError:
            pass
    time.sleep(60)

def close_socket():
    for fd in sockets():
        os.close(fd)
"""


@pytest.mark.parametrize("kind", BAD_RUNS)
def test_bad_run_ends_with_a_clear_error_and_the_next_one_works(agent: Agent, kind: str) -> None:
    bad, code, message = BAD_RUNS[kind]
    text = textwrap.indent(f"if input['bad']:\n{textwrap.indent(bad, '    ')}\nreturn 'fine'", "        ")
    job = agent(
        f"{HEAD.replace('class Demo', BAD_HEAD + 'class Demo')}    async def execute(self, input, context):\n{text}",
        {"bad": True},
        whole=True,
        memory_mb=200,
    )
    good = msgspec.structs.replace(job, input=msgspec.Raw(b'{"bad": false}'))

    async def main() -> None:
        async with WorkerPool(grace_s=0.3) as pool:
            assert await FakeDriver(pool).output(good) == "fine"
            driver = FakeDriver(pool)
            error = await driver.error(job)
            assert error.code == code
            assert message in error.message
            assert isinstance(driver.messages[-1], Finished)
            assert len(driver.of(Finished)) == 1
            assert await FakeDriver(pool).output(good) == "fine"

    asyncio.run(main())


def test_crash_in_native_code_shows_the_line_that_called_it(agent: Agent) -> None:
    job = agent("import ctypes\nctypes.string_at(0)")

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            error = await driver.error(job)
            assert "Segmentation fault" in error.detail
            assert "agent.py" in error.detail
            assert "Segmentation fault" in driver.text("stderr")

    asyncio.run(main())


def test_error_names_the_line_in_the_agents_own_file(agent: Agent) -> None:
    job = agent("import helper\nhelper.fail()")
    (Path(job.folder) / "helper.py").write_text("def fail():\n    raise KeyError('k')\n")

    async def main() -> None:
        async with WorkerPool() as pool:
            error = await FakeDriver(pool).error(job)
            assert error.where == "helper.py:2"
            assert error.detail.splitlines()[0].startswith("agent.py:")

    asyncio.run(main())


BASE = (
    "import time\nfrom atlas import AgentBase\nclass Base(AgentBase):\n  def execute(self, input, context): return 1\n"
)

BAD_FILES = {
    "syntax": ("class Demo(:\n", "agent_import_failed", "SyntaxError", "agent.py:1:12"),
    "missing-module": ("x = 1\nimport no_such_module\n", "agent_import_failed", "no_such_module", "agent.py:2"),
    "raises": ("x = 1\ny = x / 0\n", "agent_import_failed", "ZeroDivisionError", "agent.py:2"),
    "exits": ("import sys\nsys.exit(5)\n", "agent_import_failed", "sys.exit(5)", "agent.py:2"),
    "hard-exit": ("import os\nos._exit(6)\n", "worker_exited", "status 6", ""),
    "no-class": ("x = 1\n", "agent_class_missing", "no class that extends AgentBase", "agent.py"),
    "two-classes": (
        f"{BASE}class B(Base): pass\nclass C(Base): pass\n",
        *("agent_class_missing", "2 agents: B, C", "agent.py"),
    ),
    "no-execute": (
        "from atlas import AgentBase\nclass A(AgentBase): pass\n",
        *("agent_class_missing", "no execute()", "agent.py"),
    ),
    "needs-arguments": (
        f"{BASE}class A(Base):\n  def __init__(self, x): pass\n",
        *("startup_failed", "'x'", ""),
    ),
    "startup-raises": (
        f"{BASE}class A(Base):\n  async def on_startup(self):\n    raise OSError('no weights')\n",
        *("startup_failed", "A.on_startup failed: OSError: no weights", "agent.py:7"),
    ),
    "startup-hangs": (
        f"{BASE}class A(Base):\n  def on_startup(self): time.sleep(60)\n",
        *("startup_failed", "did not start within 0.7 s", ""),
    ),
    "import-hangs": ("while True: pass\n", "startup_failed", "did not start within 0.7 s", ""),
    "import-too-big": ("x = bytearray(10**9)\n", "memory_limit", "memory", ""),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_agent_that_cannot_be_loaded_says_why_and_works_once_it_is_mended(agent: Agent, kind: str) -> None:
    text, code, message, where = BAD_FILES[kind]

    async def main() -> None:
        async with WorkerPool(grace_s=0.3) as pool:
            driver = FakeDriver(pool)
            hangs = kind.endswith("hangs")
            job = agent(text, whole=True, memory_mb=200, startup_timeout_s=0.7 if hangs else 60.0)
            error = await driver.error(job)
            assert error.code == code
            assert message in error.message
            assert error.where.startswith(where)
            assert await FakeDriver(pool).output(agent("return 'mended'")) == "mended"

    asyncio.run(main())


def test_missing_file_and_missing_folder_are_explained(agent: Agent) -> None:
    job = agent("return 1")
    (Path(job.folder) / "agent.py").unlink()

    async def main() -> None:
        async with WorkerPool() as pool:
            error = await FakeDriver(pool).error(job)
            assert (error.code, error.message) == ("agent_import_failed", "there is no agent.py in the agent's folder")
            driver = FakeDriver(pool)
            error = await driver.error(msgspec.structs.replace(job, folder=f"{job.folder}/nowhere"))
            assert error.code == "worker_not_started"
            assert driver.code.process is None
            await driver.code.stop()

    asyncio.run(main())


def test_interpreter_that_does_not_exist_is_explained(agent: Agent) -> None:
    async def main() -> None:
        async with WorkerPool(python="/nowhere/python") as pool:
            error = await FakeDriver(pool).error(agent("return 1"))
            assert error.code == "worker_not_started"
            assert "/nowhere/python" in error.message

    asyncio.run(main())


def test_start_that_is_given_up_leaves_the_warm_worker_in_the_pool(agent: Agent) -> None:
    job = agent("return os.getpid()")

    async def main() -> None:
        async with WorkerPool(patience_s=30) as pool:
            pid = await FakeDriver(pool).output(job)
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await FakeDriver(pool).run(job)
            os.kill(pid, signal.SIGCONT)
            assert await FakeDriver(pool).output(job) == pid

    asyncio.run(main())


def test_each_job_has_its_own_memory_limit(agent: Agent) -> None:
    job = agent("return len(bytearray(300 * 1024 * 1024))", memory_mb=500)

    async def main() -> None:
        async with WorkerPool() as pool:
            assert await FakeDriver(pool).output(job) == 300 * 1024 * 1024
            small = msgspec.structs.replace(job, memory_mb=200)
            assert (await FakeDriver(pool).error(small)).code == "memory_limit"
            assert await FakeDriver(pool).output(job) == 300 * 1024 * 1024

    asyncio.run(main())


def test_class_from_a_module_beside_agent_py_is_found(agent: Agent) -> None:
    job = agent("from real import Real\n", whole=True)
    (Path(job.folder) / "real.py").write_text(
        "from atlas import AgentBase\nclass Real(AgentBase):\n    def execute(self, input, context): return 'real'\n"
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            assert await FakeDriver(pool).output(job) == "real"

    asyncio.run(main())


def test_performed_step_is_known_even_when_the_worker_dies_right_after(agent: Agent) -> None:
    # So much is said before the last word that the driver cannot have read it all when the process is gone.
    job = agent(
        """
        def pay():
            for _ in range(10):
                context.log("x" * 16_000)
            return "paid"
        await context.step("pay", pay)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            for _ in range(3):
                driver = FakeDriver(pool)
                assert (await driver.error(job)).code == "worker_killed"
                assert [bytes(message.result) for message in driver.of(Performed)] == [b'"paid"']

    asyncio.run(main())


# Cancelling and stopping


def test_cancel_reaches_code_that_awaits_and_the_worker_is_used_again(agent: Agent) -> None:
    job = agent("context.log('up')\nawait asyncio.sleep(input['s'])\nreturn os.getpid()", {"s": 60})

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            await driver.start(job)
            await driver.heard(is_note)
            driver.code.send(Cancel("enough"))
            finished = await driver.finished
            assert finished.error is not None
            assert (finished.error.code, finished.error.message) == ("cancelled", "enough")
            quick = msgspec.structs.replace(job, input=msgspec.Raw(b'{"s": 0}'))
            assert driver.code.process is not None
            assert await FakeDriver(pool).output(quick) == driver.code.process.pid

    asyncio.run(main())


def test_code_that_computes_can_ask_whether_it_is_cancelled(agent: Agent) -> None:
    job = agent(
        """
        context.log("up")
        while not context.is_cancelled:
            time.sleep(0.001)
        context.log("noticed")
        raise RuntimeError("stopped by itself")
        """
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            await driver.start(job)
            await driver.heard(is_note)
            driver.code.send(Cancel())
            await driver.finished
            assert [note.message for note in driver.of(Noted)] == ["up", "noticed"]

    asyncio.run(main())


def test_cancel_while_the_agent_still_starts_ends_the_run(agent: Agent) -> None:
    job = agent(
        """
        async def on_startup(self):
            await asyncio.sleep(0.1)
        async def execute(self, input, context):
            return "ran"
        """,
        methods=True,
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            (await driver.start(job)).send(Cancel("at once"))
            finished = await driver.finished
            assert finished.error is not None
            assert finished.error.message == "at once"
            assert await driver.output(job) == "ran"

    asyncio.run(main())


@pytest.mark.parametrize(
    "busy", ["while True: pass", "sum(range(10**12))", "await asyncio.sleep(60)", "time.sleep(60)"]
)
def test_stop_ends_the_worker_whatever_it_does(agent: Agent, busy: str) -> None:
    job = agent(f"context.log('up')\n{busy}")

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            code = await driver.start(job)
            await driver.heard(is_note)
            await code.stop()
            assert code.process is not None
            assert not is_alive(code.process)
            await code.stop()
            code.send(Cancel())
            assert driver.of(Finished) == []

    asyncio.run(main())


def test_stopped_worker_process_can_be_stopped_for_good(agent: Agent) -> None:
    job = agent("context.log('up')\nawait asyncio.sleep(60)")

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            code = await driver.start(job)
            await driver.heard(is_note)
            assert code.process is not None
            os.kill(code.process.pid, signal.SIGSTOP)
            await code.stop()
            assert not is_alive(code.process)

    asyncio.run(main())


def test_frozen_idle_worker_is_replaced(agent: Agent) -> None:
    job = agent("return os.getpid()")

    async def main() -> None:
        async with WorkerPool(patience_s=0.2) as pool:
            frozen = await FakeDriver(pool).output(job)
            process = process_of(frozen)
            os.kill(frozen, signal.SIGSTOP)
            assert await FakeDriver(pool).output(job) != frozen
            assert not is_alive(process)

    asyncio.run(main())


def test_idle_worker_that_died_is_replaced(agent: Agent) -> None:
    job = agent("return os.getpid()")

    async def main() -> None:
        async with WorkerPool() as pool:
            for wait_s in (0, 0.05):
                dead = await FakeDriver(pool).output(job)
                os.kill(dead, signal.SIGKILL)
                await asyncio.sleep(wait_s)
                assert await FakeDriver(pool).output(job) != dead

    asyncio.run(main())


@pytest.mark.parametrize("options", ["", ", start_new_session=True"])
def test_stop_ends_what_the_code_started_too(agent: Agent, options: str) -> None:
    job = agent(
        f"""
        child = subprocess.Popen(["sleep", "60"]{options})
        context.log(str(child.pid))
        await asyncio.sleep(60)
        """
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            code = await driver.start(job)
            note = await driver.heard(is_note)
            assert isinstance(note, Noted)
            grandchild = process_of(int(note.message))
            assert is_alive(grandchild)
            await code.stop()
            assert not is_alive(grandchild)

    asyncio.run(main())


def test_crashed_worker_takes_what_it_started_along(agent: Agent) -> None:
    job = agent(
        """
        child = subprocess.Popen(["sleep", "60"])
        context.log(str(child.pid))
        os._exit(1)
        """
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            await driver.error(job)
            note = driver.of(Noted)[0]
            try:
                grandchild = process_of(int(note.message))
            except LookupError:
                return
            except atlas.AtlasError:
                return
            assert gone(grandchild)

    asyncio.run(main())


def test_stop_after_the_end_does_not_touch_the_worker_that_is_busy_with_another_run(agent: Agent) -> None:
    job = agent("await context.step('wait', asyncio.sleep, 0.1)\nreturn os.getpid()")

    async def main() -> None:
        async with WorkerPool() as pool:
            first, second = FakeDriver(pool), FakeDriver(pool)
            pid = await first.output(job)
            await second.start(job)
            await first.code.stop()
            first.code.send(Cancel())
            assert bytes((await second.finished).output) == str(pid).encode()

    asyncio.run(main())


def test_what_a_run_leaves_on_the_loop_ends_with_it(agent: Agent) -> None:
    job = agent(
        """
        async def linger(context):
            try:
                await asyncio.sleep(60)
            finally:
                context.log("swept")
        async def execute(self, input, context):
            self.task = asyncio.ensure_future(self.linger(context))
            await asyncio.sleep(0)
            return len(asyncio.all_tasks())
        """.replace("linger(context)", "linger(self, context)", 1),
        methods=True,
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            driver = FakeDriver(pool)
            first = await driver.output(job)
            assert [note.message for note in driver.of(Noted)] == ["swept"]
            assert await driver.output(job) == first

    asyncio.run(main())


def test_run_that_leaves_a_task_nobody_can_end_gets_no_successor_in_its_process(agent: Agent) -> None:
    job = agent(
        """
        async def linger(self):
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass
        async def execute(self, input, context):
            self.task = asyncio.ensure_future(self.linger())
            await asyncio.sleep(0)
            return os.getpid()
        """,
        methods=True,
    )

    async def main() -> None:
        async with WorkerPool(grace_s=0.3, patience_s=0.3) as pool:
            first = await FakeDriver(pool).output(job)
            assert await FakeDriver(pool).output(job) != first

    asyncio.run(main())


@pytest.mark.parametrize("is_daemon", [True, False])
def test_run_that_leaves_a_thread_gets_no_successor_in_its_process(
    agent: Agent, is_daemon: bool, tmp_path: Path
) -> None:
    trail = tmp_path / "trail"
    job = agent(
        f"""
        import threading
        def haunt():
            for number in range(600):
                time.sleep(0.02)
                print("haunting", flush=True)
                with open({str(trail)!r}, "a") as file:
                    file.write("x")
        if input.get("is_first"):
            threading.Thread(target=haunt, daemon={is_daemon}).start()
        else:
            await asyncio.sleep(0.2)
        return os.getpid()
        """,
    )
    haunted = msgspec.structs.replace(job, input=msgspec.Raw(b'{"is_first": true}'))

    async def main() -> None:
        async with WorkerPool(grace_s=30) as pool:
            driver = FakeDriver(pool)
            await driver.start(haunted)
            worker = driver.code.process
            first = msgspec.json.decode((await driver.finished).output)
            # Long before the grace period is over: an ordinary exit would wait for the thread.
            assert await asyncio.to_thread(gone, worker, 5.0)
            size = trail.stat().st_size
            second = FakeDriver(pool)
            assert await second.output(job) != first
            assert second.text() == ""
            assert trail.stat().st_size == size

    asyncio.run(main())


def test_threads_of_pools_that_wait_for_work_and_those_of_the_startup_keep_the_worker_warm(agent: Agent) -> None:
    job = agent(
        """
        async def on_startup(self):
            import threading
            from concurrent.futures import ThreadPoolExecutor
            self.pool = ThreadPoolExecutor(2)
            self.own = threading.Thread(target=time.sleep, args=(60,), daemon=True)
            self.own.start()
        async def execute(self, input, context):
            await asyncio.to_thread(time.sleep, 0.001)
            assert self.pool.submit(lambda: 1).result() == 1
            return os.getpid()
        """,
        methods=True,
    )

    async def main() -> None:
        async with WorkerPool() as pool:
            assert len({await FakeDriver(pool).output(job) for _ in range(5)}) == 1

    asyncio.run(main())


def test_work_that_a_run_left_in_a_pool_ends_its_worker(agent: Agent) -> None:
    job = agent(
        """
        self.left = asyncio.get_running_loop().run_in_executor(None, time.sleep, 30)
        return os.getpid()
        """
    )

    async def main() -> None:
        async with WorkerPool(grace_s=30) as pool:
            driver = FakeDriver(pool)
            first = await driver.output(job)
            assert await asyncio.to_thread(gone, driver.code.process, 5.0)
            assert await FakeDriver(pool).output(job) != first

    asyncio.run(main())


# The driver dies

DRIVER = """
import asyncio, os, sys, time
from atlas.engine.pool import WorkerPool
from atlas.kernel.code import Job, Noted
import msgspec

async def main():
    jobs = msgspec.json.decode(sys.stdin.read(), type=list[Job])
    pool = WorkerPool()
    for job in jobs:
        await pool.start(job, lambda m: isinstance(m, Noted) and print(m.message, flush=True))
    if sys.argv[1:] == ["fork"]:
        copy = os.fork()
        if copy == 0:
            time.sleep(60)
        print(copy, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@contextmanager
def driver_process(jobs: list[Job], *options: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A driver in a process of its own; what its workers log comes out of the pipe."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", DRIVER, *options]
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert popen.stdin is not None
    assert popen.stdout is not None
    with popen.stdin, popen.stdout:
        popen.stdin.write(msgspec.json.encode(jobs))
        popen.stdin.close()
        try:
            yield popen, popen.stdout
        finally:
            popen.kill()
            popen.wait()


def test_workers_and_all_they_started_die_with_a_killed_driver(agent: Agent) -> None:
    tell = "context.log(str(os.getpid()))\n"
    start = "c = subprocess.Popen(['sleep', '60'])\ncontext.log(str(c.pid))\n"
    jobs = [
        agent(f"{start}{tell}await asyncio.sleep(60)", name="waits"),
        agent(f"{start}{tell}while True: pass", name="busy"),
        agent(f"{tell}sum(range(10**12))", name="native"),
        agent(f"{tell}os.kill(os.getpid(), signal.SIGSTOP)", name="stopped"),
    ]
    with driver_process(jobs) as (driver, lines):
        workers = [process_of(int(lines.readline())) for _ in range(6)]
        assert all(is_alive(worker) for worker in workers)
        driver.kill()
        driver.wait()
        assert [worker.pid for worker in workers if not gone(worker)] == []


def test_workers_die_with_their_driver_even_when_a_fork_of_it_lives_on(agent: Agent) -> None:
    job = agent("context.log(str(os.getpid()))\nwhile True: pass")
    with driver_process([job], "fork") as (driver, lines):
        copy, worker = (process_of(int(lines.readline())) for _ in range(2))
        try:
            driver.kill()
            driver.wait()
            assert gone(worker)
            assert is_alive(copy)
        finally:
            os.kill(copy.pid, signal.SIGKILL)
