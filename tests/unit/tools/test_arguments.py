"""Checking a model's call: whatever it wrote, it gets words it can act on, and never an exception."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.model import ToolCall, ToolResult
from atlas.tools.arguments import ArgumentCheck, Checked
from atlas.tools.tool import define
from atlas.vault.validate import compile_schema


def send_mail(
    to: str, kind: Literal["note", "letter"] = "note", copies: Annotated[int, msgspec.Meta(ge=1)] = 1
) -> None:
    """Sends a mail."""


class Size(enum.Enum):
    BIG = "big"
    SMALL = "small"


def ping() -> None:
    """Pings."""


TOOLS = {one.definition.name: one.definition for one in (define(send_mail), define(ping))}
CHECK = ArgumentCheck(compile_schema)


def check(name: str, args: str) -> Checked | ToolResult:
    return CHECK.check(ToolCall("c1", name, args), TOOLS)


def complaint(name: str, args: str) -> str:
    found = check(name, args)
    assert isinstance(found, ToolResult)
    assert (found.id, found.is_error) == ("c1", True)
    return found.text


def test_call_that_fits_is_ready_to_be_performed() -> None:
    found = check("send_mail", ' {"to": "é", "copies": 2.0}\n')
    assert isinstance(found, Checked)
    assert found.value == {"to": "é", "copies": 2}
    assert found.args == '{"to":"é","copies":2.0}'.encode()
    assert found.definition is TOOLS["send_mail"]


@pytest.mark.parametrize("args", ["", "  ", "{}"])
def test_no_arguments_may_be_written_as_nothing(args: str) -> None:
    found = check("ping", args)
    assert isinstance(found, Checked)
    assert found.args == b"{}"


@pytest.mark.parametrize("name, guess", [("send_mial", "send_mail"), ("Ping", "ping"), ("SEND_MAIL", "send_mail")])
def test_unknown_tool_gets_a_guess_and_the_list(name: str, guess: str) -> None:
    text = complaint(name, "{}")
    assert f"Did you mean {guess}?" in text
    assert "The tools are: ping, send_mail." in text


def test_unknown_tool_like_no_other_gets_the_list_alone() -> None:
    assert complaint("x" * 500, "{}").count("x") < 100
    assert "Did you mean" not in complaint("zzz", "{}")
    none = ArgumentCheck(compile_schema).check(ToolCall("c1", "a", ""), {})
    assert isinstance(none, ToolResult)
    assert "none" in none.text


def test_parameters_are_named_with_what_they_may_be() -> None:
    def order(size: Size, note: str | None = None, sizes: list[Size] | Size | None = None) -> None: ...

    found = ArgumentCheck(compile_schema).check(ToolCall("c1", "order", "{}"), {"order": define(order).definition})
    assert isinstance(found, ToolResult)
    sizes = 'one of "big", "small"'
    expected = f"order takes size ({sizes}, required), note (string or null), sizes (array or {sizes} or null)."
    assert expected in found.text


@pytest.mark.parametrize(
    "args, said",
    [
        ('{"to": "a"', 'they end too early, after \'{"to": "a"\''),
        ('{"to": a}', "at line 1, column 8, after '{\"to\": ' and before"),
        ('{"to": "a"} {"to": "b"}', "Extra data"),
        ('{"to": NaN}', "NaN is not a JSON number"),
        ('\ufeff{"to": "x"}', "The arguments are not JSON: Unexpected UTF-8 BOM"),
        ('["a"]', "must be one JSON object"),
        ('"a"', "must be one JSON object"),
        ("null", "must be one JSON object"),
        ("[" * 100_000, "deeper than 100 levels"),
        ("{}", '- $: "to" is a required property'),
        ('{"to": 1}', "- $.to: "),
        ('{"to": "a", "copies": 0, "kind": "x"}', "- $.copies: "),
        ('{"to": "a", "cc": "b"}', "cc"),
    ],
)
def test_arguments_that_do_not_fit_get_the_place_and_what_is_expected(args: str, said: str) -> None:
    text = complaint("send_mail", args)
    assert said in text
    assert 'send_mail takes to (string, required), kind (one of "letter", "note"), copies (integer).' in text
    assert len(text) < 2_000


def test_arguments_that_nest_deeper_than_anything_walks_are_wrong_and_the_model_is_told_so() -> None:
    assert "deeper than 100 levels" in complaint("send_mail", nested(101))
    assert "deeper than 100 levels" in complaint("send_mail", nested(900))
    assert "deeper than" not in complaint("send_mail", nested(100))
    # Brackets in a text are no levels.
    assert isinstance(check("send_mail", json.dumps({"to": '["' * 300})), Checked)


def nested(levels: int) -> str:
    return '{"to": ' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


@given(st.text(max_size=30), st.text(max_size=200))
def test_nothing_a_model_writes_raises(name: str, args: str) -> None:
    check(name, args)
    check("send_mail", args)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_no_json_a_model_writes_raises(value: object) -> None:
    check("send_mail", json.dumps(value))
    check("send_mail", json.dumps({"to": value}))
