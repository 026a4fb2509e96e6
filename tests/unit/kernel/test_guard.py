"""The guard: a model that goes round in circles is stopped after ten calls, one that works never is."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atlas.kernel.event import EffectClass
from atlas.kernel.guard import (
    FAILURES,
    GUESSES,
    LIMIT,
    NOTES,
    REMEMBERED_CALLS,
    REMEMBERED_LINES,
    REMEMBERED_NAMES,
    Allow,
    Answered,
    Blocked,
    Call,
    GuardState,
    Report,
    Verdict,
    advice,
    after,
    after_batch,
    before,
    stuck,
    verdicts,
)
from atlas.kernel.likeness import LINES, same_call, steady, without_echo

World = Callable[[Call], tuple[str, bool]]


class Played:
    """A scripted model's calls against a world, through the guard, until the calls are over or it is stuck."""

    def __init__(self, calls: Iterable[Call], world: World) -> None:
        self.state = GuardState()
        self.count = 0
        self.performed: list[Call] = []
        self.verdicts: list[Verdict] = []
        for call in calls:
            verdict = before(self.state, call)
            self.verdicts.append(verdict)
            if isinstance(verdict, Allow):
                text, is_error = world(call)
                self.performed.append(call)
            else:
                text, is_error = verdict.text, False
            self.state = after(self.state, Report(call, text, is_error, verdict, f"t1.{self.count}"))
            self.count += 1
            if stuck(self.state) is not None:
                break

    @property
    def is_stuck(self) -> bool:
        return stuck(self.state) is not None


def call(tool: str = "look", effect: EffectClass = "read_only", **args: object) -> Call:
    return Call(tool, json.dumps(args), effect)


def edit(**args: object) -> Call:
    return call("edit", "reversible_write", **args)


def says(text: str) -> World:
    return lambda _: (text, False)


def fails(text: str) -> World:
    return lambda _: (text, True)


def counting(template: str = "line {}") -> World:
    """A world whose every answer is new."""
    numbers = itertools.count()
    return lambda _: (template.format(next(numbers)), False)


# Stubborn models end within ten calls without progress, on every axis


def test_same_failing_call_ends_and_is_not_performed_on_and_on() -> None:
    played = Played(itertools.repeat(edit(path="a", old="x")), fails("no such text"))
    assert played.is_stuck
    assert played.count == LIMIT
    assert len(played.performed) == 3
    assert isinstance(played.verdicts[-1], Blocked)


def test_same_failing_read_ends() -> None:
    played = Played(itertools.repeat(call(path="a")), fails("no such file a"))
    assert played.is_stuck
    assert played.count == 1 + LIMIT
    assert len(played.performed) == 3


SPELLINGS = [
    '{"path": "docs/Read Me.md", "start": 1, "deep": {"a": 1, "b": 2}}',
    '{"start":1,"path":"docs/Read Me.md","deep":{"b":2,"a":1}}',
    '{"path": "  docs/Read   Me.md ", "start": 1.0, "deep": {"a": 1, "b": 2}}',
    '{"path": "docs/Read Me.md", "start": "1", "deep": {"a": 1e0, "b": 2}}',
    '{"path": "docs/Read Me.md", "start": 1, "deep": {"a": 1, "b": 2}, "more": null}',
]
PATHS = ["src/Main.py", "SRC/main.PY", "./src//Main.py", "src\\\\main.py", "src/main.py/", " src/main.py"]


@pytest.mark.parametrize("spellings", [SPELLINGS, [f'{{"path": "{path}"}}' for path in PATHS]])
def test_cosmetic_changes_are_the_same_call(spellings: list[str]) -> None:
    assert len({same_call("t", args) for args in spellings}) == 1
    assert same_call("t", spellings[0]) != same_call("u", spellings[0])


