"""One call of a tool, from JSON to text: the border between the engine and tools' code. What a tool does wrong is text."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import lru_cache, partial
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec.structs import replace

from atlas.engine.failure import clean, describe, record_of
from atlas.kernel.batch import EVERYTHING
from atlas.kernel.errors import AtlasError
from atlas.kernel.redact import Redactor
from atlas.kernel.tool import EFFECT_KEY, NO_RESULT, SECRETS, LoadedTool, ToolFinding, ToolOutcome

RESULT_LIMIT: Final = 4 * 1024 * 1024
ASK_TIMEOUT_S: Final = 5.0
"""How long a tool may take to say what a call would touch."""
IN_DOUBT: Final = "\nNobody knows how far it got: look before doing it again."

_Kept: TypeAlias = tuple[Any, BaseException | None]
InThread: TypeAlias = Callable[[Callable[[], _Kept]], Awaitable[_Kept]]
"""Performs a function that raises nothing in another thread."""


@runtime_checkable
class _HasResult(Protocol):
    """What a probe returns for a call that happened: `atlas.Done`."""

    result: Any


async def perform(
    tool: LoadedTool,
    args: bytes,
    effect_key: str,
    folder: str,
    secrets: Mapping[str, str] | None = None,
    in_thread: InThread = asyncio.to_thread,
) -> ToolOutcome:
    """What the call came to; only a cancellation passes. A function that is no coroutine runs in a thread."""
    began = time.perf_counter_ns()
    called = _called(tool.function, tool, args, effect_key, secrets, in_thread)
    return await _finished(called, tool, folder, secrets, began)


def perform_here(
    tool: LoadedTool,
    args: bytes,
    effect_key: str,
    folder: str,
    secrets: Mapping[str, str],
    await_there: Callable[[Coroutine[Any, Any, ToolOutcome]], ToolOutcome],
) -> ToolOutcome:
    """What the call of a function that is no coroutine came to, performed in this very thread.

    `await_there` takes over when the function returns something to be awaited.
    """
    began = time.perf_counter_ns()
    try:
        result = tool.function(**_given(tool.function, tool, args, effect_key, secrets))
        if inspect.isawaitable(result):
            return await_there(_finished(result, tool, folder, secrets, began))
        text, is_error = _text(result), False
    except BaseException as error:  # noqa: BLE001 - whatever a tool's code raises is the call's outcome
        text, is_error = _failure(_from_there(error, tool.function), folder, secrets), True
    return ToolOutcome(text, is_error, (time.perf_counter_ns() - began) // 1000)


async def find_out(
    tool: LoadedTool,
    args: bytes,
    effect_key: str,
    secrets: Mapping[str, str] | None = None,
    in_thread: InThread = asyncio.to_thread,
) -> ToolFinding:
    """What the tool's probe says about a call; that it cannot tell when there is none or it fails."""
    if tool.probe is None:
        return ToolFinding("unknown", message=f"{tool.definition.name} has no probe")
    try:
        found = await _called(tool.probe, tool, args, effect_key, secrets, in_thread)
        if found is None:
            return ToolFinding("not_done")
        if isinstance(found, _HasResult):
            return ToolFinding("done", _text(found.result))
        return ToolFinding("unknown", message=f"the probe returned {found!r:.200}; return Done(result) or None")
    except BaseException as error:
        if _is_for_us(error):
            raise
        # A probe is a tool's code; when it fails it cannot tell.
        return ToolFinding("unknown", message=describe(error))


def examined(outcome: ToolOutcome, found: ToolFinding, *, is_over: bool = True) -> ToolOutcome:
    """What a call came to that was lost, as its probe says; one that is not over may happen yet."""
    match found.found:
        case "done":
            return replace(outcome, text=found.text, is_error=False, in_doubt=False)
        case "not_done" if is_over:
            return replace(outcome, text=outcome.text.replace(IN_DOUBT, "\nIt did not happen."), in_doubt=False)
        case _:
            return outcome


async def resources_of(tool: LoadedTool, args: bytes, in_thread: InThread = asyncio.to_thread) -> tuple[str, ...]:
    """What the call would touch; everything when the tool's function cannot say."""
    declared = tool.definition.resources
    if tool.resources is None:
        return (EVERYTHING,) if declared is None else declared
    try:
        found = _unpacked(await in_thread(partial(_kept, partial(tool.resources, **tool.arguments(args)))))
        names = (found,) if isinstance(found, str) else found
        return tuple(clean(one if isinstance(one, str) else str(one)) for one in names)
    except BaseException as error:
        if _is_for_us(error):
            raise
        return (EVERYTHING,)  # who does not know what it touches may touch anything


