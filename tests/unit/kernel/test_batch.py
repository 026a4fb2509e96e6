"""Batches: no call overtakes an earlier one it conflicts with, and everything else runs side by side."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.batch import Claim, claim, claim_of, conflicts, ready
from atlas.kernel.event import EffectClass
from atlas.kernel.model import ToolSpec
from atlas.kernel.tool import ToolDefinition

names = st.sampled_from(["*", "file:", "file:a", "file:a/b", "file:a/b/c", "file:ab", "file:x", "mail", "url:a"])
resources = st.builds(lambda mode, name: f"{mode}{name}", st.sampled_from(["", "read:", "write:"]), names)
effects: st.SearchStrategy[EffectClass] = st.sampled_from(["read_only", "reversible_write"])
claims = st.builds(claim_of, st.lists(resources, max_size=3), effects)


def read(*what: str) -> Claim:
    return claim_of(what, "read_only")


def write(*what: str) -> Claim:
    return claim_of(what, "reversible_write")


def definition(resources: tuple[str, ...] | None, effect: EffectClass = "read_only") -> ToolDefinition:
    schema = {"type": "object", "properties": {"path": {"type": "string"}, "to": {"type": "string", "default": "out"}}}
    return ToolDefinition(ToolSpec("t", "", msgspec.Raw(msgspec.json.encode(schema))), effect, resources=resources)


@pytest.mark.parametrize(
    "one, other, expected",
    [
        (read("file:a"), read("file:a"), False),
        (read("file:a"), write("file:a"), True),
        (write("file:a"), write("file:a"), True),
        (write("file:a"), read("file:a/b/c"), True),
        (write("file:a/b"), write("file:a"), True),
        (write("file:a"), write("file:ab"), False),
        (write("file:a"), write("mail:a"), False),
        (write("file:./a//b/../c/"), write("file:A/C"), True),
        (write("file:"), read("file:deep/down"), True),
        (write("file:"), read("mail"), False),
        (write("*"), read("mail"), True),
        (write("*"), Claim(), True),
        (read("*"), read("*"), False),
        (read("*"), write("mail"), True),
        (read("*"), Claim(), False),
        (claim_of(["read:a"], "high_risk"), claim_of(["read:a"], "high_risk"), False),
        (claim_of(["write:a"], "read_only"), read("a"), True),
        (write("file:../a"), write("file:../../a"), False),
    ],
)
def test_conflict_is_writing_what_another_touches(one: Claim, other: Claim, expected: bool) -> None:
    assert conflicts(one, other) is expected
    assert conflicts(other, one) is expected


def test_a_tool_that_declares_nothing_is_taken_to_touch_everything_in_its_mode() -> None:
    looks = claim(definition(None), {})
    acts = claim(definition(None, "external_side_effect"), {})
    nothing = claim(definition(()), {})
    assert not conflicts(looks, looks)
    assert conflicts(looks, acts)
    assert conflicts(acts, nothing)
    assert not conflicts(nothing, looks)


def test_arguments_fill_the_places_that_resources_name() -> None:
    tool = definition(("file:{path}", "write:file:{to}/x"))
    assert claim(tool, {"path": "a/b"}) == claim_of(("read:file:a/b", "write:file:out/x"), "read_only")
    assert claim(tool, {"path": ["a", "b"]}) == claim_of(("file:a", "file:b", "write:file:out/x"), "read_only")
    assert claim(tool, {"path": "{to}"}) == claim_of(("file:{to}", "write:file:out/x"), "read_only")


@pytest.mark.parametrize("path", [None, {"a": 1}, [["a"]]])
def test_an_argument_that_is_not_known_widens_the_resource(path: object) -> None:
    assert claim(definition(("file:{path}/x",)), {"path": path}) == claim_of(("file:",), "read_only")
    assert claim(definition(("{path}",)), {"path": path}) == claim_of(("*",), "read_only")
    assert claim(definition(("write:{path}",)), {"path": path}) == claim_of(("write:*",), "read_only")
    assert claim(definition(("file:a/log-{path}",)), {"path": path}) == claim_of(("file:a",), "read_only")


def test_a_pending_call_is_not_overtaken_by_one_that_conflicts_with_it() -> None:
    batch = [write("a"), write("a", "b"), write("b"), read("c")]
    assert ready(batch, set(), set()) == (0, 3)
    assert ready(batch, {0, 3}, {3}) == ()
    assert ready(batch, {0, 3}, {0, 3}) == (1,)
    assert ready(batch, {0, 1, 3}, {0, 1, 3}) == (2,)


@given(st.lists(claims, max_size=8), st.data())
def test_every_schedule_finishes_and_keeps_the_order_of_conflicting_calls(
    batch: list[Claim], data: st.DataObject
) -> None:
    started: list[int] = []
    running: set[int] = set()
    finished: set[int] = set()
    while len(finished) < len(batch):
        may = ready(batch, started, finished)
        assert not set(may) & {*started}
        for number in may:
            # Everything it runs beside, or that has not started before it, does not conflict with it.
            for other in (*running, *range(number)):
                assert other in finished or not conflicts(batch[number], batch[other])
            started.append(number)
            running.add(number)
        assert running, "a batch must never come to rest before it is finished"
        done = data.draw(st.sampled_from(sorted(running)))
        running.remove(done)
        finished.add(done)
    assert sorted(started) == list(range(len(batch)))


@given(st.lists(claims, max_size=8))
def test_a_call_that_conflicts_with_no_earlier_one_starts_at_once(batch: list[Claim]) -> None:
    free = [n for n in range(len(batch)) if not any(conflicts(batch[n], batch[e]) for e in range(n))]
    assert ready(batch, (), ()) == tuple(free)
