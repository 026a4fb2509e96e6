"""The decisions of a run, as tables: what the state is, what follows."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from msgspec.structs import replace

from atlas.kernel.code import CallMade, Finished
from atlas.kernel.decide import (
    MAX_FRUITLESS_ATTEMPTS,
    RECALL_PATIENCE_US,
    CancelCode,
    Doubt,
    End,
    Park,
    Retry,
    StartCode,
    WakeAt,
    decide,
    is_under_way,
)
from atlas.kernel.errors import AtlasError, LimitRefused, PolicyRefused, RunFailed
from atlas.kernel.event import (
    AttemptStarted,
    CancelRequested,
    EffectAnswered,
    EffectAsked,
    EffectDoubted,
    EffectIntended,
    EffectReceived,
    EffectResolved,
    Limits,
    Payload,
    RunCreated,
    RunEnded,
    RunParked,
)
from atlas.kernel.gate import Ask, Examine, Intend, Refuse, Reject, Rejoin, Repeat
from atlas.kernel.state import State, apply, initial

NOW = 1_000_000_000


def created(**changes: object) -> RunCreated:
    base = RunCreated(
        agent="demo", version="1.0.0", input=Payload(), snapshot="s", session_id="ses", seed="00", root_run_id="run_1"
    )
    return replace(base, **changes)


def running(state: State | None = None, **changes: object) -> State:
    fresh = state or initial("run_1", "owner", created(**changes))
    started = apply(fresh, AttemptStarted(1, "me"), NOW)
    return replace(started, live=replace(started.live, has_code=True))


def call(effect: str = "step:a:1", **changes: object) -> CallMade:
    base = CallMade(1, effect, "step", "a", msgspec.Raw(b"[]"), "hash", "reversible_write")
    return replace(base, **changes)


def asking(state: State, *calls: CallMade) -> State:
    return replace(state, live=replace(state.live, calls={each.id: each for each in calls}))


def intent(effect: str = "step:a:1", **changes: object) -> EffectIntended:
    base = EffectIntended(effect, "step", "a", Payload(), "hash", "reversible_write")
    return replace(base, **changes)


def acts(state: State, now: int = NOW) -> list[object]:
    return [command for command in decide(state, now) if not isinstance(command, WakeAt)]


def only(state: State, now: int = NOW) -> object:
    commands = acts(state, now)
    assert len(commands) == 1, commands
    return commands[0]


def test_a_fresh_run_starts_its_code() -> None:
    assert isinstance(only(initial("run_1", "owner", created())), StartCode)


def test_an_ended_run_does_nothing() -> None:
    state = apply(running(), RunEnded("succeeded"), NOW)
    assert decide(state, NOW) == ()


@pytest.mark.parametrize(
    "effect_class, expected",
    [("read_only", Intend), ("reversible_write", Intend), ("external_side_effect", Ask), ("high_risk", Refuse)],
)
def test_the_effect_class_decides_when_no_rule_speaks(effect_class: str, expected: type) -> None:
    assert isinstance(only(asking(running(), call(effect_class=effect_class))), expected)


def test_an_unattended_run_refuses_instead_of_asking() -> None:
    state = asking(running(unattended=True), call(effect_class="external_side_effect"))
    command = only(state)
    assert isinstance(command, Refuse)
    assert command.error.code == "approval_required"


def test_an_approval_is_bound_to_the_arguments() -> None:
    asked = EffectAsked("step:a:1", "step", "a", Payload(), "hash", "external_side_effect", "why")
    answered = EffectAnswered("step:a:1", "hash", True, "ann", signal_id="sig_1")
    state = apply(apply(running(), asked, NOW), answered, NOW)
    allowed = only(asking(state, call(effect_class="external_side_effect")))
    assert isinstance(allowed, Intend)
    assert allowed.answered_by == "sig_1"
    other = only(asking(state, call(effect_class="external_side_effect", args_hash="changed")))
    assert isinstance(other, Ask)


def test_an_approval_is_used_once() -> None:
    answered = EffectAnswered("step:a:1", "hash", True, "ann")
    state = apply(apply(running(), answered, NOW), intent(effect_class="external_side_effect"), NOW)
    assert state.answers == {}


def test_a_denial_reaches_the_code_with_its_reason() -> None:
    answered = EffectAnswered("step:a:1", "hash", False, "ann", "too expensive")
    command = only(asking(apply(running(), answered, NOW), call(effect_class="external_side_effect")))
    assert isinstance(command, Refuse)
    assert "too expensive" in command.error.message


def test_a_run_that_only_waits_for_a_person_parks() -> None:
    asked = EffectAsked("step:a:1", "step", "a", Payload(), "hash", "external_side_effect", "why")
    state = asking(apply(running(), asked, NOW), call(effect_class="external_side_effect"))
    assert only(state) == Park("person")


def test_a_run_does_not_park_while_a_step_is_performing() -> None:
    asked = EffectAsked("step:a:1", "step", "a", Payload(), "hash", "external_side_effect", "why")
    state = asking(apply(running(), asked, NOW), call(effect_class="external_side_effect"))
    busy = replace(state, live=replace(state.live, performing={"step:b:1": 2}))
    assert acts(busy) == []


def crashed(effect: EffectIntended) -> State:
    """As a new owner finds a run whose process died after this intent."""
    state = apply(apply(initial("run_1", "owner", created()), AttemptStarted(1, "me"), NOW), effect, NOW)
    return state


@pytest.mark.parametrize(
    "effect",
    [
        intent(effect_class="read_only"),
        intent(idempotent=True),
        intent(can_probe=True),
        intent(kind="spawn", child_run_id="run_2"),
    ],
)
def test_recoverable_intents_let_the_code_run_again(effect: EffectIntended) -> None:
    assert isinstance(only(crashed(effect)), StartCode)


@pytest.mark.parametrize("effect_class", ["reversible_write", "external_side_effect"])
def test_an_intent_without_receipt_is_in_doubt(effect_class: str) -> None:
    commands = acts(crashed(intent(effect_class=effect_class)))
    assert [type(command) for command in commands] == [Doubt, Park]
    assert commands[1] == Park("doubt")


def test_a_received_effect_is_never_in_doubt() -> None:
    state = apply(crashed(intent()), EffectReceived("step:a:1"), NOW)
    assert isinstance(only(state), StartCode)


def test_a_doubt_is_raised_once() -> None:
    state = apply(crashed(intent()), EffectDoubted("step:a:1", "why"), NOW)
    assert only(state) == Park("doubt")


@pytest.mark.parametrize(
    "effect, expected",
    [
        (intent(effect_class="read_only"), Repeat),
        (intent(idempotent=True), Repeat),
        (intent(can_probe=True), Examine),
        (intent(idempotent=True, can_probe=True), Repeat),
        (intent(kind="spawn", child_run_id="run_2"), Rejoin),
    ],
)
def test_an_open_intent_is_taken_up_again(effect: EffectIntended, expected: type) -> None:
    assert isinstance(only(asking(running(crashed(effect)), call())), expected)


def test_an_open_intent_with_other_arguments_is_a_mismatch() -> None:
    command = only(asking(running(crashed(intent(idempotent=True))), call(args_hash="other")))
    assert isinstance(command, Reject)
    assert command.error.code == "replay_mismatch"


def test_what_a_person_called_not_done_is_performed() -> None:
    state = apply(crashed(intent()), EffectDoubted("step:a:1", "why"), NOW)
    state = apply(state, EffectResolved("step:a:1", "not_done", "ann"), NOW)
    assert isinstance(only(state), StartCode)
    assert isinstance(only(asking(running(state), call())), Repeat)


def test_what_a_person_abandoned_ends_the_run() -> None:
    state = apply(crashed(intent()), EffectDoubted("step:a:1", "why"), NOW)
    state = apply(state, EffectResolved("step:a:1", "abandon", "ann"), NOW)
    command = only(state)
    assert isinstance(command, End)
    assert command.outcome == "failed"


def test_new_calls_wait_until_recorded_ones_were_asked_again() -> None:
    state = asking(running(), call())
    waiting = replace(state, live=replace(state.live, unclaimed=1, quiet_since_us=NOW))
    assert acts(waiting) == []
    wake = decide(waiting, NOW)[-1]
    assert isinstance(wake, WakeAt)
    late = only(waiting, NOW + RECALL_PATIENCE_US)
    assert isinstance(late, End)
    assert late.error is not None
    assert late.error.code == "replay_mismatch"


def test_code_that_skips_recorded_effects_cannot_succeed() -> None:
    state = running()
    done = replace(state, live=replace(state.live, unclaimed=2, finished=Finished()))
    command = only(done)
    assert isinstance(command, End)
    assert command.outcome == "failed"


def test_spawning_needs_permission_depth_and_width() -> None:
    spawn = call("spawn:b:1", kind="spawn", name="b")
    refused = only(asking(running(), spawn))
    assert isinstance(refused, Refuse)
    assert refused.error.code == "spawn_not_allowed"
    deep = only(asking(running(may_spawn=True, depth=5, limits=Limits(depth=5)), spawn))
    assert isinstance(deep, Refuse)
    assert deep.error.code == "max_spawn_depth"
    wide = asking(
        running(may_spawn=True, limits=Limits(children=2)),
        *(call(f"spawn:b:{n}", id=n, kind="spawn", name="b") for n in range(4)),
    )
    assert [type(command) for command in acts(wide)] == [Intend, Intend, Refuse, Refuse]


def test_children_that_are_being_started_count_as_width() -> None:
    state = asking(running(may_spawn=True, limits=Limits(children=1)), call("spawn:b:2", kind="spawn", name="b"))
    starting = replace(state, live=replace(state.live, awaiting={"spawn:b:1": 9}))
    assert isinstance(only(starting), Refuse)


def test_a_cancelled_run_takes_no_new_intents_and_has_a_grace_period() -> None:
    state = asking(apply(running(), CancelRequested("ann"), NOW), call())
    commands = acts(state)
    assert [type(command) for command in commands] == [Reject, CancelCode]
    told = replace(state, live=replace(state.live, calls={}, cancel_sent_us=NOW))
    assert acts(told, NOW + 4_999_999) == []
    ended = only(told, NOW + 5_000_000)
    assert isinstance(ended, End)
    assert ended.outcome == "cancelled"


def test_a_cancelled_run_without_code_ends_at_once() -> None:
    state = apply(initial("run_1", "owner", created()), CancelRequested("ann"), NOW)
    command = only(state)
    assert isinstance(command, End)
    assert command.outcome == "cancelled"


def test_active_time_ends_a_run_and_waiting_for_children_does_not_count() -> None:
    state = running(limits=Limits(timeout_s=10, tree_timeout_s=100))
    assert acts(state, NOW + 9_999_999) == []
    late = only(state, NOW + 10_000_000)
    assert isinstance(late, End)
    assert late.error is not None
    assert late.error.code == "timeout"
    waiting = apply(state, intent("spawn:b:1", kind="spawn", child_run_id="run_2"), NOW)
    assert acts(waiting, NOW + 50_000_000) == []
    tree = only(waiting, NOW + 100_000_000)
    assert isinstance(tree, End)
    assert tree.error is not None
    assert tree.error.code == "tree_timeout"


def test_time_between_attempts_counts_for_nobody() -> None:
    state = running(limits=Limits(timeout_s=10))
    parked = apply(state, RunParked("interrupted"), NOW + 4_000_000)
    again = apply(parked, AttemptStarted(2, "other"), NOW + 90_000_000)
    again = replace(again, live=replace(again.live, has_code=True))
    assert acts(again, NOW + 95_999_999) == []
    assert isinstance(only(again, NOW + 96_000_000), End)
    after_crash = apply(state, AttemptStarted(2, "other"), NOW + 90_000_000)
    assert after_crash.active_us == 0


def test_interrupting_waits_for_the_step_under_way() -> None:
    state = running()
    busy = replace(state, live=replace(state.live, is_stopping=True, performing={"step:a:1": 1}))
    assert decide(busy, NOW) == ()
    assert only(replace(state, live=replace(state.live, is_stopping=True))) == Park("interrupted")


def test_a_lost_process_is_tried_again_until_it_makes_no_progress() -> None:
    state = running()
    assert only(replace(state, live=replace(state.live, is_lost=True))) == Retry()
    for number in range(MAX_FRUITLESS_ATTEMPTS):
        state = apply(state, AttemptStarted(number + 2, "me", is_retry=True), NOW)
    ended = only(replace(state, live=replace(state.live, has_code=False)))
    assert isinstance(ended, End)
    assert ended.error is not None
    assert ended.error.code == "worker_lost"
    progressed = apply(state, EffectReceived("x"), NOW)
    assert isinstance(only(replace(progressed, live=replace(progressed.live, has_code=False))), StartCode)


@pytest.mark.parametrize(
    "error, outcome",
    [
        (RunFailed("no", code="agent_failed"), "failed"),
        (LimitRefused("no", code="max_spawn_depth"), "refused"),
        (PolicyRefused("no"), "refused"),
    ],
)
def test_an_uncaught_refusal_is_refused_and_any_other_error_failed(error: AtlasError, outcome: str) -> None:
    state = running()
    command = only(replace(state, live=replace(state.live, finished=Finished(error=error.record()))))
    assert isinstance(command, End)
    assert command.outcome == outcome


def test_deciding_twice_gives_the_same_commands() -> None:
    state = asking(running(), call(), call("step:c:1", id=2, effect_class="external_side_effect"))
    assert decide(state, NOW) == decide(state, NOW)


def test_of_a_run_that_is_under_way_nothing_is_decided_but_when_to_look_again() -> None:
    asked = EffectAsked("step:q:1", "step", "q", Payload(), "hash", "external_side_effect", "why")
    facts: list[dict[str, object]] = [
        {"asked": {"step:q:1": asked}},
        {"doubted": {"step:d:1": "lost"}},
        {"cancel": CancelRequested("owner", "enough")},
        {"abandoned": "step:d:1"},
        {"ended": RunEnded("succeeded")},
    ]
    seen: list[dict[str, object]] = [
        {"has_code": False},
        {"finished": Finished()},
        {"is_lost": True},
        {"is_stopping": True},
        {"calls": {1: call()}},
        {"awaiting": {"spawn:a:1": 3}},
        {"performing": {"step:b:1": 2}},
        {"unclaimed": 2},
    ]
    counted = 0
    for chosen in itertools.product([False, True], repeat=len(facts) + len(seen)):
        state = running()
        picked = [change for change, is_chosen in zip((*facts, *seen), chosen, strict=True) if is_chosen]
        for change in picked:
            if change in facts:
                state = replace(state, **change)
            else:
                state = replace(state, live=replace(state.live, **change))
        if is_under_way(state):
            counted += 1
            (command,) = decide(state, NOW)
            assert isinstance(command, WakeAt)
    assert counted == 4, "with and without a step that is performed, and recorded effects that are not asked for yet"
