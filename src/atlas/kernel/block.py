"""Blocks: things to show to a model, each in several sizes, and the one place that decides which size is shown."""

from __future__ import annotations

import heapq
from typing import Final, Literal, TypeAlias

import msgspec

from atlas.kernel.errors import Fault, LimitRefused
from atlas.kernel.token import text_size

Grade: TypeAlias = Literal["full", "excerpt", "digest", "handle"]

_LEVEL_COST: Final = 25
_MANDATORY_COST: Final = 1_000


class View(msgspec.Struct, frozen=True):
    """One way to show a block; `size` is its bytes in a request."""

    grade: Grade
    text: str
    size: int


def view(grade: Grade, text: str) -> View:
    """`text` as a view."""
    return View(grade, text, text_size(text))


class Block(msgspec.Struct, frozen=True):
    """Something to show, with views from the whole of it to the smallest.

    A view that leaves something out names the handle that brings it back; a block that breaks this cannot be made.
    A lower `priority` is shortened earlier; a mandatory block only when nothing else is left.
    """

    name: str
    views: tuple[View, ...]
    priority: int = 100
    handle: str = ""
    is_mandatory: bool = False

    def __post_init__(self) -> None:
        if not self.views:
            raise Fault(f"block {self.name} has no view", code="block_empty")
        for one in self.views:
            if one.grade != "full" and (not self.handle or self.handle not in one.text):
                raise Fault(f"a shortened view of block {self.name} names no handle", code="block_without_handle")
        sizes = [one.size for one in self.views]
        if sizes != sorted(sizes, reverse=True):
            raise Fault(f"a shorter view of block {self.name} is longer", code="block_order")


class Choice(msgspec.Struct, frozen=True):
    """The view of a block that is shown."""

    block: str
    grade: Grade
    tokens: int


def fit(blocks: tuple[Block, ...], budget: int) -> tuple[View, ...]:
    """A view of each block so that all together keep within `budget` bytes; LimitRefused when none do.

    The cheapest loss comes first: of the lowest priority, and among equals the one that saves most. Shortening a block
    again costs more than shortening it once, so that no block is emptied while others are whole.
    """
    level = [0] * len(blocks)
    total = sum(block.views[0].size for block in blocks)
    losses = [loss for number, block in enumerate(blocks) if (loss := _loss(block, 0, number))]
    heapq.heapify(losses)
    while total > budget:
        if not losses:
            raise LimitRefused(
                f"what the model must see needs {total} bytes and only {max(budget, 0)} fit",
                hint="Raise context.max_tokens in agent.yaml, or shorten the persona.",
                code="context_too_small",
            )
        number = heapq.heappop(losses)[-1]
        block = blocks[number]
        total -= block.views[level[number]].size - block.views[level[number] + 1].size
        level[number] += 1
        if loss := _loss(block, level[number], number):
            heapq.heappush(losses, loss)
    return tuple(block.views[level[number]] for number, block in enumerate(blocks))


def least(blocks: tuple[Block, ...]) -> int:
    """The bytes below which the blocks do not fit, however short they are shown."""
    return sum(block.views[-1].size for block in blocks)


def _loss(block: Block, level: int, number: int) -> tuple[int, int, int] | None:
    """What it costs to show the next smaller view, cheapest first; None when there is none."""
    if level + 1 >= len(block.views):
        return None
    saved = block.views[level].size - block.views[level + 1].size
    return block.is_mandatory * _MANDATORY_COST + block.priority + level * _LEVEL_COST, -saved, number
