"""Answers of a wanted shape where a provider has no format for answers: a tool that the model calls with its answer.

A wire that does not send `Request.output_schema` sends what `offered` makes of the request. The call comes back as the
words it stands for, so that above the wire an answer looks the same from every provider.
"""

from __future__ import annotations

import msgspec

from atlas.kernel.model import Part, Reply, Request, Text, Thinking, ToolCall, ToolSpec

_NAME = "final_answer"
_ARGUMENT = "answer"
_DESCRIPTION = (
    "Gives the final answer, in the shape that is wanted. Call it once, by itself, when everything else is done; "
    "an answer that is given in words does not count."
)
# What a tool's parameters may not be at their top.
_NOT_AT_TOP = ("anyOf", "oneOf", "allOf", "$ref")


class FinalTool(msgspec.Struct, frozen=True):
    """The tool of one request. `is_wrapped`: the answer is its one argument, because it need not be an object."""

    name: str
    is_wrapped: bool

    @property
    def spoken(self) -> str | None:
        """The name of the tool whose arguments are the answer's own words and can be told as they come."""
        return None if self.is_wrapped else self.name

    def settled(self, reply: Reply) -> Reply:
        """The reply with the call of this tool as the words it stands for.

        They are the whole answer unless other tools are called too; words around them are kept as thoughts then.
        """
        parts = [part for part in reply.parts if not self._is_mine(part)]
        answers = [part for part in reply.parts if self._is_mine(part)]
        if not answers:
            return reply
        text = Text(self._answer(answers[-1]))
        if any(isinstance(part, ToolCall) for part in parts):
            return msgspec.structs.replace(reply, parts=(text, *parts))
        around = [Thinking(part.text) if isinstance(part, Text) else part for part in parts]
        # A call that was cut off cannot be gone on with, only made again: it is a whole answer, and does not fit.
        stop = "end" if reply.stop in ("tool_call", "length") else reply.stop
        return msgspec.structs.replace(reply, parts=(*around, text), stop=stop)

    def _is_mine(self, part: Part) -> bool:
        return isinstance(part, ToolCall) and part.name == self.name

    def _answer(self, call: Part) -> str:
        args = call.args if isinstance(call, ToolCall) else ""
        if not self.is_wrapped:
            return args
        try:
            return bytes(msgspec.json.decode(args, type=dict[str, msgspec.Raw])[_ARGUMENT]).decode()
        except (msgspec.DecodeError, KeyError):
            return args  # as the model wrote it: whoever checks the answer says what is wrong with it


def offered(request: Request) -> tuple[Request, FinalTool | None]:
    """The request with its output schema as the schema of a final tool, and that tool; as it was when it has none."""
    schema = request.output_schema
    if schema is None:
        return request, None
    name, taken = _NAME, {tool.name for tool in request.tools}
    while name in taken:
        name += "_"
    shape = msgspec.json.decode(schema)
    is_wrapped = shape.get("type") != "object" or any(word in shape for word in _NOT_AT_TOP)
    tool = ToolSpec(name, _DESCRIPTION, _wrapped(schema, shape.get("$defs")) if is_wrapped else schema)
    # With other tools the model chooses; alone, this one is the only way to answer.
    others = () if request.tool_choice == "none" else request.tools
    asked = msgspec.structs.replace(
        request, tools=(*others, tool), output_schema=None, tool_choice=request.tool_choice if others else "required"
    )
    return asked, FinalTool(name, is_wrapped)


def _wrapped(schema: msgspec.Raw, definitions: object) -> msgspec.Raw:
    shape: dict[str, object] = {
        "type": "object",
        "properties": {_ARGUMENT: schema},
        "required": [_ARGUMENT],
        "additionalProperties": False,
    }
    if definitions is not None:  # its references count from the top
        shape["$defs"] = definitions
    return msgspec.Raw(msgspec.json.encode(shape))
