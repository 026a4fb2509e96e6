"""Faults at named points of a driver: how crash claims are proved without guessing where a process is.

A plan is `POINT:NUMBER:ACTION`, for example `intent.durable:3:kill`: the third time the driver crosses that point
it kills itself with SIGKILL (`kill`) or stops itself with SIGSTOP (`stop`), as a power cut or a sleeping laptop would.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

from atlas.kernel.errors import Invalid

POINTS: Final = (
    "claimed",
    "loaded",
    "code.started",
    "intent.before",
    "intent.durable",
    "perform.sent",
    "receipt.before",
    "receipt.written",
    "spawn.before",
    "spawn.durable",
    "asked",
    "park.before",
    "park.durable",
    "end.before",
    "end.durable",
)
_ACTIONS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def fault_at(plan: str) -> Callable[[str], None]:
    """A boundary that strikes once, as the plan says."""
    point, _, rest = plan.partition(":")
    number, _, action = rest.partition(":")
    if point not in POINTS or not number.isdigit() or action not in _ACTIONS:
        raise Invalid(f"{plan!r} is not a fault plan", hint="Write POINT:NUMBER:kill or POINT:NUMBER:stop.")
    left = int(number)

    def cross(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), _ACTIONS[action])

    return cross
