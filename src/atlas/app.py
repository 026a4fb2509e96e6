"""The composition root: the only place that builds adapters and wires them.

open_host    a vault folder -> ledger, workers, agents, driver -> Host
Program      what the command line is given
Atlas        the same for Python programs, from any thread or event loop
main         the `atlas` command
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    import threading
    from types import TracebackType

    from atlas.control.agents import Agents
    from atlas.control.delta import Deltas
    from atlas.control.host import Host
    from atlas.control.loop import Asker
    from atlas.control.prompt import Prompts
    from atlas.control.report import Result
    from atlas.engine.agent import AgentBase
    from atlas.kernel.code import Executor
    from atlas.kernel.config import Config
    from atlas.kernel.contract import Contract
    from atlas.kernel.event import Body, Event
    from atlas.kernel.model import Asked, OnDelta, Request
    from atlas.kernel.port import Clock, Ledger, ToolHost, Vault
    from atlas.kernel.run import RunPage, RunQuery
    from atlas.kernel.state import State
    from atlas.models.router import Router
    from atlas.models.scripted import Script

T = TypeVar("T")


class SystemClock:
    """The machine's clock and randomness."""

    def now_us(self) -> int:
        """Integer UTC microseconds."""
        import time

        return time.time_ns() // 1000

    def entropy(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        return os.urandom(size)


@asynccontextmanager
async def open_host(
    root: Path,
    environ: Mapping[str, str],
    *,
    clock: Clock | None = None,
    agents: Sequence[type[AgentBase]] = (),
    asker: Asker | None = None,
) -> AsyncIterator[Host]:
    """An open vault: its ledger, its workers and a driver that starts when it is needed."""
    from atlas.vault.folder import FolderVault

    clock = clock or SystemClock()
    root = _absolute(root)
    vault = FolderVault(root)
    config = vault.config()
    ledger = build_ledger(root, config, environ, clock)
    index = root / ".atlas" / "index.db"

    def agent_folder(name: str) -> str:
        return str(root / "agents" / name)

    async with _host_over(vault, config, ledger, index, environ, clock, agents, asker, agent_folder) as host:
        yield host


@asynccontextmanager
async def open_ephemeral(
    environ: Mapping[str, str],
    *,
    clock: Clock | None = None,
    agents: Sequence[type[AgentBase]] = (),
    asker: Asker | None = None,
) -> AsyncIterator[Host]:
    """No vault and no file: agents defined in code, a ledger in memory, models from the environment."""
    from atlas.kernel.config import Config
    from atlas.ledger.memory import MemoryLedger
    from atlas.vault.none import NoVault

    clock = clock or SystemClock()
    ledger = MemoryLedger(clock)
    nowhere = NoVault()
    async with _host_over(
        nowhere, Config(), ledger, ":memory:", environ, clock, agents, asker, lambda name: ""
    ) as host:
        yield host


@asynccontextmanager
async def _host_over(
    vault: Vault,
    config: Config,
    ledger: Ledger,
    index: Path | str,
    environ: Mapping[str, str],
    clock: Clock,
    agents: Sequence[type[AgentBase]],
    asker: Asker | None,
    agent_folder: Callable[[str], str],
) -> AsyncIterator[Host]:
    """Everything wired: what runs code, what asks models, what drives."""
    from atlas.control.agents import INLINE_PLACE, Agents
    from atlas.control.delta import Deltas
    from atlas.control.drive import Driver, DriverOptions, Owner, SlotPool
    from atlas.control.generate import Generator
    from atlas.control.host import Host
    from atlas.control.world import World
    from atlas.engine.inline import InlineExecutor
    from atlas.engine.pool import WorkerPool
    from atlas.engine.process import is_alive, kill, process_of
    from atlas.engine.tool_host import WorkerToolHost
    from atlas.vault.validate import compile_schema, not_json

    execution = config.execution
    contracts = {contract.name: contract for contract in (contract_of(cls) for cls in agents)}
    async with AsyncExitStack() as stack:
        await ledger.open()
        stack.push_async_callback(ledger.close)
        workers = await stack.enter_async_context(WorkerPool(idle_s=execution.worker_idle_s, environ=environ))
        here = await stack.enter_async_context(InlineExecutor(dict(zip(contracts, agents, strict=True))))
        known = Agents(vault, ledger, clock, execution, compile_schema, not_json, contracts)
        deltas = Deltas()
        asking = asker or await _late_asker(stack, LateAsker(vault, config, environ, ledger, clock))
        tools = await stack.enter_async_context(WorkerToolHost(idle_s=execution.worker_idle_s, environ=environ))
        prompts = await stack.enter_async_context(
            build_prompts(index, ledger, clock, vault, known, asking, deltas, tools, agent_folder)
        )

        def executor(state: State) -> Executor:
            if state.created.runtime == "prompt":
                return prompts
            return here if state.created.place.startswith(INLINE_PLACE) else workers

        slots = SlotPool(execution.max_concurrent_agents)
        world = World(
            ledger=ledger,
            clock=clock,
            agents=known,
            executor=executor,
            slots=slots,
            kill=kill,
            boundary=boundary_of(environ),
            closing=prompts.closing,
            generate=Generator(asking, prompts.complain).generate,
        )
        options = DriverOptions(
            owner=Owner(process_of(os.getpid()), clock.entropy(4).hex()),
            lease_s=execution.lease_s,
            max_running=execution.max_concurrent_agents,
            places=("", *(f"{INLINE_PLACE}{name}" for name in contracts)),
            is_alive=is_alive,
        )
        host = Host(
            ledger=ledger,
            vault=vault,
            config=config,
            clock=clock,
            agents=known,
            driver=Driver(world, slots, options),
            executor=executor,
            deltas=deltas,
            prompts=prompts,
        )
        yield await stack.enter_async_context(host)


def _absolute(root: Path) -> Path:
    """The same folder for a worker, which has another current one."""
    return root.absolute()


async def _late_asker(stack: AsyncExitStack, asker: LateAsker) -> LateAsker:
    stack.push_async_callback(asker.close)
    return asker


def build_prompts(
    index: Path | str,
    ledger: Ledger,
    clock: Clock,
    vault: Vault,
    agents: Agents,
    asker: Asker,
    deltas: Deltas,
    tools: ToolHost,
    agent_folder: Callable[[str], str],
) -> Prompts:
    """The runtime of prompt agents."""
    from atlas.control.desk import Desks, Toolbox
    from atlas.control.prompt import Prompts
    from atlas.control.recall import Recall
    from atlas.ledger.search import SqliteIndex
    from atlas.tools.arguments import ArgumentCheck
    from atlas.tools.builtin import BuiltIns
    from atlas.tools.discover import Discovery
    from atlas.vault.validate import compile_schema

    def complain(schema: dict[str, Any], value: Any) -> str | None:
        return "; ".join(compile_schema(schema).complaints(value)[:5]) or None

    builtins = BuiltIns()
    found = Discovery(tools, builtins.definitions)
    toolbox = Toolbox(found.catalogue, ArgumentCheck(compile_schema).check, builtins.call, tools, agent_folder)
    desks = Desks(vault, agents, Recall(ledger, SqliteIndex(index)), toolbox)
    return Prompts(ledger, clock, asker, desks.lay, complain, deltas.of)


def build_ledger(root: Path, config: Config, environ: Mapping[str, str], clock: Clock) -> Ledger:
    """The ledger that the environment or the configuration names; SQLite in the vault by default."""
    from atlas.kernel.errors import Unavailable

    runtime = root / ".atlas"
    try:
        runtime.mkdir(exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"{runtime} cannot be created: {error.strerror}",
            hint="Make the vault's folder writable, or choose another with --vault.",
            code="vault_unwritable",
        ) from error
    url = environ.get("ATLAS_LEDGER_URL") or config.ledger.url
    if url:
        from atlas.ledger.postgres import PostgresLedger

        return PostgresLedger(url, clock=clock, blobs=runtime / "blobs")
    from atlas.ledger.sqlite import SqliteLedger

    return SqliteLedger(runtime / "ledger.db", clock=clock, blobs=runtime / "blobs")


class LateAsker:
    """Asks models through the configured providers; builds the clients when the first question is asked."""

    def __init__(self, vault: Vault, config: Config, environ: Mapping[str, str], ledger: Ledger, clock: Clock) -> None:
        self._vault = vault
        self._config = config
        self._environ = environ
        self._ledger = ledger
        self._clock = clock
        self._router: Router | None = None

    async def ask(self, choice: str, request: Request, on_delta: OnDelta) -> Asked:
        """The reply of the first candidate that gives one."""
        return await self.router().ask(choice, request, on_delta)

    def router(self) -> Router:
        """The door to all configured models."""
        from atlas.models.router import Router

        if self._router is None:
            self._router = Router(
                self._config.models,
                clock=self._clock,
                load_blob=self._ledger.get_blob,
                load_script=self._script,
                keys=self._keys(),
                environ=self._environ,
            )
        return self._router

    async def close(self) -> None:
        """Gives back connections."""
        if self._router is not None:
            await self._router.close()

    def _script(self, path: str) -> Script:
        from atlas.models.scripted import Script, script_findings
        from atlas.vault.load import load

        return load(self._vault.read_file(path), Script, path=path, rules=script_findings)

    def _keys(self) -> dict[str, str]:
        """The values of configured keys: `secret:NAME` is the environment's NAME."""
        named = {
            name: one.key.removeprefix("secret:") for name, one in self._config.models.providers.items() if one.key
        }
        wanted = {name: (key, key.upper().replace("-", "_").replace(".", "_")) for name, key in named.items()}
        return {
            name: self._environ[spelling]
            for name, spellings in wanted.items()
            for spelling in spellings
            if spelling in self._environ
        }


def boundary_of(environ: Mapping[str, str]) -> Callable[[str], None]:
    """What happens when a driver crosses a named point: nothing, unless a fault is to be injected there."""
    plan = environ.get("ATLAS_FAULT")
    if not plan:
        return lambda name: None
    from atlas.testing.fault import fault_at

    return fault_at(plan)


def contract_of(cls: type[AgentBase]) -> Contract:
    """The contract of an agent that is defined in code."""
    import msgspec

    from atlas.kernel.contract import Contract, suggest_name
    from atlas.kernel.errors import Invalid

    written = dict(cls.contract)
    written.setdefault("name", suggest_name(cls.__name__))
    written.setdefault("version", "0.0.0")
    written.setdefault("description", (cls.__doc__ or cls.__name__).strip().splitlines()[0])
    written.setdefault("runtime", "python")
    try:
        return msgspec.convert(written, Contract)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"the contract of {cls.__qualname__} is not valid: {error}",
            hint="`contract` of the class says what agent.yaml would say under `agent:`.",
            where=f"{cls.__module__}.{cls.__qualname__}",
            code="contract_invalid",
        ) from None


