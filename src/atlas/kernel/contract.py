"""The agent contract: what `agent.yaml` may say, as types.

The vault reads the file against these types, the engine obeys the result, and the JSON Schema for editors
is generated from them, so the three can never disagree. Rules that one type cannot express (two keys that
contradict each other) are in `Contract.findings`.

`Meta.extra` tells the loader how to speak about a value: `expected` describes it in words, `suggest` turns
a wrong text into a likely right one, `sensitive` keeps it out of messages, `json_schema` marks a schema.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, field

AgentType = Literal["task", "conversational", "orchestrator"]
Runtime = Literal["prompt", "python", "remote", "worker"]

Step = str | int
"""One step of a path into a value: a key or a list index."""


class Finding(msgspec.Struct, frozen=True):
    """A rule broken at `path`; `also` names the other values the rule looked at."""

    path: tuple[Step, ...]
    code: str
    message: str
    hint: str = ""
    also: tuple[tuple[Step, ...], ...] = ()


def suggest_name(text: str) -> str:
    """The closest valid name, letters without their accents; nothing when no letter or digit is left."""
    plain = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return re.sub(r"[^a-z0-9_-]+", "-", plain.strip().lower()).strip("-_")[:64]


def suggest_version(text: str) -> str:
    """The closest semantic version, or nothing when there is no number in `text`."""
    numbers = [int(digits) for digits in re.findall(r"[0-9]{1,9}", text)[:3]]
    return ".".join(str(number) for number in [*numbers, 0, 0][:3]) if numbers else ""


NAME_PATTERN = "^[a-z0-9][a-z0-9_-]{0,63}$"
_NUMBER = "(0|[1-9][0-9]*)"
_PRERELEASE = "(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
VERSION_PATTERN = (
    rf"^{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(-{_PRERELEASE}(\.{_PRERELEASE})*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)
_RANGE = r"(===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+"
_RANGES = rf"{_RANGE}(\s*,\s*{_RANGE})*"

Name = Annotated[
    str,
    Meta(
        pattern=NAME_PATTERN,
        min_length=1,
        max_length=64,
        description="Lower-case letters, digits, - and _; at most 64 characters.",
        extra={
            "expected": "a name of lower-case letters, digits, '-' and '_' (at most 64)",
            "suggest": suggest_name,
        },
    ),
]
Version = Annotated[
    str,
    Meta(
        pattern=VERSION_PATTERN,
        max_length=128,
        description="A semantic version (semver 2.0), for example 1.2.0 or 2.0.0-rc.1.",
        extra={"expected": "a semantic version with three numbers, such as 1.2.0", "suggest": suggest_version},
    ),
]
Tier = Literal["fast", "balanced", "powerful"]
ModelChoice = Annotated[
    str,
    Meta(
        pattern=r"^(fast|balanced|powerful|[a-z0-9][a-z0-9_-]*:\S+)$",
        max_length=256,
        description="A tier (fast, balanced, powerful) or one model, written provider:model.",
        extra={
            "expected": "a tier (fast, balanced, powerful) or provider:model",
            "options": ("fast", "balanced", "powerful"),
        },
    ),
]
ModelName = Annotated[
    str,
    Meta(
        pattern=r"^\S+$",
        max_length=256,
        description="provider:model, or a bare model name when only one provider has it.",
        extra={"expected": "a model name without spaces, written provider:model"},
    ),
]
ToolName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_*][A-Za-z0-9_.:/*-]*$",
        max_length=128,
        description="A tool's name; * stands for any characters.",
        extra={"expected": "a tool name (letters, digits, _ . : / - and * as a wildcard)"},
    ),
]
Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s/]\S*$",
        max_length=2048,
        description="An http or https address.",
        extra={"expected": "an address that starts with http:// or https://"},
    ),
]
Identifier = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z_][A-Za-z0-9_]*$",
        max_length=128,
        extra={"expected": "the name of a method, such as on_startup"},
    ),
]
JsonSchema = Annotated[
    dict[str, Any],
    Meta(
        description="A JSON Schema (draft 2020-12); $ref only to parts of itself.",
        extra_json_schema={"$ref": "https://json-schema.org/draft/2020-12/schema"},
        extra={"expected": "a JSON Schema (a mapping)", "json_schema": True},
    ),
]
SecretRef = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        max_length=128,
        description="The name of a secret; never the secret itself.",
        extra={"expected": "the name of a secret (never the secret itself)", "sensitive": True},
    ),
]
Usd = Annotated[float, Meta(ge=0, le=1e9)]
Tokens = Annotated[int, Meta(ge=0, le=10**12)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Rounds = Annotated[int, Meta(ge=1, le=25)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping in a file: immutable, and an unknown key is an error."""


