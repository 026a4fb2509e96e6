"""Agents as runs need them: submitted, forked, spawned and executed as they were pinned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from atlas.control.history import History
from atlas.control.option import Options, checked, chosen_model, critical, fingerprint_of, narrowing
from atlas.control.payload import pack, unpack
from atlas.control.pinned import Pinned, Pins
from atlas.kernel.budget import pool_of
from atlas.kernel.code import CallMade, Job
from atlas.kernel.config import Execution
from atlas.kernel.contract import Budget, Contract
from atlas.kernel.decide import deadline_us
from atlas.kernel.errors import AtlasError, CircuitOpen, ErrorRecord, Invalid, Problem, RunFailed, Unavailable
from atlas.kernel.event import ForkPoint, InputFile, Limits, RunCreated, draft
from atlas.kernel.hold import Pool
from atlas.kernel.ident import RUN, SESSION, new_id
from atlas.kernel.media import MAX_FILES, examine
from atlas.kernel.policy import descend
from atlas.kernel.port import Clock, Ledger, Vault
from atlas.kernel.rule import Ancestor
from atlas.kernel.run import NewRun, Submitted
from atlas.kernel.state import State

NO_BUDGET: Final = Budget()


class Schema(Protocol):
    """A compiled JSON Schema."""

    def apply_defaults(self, value: Any) -> Any:
        """`value` with the schema's defaults where it says nothing."""
        ...

    def complaints(self, value: Any) -> list[str]:
        """What is wrong with `value`, each with its path."""
        ...


