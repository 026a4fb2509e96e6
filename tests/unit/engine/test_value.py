"""JSON values: what goes in comes out, and what is not JSON never gets in."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.engine import value
from atlas.kernel.errors import Invalid

TEXT = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=10,
)


@given(VALUES)
def test_every_json_value_survives_and_a_replay_sees_what_the_code_saw(item: Any) -> None:
    data = value.encode(item, "it")
    assert json.loads(data) == json.loads(json.dumps(item))
    seen, replayed = value.normal(item, data), value.decode(data)
    assert seen == replayed
    assert repr(seen) == repr(replayed)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_canonical_form_does_not_depend_on_the_order_of_keys(item: dict[str, Any]) -> None:
    backwards = dict(reversed(item.items()))
    assert value.encode(item, "it", canonical=True) == value.encode(backwards, "it", canonical=True)


@given(VALUES, st.sampled_from([math.nan, math.inf, -math.inf, b"x", {1}, object(), 1j, "\udc80"]))
def test_one_bad_value_anywhere_is_refused(good: Any, bad: Any) -> None:
    with pytest.raises(Invalid, match=r"the thing is not JSON: \[1\]\.deep\[0\]"):
        value.encode([good, {"deep": [bad]}], "the thing")


def test_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Invalid, match="contains itself"):
        value.encode(loop, "it")


@pytest.mark.parametrize("depth, fits", [(100, True), (101, False)])
def test_depth_is_limited_exactly(depth: int, fits: bool) -> None:
    item: Any = 1
    for _ in range(depth):
        item = [item]
    if fits:
        assert value.decode(value.encode(item, "it")) == item
    else:
        with pytest.raises(Invalid, match="nested deeper than 100 levels"):
            value.encode(item, "it")


def test_wide_value_with_many_brackets_is_not_deep() -> None:
    assert value.encode([[]] * 1000, "it") == b"[" + b",".join([b"[]"] * 1000) + b"]"