class Shape(Part, frozen=True):
    """What goes in or comes out."""

    schema: JsonSchema = field(default_factory=dict)


class Requires(Part, frozen=True):
    """What the agent needs from the platform; what is not asked for is refused."""

    platform_tools: Annotated[bool, Meta(description="May use the platform's own MCP tools.")] = False
    spawn_agents: Annotated[bool, Meta(description="May spawn other agents.")] = False
    skills: Annotated[tuple[Name, ...], Meta(description="Skills the platform provides to the agent.")] = ()


class Model(Part, frozen=True):
    """Which model the agent prefers."""

    preference: ModelChoice = "balanced"
    fallback: Annotated[
        ModelChoice | None, Meta(description="Asked for the rest of a turn when no preferred model answers.")
    ] = None
    max_output_tokens: Annotated[
        int, Meta(ge=16, le=10**6, description="Most tokens of one reply; a longer answer is continued in the next.")
    ] = 2_048
    override_allowed: Annotated[
        bool, Meta(description="Who starts a run, or an orchestrator, may choose another model.")
    ] = True


class Hardware(Part, frozen=True):
    """Which nodes can run the agent."""

    gpu: Annotated[bool, Meta(description="Needs a GPU.")] = False
    gpu_vram_gb: Annotated[float, Meta(ge=0, le=1e6, description="Least memory of one GPU.")] = 0
    min_memory_gb: Annotated[float, Meta(ge=0, le=1e6, description="Least system memory.")] = 1
    min_cpu_cores: Annotated[float, Meta(ge=0, le=1e6, description="Least number of CPU cores.")] = 1
    architecture: Literal["any", "x86_64", "arm64"] = "any"
    node_affinity: Annotated[str, Meta(max_length=128, description="Run only on the node of this name.")] = ""
    node_labels: Annotated[dict[str, str], Meta(description="Run only on nodes that carry all these labels.")] = field(
        default_factory=dict
    )
    device_access: Annotated[
        tuple[
            Annotated[
                str,
                Meta(pattern=r"^/dev/\S+$", max_length=256, extra={"expected": "a device path such as /dev/video0"}),
            ],
            ...,
        ],
        Meta(description="Devices the agent opens."),
    ] = ()


class Dependencies(Part, frozen=True):
    """What the agent's own code needs."""

    python: Annotated[
        str,
        Meta(
            pattern=rf"^({_RANGES})?$",
            max_length=128,
            description="Supported Python versions, for example >=3.11.",
            extra={"expected": "a Python version range such as >=3.11"},
        ),
    ] = ""
    packages: tuple[
        Annotated[
            str,
            Meta(
                pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]*(\s*\[[A-Za-z0-9._,\s-]+\])?"
                rf"(\s*{_RANGES}|\s*@\s*[a-z+]+://\S+)?(\s*;.+)?$",
                max_length=512,
                description="A Python requirement, for example numpy>=2.0.",
                extra={"expected": "a Python requirement such as numpy>=2.0"},
            ),
        ],
        ...,
    ] = ()


class Lifecycle(Part, frozen=True):
    """Which methods and addresses the runtime calls around a run."""

    health: Annotated[
        str,
        Meta(
            pattern=r"^/\S*$",
            max_length=256,
            description="Path a remote agent answers when it is well.",
            extra={"expected": "a path that starts with /"},
        ),
    ] = "/health"
    startup: Annotated[Identifier, Meta(description="Method called once before the first run.")] = "on_startup"
    shutdown: Annotated[Identifier, Meta(description="Method called before the worker ends.")] = "on_shutdown"


