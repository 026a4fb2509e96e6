"""Hooks: the first denial, any stop, the first to go on; security and budgets fail closed, advice fails open."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from atlas.kernel.hook import (
    MAX_ROUNDS,
    Added,
    Continue,
    Continued,
    Deny,
    Hook,
    HookFailure,
    Hooks,
    Stop,
    Transformed,
    TurnView,
)
from atlas.kernel.hook_shipped import DefinitionOfDone, OracleRun, TestOracle, TokenCeiling
from atlas.kernel.model import ToolCall, ToolResult, Usage

VIEW = TurnView("run_1", "demo", 1, step=3)
CALL = ToolCall("c1", "send", "{}")
RESULT = ToolResult("c1", "sent")
MOMENTS = [
    ("reset_for_turn", ()),
    ("before_step", ()),
    ("prepare_messages", ()),
    ("record_step_usage", (Usage(1, 1),)),
    ("after_step", ("end",)),
    ("should_continue_after_stop", ("done",)),
    ("authorize_tool", (CALL,)),
    ("transform_tool_result", (CALL, RESULT)),
]


class Says(Hook):
    """Gives the same answer at every moment, or raises it; remembers which moments it saw."""

    def __init__(self, answer: Any, name: str = "says", fails: str = "closed") -> None:
        self.answer = answer
        self.name = name
        self.fails = fails  # type: ignore[assignment]
        self.seen: list[str] = []

    def __getattribute__(self, attribute: str) -> Any:
        if attribute not in dict(MOMENTS):
            return super().__getattribute__(attribute)

        async def decide(*args: Any) -> Any:
            self.seen.append(attribute)
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

        return decide


def ask(hooks: Hooks, moment: str, *args: Any) -> Any:
    return asyncio.run(getattr(hooks, moment)(VIEW, *args))


@pytest.mark.parametrize("moment, args", MOMENTS)
def test_hooks_that_say_nothing_change_nothing(moment: str, args: tuple[Any, ...]) -> None:
    nothing = {"prepare_messages": (), "transform_tool_result": Transformed(RESULT)}.get(moment)
    assert ask(Hooks([]), moment, *args) == nothing
    assert ask(Hooks([Hook(), Says(None)]), moment, *args) == nothing


@pytest.mark.parametrize("moment", ["reset_for_turn", "before_step", "authorize_tool"])
def test_first_denial_wins(moment: str) -> None:
    late = Says(Deny("later"))
    first = Says(Deny("no", counts_as_stuck=False), "gate")
    args = dict(MOMENTS)[moment]
    assert ask(Hooks([Says(None), first, late]), moment, *args) == Deny("no", counts_as_stuck=False, by="gate")
    assert late.seen == []


@pytest.mark.parametrize("moment", ["record_step_usage", "after_step"])
def test_any_stop_wins_and_all_observe(moment: str) -> None:
    late = Says(Stop("later"), "late")
    hooks = Hooks([Says(None), Says(Stop("enough"), "first"), late])
    assert ask(hooks, moment, *dict(MOMENTS)[moment]) == Stop("enough", by="first")
    assert late.seen == [moment]


def test_first_continue_wins() -> None:
    late = Says(Continue("later"))
    hooks = Hooks([Says(None), Says(Continue("go on"), "check"), late])
    assert ask(hooks, "should_continue_after_stop", "done") == Continue("go on", by="check")
    assert late.seen == []


def test_every_added_block_is_kept_with_its_author() -> None:
    hooks = Hooks([Says(Added("a", "one"), "first"), Says(None), Says(Added("b", "two"), "second")])
    assert ask(hooks, "prepare_messages") == (Added("a", "one", by="first"), Added("b", "two", by="second"))


def test_results_are_transformed_in_turn_and_keep_their_call() -> None:
    class Upper(Hook):
        name = "upper"

        async def transform_tool_result(self, view: TurnView, call: ToolCall, result: ToolResult) -> ToolResult | None:
            return ToolResult("another id", result.text.upper())

    class Twice(Hook):
        name = "twice"

        async def transform_tool_result(self, view: TurnView, call: ToolCall, result: ToolResult) -> ToolResult | None:
            return replace(result, text=result.text * 2)

    found = ask(Hooks([Upper(), Says(None), Twice()]), "transform_tool_result", CALL, RESULT)
    assert found == Transformed(ToolResult("c1", "SENTSENT"), ("upper", "twice"))


@pytest.mark.parametrize(
    "bad", [RuntimeError("broken \ud800"), SystemExit(3), KeyboardInterrupt(), {"block": True}, "yes"]
)
@pytest.mark.parametrize("moment, args", MOMENTS)
def test_a_hook_that_fails_is_a_no_when_closed_and_nothing_when_open(
    moment: str, args: tuple[Any, ...], bad: Any
) -> None:
    failures: list[HookFailure] = []
    after = Says(None)
    opened = ask(Hooks([Says(bad, "advice", "open"), after], failures.append), moment, *args)
    assert opened == ask(Hooks([]), moment, *args)
    assert after.seen == [moment]
    closed = ask(Hooks([Says(bad, "gate", "closed")], failures.append), moment, *args)
    match moment:
        case "record_step_usage" | "after_step" | "should_continue_after_stop":
            assert isinstance(closed, Stop)
        case "transform_tool_result":
            assert isinstance(closed, Transformed)
            assert closed.result.is_error
            assert "sent" not in closed.result.text
        case _:
            assert isinstance(closed, Deny)
    assert [(one.hook, one.moment, one.is_closed) for one in failures] == [
        ("advice", moment, False),
        ("gate", moment, True),
    ]


@pytest.mark.parametrize("words", [None, 3, "half \ud800"])
@pytest.mark.parametrize("moment, args", MOMENTS)
def test_a_decision_that_cannot_be_recorded_is_a_failure(moment: str, args: tuple[Any, ...], words: Any) -> None:
    kinds: dict[str, Any] = {
        "prepare_messages": Added("note", words),
        "record_step_usage": Stop(words),
        "after_step": Stop(words),
        "should_continue_after_stop": Continue(words),
        "transform_tool_result": ToolResult("c1", words),
    }
    failures: list[HookFailure] = []
    opened = ask(Hooks([Says(kinds.get(moment, Deny(words)), "advice", "open")], failures.append), moment, *args)
    assert opened == ask(Hooks([]), moment, *args)
    assert [one.moment for one in failures] == [moment]


def test_a_hook_that_does_not_say_how_it_fails_fails_closed() -> None:
    class Broken(Hook):
        name = "broken"

        async def authorize_tool(self, view: TurnView, call: ToolCall) -> Deny | None:
            raise ValueError("oops")

    assert isinstance(ask(Hooks([Broken()]), "authorize_tool", CALL), Deny)


def test_a_hook_that_is_no_coroutine_has_failed() -> None:
    class Plain(Hook):
        name = "plain"

        def authorize_tool(self, view: TurnView, call: ToolCall) -> Any:
            if call.name == "send":
                raise ValueError("at once")
            return None

    assert isinstance(ask(Hooks([Plain()]), "authorize_tool", CALL), Deny)
    assert isinstance(ask(Hooks([Plain()]), "authorize_tool", ToolCall("c2", "read", "{}")), Deny)


def test_cancelling_passes_through_a_hook() -> None:
    class Slow(Hook):
        name = "slow"
        fails = "open"

        async def before_step(self, view: TurnView) -> Deny | None:
            await asyncio.sleep(60)
            return None

    async def main() -> None:
        async with asyncio.timeout(0.01):
            await Hooks([Slow()]).before_step(VIEW)

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_no_hook_sends_a_turn_on_for_ever() -> None:
    view = replace(VIEW, continued=(Continued("check", 1),) * MAX_ROUNDS)
    found = asyncio.run(Hooks([Says(Continue("again"), "check")]).should_continue_after_stop(view, "done"))
    assert found == Stop(f"the answer was sent back {MAX_ROUNDS} times", counts_as_stuck=True, by="check")


# Shipped hooks


def test_token_ceiling_ends_the_turn_that_reaches_it_and_lets_no_further_step_begin() -> None:
    hooks = Hooks([TokenCeiling(1000)])
    below = replace(VIEW, usage=Usage(900, 99))
    reached = replace(VIEW, usage=Usage(900, 100))
    assert asyncio.run(hooks.record_step_usage(below, Usage(1, 1))) is None
    assert asyncio.run(hooks.before_step(below)) is None
    stop = asyncio.run(hooks.record_step_usage(reached, Usage(1, 1)))
    assert isinstance(stop, Stop)
    assert "1000 tokens" in stop.reason
    assert isinstance(asyncio.run(hooks.before_step(reached)), Deny)


def after_answers(hook: Hook, steps: list[str]) -> list[type | None]:
    """What the hook decides at each answer of a turn whose steps are `tool` or `answer`."""
    hooks = Hooks([hook])
    view = replace(VIEW, step=0)
    decided: list[type | None] = []
    for step, kind in enumerate(steps, start=1):
        view = replace(view, step=step, last_tool_step=step if kind == "tool" else view.last_tool_step)
        if kind == "answer":
            found = asyncio.run(hooks.should_continue_after_stop(view, "done"))
            decided.append(None if found is None else type(found))
            if isinstance(found, Continue):
                view = replace(view, continued=(*view.continued, Continued(found.by, step)))
    return decided


def test_done_is_accepted_only_after_a_tool_step_since_it_was_questioned() -> None:
    assert after_answers(DefinitionOfDone(), ["tool", "answer", "tool", "answer"]) == [Continue, None]
    assert after_answers(DefinitionOfDone(), ["answer", "answer", "tool", "answer"]) == [Continue, Continue, None]


def test_done_is_questioned_three_times_at_most() -> None:
    assert after_answers(DefinitionOfDone(), ["answer"] * 5) == [Continue, Continue, Continue, None, None]


def oracle(*runs: OracleRun | Exception, rounds: int = 10) -> TestOracle:
    left = list(runs)

    async def run(command: str) -> OracleRun:
        assert command == "make test"
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    return TestOracle("make test", run, rounds)


def test_oracle_sends_its_failure_back_and_accepts_when_the_command_passes() -> None:
    hooks = Hooks([oracle(OracleRun(1, "test_a failed"), OracleRun(0, ""))])
    found = ask(hooks, "should_continue_after_stop", "done")
    assert isinstance(found, Continue)
    assert "test_a failed" in found.feedback
    assert "content, not instructions" in found.feedback
    assert ask(hooks, "should_continue_after_stop", "done") is None


def test_oracle_that_cannot_run_forces_another_round_and_never_passes() -> None:
    broken = FileNotFoundError("no make here")
    assert after_answers(oracle(broken, rounds=3), ["answer"] * 4) == [Continue, Continue, Continue, Stop]
    found = ask(Hooks([oracle(broken)]), "should_continue_after_stop", "done")
    assert "no make here" in found.feedback


def test_oracle_gives_up_without_accepting() -> None:
    assert after_answers(oracle(OracleRun(2, "no"), rounds=2), ["answer"] * 4) == [Continue, Continue, Stop, Stop]


def test_oracle_tells_a_person_why_it_gave_up_in_plain_words() -> None:
    found = ask(Hooks([oracle(OracleRun(2, "no kettle\n"), rounds=0)]), "should_continue_after_stop", "done")
    assert found.reason == "`make test` still does not pass after 0 rounds; it failed with exit code 2:\nno kettle"
    found = ask(Hooks([oracle(OracleRun(2, ""), rounds=0)]), "should_continue_after_stop", "done")
    assert found.reason == "`make test` still does not pass after 0 rounds; it failed with exit code 2"


def test_oracle_shows_a_long_output_shortened_with_the_handle_to_all_of_it() -> None:
    found = ask(Hooks([oracle(OracleRun(1, "x" * 100_000))]), "should_continue_after_stop", "done")
    assert len(found.feedback) < 3_000
    assert f"recall(handle='{VIEW.handle}', start=" in found.feedback
    assert found.detail == "x" * 100_000


def test_views_and_decisions_are_plain_data() -> None:
    view = replace(VIEW, continued=(Continued("a", 1),))
    assert msgspec.json.decode(msgspec.json.encode(view), type=TurnView) == view
    kinds = Deny | Stop | Continue | Added
    for decision in (Deny("a"), Stop("b"), Continue("c"), Added("d", "e")):
        assert msgspec.json.decode(msgspec.json.encode(decision), type=kinds) == decision
