"""Replay: decides a recorded run again, offline, and says whether every decision came out identical.

Two questions are asked. The kernel's: from the state before each recorded decision, does `judge` say again what
was recorded? The code's: does the pinned code, answered from the record and allowed to touch nothing, ask for the
same effects and come to the same result?
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeGuard

from atlas.control.agents import Agents
from atlas.control.history import History, bodies, created_of, load
from atlas.control.payload import unpack
from atlas.control.report import Mismatch, ReplayReport
from atlas.control.shelf import Shelf
from atlas.kernel.code import Answer, CallMade, Executor, Finished, FromCode, Steered, ValueTaken
from atlas.kernel.decide import Doubt, conclude, settle
from atlas.kernel.errors import AtlasError, ReplayMismatch
from atlas.kernel.event import (
    Body,
    EffectAsked,
    EffectDoubted,
    EffectIntended,
    EffectReceived,
    EffectRefused,
    RunEnded,
    TurnSteered,
)
from atlas.kernel.gate import DEFAULTS, Ask, Authority, Intend, Refuse, Repeat, Verdict, judge
from atlas.kernel.port import Ledger
from atlas.kernel.state import State, apply, initial

# Refused because of facts outside the run (another agent's contract, the tree's totals, which models there are): a replay
# takes them as given.
_OUTSIDE_FACTS = frozenset(
    {
        *("max_runs_per_tree", "spawn_rate", "circuit_open", "not_found", "invalid", "input_invalid"),
        *("budget_refused", "budget_busy", "tokens_per_request", "policy_unreadable"),
        *("no_models", "tier_empty", "model_unknown", "model_ambiguous"),
    }
)
# How a run ends whose code had not come to its end, or whose end was not taken.
_NOT_BY_CODE = frozenset({"timeout", "tree_timeout", "worker_lost", "output_invalid", "effect_abandoned"})


async def replay_run(
    ledger: Ledger, agents: Agents, executor: Callable[[State], Executor], shelf: Shelf, run_id: str
) -> ReplayReport:
    """Decides the run again, by the policies as they were; touches nothing and asks nobody."""
    events = await ledger.events(run_id)
    created = created_of(events[0])
    state = initial(run_id, events[0].principal, created)
    decisions = 0
    mismatches: list[Mismatch] = []
    doubted: set[str] = set()
    for event, body in bodies(events[1:]):
        recorded = _recorded_decision(body)
        if recorded is not None:
            decisions += 1
            decided = await _decide_again(ledger, shelf, state, body, doubted)
            if decided != recorded:
                mismatches.append(Mismatch(event.seq, recorded, decided))
        state = apply(state, body, event.time_us)
    code = await _replay_code(ledger, agents, executor, await load(ledger, run_id))
    identical = not mismatches and not code.startswith("different")
    return ReplayReport(run_id, decisions, identical, tuple(mismatches), code)


def _recorded_decision(body: Body) -> str | None:
    match body:
        case EffectIntended():
            return f"{body.kind} {body.effect}: {body.decision}"
        case EffectAsked():
            return f"{body.kind} {body.effect}: ask"
        case EffectRefused():
            return f"{body.kind} {body.effect}: {body.decision} ({body.error.code})"
        case EffectDoubted():
            return f"in doubt: {body.effect}"
        case _:
            return None


async def _decide_again(ledger: Ledger, shelf: Shelf, state: State, body: Body, doubted: set[str]) -> str:
    match body:
        case EffectIntended() | EffectAsked() | EffectRefused():
            return await _judge_again(ledger, shelf, state, body)
        case EffectDoubted():
            doubted.add(body.effect)
            for command in settle(state):
                if isinstance(command, Doubt) and body.effect in command.effects:
                    return f"in doubt: {body.effect}"
            if state.open[body.effect].can_probe:
                return f"in doubt: {body.effect}"
            return f"not in doubt: {body.effect}"
        case _:
            return ""


async def _judge_again(
    ledger: Ledger, shelf: Shelf, state: State, body: EffectIntended | EffectAsked | EffectRefused
) -> str:
    if _is_given(body):
        return f"{body.kind} {body.effect}: {body.decision} ({body.error.code})"
    call = CallMade(
        id=0,
        effect=body.effect,
        kind=body.kind,
        name=body.name,
        args=await unpack(ledger, body.args),
        args_hash=body.args_hash,
        effect_class=body.effect_class,
        definition=_definition(state, body),
    )
    authority: Authority = DEFAULTS
    if body.ruling is not None and body.ruling.version:
        answered_by = body.answered_by if isinstance(body, EffectIntended) else ""
        authority = await shelf.authority(body.ruling.version, answered_by, body.ruling.models)
    verdict = judge(state, call, None, state.children, authority, state.mark_us)
    if isinstance(verdict, Repeat) and (body.kind == "model" or body.effect in state.permitted):
        # A lost question is intended anew with a new hold; a person's leave to try once more is used up the same way.
        return f"{body.kind} {body.effect}: allow"
    return _verdict_text(verdict, body.kind, body.effect)


def _is_given(body: EffectIntended | EffectAsked | EffectRefused) -> TypeGuard[EffectRefused]:
    """Refused because of facts outside the run: a replay takes them as given."""
    if not isinstance(body, EffectRefused):
        return False
    # What an agent's contract said at that moment is not kept; what its run pins is.
    is_live_list = body.ruling is not None and body.ruling.rule.startswith("tools.")
    return body.error.code in _OUTSIDE_FACTS or is_live_list


def _definition(state: State, body: EffectIntended | EffectAsked | EffectRefused) -> str:
    """The tool's definition at that time; what was refused does not say, so what was answered about it does."""
    if not isinstance(body, EffectRefused):
        return body.definition
    answer = state.answers.get(body.effect)
    return "" if answer is None else answer.definition


