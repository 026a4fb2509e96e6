"""Whether a JSON Schema lies in the part that servers enforce to the letter.

OpenAI and Anthropic refuse a request that asks for strict output with any other schema, so the question has to be answered
before. Every object must list all its properties as required and allow no others.
"""

from __future__ import annotations

from typing import Any

_KNOWN = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "description",
        "enum",
        "items",
        "properties",
        "required",
        "title",
        "type",
    }
)


def is_strict(schema: Any, *, is_root: bool = True) -> bool:
    """True when the schema is an object that can be enforced as it stands."""
    if not isinstance(schema, dict) or not schema.keys() <= _KNOWN:
        return False
    if is_root and (schema.get("type") != "object" or "anyOf" in schema):
        return False
    if "$ref" in schema:
        return True
    properties = schema.get("properties", {})
    if schema.get("type") == "object" or "properties" in schema:
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties):
            return False
    elif not schema.keys() & {"type", "anyOf", "enum", "const"}:
        return False
    inner = [*properties.values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    if "items" in schema:
        inner.append(schema["items"])
    return all(is_strict(each, is_root=False) for each in inner)
