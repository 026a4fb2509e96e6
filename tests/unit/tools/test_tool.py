"""`@tool`: what a function takes becomes a schema, and whatever a model could not use is refused when it is defined."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.errors import Invalid
from atlas.kernel.tool import TOOL_ATTRIBUTE
from atlas.tools.docstring import parse_docstring
from atlas.tools.tool import Tool, define, tool
from atlas.vault.validate import compile_schema

if TYPE_CHECKING:
    from decimal import Decimal


class Color(enum.Enum):
    """A color."""

    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    """A place."""

    x: int
    y: int = 0


class Order(msgspec.Struct):
    items: list[str]
    point: Point | None = None


class Options(TypedDict, total=False):
    deep: bool


def made(function: Callable[..., Any]) -> Tool:
    found: Tool = getattr(function, TOOL_ATTRIBUTE)
    return found


def schema(function: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(made(function).definition.spec.schema)
    return found


@tool(effect="read_only")
def everything(
    text: str,
    number: float,
    color: Color,
    order: Order,
    kind: Literal["a", "b"],
    names: list[str],
    free: Any,
    whole: Annotated[int, "how many", msgspec.Meta(ge=1)] = 1,
    maybe: Optional[str] = None,  # noqa: UP045 - as people write it
    flags: dict[str, bool] | None = None,
    options: Options = {},  # noqa: B006 - the function's own default, shown to the model
    effect_key: str = "",
) -> str:
    """Does all of it.

    At once.

    Args:
        text: what to say,
            in full
        whole: not used, the hint says more
        names (list[str]): who: all of them

    Returns:
        text: nothing
    """
    return text


def test_schema_comes_from_hints_docstring_and_defaults() -> None:
    definition = made(everything).definition
    assert definition.spec.name == "everything"
    assert definition.spec.description == "Does all of it.\n\nAt once."
    assert schema(everything) == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "what to say, in full"},
            "number": {"type": "number"},
            "color": {"$ref": "#/$defs/Color"},
            "order": {"$ref": "#/$defs/Order"},
            "kind": {"enum": ["a", "b"]},
            "names": {"type": "array", "items": {"type": "string"}, "description": "who: all of them"},
            "free": {},
            "whole": {"type": "integer", "minimum": 1, "description": "how many", "default": 1},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "flags": {
                "anyOf": [{"type": "object", "additionalProperties": {"type": "boolean"}}, {"type": "null"}],
                "default": None,
            },
            "options": {"$ref": "#/$defs/Options", "default": {}},
        },
        "required": ["text", "number", "color", "order", "kind", "names", "free"],
        "additionalProperties": False,
        "$defs": {
            "Color": {"description": "A color.", "enum": ["blue", "red"]},
            "Order": {
                "type": "object",
                "properties": {
                    "items": {"type": "array", "items": {"type": "string"}},
                    "point": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}], "default": None},
                },
                "required": ["items"],
            },
            "Point": {
                "description": "A place.",
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                "required": ["x"],
            },
            "Options": {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": []},
        },
    }


def test_schema_is_sound_and_what_it_admits_is_read_into_the_types_asked_for() -> None:
    value = {
        "text": "a",
        "number": 1,
        "color": "red",
        "order": {"items": ["x"], "point": {"x": 1.0}},
        "kind": "b",
        "names": [],
        "free": [1, {"a": None}],
        "whole": 2.0,
    }
    assert compile_schema(schema(everything)).complaints(value) == []
    read = made(everything).arguments(msgspec.json.encode(value))
    assert read == {
        **value,
        "color": Color.RED,
        "order": Order(["x"], Point(1)),
        "whole": 2,
    }
    with pytest.raises(Invalid, match=r"whole"):
        made(everything).arguments(msgspec.json.encode({**value, "whole": 1.5}))
    with pytest.raises(Invalid, match="unknown"):
        made(everything).arguments(msgspec.json.encode({**value, "more": 1}))


def test_a_text_that_could_be_read_as_something_else_stays_the_text_it_is() -> None:
    @tool
    def switch(
        to: Literal["null", "on"] | None, mode: Literal["true", "auto"] | bool, size: Literal["1"] | int
    ) -> None:
        """Switches."""

    given = {"to": "null", "mode": "true", "size": "1"}
    assert made(switch).arguments(msgspec.json.encode(given)) == given


def test_function_stays_a_function() -> None:
    @tool
    def bare(x: int) -> int:
        return x + 1

    @tool(name="add-one", idempotent=True, timeout_s=2, resources="file:{x}")
    async def named(x: int) -> int:
        """Adds."""
        return x + 1

    assert bare(1) == 2
    assert made(bare).definition.effect == "reversible_write"
    assert made(bare).definition.spec.description == "bare"
    assert made(bare).definition.resources is None
    definition = made(named).definition
    assert (definition.name, definition.idempotent, definition.timeout_s) == ("add-one", True, 2.0)
    assert definition.resources == ("file:{x}",)
    assert definition.where.endswith(f"test_tool.py:{named.__code__.co_firstlineno}")
    assert made(bare).definition.digest != definition.digest


def test_definitions_travel_as_json() -> None:
    definition = made(everything).definition
    kind = type(definition)
    sent = msgspec.json.encode(definition)
    assert msgspec.json.encode(msgspec.json.decode(sent, type=kind)) == sent


def test_wrapped_function_keeps_its_signature() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **given: Any) -> Any:
            return function(*args, **given)

        return wrapper

    @tool
    @logged
    def doubled(x: int) -> int:
        """Doubles."""
        return 2 * x

    assert schema(doubled)["properties"] == {"x": {"type": "integer"}}
    assert doubled(2) == 4


def test_methods_of_two_things_are_two_tools() -> None:
    ann, bob = Sender("ann"), Sender("bob")
    send, later = tool(effect="read_only", name="send_ann")(ann.send), tool(effect="read_only")(bob.send_later)
    assert [made(one).definition.effect for one in (send, later)] == ["read_only", "read_only"]
    assert schema(send) == schema(later) == schema(tool(Sender("x").send))
    assert list(schema(send)["properties"]) == ["to"]
    assert made(send).function(to="us") == "ann to us"
    assert asyncio.run(made(later).function(to="us")) == "bob to us"


def test_nothing_is_offered_once_where_a_described_parameter_says_it_already() -> None:
    def look(depth: Annotated[int | None, "How deep."] = None) -> None:
        """Looks."""

    [depth] = schema(tool(look))["properties"].values()
    assert depth["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert made(look).arguments(b'{"depth": null}') == {"depth": None}


def test_what_is_nothing_when_it_is_left_out_may_be_said_to_be_nothing() -> None:
    def look(depth: int = None) -> None:  # type: ignore[assignment]  # noqa: RUF013
        """Looks."""

    assert compile_schema(schema(tool(look))).complaints({"depth": None}) == []
    assert made(look).arguments(b'{"depth": null}') == {"depth": None}


class Strange:
    """Nothing that JSON knows."""


def no_hint(x):  # type: ignore[no-untyped-def]
    pass


def strange(x: Strange) -> None: ...
def strange_list(x: list[Strange]) -> None: ...
def strange_default(x: int, y: dict[str, Strange] | None = None) -> None: ...
def function(x: Callable[[int], int]) -> None: ...
def not_imported(x: Decimal) -> None: ...
def stars(*x: int) -> None: ...
def double_stars(**x: int) -> None: ...
def positional(x: int, /) -> None: ...
def two_objects(x: Point | Order) -> None: ...
def underlined(x: int, __x: int) -> None: ...


class Sender:
    """Sends, under a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def send(self, to: str) -> str:
        """Sends."""
        return f"{self.name} to {to}"

    async def send_later(self, to: str) -> str:
        """Sends later."""
        return self.send(to)


