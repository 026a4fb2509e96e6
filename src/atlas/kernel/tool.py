"""Tools as the kernel sees them: what one declares, what a call of it came to, and how a loaded one is reached.

A definition is data and travels: from the process that imported a tool's file to the driver, which never does. A
`LoadedTool` exists only where the function itself is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

from atlas.kernel.event import EffectClass
from atlas.kernel.media import Given
from atlas.kernel.model import ToolSpec

TOOL_ATTRIBUTE: Final = "__atlas_tool__"
"""The attribute of a function under which the `LoadedTool` made from it is found."""

EFFECT_KEY: Final = "effect_key"
"""The parameter that gets the key of the effect, the same each time it is tried. The model never sees it."""

SECRETS: Final = "secrets"
"""The parameter that gets the values of the secrets a tool declares, by name. The model never sees it either."""

NO_RESULT: Final = "(done, no result)"
"""What stands for a result where a call that succeeded has none."""


class ToolDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tool declares.

    `resources` are what it touches, as `atlas.kernel.batch` reads them; `computes_resources` says that a function
    of the arguments knows better. `digest` names the source it was read from, `where` is its file and line. `secrets`
    are the names of those that a call must be given.
    """

    spec: ToolSpec
    effect: EffectClass = "reversible_write"
    idempotent: bool = False
    resources: tuple[str, ...] | None = None
    computes_resources: bool = False
    timeout_s: float = 30.0
    has_probe: bool = False
    digest: str = ""
    where: str = ""
    secrets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As the model calls it."""
        return self.spec.name

    @property
    def is_repeatable(self) -> bool:
        """Whether performing a call twice is the same as once."""
        return self.effect == "read_only" or self.idempotent


class ToolOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call came to. `in_doubt`: it began, must not be repeated unasked, and nobody knows how far it got.

    `picture` is what a recall brings back that is no text.
    """

    text: str
    is_error: bool = False
    duration_us: int = 0
    in_doubt: bool = False
    picture: Given | None = None


class ToolFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tool's probe found: the call happened (with this result), it did not, or the probe cannot tell."""

    found: Literal["done", "not_done", "unknown"]
    text: str = ""
    message: str = ""


class LoadedTool(Protocol):
    """A tool whose function is in this process."""

    @property
    def definition(self) -> ToolDefinition:
        """What it declares."""
        ...

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        ...

    @property
    def probe(self) -> Callable[..., Any] | None:
        """Finds out whether a call that may have happened did."""
        ...

    @property
    def resources(self) -> Callable[..., Any] | None:
        """What a call with these arguments touches."""
        ...

    def arguments(self, args: bytes) -> Mapping[str, Any]:
        """The function's arguments from JSON, each of the type it asks for; Invalid when they do not fit."""
        ...
