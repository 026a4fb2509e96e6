"""Atlas over one vault and one ledger: every use case that a surface offers, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import tzinfo
from types import TracebackType
from typing import Any, Self

import msgspec

from atlas.control.agents import Agents
from atlas.control.approval import Approvals
from atlas.control.costs import Bookkeeper
from atlas.control.delta import Deltas
from atlas.control.drive import Driver
from atlas.control.history import created_of, glance, load
from atlas.control.inbox_files import InboxFiles, InboxFolder
from atlas.control.option import Options
from atlas.control.payload import unpack
from atlas.control.pinned import Inline
from atlas.control.prompt import Prompts
from atlas.control.redaction import Redaction
from atlas.control.replay import replay_run
from atlas.control.report import InboxEntry, ReplayReport, RunReport, Tokens, VerifyReport
from atlas.control.shelf import Shelf
from atlas.control.signal import Remember, cancel_signal
from atlas.control.verify import verify_all, verify_run
from atlas.kernel.code import Executor
from atlas.kernel.config import Config
from atlas.kernel.context import Built
from atlas.kernel.errors import AtlasError, Conflict, Invalid, NotFound, Unavailable
from atlas.kernel.event import (
    NULL,
    Body,
    EffectAsked,
    Event,
    ForkPoint,
    Resolution,
    RunEnded,
    RunParked,
    decode_body,
)
from atlas.kernel.ident import RUN, SIGNAL, new_id
from atlas.kernel.port import Clock, Ledger, Vault
from atlas.kernel.principal import OWNER, check_principal, may_see
from atlas.kernel.run import (
    TERMINAL,
    RunPage,
    RunQuery,
    RunRow,
    RunState,
    Submitted,
)
from atlas.kernel.state import State, apply, initial
from atlas.kernel.tool import LoadedTool

LAST = "@last"
_LEDGER_PAUSE_S = 5.0


class Host:
    """An open vault. Drives runs only after something asked for it; parks what it holds when it closes."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        vault: Vault,
        config: Config,
        clock: Clock,
        zone: tzinfo,
        agents: Agents,
        driver: Driver,
        executor: Callable[[State], Executor],
        deltas: Deltas,
        prompts: Prompts,
        add_tools: Callable[[str, Sequence[LoadedTool]], None],
        redaction: Redaction,
        approvals: Callable[[Callable[[RunRow, EffectAsked, bytes], Awaitable[str | None]]], Approvals],
        shelf: Shelf,
        pages: InboxFolder | None = None,
    ) -> None:
        self.ledger = ledger
        self.vault = vault
        self.config = config
        self.clock = clock
        self.books = Bookkeeper(ledger, vault, config, clock, zone)
        self._agents = agents
        self._driver = driver
        self._executor = executor
        self.deltas = deltas
        self._prompts = prompts
        self._add_tools = add_tools
        self._redaction = redaction
        self._approvals = approvals(self.check_args)
        self._shelf = shelf
        self._pages = None if pages is None else InboxFiles(pages, ledger, self.inbox, self.answer)
        self._group: asyncio.TaskGroup
        self._driving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._pages is not None:
            await self._pages.read_answers()
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.stop()
        try:
            # What the caller raised is the caller's: a group would wrap it.
            await self._group.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            raise _first(group) from None
        if self._pages is not None:
            with suppress(Unavailable):
                await (self._pages.sync() if self._driving is not None else self._pages.read_answers())

    # Running

    async def submit(
        self,
        agent: str,
        value: Any,
        *,
        session_id: str = "",
        key: str = "",
        priority: int = 0,
        unattended: bool = False,
        principal: str = "owner",
        files: Sequence[tuple[str, bytes]] = (),
        detached: bool = False,
        allow: tuple[str, ...] | None = None,
        deny: tuple[str, ...] = (),
        budget_usd: float | None = None,
        critical_usd: float = 0.0,
        why: str = "",
        model: str | None = None,
    ) -> Submitted:
        """Queues a run on a valid input, with files by name if wanted; the same key gives the run made first.

        `detached`: another process will drive it, so the models that it needs may be configured there and not here.
        `allow` and `deny` are patterns of tools that narrow what its agent may use; they never widen it. `budget_usd` is
        what it and all it spawns may cost, where nothing smaller is written. `critical_usd` raises every cap on money for
        them by that amount, and `why` is recorded; no rule of a policy gives way to it. `model` is asked by this run instead
        of the one that its agent prefers.
        """
        self._shelf.require()
        await self._redaction.refresh()
        redactor = self._redaction.redactor
        options = Options(
            session_id=redactor.value(session_id),
            key=redactor.value(key),
            priority=priority,
            unattended=unattended,
            principal=principal,
            allow=allow,
            deny=deny,
            budget_usd=budget_usd,
            critical_usd=critical_usd,
            why=redactor.value(why),
            model=model,
        )
        given = [(redactor.text(name), redactor.data(data)) for name, data in files]
        expect = self._driver.expect
        return await self._agents.submit(agent, redactor.value(value), options, given, detached=detached, expect=expect)

    def add(self, agent: Inline) -> None:
        """Makes an agent that is defined in code known here, and drives its runs; Conflict when its name is taken."""
        self._agents.pins.add(agent)
        self._add_tools(agent.place, agent.tools)
        self._driver.serve(agent.place)

    async def drive(self, run_id: str) -> RunState:
        """Drives until this run rests: ended, parked for a person, or queued again because of `stop`."""
        self.start_driving()
        return await self._driver.rest_of(run_id)

    async def drive_all(self, *, until_idle: bool) -> None:
        """Drives whatever is due until `stop`, or until nothing is left to do."""
        if until_idle:
            self._driver.leave_when_idle()
        await self.start_driving()

    async def finish_others(self) -> int:
        """Waits for the other runs in hand; how many there were."""
        count = self._driver.in_hand
        self._driver.finish()
        await self._driver.idle()
        return count

    @property
    def in_hand(self) -> int:
        """How many runs this process holds."""
        return self._driver.in_hand

    def stop(self) -> None:
        """Finishes recording and parks everything."""
        self._driver.stop()

    async def abort(self) -> None:
        """Ends everything at once, still consistent."""
        await self._driver.abort()

    async def follow(self, run_id: str, after: int = 0) -> AsyncIterator[tuple[Event, Body]]:
        """The run's events as they become durable; ends when the run rests."""
        async with self.ledger.wake(every_commit=True) as wake:
            while True:
                is_resting = False
                for event in await self.ledger.events(run_id, after=after):
                    after = event.seq
                    if event.salt:
                        body = decode_body(event.kind, event.version, event.body)
                        is_resting = isinstance(body, RunEnded | RunParked)
                        yield event, body
                # A run that was parked and taken up again has events behind that.
                if is_resting and not (await self.ledger.run(run_id)).owner:
                    return
                await wake.wait(5.0)

    def start_driving(self) -> asyncio.Task[None]:
        """Begins to drive what is due, if this process does not do so already."""
        if self._driving is None:
            self._driving = self._group.create_task(self._drive())
        return self._driving

    async def _drive(self) -> None:
        """Drives; as long as it does, it keeps the pages of the inbox in step and denies what nobody answered in time."""
        # Before the first claim: a driver that leaves when it is idle must not leave these behind.
        await self._approvals.expire()
        # Tasks of the host's own group, so that what the driver raises reaches whoever waits for it as it is.
        beside = [self._group.create_task(self._expire())]
        if self._pages is not None:
            beside.append(self._group.create_task(self._pages.watch()))
        try:
            await self._driver.run()
        finally:
            for task in beside:
                task.cancel()

    async def _expire(self) -> None:
        """Denies each question when its time has come; returns when none that waits or will be asked has one."""
        after_s = self.config.approvals.expire_after_s
        while True:
            try:
                await self._approvals.expire()
                next_us = await self._approvals.next_expiry_us()
            except Unavailable:
                await asyncio.sleep(_LEDGER_PAUSE_S)
                continue
            # What is asked later waits at least this long, so nothing can expire before this wakes up.
            waits = [after_s] if after_s is not None else []
            waits += [(next_us - self.clock.now_us()) / 1_000_000] if next_us else []
            if not waits:
                return
            await asyncio.sleep(max(0.05, min(*waits, 3600.0)))

    # Looking

    async def find_run(self, text: str) -> RunRow:
        """The run that `text` means: an id, a unique beginning of one, or `@last`."""
        if text == LAST:
            page = await self.ledger.runs(RunQuery(roots_only=True, limit=1))
            if not page.runs:
                raise NotFound("there are no runs yet", hint="Start one with 'atlas run AGENT'.")
            return page.runs[0]
        prefix = text if text.startswith(RUN) else RUN + text
        page = await self.ledger.runs(RunQuery(id_prefix=prefix, limit=2))
        if not page.runs:
            raise NotFound(f"no run begins with {text!r}", hint="List runs with 'atlas runs'.")
        if len(page.runs) > 1 and page.runs[0].run_id != prefix:
            raise Conflict(f"several runs begin with {text!r}", hint="Give more of the id.", code="ambiguous_run")
        return page.runs[0]

    async def runs(self, query: RunQuery) -> RunPage:
        """Runs, newest first."""
        return await self.ledger.runs(query)

    async def report(self, run_id: str) -> RunReport:
        """A run's result as every surface shows it; cost and steps include its children."""
        row = await self.ledger.run(run_id)
        seen = self._driver.seen(run_id) or await glance(self.ledger, run_id)
        ended = seen.ended
        output = await unpack(self.ledger, ended.output) if ended is not None else NULL.json
        spend = row.spend
        if seen.may_have_children:
            async for below in self.tree(row):
                spend = spend if below.run_id == run_id else spend.plus(below.spend)
        return RunReport(
            run_id=run_id,
            session_id=row.session_id,
            agent=row.agent,
            state=row.state,
            output=output,
            text=_text_of(output),
            cost_usd=spend.cost_micro_usd / 1_000_000,
            tokens=Tokens(spend.tokens_in, spend.tokens_out),
            steps=spend.steps,
            duration_ms=((row.ended_us or self.clock.now_us()) - row.created_us) // 1000,
            error=ended.error if ended is not None else None,
            models=seen.models,
        )

    async def tree(self, row: RunRow) -> AsyncIterator[RunRow]:
        """The run and everything below it, oldest first."""
        rows: list[RunRow] = []
        before = ""
        while True:
            page = await self.ledger.runs(RunQuery(root_run_id=row.root_run_id, before=before, limit=500))
            rows.extend(page.runs)
            before = page.next
            if not before:
                break
        inside = {row.run_id}
        for each in sorted(rows, key=lambda one: one.run_id):
            if each.run_id in inside or each.parent_run_id in inside:
                inside.add(each.run_id)
                yield each

    async def verify(self, run_id: str | None) -> VerifyReport:
        """Recomputes one chain, or all."""
        return await verify_run(self.ledger, run_id) if run_id else await verify_all(self.ledger)

    async def replay(self, run_id: str) -> ReplayReport:
        """Decides the run again, offline."""
        return await replay_run(self.ledger, self._agents, self._executor, self._shelf, run_id)

    async def request(self, run_id: str, step: int) -> Built:
        """What the model saw at a step, and why each part was there."""
        history = await load(self.ledger, run_id)
        if history.state.created.runtime != "prompt":
            raise Invalid(
                f"run {run_id} is not of a prompt agent, and only those are sent requests that Atlas builds",
                hint="'atlas show RUN --events' has what an agent's code asked models.",
                code="not_a_prompt",
            )
        job = await self._agents.job(history.state, history, self.clock.now_us())
        return await self._prompts.request_at(job, step)

    # Deciding

    async def cancel(self, run_id: str, reason: str, principal: str = "owner") -> RunState:
        """Cancels the run and its children; the state it came to rest in."""
        row = await self.ledger.run(run_id)
        if not may_see(check_principal(principal), row.principal):
            raise NotFound(f"{principal} has no run {run_id}", hint="List runs with 'atlas runs'.")
        if row.state in TERMINAL:
            return row.state
        signal = cancel_signal(run_id, principal, await self._said(reason), self._signal_id())
        await self.ledger.signal(signal)
        return await self.drive(run_id)

    async def inbox(self, principal: str = OWNER) -> list[InboxEntry]:
        """What waits for a person, oldest first: everything for the vault's owner, for others what is theirs."""
        return await self._approvals.waiting(principal)

    async def answer(
        self,
        run_id: str,
        effect: str,
        approved: bool,
        reason: str = "",
        principal: str = OWNER,
        *,
        args: bytes | None = None,
        remember: Remember = "",
    ) -> None:
        """Approves or denies an effect; bound to what was shown, or to the arguments given instead."""
        await self._approvals.answer(run_id, effect, approved, reason, principal, args=args, remember=remember)

    async def resolve(
        self,
        run_id: str,
        effect: str,
        resolution: Resolution,
        result: bytes | None = None,
        reason: str = "",
        principal: str = OWNER,
    ) -> None:
        """Says what became of an effect in doubt."""
        await self._approvals.resolve(run_id, effect, resolution, result, reason, principal)

    async def check_args(self, row: RunRow, asked: EffectAsked, args: bytes) -> str | None:
        """What is wrong with arguments that a person put in place of those a tool was to be called with."""
        history = await load(self.ledger, row.run_id)
        job = await self._agents.job(history.state, history, self.clock.now_us())
        return await self._prompts.check_args(job, asked.name, args)

    async def fork(self, run_id: str, at: int | None = None) -> Submitted:
        """Queues a run that continues from event `at` of another; effects before it are not repeated."""
        events = await self.ledger.events(run_id)
        if not events:
            raise NotFound(f"run {run_id} has no events")
        state = initial(run_id, events[0].principal, created_of(events[0]))
        forkable = [1]
        for event in events[1:]:
            if event.salt:
                state = apply(state, decode_body(event.kind, event.version, event.body), event.time_us)
            if not state.open and state.ended is None:
                forkable.append(event.seq)
        point = forkable[-1] if at is None else at
        if point not in forkable:
            near = max((seq for seq in forkable if seq < point), default=1)
            raise Conflict(
                f"run {run_id} cannot be forked at event {point}: effects are open there, or it is past the end",
                hint=f"The nearest point before it is --at {near}.",
                code="fork_point_open",
            )
        event = events[point - 1]
        row = await self.ledger.run(run_id)
        forked = ForkPoint(run_id, point, event.hash.hex())
        return await self._agents.fork(state.created, forked, Options(principal=row.principal), row.turn)

    async def erase(self, run_id: str, seq: int) -> None:
        """Takes the text out of one event for good; the chain still verifies and says so."""
        row = await self.ledger.run(run_id)
        if row.state not in TERMINAL:
            raise Conflict("only events of a run that has ended can be erased", code="run_not_ended")
        await self.ledger.erase(run_id, seq)

    async def _said(self, text: str) -> str:
        """What a person wrote, as it may be recorded."""
        await self._redaction.refresh()
        return self._redaction.text(text)

    def _signal_id(self) -> str:
        return new_id(SIGNAL, self.clock.now_us(), self.clock.entropy(10))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a person should hear of several failures: ours before others."""
    flat: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop(0)
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            flat.append(error)
    return next((error for error in flat if isinstance(error, AtlasError)), flat[0])


def _text_of(output: msgspec.Raw) -> str:
    value = msgspec.json.decode(output)
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    return ""