@pytest.mark.parametrize(
    "bad, said",
    [
        (no_hint, "parameter x has no type hint"),
        (strange, "parameter x has a type that a model cannot fill in: type .*Strange"),
        (strange_list, "parameter x"),
        (strange_default, "parameter y"),
        (function, "parameter x"),
        (not_imported, "hints of not_imported cannot be read: name 'Decimal'"),
        (stars, r"\*x"),
        (double_stars, r"\*\*x"),
        (positional, "parameter x"),
        (two_objects, "parameter x .*more than one"),
        (underlined, "the parameters of underlined"),
        (Sender.send, "parameter self has no type hint"),
    ],
)
def test_what_a_model_could_not_use_is_refused_with_the_place_and_a_hint(bad: Callable[..., Any], said: str) -> None:
    with pytest.raises(Invalid, match=said) as caught:
        tool(bad)
    assert caught.value.where.endswith(f"test_tool.py:{bad.__code__.co_firstlineno}")
    assert caught.value.hint
    assert not hasattr(bad, TOOL_ATTRIBUTE)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"effect": "harmless"}, "unknown effect class"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": True}, "timeout_s"),
        ({"timeout_s": 1e9}, "timeout_s"),
        ({"timeout_s": "5"}, "timeout_s"),
        ({"name": "two words"}, "not a name"),
        ({"name": ""}, "not a name"),
        ({"probe": "find"}, "probe"),
        ({"resources": ("file:{missing}",)}, "missing"),
    ],
)
def test_wrong_declarations_are_refused(options: dict[str, Any], said: str) -> None:
    def fine(x: int) -> None: ...

    with pytest.raises(Invalid, match=said):
        tool(**options)(fine)


@pytest.mark.parametrize("thing", [Strange, Strange(), 3, len, "read_only"])
def test_only_functions_can_be_tools(thing: Any) -> None:
    with pytest.raises(Invalid, match="marks a function"):
        tool(thing)


def test_hidden_parameters_are_not_offered() -> None:
    def inner(path: str, *, folder: Strange) -> None: ...

    assert list(define(inner, hidden=("folder",)).signature.schema["properties"]) == ["path"]


@pytest.mark.parametrize(
    "written, text, parameters",
    [
        (None, "", {}),
        ("One line.", "One line.", {}),
        ("One.\n\n    Two\n    lines.\n", "One.\n\nTwo\nlines.", {}),
        (
            "Does.\n\n    Args:\n        a: first\n        b (int): second: two\n",
            "Does.",
            {"a": "first", "b": "second: two"},
        ),
        ("Does.\n\n    Arguments:\n        *a: rest\n\n    Raises:\n        X: never\n", "Does.", {"a": "rest"}),
        ("Note: this is text.", "Note: this is text.", {}),
    ],
)
def test_docstrings(written: str | None, text: str, parameters: dict[str, str]) -> None:
    assert parse_docstring(written) == (text, parameters)


@given(st.text(max_size=80))
def test_any_docstring_is_read(written: str) -> None:
    text, _ = parse_docstring(written)
    assert set(text.split()) <= set(written.split())
    said, _ = parse_docstring(f"X.\n\nArgs:\n    {written}")
    assert said.startswith("X.")
