"""An open host: everything that runs code, asks models, keeps rules and drives, wired over one vault or none."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.app.asker import LateAsker, build_secrets, unknown_window
from atlas.app.build import (
    absolute,
    boundary_of,
    build_authority,
    build_hooks,
    build_ledger,
    build_prompts,
    config_of,
    inline_of,
    ledger_of,
)
from atlas.app.clock import SystemClock

if TYPE_CHECKING:
    from atlas.control.agents import Agents
    from atlas.control.delta import Deltas
    from atlas.control.drive import SlotPool
    from atlas.control.host import Host
    from atlas.control.inbox_files import InboxFolder
    from atlas.control.prompt import Prompts
    from atlas.control.redaction import Redaction
    from atlas.control.service import Asker
    from atlas.control.shelf import Shelf
    from atlas.control.world import World
    from atlas.engine.agent import AgentBase
    from atlas.engine.tool_inline import InlineToolHost
    from atlas.kernel.code import Executor
    from atlas.kernel.config import Config
    from atlas.kernel.grant import Grant
    from atlas.kernel.port import Clock, Ledger, Secrets, Vault
    from atlas.kernel.state import State
    from atlas.tools.agent import Agent


@dataclass(frozen=True)
class Setting:
    """Where a host stands: its vault and ledger, and what it was given from outside."""

    vault: Vault
    config: Config
    ledger: Ledger
    index: Path | str
    environ: Mapping[str, str]
    clock: Clock
    asker: Asker | None
    agent_folder: Callable[[str], str]
    secrets: Secrets
    pages: InboxFolder | None = None


@dataclass(frozen=True)
class Crew:
    """Who does the work: what knows agents, what asks models, what runs turns, code and tools."""

    redaction: Redaction
    late: LateAsker
    asking: Asker
    agents: Agents
    deltas: Deltas
    tools: InlineToolHost
    prompts: Prompts
    executor: Callable[[State], Executor]


@asynccontextmanager
async def open_host(
    root: Path,
    environ: Mapping[str, str],
    *,
    clock: Clock | None = None,
    agents: Sequence[Agent | type[AgentBase]] = (),
    asker: Asker | None = None,
) -> AsyncIterator[Host]:
    """An open vault: its ledger, its workers and a driver that starts when it is needed."""
    from atlas.vault.folder import FolderVault
    from atlas.vault.inbox_folder import VaultInbox

    clock = clock or SystemClock()
    root = absolute(root)
    vault = FolderVault(root)
    config = vault.config()
    ledger = build_ledger(root, config, environ, clock)
    index = root / ".atlas" / "index.db"

    def agent_folder(name: str) -> str:
        return str(root / "agents" / name)

    secrets = build_secrets(root, config, environ)
    setting = Setting(vault, config, ledger, index, environ, clock, asker, agent_folder, secrets, VaultInbox(root))
    async with _host_over(setting, agents) as host:
        yield host


@asynccontextmanager
async def open_ephemeral(
    environ: Mapping[str, str],
    *,
    clock: Clock | None = None,
    agents: Sequence[Agent | type[AgentBase]] = (),
    models: Mapping[str, Any] | None = None,
    asker: Asker | None = None,
    ledger: Ledger | None = None,
) -> AsyncIterator[Host]:
    """No vault and no file: agents defined in code, a ledger in memory, models from the environment and `models`."""
    from atlas.ledger.memory import MemoryLedger
    from atlas.vault.none import NoVault

    clock = clock or SystemClock()
    ledger = ledger or MemoryLedger(clock)
    nowhere = NoVault()
    config = config_of(models or {})
    secrets = build_secrets(None, config, environ)
    setting = Setting(nowhere, config, ledger, ":memory:", environ, clock, asker, lambda name: "", secrets)
    async with _host_over(setting, agents) as host:
        yield host


@asynccontextmanager
async def _host_over(setting: Setting, agents: Sequence[Agent | type[AgentBase]]) -> AsyncIterator[Host]:
    """Everything wired: what runs code, what asks models, what drives."""
    from atlas.control.approval import Approvals
    from atlas.control.drive import Driver, DriverOptions, Owner, SlotPool
    from atlas.control.host import Host
    from atlas.engine.process import is_alive, process_of
    from atlas.kernel.principal import INSIDE
    from atlas.vault.zone import zone_of

    config, clock, execution = setting.config, setting.clock, setting.config.execution
    inside = setting.environ.get(INSIDE) or os.environ.get(INSIDE) or ""
    ledger = ledger_of(setting.ledger, setting.environ)
    async with AsyncExitStack() as stack:
        await ledger.open()
        stack.push_async_callback(ledger.close)
        crew = await _crew(stack, setting, ledger, agents)
        slots = SlotPool(execution.max_concurrent_agents)
        zone = zone_of(config.time_zone)
        world, shelf, remember = _world(setting, ledger, crew, slots, zone)
        options = DriverOptions(
            owner=Owner(process_of(os.getpid()), clock.entropy(4).hex()),
            lease_s=execution.lease_s,
            max_running=execution.max_concurrent_agents,
            places=("",),
            is_alive=is_alive,
        )
        host = Host(
            ledger=ledger,
            vault=setting.vault,
            config=config,
            clock=clock,
            zone=zone,
            agents=crew.agents,
            driver=Driver(world, slots, options),
            executor=crew.executor,
            deltas=crew.deltas,
            prompts=crew.prompts,
            add_tools=crew.tools.add,
            redaction=crew.redaction,
            approvals=lambda check: Approvals(ledger, clock, config.approvals, crew.redaction, check, remember, inside),
            shelf=shelf,
            # What acts in a run's name answers nothing, so it does not read what a person ticked either.
            pages=None if inside else setting.pages,
        )
        for agent in agents:
            host.add(inline_of(agent))
        yield await stack.enter_async_context(host)


async def _crew(
    stack: AsyncExitStack, setting: Setting, ledger: Ledger, agents: Sequence[Agent | type[AgentBase]]
) -> Crew:
    """What executes: everything that enters it from outside passes through the redaction."""
    from atlas.control.agents import Agents
    from atlas.control.delta import Deltas
    from atlas.control.pinned import INLINE_PLACE
    from atlas.control.redacted import PublicEnviron, RedactedAsker, RedactedExecutor, RedactedTools
    from atlas.control.redaction import Redaction
    from atlas.engine.inline import InlineExecutor
    from atlas.engine.pool import WorkerPool
    from atlas.engine.tool_host import WorkerToolHost
    from atlas.engine.tool_inline import InlineToolHost
    from atlas.vault.validate import compile_schema, not_json

    vault, config, clock, idle_s = setting.vault, setting.config, setting.clock, setting.config.execution.worker_idle_s
    redaction = Redaction(setting.secrets)
    environ = PublicEnviron(setting.environ, redaction)
    classes = {inline_of(agent).contract.name: agent for agent in agents if isinstance(agent, type)}
    workers = await stack.enter_async_context(WorkerPool(idle_s=idle_s, environ=environ))
    here = await stack.enter_async_context(InlineExecutor(classes))
    late = LateAsker(vault, config, setting.environ, ledger, clock, redaction.get)
    stack.push_async_callback(late.close)
    asking = RedactedAsker(setting.asker or late, redaction)
    hooks = build_hooks(config, environ, setting.agent_folder, redaction)
    known = Agents(
        vault,
        ledger,
        clock,
        config.execution,
        compile_schema,
        not_json,
        late.check if setting.asker is None else None,
        check_hooks=hooks.check,
        fleet=config.budget,
    )
    tools = InlineToolHost({}, await stack.enter_async_context(WorkerToolHost(idle_s=idle_s, environ=environ)))
    stack.push_async_callback(tools.drain)
    deltas = Deltas()
    prompts = await stack.enter_async_context(
        build_prompts(
            setting.index,
            ledger,
            clock,
            vault,
            known,
            asking,
            deltas,
            RedactedTools(tools, redaction),
            setting.agent_folder,
            redaction,
            late.window if setting.asker is None else unknown_window,
            hooks,
        )
    )
    turns = RedactedExecutor(prompts, redaction)
    inline = RedactedExecutor(here, redaction, known.secrets)
    away = RedactedExecutor(workers, redaction, known.secrets)

    def executor(state: State) -> Executor:
        if state.created.runtime == "prompt":
            return turns
        return inline if state.created.place.startswith(INLINE_PLACE) else away

    return Crew(redaction, late, asking, known, deltas, tools, prompts, executor)


def _world(
    setting: Setting, ledger: Ledger, crew: Crew, slots: SlotPool, zone: tzinfo
) -> tuple[World, Shelf, Callable[[Grant], None]]:
    """What attempts act through, the rules and budgets included."""
    from atlas.control.drive import parse_owner
    from atlas.control.generate import Generator, need_of
    from atlas.control.judge import Judges
    from atlas.control.purse import Purse
    from atlas.control.shelf import Shelf
    from atlas.control.world import World, costs_nothing
    from atlas.engine.process import kill, kill_tools_of

    async def kill_tools(owner: str) -> None:
        named = parse_owner(owner)
        if named is not None:
            await kill_tools_of(named.process)

    authority, rules, holds, grants = build_authority(
        setting.vault, zone, crew.late.candidates if setting.asker is None else lambda choice: ()
    )
    shelf = Shelf(ledger, rules.policy, holds)
    generate = Generator(crew.asking, crew.prompts.complain).generate
    bounds = Purse(setting.config.budget, zone, crew.agents.contract_of).bounds
    quote = crew.late.quote if setting.asker is None else costs_nothing
    world = World(
        ledger=ledger,
        clock=setting.clock,
        agents=crew.agents,
        executor=crew.executor,
        slots=slots,
        kill=kill,
        kill_tools=kill_tools,
        boundary=boundary_of(setting.environ),
        closing=crew.prompts.closing,
        generate=generate,
        authority=authority,
        bounds=bounds,
        quote=quote,
        need=need_of,
        keep_policy=shelf.keep,
        redact=lambda record: crew.redaction.redactor.record(record),
        consult=Judges(authority, holds, generate, bounds, quote).consult,
        expire_after_us=int((setting.config.approvals.expire_after_s or 0) * 1_000_000),
    )
    return world, shelf, grants.add
