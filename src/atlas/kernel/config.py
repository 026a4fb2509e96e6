"""The platform configuration: what `atlas.config.yaml` may say, as types.

Everything is optional and every default is here, so a vault works with an empty file or none. The names
under `execution`, `scheduling` and `registry` are public and stay.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from atlas.kernel.contract import Budget, HookUse, Name, Part, Seconds, Tiers, Tokens, Url, Usd
from atlas.kernel.rule import PolicyPart

SecretName = Annotated[
    str,
    Meta(
        pattern=r"^secret:[A-Za-z0-9][A-Za-z0-9_.-]*$",
        max_length=128,
        description="A secret by its name, written secret:NAME; never the value itself.",
        extra={"expected": "the name of a secret, written secret:NAME (never the secret itself)", "sensitive": True},
    ),
]
LedgerUrl = Annotated[
    str,
    Meta(
        pattern=r"^(postgres|postgresql)://\S+$",
        max_length=2048,
        description="Where the ledger is, for example postgresql://host/database; left out, SQLite in the vault.",
        extra={"expected": "an address that starts with postgresql://", "sensitive": True},
    ),
]
PricedName = Annotated[
    str,
    Meta(
        pattern=r"^[^\s:]+:\S+$",
        max_length=256,
        description="provider:model, in full.",
        extra={"expected": "a model in full, written provider:model"},
    ),
]
TimeZone = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$",
        max_length=64,
        description="A time zone by its name, for example Europe/Berlin.",
        extra={"expected": "the name of a time zone, such as UTC or Europe/Berlin"},
    ),
]
Positive = Annotated[int, Meta(ge=1, le=10**9)]
Percent = Annotated[float, Meta(ge=0, le=100)]


class Provider(Part, frozen=True):
    """One source of models."""

    kind: Annotated[
        Literal["openai", "anthropic", "scripted", "local", "pydantic-ai"],
        Meta(description="The wire protocol it speaks, or who is asked in its place."),
    ]
    base_url: Url | None = None
    key: SecretName | None = None
    max_in_flight: Annotated[Positive | None, Meta(description="Calls at the same time.")] = None
    script: Annotated[str, Meta(max_length=1024, description="For scripted: the file with the replies.")] = ""
    stream: Annotated[bool, Meta(description="Replies arrive piece by piece; off for servers that cannot.")] = True


class Price(Part, frozen=True):
    """What a model costs, in dollars per million tokens."""

    input_usd_per_mtok: Usd
    output_usd_per_mtok: Usd
    cache_read_usd_per_mtok: Usd | None = None
    cache_write_usd_per_mtok: Usd | None = None


class Models(Part, frozen=True):
    """Where models come from and what they cost."""

    providers: dict[Name, Provider] = field(default_factory=dict)
    tiers: Tiers = Tiers()
    prices: dict[PricedName, Price] = field(default_factory=dict)


class Timeouts(Part, frozen=True):
    """Time limits, in seconds of execution."""

    chain: Annotated[Seconds, Meta(description="For a whole tree of runs.")] = 300
    agent: Annotated[Seconds, Meta(description="For one run whose contract says nothing.")] = 60


class ResourceBudget(Part, frozen=True):
    """What a tree of runs may use."""

    max_tokens_per_chain: Annotated[Tokens | None, Meta(description="Tokens for a tree; left out, no limit.")] = None


class CircuitBreaker(Part, frozen=True):
    """When an agent that keeps failing is left alone for a while."""

    failure_threshold: Annotated[Positive, Meta(description="Failures in a row that open the breaker.")] = 3
    recovery_timeout: Annotated[Seconds, Meta(description="Seconds until one run may try again.")] = 30


class Execution(Part, frozen=True):
    """Limits every run is under."""

    max_spawn_depth: Annotated[int, Meta(ge=0, le=100, description="How deep agents may spawn agents.")] = 5
    max_concurrent_agents: Annotated[Positive, Meta(description="Runs executing at the same time.")] = 20
    max_children_per_run: Annotated[int, Meta(ge=0, le=10**6, description="Agents one run may spawn.")] = 100
    max_runs_per_tree: Annotated[Positive, Meta(description="Runs in one tree, the root included.")] = 1000
    max_spawns_per_minute: Annotated[Positive, Meta(description="Spawns per minute in one tree.")] = 600
    timeouts: Timeouts = Timeouts()
    resource_budget: ResourceBudget = ResourceBudget()
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    worker_memory_mb: Annotated[int, Meta(ge=64, le=10**7, description="Memory one worker may use.")] = 2048
    worker_idle_s: Annotated[Seconds, Meta(description="Seconds an idle worker is kept.")] = 60
    output_limit_mb: Annotated[
        Positive, Meta(description="Text that one run may print and log, in megabytes; not what it returns.")
    ] = 8
    cancel_grace_s: Annotated[
        float, Meta(ge=0, le=3600, description="Seconds a cancelled run has to finish by itself.")
    ] = 5
    lease_s: Annotated[float, Meta(ge=1, le=3600, description="Seconds a run belongs to a silent process.")] = 15


class ResourceReservation(Part, frozen=True):
    """What is kept free on every node."""

    gpu_headroom_pct: Percent = 10
    memory_headroom_pct: Percent = 15


class NodeFailure(Part, frozen=True):
    """What happens when a node goes silent."""

    detection_timeout: Annotated[Seconds, Meta(description="Seconds before a silent node counts as lost.")] = 30
    reschedule_strategy: Literal["retry", "fail", "queue"] = "retry"


class Scheduling(Part, frozen=True):
    """How runs are placed on nodes."""

    strategy: Literal["bin_pack", "spread", "affinity_first"] = "bin_pack"
    preemption_enabled: Annotated[bool, Meta(description="Urgent runs may evict others.")] = False
    resource_reservation: ResourceReservation = ResourceReservation()
    node_failure: NodeFailure = NodeFailure()


class RegistryPolicy(Part, frozen=True):
    """Which packages may be installed."""

    allow_unsigned: bool = False
    minimum_review_status: Literal["unreviewed", "community", "verified"] = "unreviewed"
    allowed_publishers: Annotated[tuple[str, ...], Meta(description="Only these; empty, any publisher.")] = ()


class Registry(Part, frozen=True):
    """Where packages come from and which are trusted."""

    policy: RegistryPolicy = RegistryPolicy()


class ApprovalConfig(Part, frozen=True):
    """How long a question waits for a person."""

    expire_after_s: Annotated[
        Seconds | None, Meta(description="Then it is denied, because nobody answered; left out, it waits.")
    ] = None
    escalate_after_s: Annotated[
        Seconds | None, Meta(description="Then the inbox shows it as passed on to `escalate_to`.")
    ] = None
    escalate_to: Annotated[str, Meta(max_length=128, description="Who is named when nobody answered.")] = "owner"


class LedgerConfig(Part, frozen=True):
    """Where events are stored."""

    url: LedgerUrl | None = None


class Config(Part, frozen=True):
    """The file `atlas.config.yaml`."""

    models: Models = Models()
    budget: Annotated[Budget, Meta(description="Caps for everything in the vault together.")] = Budget()
    time_zone: Annotated[TimeZone, Meta(description="Where days and months of budgets begin and end.")] = "UTC"
    policy: Annotated[PolicyPart, Meta(description="Rules of the fleet, above policy.yaml of the vault.")] = (
        PolicyPart()
    )
    execution: Execution = Execution()
    scheduling: Scheduling = Scheduling()
    registry: Registry = Registry()
    ledger: LedgerConfig = LedgerConfig()
    approvals: ApprovalConfig = ApprovalConfig()
    hooks: Annotated[
        tuple[HookUse, ...], Meta(description="For all prompt agents of the vault, before their own hooks.")
    ] = ()
    auth: Annotated[dict[str, Any], Meta(description="Who may call the daemon.")] = field(default_factory=dict)