@pytest.mark.parametrize(
    "one, other",
    [
        ('{"path": "a"}', '{"path": "b"}'),
        ('{"n": 1}', '{"n": 1.5}'),
        ('{"n": 1}', '{"n": 2}'),
        ('{"text": "Yes"}', '{"text": "yes"}'),
        ('{"text": "a b"}', '{"text": "ab"}'),
        ('{"a": true}', '{"a": 1}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": 1', '{"a": 2'),
        ('{"version": "1.1"}', '{"version": "1.10"}'),
        ('{"id": "1234567890123456789"}', '{"id": "1234567890123456790"}'),
        ('{"id": 1234567890123456789}', '{"id": 1234567890123456790}'),
        ('{"code": "007"}', '{"code": "7"}'),
    ],
)
def test_changes_of_substance_are_another_call(one: str, other: str) -> None:
    assert same_call("t", one) != same_call("t", other)


@pytest.mark.parametrize("effect", ["read_only", "reversible_write"])
def test_cosmetic_changes_of_a_failing_call_end_even_when_the_error_quotes_them(effect: EffectClass) -> None:
    calls = (Call("open", f'{{"path": "{path}"}}', effect) for path in itertools.cycle(PATHS))
    played = Played(calls, lambda one: (f"no such file: {json.loads(one.args)['path']}", True))
    assert played.is_stuck
    assert played.count <= 1 + LIMIT
    assert len(played.performed) <= 4


def test_cosmetic_changes_of_a_read_end_even_when_the_result_quotes_them() -> None:
    calls = (Call("open", f'{{"path": "{path}"}}') for path in itertools.cycle(PATHS))
    played = Played(calls, lambda one: (f"{json.loads(one.args)['path']}, 1 line\nsame words", False))
    assert played.is_stuck
    assert played.count <= 2 + LIMIT


@pytest.mark.parametrize("period", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["reads", "failures", "changes", "toggle"])
def test_cycles_end(period: int, kind: str) -> None:
    last = {"value": -1}

    def world(one: Call) -> tuple[str, bool]:
        number = json.loads(one.args)["n"]
        if kind == "toggle" and one.tool == "look":
            return f"it is {last['value']}", False
        last["value"] = number
        return ("changed", False) if kind in ("changes", "toggle") else (f"answer {number}", kind == "failures")

    effect: EffectClass = "reversible_write" if kind in ("changes", "toggle") else "read_only"
    cycle = [call("set", effect, n=number) for number in range(period)]
    if kind == "toggle":
        cycle = [one for step in cycle for one in (step, call("look", n=0))]
    played = Played(itertools.islice(itertools.cycle(cycle), 200), world)
    assert played.is_stuck
    assert played.count <= len(cycle) + LIMIT


def test_a_read_that_differs_in_the_id_of_its_request_only_ends_though_the_result_quotes_it() -> None:
    calls = (call("search", q="kettle", request_id=f"{n:032x}") for n in itertools.count())
    played = Played(calls, lambda one: (f'{{"request": "{json.loads(one.args)["request_id"]}", "hits": []}}', False))
    assert played.is_stuck
    assert played.count == 1 + LIMIT
    # Each is performed: only the model knows whether it means another thing by another id.
    assert len(played.performed) == played.count


def test_a_change_that_is_made_again_under_another_id_of_its_request_ends() -> None:
    assert (
        Played((edit(text="kettle", idempotency_key=f"k{n}") for n in itertools.count()), says("ok")).count == 1 + LIMIT
    )


def test_calls_about_requests_are_told_apart_by_their_ids() -> None:
    calls = [call("get_request", request_id=f"r{n}") for n in range(60)]
    assert not Played(calls, lambda one: (f"{one.args}: done", False)).is_stuck
    cancels = [call("cancel_request", "reversible_write", request_id=f"r{n}") for n in range(60)]
    assert not Played(cancels, says("ok")).is_stuck


@pytest.mark.parametrize("period", [33, 100, 400])
def test_long_cycles_of_changes_end(period: int) -> None:
    played = Played((edit(text=f"k{n % period}") for n in itertools.count()), says("ok"))
    assert played.count == period + LIMIT


def test_same_read_is_answered_from_the_record_with_advice_and_ends() -> None:
    played = Played(itertools.repeat(call(path="a")), says("the words of the file"))
    assert played.is_stuck
    assert played.count == 1 + LIMIT
    assert len(played.performed) == 4  # twice, and now and then a new look
    answer = played.verdicts[2]
    assert isinstance(answer, Answered)
    assert "the words of the file" in answer.text
    assert "recall(handle='t1.1')" in answer.text
    assert "wait" in answer.text


