"""Traces: what became of every effect, when a run was in somebody's hands, and the shape the spec fixes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from atlas.control.trace import effects_of, fold, read_trace, timestamp
from atlas.kernel.errors import ErrorRecord
from atlas.kernel.event import (
    NO_SPEND,
    AttemptStarted,
    Body,
    EffectAnswered,
    EffectAsked,
    EffectDoubted,
    EffectIntended,
    EffectReceived,
    EffectRefused,
    EffectResolved,
    Event,
    Logged,
    Payload,
    RunCreated,
    RunEnded,
    RunParked,
    Spend,
    decode_body,
    draft,
)
from atlas.kernel.run import RunPage, RunQuery, RunRow, RunState

S = 1_000_000
T0 = 1_741_615_200 * S  # 2025-03-10T14:00:00Z


def event(run_id: str, seq: int, at_s: float, body: Body) -> Event:
    made = draft(body, T0 + int(at_s * S), "owner")
    return Event(run_id, seq, seq, made.time_us, made.kind, 1, "owner", b"d", b"p", b"h", b"salt", made.body)


def events_of(run_id: str, *facts: tuple[float, Body]) -> list[Event]:
    return [event(run_id, seq, at_s, body) for seq, (at_s, body) in enumerate(facts, 1)]


def pairs(events: Sequence[Event]) -> list[tuple[Event, Body]]:
    return [(each, decode_body(each.kind, each.version, each.body)) for each in events]


def row(
    run_id: str,
    state: RunState = "succeeded",
    *,
    agent: str = "writer",
    parent: str = "",
    root: str = "",
    spend: Spend = NO_SPEND,
    owner: str = "",
    created_s: float = 0,
) -> RunRow:
    return RunRow(
        run_id=run_id,
        session_id="ses_1",
        turn=1,
        agent=agent,
        version="1.0.0",
        snapshot="",
        principal="owner",
        parent_run_id=parent,
        parent_effect="",
        root_run_id=root or run_id,
        depth=1 if parent else 0,
        priority=0,
        place="",
        key="",
        state=state,
        created_us=T0 + int(created_s * S),
        updated_us=T0,
        ended_us=0,
        due_us=0,
        owner=owner,
        generation=1,
        lease_until_us=0,
        head_seq=1,
        head_hash=b"",
        spend=spend,
    )


def created(agent: str = "writer") -> RunCreated:
    return RunCreated(agent, "1.0.0", Payload(), "", "ses_1", "seed")


def intent(effect: str, name: str = "save", child: str = "") -> EffectIntended:
    kind = "spawn" if child else "step"
    return EffectIntended(effect, kind, name, Payload(), "h", "reversible_write", child_run_id=child)


def only_effect(*facts: tuple[float, Body]) -> str:
    [effect] = effects_of(pairs(events_of("run_1", (0, created()), *facts)))
    return effect.status


ASKED = EffectAsked("a", "step", "send", Payload(), "h", "external_side_effect", "default")
REFUSED = EffectRefused("a", "step", "send", "h", "high_risk", "deny", ErrorRecord("policy_refused", "no"))


def test_each_way_an_effect_can_go_has_its_word() -> None:
    assert only_effect((1, intent("a"))) == "running"
    assert only_effect((1, intent("a")), (2, EffectReceived("a"))) == "completed"
    assert only_effect((1, intent("a")), (2, EffectReceived("a", error=ErrorRecord("boom", "no")))) == "failed"
    assert only_effect((1, REFUSED)) == "refused"
    assert only_effect((1, ASKED)) == "waiting"
    assert only_effect((1, ASKED), (2, EffectAnswered("a", "h", True, "owner"))) == "approved"
    assert only_effect((1, ASKED), (2, EffectAnswered("a", "h", False, "owner"))) == "denied"
    assert only_effect((1, intent("a")), (2, EffectDoubted("a", "crash"))) == "in_doubt"
    assert only_effect((1, intent("a")), (2, EffectDoubted("a", "")), (3, EffectResolved("a", "not_done", "x"))) == (
        "running"
    )
    assert only_effect((1, intent("a")), (2, EffectDoubted("a", "")), (3, EffectResolved("a", "abandon", "x"))) == (
        "abandoned"
    )


def test_an_effect_left_open_by_the_end_is_in_doubt_only_when_the_end_says_so() -> None:
    assert only_effect((1, intent("a")), (2, RunEnded("cancelled", unresolved=("a",)))) == "in_doubt"
    assert only_effect((1, intent("a")), (2, RunEnded("cancelled"))) == "cut_off"
    assert only_effect((1, intent("a")), (2, EffectReceived("a")), (3, RunEnded("succeeded"))) == "completed"


def test_a_doubt_that_is_settled_after_the_end_is_never_shown_as_under_way() -> None:
    doubted = ((1, intent("a")), (2, RunEnded("cancelled", unresolved=("a",))))
    assert only_effect(*doubted, (3, EffectResolved("a", "not_done", "x"))) == "cut_off"
    assert only_effect(*doubted, (3, EffectResolved("a", "done", "x"))) == "completed"
    assert only_effect(*doubted, (3, EffectResolved("a", "abandon", "x"))) == "abandoned"


def test_a_receipt_whose_intent_was_erased_is_still_shown() -> None:
    [effect] = effects_of(pairs(events_of("run_1", (1, EffectReceived("a")))))
    assert (effect.name, effect.status, effect.settled_seq) == ("(erased)", "completed", 1)


def family() -> tuple[list[RunRow], dict[str, list[Event]]]:
    """A parent that spawns two children, the second of which fails."""
    parent = events_of(
        "run_p",
        (0, created("parent")),
        (1, AttemptStarted(1, "me")),
        (2, intent("c1", "searcher", "run_c1")),
        (2, intent("c2", "writer", "run_c2")),
        (5, EffectReceived("c1", source="child")),
        (6, EffectReceived("c2", error=ErrorRecord("boom", "no"), source="child")),
        (7, intent("s", "save")),
        (8, EffectReceived("s", duration_us=S // 2)),
        (12, RunEnded("succeeded")),
    )
    first = events_of("run_c1", (2, created("searcher")), (3, AttemptStarted(1, "me")), (5, RunEnded("succeeded")))
    second = events_of("run_c2", (2, created("writer")), (4, AttemptStarted(1, "me")), (6, RunEnded("failed")))
    rows = [
        row("run_p", agent="parent", spend=Spend(3)),
        row("run_c1", agent="searcher", parent="run_p", root="run_p", spend=Spend(0, 150, 800, 2_300), created_s=2),
        row("run_c2", "failed", parent="run_p", root="run_p", spend=Spend(0, 900, 200, 2_000), created_s=2),
    ]
    return rows, {"run_p": parent, "run_c1": first, "run_c2": second}


def test_the_public_shape_is_the_one_that_is_fixed() -> None:
    rows, events = family()
    trace = fold("run_p", rows, events, T0 + 60 * S).trace
    assert msgspec.json.decode(msgspec.json.encode(trace)) == {
        "trace_id": "run_p",
        "chain": "parent",
        "started_at": "2025-03-10T14:00:01.000Z",
        "completed_at": "2025-03-10T14:00:12.000Z",
        "status": "completed",
        "steps": [
            {
                "agent": "parent",
                "model_used": None,
                "tokens_in": 0,
                "tokens_out": 0,
                "latency_ms": 11_000,
                "status": "completed",
            },
            {
                "agent": "searcher",
                "model_used": None,
                "tokens_in": 150,
                "tokens_out": 800,
                "latency_ms": 2_000,
                "status": "completed",
            },
            {
                "agent": "writer",
                "model_used": None,
                "tokens_in": 900,
                "tokens_out": 200,
                "latency_ms": 2_000,
                "status": "failed",
            },
        ],
        "total_tokens": 2050,
        "total_cost_usd": 0.0043,
    }


def test_children_stand_where_their_spawns_were_and_steps_keep_their_own_time() -> None:
    rows, events = family()
    span = fold("run_p", rows, events, T0 + 60 * S).span
    assert [(child.kind, child.name, child.status) for child in span.children] == [
        ("run", "searcher", "completed"),
        ("run", "writer", "failed"),
        ("step", "save", "completed"),
    ]
    save = span.children[-1]
    assert save.active == ((T0 + 7_500_000, T0 + 8 * S),)
    assert (save.created_us, save.ended_us) == (T0 + 7 * S, T0 + 8 * S)


def test_a_question_to_a_tier_is_named_by_the_model_that_answered() -> None:
    asked = EffectIntended("model:1", "model", "fast", Payload(), "h", "read_only")
    events = events_of(
        "run_1",
        (0, created()),
        (1, AttemptStarted(1, "me")),
        (2, asked),
        (3, EffectReceived("model:1", model="demo:one (scripted)")),
        (4, msgspec.structs.replace(asked, effect="model:2")),
    )
    span = fold("run_1", [row("run_1", "running")], {"run_1": events}, T0 + 5 * S).span
    assert [child.name for child in span.children] == ["demo:one (scripted)", "fast"]


def test_the_trace_of_a_child_leaves_its_parent_and_sibling_out() -> None:
    rows, events = family()
    trace = fold("run_c1", rows, events, T0).trace
    assert [step.agent for step in trace.steps] == ["searcher"]
    assert trace.total_tokens == 950


def test_a_run_is_active_only_while_somebody_held_it() -> None:
    crashed_and_parked = events_of(
        "run_1",
        (0, created()),
        (1, AttemptStarted(1, "first")),
        (3, Logged("the last word before the crash")),
        (10, AttemptStarted(2, "second")),
        (11, RunParked("person")),
        (20, AttemptStarted(3, "third")),
        (21, RunEnded("succeeded")),
    )
    span = fold("run_1", [row("run_1")], {"run_1": crashed_and_parked}, T0 + 60 * S).span
    assert [((a - T0) // S, (b - T0) // S) for a, b in span.active] == [(1, 3), (10, 11), (20, 21)]
    assert span.note == "3 attempts"


def test_a_run_that_goes_on_lasts_until_now_and_is_not_completed() -> None:
    events = events_of("run_1", (0, created()), (1, AttemptStarted(1, "me")), (2, intent("a")))
    traced = fold("run_1", [row("run_1", "running", owner="me")], {"run_1": events}, T0 + 9 * S)
    assert traced.trace.completed_at is None
    assert traced.trace.steps[0].latency_ms == 8_000
    assert traced.span.children[0].active == ((T0 + 2 * S, T0 + 9 * S),)


def test_a_queued_run_has_a_trace_too() -> None:
    traced = fold("run_1", [row("run_1", "queued")], {"run_1": events_of("run_1", (0, created()))}, T0 + S)
    assert (traced.trace.status, traced.span.active) == ("queued", ())


def test_erased_events_leave_the_rest_of_the_trace_standing() -> None:
    rows, events = family()
    erased = [msgspec.structs.replace(each, salt=b"", body=b"") if each.seq == 7 else each for each in events["run_p"]]
    span = fold("run_p", rows, {**events, "run_p": erased}, T0).span
    assert [child.name for child in span.children] == ["searcher", "writer", "(erased)"]


def test_times_are_utc_with_milliseconds() -> None:
    assert timestamp(T0 + 7_999) == "2025-03-10T14:00:00.007Z"


class PagedLedger:
    """Gives one row per page."""

    def __init__(self, rows: list[RunRow], events: dict[str, list[Event]]) -> None:
        self.rows_by_age = sorted(rows, key=lambda each: each.run_id, reverse=True)
        self.stored = events
        self.read: list[str] = []

    async def runs(self, query: RunQuery) -> RunPage:
        rest = [each for each in self.rows_by_age if not query.before or each.run_id < query.before]
        return RunPage(tuple(rest[:1]), rest[0].run_id if len(rest) > 1 else "")

    async def events(self, run_id: str) -> list[Event]:
        self.read.append(run_id)
        return self.stored[run_id]


def test_reading_a_trace_walks_every_page_and_reads_only_the_runs_below() -> None:
    rows, events = family()
    ledger = PagedLedger(rows, events)
    traced = asyncio.run(read_trace(ledger, rows[0], T0))  # type: ignore[arg-type]
    assert len(traced.trace.steps) == 3
    below = PagedLedger(rows, events)
    asyncio.run(read_trace(below, rows[1], T0))  # type: ignore[arg-type]
    assert below.read == ["run_c1"]
