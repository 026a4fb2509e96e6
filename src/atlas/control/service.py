"""What a turn acts through: the ledger, the models, the tools and the hooks, each behind the little that it needs of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from atlas.control.desk import Desk
from atlas.control.hookset import HookSet
from atlas.control.world import Effected
from atlas.kernel.code import Job, Need
from atlas.kernel.hold import Hold
from atlas.kernel.model import Asked, OnDelta, Request, Tab
from atlas.kernel.port import Clock, Ledger


class Asker(Protocol):
    """Asks models by tier or name."""

    async def ask(self, choice: str, request: Request, on_delta: OnDelta, tab: Tab | None = None) -> Asked:
        """The reply of the first candidate that gives one; ModelError when none does. Every try goes on the tab."""
        ...


class Services(msgspec.Struct, frozen=True):
    """What a turn acts through."""

    ledger: Ledger
    clock: Clock
    asker: Asker
    desk: Callable[[Job], Awaitable[Desk]]
    complain: Callable[[dict[str, Any], Any], str | None]
    on_delta: Callable[[str], OnDelta]
    generate: Callable[[bytes, Hold | None, Tab], Awaitable[Effected]]
    need: Callable[[bytes], Need]
    window: Callable[[str], Awaitable[int]]
    hooks: HookSet