def test_different_calls_with_the_same_output_end() -> None:
    played = Played((call(query=f"try {n}") for n in range(100)), says("No results."))
    assert played.is_stuck
    assert played.count == 1 + LIMIT


def test_guesses_that_fail_alike_end() -> None:
    played = Played((call(path=f"dir/f{n}.txt") for n in range(100)), lambda c: (f"not found: {c.args[10:-2]}", True))
    assert played.is_stuck
    assert played.count == 1 + LIMIT


def test_failed_changes_end_whatever_they_say() -> None:
    played = Played((edit(old=f"text {n}") for n in range(100)), lambda c: (f"line {c.args} differs", True))
    assert played.is_stuck
    assert played.count == LIMIT


def test_failed_changes_end_even_with_new_reads_between_them() -> None:
    news = counting()
    calls = (one for n in range(100) for one in (edit(old=f"text {n}"), call(start=n)))
    played = Played(calls, lambda c: (f"cannot apply {c.args}", True) if c.tool == "edit" else news(c))
    found = stuck(played.state)
    assert found is not None
    assert found.axis == "failed_changes"
    assert played.count < 2 * LIMIT


def test_reading_the_same_lines_in_other_pieces_brings_nothing_new() -> None:
    lines = [f"line {n}" for n in range(40)]

    def world(one: Call) -> tuple[str, bool]:
        start = json.loads(one.args)["start"]
        return "\n".join(lines[start : start + 10 if start else 40]), False

    played = Played((call(start=n) for n in range(100)), world)
    assert played.is_stuck
    assert played.count == 1 + LIMIT


def test_reading_on_in_what_was_shown_in_part_only_survives() -> None:
    """A model is shown the ends of a long result; it has not seen the lines between them."""
    lines = [f"paragraph {n} {'word ' * 60}" for n in range(100)]

    def world(one: Call) -> tuple[str, bool]:
        asked = json.loads(one.args)
        first, count = asked.get("start", 1), asked.get("lines", 100)
        return f"plan.md, from {first}\n" + "\n".join(lines[first - 1 :][:count]), False

    whole = call("read_file", path="plan.md")
    pages = [call("read_file", path="plan.md", start=first, lines=5) for first in range(1, 100, 5)]
    assert Played([whole, *pages], world).count == 1 + len(pages)
    assert Played([whole, *pages * 2], world).count <= 1 + len(pages) + LIMIT
    assert Played(itertools.repeat(whole), world).count == 1 + LIMIT


def test_waiting_on_and_on_ends_and_waiting_no_time_is_no_waiting() -> None:
    played = Played(itertools.repeat(call("wait", seconds=5)), says("waited"))
    assert played.is_stuck
    assert played.count == 1 + LIMIT
    calls = itertools.cycle([call("wait", seconds=0), call(path="a")])
    assert Played(calls, says("same")).count <= 2 + LIMIT


def test_a_refusal_the_model_keeps_asking_for_ends_and_one_that_does_not_count_never_does() -> None:
    state = GuardState()
    for _ in range(50):
        state = after(state, Report(call(), "no", verdict=Blocked("no", counts_as_stuck=False)))
    assert state == GuardState()
    for _ in range(LIMIT):
        assert stuck(state) is None
        state = after(state, Report(call(), "no", verdict=Blocked("no")))
    assert stuck(state) is not None


# Models that work are left alone


def test_a_blocked_call_is_not_a_failure() -> None:
    state = GuardState()
    for _ in range(3):
        state = after(state, Report(edit(path="a"), "no such text", True))
    blocked = before(state, edit(path="a"))
    assert isinstance(blocked, Blocked)
    assert "no such text" in blocked.text
    assert after(state, Report(edit(path="a"), blocked.text, verdict=blocked)).failed_changes == state.failed_changes


def test_exploration_of_two_hundred_steps_survives() -> None:
    played = Played((call(path=f"src/f{n}.py") for n in range(200)), counting("def function_{}(): ..."))
    assert played.count == 200
    assert not played.is_stuck
    assert len(played.performed) == 200
    quoting = Played((call(path=f"f{n}") for n in range(200)), lambda c: (f"contents of {c.args}", False))
    assert not quoting.is_stuck


