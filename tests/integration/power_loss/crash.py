"""Every folder that a loss of power could leave behind, each with what had been acknowledged by then.

At each moment of a recorded run the durable part is certain. Of the changes still waiting the disk may have kept
none, any prefix, or (sampled with a seed) any subset in any order across files, some of them torn.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from integration.power_loss.disk import Change, Disk, Image, Part, Write
from integration.power_loss.strace_log import Call, calls

_TORN: Final[tuple[Part, ...]] = ("front", "back", "zeros")


class Crash(msgspec.Struct, frozen=True):
    """A folder after a loss of power; `acknowledged` counts the bytes the program had acknowledged by then."""

    moment: int
    acknowledged: int
    key: bytes
    image: Image
    kept: str


class Recording(msgspec.Struct, frozen=True):
    """Where a traced program worked: its strace log, its folder and the file of its acknowledgements."""

    log: Path
    root: Path
    acknowledgements: Path


def crashes(recording: Recording, *, seed: int, samples: int) -> Iterator[Crash]:
    """The crash states in the order of time. The same folder may come again with more acknowledged."""
    disk = Disk(str(recording.root), str(recording.root.parent))
    dice = random.Random(seed)
    acknowledged = 0
    for call in calls(recording.log):
        said = _acknowledged(call, str(recording.acknowledgements))
        acknowledged += said
        happened = "said" if said else disk.apply(call)
        waiting = [pending.change for pending in disk.pending]
        if happened == "changed":
            # Shorter prefixes were yielded when they were the whole: nothing was synced or acknowledged since.
            choices = [_prefix(waiting, len(waiting))]
        elif happened:
            choices = [_prefix(waiting, length) for length in range(len(waiting) + 1)]
        else:
            continue
        if len(waiting) > 1:
            choices += [_scatter(waiting, dice) for _ in range(samples)]
        for label, kept in choices:
            image = disk.image(kept)
            yield Crash(call.ended, acknowledged, _key(image), image, label)


def _acknowledged(call: Call, path: str) -> int:
    return call.count if call.name == "write" and call.descriptor(0)[1] == path else 0


def _prefix(waiting: Sequence[Change], length: int) -> tuple[str, list[tuple[Change, Part]]]:
    return f"first {length} of {len(waiting)}", [(change, "whole") for change in waiting[:length]]


def _scatter(waiting: Sequence[Change], dice: random.Random) -> tuple[str, list[tuple[Change, Part]]]:
    share = dice.choice((0.2, 0.5, 0.8, 0.95))
    kept: list[tuple[Change, Part]] = []
    for change in waiting:
        if dice.random() < share:
            is_torn = isinstance(change, Write) and dice.random() < 0.25
            kept.append((change, dice.choice(_TORN) if is_torn else "whole"))
    return f"{len(kept)} scattered of {len(waiting)}", kept


def _key(image: Image) -> bytes:
    digest = hashlib.sha1(usedforsecurity=False)
    for path in sorted(image):
        content = image[path]
        digest.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        digest.update(content or b"")
    return digest.digest()
