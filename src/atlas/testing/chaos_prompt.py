"""The crash proof of prompt runs: ten steps with tools, killed at every event boundary and at random.

    main       sweeps over every commit of a run, then random kills -> PromptReport

Every run is a real `atlas run` against a provider in a process of its own, killed with SIGKILL and taken up again by the
same command in another process. What became of it is judged from outside, by `chaos_prompt_check`; at the end every
run is replayed with the provider gone and the network refused.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Final

import msgspec

from atlas.testing.chaos_prompt_lane import Lane
from atlas.testing.chaos_prompt_offline import replay_all
from atlas.testing.chaos_prompt_site import KINDS, Kind, PromptSite
from atlas.testing.fault import COMMITS
from atlas.testing.provider import ProviderProcess

_LANES: Final = 2
_SHOWN: Final = 50
_STRIKES: Final = 5
"""The most strikes at one run of the random part."""


class PromptReport(msgspec.Struct, frozen=True):
    """What was killed and what became of the promises; `ok` is True when every one was kept."""

    ok: bool
    boundaries: dict[str, int]
    kills: int
    kills_by_point: dict[str, int]
    runs: int
    runs_completed: int
    requests: int
    requests_repeated: int
    effects: int
    effects_lost: int
    effects_duplicated: int
    in_doubt: int
    in_doubt_expected: int
    replays_identical: int
    chain_ok: bool
    seed: int
    seconds: float
    complaints: tuple[str, ...]


class Sweep(msgspec.Struct, frozen=True):
    """Runs that are killed once each: at this side of every `stride`-th commit, from the `first` on."""

    kind: Kind
    point: str
    first: int = 1
    stride: int = 1


def main(
    *,
    kills: int,
    seed: int | None,
    report: Callable[[str], None],
    stride: int = 1,
    kinds: Sequence[Kind] = KINDS,
) -> PromptReport:
    """Kills at every commit of a run, before and after it, with each kind of model; then `kills` times at random.

    With a `stride` of N only every N-th commit, from a random one on. The files of a proof that broke a promise are
    kept, and `report` says where.
    """
    chosen = SystemRandom().randrange(2**32) if seed is None else seed
    rng = Random(f"prompt {chosen}")
    sweeps = [Sweep(kind, point, 1 + rng.randrange(stride), stride) for kind in kinds for point in COMMITS]
    root = Path(tempfile.mkdtemp(prefix="atlas-chaos-prompt-"))
    proof = _Proof(root, deque(sweeps), kinds, kills, rng, report)
    made: PromptReport | None = None
    try:
        made = asyncio.run(proof.run(chosen))
    finally:
        if made is not None and made.ok:
            shutil.rmtree(root, ignore_errors=True)
        else:
            report(f"what is left of it is kept in {root}")
    return made


class _Proof:
    """Two lanes that share the work, each with a vault and a provider of its own."""

    def __init__(
        self,
        root: Path,
        sweeps: deque[Sweep],
        kinds: Sequence[Kind],
        kills: int,
        rng: Random,
        report: Callable[[str], None],
    ) -> None:
        self._root = root
        self._sweeps = sweeps
        self._kinds = kinds
        self._kills = kills
        self._rng = rng
        self._report = report
        self._boundaries: Counter[str] = Counter()
        self._struck = 0
        self._lanes: list[Lane] = []

    async def run(self, seed: int) -> PromptReport:
        """Everything, judged."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(_LANES):
                group.create_task(self._lane(self._root / f"{number}"))
        replays = [await replay_all(lane.site, lane.runs) for lane in self._lanes]
        findings = [found for lane in self._lanes for found in lane.findings]
        complaints = [text for lane in self._lanes for text in lane.complaints]
        complaints += [text for found in findings for text in found.complaints]
        complaints += [text for replay in replays for text in replay.complaints]
        hits: Counter[str] = Counter()
        for lane in self._lanes:
            hits.update(lane.hits)
        return PromptReport(
            ok=not complaints,
            boundaries=dict(sorted(self._boundaries.items())),
            kills=hits.total(),
            kills_by_point=dict(sorted(hits.items())),
            runs=sum(len(lane.runs) for lane in self._lanes),
            runs_completed=sum(found.is_complete for found in findings),
            requests=sum(found.requests for found in findings),
            requests_repeated=sum(found.asked_again for found in findings),
            effects=sum(found.effects for found in findings),
            effects_lost=sum(found.lost for found in findings),
            effects_duplicated=sum(found.duplicated for found in findings),
            in_doubt=sum(found.doubted for found in findings),
            in_doubt_expected=sum(found.doubted_expected for found in findings),
            replays_identical=sum(replay.identical for replay in replays),
            chain_ok=all(lane.is_chain_ok for lane in self._lanes),
            seed=seed,
            seconds=round(time.monotonic() - began, 1),
            complaints=tuple(complaints[:_SHOWN]),
        )

    async def _lane(self, root: Path) -> None:
        with ProviderProcess() as provider:
            site = PromptSite(root, provider=provider.url)
            site.create()
            lane = Lane(site, provider, Random(self._rng.random()))
            self._lanes.append(lane)
            async with lane.opened():
                for kind in self._kinds:
                    await lane.undisturbed(kind)
                while self._sweeps and not self._is_broken:
                    await self._sweep(lane, self._sweeps.popleft())
                while self._struck < self._kills and not self._is_broken:
                    before = lane.hits.total()
                    await lane.random(self._rng.choice(self._kinds), _STRIKES)
                    self._struck += lane.hits.total() - before
                    self._report(f"{self._struck} of {self._kills} random kills")

    async def _sweep(self, lane: Lane, sweep: Sweep) -> None:
        """One run for each commit, until a run gets through because it has no such commit."""
        number = sweep.first
        while await lane.struck(sweep.kind, sweep.point, number) and not self._is_broken:
            self._boundaries[f"{sweep.kind} {sweep.point}"] += 1
            number += sweep.stride
        self._report(f"{sweep.kind}: killed at {sweep.point} up to commit {number - sweep.stride}")

    @property
    def _is_broken(self) -> bool:
        return any(lane.complaints or any(found.complaints for found in lane.findings) for lane in self._lanes)