def is_stoppable(tool: LoadedTool) -> bool:
    """Whether a call can be cancelled: a coroutine at its next await, a thread never."""
    return inspect.iscoroutinefunction(tool.function)


async def _finished(
    work: Awaitable[Any], tool: LoadedTool, folder: str, secrets: Mapping[str, str] | None, began: int
) -> ToolOutcome:
    """What the work of a call comes to."""
    try:
        text, is_error = _text(await work), False
    except BaseException as error:
        if _is_for_us(error):
            raise
        text, is_error = _failure(_from_there(error, tool.function), folder, secrets or {}), True
    return ToolOutcome(text, is_error, (time.perf_counter_ns() - began) // 1000)


async def _called(
    function: Callable[..., Any],
    tool: LoadedTool,
    args: bytes,
    effect_key: str,
    secrets: Mapping[str, str] | None,
    in_thread: InThread,
) -> Any:
    given = _given(function, tool, args, effect_key, secrets)
    if inspect.iscoroutinefunction(function):
        return await function(**given)
    result = _unpacked(await in_thread(partial(_kept, partial(function, **given))))
    return await result if inspect.isawaitable(result) else result


def _kept(work: Callable[[], Any]) -> _Kept:
    """What it returns or raises, as values: not every exception can be raised from one thread into another's future."""
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001 - handed on
        return None, error


def _unpacked(kept: _Kept) -> Any:
    result, error = kept
    if error is None:
        return result
    if isinstance(error, StopIteration | GeneratorExit):
        raise _Ended from error  # as it is, it would mean something to the coroutines that it passes through
    raise error


def _is_for_us(error: BaseException) -> bool:
    """Whether it tells this task to end, and is nothing that a tool's own code let out."""
    task = asyncio.current_task()
    is_cancelling = task is not None and task.cancelling() > 0
    return isinstance(error, asyncio.CancelledError) and is_cancelling


def _given(
    function: Callable[..., Any], tool: LoadedTool, args: bytes, effect_key: str, secrets: Mapping[str, str] | None
) -> dict[str, Any]:
    """The arguments for the function: the model's, and what only Atlas gives."""
    given = dict(tool.arguments(args))
    parameters = _parameters(function)
    if EFFECT_KEY in parameters:
        given[EFFECT_KEY] = effect_key
    if tool.definition.secrets and SECRETS in parameters:
        given[SECRETS] = dict(secrets or {})
    return given


@lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    """The names it takes; looked up once, because that is slower than most tools."""
    return frozenset(inspect.signature(function).parameters)


def _text(result: Any) -> str:
    """Text as it is, anything else as JSON."""
    if isinstance(result, str):
        text = clean(result)
    elif result is None:
        return NO_RESULT
    else:
        try:
            text = msgspec.json.encode(result).decode()
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise _Unfit(f"it ran, but its result is not JSON: {error}. Return text or plain data.") from None
    if len(text) > RESULT_LIMIT:
        raise _Unfit(
            f"it ran, but its result has {len(text)} characters; the limit is {RESULT_LIMIT}. Write it to a file."
        )
    return text


class _Ended(Exception):
    """What the tool raised is this one's cause."""


class _Unfit(Exception):
    """A call that succeeded, with a result that cannot be passed on."""


def _from_there(error: BaseException, function: Callable[..., Any]) -> BaseException:
    """The error with its trace from the tool's own function on: how it came to be called there is nobody's business."""
    if isinstance(error, _Ended) and error.__cause__ is not None:
        error = error.__cause__
    code = getattr(inspect.unwrap(function), "__code__", None)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def _failure(error: BaseException, folder: str, secrets: Mapping[str, str]) -> str:
    match error:
        case _Unfit():
            return str(error)
        case AtlasError():
            return clean(" ".join(filter(None, (f"{error.message}.", error.hint))))
        case SystemExit():
            return f"it called sys.exit({error.code!r})"
    # What a failed call says is its result, of which nothing may be lost: a model is shown its ends, and recalls the rest.
    # Redacted here too, in case it is shortened: in the middle of a text half a value is no longer found.
    record = Redactor(secrets.items()).record(record_of(error, folder, "tool_failed", RESULT_LIMIT))
    return "\n".join(filter(None, (record.message, record.detail)))
