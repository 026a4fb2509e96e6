"""Builds recorded requests again from their record: to time it, to compare it, and to try it under other budgets."""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import suppress
from random import Random
from typing import Final

import msgspec

from atlas.control.account import error_text, handle_of, user_text
from atlas.control.history import bodies
from atlas.control.payload import unpack
from atlas.kernel.context import Live, build
from atlas.kernel.contract import Context
from atlas.kernel.errors import LimitRefused
from atlas.kernel.event import EffectIntended, EffectReceived, RunCreated
from atlas.kernel.model import Request, ToolCall, ToolResult
from atlas.kernel.port import Ledger
from atlas.kernel.recall import Handle
from atlas.kernel.token import Heard, Limits, limits_of, lowered
from atlas.kernel.tool import ToolOutcome
from atlas.kernel.turn import Turn, answered, note_of, noted, received, windowed
from atlas.testing.context_audit import shown_texts

_HANDLE: Final = re.compile(r"handle='([^']+)'|\b(t\d+(?:\.\d+){0,2})\b")


class Asked(msgspec.Struct, frozen=True):
    """What one recorded request was built from, and the digest that its intent recorded."""

    turn: Turn
    live: Live
    digest: str


async def read_requests(ledger: Ledger, run_id: str, number: int, limits: Limits) -> list[Asked]:
    """The inputs of every request of a recorded turn, folded from its events as the loop folds them."""
    found: list[Asked] = []
    intents: dict[str, EffectIntended] = {}
    results: dict[Handle, ToolResult] = {}
    replies: list[Heard] = []
    user = ""
    for _, body in bodies(await ledger.events(run_id)):
        match body:
            case RunCreated():
                user = user_text(await unpack(ledger, body.input))
            case EffectIntended():
                intents[body.effect] = body
            case EffectReceived():
                handle = handle_of(body.effect, number)
                if handle is not None and handle.call is not None:
                    results[handle] = await _result(ledger, body)
                elif handle is not None:
                    replies.append(msgspec.json.decode(await unpack(ledger, body.result), type=Heard))
            case _:
                pass
    turn = Turn(number, user)
    rate = 0.0
    for step, heard in enumerate(replies, start=1):
        args = msgspec.json.decode(await unpack(ledger, intents[f"model:{step}"].args))
        live = msgspec.json.decode(await ledger.get_blob(args["live"]), type=Live)
        rate = rate or live.bytes_per_token
        turn = windowed(turn, limits.at(rate).window)
        found.append(Asked(turn, live, args["request"]))
        rate = lowered(rate, heard.sample)
        turn = answered(turn, heard.reply)
        if turn.pending:
            told = []
            for place, call in enumerate(turn.pending, start=1):
                handle = Handle(number, step, place)
                note = note_of(call, str(handle))
                turn = turn if note is None else noted(turn, note)
                told.append(_told(results, handle, call))
            turn = received(turn, tuple(told), limits.at(rate))
    return found


def is_identical(asked: Asked, limits: Limits) -> bool:
    """Whether building it again gives the bytes that were sent."""
    return hashlib.sha256(build(asked.turn, asked.live, limits).raw).hexdigest() == asked.digest


def time_builds(requests: list[Asked], limits: Limits, times: int) -> list[float]:
    """How many milliseconds each of `times` builds of each request took."""
    took: list[float] = []
    for _ in range(times):
        for asked in requests:
            began = time.perf_counter()
            build(asked.turn, asked.live, limits)
            took.append((time.perf_counter() - began) * 1_000)
    return took


def under_random_budgets(turns: list[list[Asked]], random: Random, times: int) -> tuple[list[Request], int]:
    """`times` requests, each of any turn and built under a budget of its own; and how many were refused instead."""
    built: list[Request] = []
    for _ in range(times):
        asked = random.choice(random.choice(turns))
        limits = limits_of(Context(max_tokens=random.randint(1_000, 40_000)))
        turn = windowed(asked.turn, limits.at(asked.live.bytes_per_token).window)
        with suppress(LimitRefused):
            built.append(build(turn, asked.live, limits).request)
    return built, times - len(built)


def handles_in(request: Request) -> set[str]:
    """Every handle that a request prints."""
    return {named or bare for text in shown_texts(request) for named, bare in _HANDLE.findall(text)}


async def _result(ledger: Ledger, body: EffectReceived) -> ToolResult:
    if body.error is not None:
        return ToolResult("", error_text(body.error), is_error=True)
    outcome = msgspec.json.decode(await unpack(ledger, body.result), type=ToolOutcome)
    return ToolResult("", outcome.text, outcome.is_error)


def _told(results: dict[Handle, ToolResult], handle: Handle, call: ToolCall) -> ToolResult:
    """What the model was told about a call; a note is answered without being performed."""
    result = results.get(handle, ToolResult("", "noted"))
    return ToolResult(call.id, result.text, result.is_error)