def test_exploration_of_long_files_survives_and_the_state_stays_small() -> None:
    numbers = itertools.count()
    world: World = lambda _: ("\n".join(f"line {next(numbers)}" for _ in range(300)), False)  # noqa: E731
    played = Played((call(path=f"f{n}") for n in range(200)), world)
    assert not played.is_stuck
    assert len(msgspec.json.encode(played.state)) < 64 * 1024


def test_two_hundred_changes_with_the_same_short_answer_survive() -> None:
    played = Played((edit(path=f"f{n}", text="x") for n in range(200)), says("ok"))
    assert played.count == 200
    assert not played.is_stuck


def test_polling_whose_result_changes_survives() -> None:
    played = Played(itertools.repeat(call("status"), 300), counting("{} percent"))
    assert played.count == 300
    assert len(played.performed) == 300
    failing = counting("not ready: {} percent")
    assert Played(itertools.repeat(call("status"), 300), lambda c: (failing(c)[0], True)).count == 300


@pytest.mark.parametrize("every", range(2, 9))
def test_polling_whose_result_changes_now_and_then_survives(every: int) -> None:
    clock = itertools.count()
    now = {"t": 0}

    def steps() -> Iterator[Call]:
        for _ in range(300):
            now["t"] = next(clock)
            yield call("status")

    assert Played(steps(), lambda _: (f"stage {now['t'] // every}", False)).count == 300


@pytest.mark.parametrize("is_error", [False, True])
def test_polling_with_waits_survives_though_nothing_changes(is_error: bool) -> None:
    cycle = [call("wait", seconds=2), call("status", job=1), call("status", job=2)]
    polls = [one for _ in range(50) for one in cycle]
    played = Played(polls, lambda one: ("waited" if one.tool == "wait" else "running", is_error and one.tool != "wait"))
    assert played.count == len(polls)
    assert len(played.performed) == len(polls)


@pytest.mark.parametrize("waits", [2, 5, LIMIT])
def test_polling_after_several_waits_in_a_row_survives(waits: int) -> None:
    cycle = [*[call("wait", seconds=60)] * waits, call("status")]
    polls = cycle * 50
    assert Played(polls, lambda one: ("waited" if one.tool == "wait" else "running", False)).count == len(polls)
    reports = [Report(one, "waited" if one.tool == "wait" else "running") for one in cycle]
    state = GuardState()
    for _ in range(50):
        state = after_batch(state, reports)
        assert stuck(state) is None


@given(st.lists(st.integers(1, 6), min_size=10, max_size=40))
@settings(deadline=None)
def test_harmless_rereads_between_steps_that_bring_something_survive(gaps: list[int]) -> None:
    news = counting()
    calls = [one for n, gap in enumerate(gaps) for one in (call("explore", n=n), *[call("again")] * gap)]
    played = Played(calls, lambda one: news(one) if one.tool == "explore" else ("the same as ever", False))
    assert not played.is_stuck
    assert played.count == len(calls)


def test_a_change_makes_the_same_question_new() -> None:
    tests = call("run_tests")
    state = GuardState()
    for _ in range(3):
        state = after(state, Report(tests, "1 failed", True))
    assert isinstance(before(state, tests), Blocked)
    state = after(state, Report(edit(old="a"), "changed"))
    assert before(state, tests) == Allow()
    read = call("read")
    for _ in range(2):
        state = after(state, Report(read, "words"))
    assert isinstance(before(state, read), Answered)
    assert before(after(state, Report(edit(old="b"), "changed")), read) == Allow()
    assert before(after(state, Report(call("wait", seconds=1), "waited")), read) == Allow()


def test_test_and_fix_goes_on_while_changes_succeed() -> None:
    calls = [one for n in range(60) for one in (edit(old=f"{n}"), call("run_tests"))]
    played = Played(calls, lambda one: ("changed", False) if one.tool == "edit" else ("1 failed", True))
    assert played.count == 120