class Agents:
    """Knows every agent of the vault, and those defined in code."""

    def __init__(
        self,
        vault: Vault,
        ledger: Ledger,
        clock: Clock,
        execution: Execution,
        compile_schema: Callable[[dict[str, Any]], Schema],
        not_json: Callable[[Any], Sequence[Problem]],
        check_model: Callable[[str], Awaitable[None]] | None = None,
        fleet: Budget = NO_BUDGET,
        check_hooks: Callable[[Contract], None] = lambda _: None,
    ) -> None:
        self.pins = Pins(vault, ledger)
        self._ledger = ledger
        self._clock = clock
        self._execution = execution
        self._compile = compile_schema
        self._not_json = not_json
        self._check_model = check_model
        self._check_hooks = check_hooks
        self._fleet = fleet
        self._schemas: dict[tuple[str, str], Schema] = {}

    async def submit(
        self,
        name: str,
        value: Any,
        options: Options,
        files: Sequence[tuple[str, bytes]] = (),
        *,
        detached: bool = False,
        expect: Callable[[], bool] = lambda: False,
    ) -> Submitted:
        """Queues a run of the agent on a valid input; the same key gives the same run.

        `expect` tells the driver of this process of it at the last moment, and whether it claims at once.
        """
        options = checked(options)
        agent = await self.pins.pin(name)
        _require_available(agent.contract)
        self._check_hooks(agent.contract)
        model = chosen_model(agent.contract, options)
        if not detached:
            await self._require_model(agent.contract, model)
        valid = self._valid_input(agent, value)
        if not files:
            _require_words(agent.contract, valid)
        kept = await self._keep(agent.contract, files)
        raw = msgspec.json.encode(valid, order="deterministic")
        run_id = self._new_id(RUN)
        created = RunCreated(
            agent=agent.contract.name,
            version=agent.contract.version,
            input=await pack(self._ledger, raw),
            snapshot=agent.snapshot,
            session_id=options.session_id or self._new_id(SESSION),
            seed=self._clock.entropy(16).hex(),
            runtime=agent.contract.runtime or "python",
            root_run_id=run_id,
            limits=self._limits(agent.contract),
            unattended=options.unattended,
            may_spawn=agent.contract.requires.spawn_agents,
            key=options.key,
            place=agent.place,
            files=kept,
            pools=self._root_pools(run_id, agent.contract, options.budget_usd),
            lineage=(_as_ancestor(agent.contract),),
            narrow=narrowing(agent.contract.name, options),
            critical=critical(options),
            model=model,
        )
        new = self._new_run(run_id, created, options, fingerprint_of(raw, options, kept))
        return await self._ledger.submit(new, lazy=expect())

    async def fork(self, source: RunCreated, point: ForkPoint, options: Options, turn: int) -> Submitted:
        """Queues a run that continues from an event of another, with the agent's code as it is now.

        Its session branches off at `turn`, that of the other run; 0 for a child's, which is no turn.
        """
        agent = await self.pins.pin(source.agent)
        run_id = self._new_id(RUN)
        created = msgspec.structs.replace(
            source,
            version=agent.contract.version,
            snapshot=agent.snapshot,
            runtime=agent.contract.runtime or "python",
            session_id=self._new_id(SESSION),
            turn=0,
            parent_run_id="",
            parent_effect="",
            root_run_id=run_id,
            depth=0,
            limits=self._limits(agent.contract),
            may_spawn=agent.contract.requires.spawn_agents,
            key=options.key,
            place=agent.place,
            fork=point,
            pools=self._root_pools(run_id, agent.contract, options.budget_usd),
            lineage=descend(source.lineage, _as_ancestor(agent.contract)),
            critical=None,
        )
        new = self._new_run(run_id, created, options, fingerprint_of(point.hash.encode(), options))
        return await self._ledger.submit(msgspec.structs.replace(new, branch_of=source.session_id, branch_turn=turn))

    async def child(self, parent: State, call: CallMade) -> NewRun:
        """The run that a spawn call asks for; raises when its agent or input is wrong or it failed too often."""
        asked = msgspec.json.decode(call.args)
        agent = await self.pins.pin(str(asked["agent"]))
        _require_available(agent.contract)
        self._check_hooks(agent.contract)
        await self._require_model(agent.contract)
        valid = self._valid_input(agent, asked["input"])
        await self._check_circuit(agent)
        above = parent.created
        run_id = self._new_id(RUN)
        created = RunCreated(
            agent=agent.contract.name,
            version=agent.contract.version,
            input=await pack(self._ledger, msgspec.json.encode(valid, order="deterministic")),
            snapshot=agent.snapshot,
            session_id=above.session_id,
            seed=self._clock.entropy(16).hex(),
            runtime=agent.contract.runtime or "python",
            parent_run_id=parent.run_id,
            parent_effect=call.effect,
            root_run_id=above.root_run_id,
            depth=above.depth + 1,
            limits=_narrow(self._limits(agent.contract), above.limits),
            unattended=above.unattended,
            may_spawn=agent.contract.requires.spawn_agents,
            place=agent.place,
            pools=(*above.pools, *_own_pool(run_id, agent.contract)),
            lineage=descend(above.lineage, above.narrow, _as_ancestor(agent.contract)),
            critical=above.critical,
        )
        return self._new_run(run_id, created, Options(principal=parent.principal), "")

    async def job(self, state: State, history: History, now_us: int) -> Job:
        """The job that executes the run's pinned code."""
        created = state.created
        agent = await self.pins.of_run(created.agent, created.snapshot)
        lifecycle = agent.contract.lifecycle
        return Job(
            run_id=state.run_id,
            root_run_id=created.root_run_id,
            parent_run_id=created.parent_run_id,
            session_id=created.session_id,
            principal=state.principal,
            agent=created.agent,
            version=created.version,
            attempt=state.attempt + 1,
            folder=agent.folder,
            snapshot=created.snapshot,
            input=await unpack(self._ledger, created.input),
            seed=created.seed,
            values=history.values,
            deadline_us=deadline_us(state, now_us),
            tokens_left=created.limits.tree_tokens,
            may_spawn=created.may_spawn,
            startup=lifecycle.startup,
            shutdown=lifecycle.shutdown,
            memory_mb=self._execution.worker_memory_mb,
            output_limit_bytes=self._execution.output_limit_mb * 1024 * 1024,
        )

    async def contract_of(self, created: RunCreated) -> Contract:
        """The contract that a run pins."""
        return (await self.pins.of_run(created.agent, created.snapshot)).contract

    async def secrets(self, job: Job) -> tuple[str, ...]:
        """The names of the secrets that the contract behind a job lets its code have."""
        agent = await self.pins.of_run(job.agent, job.snapshot)
        return agent.contract.secrets

    async def check_output(self, state: State, output: msgspec.Raw) -> ErrorRecord | None:
        """What is wrong with an output under the run's pinned contract."""
        agent = await self.pins.of_run(state.created.agent, state.created.snapshot)
        if not agent.contract.output.schema:
            return None
        complaints = self._schema(agent, "output", agent.contract.output.schema).complaints(msgspec.json.decode(output))
        if not complaints:
            return None
        return RunFailed(
            f"the output breaks its schema: {'; '.join(complaints[:5])}",
            hint="Compare what execute() returns with output.schema in agent.yaml.",
            code="output_invalid",
        ).record()

    async def _require_model(self, contract: Contract, chosen: str = "") -> None:
        """Refuses a prompt agent that no model could answer for, before there is a run."""
        if contract.runtime != "prompt" or self._check_model is None:
            return
        try:
            await self._check_model(chosen or contract.model.preference)
        except AtlasError:
            if contract.model.fallback is None:
                raise
            await self._check_model(contract.model.fallback)

    async def _keep(self, contract: Contract, files: Sequence[tuple[str, bytes]]) -> tuple[InputFile, ...]:
        """The files, examined and then kept as blobs."""
        if files and contract.runtime != "prompt":
            raise Invalid(f"{contract.name} takes no files", hint="Only prompt agents do.", code="files_not_taken")
        if len(files) > MAX_FILES:
            raise Invalid(f"a run takes at most {MAX_FILES} files, not {len(files)}", code="too_many_files")
        found = tuple(examine(name, data, number) for number, (name, data) in enumerate(files, start=1))
        for _, data in files:
            await self._ledger.put_blob(data)
        return found

    def _valid_input(self, agent: Pinned, value: Any) -> Any:
        schema = agent.contract.input.schema
        wrong = self._not_json(value)
        if wrong:
            raise Invalid(
                f"the input of {agent.contract.name} is not JSON: {wrong[0].message}",
                problems=tuple(wrong),
                hint="Pass plain data: text, numbers, lists and dicts.",
                code="input_not_json",
            )
        if not schema:
            return {} if value is None else value
        compiled = self._schema(agent, "input", schema)
        filled = compiled.apply_defaults({} if value is None else value)
        complaints = compiled.complaints(filled)
        if complaints:
            raise Invalid(
                f"the input of {agent.contract.name} is not valid: {'; '.join(complaints[:5])}",
                hint=f"See input.schema in agents/{agent.contract.name}/agent.yaml.",
                code="input_invalid",
            )
        return filled

    def _schema(self, agent: Pinned, side: str, schema: dict[str, Any]) -> Schema:
        known = self._schemas.get((agent.snapshot, side))
        if known is None:
            known = self._schemas[agent.snapshot, side] = self._compile(schema)
        return known

    async def _check_circuit(self, agent: Pinned) -> None:
        """Refuses an agent whose last children all failed just now; the same code after a pause gets one try."""
        breaker = self._execution.circuit_breaker
        last = await self._ledger.last_children(agent.contract.name, agent.snapshot, breaker.failure_threshold)
        if len(last) < breaker.failure_threshold or any(row.state != "failed" for row in last):
            return
        open_until_us = last[0].ended_us + int(breaker.recovery_timeout * 1_000_000)
        left_s = (open_until_us - self._clock.now_us()) / 1_000_000
        if left_s > 0:
            raise CircuitOpen(
                f"agent {agent.contract.name} failed {breaker.failure_threshold} times in a row",
                hint=f"It may be spawned again in {left_s:.0f} s, or at once after its code changed.",
            )

    def _limits(self, contract: Contract) -> Limits:
        execution, budget = self._execution, contract.budget
        wanted = [limit for limit in (contract.timeout_s, budget.wall_s, self._fleet.wall_s) if limit is not None]
        children = [execution.max_children_per_run, budget.children, self._fleet.children]
        return Limits(
            timeout_s=min(wanted, default=execution.timeouts.agent),
            # An agent that was given more time than a tree has by default gets it when it is the root.
            tree_timeout_s=max(execution.timeouts.chain, min(wanted, default=0)),
            depth=execution.max_spawn_depth,
            children=min(limit for limit in children if limit is not None),
            tree_runs=execution.max_runs_per_tree,
            spawns_per_minute=execution.max_spawns_per_minute,
            tree_tokens=execution.resource_budget.max_tokens_per_chain,
            cancel_grace_s=execution.cancel_grace_s,
        )

    def _root_pools(self, run_id: str, contract: Contract, usd_given: float | None) -> tuple[Pool, ...]:
        """The pool of a run that nobody spawned: what its contract, the vault and whoever submitted it allow."""
        chain = Budget(tokens_per_run=self._execution.resource_budget.max_tokens_per_chain)
        pool = pool_of(run_id, (contract.budget, self._fleet, chain), usd_given)
        return () if pool is None else (pool,)

    def _new_run(self, run_id: str, created: RunCreated, options: Options, fingerprint: str) -> NewRun:
        now_us = self._clock.now_us()
        return NewRun(
            run_id=run_id,
            session_id=created.session_id,
            agent=created.agent,
            version=created.version,
            snapshot=created.snapshot,
            principal=options.principal,
            created=draft(created, now_us, options.principal),
            root_run_id=created.root_run_id,
            parent_run_id=created.parent_run_id,
            parent_effect=created.parent_effect,
            depth=created.depth,
            priority=options.priority,
            due_us=options.due_us,
            place=created.place,
            key=options.key,
            fingerprint=fingerprint,
        )

    def _new_id(self, prefix: str) -> str:
        return new_id(prefix, self._clock.now_us(), self._clock.entropy(10))