class Budget(Part, frozen=True):
    """What may be spent; the smallest cap that applies decides."""

    usd_per_run: Annotated[Usd | None, Meta(description="Money for one run and all it spawns.")] = None
    usd_per_day: Annotated[Usd | None, Meta(description="Money per calendar day.")] = None
    usd_per_7d: Annotated[Usd | None, Meta(description="Money in any seven days.")] = None
    usd_per_month: Annotated[Usd | None, Meta(description="Money per calendar month.")] = None
    tokens_per_run: Annotated[Tokens | None, Meta(description="Tokens for one run and all it spawns.")] = None
    tokens_per_request: Annotated[Tokens | None, Meta(description="Tokens of one request to a model.")] = None
    wall_s: Annotated[Seconds | None, Meta(description="Seconds of execution for one run.")] = None
    children: Annotated[Annotated[int, Meta(ge=0, le=10**6)] | None, Meta(description="Agents one run may spawn.")] = (
        None
    )
    on_cap: Annotated[
        Literal["stop", "fallback"], Meta(description="At a cap: stop, or go on with model.fallback.")
    ] = "stop"
    warn_at: Annotated[
        tuple[Fraction, ...], Meta(description="Fractions of a cap at which an alert is raised, once per period.")
    ] = ()


class Tools(Part, frozen=True):
    """Which tools the agent may use; deny wins."""

    allow: Annotated[tuple[ToolName, ...] | None, Meta(description="Only these; left out, all it is offered.")] = None
    deny: Annotated[tuple[ToolName, ...], Meta(description="Never these.")] = ()


class McpServer(Part, frozen=True):
    """One MCP server: a command that is started, or an address that is called."""

    command: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    args: tuple[str, ...] = ()
    env: Annotated[dict[str, str], Meta(description="Environment of the command; secrets as secret:NAME.")] = field(
        default_factory=dict
    )
    url: Url | None = None
    headers: Annotated[dict[str, str], Meta(description="Headers of each call; secrets as secret:NAME.")] = field(
        default_factory=dict
    )
    tools: Tools = Tools()


class Mcp(Part, frozen=True):
    """MCP servers whose tools the agent is offered."""

    servers: dict[Name, McpServer] = field(default_factory=dict)


class OracleHook(Part, frozen=True):
    """A command that must pass before an answer is accepted."""

    command: Annotated[str, Meta(min_length=1, max_length=4096, description="For the shell, in the agent's folder.")]
    rounds: Annotated[Rounds, Meta(description="Answers that may fail; then the turn ends without one.")] = 10
    timeout_s: Annotated[Seconds, Meta(description="Seconds the command may take; then it is stopped.")] = 60


class DoneHook(Part, frozen=True):
    """An answer is accepted only after the model checked its work with a tool."""

    rounds: Annotated[Rounds, Meta(description="How often it is asked to, at most.")] = 3


class CeilingHook(Part, frozen=True):
    """A turn ends with the step that reaches a number of tokens."""

    limit: Annotated[int, Meta(ge=1, le=10**12, description="Tokens read and written by one turn.")]


class HookUse(Part, frozen=True):
    """One hook: one that comes with Atlas, by its key, or one of an installed package."""

    test_oracle: OracleHook | None = None
    definition_of_done: DoneHook | None = None
    token_ceiling: CeilingHook | None = None
    use: Annotated[Name | None, Meta(description="The name of a package's hook (entry point group atlas.hooks).")] = (
        None
    )
    options: Annotated[dict[str, Any], Meta(description="With use: what the package's hook is given.")] = field(
        default_factory=dict
    )

    @property
    def named(self) -> tuple[str, ...]:
        """What is asked for; one name in a sound file."""
        shipped = tuple(name for name in SHIPPED_HOOKS if getattr(self, name) is not None)
        return shipped if self.use is None else (*shipped, self.use)

    def findings(self) -> Iterator[Finding]:
        """Every rule over several keys that it breaks."""
        if len(self.named) != 1:
            names = ", ".join((*SHIPPED_HOOKS, "use"))
            yield Finding(
                (), "hook_name", f"one hook has exactly one of the keys {names}", "write one list item per hook"
            )
        elif self.options and self.use is None:
            yield Finding(("options",), "hook_options", "options go with use", f"write them under {self.named[0]}")


