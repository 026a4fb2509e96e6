"""One job from its input to its `Finished`, and an agent's hooks: the border between the engine and agents' code."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from atlas.engine import value
from atlas.engine.agent import AgentBase, AgentContext
from atlas.engine.conversation import Conversation
from atlas.engine.failure import record_of
from atlas.kernel.code import Finished, Job
from atlas.kernel.errors import Cancelled, ErrorRecord, Invalid, RunFailed

_OUTPUT_HINT: Final = "Return plain data (text, numbers, lists, dicts) from execute()."


async def execute(agent: AgentBase, job: Job, conversation: Conversation) -> Finished:
    """What `execute()` gave, or why it gave nothing; only SystemExit and a cancellation from outside the run pass."""
    try:
        output: Any = agent.execute(_input(job), AgentContext(job, conversation))
        if hasattr(output, "__await__"):
            output = await output
        return Finished(msgspec.Raw(_output(output)))
    except asyncio.CancelledError:
        if conversation.cancelled is not None:
            return cancelled(conversation)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Finished(error=ErrorRecord("agent_failed", "the agent's code cancelled itself"))
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever else an agent's code raises is the run's outcome
        return Finished(error=record_of(error, job.folder, "agent_failed"))


def cancelled(conversation: Conversation) -> Finished:
    """The end of a run that somebody cancelled."""
    reason = conversation.cancelled.reason if conversation.cancelled is not None else ""
    return Finished(error=Cancelled(reason or "the run was cancelled").record())


async def call_hook(agent: AgentBase, name: str, folder: str) -> None:
    """Calls a lifecycle hook; RunFailed with code `startup_failed` when it is missing or raises."""
    hook = getattr(agent, name, None)
    if not callable(hook):
        raise RunFailed(
            f"{type(agent).__name__} has no method {name!r}",
            code="startup_failed",
            hint="Name an existing method under lifecycle, or write it.",
        )
    try:
        result = hook()
        if hasattr(result, "__await__"):
            await result
    except Exception as error:
        raise failed_start(error, folder, f"{type(agent).__name__}.{name}") from error


def create(cls: type[AgentBase], folder: str) -> AgentBase:
    """An instance; RunFailed with code `startup_failed` when the class cannot be instantiated without arguments."""
    try:
        return cls()
    except Exception as error:
        raise failed_start(error, folder, f"{cls.__name__}()") from error


def failed_start(error: BaseException, folder: str, what: str) -> RunFailed:
    """`error` as the reason why an agent did not start."""
    record = record_of(error, folder, "startup_failed")
    code = "memory_limit" if record.code == "memory_limit" else "startup_failed"
    return RunFailed(
        f"{what} failed: {record.message}", code=code, hint=record.hint, where=record.where, detail=record.detail
    )


def _input(job: Job) -> Any:
    try:
        return value.decode(job.input)
    except msgspec.MsgspecError as error:
        raise Invalid(f"the input cannot be read: {error}", code="input_not_json") from error


def _output(output: object) -> bytes:
    data = value.encode(output, "the agent's output", code="output_not_json", hint=_OUTPUT_HINT)
    if len(data) > value.SIZE_LIMIT:
        raise Invalid(
            f"the agent's output has {len(data)} bytes; the limit is {value.SIZE_LIMIT}",
            code="output_too_large",
            hint="Write large results to a file and return the file's name.",
        )
    return data
