"""A long session through a real host, in miniature: bounded requests, and everything found again."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from atlas.app import open_host
from atlas.control.host import Host
from atlas.kernel.model import Message, Request, Text, ToolCall, ToolResult
from atlas.testing import context_bench
from atlas.testing.context_actor import Actor, unread
from atlas.testing.context_bench import ContextReport
from atlas.testing.context_finder import UNKNOWN, next_move
from atlas.testing.context_world import DISTRACTORS, World


def bench(turns: int, seed: int | None = None) -> ContextReport:
    def rehearse(root: Path, actor: Actor) -> AbstractAsyncContextManager[Host]:
        return open_host(root, {}, asker=actor)

    return asyncio.run(context_bench.run(rehearse, turns, seed, lambda line: None))


@pytest.mark.timeout(240)
def test_a_session_of_100_turns_keeps_every_promise() -> None:
    report = bench(100)
    assert report.complaints == (), report.seed
    assert report.ok
    assert (report.recall.found, report.recall.asked) == (20, 20)
    assert report.recall.most_calls <= 3
    assert report.bounds.largest_tokens <= report.token_caps["total"]
    assert report.bounds.shared_prefix >= 0.85
    assert report.bounds.transcript_bytes_at_end > 20 * report.bounds.median_bytes_late
    assert report.handles.printed > 100
    assert report.handles.places > 10
    assert (report.handles.unresolved, report.handles.misplaced, report.handles.hits_astray) == (0, 0, 0)
    assert report.session_bytes_late <= report.session_bytes_early * context_bench.SESSION_LIMIT


def test_the_same_seed_draws_the_same_world() -> None:
    one, other = World(7, 200, 40), World(7, 200, 40)
    assert one.facts == other.facts
    assert [one.happening(turn) for turn in (3, 90)] == [other.happening(turn) for turn in (3, 90)]
    assert World(8, 200, 40).facts != one.facts


@pytest.mark.parametrize("turns", [100, 1_000, 100_000])
def test_a_session_of_any_length_has_facts_to_ask_for(turns: int) -> None:
    facts = World(3, turns, context_bench.questions_after(turns)).facts
    assert len(facts) == len({fact.key for fact in facts}) == min(turns // 5, 200)


def test_facts_are_planted_as_the_bench_promises() -> None:
    world = World(11, 1_000, 200)
    facts = world.facts
    assert len(facts) == 200
    assert sum(fact.by_title for fact in facts) == 67
    assert sum(len(fact.plants) == 2 for fact in facts) == 66
    assert {fact.kind for fact in facts} >= {"user", "reply", "tool", "failed", "deep", "tool by title"}
    for fact in facts:
        assert fact.value not in fact.question
        assert [plant.turn for plant in fact.plants] == sorted(plant.turn for plant in fact.plants)
        happening = world.happening(fact.plants[-1].turn)
        texts = (happening.user, happening.reply, *happening.documents)
        [told] = [text for text in texts if fact.value in text]
        if fact.by_title:
            assert fact.key in happening.user[:80]
            words = {word.strip("?,:").lower() for word in fact.question.split()} - {"the", "of", "did", "what", "was"}
            after = told.split("\n")[-1][told.rindex(fact.value) - 40 :].lower()
            assert not words.intersection(after.replace(".", "").split())
        else:
            shares = [line for line in told.splitlines() if any(word in line for word in fact.key.split())]
            assert len(shares) >= DISTRACTORS + 1
    deep = next(fact for fact in facts if fact.kind == "deep")
    document = max(world.happening(deep.plants[-1].turn).documents, key=len)
    assert 40_000 < document.index(deep.value) < 60_000 < 100_000 <= len(document)


def test_what_happened_twice_in_the_same_words_happened_nowhere_else() -> None:
    world = World(11, 1_000, 200)
    first, second = world.twins
    assert world.happening(first) == world.happening(second)
    planted = {plant.turn for fact in world.facts for plant in fact.plants}
    assert not planted.intersection(world.twins)
    told = [turn for turn in range(1, 1_001) if world.twin_code in "".join(world.happening(turn).documents)]
    assert told == [first, second]


def request_with(*results: str, question: str = "Which code belongs to the brass lantern?") -> Request:
    messages = [Message("user", (Text("Earlier turns"), Text(question)))]
    for number, result in enumerate(results):
        messages += [Message("assistant", (ToolCall(f"c{number}", "recall", "{}"),))]
        messages += [Message("user", (ToolResult(f"c{number}", result),))]
    return Request("m", (), tuple(messages), step=len(results) + 1)


def test_a_finder_that_uses_what_it_was_not_shown_is_caught() -> None:
    request = request_with("recall(handle='t7.1', start=30) The brass lantern")
    assert unread((ToolCall("c", "recall", '{"handle":"t7.1","start":30}'),), request) == []
    assert unread((ToolCall("c", "recall", '{"handle":"t8.1"}'),), request)
    assert unread((ToolCall("c", "recall", '{"handle":"t7.1","start":31}'),), request)
    assert unread((Text("ABC-12345"),), request)
    assert unread((Text("The brass lantern"),), request) == []


def test_the_finder_knows_nothing_that_is_not_in_its_request() -> None:
    assert next_move(request_with("Nothing recorded matches these words. Try others.")) == (Text(UNKNOWN),)
    [call] = next_move(request_with())
    assert isinstance(call, ToolCall)
    assert "brass lantern" in call.args
    page = "t7.1 (observed), bytes 0 to 99 of 99:\nThe tin lantern has KLM-11111.\nThe brass lantern has QRS-22222."
    [answer] = next_move(request_with("recall(handle='t7.1') The brass lantern", page))
    assert answer == Text("The brass lantern has QRS-22222.")
