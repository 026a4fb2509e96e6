"""The calls of one step, side by side where they do not touch the same things."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from atlas.kernel.batch import Claim, ready


async def in_order(claims: Sequence[Claim], perform: Callable[[int], Awaitable[None]]) -> None:
    """Performs all, each as soon as no earlier one that it conflicts with is unfinished."""
    if len(claims) == 1:
        return await perform(0)
    started: set[int] = set()
    finished: set[int] = set()
    moved = asyncio.Event()

    async def one(number: int) -> None:
        await perform(number)
        finished.add(number)
        moved.set()

    async with asyncio.TaskGroup() as group:
        while len(finished) < len(claims):
            for number in ready(claims, started, finished):
                started.add(number)
                group.create_task(one(number))
            await moved.wait()
            moved.clear()
