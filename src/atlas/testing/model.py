"""The contract of the port `Model`, as cases that every adapter must pass.

An author provides a rig, which opens a model that gives the answers it is told to, and runs each case on a new one:

    @pytest.mark.parametrize("case", model.cases())
    def test_my_model(case):
        asyncio.run(case.check(MyRig()))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import msgspec

from atlas.kernel.model import (
    Delta,
    Message,
    Model,
    ModelError,
    ModelErrorKind,
    Reply,
    Request,
    Text,
    ToolCall,
    ToolSpec,
)
from atlas.testing.provider_wire import Act, ActCall, ActUsage

_LONG_S: Final = 60.0
_SCHEMA: Final = msgspec.Raw(b'{"type":"object","properties":{"x":{"type":"string"}},"required":["x"]}')
REQUEST: Final = Request(
    "m1",
    ("You are kind.",),
    (Message("user", (Text("What is it?"),)),),
    (ToolSpec("look", "Looks.", _SCHEMA),),
    step=1,
)
TWO_CALLS: Final = (ActCall("look", '{"x": "first"}'), ActCall("look", '{"x": "second"}'))


class Fails(msgspec.Struct, frozen=True):
    """An answer that is a failure of this kind."""

    kind: ModelErrorKind
    retry_after_s: float = 0.0


class Rig(Protocol):
    """Opens models. Provided by the author of an adapter, new for each case."""

    def open(self, answer: Act | Fails, *, stream: bool = True) -> AbstractAsyncContextManager[Model]:
        """A model that answers so each time it is asked; `hang` means that the answer never ends."""
        ...

    async def open_calls(self) -> int:
        """How many questions the other side still works on; 0 when there is no other side."""
        ...


class Case(msgspec.Struct, frozen=True):
    """One guarantee of the port, as a test."""

    name: str
    check: Callable[[Rig], Coroutine[Any, Any, None]]


def cases() -> list[Case]:
    """Every case."""
    return [Case(check.__name__, _timed(check)) for check in _CHECKS]


def _timed(check: Callable[[Rig], Coroutine[Any, Any, None]]) -> Callable[[Rig], Coroutine[Any, Any, None]]:
    async def play(rig: Rig) -> None:
        async with asyncio.timeout(_LONG_S):
            await check(rig)

    return play


async def text_arrives_whole_and_in_pieces(rig: Rig) -> None:
    reply, deltas = await _ask(rig, Act(text="A cat, äußerst klein.", piece=3))
    assert reply.parts == (Text("A cat, äußerst klein."),)
    assert reply.stop == "end"
    assert len(deltas) > 1
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "A cat, äußerst klein."


async def usage_is_what_was_billed(rig: Rig) -> None:
    reply, _ = await _ask(rig, Act(text="Yes.", usage=ActUsage(120, 15, 40)))
    usage = reply.usage
    assert (usage.tokens_in, usage.tokens_out, usage.cached_in) == (120, 15, 40)
    assert not usage.is_estimated


async def usage_that_nobody_tells_is_estimated_and_says_so(rig: Rig) -> None:
    reply, _ = await _ask(rig, Act(text="A whole sentence.", omit_usage=True))
    assert reply.usage.is_estimated
    assert reply.usage.tokens_in > 0
    assert reply.usage.tokens_out > 0


async def parallel_tool_calls_keep_their_order_and_have_ids_of_their_own(rig: Rig) -> None:
    reply, _ = await _ask(rig, Act(text="I look.", tool_calls=TWO_CALLS, piece=2))
    calls = [part for part in reply.parts if isinstance(part, ToolCall)]
    assert reply.stop == "tool_call"
    assert [(call.name, msgspec.json.decode(call.args)) for call in calls] == [
        ("look", {"x": "first"}),
        ("look", {"x": "second"}),
    ]
    assert len({call.id for call in calls if call.id}) == 2


async def an_answer_that_was_cut_off_says_so(rig: Rig) -> None:
    reply, _ = await _ask(rig, Act(text="And then", stop="length"))
    assert (reply.parts, reply.stop) == ((Text("And then"),), "length")


async def a_streamed_answer_is_the_same_as_a_whole_one(rig: Rig) -> None:
    act = Act(text="I look twice.", tool_calls=TWO_CALLS, usage=ActUsage(7, 3))
    streamed, _ = await _ask(rig, act, stream=True)
    whole, _ = await _ask(rig, act, stream=False)
    assert streamed == whole


async def the_same_question_gets_the_same_answer(rig: Rig) -> None:
    async with rig.open(Act(text="Always this.", usage=ActUsage(7, 3))) as model:
        first = await model.ask(REQUEST, lambda delta: None)
        assert await model.ask(REQUEST, lambda delta: None) == first


async def deltas_carry_the_number_of_the_try(rig: Rig) -> None:
    _, deltas = await _ask(rig, Act(text="Third time lucky."), request=msgspec.structs.replace(REQUEST, attempt=3))
    assert {delta.attempt for delta in deltas} == {3}


async def the_name_of_what_answered_is_told(rig: Rig) -> None:
    reply, _ = await _ask(rig, Act(text="It is I."))
    assert reply.model == "m1"


async def failures_are_told_apart(rig: Rig) -> None:
    for kind in ("auth", "rate_limit", "server", "overflow"):
        error = await _fail(rig, Fails(kind))
        assert error.kind == kind, error.record()
        assert error.message


async def the_wait_that_a_provider_asks_for_is_passed_on(rig: Rig) -> None:
    assert (await _fail(rig, Fails("rate_limit", 7.0))).retry_after_s == 7.0


async def a_question_that_is_cancelled_is_let_go_on_both_sides(rig: Rig) -> None:
    async with rig.open(Act(text="It goes on", hang=True)) as model, asyncio.TaskGroup() as group:
        heard = asyncio.Event()
        asking = group.create_task(model.ask(REQUEST, lambda delta: heard.set()))
        await heard.wait()
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        while await rig.open_calls():  # noqa: ASYNC110 - the other side may be another process
            await asyncio.sleep(0.01)


async def many_questions_at_once_get_their_own_answers(rig: Rig) -> None:
    async with rig.open(Act(text="For each.", usage=ActUsage(7, 3))) as model, asyncio.TaskGroup() as group:
        asked = [group.create_task(model.ask(REQUEST, lambda delta: None)) for _ in range(20)]
    assert {task.result().parts for task in asked} == {(Text("For each."),)}


async def closing_twice_is_as_good_as_once(rig: Rig) -> None:
    async with rig.open(Act(text="Bye.")) as model:
        await model.ask(REQUEST, lambda delta: None)
        await model.close()
        await model.close()


async def _ask(
    rig: Rig, answer: Act, *, stream: bool = True, request: Request = REQUEST
) -> tuple[Reply, Sequence[Delta]]:
    deltas: list[Delta] = []
    async with rig.open(answer, stream=stream) as model:
        return await model.ask(request, deltas.append), deltas


async def _fail(rig: Rig, answer: Fails) -> ModelError:
    async with rig.open(answer) as model:
        try:
            reply = await model.ask(REQUEST, lambda delta: None)
        except ModelError as error:
            return error
    raise AssertionError(f"it answered: {reply}")


_CHECKS: Final = (
    text_arrives_whole_and_in_pieces,
    usage_is_what_was_billed,
    usage_that_nobody_tells_is_estimated_and_says_so,
    parallel_tool_calls_keep_their_order_and_have_ids_of_their_own,
    an_answer_that_was_cut_off_says_so,
    a_streamed_answer_is_the_same_as_a_whole_one,
    the_same_question_gets_the_same_answer,
    deltas_carry_the_number_of_the_try,
    the_name_of_what_answered_is_told,
    failures_are_told_apart,
    the_wait_that_a_provider_asks_for_is_passed_on,
    a_question_that_is_cancelled_is_let_go_on_both_sides,
    many_questions_at_once_get_their_own_answers,
    closing_twice_is_as_good_as_once,
)
