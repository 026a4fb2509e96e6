"""What an agent's code sees: the class it extends and the context through which it reaches the world.

Every call on the context that touches the world is an effect with a stable name, so that code that runs again after
a crash gets the recorded answers to the calls it made before. The engine gives the code nothing else.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeAlias, overload

import msgspec

from atlas.engine import value
from atlas.engine.call import Call, Calls
from atlas.engine.conversation import Conversation, Reply
from atlas.engine.failure import clean
from atlas.engine.step import Done, perform_step
from atlas.kernel.code import Answer, Job, Noted, ValueTaken
from atlas.kernel.errors import AtlasError, Fault, Invalid, NotFound, PolicyRefused, from_record
from atlas.kernel.event import EffectClass
from atlas.kernel.redact import Redactor

__all__ = ["AgentBase", "AgentContext", "Done", "FanoutResult"]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LEVELS: Final = ("debug", "info", "warning", "error")
_LOG_CHUNK: Final = 16 * 1024
# `name:1.2.0`, `name:latest` and `name:^1.2` are versions of agents; any other word after a colon names a model.
_VERSION: Final = re.compile(r"latest|[\^~<>=]*\d+(\.[\dx*]+)*([-+].*)?")


class AgentBase:
    """The class an agent extends: implement `execute`; the rest is optional.

    `contract` is for an agent that is defined in code: what `agent.yaml` would say under `agent:`.
    """

    contract: ClassVar[Mapping[str, object]] = MappingProxyType({})

    def execute(self, input: dict[str, Any], context: AgentContext) -> Awaitable[dict[str, Any]] | dict[str, Any]:
        """Turns the input into the output; normally `async def`. Runs again after a crash, see `AgentContext.step`."""
        raise NotImplementedError(f"{type(self).__name__} has no execute()")

    def on_startup(self) -> Awaitable[None] | None:
        """Called once before the first run of this instance, for what is slow to load."""
        return None

    def on_shutdown(self) -> Awaitable[None] | None:
        """Called when the instance is no longer needed; not after a crash."""
        return None


class FanoutResult(msgspec.Struct, frozen=True):
    """One cell of a fan-out: which agent got which input, and its output or its error."""

    agent: str
    input: Any
    output: Any = None
    error: AtlasError | None = None


class AgentContext:
    """What one run's code may do and know. Use it on the event loop that called `execute`."""

    def __init__(self, job: Job, conversation: Conversation, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._job = job
        self._conversation = conversation
        self._clock_ns = clock_ns
        self._calls = Calls()
        self._nows = 0
        self._random: Random | None = None
        if job.secrets:
            conversation.redactor = Redactor((name, value) for name, value in job.secrets.items() if value is not None)

    # What the run is

    @property
    def run_id(self) -> str:
        """This run."""
        return self._job.run_id

    @property
    def root_run_id(self) -> str:
        """The run at the top of this tree."""
        return self._job.root_run_id

    @property
    def parent_run_id(self) -> str:
        """The run that spawned this one; empty for a run at the top."""
        return self._job.parent_run_id

    @property
    def session_id(self) -> str:
        """The session this run is a turn of."""
        return self._job.session_id

    @property
    def principal(self) -> str:
        """Who asked."""
        return self._job.principal

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self._job.agent

    @property
    def attempt(self) -> int:
        """1 the first time, more after a crash."""
        return self._job.attempt

    @property
    def deadline(self) -> datetime:
        """When the run is stopped."""
        return _EPOCH + timedelta(microseconds=self._job.deadline_us)

    def time_left_s(self) -> float:
        """Seconds until the deadline by the real clock; not recorded, so decide nothing durable by it."""
        return max(0.0, self._job.deadline_us / 1e6 - self._clock_ns() / 1e9)

    @property
    def tokens_left(self) -> int | None:
        """What the tree could still use when this attempt began."""
        return self._job.tokens_left

    @property
    def is_cancelled(self) -> bool:
        """True once somebody wants the run to stop; for code that computes long without awaiting."""
        if self._conversation.cancelled is None:
            self._conversation.poll()
        return self._conversation.cancelled is not None

    # Effects

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        effect: EffectClass = "reversible_write",
        idempotent: bool = False,
        probe: Callable[..., Any] | None = None,
        key: str | None = None,
    ) -> Any:
        """`fn(*args)`, performed at most once for this run and answered from the record ever after.

        The intent is durable before `fn` is called and its result is recorded after. After a crash in between, an
        `idempotent` or read-only step is performed again, one with a `probe` is probed (`Done(result)` when it
        happened, None when it surely did not), and any other waits for a person. `args` are JSON values; what is
        not JSON is closed over and named by `key`. A parameter called `effect_key` of `fn` or `probe` receives a
        text that is the same each time this step is tried. What `fn` raises is recorded and raised as RunFailed.
        """
        call = self._calls.step(name, fn, args, effect, idempotent, probe, key)
        if call.turn is None:
            return await perform_step(self._conversation, self._job.folder, call, fn, args, probe)
        async with call.turn:
            return await perform_step(self._conversation, self._job.folder, call, fn, args, probe)

    async def spawn(self, agent: str, input: Mapping[str, Any], key: str | None = None) -> Any:
        """The output of a child run of `agent`, which is started once; raises what the child ended with."""
        call = self._calls.spawn(agent, input, key)
        if call.turn is None:
            return await self._child(*self._begin(call))
        async with call.turn:
            return await self._child(*self._begin(call))

    @overload
    async def spawn_many(self, children: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Any]: ...
    @overload
    async def spawn_many(
        self, children: Iterable[tuple[str, Mapping[str, Any]]], return_errors: bool
    ) -> list[Any | AtlasError]: ...
    async def spawn_many(
        self, children: Iterable[tuple[str, Mapping[str, Any]]], return_errors: bool = False
    ) -> list[Any]:
        """The outputs of child runs that run at the same time, in the order given.

        Waits for all of them. Then the first error in that order is raised, or, with `return_errors`, each error
        stands in its child's place.
        """
        # All calls are numbered and asked before the first wait, so the numbering never depends on who ends first.
        calls = [self._calls.spawn(agent, input, None) for agent, input in children]
        results = await self._all([self._begin(call) for call in calls])
        if not return_errors:
            for result in results:
                if isinstance(result, AtlasError):
                    raise result
        return results

    async def fanout(self, agents: Sequence[str], inputs: Sequence[Mapping[str, Any]]) -> list[FanoutResult]:
        """Every agent, or every model, with every input, at the same time: all inputs of the first, then of the second.

        A name such as `lab:small` is a model; its inputs are what `generate` takes: `prompt`, and `schema` if wanted.
        """
        cells = [(agent, input) for agent in agents for input in inputs]
        begun = [self._begin(self._cell(agent, input)) for agent, input in cells]
        results = await self._all(begun)
        return [
            FanoutResult(agent, input, error=result)
            if isinstance(result, AtlasError)
            else FanoutResult(agent, input, output=result)
            for (agent, input), result in zip(cells, results, strict=True)
        ]

    async def generate(
        self,
        schema: Mapping[str, Any] | None,
        prompt: str,
        *,
        tier: str = "balanced",
        system: str = "",
        key: str | None = None,
    ) -> Any:
        """What a model makes of the prompt: a value that fits `schema`, or the text when that is None.

        Asked once and recorded like any effect. `tier` is fast, balanced, powerful or one model, `provider:model`.
        """
        call = self._question(tier, {"prompt": prompt, "schema": schema, "system": system}, key)
        if call.turn is None:
            return await self._child(*self._begin(call))
        async with call.turn:
            return await self._child(*self._begin(call))

    def _cell(self, agent: str, input: Mapping[str, Any]) -> Call:
        _name, colon, version = str(agent).partition(":")
        if colon and not _VERSION.fullmatch(version):
            return self._question(agent, input, None)
        return self._calls.spawn(agent, input, None)

    def _question(self, model: str, wanted: Mapping[str, Any], key: str | None) -> Call:
        schema, system = wanted.get("schema"), wanted.get("system") or ""
        is_known = set(wanted) <= {"prompt", "schema", "system"}
        is_text = isinstance(wanted.get("prompt"), str) and isinstance(system, str)
        if not (is_known and is_text and (schema is None or isinstance(schema, Mapping))):
            raise Invalid(
                f"a question to {model!r} has a prompt in words, and may have a schema, which is an object, and a system text",
                hint="For example {'prompt': 'Name a colour', 'schema': {'type': 'string'}}.",
            )
        args = {"model": model, "prompt": wanted["prompt"], "system": system}
        return self._calls.model(model, args if schema is None else {**args, "output_schema": schema}, key)

    def secret(self, name: str) -> str:
        """The value of a secret that the agent's contract names; the same as it is now, also when code runs again.

        Whatever the code says, prints, returns or raises is recorded without it.
        """
        if name not in self._job.secrets:
            raise PolicyRefused(
                f"the contract of {self._job.agent} does not name the secret {name!r:.80}",
                hint="Add its name to `secrets` in agent.yaml.",
                code="secret_not_named",
            )
        found = self._job.secrets[name]
        if found is None:
            raise NotFound(
                f"the secret {name} is not set", hint=f"Run 'atlas secrets set {name}'.", code="secret_missing"
            )
        return found

    # One-way messages

    def progress(self, fraction: float, text: str = "") -> None:
        """Says how far the run is, from 0 to 1."""
        if fraction != fraction:
            raise Invalid("progress is a number from 0 to 1, not NaN")
        line = self._conversation.redactor.text(clean(str(text)))[:_LOG_CHUNK]
        self._conversation.say(Noted(line, fraction=min(1.0, max(0.0, float(fraction)))))

    def log(self, text: object, level: Level = "info") -> None:
        """Puts a line into the run's record."""
        if level not in _LEVELS:
            raise Invalid(f"unknown log level {level!r}", hint=f"Use one of {', '.join(_LEVELS)}.")
        line = self._conversation.redactor.text(clean(str(text)))  # before it is cut in pieces
        for start in range(0, len(line) or 1, _LOG_CHUNK):
            self._conversation.say(Noted(line[start : start + _LOG_CHUNK], level))

    # Values from outside, the same each time the code runs

    def now(self) -> datetime:
        """The time; the n-th call gives the same answer each time the code runs."""
        recorded = self._job.values.get("now", ())
        if self._nows < len(recorded):
            moment = recorded[self._nows]
        else:
            moment = self._clock_ns() // 1000
            self._conversation.say(ValueTaken("now", self._nows, moment))
        self._nows += 1
        return _EPOCH + timedelta(microseconds=moment)

    def random(self) -> float:
        """A number from 0 up to 1; the same sequence each time the code runs."""
        return self._dice().random()

    def uuid(self) -> str:
        """A random UUID; the same sequence each time the code runs."""
        bits = self._dice().getrandbits(128) & ~(0xF << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62
        digits = f"{bits:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def _dice(self) -> Random:
        if self._random is None:
            self._random = Random(self._job.seed)
        return self._random

    def _begin(self, call: Call) -> tuple[int, asyncio.Future[Reply]]:
        call_id = self._conversation.next_id()
        return call_id, self._conversation.ask(call.made(call_id))

    async def _all(self, begun: list[tuple[int, asyncio.Future[Reply]]]) -> list[Any]:
        """The answers to calls that are under way, errors in their places."""
        results: list[Any] = []
        try:
            for call_id, waiting in begun:
                try:
                    results.append(await self._child(call_id, waiting))
                except AtlasError as error:
                    results.append(error)
        finally:
            for call_id, waiting in begun[len(results) :]:
                self._conversation.forget(call_id, waiting)
        return results

    async def _child(self, call_id: int, waiting: asyncio.Future[Reply]) -> Any:
        try:
            reply = await waiting
        except asyncio.CancelledError:
            self._conversation.forget(call_id, waiting)
            raise
        if not isinstance(reply, Answer):
            raise Fault(f"a call was answered with {type(reply).__name__}")
        if reply.error is not None:
            raise from_record(reply.error)
        return value.decode(reply.result)
