"""JSON Schema for input and output: soundness of schemas, defaults, checks."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.errors import Invalid
from atlas.vault.validate import MAX_DEPTH, Validator, compile_schema, json_path, not_json, unsound


def filled(schema: dict[str, Any], value: Any) -> Any:
    return compile_schema(schema).apply_defaults(value)


def broken(schema: dict[str, Any], value: Any) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in compile_schema(schema).check(value)]


def reasons(schema: Any) -> list[tuple[str, tuple[str | int, ...]]]:
    return [(found.code, found.path) for found in unsound(schema)]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_defaults_fill_what_is_absent_and_only_that() -> None:
    schema = {"properties": {"a": {"default": 1}, "b": {"default": 2}, "c": {}}}
    assert filled(schema, {}) == {"a": 1, "b": 2}
    assert filled(schema, {"a": None, "b": 0}) == {"a": None, "b": 0}


def test_defaults_reach_into_nested_objects_lists_and_references() -> None:
    schema = {
        "properties": {
            "child": {"properties": {"x": {"default": 1}}},
            "items": {"items": {"$ref": "#/$defs/item"}},
            "pair": {"prefixItems": [{"properties": {"y": {"default": 2}}}], "items": {"$ref": "#item"}},
        },
        "$defs": {"item": {"$anchor": "item", "properties": {"z": {"default": 3}}}},
        "allOf": [{"properties": {"w": {"default": 4}}}],
    }
    value = {"child": {}, "items": [{}, {"z": 0}, 5], "pair": [{}, {}]}
    assert filled(schema, value) == {
        "child": {"x": 1},
        "items": [{"z": 3}, {"z": 0}, 5],
        "pair": [{"y": 2}, {"z": 3}],
        "w": 4,
    }


def test_a_parent_is_invented_only_when_it_has_a_default_itself() -> None:
    inner = {"properties": {"x": {"default": 1}}}
    assert filled({"properties": {"p": inner}}, {}) == {}
    assert filled({"properties": {"p": {**inner, "default": {}}}}, {}) == {"p": {"x": 1}}
    assert filled({"properties": {"p": {"$ref": "#/$defs/p"}}, "$defs": {"p": {**inner, "default": {}}}}, {}) == {
        "p": {"x": 1}
    }


def test_the_nearest_default_wins() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/a", "default": "near"}}, "$defs": {"a": {"default": "far"}}}
    assert filled(schema, {}) == {"a": "near"}
    schema = {"properties": {"a": {"default": 1}}, "allOf": [{"properties": {"a": {"default": 2}}}]}
    assert filled(schema, {}) == {"a": 1}


def test_alternatives_give_no_defaults() -> None:
    part = {"properties": {"a": {"default": 1}}}
    for keyword in ("anyOf", "oneOf"):
        assert filled({keyword: [part]}, {}) == {}
    assert filled({"if": part, "then": part, "not": {"required": ["zz"]}}, {}) == {}


def test_filling_changes_neither_the_value_nor_the_schema() -> None:
    schema = {"properties": {"a": {"default": []}, "b": {"properties": {"c": {"default": 1}}}}}
    value = {"b": {}}
    before = copy.deepcopy((schema, value))
    one = filled(schema, value)
    one["a"].append("mine")
    assert (schema, value) == before
    assert filled(schema, value) == {"a": [], "b": {"c": 1}}


def test_references_that_go_in_circles_end() -> None:
    assert filled({"$ref": "#"}, {"a": 1}) == {"a": 1}
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}}
    assert filled(loop, {}) == {}
    tree = {"properties": {"kids": {"items": {"$ref": "#"}}, "name": {"default": "?"}}}
    assert filled(tree, {"kids": [{"kids": [{}]}]}) == {
        "name": "?",
        "kids": [{"name": "?", "kids": [{"name": "?"}]}],
    }


def test_defaults_without_end_are_refused_before_any_run() -> None:
    assert reasons({"properties": {"a": {"$ref": "#", "default": {}}}}) == [("json_schema_default", ())]
    doubling = {
        "$ref": "#/$defs/d0",
        "$defs": {
            f"d{n}": {"properties": {key: {"$ref": f"#/$defs/d{n + 1}", "default": {}} for key in "ab"}}
            for n in range(40)
        }
        | {"d40": {}},
    }
    began = time.process_time()
    assert reasons(doubling) == [("json_schema_default", ())]
    assert time.process_time() - began < 2


def test_many_references_to_one_part_are_cheap() -> None:
    schema: dict[str, Any] = {"$ref": "#/$defs/d0", "$defs": {"d60": {"properties": {"a": {"default": 1}}}}}
    for n in range(60):
        schema["$defs"][f"d{n}"] = {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2}
    assert filled(schema, {}) == {"a": 1}


def test_an_embedded_resource_has_references_of_its_own() -> None:
    schema = {
        "properties": {"a": {"$id": "urn:inner", "$ref": "#/$defs/x", "$defs": {"x": {"default": 1}}}},
        "$defs": {"x": {"default": 2}},
    }
    assert filled(schema, {}) == {"a": 1}


@pytest.mark.parametrize(
    "schema, value, code, path",
    [
        ({"type": "object"}, [], "schema_type", "$"),
        ({"required": ["a"]}, {}, "schema_required", "$"),
        ({"properties": {"a": {"type": "string"}}}, {"a": 1}, "schema_type", "$.a"),
        ({"properties": {"a b": {"type": "string"}}}, {"a b": 1}, "schema_type", "$['a b']"),
        ({"properties": {"a'b": {"type": "string"}}}, {"a'b": 1}, "schema_type", "$['a\\'b']"),
        ({"items": {"items": {"maximum": 1}}}, [[0], [0, 2]], "schema_maximum", "$[1][1]"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"x": 1}, "schema_additional_properties", "$"),
        ({"properties": {"a": {"enum": ["x"]}}}, {"a": "y"}, "schema_enum", "$.a"),
        ({"pattern": "^a"}, "b", "schema_pattern", "$"),
        ({"format": "date"}, "yesterday", "schema_format", "$"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "schema_any_of", "$"),
    ],
)
def test_a_value_that_breaks_the_schema_names_the_path(
    schema: dict[str, Any], value: Any, code: str, path: str
) -> None:
    assert broken(schema, value) == [(code, path)]


def test_a_good_value_has_no_problems_and_all_problems_come_at_once() -> None:
    schema = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["c"]}
    assert broken(schema, {"a": "x", "b": 1.0, "c": None}) == []
    assert sorted(broken(schema, {"a": 1, "b": "x"})) == [
        ("schema_required", "$"),
        ("schema_type", "$.a"),
        ("schema_type", "$.b"),
    ]


def test_a_complaint_reads_as_one_line_and_shows_small_values_only() -> None:
    validator = compile_schema({"properties": {"a": {"type": "integer"}, "b": {"maxLength": 3}}})
    assert validator.complaints({"a": "x"}) == ['$.a: the value is not of type "integer" (it is "x")']
    (line,) = validator.complaints({"b": "long" * 10_000})
    assert len(line) < 200


@pytest.mark.parametrize(
    "value, path",
    [
        (float("nan"), "$"),
        ({"a": [1, float("inf")]}, "$.a[1]"),
        ({1: 2}, "$"),
        ({"a": {1, 2}}, "$.a"),
        (b"bytes", "$"),
        (object(), "$"),
        ("\ud800", "$"),
        ({"\udfff": 1}, "$"),
        pytest.param(10**5000, "$", id="long number"),
        (nested(MAX_DEPTH + 1), "$" + "[0]" * (MAX_DEPTH + 1)),
        (nested(100_000), "$" + "[0]" * (MAX_DEPTH + 1)),
    ],
)
def test_what_is_not_json_never_reaches_the_validator(value: Any, path: str) -> None:
    validator = compile_schema({})
    assert [(problem.code, problem.path) for problem in validator.check(value)] == [("not_json", path)]
    with pytest.raises(Invalid) as caught:
        validator.apply_defaults(value)
    assert caught.value.reason == "not_json"


def test_json_is_json() -> None:
    value = {"a": [None, True, 1, -1.5, "ü", {}], "b": nested(MAX_DEPTH - 2), "c": 2**1000, "d": (1, 2)}
    assert not_json(value) == []
    assert broken({"maximum": 5}, 2**1000) == [("schema_maximum", "$")]


@pytest.mark.parametrize(
    "schema, code, path",
    [
        ({"type": "strin"}, "json_schema", ("type",)),
        ({"type": ["string", "foo"]}, "json_schema", ("type",)),
        ({"properties": {"a": {"minimum": "x"}}}, "json_schema", ("properties", "a", "minimum")),
        ({"properties": {"a": 3}}, "json_schema", ("properties", "a")),
        ({"required": "a"}, "json_schema", ("required",)),
        ({"items": [{}]}, "json_schema", ("items",)),
        ({"pattern": "("}, "json_schema", ("pattern",)),
        ({"minLength": -1}, "json_schema", ("minLength",)),
        ({"allOf": []}, "json_schema", ("allOf",)),
        ({"$ref": "http://example.com/x"}, "json_schema_remote_ref", ("$ref",)),
        ({"$ref": "file:///etc/passwd"}, "json_schema_remote_ref", ("$ref",)),
        ({"$ref": "other.json#/a"}, "json_schema_remote_ref", ("$ref",)),
        ({"$ref": ""}, "json_schema_remote_ref", ("$ref",)),
        ({"anyOf": [{"$dynamicRef": "http://x/y"}]}, "json_schema_remote_ref", ("anyOf", 0, "$dynamicRef")),
        ({"not": {"$ref": "#/$defs/x"}}, "json_schema_ref", ("not", "$ref")),
        ({"if": {"$ref": "#nowhere"}}, "json_schema_ref", ("if", "$ref")),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "json_schema_dialect", ("$schema",)),
        ([], "json_schema", ()),
        (3, "json_schema", ()),
        ({"default": float("nan")}, "json_schema", ()),
        (nested(500), "json_schema", ()),
    ],
)
def test_an_unsound_schema_is_refused_at_the_part_that_is_wrong(
    schema: Any, code: str, path: tuple[str | int, ...]
) -> None:
    assert reasons(schema) == [(code, path)]
    with pytest.raises(Invalid) as caught:
        compile_schema(schema)
    assert caught.value.problems[0].path == json_path(path)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:a", "type": "object"},
        {"properties": {"$ref": {"type": "string"}, "type": {"type": "string"}}},
        {"const": {"$ref": "http://example.com"}},
        {"default": {"$ref": "http://example.com"}},
        {"enum": [{"$ref": "http://example.com"}]},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}}},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {}}},
        {"$ref": "#/allOf/1", "allOf": [{}, {"type": "object"}]},
        {"$ref": "#x", "$defs": {"d": {"$anchor": "x"}}},
        {"$dynamicRef": "#x", "$defs": {"d": {"$dynamicAnchor": "x"}}},
        {"title": "t", "x-mine": {"$ref": "http://example.com"}},
    ],
)
def test_a_sound_schema_is_sound(schema: dict[str, Any]) -> None:
    assert reasons(schema) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-100, 100) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
schemas = st.recursive(
    st.fixed_dictionaries({}, optional={"default": json_values, "$ref": st.sampled_from(["#", "#/$defs/d"])}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "default": json_values,
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "items": inner,
            "allOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=6,
)


def keeps(before: Any, after: Any) -> bool:
    """True when `after` is `before` with more keys in its objects, and nothing else."""
    if isinstance(before, dict):
        return isinstance(after, dict) and all(key in after and keeps(before[key], after[key]) for key in before)
    if isinstance(before, list):
        return isinstance(after, list) and len(before) == len(after) and all(map(keeps, before, after))
    return before == after and type(before) is type(after)


@given(schemas, schemas, json_values)
def test_filling_keeps_everything_that_was_there_and_is_done_after_once(
    schema: dict[str, Any], part: dict[str, Any], value: Any
) -> None:
    whole = {**schema, "$defs": {"d": part}}
    if unsound(whole):
        return
    validator = Validator(whole)
    try:
        once = validator.apply_defaults(value)
    except Invalid as error:
        assert error.reason == "json_schema_default"  # noqa: PT017
        return
    assert keeps(value, once)
    assert validator.apply_defaults(once) == once
