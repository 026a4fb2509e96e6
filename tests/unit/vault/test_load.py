"""The loader: what a value means follows from the type, and all problems of a file come at once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from atlas.kernel.config import Config
from atlas.kernel.contract import AgentFile, Finding
from atlas.kernel.errors import Invalid, Problem
from atlas.vault.load import load
from atlas.vault.source import MAX_PROBLEMS

HEAD = "agent:\n  name: echo\n  version: 1.0.0\n  description: d\n"


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    need: int
    more: str = ""


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str = ""
    switch: bool = False
    whole: Annotated[int, Meta(ge=-5, le=10)] = 0
    number: Annotated[float, Meta(gt=0, lt=10)] = 1
    choice: Literal["red", "green"] = "red"
    maybe: int | None = 7
    texts: tuple[str, ...] = ()
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()
    named: dict[Annotated[str, Meta(pattern="^[a-z]+$")], Inner] = msgspec.field(default_factory=dict)
    either: str | tuple[str, ...] = ""
    pair: Annotated[tuple[str, ...], Meta(min_length=2, max_length=2)] = ("a", "b")
    table: Annotated[dict[str, int], Meta(max_length=1)] = msgspec.field(default_factory=dict)
    level: Literal[1, 2] = 1
    free: Any = None


def read(text: str) -> Sample:
    return load(text.encode(), Sample, path="s.yaml")


def problems(text: str, kind: type[msgspec.Struct] = AgentFile) -> tuple[Problem, ...]:
    def rules(value: Any) -> Any:
        return value.findings() if isinstance(value, AgentFile) else ()

    with pytest.raises(Invalid) as caught:
        load(text.encode(), kind, path="f.yaml", rules=rules)
    return caught.value.problems


def only(text: str, kind: type[msgspec.Struct] = AgentFile) -> Problem:
    (problem,) = problems(text, kind)
    return problem


@pytest.mark.parametrize("word", ["no", "on", "yes", "true", "null", "~", "1.10", "2020-01-01", "0x10", ".nan", "1e5"])
def test_a_text_stays_a_text_whatever_it_looks_like(word: str) -> None:
    assert read(f"text: {word}\n").text == word
    assert read(f"texts: [{word}]\n").texts == (word,)


@pytest.mark.parametrize("word", ["true", "True", "TRUE", "yes", "Yes", "on", "ON"])
def test_words_for_on(word: str) -> None:
    assert read(f"switch: {word}\n").switch is True


@pytest.mark.parametrize("word", ["false", "no", "No", "off", "OFF"])
def test_words_for_off(word: str) -> None:
    assert read(f"switch: {word}\n").switch is False


@pytest.mark.parametrize(
    "line, code, column",
    [
        ("switch: 1", "wrong_type", 9),
        ("switch: y", "wrong_type", 9),
        ("switch: 'true'", "wrong_type", 9),
        ("switch: tRUE", "wrong_type", 9),
        ("switch: [true]", "wrong_type", 9),
        ("switch:", "missing_value", 1),
        ("text:", "missing_value", 1),
        ("text: [a]", "wrong_type", 7),
        ("text: {a: b}", "wrong_type", 7),
        ("whole: 1.0", "wrong_type", 8),
        ("whole: 1_0", "wrong_type", 8),
        ("whole: '1'", "wrong_type", 8),
        ("whole: one", "wrong_type", 8),
        ("whole: -6", "out_of_range", 8),
        ("whole: 11", "out_of_range", 8),
        ("whole: 0xFF", "out_of_range", 8),
        ("number: 0", "out_of_range", 9),
        ("number: 10", "out_of_range", 9),
        ("number: .inf", "not_finite", 9),
        ("number: 1e999", "not_finite", 9),
        ("number: x", "wrong_type", 9),
        ("choice: blue", "unknown_value", 9),
        ("choice:", "missing_value", 1),
        ("maybe:", "missing_value", 1),
        ("texts: a", "wrong_type", 8),
        ("texts: {a: b}", "wrong_type", 8),
        ("texts: [a, [b]]", "wrong_type", 12),
        ("inner: 3", "wrong_type", 8),
        ("inner: {}", "missing_key", 8),
        ("inner: {need: 1, moer: x}", "unknown_key", 18),
        ("inners: [{need: 1}, {need: x}]", "wrong_type", 28),
        ("named: {a: {need: 1}, B: {need: 2}}", "bad_value", 23),
        ("named: [a]", "wrong_type", 8),
        ("pair: [a]", "bad_value", 7),
        ("pair: [a, b, c]", "bad_value", 7),
        ("table: {a: 1, b: 2}", "bad_value", 8),
        ("level: 3", "unknown_value", 8),
    ],
)
def test_a_wrong_value_is_refused_where_it_stands(line: str, code: str, column: int) -> None:
    problem = only(f"# first line\n{line}\n", Sample)
    assert (problem.code, problem.line, problem.column) == (code, 2, column), problem


def test_right_values_are_taken() -> None:
    found = read(
        "whole: 0x0A\nnumber: 5\nchoice: green\nmaybe: null\ntexts: [a, no]\ninner: {need: 1}\n"
        "inners:\n  - need: 2\n    more: x\nnamed: {a: {need: 3}}\neither: [p, q]\nlevel: 2\nfree: {a: [no, 1]}\n"
    )
    assert found == Sample(
        whole=10,
        number=5.0,
        choice="green",
        maybe=None,
        texts=("a", "no"),
        inner=Inner(1),
        inners=(Inner(2, "x"),),
        named={"a": Inner(3)},
        either=("p", "q"),
        level=2,
        free={"a": ["no", 1]},
    )
    assert read("either: p\n").either == "p"


def test_an_empty_file_is_all_defaults_when_nothing_is_required() -> None:
    assert read("# nothing\n") == Sample()
    assert load(b"", Config, path="atlas.config.yaml") == Config()


def test_all_problems_of_a_file_come_at_once_in_the_order_of_the_file() -> None:
    found = problems(
        "agent:\n"
        "  name: My Agent\n"
        "  version: 1.10\n"
        "  description: d\n"
        "  capabilites: [a]\n"
        "  requires: {spawn_agents: maybe}\n"
        "  budget: {usd_per_run: -1}\n"
        "  runtime: phyton\n"
        "  name: again\n"
        "  model: !x {}\n"
    )
    assert [(problem.code, problem.line) for problem in found] == [
        ("bad_value", 2),
        ("bad_value", 3),
        ("unknown_key", 5),
        ("wrong_type", 6),
        ("out_of_range", 7),
        ("unknown_value", 8),
        ("duplicate_key", 9),
        ("yaml_tag", 10),
    ]


def test_the_error_itself_tells_the_first_problem_and_how_many_follow() -> None:
    with pytest.raises(Invalid) as caught:
        load(b"agent:\n  name: A\n", AgentFile, path="f.yaml")
    error = caught.value
    assert error.where == "f.yaml:1:1"
    assert error.message == "agent needs the key version (and 2 more problems)"
    assert error.reason == "missing_key"
    assert error.exit_code == 2


@pytest.mark.parametrize(
    "line, hint",
    [
        ("capabilites: []", "did you mean capabilities?"),
        ("Model: {}", "did you mean model?"),
        ("spawn_agents: true", "spawn_agents belongs under agent.requires"),
        ("preference: fast", "preference belongs under agent.model"),
        ("usd_per_day: 1", "usd_per_day belongs under agent.budget"),
        ("schema: {}", "schema belongs under agent.input"),
        ("output: {type: object}", "a JSON Schema stands under agent.output.schema"),
        ("input: {schem: {}}", "did you mean schema?"),
        ("runtime: phyton", "did you mean python?"),
        ("type: Task", "did you mean task?"),
        ("model: {preference: fsat}", "did you mean fast?"),
        ("capabilities: [Text Processing]", "did you mean text-processing?"),
        ("capabilities: text", "write [text]"),
        ("timeout_s: '5'", "remove the quotes"),
        ("requires:", "write a value or remove the key"),
    ],
)
def test_a_mistake_comes_with_a_suggestion(line: str, hint: str) -> None:
    assert only(f"{HEAD}  {line}\n").hint == hint


def test_a_far_off_key_gets_the_list_of_keys() -> None:
    assert "the keys are platform_tools, spawn_agents, skills" in only(f"{HEAD}  requires: {{zzz: 1}}\n").hint


def test_a_version_gets_its_missing_numbers() -> None:
    assert only("agent: {name: a, version: 1.10, description: d}\n").hint == "did you mean 1.10.0?"


def test_keys_of_the_agent_at_the_top_are_sent_home() -> None:
    found = problems("name: a\nversion: 1.0.0\ndescription: d\n")
    assert ("missing_key", 1) in [(problem.code, problem.line) for problem in found]
    hints = {problem.line: problem.hint for problem in found if problem.code == "unknown_key"}
    assert hints == {
        1: "name belongs under agent",
        2: "version belongs under agent",
        3: "description belongs under agent",
    }


def test_a_missing_key_is_shown_at_the_key_of_its_mapping() -> None:
    problem = only("\n# comment\nagent:\n  name: a\n  version: 1.0.0\n")
    assert (problem.code, problem.line, problem.column) == ("missing_key", 3, 1)
    assert "description" in problem.message


def test_a_misspelt_key_is_not_missing_as_well() -> None:
    assert only("agent:\n  nmae: a\n  version: 1.0.0\n  description: d\n").code == "unknown_key"


def test_a_block_of_the_wrong_kind_is_shown_at_its_key() -> None:
    problem = only(f"{HEAD}  requires:\n    - spawn\n")
    assert (problem.code, problem.line, problem.column) == ("wrong_type", 5, 3)


def test_a_secret_is_never_repeated_in_a_message() -> None:
    secret = "sk-live-0123456789"
    text = f"models: {{providers: {{lab: {{kind: openai, key: {secret}}}}}}}\nledger: {{url: 'mysql://u:{secret}@h'}}\n"
    for problem in problems(text, Config):
        assert secret not in problem.message + problem.hint


def test_rules_over_several_keys_are_located() -> None:
    found = problems(f"{HEAD}  hardware:\n    gpu: no\n    gpu_vram_gb: 8\n  budget:\n    on_cap: fallback\n")
    assert [(problem.code, problem.line) for problem in found] == [("gpu_not_required", 7), ("missing_fallback", 9)]


def test_rules_are_checked_beside_other_problems() -> None:
    found = problems(f"{HEAD}  budget: {{on_cap: fallback}}\n  oops: 1\n")
    assert [problem.code for problem in found] == ["missing_fallback", "unknown_key"]


def test_a_rule_says_nothing_about_values_that_are_wrong_already() -> None:
    assert only(f"{HEAD}  budget: {{on_cap: fallback}}\n  model: {{fallback: fsat}}\n").code == "bad_value"
    assert only(f"{HEAD}  type: orchestrater\n  orchestration: {{}}\n").code == "unknown_value"


def test_a_finding_without_a_place_of_its_own_is_shown_at_the_nearest_key() -> None:
    def rules(value: Sample) -> list[Finding]:
        return [Finding(("inner", "more", "deeper"), "rule", "broken")]

    with pytest.raises(Invalid) as caught:
        load(b"inner:\n  need: 1\n", Sample, path="s.yaml", rules=rules)
    assert caught.value.problems == (Problem("rule", "broken", "s.yaml", 1, 1),)


SCHEMA = """\
  input:
    schema:
      type: object
      properties:
        text:
          type: strin
        size:
          minimum: many
          pattern: "("
        other:
          $ref: https://example.com/schema.json
        lost:
          $ref: "#/$defs/nothing"
      required: text
