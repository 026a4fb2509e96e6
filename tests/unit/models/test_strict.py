"""Which schemas may be enforced to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from atlas.models.strict import is_strict

CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    "schema, strict",
    [
        (CLOSED, True),
        ({**CLOSED, "description": "d", "title": "t"}, True),
        ({**CLOSED, "properties": {"a": CLOSED}}, True),
        ({**CLOSED, "properties": {"a": {"type": "array", "items": CLOSED}}}, True),
        ({**CLOSED, "properties": {"a": {"anyOf": [{"type": "null"}, CLOSED]}}}, True),
        ({**CLOSED, "properties": {"a": {"enum": [1, 2]}}}, True),
        ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": CLOSED}}, True),
        ({**CLOSED, "required": []}, False),
        ({k: v for k, v in CLOSED.items() if k != "additionalProperties"}, False),
        ({**CLOSED, "additionalProperties": True}, False),
        ({**CLOSED, "properties": {"a": {"type": "string", "minLength": 3}}}, False),
        ({**CLOSED, "properties": {"a": {}}}, False),
        ({**CLOSED, "properties": {"a": True}}, False),
        ({**CLOSED, "properties": {"a": {"type": "array", "items": {"type": "object"}}}}, False),
        ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "object"}}}, False),
        ({"type": "array", "items": CLOSED}, False),
        ({"anyOf": [CLOSED]}, False),
        ({}, False),
        (True, False),
    ],
)
def test_only_closed_objects_of_known_words_are_strict(schema: Any, strict: bool) -> None:
    assert is_strict(schema) is strict
