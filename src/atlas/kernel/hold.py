"""What a budget counts and what an intent reserves: data that events carry.

Apart from `budget`, which imports the events and so cannot be imported by them.
"""

from __future__ import annotations

import msgspec


class Meter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A counter of money and tokens: one bucket of a scope.

    Scopes: `tree/<run>` (the pool of a run and all it spawns), `fleet`, `agent/<principal>/<agent>`, `mandate/<id>`,
    and `hour/<scope>` for rolling windows. A bucket is empty, a day of the configured zone (`2026-11-16`), or six hours
    of UTC by the first of them (`2026-11-16T06`).
    """

    scope: str
    bucket: str = ""


class Cap(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit: the meters of `scope` from bucket `first` to `last`, in the order of text, stay within it together.

    `warn_at` are fractions of it at which somebody is told, once in each period.
    """

    name: str
    scope: str
    first: str = ""
    last: str = ""
    micro_usd: int | None = None
    tokens: int | None = None
    warn_at: tuple[float, ...] = ()

    @property
    def period(self) -> str:
        """What "once in each period" refers to: the day, the month, the whole tree; the day for a rolling window."""
        return self.last[:10]

    def covers(self, meter: Meter) -> bool:
        """Whether the meter counts towards this cap."""
        return meter.scope == self.scope and self.first <= meter.bucket <= self.last


class Pool(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run and everything below it may spend together; children carry the pools of all their ancestors."""

    run_id: str
    micro_usd: int | None = None
    tokens: int | None = None
    warn_at: tuple[float, ...] = ()

    @property
    def scope(self) -> str:
        """The scope of the pool's meter."""
        return f"tree/{self.run_id}"


class Hold(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an intent reserved, on which meters; `day` is the day, in the configured zone, that it counts to.

    `is_price_guessed`: the model's price is unknown, and the highest known one was taken. `is_capped`: a cap stands
    behind it, so the call must not use more.
    """

    micro_usd: int = 0
    tokens: int = 0
    max_output_tokens: int = 0
    model: str = ""
    meters: tuple[Meter, ...] = ()
    day: str = ""
    is_price_guessed: bool = False
    is_capped: bool = False
    asks: int = 1