def test_the_right_spelling_after_a_wrong_one_gets_its_chance() -> None:
    world: World = lambda one: ("words", False) if "README" in one.args else ("no such file", True)  # noqa: E731
    played = Played([call(path="readme.md"), call(path="Readme.md"), call(path="README.md")], world)
    assert len(played.performed) == 3


def test_notes_neither_save_a_stuck_model_nor_end_a_working_one() -> None:
    notes = (call("note", "reversible_write", key=f"k{n}") for n in range(500))
    mixed = (one for note in notes for one in (note, call(path="a")))
    assert Played(mixed, says("noted")).is_stuck
    news = counting()
    honest = [one for n in range(50) for one in (call("note", "reversible_write", key=f"k{n}"), call(n=n))]
    assert Played(honest, lambda c: ("noted", False) if c.tool == "note" else news(c)).count == 100


def test_many_different_notes_in_a_row_are_no_circle_but_the_same_one_is() -> None:
    notes = [call("note", "reversible_write", key=f"k{n}") for n in range(30)]
    assert not Played(notes, says("noted")).is_stuck
    assert Played(itertools.repeat(notes[0]), says("noted")).count == 1 + LIMIT


def test_a_guess_that_fails_in_a_new_way_neither_saves_nor_ends_a_turn() -> None:
    guesses = [call("guess", n=n) for n in range(100)]
    numbers = itertools.count(1_000)  # not those of the guesses: quoting an argument is nothing new
    fresh: World = lambda _: (f"error {next(numbers)} never seen before", True)  # noqa: E731
    assert not Played(guesses, fresh).is_stuck
    mixed = [one for guess in guesses for one in (guess, call("again"))]
    assert Played(mixed, lambda one: ("same", False) if one.tool == "again" else fresh(one)).is_stuck


@pytest.mark.parametrize("error", ["404: /{}", "no such page: {}.", "nothing at {} here"])
def test_questions_that_fail_with_a_part_of_themselves_end(error: str) -> None:
    urls = (call("fetch", url=f"http://example/p{n}") for n in itertools.count())
    played = Played(urls, lambda one: (error.format(one.args.rpartition("/")[2].rstrip('"}')), True))
    assert played.is_stuck
    assert played.count <= 1 + GUESSES + LIMIT


def test_probing_a_dozen_candidates_between_hits_survives() -> None:
    def world(one: Call) -> tuple[str, bool]:
        name = json.loads(one.args)["path"].rpartition("/")[2]
        return (f"404: /{name}", True) if name.startswith("miss") else (f"contents of {name}", False)

    paths = [f"src/{'hit' if n % 13 == 12 else 'miss'}{n}.py" for n in range(260)]
    assert Played([call("fetch", path=path) for path in paths], world).count == 260


def test_failures_that_are_each_a_new_one_end_too() -> None:
    numbers = itertools.count(1_000)
    guesses = (call("guess", n=n) for n in itertools.count())
    played = Played(guesses, lambda _: (f"error {next(numbers)} never seen before", True))
    assert played.count == FAILURES + LIMIT


# Batches


def test_calls_of_a_batch_that_lead_nowhere_count_once_because_nobody_could_learn_between_them() -> None:
    state = after_batch(GuardState(), [Report(call(item=n), "in stock") for n in range(20)])
    assert stuck(state) is None
    assert state.idle == 1
    state = after_batch(GuardState(), [Report(edit(path=f"f{n}"), "permission denied", True) for n in range(20)])
    assert stuck(state) is None
    for _ in range(LIMIT):
        state = after_batch(state, [Report(edit(path="f1"), "permission denied", True)] * 2)
    assert stuck(state) is not None


def test_repeats_within_a_batch_count_each() -> None:
    assert stuck(after_batch(GuardState(), [Report(call(), "same")] * (1 + LIMIT))) is not None


def test_what_follows_a_change_or_a_wait_in_a_batch_may_run() -> None:
    state = after_batch(GuardState(), [Report(call(path="a"), "same")] * 2)
    again = call(path="a")
    assert isinstance(verdicts(state, [again])[0], Answered)
    assert [type(one) for one in verdicts(state, [again, edit(path="a"), again])] == [Answered, Allow, Allow]
    assert verdicts(state, [call("wait", seconds=1), again])[1] == Allow()
    assert isinstance(verdicts(state, [call("wait", seconds=0), again])[1], Answered)


