"""Globs, paths and the plain form of texts: generous where a rule narrows, strict where it allows."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.pattern import fits, fits_strictly, parse_path, plain, select, texts, tidy_path, writings


@pytest.mark.parametrize(
    "pattern, text, is_fit",
    [
        ("read", "read", True),
        ("read", "reader", False),
        ("read", "Read", False),
        ("mail.*", "mail.send", True),
        ("mail.*", "mailxsend", False),
        ("*send", "mail.send", True),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("*", "", True),
        ("a**b", "ab", True),
        ("a*", "a\nb", True),
        ("a.c", "abc", False),
        ("a*a", "a", False),
        ("[ab]", "a", False),
    ],
)
def test_a_star_stands_for_any_characters_and_nothing_else_is_special(pattern: str, text: str, is_fit: bool) -> None:
    assert fits(text, (pattern,)) is is_fit


def test_one_of_several_patterns_is_enough_and_none_fits_nothing() -> None:
    assert fits("b", ("a", "b"))
    assert not fits("b", ())


@given(st.lists(st.sampled_from(["a", "b", "*"]), max_size=8), st.text(alphabet="ab", max_size=12))
def test_globs_agree_with_trying_every_length(pattern: list[str], text: str) -> None:
    def slowly(parts: list[str], rest: str) -> bool:
        if not parts:
            return not rest
        if parts[0] == "*":
            return any(slowly(parts[1:], rest[skip:]) for skip in range(len(rest) + 1))
        return rest.startswith(parts[0]) and slowly(parts[1:], rest[1:])

    assert fits(text, ("".join(pattern),)) is slowly(pattern, text)


def test_many_stars_over_a_long_text_take_no_time() -> None:
    started = time.process_time()
    assert not fits("a" * 100_000 + "c", ("*a" * 20 + "*b",))
    assert time.process_time() - started < 1


VALUE: dict[str, Any] = {
    "to": [{"a": "x"}, {"a": "y"}],
    "n": 5,
    "deep": {"path": "p", "in": {"path": "q"}},
    "o k": True,
}


@pytest.mark.parametrize(
    "path, found",
    [
        ("n", ["5"]),
        ("$.n", ["5"]),
        ("$.to[*].a", ["x", "y"]),
        ("to[1].a", ["y"]),
        ("to[9].a", []),
        ("$..path", ["p", "q"]),
        ("$.deep.*", ["p", "q"]),
        ("$['o k']", ["true"]),
        ("to", ["x", "y"]),
        ("missing", []),
        ("$", ["x", "y", "5", "p", "q", "true"]),
    ],
)
def test_a_path_leads_to_values(path: str, found: list[str]) -> None:
    steps = parse_path(path)
    assert steps is not None
    assert [text for part in select(VALUE, steps) for text in texts(part)] == found


@pytest.mark.parametrize("path", ["a[", "a]", "$a", "a..", "$[x]", "a.[0]", ""])
def test_what_is_no_path_is_told(path: str) -> None:
    assert parse_path(path) is None


@pytest.mark.parametrize(
    "text, seen",
    [
        ("RM  -rf\t/", "rm -rf /"),
        ("r\\m -rf", "rm -rf"),
        ("'r'm \"-rf\"", "rm -rf"),
        ("rm\\\n -rf", "rm -rf"),
        ("ｒｍ -ｒｆ", "rm -rf"),
        ("r\u200bm", "rm"),
        ("rm${IFS}-rf$IFS/", "rm -rf /"),
    ],
)
def test_plain_form_undoes_quotes_case_width_and_invisible_characters(text: str, seen: str) -> None:
    assert plain(text) == seen


@pytest.mark.parametrize(
    "text, tidy",
    [
        ("/srv/../etc/passwd", "/etc/passwd"),
        ("//etc//./hosts", "/etc/hosts"),
        ("/../../etc", "/etc"),
        ("docs/../../etc", "../etc"),
        ("./a", "a"),
        ("https://x.org/a/../b", "https://x.org/b"),
        ("https://x.org/a", "https://x.org/a"),
        ("no path", "no path"),
    ],
)
def test_paths_are_tidied(text: str, tidy: str) -> None:
    assert tidy_path(text) == tidy


def test_allowing_needs_every_value_exactly_and_after_its_dots_are_resolved() -> None:
    assert fits_strictly(["docs/a", "docs/b"], ("docs/*",))
    assert not fits_strictly(["docs/a", "etc/b"], ("docs/*",))
    assert not fits_strictly(["docs/../etc"], ("docs/*",))
    assert not fits_strictly(["Docs/a"], ("docs/*",))
    assert not fits_strictly([], ("*",))


def test_narrowing_sees_every_writing() -> None:
    assert "/etc/passwd" in writings(["/SRV/../etc/passwd"])
    assert "/etc/passwd" in writings("／etc／passwd")
