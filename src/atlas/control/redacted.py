"""Where bytes enter the driver's process: worker messages, tool outcomes, model replies and their errors are redacted.

Nothing behind these doors (state, ledger, blobs, deltas, traces) ever holds the value of a secret that this process
knows, so that a run, its resumption and its replay see the same bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar, assert_never

from msgspec.structs import replace

from atlas.control.redaction import Redaction
from atlas.kernel.code import Code, Executor, Finished, FromCode, Job, Printed, ToCode
from atlas.kernel.errors import AtlasError
from atlas.kernel.event import Process
from atlas.kernel.model import (
    Asked,
    Attempt,
    Delta,
    Image,
    OnDelta,
    Part,
    Reply,
    Request,
    Tab,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from atlas.kernel.port import ToolHost
from atlas.kernel.redact import Redactor, Stream
from atlas.kernel.tool import ToolDefinition, ToolFinding, ToolOutcome

_T = TypeVar("_T")
_StreamName: TypeAlias = Literal["stdout", "stderr"]


class RedactedExecutor:
    """An executor whose code gets the secrets its contract names, and of which nothing is heard that holds one."""

    def __init__(
        self, inner: Executor, redaction: Redaction, named: Callable[[Job], Awaitable[Sequence[str]]] | None = None
    ) -> None:
        self._inner = inner
        self._redaction = redaction
        self._named = named

    async def start(self, job: Job, receive: Callable[[FromCode], None]) -> Code:
        """Begins the job; every value that is to be kept out is known before the code says its first word."""
        await self._redaction.refresh()
        given = await self._redaction.fetch(await self._named(job)) if self._named is not None else {}
        listener = Listener(self._redaction, receive)
        code = await self._inner.start(replace(job, secrets=given) if given else job, listener.hear)
        return _RedactedCode(code, listener)

    async def drain(self) -> None:
        """Stops everything."""
        await self._inner.drain()


class Listener:
    """Hears one execution. Of printed text it holds back what may be the beginning of a value, until more comes."""

    def __init__(self, redaction: Redaction, receive: Callable[[FromCode], None]) -> None:
        self._redaction = redaction
        self._receive = receive
        self._streams: dict[_StreamName, tuple[Redactor, Stream]] = {}

    def hear(self, message: FromCode) -> None:
        """Passes it on, redacted."""
        if self._redaction.redactor.is_idle:
            self._receive(message)
        elif isinstance(message, Printed):
            text = self._stream(message.stream).feed(message.text)
            if text:
                self._receive(Printed(message.stream, text))
        else:
            if isinstance(message, Finished):
                self.end()
            self._receive(self._redaction.message(message))

    def end(self) -> None:
        """Passes on what was held back: nothing follows."""
        for name, (_, stream) in self._streams.items():
            text = stream.end()
            if text:
                self._receive(Printed(name, text))
        self._streams.clear()

    def _stream(self, name: _StreamName) -> Stream:
        redactor = self._redaction.redactor
        known, stream = self._streams.get(name, (None, None))
        if stream is None or known is not redactor:
            # A value became known meanwhile: what is held back is looked at with it.
            held = stream.end() if stream is not None else ""
            stream = redactor.stream()
            stream.hold(held)
            self._streams[name] = (redactor, stream)
        return stream


class _RedactedCode:
    """Running code behind a listener."""

    def __init__(self, inner: Code, listener: Listener) -> None:
        self._inner = inner
        self._listener = listener

    @property
    def process(self) -> Process | None:
        """Where it runs."""
        return self._inner.process

    def send(self, message: ToCode) -> None:
        """Delivers in order."""
        self._inner.send(message)

    async def stop(self) -> None:
        """Ends it now; what it had printed is passed on."""
        await self._inner.stop()
        self._listener.end()


class RedactedTools:
    """A tool host of whose outcomes, findings, declarations and errors none holds a value."""

    def __init__(self, inner: ToolHost, redaction: Redaction) -> None:
        self._inner = inner
        self._redaction = redaction

    async def definitions(self, folder: str) -> tuple[ToolDefinition, ...]:
        """What the folder's tools declare, by name."""
        # Before the first process starts, because a known value is also kept out of its environment.
        await self._redaction.refresh()
        return await self._guarded(self._inner.definitions(folder))

    async def resources(self, folder: str, name: str, args: bytes) -> tuple[str, ...]:
        """What a call would touch."""
        return await self._guarded(self._inner.resources(folder, name, args))

    async def call(
        self, folder: str, name: str, args: bytes, effect_key: str, secrets: Mapping[str, str] | None = None
    ) -> ToolOutcome:
        """Performs the call."""
        try:
            outcome = await self._inner.call(folder, name, args, effect_key, secrets)
        except AtlasError as error:
            raise self._redaction.error(error) from None
        return outcome_of(self._redaction.redactor, outcome)

    async def probe(
        self, folder: str, name: str, args: bytes, effect_key: str, secrets: Mapping[str, str] | None = None
    ) -> ToolFinding:
        """Finds out whether a call that may have happened did."""
        found = await self._guarded(self._inner.probe(folder, name, args, effect_key, secrets))
        redactor = self._redaction.redactor
        if redactor.is_idle:
            return found
        return replace(found, text=redactor.cut(found.text), message=redactor.cut(found.message))

    async def drain(self) -> None:
        """Stops everything that runs."""
        await self._inner.drain()

    async def _guarded(self, work: Awaitable[_T]) -> _T:
        try:
            return await work
        except AtlasError as error:
            raise self._redaction.error(error) from None


