"""From the name a person writes to `provider:model`: tiers, full names, and bare names that one provider has."""

from __future__ import annotations

from collections.abc import Mapping

from atlas.kernel.config import Models
from atlas.kernel.errors import Invalid, Problem
from atlas.models.catalogue import Catalogue
from atlas.models.provider import Endpoint, how_to_get
from atlas.models.usual import TIERS, usual_tiers
from atlas.models.weights import KNOWN


class Names:
    """Resolves names against the tiers, the providers, the configured prices and the price catalogue."""

    def __init__(self, models: Models, endpoints: Mapping[str, Endpoint], catalogue: Catalogue) -> None:
        usual = usual_tiers(endpoints)
        self.tiers: Mapping[str, tuple[str, ...]] = {tier: getattr(models.tiers, tier) or usual[tier] for tier in TIERS}
        self._priced = frozenset(models.prices)
        self._endpoints = endpoints
        self._catalogue = catalogue
        self._resolved: dict[str, str] = {}
        self._of_tiers: dict[str, tuple[str, ...]] = {}

    def resolve(self, choice: str) -> tuple[str, ...]:
        """The candidates for a tier or a model, in order; Invalid when there is none.

        Of a tier, names that cannot be resolved are passed over as long as one can; `problems` lists them.
        """
        known = self._of_tiers.get(choice)
        if known is not None:
            return known
        if choice not in self.tiers:
            return (self.get(choice),)
        found, complaints = [], []
        for name in self.tiers[choice]:
            try:
                found.append(self.get(name))
            except Invalid as error:
                complaints.append(error)
        if found:
            return self._of_tiers.setdefault(choice, tuple(found))
        if complaints:
            first = complaints[0]
            raise Invalid(f"models.tiers.{choice}: {first.message}", hint=first.hint, code=first.reason)
        hint = f"Name one under models.tiers.{choice} in atlas.config.yaml; 'atlas models list' shows what there is."
        raise Invalid(f"no model is configured for the tier {choice}", hint=hint, code="tier_empty")

    def problems(self) -> list[Problem]:
        """Every name in the tiers that no provider can serve."""
        found = []
        for tier, names in self.tiers.items():
            for name in names:
                try:
                    self.get(name)
                except Invalid as error:
                    found.append(Problem(error.reason, f"models.tiers.{tier}: {error.message}", hint=error.hint))
        return found

    def is_full(self, choice: str) -> bool:
        """Whether all candidates are written in full, so that no catalogue is needed to find them."""
        return all(name.partition(":")[0] in self._endpoints for name in self.tiers.get(choice, (choice,)))

    def get(self, name: str) -> str:
        """One model as `provider:model`; Invalid when it has no provider or more than one."""
        if name not in self._resolved:
            self._resolved[name] = self._searched(name)
        return self._resolved[name]

    def _searched(self, name: str) -> str:
        provider, colon, model = name.partition(":")
        if colon and model and provider in self._endpoints:
            return name
        homes = self._homes(name)
        if len(homes) == 1:
            return f"{homes[0]}:{name}"
        if homes:
            message = f"more than one provider has {name}: {', '.join(homes)}"
            raise Invalid(message, hint=f"Write {homes[0]}:{name}.", code="model_ambiguous")
        home = provider if colon else self._catalogue.vendor(name) or ""
        if home not in self._endpoints and (hint := how_to_get(home)):
            raise Invalid(f"{name} needs the provider {home}, which is not ready", hint=hint, code="model_unknown")
        known = ", ".join(sorted(self._endpoints)) or "none"
        message, way = f"no provider is known to have {name}", f"a tier ({', '.join(TIERS)}) or provider:model"
        if colon:
            message = f"{name} names no model" if provider in self._endpoints else f"there is no provider {provider}"
            way = "provider:model"
        raise Invalid(message, hint=f"Write {way}. The providers are: {known}.", code="model_unknown")

    def _homes(self, model: str) -> list[str]:
        """The providers that have a model: by the configured prices, else by the catalogue, else by its maker."""
        if priced := [name for name in self._endpoints if f"{name}:{model}" in self._priced]:
            return priced
        if here := [each.name for each in self._endpoints.values() if each.kind == "local" and model in KNOWN]:
            return here
        wires = [each for each in self._endpoints.values() if each.kind in ("openai", "anthropic")]
        listed = {each.name: self._catalogue.provider(each.name, each.base_url) for each in wires}
        if sold := [name for name, where in listed.items() if where is not None and self._catalogue.has(where, model)]:
            return sold
        maker = self._catalogue.vendor(model)
        return [name for name, where in listed.items() if where is not None and where == maker]
