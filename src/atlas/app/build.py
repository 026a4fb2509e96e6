"""The parts of a host, each built from the configuration and the environment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import tzinfo

    from atlas.control.agents import Agents
    from atlas.control.authority import FileAuthority
    from atlas.control.delta import Deltas
    from atlas.control.granting import GrantingAuthority
    from atlas.control.hookset import HookSet
    from atlas.control.pinned import Inline
    from atlas.control.prompt import Prompts
    from atlas.control.redaction import Redaction
    from atlas.control.service import Asker
    from atlas.engine.agent import AgentBase
    from atlas.kernel.config import Config
    from atlas.kernel.contract import Contract
    from atlas.kernel.port import Clock, Ledger, ToolHost, Vault
    from atlas.kernel.rule_table import Holds
    from atlas.tools.agent import Agent
    from atlas.vault.grant import MemoryGrants, VaultGrants


def absolute(root: Path) -> Path:
    """The same folder for a worker, which has another current one."""
    return root.absolute()


def build_authority(
    vault: Vault, zone: tzinfo, candidates: Callable[[str], Sequence[str]]
) -> tuple[GrantingAuthority, FileAuthority, Holds, VaultGrants | MemoryGrants]:
    """The rules of a vault, its mandates and remembered grants; without a vault the floor alone."""
    from atlas.control.authority import FileAuthority, NoFiles
    from atlas.control.granting import GrantingAuthority
    from atlas.vault.condition import Conditions
    from atlas.vault.folder import FolderVault
    from atlas.vault.grant import MemoryGrants, VaultGrants
    from atlas.vault.policy import PolicyFiles
    from atlas.vault.zone import zone_named

    conditions = Conditions()
    if not isinstance(vault, FolderVault):
        in_memory = MemoryGrants()
        inner = FileAuthority(NoFiles(), conditions.holds, zones=zone_named, zone=zone, candidates=candidates)
        return GrantingAuthority(inner, in_memory.all), inner, conditions.holds, in_memory
    grants = VaultGrants(vault)
    inner = FileAuthority(
        PolicyFiles(vault.root, conditions), conditions.holds, zones=zone_named, zone=zone, candidates=candidates
    )
    return GrantingAuthority(inner, grants.all), inner, conditions.holds, grants


def config_of(models: Mapping[str, Any]) -> Config:
    """A configuration that only knows models: what atlas.config.yaml would say under `models:`."""
    import msgspec

    from atlas.kernel.config import Config, Models
    from atlas.kernel.errors import Invalid

    try:
        return Config(models=msgspec.convert(models, Models))
    except msgspec.ValidationError as error:
        raise Invalid(f"models is not valid: {error}", hint="See `models:` of atlas.config.yaml.") from None


def build_prompts(
    index: Path | str,
    ledger: Ledger,
    clock: Clock,
    vault: Vault,
    agents: Agents,
    asker: Asker,
    deltas: Deltas,
    tools: ToolHost,
    agent_folder: Callable[[str], str],
    redaction: Redaction,
    window: Callable[[str], Awaitable[int]],
    hooks: HookSet,
) -> Prompts:
    """The runtime of prompt agents."""
    from atlas.control.desk import Desks, Toolbox
    from atlas.control.prompt import Prompts
    from atlas.control.recall import Recall
    from atlas.ledger.search import SqliteIndex
    from atlas.tools.arguments import ArgumentCheck
    from atlas.tools.builtin import BuiltIns
    from atlas.tools.discover import Discovery
    from atlas.tools.files import read_live
    from atlas.vault.validate import compile_schema

    def complain(schema: dict[str, Any], value: Any) -> str | None:
        return "; ".join(compile_schema(schema).complaints(value)[:5]) or None

    builtins = BuiltIns()
    found = Discovery(tools, builtins.definitions)
    toolbox = Toolbox(
        found.catalogue,
        ArgumentCheck(compile_schema).check,
        builtins.call,
        tools,
        agent_folder,
        redaction.text,
        redaction.grant,
        read_live,
    )
    desks = Desks(vault, agents, Recall(ledger, SqliteIndex(index)), toolbox)
    return Prompts(ledger, clock, asker, desks.lay, agents.contract_of, complain, deltas.of, window, hooks)


def build_hooks(
    config: Config, environ: Mapping[str, str], agent_folder: Callable[[str], str], redaction: Redaction
) -> HookSet:
    """The hooks that the vault's configuration and its agents may name."""
    from functools import partial

    from atlas.control.hookset import GROUP, HookSet
    from atlas.engine.command import run_command
    from atlas.engine.plugin import plugins

    run = partial(run_command, environ=environ)
    return HookSet(config.hooks, partial(plugins, GROUP), run, agent_folder, redaction.text)