def _verdict_text(verdict: Verdict, kind: str, effect: str) -> str:
    match verdict:
        case Intend():
            return f"{kind} {effect}: allow"
        case Ask():
            return f"{kind} {effect}: ask"
        case Refuse():
            return f"{kind} {effect}: {verdict.decision} ({verdict.error.code})"
        case _:
            return f"{kind} {effect}: {type(verdict).__name__.lower()}"


async def _replay_code(ledger: Ledger, agents: Agents, executor: Callable[[State], Executor], history: History) -> str:
    ended = history.state.ended
    if ended is None:
        return "skipped: the run has not ended"
    if ended.state == "cancelled":
        return "skipped: the run was cancelled"
    if ended.error is not None and ended.error.code in _NOT_BY_CODE:
        return f"skipped: the run ended with {ended.error.code}"
    try:
        finished, asked, extra = await _execute_again(ledger, agents, executor, history)
    except AtlasError as error:
        return f"skipped: {error.message}"
    if extra:
        return f"different: the code asked for {extra}, which is not on record"
    missing = sorted(set(history.answers) - asked)
    if missing:
        return f"different: the code did not ask for {', '.join(missing)}"
    return await _compare_end(ledger, history, ended, finished)


async def _execute_again(
    ledger: Ledger, agents: Agents, executor: Callable[[State], Executor], history: History
) -> tuple[Finished, set[str], str]:
    """Runs the pinned code with every call answered from the record."""
    inbox: asyncio.Queue[FromCode] = asyncio.Queue()
    state = history.state
    job = await agents.job(state, history, state.mark_us)
    code = await executor(state).start(job, inbox.put_nowait)
    asked: set[str] = set()
    extra = ""
    try:
        while not isinstance(message := await inbox.get(), Finished):
            match message:
                case CallMade():
                    recorded = history.answers.get(message.effect)
                    asked.add(message.effect)
                    if recorded is None:
                        # What the code asked for and ended without, an outcome is not needed for.
                        is_begun = message.effect in state.open or message.effect in state.asked
                        extra = extra or ("" if is_begun else message.effect)
                        code.send(
                            Answer(message.id, error=ReplayMismatch(f"{message.effect} is not on record").record())
                        )
                    elif isinstance(recorded, EffectReceived):
                        result = await unpack(ledger, recorded.result)
                        code.send(Answer(message.id, result, recorded.error))
                    else:
                        code.send(Answer(message.id, error=recorded.error))
                case ValueTaken():
                    extra = extra or f"{message.name} number {message.occurrence}"
                case Steered(fact=TurnSteered() as fact):
                    extra = extra or f"a decision at {fact.place}"
                case _:
                    pass
    finally:
        await code.stop()
    return message, asked, extra


async def _compare_end(ledger: Ledger, history: History, ended: RunEnded, finished: Finished) -> str:
    outcome = conclude(history.state, finished).outcome
    if outcome != ended.state:
        return f"different: ended {outcome}, recorded {ended.state}"
    if finished.error is None and finished.output != await unpack(ledger, ended.output):
        return "different: the output is not the recorded one"
    return "identical"
