"""Decisions about effects as the events that record them."""

from __future__ import annotations

from atlas.control.account import RECALL_TOOL
from atlas.control.payload import inline, pack
from atlas.kernel.code import CallMade, Performed
from atlas.kernel.event import NULL, EffectAsked, EffectIntended, EffectReceived, EffectRefused, Payload
from atlas.kernel.gate import Ask, Intend, Refuse, ruled
from atlas.kernel.port import Ledger


def may_go_ahead(command: Intend) -> bool:
    """Whether the effect may begin before its intent is durable, because a crash in between loses nothing.

    Not so recall: it reads the record, which has to be there.
    """
    call = command.call
    is_harmless = call.kind == "tool" and call.effect_class == "read_only" and call.need is None
    return is_harmless and command.standing is None and call.name != RECALL_TOOL


async def intent_of(ledger: Ledger, command: Intend) -> EffectIntended:
    """The intent that goes before an effect."""
    call = command.call
    return EffectIntended(
        call.effect,
        call.kind,
        call.name,
        await _args(ledger, call),
        call.args_hash,
        call.effect_class,
        call.idempotent,
        call.can_probe,
        reason=command.ruling.reason,
        answered_by=command.answered_by,
        definition=call.definition,
        ruling=ruled(command.ruling),
        is_edited=command.is_edited,
    )


async def question_of(ledger: Ledger, command: Ask, expires_us: int = 0) -> EffectAsked:
    """What a person is asked."""
    call = command.call
    return EffectAsked(
        call.effect,
        call.kind,
        call.name,
        await _args(ledger, call),
        call.args_hash,
        call.effect_class,
        command.reason,
        call.definition,
        ruled(command.ruling),
        expires_us,
        command.ruling.second_person,
    )


def refusal_of(command: Refuse) -> EffectRefused:
    """The decision against an effect; very large arguments are named by their hash alone."""
    call, ruling = command.call, command.ruling
    return EffectRefused(
        call.effect,
        call.kind,
        call.name,
        call.args_hash,
        call.effect_class,
        command.decision,
        command.error,
        None if ruling is None else ruled(ruling),
        inline(call.args) or NULL,
    )


async def receipt_of(ledger: Ledger, effect: str, message: Performed) -> EffectReceived:
    """What the world answered."""
    return EffectReceived(
        effect,
        inline(message.result) or await pack(ledger, message.result),
        message.error,
        duration_us=message.duration_us,
        spend=message.spend,
        model=message.model,
        is_estimated=message.is_estimated,
    )


async def _args(ledger: Ledger, call: CallMade) -> Payload:
    return inline(call.args) or await pack(ledger, call.args)
