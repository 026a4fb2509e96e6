"""Files that are not what they seem: every trap of YAML is a located problem or is bounded, never a traceback."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from atlas.kernel.contract import AgentFile
from atlas.kernel.errors import Invalid, Problem
from atlas.vault.load import load
from atlas.vault.node import MAX_DEPTH

GOOD = """\
agent:
  name: echo
  version: 1.0.0
  description: Gives back what it was given
"""


class Free(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file in which anything may stand."""

    x: Any = None


def problems(text: str | bytes, kind: type[msgspec.Struct] = AgentFile) -> tuple[Problem, ...]:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(Invalid) as caught:
        load(data, kind, path="agent.yaml")
    assert caught.value.problems
    for problem in caught.value.problems:
        assert problem.code
        assert problem.path == "agent.yaml"
        assert problem.line >= 1
        assert problem.column >= 1
    return caught.value.problems


def only(text: str | bytes, kind: type[msgspec.Struct] = AgentFile) -> tuple[str, int, int]:
    (problem,) = problems(text, kind)
    return problem.code, problem.line, problem.column


def free(text: str) -> object:
    return load(f"x: {text}\n".encode(), Free, path="f.yaml").x


def test_the_good_file_is_good() -> None:
    assert load(GOOD.encode(), AgentFile, path="agent.yaml").agent.name == "echo"


@pytest.mark.parametrize(
    "data, code, line, column",
    [
        (b"", "empty_file", 1, 1),
        (b"\n\n", "empty_file", 1, 1),
        (b"# only a comment\n", "empty_file", 1, 1),
        (b"---\n...\n", "empty_file", 1, 1),
        (b"- a\n- b\n", "not_a_mapping", 1, 1),
        (b"just a text\n", "not_a_mapping", 1, 1),
        (b"\n\n  42\n", "not_a_mapping", 3, 3),
        (b"\xef\xbb\xbfagent:\n", "byte_order_mark", 1, 1),
        (b"\xff\xfea\x00:\x00", "not_utf8", 1, 1),
        (b"\xfe\xff\x00a", "not_utf8", 1, 1),
        (b"agent:\n  name: \xe4\n", "not_utf8", 2, 9),
        ("agent:\n  näme: ".encode() + b"\xff", "not_utf8", 2, 9),
        (b"agent:\n  name: a\0b\n", "control_character", 2, 10),
        (b"agent:\n  name: a\x07b\n", "control_character", 2, 10),
        (b"agent:\n  name: a\x7fb\n", "control_character", 2, 10),
        (b"agent: {}\n---\nagent: {}\n", "several_documents", 2, 1),
        (b"agent: {}\n" * 2 + b"---\n", "several_documents", 3, 1),
        (b"a" * (1024 * 1024 + 1), "file_too_large", 1, 1),
        (b"[" * 1_000_000, "too_deep", 1, MAX_DEPTH + 1),
        (b"{a: " * 200_000, "too_deep", 1, 4 * (MAX_DEPTH - 1) + 2),
        (b"- " * 200_000, "too_deep", 1, 2 * MAX_DEPTH + 1),
        (b"x: [" + b"a," * 100_001 + b"a]", "too_many_values", 1, 5 + 2 * 99_997),
        (b"agent: !!python/object/apply:os.system [ls]\n", "yaml_tag", 1, 8),
        (b"agent: !custom {}\n", "yaml_tag", 1, 8),
        (b"agent: !!str x\n", "yaml_tag", 1, 8),
        (b"agent: *nothing\n", "undefined_alias", 1, 8),
        (b"%YAML 3.0\n---\na: b\n", "yaml_syntax", 1, 1),
    ],
)
def test_a_file_that_cannot_be_read_says_why_and_where(data: bytes, code: str, line: int, column: int) -> None:
    first = problems(data)[0]
    assert (first.code, first.line, first.column) == (code, line, column)


@pytest.mark.parametrize(
    "text, line, words",
    [
        ("agent:\n\tname: x\n", 2, "tab"),
        ("agent:\n  name: x\n\tversion: 1.0.0\n", 3, "tab"),
        ("agent:\n  name: 'x'\n  \tversion: 1.0.0\n", 3, "tab"),
        ("agent:\n  capabilities:\n\t- a\n", 3, "tab"),
    ],
)
def test_a_tab_is_explained_in_plain_words(text: str, line: int, words: str) -> None:
    (problem,) = problems(text)
    assert (problem.code, problem.line) == ("yaml_tab", line)
    assert words in problem.message
    assert "spaces" in problem.hint


@pytest.mark.parametrize(
    "text, line, words",
    [
        ("agent:\n  name: 'x\n  version: 1.0.0\n", 2, "never closed"),
        ('agent:\n  name: "x\n  version: "1.0.0"\n', 2, "closed only on line 3"),
        ("agent:\n  name x\n  version: 1.0.0\n", 2, "no ':'"),
        ("agent:\n  name: x\n  version 1.0.0\n  description: d\n", 3, "no ':'"),
        ("agent\n  name: x\n", 1, "no ':'"),
        ("agent:\n  name: x\n    version: 1.0.0\n", 3, "':' cannot start a value"),
        ("agent:\n  description: note: this\n", 2, "':' cannot start a value"),
        ("agent:\n  name: 'x'\n    version: 1.0.0\n", 3, "does not fit the lines above"),
        ("agent:\n  capabilities: [a, b\n  name: x\n", 2, "[ that opens here"),
        ("agent:\n  model: {preference: fast\n  name: x\n", 2, "{ that opens here"),
        ("agent:\n  name: @x\n", 2, "cannot start with @"),
        ("agent:\n  name: %x\n", 2, "cannot start with %"),
        ('agent:\n  name: "\\q"\n', 2, "escape"),
        ("agent:\n  dependencies:\n    python: >=3.11\n", 3, "starts with >"),
        ("agent:\n  capabilities:\n    - a\n    b: c\n", 4, "list above"),
        ("agent:\n  name: x\n]\n", 3, ""),
    ],
)
def test_a_syntax_error_names_the_line_to_change(text: str, line: int, words: str) -> None:
    (problem,) = problems(text)
    assert (problem.code, problem.line) == ("yaml_syntax", line), problem
    assert words in problem.message