SHIPPED_HOOKS: Final = ("test_oracle", "definition_of_done", "token_ceiling")


class Critic(Part, frozen=True):
    """Who decides, once a turn has passed its soft time limit: go on, a nudge, or the end."""

    use: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^(rule|fast|balanced|powerful|[a-z0-9][a-z0-9_-]*:\S+)$",
                max_length=256,
                extra={
                    "expected": "rule, a tier (fast, balanced, powerful) or provider:model",
                    "options": ("rule", "fast", "balanced", "powerful"),
                },
            ),
        ],
        Meta(description="rule, or the model that is asked: a tier or provider:model."),
    ] = "rule"
    extend_s: Annotated[
        Seconds | None, Meta(description="Seconds until it looks again; left out, as long as the soft limit.")
    ] = None


FilePath = Annotated[
    str,
    Meta(
        # No part begins with a dot: nothing hidden, and no way up.
        pattern=r"^[^./\\][^/\\]*(/[^./\\][^/\\]*)*$",
        max_length=512,
        extra={"expected": "a path inside the agent's folder, like wiki/index.md"},
    ),
]
READ_FILE: Final = "read_file"
"""The tool that goes on where a request shows only the beginning of a file."""


class Context(Part, frozen=True):
    """How large the agent's requests may grow, and which files are always in them."""

    max_tokens: Annotated[
        Annotated[int, Meta(ge=256, le=10**8)] | None, Meta(description="Largest request, in tokens.")
    ] = None
    recall_tokens: Annotated[
        Annotated[int, Meta(ge=64, le=10**7)] | None, Meta(description="Largest answer of one recall, in tokens.")
    ] = None
    verbatim_exchanges: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None, Meta(description="Last exchanges kept word for word.")
    ] = None
    files: Annotated[
        tuple[FilePath, ...],
        Meta(description="Files in the agent's folder that every request shows as they are then.", max_length=32),
    ] = ()


class Persona(Part, frozen=True):
    """Whose persona the agent speaks with."""

    use: Annotated[Name | None, Meta(description="A persona shared under personas/; left out, the agent's own.")] = None


class Tiers(Part, frozen=True):
    """Models by tier; the first that answers is used."""

    fast: tuple[ModelName, ...] = ()
    balanced: tuple[ModelName, ...] = ()
    powerful: tuple[ModelName, ...] = ()


class Orchestration(Part, frozen=True):
    """What an orchestrator can do."""

    strategies: tuple[
        Literal["chain_execution", "parallel_fanout", "conditional_routing", "recursive_decomposition"], ...
    ] = ()


class ModelSelection(Part, frozen=True):
    """How an orchestrator picks models for others."""

    enabled: bool = True
    tiers: Tiers = Tiers()
    routing_strategy: Literal["task_complexity", "cost_optimized", "latency_optimized"] = "task_complexity"