class Atlas:
    """A vault for Python programs: usable from any thread and any event loop, several at a time in one process.

    Runs are driven on an event loop of its own in a background thread, which starts with the first call and
    stops with `close`; what is still under way then is parked and goes on with the next process.
    """

    def __init__(
        self,
        vault: str | Path | None = None,
        *,
        agents: Sequence[type[AgentBase]] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        import threading

        known = os.environ if environ is None else environ
        name = None if vault is None else str(vault)
        classes = tuple(agents)
        self._open: Callable[[], AbstractAsyncContextManager[Host]] = lambda: open_host(
            Program(known).vault_path(name), known, agents=classes
        )
        self._lock = threading.Lock()
        self._service: _Service | None = None

    @classmethod
    def ephemeral(cls, *, agents: Sequence[type[AgentBase]] = (), environ: Mapping[str, str] | None = None) -> Self:
        """No vault and no file: agents defined in code, a ledger in memory that is gone after `close`."""
        made = cls()
        known = os.environ if environ is None else environ
        classes = tuple(agents)
        made._open = lambda: open_ephemeral(known, agents=classes)
        return made

    def run(self, agent: str, input: Any = None, **options: Any) -> Result:
        """Runs the agent to its end and returns what it came to; options as for `submit` (session_id, key, ...)."""
        return self._soon(lambda host: _run(host, agent, input, options)).result()

    async def run_async(self, agent: str, input: Any = None, **options: Any) -> Result:
        """`run` for code on an event loop."""
        import asyncio

        return await asyncio.wrap_future(self._soon(lambda host: _run(host, agent, input, options)))

    def stream(self, agent: str, input: Any = None, **options: Any) -> Iterator[tuple[Event, Body]]:
        """Runs the agent and yields its events as they become durable; the last one says how it rests."""
        events = self._soon(lambda host: _stream(host, agent, input, options)).result()
        while (item := self._soon(lambda host: _next_or_none(events)).result()) is not None:
            yield item

    async def stream_async(self, agent: str, input: Any = None, **options: Any) -> AsyncIterator[tuple[Event, Body]]:
        """`stream` for code on an event loop."""
        import asyncio

        events = await asyncio.wrap_future(self._soon(lambda host: _stream(host, agent, input, options)))
        while (item := await asyncio.wrap_future(self._soon(lambda host: _next_or_none(events)))) is not None:
            yield item

    def runs(self, query: RunQuery | None = None) -> RunPage:
        """Runs, newest first."""
        return self._soon(lambda host: _runs(host, query)).result()

    async def runs_async(self, query: RunQuery | None = None) -> RunPage:
        """`runs` for code on an event loop."""
        import asyncio

        return await asyncio.wrap_future(self._soon(lambda host: _runs(host, query)))

    def close(self) -> None:
        """Parks what is under way and stops; idempotent, from any thread."""
        with self._lock:
            service, self._service = self._service, None
        if service is not None:
            service.close()
            service.thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # An __init__ that failed leaves no such attribute.
        service = getattr(self, "_service", None)
        if service is not None and service.thread.is_alive():
            import warnings

            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self)
            service.close()

    def _soon(self, work: Callable[[Host], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Begins `work` on the loop, which starts now if it does not run yet; whatever hinders that is raised here."""
        import asyncio

        # Under the lock, so that work is never given to a loop that was told to stop before: nobody would finish it.
        with self._lock:
            service = self._service
            if service is None or not service.thread.is_alive():
                service = self._service = _start(self._open)
            return asyncio.run_coroutine_threadsafe(work(service.host), service.loop)


class _Service:
    """An open host on a loop in a thread of its own."""

    def __init__(
        self, thread: threading.Thread, loop: asyncio.AbstractEventLoop, host: Host, stop: asyncio.Event
    ) -> None:
        self.thread = thread
        self.loop = loop
        self.host = host
        self._stop = stop

    def close(self) -> None:
        """Asks it to park everything and end."""
        with suppress(RuntimeError):  # the loop has ended already
            self.loop.call_soon_threadsafe(self._stop.set)


def _start(open_: Callable[[], AbstractAsyncContextManager[Host]]) -> _Service:
    """The service, once its host is open. Knows nothing of the `Atlas` it is for, so that one can be collected."""
    import asyncio
    import concurrent.futures
    import threading

    opened: concurrent.futures.Future[_Service] = concurrent.futures.Future()

    def serve() -> None:
        try:
            asyncio.run(_serve(open_, opened))
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)  # the caller's thread waits for it

    threading.Thread(target=serve, name="atlas", daemon=True).start()
    try:
        return opened.result()
    except BaseException:
        # Ctrl-C while waiting: nobody will use what opens after all.
        opened.add_done_callback(_close_if_opened)
        raise


async def _serve(
    open_: Callable[[], AbstractAsyncContextManager[Host]], opened: concurrent.futures.Future[_Service]
) -> None:
    import asyncio
    import threading

    stop = asyncio.Event()
    async with open_() as host:
        opened.set_result(_Service(threading.current_thread(), asyncio.get_running_loop(), host, stop))
        await stop.wait()


def _close_if_opened(opened: concurrent.futures.Future[_Service]) -> None:
    if opened.exception() is None:
        opened.result().close()


async def _run(host: Host, agent: str, input: Any, options: dict[str, Any]) -> Result:
    from atlas.control.report import result_of

    submitted = await host.submit(agent, input, **options)
    await host.drive(submitted.run_id)
    return result_of(await host.report(submitted.run_id))


async def _stream(host: Host, agent: str, input: Any, options: dict[str, Any]) -> AsyncIterator[tuple[Event, Body]]:
    submitted = await host.submit(agent, input, **options)
    host.start_driving()
    return host.follow(submitted.run_id)


async def _runs(host: Host, query: RunQuery | None) -> RunPage:
    from atlas.kernel.run import RunQuery

    return await host.runs(query or RunQuery())


async def _next_or_none(events: AsyncIterator[T]) -> T | None:
    return await anext(events, None)


class Program:
    """What the command line is given: its environment, and ways to make, find and open a vault."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def vault_path(self, vault: str | None) -> Path:
        """The vault that an option, the environment or the current folder names; NotFound when none is there."""
        from atlas.vault.folder import find_vault

        return find_vault(vault, self.environ, Path.cwd(), Path.home())

    def open(self, vault: str | None) -> AbstractAsyncContextManager[Host]:
        """The vault, open for use."""
        return open_host(self.vault_path(vault), self.environ)

    def rehearse(self, vault: Path, asker: Asker) -> AbstractAsyncContextManager[Host]:
        """The vault at `vault`, open for use with `asker` in place of every model, and nothing from the environment."""
        return open_host(vault, {}, asker=asker)

    def new_vault(self, path: Path) -> None:
        """Makes a vault with agents to try."""
        from atlas.vault.scaffold import new_agent, new_vault

        vault = new_vault(path)
        new_agent(vault, "summarizer", "python")
        new_agent(vault, "effects", "effects")
        new_agent(vault, "advisor", "prompt")

    def new_agent(self, vault: Path, name: str, template: str) -> Path:
        """Makes an agent from a template and returns its folder."""
        from atlas.vault.folder import FolderVault
        from atlas.vault.scaffold import new_agent

        return new_agent(FolderVault(vault), name, template)

    async def probe_worker(self) -> float:
        """Starts a worker process, waits for its answer and ends it: how many seconds that took."""
        import tempfile
        import time

        from atlas.control.report import result_of

        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            self.new_vault(root / "vault")
            began = time.monotonic()
            async with open_host(root / "vault", {}) as host:
                submitted = await host.submit("summarizer", {"text": "one two three"})
                await host.drive(submitted.run_id)
                result = result_of(await host.report(submitted.run_id))
            result.unwrap()
            return time.monotonic() - began


def main() -> None:
    """The `atlas` command. Ctrl-C is a clean end at any moment, also while the command is still loading."""
    import sys

    from atlas.cli.interrupt import interrupted

    try:
        from atlas.cli import root

        code = root.main(prog_name="atlas", standalone_mode=False, obj=Program(os.environ))
    except KeyboardInterrupt:
        code = interrupted(sys.argv[1:])
    sys.exit(code)