class Asks(Protocol):
    """Asks models by tier or name."""

    async def ask(self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None) -> Asked:
        """The reply of the first candidate that gives one."""
        ...


class RedactedAsker:
    """Asks models, of whose replies, deltas and errors none holds a value."""

    def __init__(self, inner: Asks, redaction: Redaction) -> None:
        self._inner = inner
        self._redaction = redaction

    async def ask(self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None) -> Asked:
        """The reply of the first candidate that gives one; what goes on the tab is redacted too."""
        await self._redaction.refresh()
        pieces = _Pieces(self._redaction, on_delta)
        try:
            asked = await self._inner.ask(choice, request, pieces.hear, tab)
        except AtlasError as error:
            raise self._redaction.error(error) from None
        finally:
            if tab is not None and not self._redaction.redactor.is_idle:
                tab.attempts[:] = self._attempts(tab.attempts)
        pieces.end()
        redactor = self._redaction.redactor
        if redactor.is_idle:
            return asked
        return replace(asked, reply=reply_of(redactor, asked.reply), attempts=tuple(self._attempts(asked.attempts)))

    def _attempts(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        redactor = self._redaction.redactor
        return [one if one.error is None else replace(one, error=redactor.record(one.error)) for one in attempts]


class _Pieces:
    """Deltas on their way to whoever watches."""

    def __init__(self, redaction: Redaction, on_delta: OnDelta) -> None:
        self._redaction = redaction
        self._on_delta = on_delta
        self._last: Delta | None = None
        self._stream: Stream | None = None

    def hear(self, delta: Delta) -> None:
        if self._redaction.redactor.is_idle:
            self._on_delta(delta)
            return
        last = self._last
        if self._stream is None or last is None or (last.kind, last.attempt) != (delta.kind, delta.attempt):
            self.end()
            self._stream = self._redaction.redactor.stream()
        self._last = delta
        text = self._stream.feed(delta.text)
        if text:
            self._on_delta(replace(delta, text=text))

    def end(self) -> None:
        if self._stream is None or self._last is None:
            return
        text = self._stream.end()
        if text:
            self._on_delta(replace(self._last, text=text))


class PublicEnviron(Mapping[str, str]):
    """The environment for processes of agents and tools: without every variable that holds a known secret.

    Looked at when a process is started, so that a secret which became known before is not in it. Whoever is to have one
    names it in its contract.
    """

    def __init__(self, environ: Mapping[str, str], redaction: Redaction) -> None:
        self._environ = environ
        self._redaction = redaction

    def __getitem__(self, name: str) -> str:
        value = self._environ[name]
        if self._is_secret(value):
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, value in self._environ.items() if not self._is_secret(value)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _is_secret(self, value: str) -> bool:
        redactor = self._redaction.redactor
        return not redactor.is_idle and redactor.text(value) != value


def outcome_of(redactor: Redactor, outcome: ToolOutcome) -> ToolOutcome:
    """What a call came to, without any of the values."""
    return outcome if redactor.is_idle else replace(outcome, text=redactor.cut(outcome.text))


def reply_of(redactor: Redactor, reply: Reply) -> Reply:
    """A model's answer without any of the values."""
    parts = tuple(_part(redactor, part) for part in reply.parts)
    return reply if parts == reply.parts else replace(reply, parts=parts)


def _part(redactor: Redactor, part: Part) -> Part:
    match part:
        case Text():
            return replace(part, text=redactor.text(part.text))
        case Thinking():
            text = redactor.text(part.text)
            # A provider's signature holds for the very words it signed.
            return part if text == part.text else Thinking(text)
        case ToolCall():
            return replace(part, name=redactor.text(part.name), args=redactor.loose_json(part.args))
        case ToolResult():
            return replace(part, text=redactor.text(part.text))
        case Image():
            return replace(part, name=redactor.text(part.name))
        case _:
            assert_never(part)
