"""Agents as runs need them: submitted, spawned and executed from a pinned snapshot of their folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from atlas.control.history import History
from atlas.control.payload import pack, unpack
from atlas.kernel.code import CallMade, Job
from atlas.kernel.config import Execution
from atlas.kernel.contract import Contract
from atlas.kernel.decide import deadline_us
from atlas.kernel.errors import CircuitOpen, ErrorRecord, Invalid, Problem, RunFailed, Unavailable
from atlas.kernel.event import ForkPoint, Limits, RunCreated, draft
from atlas.kernel.ident import RUN, SESSION, new_id
from atlas.kernel.port import Clock, Ledger, Vault
from atlas.kernel.run import NewRun, Submitted
from atlas.kernel.state import State

INLINE_PLACE = "inline:"


class Schema(Protocol):
    """A compiled JSON Schema."""

    def apply_defaults(self, value: Any) -> Any:
        """`value` with the schema's defaults where it says nothing."""
        ...

    def complaints(self, value: Any) -> list[str]:
        """What is wrong with `value`, each with its path."""
        ...


class Pinned(msgspec.Struct, frozen=True):
    """An agent as a run sees it: fixed when the run was submitted."""

    contract: Contract
    snapshot: str
    folder: str
    place: str = ""


class Options(msgspec.Struct, frozen=True):
    """How a run is submitted."""

    session_id: str = ""
    key: str = ""
    priority: int = 0
    due_us: int = 0
    unattended: bool = False
    principal: str = "owner"


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
        inline: Mapping[str, Contract],
    ) -> None:
        self._vault = vault
        self._ledger = ledger
        self._clock = clock
        self._execution = execution
        self._compile = compile_schema
        self._not_json = not_json
        self._inline = inline
        self._pinned: dict[str, Pinned] = {}
        self._schemas: dict[tuple[str, str], Schema] = {}

    async def submit(self, name: str, value: Any, options: Options) -> Submitted:
        """Queues a run of the agent on a valid input; the same key gives the same run."""
        options = _checked(options)
        agent = await self._pin(name)
        _require_available(agent.contract)
        valid = self._valid_input(agent, value)
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
        )
        fingerprint = _fingerprint(raw, options)
        return await self._ledger.submit(self._new_run(run_id, created, options, fingerprint))

    async def fork(self, source: RunCreated, point: ForkPoint, options: Options) -> Submitted:
        """Queues a run that continues from an event of another, with the agent's code as it is now."""
        agent = await self._pin(source.agent)
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
        )
        new = self._new_run(run_id, created, options, _fingerprint(point.hash.encode(), options))
        return await self._ledger.submit(msgspec.structs.replace(new, branch_of=source.session_id))

    async def child(self, parent: State, call: CallMade) -> NewRun:
        """The run that a spawn call asks for; raises when its agent or input is wrong or it failed too often."""
        asked = msgspec.json.decode(call.args)
        agent = await self._pin(str(asked["agent"]))
        _require_available(agent.contract)
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
        )
        return self._new_run(run_id, created, Options(principal=parent.principal), "")

    async def job(self, state: State, history: History, now_us: int) -> Job:
        """The job that executes the run's pinned code."""
        created = state.created
        agent = await self._pinned_agent(created)
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

    async def check_output(self, state: State, output: msgspec.Raw) -> ErrorRecord | None:
        """What is wrong with an output under the run's pinned contract."""
        agent = await self._pinned_agent(state.created)
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

    async def contract(self, snapshot: str) -> Contract:
        """The contract that a snapshot pins."""
        return (self._pinned.get(snapshot) or await self._open(snapshot)).contract

    async def _pin(self, name: str) -> Pinned:
        contract = self._inline.get(name)
        if contract is not None:
            return Pinned(contract, f"{INLINE_PLACE}{name}", "", f"{INLINE_PLACE}{name}")
        snapshot = self._vault.snapshot(name)
        known = self._pinned.get(snapshot.digest)
        if known is not None:
            return known
        if self._vault.placed(snapshot.digest) is None:
            files = {path: self._vault.read(name, path) for path in snapshot.files}
            await self._store(snapshot.digest, files)
            self._vault.place(snapshot.digest, files)
        return await self._open(snapshot.digest)

    async def _pinned_agent(self, created: RunCreated) -> Pinned:
        if created.place.startswith(INLINE_PLACE):
            return await self._pin(created.agent)
        return self._pinned.get(created.snapshot) or await self._open(created.snapshot)

    async def _open(self, digest: str) -> Pinned:
        folder = self._vault.placed(digest) or self._vault.place(digest, await self._fetch(digest))
        pinned = Pinned(self._vault.contract_in(folder), digest, folder)
        self._pinned[digest] = pinned
        return pinned

    async def _store(self, digest: str, files: Mapping[str, bytes]) -> None:
        """Keeps the files as blobs, so that any machine that shares the ledger can place them again."""
        manifest = {path: await self._ledger.put_blob(data) for path, data in sorted(files.items())}
        stored = await self._ledger.put_blob(msgspec.json.encode(manifest))
        if stored != digest:
            raise Invalid(
                "the agent's folder changed while it was read",
                hint="Run the command again.",
                code="snapshot_changed",
            )

    async def _fetch(self, digest: str) -> dict[str, bytes]:
        manifest = msgspec.json.decode(await self._ledger.get_blob(digest), type=dict[str, str])
        return {path: await self._ledger.get_blob(blob) for path, blob in manifest.items()}

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
        wanted = [limit for limit in (contract.timeout_s, budget.wall_s) if limit is not None]
        children = execution.max_children_per_run
        return Limits(
            timeout_s=min(wanted, default=execution.timeouts.agent),
            # An agent that was given more time than a tree has by default gets it when it is the root.
            tree_timeout_s=max(execution.timeouts.chain, min(wanted, default=0)),
            depth=execution.max_spawn_depth,
            children=children if budget.children is None else min(children, budget.children),
            tree_runs=execution.max_runs_per_tree,
            spawns_per_minute=execution.max_spawns_per_minute,
            tree_tokens=execution.resource_budget.max_tokens_per_chain,
            cancel_grace_s=execution.cancel_grace_s,
        )

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


def _checked(options: Options) -> Options:
    """Options of the types they say; what a program passes is not checked by anybody before."""
    try:
        return msgspec.convert(msgspec.structs.asdict(options), Options)
    except msgspec.ValidationError as error:
        raise Invalid(f"an option is of the wrong type: {error}", code="option_invalid") from None


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
        tree_tokens=min(own.tree_tokens, parent.tree_tokens),
        cancel_grace_s=min(own.cancel_grace_s, parent.cancel_grace_s),
    )


def _fingerprint(raw: bytes, options: Options) -> str:
    """What makes two submissions under one key the same."""
    chosen = msgspec.json.encode([options.session_id, options.priority, options.unattended])
    return hashlib.sha256(raw + b"\0" + chosen).hexdigest()