# The state


def test_advice_comes_before_the_end() -> None:
    state = GuardState()
    assert advice(state) == ""
    for _ in range(6):
        state = after(state, Report(call(), "same"))
    assert "brought nothing new" in advice(state)
    assert stuck(state) is None
    for _ in range(5):
        state = after(state, Report(edit(), "no", True))
    assert "failed" in advice(state)


texts = st.text(alphabet="ab\n ", max_size=12)
random_calls = st.builds(
    Call,
    st.sampled_from(["look", "edit", "wait", "note"]),
    st.one_of(st.sampled_from(["", "{", '{"seconds": 2}', '{"path": "A/b"}', '{"n": 1e400}', "[1]", "\ud800"]), texts),
    st.sampled_from(["read_only", "reversible_write"]),
)
reports = st.builds(Report, random_calls, texts, st.booleans(), st.sampled_from([Allow(), Answered("x"), Blocked("x")]))


@given(st.lists(reports, max_size=60))
@settings(deadline=None)
def test_any_history_keeps_the_state_bounded_serialisable_and_the_same_each_time(history: list[Report]) -> None:
    state = after_batch(GuardState(), history)
    assert after_batch(GuardState(), history) == state
    assert msgspec.json.decode(msgspec.json.encode(state), type=GuardState) == state
    assert len(state.calls) <= REMEMBERED_CALLS
    assert len(state.new_names) <= REMEMBERED_NAMES
    assert len(state.new_lines) <= REMEMBERED_LINES + 2 * (LINES + 1)
    before(state, Call("look", "{}"))


@given(st.lists(st.tuples(random_calls, texts, st.booleans()), min_size=1, max_size=6))
@settings(deadline=None)
def test_whatever_is_repeated_over_and_over_ends_unless_it_waits(cycle: list[tuple[Call, str, bool]]) -> None:
    distinct = {same_call(one.tool, one.args): (one, text, bad) for one, text, bad in cycle if one.tool != "wait"}
    world = {one: (text, bad) for one, text, bad in distinct.values()}
    if world:
        played = Played(itertools.islice(itertools.cycle(world), 200), lambda one: world[one])
        assert played.is_stuck
        assert played.count <= len(world) + LIMIT


@given(st.text("ab_./~é² \n", max_size=80), st.text("ab_./~é²", min_size=1, max_size=3), st.sampled_from([1, 60]))
@example("b/././", "/./", 1)
def test_a_quoted_word_is_left_out_wherever_it_stands_alone(text: str, word: str, times: int) -> None:
    text *= times
    assert without_echo(text, word, "{}") == re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "~", text)


def test_a_question_whose_failure_tells_how_far_things_are_is_polling() -> None:
    parts = itertools.count(1)
    far: World = lambda _: (f"not ready: {next(parts)} of 60 parts, request 7f3a9c00{next(parts):04}", True)  # noqa: E731
    assert not Played([call("fetch", path="a")] * 60, far).is_stuck


def test_a_failure_is_no_other_one_for_its_time_or_its_number() -> None:
    said = (
        "503 at 2026-11-18 10:11:12.5 after 31 ms, request 8c5b7a10-4a3e-4a7c-9d5e-1f2a3b4c5d6e by <P at 0x7f10>",
        "503 at 2026-11-19 23:59:01.7 after 2.5 ms, request 99999999-4a3e-4a7c-9d5e-1f2a3b4c5d6e by <P at 0x7fff>",
    )
    assert steady(said[0]) == steady(said[1])
    assert steady("line 12: 3 of 40, 10.5 % of v1.2.3") == "line 12: 3 of 40, 10.5 % of v1.2.3"


def test_notes_alone_are_borne_as_long_as_they_can_all_be_open() -> None:
    notes = [call("note", "reversible_write", key=f"k{n}") for n in range(NOTES)]
    assert not Played(notes, says("noted")).is_stuck
    worked = [one for note in notes for one in (note, call(path=note.args))]
    assert not Played(worked, lambda call: (call.args, False)).is_stuck