class Contract(Part, frozen=True):
    """One agent: what it takes, returns, needs and may spend."""

    name: Annotated[Name, Meta(description="The agent's name; the name of its folder.")]
    version: Version
    description: Annotated[str, Meta(min_length=1, max_length=8192, description="What the agent does, in a sentence.")]
    type: Annotated[AgentType, Meta(description="What kind of work the agent does.")] = "task"
    runtime: Annotated[
        Runtime | None,
        Meta(description="How the agent executes; left out: python where an agent.py is, else prompt."),
    ] = None
    input: Annotated[Shape, Meta(description="What the agent accepts.")] = Shape()
    output: Annotated[Shape, Meta(description="What the agent returns.")] = Shape()
    capabilities: Annotated[tuple[Name, ...], Meta(description="What the agent can be found by.")] = ()
    requires: Requires = Requires()
    model: Model = Model()
    hardware: Hardware = Hardware()
    dependencies: Dependencies = Dependencies()
    lifecycle: Lifecycle = Lifecycle()
    budget: Budget = Budget()
    timeout_s: Annotated[
        Seconds | None, Meta(description="Seconds one run may take; left out, execution.timeouts.agent.")
    ] = None
    soft_timeout_s: Annotated[
        Seconds | None, Meta(description="Prompt agents: seconds after which the critic decides whether it goes on.")
    ] = None
    critic: Critic = Critic()
    hooks: Annotated[
        tuple[HookUse, ...], Meta(description="Prompt agents: rules of the host, asked in this order.")
    ] = ()
    tools: Tools = Tools()
    secrets: Annotated[
        tuple[SecretRef, ...], Meta(description="Secrets that its tools and its code may be given, by name.")
    ] = ()
    mcp: Mcp = Mcp()
    context: Context = Context()
    persona: Persona = Persona()
    governance: Annotated[dict[str, Any], Meta(description="Free-form facts for reviewers.")] = field(
        default_factory=dict
    )
    orchestration: Annotated[Orchestration | None, Meta(description="Only with type: orchestrator.")] = None
    model_selection: Annotated[ModelSelection | None, Meta(description="Only with type: orchestrator.")] = None

    @property
    def usable_tools(self) -> Tools:
        """`tools`, and what shows the rest of a file that is always in sight."""
        if self.tools.allow is None or not self.context.files:
            return self.tools
        return msgspec.structs.replace(self.tools, allow=(*self.tools.allow, READ_FILE))

    def findings(self) -> Iterator[Finding]:
        """Every rule over several keys that this contract breaks."""
        yield from self._orchestrator_findings()
        yield from self._turn_findings()
        if self.budget.on_cap == "fallback" and self.model.fallback is None:
            yield Finding(
                ("budget", "on_cap"),
                "missing_fallback",
                "on_cap: fallback needs a model to fall back to",
                "add model.fallback, for example fast",
                also=(("model", "fallback"),),
            )
        if self.hardware.gpu_vram_gb > 0 and not self.hardware.gpu:
            yield Finding(
                ("hardware", "gpu_vram_gb"),
                "gpu_not_required",
                "gpu_vram_gb asks for GPU memory, but gpu is false",
                "set hardware.gpu: true",
                also=(("hardware", "gpu"),),
            )
        for name, server in self.mcp.servers.items():
            if (server.command is None) == (server.url is None):
                yield Finding(
                    ("mcp", "servers", name),
                    "mcp_server_address",
                    f"the MCP server {name} needs either a command or a url",
                    also=(("mcp", "servers", name, "command"), ("mcp", "servers", name, "url")),
                )

    def _turn_findings(self) -> Iterator[Finding]:
        if self.context.files and any(fnmatchcase(READ_FILE, pattern) for pattern in self.tools.deny):
            message = (
                f"context.files needs {READ_FILE}, which shows the rest of a long file, and tools.deny takes it away"
            )
            yield Finding(("context", "files"), "files_unreadable", message, also=(("tools", "deny"),))
        for index, hook in enumerate(self.hooks):
            for found in hook.findings():
                yield msgspec.structs.replace(found, path=("hooks", index, *found.path))
        soft, hard = self.soft_timeout_s, self.timeout_s
        if soft is None and self.critic != Critic():
            hint = "add soft_timeout_s, after which it is asked"
            yield Finding(
                ("critic",), "critic_unasked", "the critic is asked at a soft time limit, and there is none", hint
            )
        if soft is not None and hard is not None and soft >= hard:
            message = f"soft_timeout_s ({soft:g}) is never reached before timeout_s ({hard:g})"
            yield Finding(("soft_timeout_s",), "soft_timeout", message, "make it smaller", also=(("timeout_s",),))

    def _orchestrator_findings(self) -> Iterator[Finding]:
        if self.type == "orchestrator":
            return
        for key in ("orchestration", "model_selection"):
            if getattr(self, key) is not None:
                yield Finding(
                    (key,),
                    "not_an_orchestrator",
                    f"{key} is only for orchestrators, and this agent's type is {self.type}",
                    f"set type: orchestrator or remove {key}",
                    also=(("type",),),
                )


class AgentFile(Part, frozen=True):
    """The file `agent.yaml`."""

    agent: Contract

    def findings(self) -> Iterator[Finding]:
        """Every rule over several keys that the file breaks."""
        for found in self.agent.findings():
            also = tuple(("agent", *path) for path in found.also)
            yield msgspec.structs.replace(found, path=("agent", *found.path), also=also)
