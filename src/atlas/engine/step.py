"""Performs one step: waits for leave, calls the function, reports what came of it before anything else happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from atlas.engine import value
from atlas.engine.call import Call
from atlas.engine.conversation import Conversation
from atlas.engine.failure import describe, record_of
from atlas.kernel.code import Answer, Perform, Performed, Probe, Probed
from atlas.kernel.errors import ErrorRecord, Invalid, from_record

_RESULT_HINT: Final = "The step did happen. Return plain data (text, numbers, lists, dicts) from it."


class Done(msgspec.Struct, frozen=True):
    """What a probe returns when the step did happen, with the step's result."""

    result: Any = None


async def perform_step(
    conversation: Conversation,
    folder: str,
    call: Call,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    probe: Callable[..., Any] | None,
) -> Any:
    """The step's result: from the record, or from performing it now."""
    call_id = conversation.next_id()
    waiting = conversation.ask(call.made(call_id))
    while True:
        try:
            reply = await waiting
        except asyncio.CancelledError:
            conversation.forget(call_id, waiting)
            raise
        match reply:
            case Perform(effect_key=effect_key):
                return await _perform(conversation, folder, call_id, call.name, fn, args, effect_key)
            case Probe(effect_key=effect_key):
                found = await _ask_probe(call_id, call.name, probe, args, effect_key)
                # The wait is registered before the finding is sent: the reply to it may come at once.
                waiting = conversation.expect(call_id)
                conversation.say(found)
            case Answer(result=result, error=None):
                return value.decode(result)
            case Answer(error=error):
                assert error is not None
                raise from_record(error)


async def _perform(
    conversation: Conversation,
    folder: str,
    call_id: int,
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    effect_key: str,
) -> Any:
    began = time.perf_counter_ns()
    try:
        result = fn(*args, effect_key=effect_key) if _wants_key(fn) else fn(*args)
        if hasattr(result, "__await__"):
            result = await result
        data = value.encode(result, f"the result of step {name!r}", code="result_not_json", hint=_RESULT_HINT)
        if len(data) > value.SIZE_LIMIT:
            raise Invalid(
                f"the result of step {name!r} has {len(data)} bytes; the limit is {value.SIZE_LIMIT}",
                code="result_too_large",
                hint="The step did happen. Write the result to a file and return the file's name.",
            )
    except asyncio.CancelledError:
        # Cut short by the code's own timeout: the code knows and goes on, so this is an outcome like an exception.
        # Cut short because the run was cancelled: nobody knows what became of it, so nothing is reported.
        if conversation.cancelled is None:
            record = ErrorRecord("step_cancelled", "cancelled while it ran; it may have happened in part")
            conversation.say(Performed(call_id, error=record, duration_us=_since(began)))
        raise
    except SystemExit as error:
        record = ErrorRecord("step_failed", describe(error))
        conversation.say(Performed(call_id, error=record, duration_us=_since(began)))
        raise
    except GeneratorExit:
        raise  # nobody waits for the step any more
    except BaseException as error:
        record = conversation.redactor.record(record_of(error, folder, "step_failed"))
        conversation.say(Performed(call_id, error=record, duration_us=_since(began)))
        raise from_record(record) from error
    said = conversation.redactor.json(data)
    conversation.say(Performed(call_id, msgspec.Raw(said), duration_us=_since(began)))
    return value.normal(result, data) if said == data else value.decode(said)


async def _ask_probe(
    call_id: int, name: str, probe: Callable[..., Any] | None, args: tuple[Any, ...], effect_key: str
) -> Probed:
    if probe is None:
        return Probed(call_id, "unknown", message=f"step {name!r} no longer has a probe")
    try:
        found = probe(*args, effect_key=effect_key) if _wants_key(probe) else probe(*args)
        if hasattr(found, "__await__"):
            found = await found
        match found:
            case None:
                return Probed(call_id, "not_done")
            case Done(result=result):
                data = value.encode(result, f"the result that the probe of step {name!r} found")
                return Probed(call_id, "done", msgspec.Raw(data))
        return Probed(call_id, "unknown", message=f"the probe returned {found!r:.200}; return Done(result) or None")
    except Exception as error:  # noqa: BLE001 - a probe is the agent's code; whatever it raises means it cannot tell
        return Probed(call_id, "unknown", message=f"the probe could not tell: {describe(error)}")


def _wants_key(fn: Callable[..., Any]) -> bool:
    """Whether `fn` has a parameter named effect_key."""
    code = getattr(fn, "__code__", None)
    if code is not None and not hasattr(fn, "__wrapped__"):
        return "effect_key" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    from inspect import signature

    try:
        return "effect_key" in signature(fn).parameters
    except (TypeError, ValueError):  # a builtin that does not say what it takes
        return False


def _since(began: int) -> int:
    return (time.perf_counter_ns() - began) // 1000
