"""Answers of a wanted shape where the wire has no format for answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from atlas.kernel.model import Message, ModelError, Reply, Request, Text, Thinking, ToolCall, ToolSpec, Usage
from atlas.models.final_tool import FinalTool, offered
from atlas.models.manner import NONE, OF_MESSAGES, TOOL_ONLY, Learned, Manners
from unit.models.conversation import TOOL, anthropic_model, body

OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
DEFINED = {"$defs": {"x": {"type": "string"}}, "type": "array", "items": {"$ref": "#/$defs/x"}}


def wanting(schema: dict[str, Any], *tools: ToolSpec, **more: Any) -> Request:
    raw = msgspec.Raw(json.dumps(schema).encode())
    return Request("m", ("s",), (Message("user", (Text("Go."),)),), tools, output_schema=raw, **more)


def tool_of(request: Request) -> FinalTool:
    _, tool = offered(request)
    assert tool is not None
    return tool


def replied(*parts: Any, stop: Any = "tool_call") -> Reply:
    return Reply(parts, stop, Usage(), "m")


def test_messages_wire_is_given_the_schema_as_a_tool_it_must_call() -> None:
    sent = body(anthropic_model(), wanting(OBJECT))
    assert [(tool["name"], tool["input_schema"]) for tool in sent["tools"]] == [("final_answer", OBJECT)]
    assert sent["tool_choice"] == {"type": "any"}


def test_anthropic_itself_enforces_a_shape_that_it_can_and_is_given_the_tool_for_any_other() -> None:
    model = anthropic_model(base_url="https://api.anthropic.com")
    closed = {**OBJECT, "additionalProperties": False}
    sent = body(model, wanting(closed, TOOL))
    assert sent["output_config"] == {"format": {"type": "json_schema", "schema": closed}}
    assert [tool["name"] for tool in sent["tools"]] == ["look"]
    for where, schema in ((model, OBJECT), (anthropic_model(), closed)):
        sent = body(where, wanting(schema, TOOL))
        assert ([tool["name"] for tool in sent["tools"]], "output_config" in sent) == (["look", "final_answer"], False)
    sent = json.loads(asyncio.run(model.body(wanting(closed), TOOL_ONLY)))
    assert ([tool["name"] for tool in sent["tools"]], "output_config" in sent) == (["final_answer"], False)


@pytest.mark.parametrize(
    "complaint",
    [
        "output_config.format: Extra inputs are not permitted",
        "Schema is too complex for compilation.",
        "This model does not support the structured output format.",
    ],
)
def test_a_model_of_anthropic_that_takes_no_format_is_given_the_tool(complaint: str) -> None:
    asked: list[Manners] = []

    async def ask(manners: Manners) -> Reply:
        asked.append(manners)
        if len(asked) == 1:
            raise ModelError("invalid", f"anthropic answered 400: {complaint}")
        return replied(Text("{}"))

    asyncio.run(Learned(OF_MESSAGES).ask(wanting(OBJECT), NONE, ask))
    assert asked == [NONE, TOOL_ONLY]


def test_beside_other_tools_the_model_chooses() -> None:
    sent = body(anthropic_model(), wanting(OBJECT, TOOL))
    assert [tool["name"] for tool in sent["tools"]] == ["look", "final_answer"]
    assert "tool_choice" not in sent


def test_where_no_tool_may_be_called_only_the_answer_is_left() -> None:
    asked, _ = offered(wanting(OBJECT, TOOL, tool_choice="none"))
    assert [tool.name for tool in asked.tools] == ["final_answer"]
    assert asked.tool_choice == "required"


def test_an_agents_own_tool_of_that_name_keeps_it() -> None:
    asked, tool = offered(wanting(OBJECT, ToolSpec("final_answer", "Mine.", msgspec.Raw(b"{}"))))
    assert tool is not None
    assert [each.name for each in asked.tools] == ["final_answer", tool.name]
    assert tool.name != "final_answer"


def test_a_request_without_a_schema_stays_as_it_is() -> None:
    request = Request("m", (), (Message("user", (Text("Go."),)),), (TOOL,))
    assert offered(request) == (request, None)


@pytest.mark.parametrize("schema", [{"type": "array"}, {"anyOf": [OBJECT]}, {**OBJECT, "oneOf": [{}]}, DEFINED])
def test_what_is_no_plain_object_is_wrapped_into_one_and_out_again(schema: dict[str, Any]) -> None:
    asked, tool = offered(wanting(schema))
    assert tool is not None
    sent = json.loads(bytes(asked.tools[-1].schema))
    assert sent["type"] == "object"
    assert sent["properties"]["answer"] == schema
    assert sent.get("$defs") == schema.get("$defs")
    reply = tool.settled(replied(ToolCall("c", tool.name, '{"answer": ["a", 1]}')))
    assert (reply.parts, reply.stop) == ((Text('["a", 1]'),), "end")


@pytest.mark.parametrize("args", ['{"other": 1}', "[1]", '{"answer"'])
def test_a_wrapped_answer_without_its_wrap_is_left_for_the_check(args: str) -> None:
    assert tool_of(wanting(DEFINED)).settled(replied(ToolCall("c", "final_answer", args))).parts == (Text(args),)


def test_the_call_is_the_whole_answer_and_words_around_it_are_thoughts() -> None:
    reply = tool_of(wanting(OBJECT)).settled(replied(Text("Here:"), ToolCall("c", "final_answer", '{"n": 1}')))
    assert reply.parts == (Thinking("Here:"), Text('{"n": 1}'))
    assert reply.stop == "end"


def test_an_answer_that_was_cut_off_is_no_beginning_to_go_on_from() -> None:
    reply = tool_of(wanting(OBJECT)).settled(replied(ToolCall("c", "final_answer", '{"n'), stop="length"))
    assert (reply.parts, reply.stop) == ((Text('{"n'),), "end")


def test_other_calls_come_first_and_the_answer_is_not_lost() -> None:
    call = ToolCall("c2", "look", "{}")
    reply = tool_of(wanting(OBJECT, TOOL)).settled(replied(ToolCall("c", "final_answer", '{"n": 1}'), call))
    assert (reply.parts, reply.stop) == ((Text('{"n": 1}'), call), "tool_call")


def test_an_answer_in_words_is_left_for_the_check() -> None:
    reply = replied(Text("One."), stop="end")
    assert tool_of(wanting(OBJECT)).settled(reply) is reply