def _own_pool(run_id: str, contract: Contract) -> tuple[Pool, ...]:
    pool = pool_of(run_id, (contract.budget,))
    return () if pool is None else (pool,)


def _as_ancestor(contract: Contract) -> Ancestor:
    """An agent with the tools that its contract gives it: the last of its run's lineage."""
    tools = contract.usable_tools
    return Ancestor(contract.name, tools.allow, tools.deny)


def _require_words(contract: Contract, value: Any) -> None:
    """Refuses a question that says nothing: a model would make something up."""
    said = value.get("text", "") if isinstance(value, dict) and value.keys() <= {"text"} else value
    if contract.runtime == "prompt" and not contract.input.schema and isinstance(said, str) and not said.strip():
        hint = f"atlas run {contract.name} 'What to do'"
        raise Invalid(f"nothing was said to {contract.name}", hint=hint, code="input_missing")


def _require_available(contract: Contract) -> None:
    """Refuses a contract that needs something this Atlas cannot do."""
    hardware = contract.hardware
    missing = [
        (contract.runtime not in (None, "python", "prompt"), f"runtime: {contract.runtime}"),
        (bool(contract.requires.skills), "requires.skills"),
        (contract.requires.platform_tools, "requires.platform_tools"),
        (hardware.gpu or bool(hardware.node_affinity or hardware.node_labels), "hardware placement"),
    ]
    names = [name for is_missing, name in missing if is_missing]
    if names:
        raise Unavailable(
            f"agent {contract.name} needs what is not available yet: {', '.join(names)}",
            hint="This version runs Python and prompt agents on this machine.",
            code="not_available_yet",
        )


def _narrow(own: Limits, parent: Limits) -> Limits:
    """What a child may use: never more than its parent."""
    return Limits(
        timeout_s=own.timeout_s,
        tree_timeout_s=min(own.tree_timeout_s, parent.tree_timeout_s),
        depth=min(own.depth, parent.depth),
        children=min(own.children, parent.children),
        tree_runs=min(own.tree_runs, parent.tree_runs),
        spawns_per_minute=min(own.spawns_per_minute, parent.spawns_per_minute),
        tree_tokens=parent.tree_tokens,
        cancel_grace_s=min(own.cancel_grace_s, parent.cancel_grace_s),
    )
