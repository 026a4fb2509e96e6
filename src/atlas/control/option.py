"""How a run is submitted: what whoever submits it may choose, checked, and what of it makes two submissions the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from atlas.kernel.budget import micro_usd
from atlas.kernel.contract import Contract, ModelName
from atlas.kernel.errors import Invalid
from atlas.kernel.event import Critical, InputFile
from atlas.kernel.principal import check_principal
from atlas.kernel.rule import Ancestor

_MOST_USD: Final = 1_000_000_000


class Options(msgspec.Struct, frozen=True):
    """How a run is submitted."""

    session_id: str = ""
    key: str = ""
    priority: int = 0
    due_us: int = 0
    unattended: bool = False
    principal: str = "owner"
    budget_usd: float | None = None
    critical_usd: float = 0.0
    why: str = ""
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    model: ModelName | None = None


def checked(options: Options) -> Options:
    """Options of the types they say; what a program passes is not checked by anybody before."""
    try:
        found = msgspec.convert(msgspec.structs.asdict(options), Options)
    except msgspec.ValidationError as error:
        raise Invalid(f"an option is of the wrong type: {error}", code="option_invalid") from None
    check_principal(found.principal)
    _check_money("budget_usd", found.budget_usd)
    _check_money("critical_usd", found.critical_usd)
    return found


def _check_money(name: str, amount: float | None) -> None:
    if amount is not None and not 0 <= amount <= _MOST_USD:
        hint = f"Give dollars, from 0 to {_MOST_USD:,}."
        raise Invalid(f"{name} is no amount: {amount:g}", hint=hint, code="option_invalid")


def narrowing(agent: str, options: Options) -> Ancestor | None:
    """What whoever submits a run takes away from it."""
    if options.allow is None and not options.deny:
        return None
    return Ancestor(agent, options.allow, options.deny)


def chosen_model(contract: Contract, options: Options) -> str:
    """The model that was chosen for a run; empty for the contract's own."""
    if options.model is None:
        return ""
    if contract.runtime != "prompt":
        hint = "Only a prompt agent takes a model; code names its models itself."
        raise Invalid(f"{contract.name} takes no model", hint=hint, code="model_not_taken")
    if options.model == contract.model.preference:
        return ""
    if not contract.model.override_allowed:
        hint = f"Its contract says model.override_allowed: false; it asks {contract.model.preference}."
        raise Invalid(f"{contract.name} asks no other model", hint=hint, code="model_fixed")
    return options.model


def critical(options: Options) -> Critical | None:
    """What the run may spend above its caps, and why."""
    if not options.critical_usd:
        return None
    if not options.why.strip():
        raise Invalid("to raise a cap, say why", hint="--critical USD --why TEXT", code="why_missing")
    return Critical(micro_usd(options.critical_usd), options.why, options.principal)


def fingerprint_of(raw: bytes, options: Options, files: Sequence[InputFile] = ()) -> str:
    """What makes two submissions under one key the same."""
    chosen = msgspec.json.encode([options.session_id, options.priority, options.unattended])
    limits = (options.budget_usd, options.critical_usd, options.allow, options.deny)
    if limits != (None, 0.0, None, ()):
        chosen += msgspec.json.encode(limits)
    if options.model is not None:
        chosen += msgspec.json.encode({"model": options.model})
    given = b"\0" + msgspec.json.encode(files) if files else b""
    return hashlib.sha256(raw + b"\0" + chosen + given).hexdigest()