def test_a_duplicate_key_names_both_lines() -> None:
    (problem,) = problems(GOOD + "  name: again\n")
    assert (problem.code, problem.line, problem.column) == ("duplicate_key", 5, 3)
    assert "line 2" in problem.message
    assert "line 5" in problem.message


def test_a_duplicate_key_is_refused_where_anything_may_stand() -> None:
    assert only("x:\n  a: 1\n  'a': 2\n", Free) == ("duplicate_key", 3, 3)


def test_a_merge_key_is_refused_and_a_quoted_one_is_a_text() -> None:
    assert only("x:\n  <<: {a: 1}\n", Free) == ("yaml_merge_key", 2, 3)
    assert free("{'<<': 1}") == {"<<": 1}


def test_only_texts_are_keys() -> None:
    assert only("x:\n  ? [a, b]\n  : 1\n", Free) == ("yaml_key", 2, 5)
    assert only("x: {? : 1}\n", Free)[0] == "yaml_key"


def test_aliases_work_where_they_do_no_harm() -> None:
    assert free("{a: &one [1, 2], b: *one}") == {"a": [1, 2], "b": [1, 2]}


def test_an_alias_that_contains_itself_is_refused() -> None:
    assert only("x: &a [1, *a]\n", Free) == ("alias_cycle", 1, 11)
    assert only("x: &a {b: {c: *a}}\n", Free) == ("alias_cycle", 1, 15)


def test_an_anchor_bomb_is_refused_at_once() -> None:
    lines = ["x:", "  a0: &a0 [" + ", ".join(["lol"] * 10) + "]"]
    lines += [f"  a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 30)]
    began = time.process_time()
    code, line, _ = only("\n".join(lines), Free)
    assert (code, line) == ("too_many_values", 6)  # the first line beyond the bound
    assert time.process_time() - began < 1


def test_aliases_cannot_nest_deeper_than_the_bound() -> None:
    lines = ["x:", "  - &a0 [1]"] + [f"  - &a{n} [*a{n - 1}]" for n in range(1, 80)]
    code, line, _ = only("\n".join(lines), Free)
    assert code == "too_deep"
    assert line == 63  # two levels above it, and a level for each line since the second


def test_positions_count_characters_and_any_line_end() -> None:
    assert only("x: [\u00e4\u00f6\u00fc, !t 1]\r\n", Free) == ("yaml_tag", 1, 10)
    found = problems('x: "\u2028 is no line end to an editor"\r\ny: 2\r\n', Free)
    assert (found[0].code, found[0].line, found[0].column) == ("unknown_key", 2, 1)
    found = problems("# a\r# b\ry: 2\r", Free)
    assert (found[0].line, found[0].column) == (3, 1)


def test_escapes_cannot_smuggle_in_what_cannot_be_stored() -> None:
    assert only('x: "a\\0b"\n', Free) == ("control_character", 1, 4)
    assert problems('x: "\\ud800"\n', Free)[0].code in ("control_character", "yaml_syntax")
    assert problems('x: "\\UFFFFFFFF"\n', Free)[0].code == "yaml_syntax"


@pytest.mark.parametrize(
    "text, value",
    [
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("2020-01-01", "2020-01-01"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'null'", "null"),
        ("0o17", 15),
        ("0x1F", 31),
        ("017", 17),
        ("-5", -5),
        ("+5", 5),
        ("1.50", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("'1'", "1"),
        ("nan", "nan"),
        ("1.2.3", "1.2.3"),
        ("|\n  a\n  b", "a\nb\n"),
        ("[a, 1, {b: no}]", ["a", 1, {"b": "no"}]),
    ],
)
def test_where_anything_may_stand_yaml_1_2_decides(text: str, value: object) -> None:
    found = free(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", [".nan", ".NaN", ".inf", "-.INF", "1e999", "9" * 500, "0." + "1" * 500])
def test_there_is_no_infinity_and_no_nan(text: str) -> None:
    assert only(f"x: {text}\n", Free) == ("not_finite", 1, 4)


def test_the_parser_written_in_python_finds_the_same() -> None:
    """PyYAML without its C part is slower and words its errors differently; the problems are the same."""
    texts = [
        GOOD,
        "agent:\n\tname: x\n",
        "agent:\n  name: 'x\n  version: 1.0.0\n",
        'agent:\n  name: "x\n  version: "1.0.0"\n',
        "agent:\n  name x\n  version: 1.0.0\n",
        "agent:\n  capabilities: [a, b\n  name: x\n",
        "agent:\n  name: @x\n",
        "agent:\n  name: 'x'\n    version: 1.0.0\n",
        "agent: &a [*a]\n",
        'agent:\n  name: "\\UFFFFFFFF"\n',
        "[" * 1000,
    ]
    script = f"""
import yaml
if {{without!r}}:
    del yaml.CSafeLoader
from atlas.kernel.contract import AgentFile
from atlas.kernel.errors import Invalid
from atlas.vault.load import load
for text in {texts!r}:
    try:
        load(text.encode(), AgentFile, path="agent.yaml")
        print("ok")
    except Invalid as error:
        print([(p.code, p.line) for p in error.problems])
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script.replace("{without!r}", repr(without))],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for without in (False, True)
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == len(texts)