def build_ledger(root: Path, config: Config, environ: Mapping[str, str], clock: Clock) -> Ledger:
    """The ledger that the environment or the configuration names; SQLite in the vault by default."""
    from atlas.kernel.errors import Unavailable

    runtime = root / ".atlas"
    try:
        runtime.mkdir(exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"{runtime} cannot be created: {error.strerror}",
            hint="Make the vault's folder writable, or choose another with --vault.",
            code="vault_unwritable",
        ) from error
    url = environ.get("ATLAS_LEDGER_URL") or config.ledger.url
    if url:
        from atlas.ledger.postgres import PostgresLedger

        return PostgresLedger(url, clock=clock, blobs=runtime / "blobs")
    from atlas.ledger.sqlite import SqliteLedger

    return SqliteLedger(runtime / "ledger.db", clock=clock, blobs=runtime / "blobs")


def boundary_of(environ: Mapping[str, str]) -> Callable[[str], None]:
    """What happens when a driver crosses a named point: nothing, unless a fault is to be injected there."""
    plan = environ.get("ATLAS_FAULT")
    if not plan:
        return lambda name: None
    from atlas.testing.fault import fault_at

    return fault_at(plan)


def ledger_of(ledger: Ledger, environ: Mapping[str, str]) -> Ledger:
    """The ledger itself, unless a fault is to be injected at one of its commits."""
    plan = environ.get("ATLAS_FAULT")
    if not plan:
        return ledger
    from atlas.testing.fault import faulty_ledger

    return faulty_ledger(ledger, plan)


def inline_of(agent: Agent | type[AgentBase]) -> Inline:
    """An agent that is defined in code, as the host takes it; Invalid when it cannot be one."""
    from atlas.control.pinned import Inline
    from atlas.engine.agent import AgentBase
    from atlas.kernel.errors import Invalid
    from atlas.tools.agent import Agent
    from atlas.vault.validate import compile_schema

    if isinstance(agent, type) and issubclass(agent, AgentBase):
        return Inline(contract_of(agent), cls=agent)
    if not isinstance(agent, Agent):
        raise Invalid(f"{agent!r} is not an agent", hint="Pass an Agent, or a class that extends AgentBase.")
    compile_schema(agent.contract.output.schema)
    return Inline(agent.contract, agent.instructions, agent.loaded)


def contract_of(cls: type[AgentBase]) -> Contract:
    """The contract of an agent that is defined in code."""
    import msgspec

    from atlas.kernel.contract import Contract, suggest_name
    from atlas.kernel.errors import Invalid

    written = dict(cls.contract)
    written.setdefault("name", suggest_name(cls.__name__))
    written.setdefault("version", "0.0.0")
    written.setdefault("description", (cls.__doc__ or cls.__name__).strip().splitlines()[0])
    written.setdefault("runtime", "python")
    try:
        return msgspec.convert(written, Contract)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"the contract of {cls.__qualname__} is not valid: {error}",
            hint="`contract` of the class says what agent.yaml would say under `agent:`.",
            where=f"{cls.__module__}.{cls.__qualname__}",
            code="contract_invalid",
        ) from None