"""


def test_a_json_schema_is_checked_and_each_mistake_shown_at_its_line() -> None:
    found = problems(HEAD + SCHEMA)
    assert [(problem.code, problem.line) for problem in found] == [
        ("json_schema", 10),
        ("json_schema", 12),
        ("json_schema", 13),
        ("json_schema_remote_ref", 15),
        ("json_schema_ref", 17),
        ("json_schema", 18),
    ]
    assert found[0].hint == "did you mean string?"
    assert all("agent.input.schema" in problem.message for problem in found)


def test_words_in_a_json_schema_stay_words() -> None:
    text = f"{HEAD}  input:\n    schema: {{properties: {{mode: {{enum: [on, off, no]}}}}}}\n"
    schema = load(text.encode(), AgentFile, path="f.yaml").agent.input.schema
    assert schema["properties"]["mode"]["enum"] == ["on", "off", "no"]


def test_a_file_with_countless_problems_is_answered_quickly_and_briefly() -> None:
    text = HEAD + "".join(f"  unknown{n}: 1\n" for n in range(40_000))
    assert len(problems(text)) == MAX_PROBLEMS
    text = HEAD + "  type: task\n" * 40_000
    assert len(problems(text)) == MAX_PROBLEMS


def test_loading_imports_nothing_before_it_is_used() -> None:
    import subprocess
    import sys

    script = (
        "import sys, atlas.vault, atlas.vault.folder, atlas.vault.validate\n"
        "print([name for name in ('yaml', 'jsonschema_rs', 'difflib', 'ctypes') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def refusal(data: bytes) -> tuple[Problem, ...]:
    """The problems of a file; none when it can be read."""
    try:
        load(data, Sample, path="s.yaml")
    except Invalid as error:
        return error.problems or (Problem("", "a refusal without a problem"),)
    return ()


@given(st.binary(max_size=200))
def test_no_bytes_make_the_loader_do_anything_but_load_or_refuse(data: bytes) -> None:
    for problem in refusal(data):
        assert problem.code
        assert problem.line >= 1
        assert problem.column >= 1


@given(st.text(alphabet=st.sampled_from(list("agentnx:-[]{}&*!|>'\"#%@,? \n\t01.\\~<")), max_size=60))
def test_no_yaml_like_text_makes_it_do_anything_else(text: str) -> None:
    for problem in refusal(text.encode()):
        assert 1 <= problem.line <= text.count("\n") + 1


@given(
    st.dictionaries(
        st.text(alphabet="abcxyz_0", min_size=1, max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(alphabet="ab: -#'\"\n\té", max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=4,
    )
)
def test_json_written_as_yaml_comes_back_unchanged(value: dict[str, Any]) -> None:
    text = msgspec.json.encode({"free": value})
    assert load(text, Sample, path="s.yaml").free == value
