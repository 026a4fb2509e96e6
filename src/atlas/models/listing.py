"""What there is to ask: providers and tiers, whether each could answer now, and what it would cost.

listing    looks at the configuration, the environment and this machine; contacts nobody
check      asks each model that is ready one tiny question and says what that cost
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from atlas.kernel.errors import AtlasError, Invalid
from atlas.kernel.model import Message, ModelError, Request, Text
from atlas.models.catalogue import MICRO
from atlas.models.http import shown
from atlas.models.provider import Endpoint, absent, complaint
from atlas.models.weights import KNOWN, folder_of

if TYPE_CHECKING:
    from atlas.models.router import Router

QUESTION = "Answer with one word: ready?"
MAX_ANSWER = 16


class ProviderRow(msgspec.Struct, frozen=True):
    """A provider; `why_not` and `fix` are empty when it is ready."""

    name: str
    kind: str
    source: Literal["config", "environment", "local"]
    is_ready: bool
    why_not: str
    fix: str
    address: str
    remark: str


class ModelRow(msgspec.Struct, frozen=True):
    """A candidate of a tier, or a model that is there without being in one. Prices are for a million tokens."""

    tier: str
    name: str
    model: str
    is_ready: bool
    why_not: str
    fix: str
    remark: str
    input_usd: float | None
    output_usd: float | None
    is_price_guessed: bool


class Listing(msgspec.Struct, frozen=True):
    """Everything that could be asked, and where weights are kept."""

    providers: tuple[ProviderRow, ...]
    models: tuple[ModelRow, ...]
    weights_folder: str


class Checked(msgspec.Struct, frozen=True):
    """How one model answered the tiny question."""

    model: str
    is_ok: bool
    text: str
    tokens: int
    cost_usd: float
    error: str


def listing(router: Router, environ: Mapping[str, str]) -> Listing:
    """Every provider and every model of a tier, ready or not."""
    missing = absent(router.endpoints, environ)
    providers = [_provider(endpoint, router.lacking(endpoint.name)) for endpoint in router.endpoints.values()]
    providers += [_provider(endpoint, complaint(endpoint)) for endpoint in missing]
    lacks = {row.name: (row.why_not, row.fix) for row in providers}
    models = [_model(router, tier, name, lacks) for tier, names in router.tiers.items() for name in names]
    named = {row.model for row in models}
    others = [
        f"{each.name}:{weights}" for each in router.endpoints.values() if each.kind == "local" for weights in KNOWN
    ]
    models += [_model(router, "", name, lacks) for name in others if name not in named]
    return Listing(tuple(providers), tuple(models), str(folder_of(environ) or ""))


async def check(router: Router, found: Listing) -> list[Checked]:
    """One tiny question to each ready model, one after the other. This costs what it says."""
    ready = dict.fromkeys(row.model for row in found.models if row.is_ready)
    return [await _checked(router, model) for model in ready]


async def _checked(router: Router, model: str) -> Checked:
    request = Request("", (), (Message("user", (Text(QUESTION),)),), max_output_tokens=MAX_ANSWER)
    try:
        asked = await router.ask(model, request, lambda delta: None)
    except ModelError as error:
        spent = sum(attempt.cost_micro_usd for attempt in error.attempts)
        return Checked(model, False, "", 0, spent / MICRO, error.message)
    usage = asked.reply.usage
    text = " ".join(part.text for part in asked.reply.parts if isinstance(part, Text))
    return Checked(model, True, text, usage.tokens_in + usage.tokens_out, asked.cost_micro_usd / MICRO, "")


def _provider(endpoint: Endpoint, lack: AtlasError | None) -> ProviderRow:
    why, fix = ("", "") if lack is None else (lack.message, lack.hint)
    if lack is not None and lack.where:
        why = f"{lack.where}: {why}"
    address = endpoint.folder or endpoint.script or shown(endpoint.base_url)
    return ProviderRow(
        endpoint.name, endpoint.kind, endpoint.source, lack is None, why, fix, address, _remark(endpoint, "")
    )


def _model(router: Router, tier: str, name: str, lacks: Mapping[str, tuple[str, str]]) -> ModelRow:
    try:
        model = router.resolve(name)[0]
    except Invalid as error:
        # The provider may be a known one that is not there: then its own reason says more.
        why, fix = lacks.get(name.partition(":")[0], (error.message, error.hint))
        return ModelRow(tier, name, "", False, why, fix, "", None, None, False)
    endpoint = router.endpoints[model.partition(":")[0]]
    rate, is_guess = router.rate(model)
    why, fix = lacks[endpoint.name]
    return ModelRow(
        tier=tier,
        name=name,
        model=model,
        is_ready=not why,
        why_not=why,
        fix=fix,
        remark=_remark(endpoint, model.partition(":")[2]),
        input_usd=rate.input / MICRO,
        output_usd=rate.output / MICRO,
        is_price_guessed=is_guess,
    )


def _remark(endpoint: Endpoint, model: str) -> str:
    match endpoint.kind:
        case "scripted":
            return "scripted"
        case "local":
            return KNOWN[model].remark if model in KNOWN else ", ".join(each.remark for each in KNOWN.values())
        case _:
            return ""
