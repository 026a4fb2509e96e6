"""`Agent`: a prompt agent that is defined in code, from instructions and functions instead of a folder.

    Agent(name="helper", instructions="You answer briefly.", tools=[look_up], model="fast")

Whatever could not run is refused here, when it is written, and not when it is asked something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from atlas.kernel.contract import Contract
from atlas.kernel.errors import Invalid
from atlas.kernel.tool import TOOL_ATTRIBUTE
from atlas.tools.builtin import NAMES
from atlas.tools.tool import Tool, define


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A prompt agent: words, and functions that it may call in this process.

    `tools` are typed functions, sync or async, with or without `@tool`; without it a function counts as a
    `reversible_write`. `model` is a tier or `provider:model`. With an `output_schema` (JSON Schema) the answer is JSON of
    that shape. `budget` says what `budget:` of an agent.yaml says; a number is US dollars per run.
    """

    name: str
    instructions: str
    tools: Sequence[Callable[..., Any]] = ()
    model: str = "balanced"
    output_schema: Mapping[str, Any] | None = None
    budget: Mapping[str, Any] | float | None = None
    timeout_s: float | None = None
    description: str = ""
    version: str = "0.0.0"
    contract: Contract = field(init=False, repr=False, compare=False)
    loaded: tuple[Tool, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        said: object = self.instructions
        if not isinstance(said, str) or not said.strip():
            raise Invalid(f"agent {self.name} has no instructions", hint=_SAY_WHO, code="contract_invalid")
        if callable(self.tools) or isinstance(self.tools, str | Mapping):
            raise Invalid(f"tools of agent {self.name} is a list of functions", code="contract_invalid")
        object.__setattr__(self, "tools", tuple(self.tools))
        object.__setattr__(self, "contract", _contract(self))
        object.__setattr__(self, "loaded", _loaded(self))


_SAY_WHO = "Say in a sentence or more who it is and what it does."
_HINTS = {
    "name": "A name has lower-case letters, digits, - and _.",
    "model": "A model is a tier (fast, balanced, powerful) or provider:model.",
    "budget": "A budget is US dollars per run, or what budget: of an agent.yaml says.",
}


def _contract(agent: Agent) -> Contract:
    """What its agent.yaml would say."""
    budget = {} if agent.budget is None else {"usd_per_run": agent.budget}
    written = {
        "name": agent.name,
        "version": agent.version,
        "description": agent.description or f"{agent.name}, defined in code",
        "runtime": "prompt",
        "model": {"preference": agent.model},
        "output": {"schema": {} if agent.output_schema is None else agent.output_schema},
        "budget": agent.budget if isinstance(agent.budget, Mapping) else budget,
        "timeout_s": agent.timeout_s,
        # Whoever gives it a tool in code gives it what that tool declares.
        "secrets": sorted({name for function in agent.tools for name in _declared(function)}),
    }
    try:
        contract = msgspec.convert(written, Contract)
    except msgspec.ValidationError as error:
        raise _refused(agent, str(error)) from None
    for finding in contract.findings():
        raise _refused(agent, finding.message)
    return contract


def _declared(function: Callable[..., Any]) -> tuple[str, ...]:
    tool: Tool | None = getattr(function, TOOL_ATTRIBUTE, None)
    return tool.definition.secrets if tool is not None else ()


def _refused(agent: Agent, message: str) -> Invalid:
    hint = next((hint for key, hint in _HINTS.items() if f"`$.{key}" in message), "")
    return Invalid(f"the agent {agent.name!r} is not valid: {message}", hint=hint, code="contract_invalid")


def _loaded(agent: Agent) -> tuple[Tool, ...]:
    found: dict[str, Tool] = {}
    for function in agent.tools:
        tool = getattr(function, TOOL_ATTRIBUTE, None) or define(function)
        name = tool.definition.name
        if name in NAMES:
            raise Invalid(
                f"{name} is the name of a built-in tool",
                where=tool.definition.where,
                hint='Rename it, or give it @tool(name="...").',
                code="tool_name_reserved",
            )
        if name in found:
            raise Invalid(
                f"agent {agent.name} has two tools {name}", where=tool.definition.where, code="tool_defined_twice"
            )
        found[name] = tool
    return tuple(found[name] for name in sorted(found))
