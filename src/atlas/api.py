"""Atlas for Python programs: usable from any thread and any event loop.

Atlas       a vault, or none at all, and what a program does with it
_Service    the open host on a loop in a thread of its own, which `Atlas` hands work to
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from atlas.app import Program, inline_of, open_ephemeral, open_host

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    import threading
    from types import TracebackType

    from atlas.control.host import Host
    from atlas.control.report import InboxEntry, Result
    from atlas.control.signal import Remember
    from atlas.engine.agent import AgentBase
    from atlas.kernel.event import Body, Event, Resolution
    from atlas.kernel.model import Delta
    from atlas.kernel.run import RunPage, RunQuery
    from atlas.tools.agent import Agent

T = TypeVar("T")
File: TypeAlias = str | Path | bytes
OnText: TypeAlias = Callable[[str], object]


class Atlas:
    """A vault for Python programs: usable from any thread and any event loop, several at a time in one process.

    Runs are driven on an event loop of its own in a background thread, which starts with the first call and
    stops with `close`; what is still under way then is parked and goes on with the next process. `agents` are defined
    in code: `Agent`s and classes. Every method that waits has a twin ending in `_async` for code on an event loop.
    """

    def __init__(
        self,
        vault: str | Path | None = None,
        *,
        agents: Sequence[Agent | type[AgentBase]] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        import threading

        known = os.environ if environ is None else environ
        name = None if vault is None else str(vault)
        defined = tuple(agents)
        self._open: Callable[[], AbstractAsyncContextManager[Host]] = lambda: open_host(
            Program(known).vault_path(name), known, agents=defined
        )
        self._lock = threading.Lock()
        self._service: _Service | None = None

    @classmethod
    def ephemeral(
        cls,
        *,
        agents: Sequence[Agent | type[AgentBase]] = (),
        models: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """No vault and no file: agents defined in code, a ledger in memory that is gone after `close`.

        Models come from the environment, and from `models`: what atlas.config.yaml says under that key.
        """
        made = cls()
        known = os.environ if environ is None else environ
        defined, configured = tuple(agents), dict(models or {})
        made._open = lambda: open_ephemeral(known, agents=defined, models=configured)
        return made

    def run(
        self,
        agent: str | Agent,
        input: Any = None,
        *,
        files: Sequence[File] = (),
        on_text: OnText | None = None,
        **options: Any,
    ) -> Result:
        """Runs the agent until it rests and returns what it came to; options as for `Host.submit` (session_id, key, ...).

        `agent` is a name or an `Agent`; a text is short for {"text": ...}. `files` are paths or bytes that a prompt agent
        is shown. `on_text` is called in this thread with each piece of the answer as it comes; a model call that had to
        be made again begins its answer anew.
        """
        if on_text is None:
            return self._soon(lambda host: _run(host, agent, input, files, options)).result()
        from queue import SimpleQueue

        pieces: SimpleQueue[str | None] = SimpleQueue()
        running = self._soon(lambda host: _run(host, agent, input, files, options, pieces.put))
        running.add_done_callback(lambda _: pieces.put(None))
        while (piece := pieces.get()) is not None:
            on_text(piece)
        return running.result()

    async def run_async(
        self,
        agent: str | Agent,
        input: Any = None,
        *,
        files: Sequence[File] = (),
        on_text: OnText | None = None,
        **options: Any,
    ) -> Result:
        """`run` for code on an event loop, where `on_text` is called too."""
        if on_text is None:
            return await self._async(lambda host: _run(host, agent, input, files, options))
        import asyncio

        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(piece: str | None) -> None:
            with suppress(RuntimeError):  # the caller's loop has ended: nobody listens any more
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        running = self._soon(lambda host: _run(host, agent, input, files, options, put), is_awaited=True)
        running.add_done_callback(lambda _: put(None))
        while (piece := await pieces.get()) is not None:
            on_text(piece)
        return await asyncio.wrap_future(running)

    def stream(
        self, agent: str | Agent, input: Any = None, *, files: Sequence[File] = (), **options: Any
    ) -> Iterator[tuple[Event, Body]]:
        """Runs the agent and yields its events as they become durable; the last one says how it rests."""
        events = self._soon(lambda host: _stream(host, agent, input, files, options)).result()
        while (item := self._soon(lambda host: _next_or_none(events)).result()) is not None:
            yield item

    async def stream_async(
        self, agent: str | Agent, input: Any = None, *, files: Sequence[File] = (), **options: Any
    ) -> AsyncIterator[tuple[Event, Body]]:
        """`stream` for code on an event loop."""
        events = await self._async(lambda host: _stream(host, agent, input, files, options))
        while (item := await self._async(lambda host: _next_or_none(events))) is not None:
            yield item

    def runs(self, query: RunQuery | None = None) -> RunPage:
        """Runs, newest first."""
        return self._soon(lambda host: _runs(host, query)).result()

    async def runs_async(self, query: RunQuery | None = None) -> RunPage:
        """`runs` for code on an event loop."""
        return await self._async(lambda host: _runs(host, query))

    def result(self, run_id: str) -> Result:
        """What a run came to, once it rests."""
        return self._soon(lambda host: _result(host, run_id)).result()

    async def result_async(self, run_id: str) -> Result:
        """`result` for code on an event loop."""
        return await self._async(lambda host: _result(host, run_id))

    def inbox(self) -> list[InboxEntry]:
        """What waits for a person, oldest first."""
        return self._soon(_inbox).result()

    async def inbox_async(self) -> list[InboxEntry]:
        """`inbox` for code on an event loop."""
        return await self._async(_inbox)

    def approve(
        self, run_id: str, effect: str = "", *, reason: str = "", args: Any = None, remember: Remember = ""
    ) -> Result:
        """Allows what the run, or one below it, asks for, and goes on until it rests.

        `effect` may be left out when it asks for one thing only. `args` are approved instead of those shown; `remember` is
        "run" or "session": exactly this call is not asked about again there.
        """
        return self._soon(lambda host: _answer(host, run_id, effect, True, reason, args, remember)).result()

    async def approve_async(
        self, run_id: str, effect: str = "", *, reason: str = "", args: Any = None, remember: Remember = ""
    ) -> Result:
        """`approve` for code on an event loop."""
        return await self._async(lambda host: _answer(host, run_id, effect, True, reason, args, remember))

    def deny(self, run_id: str, effect: str = "", *, reason: str = "") -> Result:
        """Refuses what the run, or one below it, asks for, and goes on until it rests; the agent is told the reason."""
        return self._soon(lambda host: _answer(host, run_id, effect, False, reason)).result()

    async def deny_async(self, run_id: str, effect: str = "", *, reason: str = "") -> Result:
        """`deny` for code on an event loop."""
        return await self._async(lambda host: _answer(host, run_id, effect, False, reason))

    def resolve(self, run_id: str, effect: str, resolution: Resolution, *, result: Any = None) -> Result:
        """Says what became of an effect in doubt (`done` with its result, `not_done`, `abandon`), and goes on."""
        return self._soon(lambda host: _resolve(host, run_id, effect, resolution, result)).result()

    async def resolve_async(self, run_id: str, effect: str, resolution: Resolution, *, result: Any = None) -> Result:
        """`resolve` for code on an event loop."""
        return await self._async(lambda host: _resolve(host, run_id, effect, resolution, result))

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

    def _soon(
        self, work: Callable[[Host], Coroutine[Any, Any, T]], *, is_awaited: bool = False
    ) -> concurrent.futures.Future[T]:
        """Begins `work` on the loop, which starts now if it does not run yet; whatever hinders that is raised here.

        Whoever does not await it blocks its thread, so on the thread of that loop it is Invalid.
        """
        import asyncio
        import threading

        # Under the lock, so that work is never given to a loop that was told to stop before: nobody would finish it.
        with self._lock:
            service = self._service
            if service is None or not service.thread.is_alive():
                service = self._service = _start(self._open)
            if service.thread is threading.current_thread() and not is_awaited:
                from atlas.kernel.errors import Invalid

                raise Invalid(
                    "async code of this Atlas would wait for itself here",
                    hint="Await the twin of this method, for example `await atlas.run_async(...)`.",
                    code="waits_for_itself",
                )
            return asyncio.run_coroutine_threadsafe(work(service.host), service.loop)

    async def _async(self, work: Callable[[Host], Coroutine[Any, Any, T]]) -> T:
        """What `work` comes to, for code on another event loop."""
        import asyncio

        return await asyncio.wrap_future(self._soon(work, is_awaited=True))


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


async def _submit(host: Host, agent: str | Agent, input: Any, files: Sequence[File], options: dict[str, Any]) -> str:
    import asyncio

    from atlas.vault.given import read_given

    name = agent if isinstance(agent, str) else agent.name
    if not isinstance(agent, str):
        host.add(inline_of(agent))
    value = {"text": input} if isinstance(input, str) else input
    given = await asyncio.to_thread(read_given, files) if files else ()
    return (await host.submit(name, value, files=given, **options)).run_id


async def _run(
    host: Host,
    agent: str | Agent,
    input: Any,
    files: Sequence[File],
    options: dict[str, Any],
    on_text: OnText | None = None,
) -> Result:
    def pass_on(delta: Delta) -> None:
        if delta.kind == "text" and on_text is not None:
            on_text(delta.text)

    run_id = await _submit(host, agent, input, files, options)
    with host.deltas.watch(run_id, pass_on) if on_text is not None else nullcontext():
        return await _rest(host, run_id)


async def _result(host: Host, run_id: str) -> Result:
    return await _rest(host, (await host.find_run(run_id)).run_id)


async def _rest(host: Host, run_id: str) -> Result:
    """What the run comes to."""
    from atlas.control.report import result_of

    await host.drive(run_id)
    return result_of(await host.report(run_id))


async def _stream(
    host: Host, agent: str | Agent, input: Any, files: Sequence[File], options: dict[str, Any]
) -> AsyncIterator[tuple[Event, Body]]:
    run_id = await _submit(host, agent, input, files, options)
    host.start_driving()
    return host.follow(run_id)


async def _runs(host: Host, query: RunQuery | None) -> RunPage:
    from atlas.kernel.run import RunQuery

    return await host.runs(query or RunQuery())


async def _inbox(host: Host) -> list[InboxEntry]:
    import msgspec

    entries = await host.inbox()
    return [msgspec.structs.replace(entry, args=msgspec.json.decode(bytes(entry.args) or b"null")) for entry in entries]


async def _answer(
    host: Host, run_id: str, effect: str, approved: bool, reason: str, args: Any = None, remember: Remember = ""
) -> Result:
    """Answers the one thing that is meant: of the run itself, or of the run below it that makes it wait."""
    import msgspec

    from atlas.kernel.errors import Conflict, NotFound

    inside = {row.run_id async for row in host.tree(await host.find_run(run_id))}
    asked = [
        entry
        for entry in await host.inbox()
        if entry.run_id in inside and entry.kind == "approval" and effect in ("", entry.effect)
    ]
    if not asked:
        raise NotFound(f"nothing of run {run_id} waits for an approval", hint="See inbox().")
    if len(asked) > 1:
        waiting = ", ".join(f"{entry.run_id} {entry.effect}" for entry in asked)
        raise Conflict(f"run {run_id} asks for several things: {waiting}", hint="Name one.", code="ambiguous_effect")
    changed = None if args is None else msgspec.json.encode(args)
    await host.answer(asked[0].run_id, asked[0].effect, approved, reason, args=changed, remember=remember)
    await host.drive(asked[0].run_id)
    return await _result(host, run_id)


async def _resolve(host: Host, run_id: str, effect: str, resolution: Resolution, result: Any) -> Result:
    import msgspec

    raw = msgspec.json.encode(result) if resolution == "done" else None
    await host.resolve(run_id, effect, resolution, raw)
    return await _result(host, run_id)


async def _next_or_none(events: AsyncIterator[T]) -> T | None:
    return await anext(events, None)
