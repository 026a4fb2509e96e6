"""The proof that context stays bounded and nothing is lost from it: a long session through a real host, offline.

    run       a session of `turns` turns, one very long turn, and the blind questions -> ContextReport

The model is scripted; the host, its driver, its ledger, its tools and its search are the real ones. Every promise is
a line of the report, and a promise that was broken is a complaint.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random, SystemRandom
from statistics import median
from typing import Final, TypeAlias

import msgspec

from atlas.control.account import session_left
from atlas.control.host import Host
from atlas.control.recall import Recall
from atlas.kernel.token import DEFAULT_RATE, Limits, is_within
from atlas.ledger.search import SqliteIndex
from atlas.testing.context_actor import Actor
from atlas.testing.context_audit import (
    ReadPage,
    hit_problems,
    order_problem,
    page_problems,
    place_problems,
    recorded_texts,
)
from atlas.testing.context_meter import Seen, per_turn, slope
from atlas.testing.context_rebuild import (
    handles_in,
    is_identical,
    read_requests,
    time_builds,
    under_random_budgets,
)
from atlas.testing.context_words import load_words, prose
from atlas.testing.context_world import World

SESSION: Final = "ses_bench"
AGENT: Final = "archivist"
CALLS: Final = 3
QUESTIONS: Final = 200
GROWTH_LIMIT: Final = 1.05
SHORT_GROWTH_LIMIT: Final = 1.5
SLOPE_LIMIT: Final = 1.0
LONG_ENOUGH: Final = 500
BUILD_LIMIT_MS: Final = 1.0
MEMORY_LIMIT: Final = 1.1
SHARED_LIMIT: Final = 0.85
SESSION_LIMIT: Final = 1.25
BUDGETS: Final = 300
SEARCHES: Final = 20
_CODE: Final = re.compile(r"[A-Z]{3}-\d{5}")

Opener: TypeAlias = Callable[[Path, Actor], AbstractAsyncContextManager[Host]]


class Bounds(msgspec.Struct, frozen=True):
    """How large requests were; sizes are bytes of the neutral request, tokens as the scripted provider counts them."""

    requests: int
    largest_tokens: int
    largest_bytes: int
    median_bytes_early: int
    median_bytes_late: int
    growth: float
    slope_bytes_per_turn: float
    transcript_bytes_at_end: int
    long_turn_steps: int
    long_turn_largest_tokens: int
    long_turn_shared_prefix: float
    shared_prefix: float


class Handles(msgspec.Struct, frozen=True):
    """What requests of any size print, and how much of it does not lead to what was recorded.

    `places` are texts that say at which byte they go on, `hits` those of a search.
    """

    printed: int
    unresolved: int
    places: int
    misplaced: int
    searches: int
    hits_astray: int
    budgets_tried: int
    budgets_refused: int


class Recalled(msgspec.Struct, frozen=True):
    """How the blind questions went."""

    asked: int
    found: int
    found_by_place: dict[str, str]
    most_calls: int
    largest_answer_tokens: int
    first_question_ms: float
    median_question_ms: float


class ContextReport(msgspec.Struct, frozen=True):
    """What was measured; `ok` is True when every promise was kept."""

    ok: bool
    turns: int
    seed: int
    token_caps: dict[str, int]
    bounds: Bounds
    build_ms_median: float
    requests_rebuilt_identically: str
    resident_mb_early: float
    resident_mb_late: float
    session_bytes_early: int
    session_bytes_late: int
    handles: Handles
    recall: Recalled
    seconds: float
    complaints: tuple[str, ...]


async def run(open_host: Opener, turns: int, seed: int | None, report: Callable[[str], None]) -> ContextReport:
    """Runs the session in a temporary folder; `open_host` opens a vault with the actor as its model."""
    chosen = SystemRandom().randrange(2**32) if seed is None else seed
    report(f"seed {chosen}: {turns} turns, then one of {turns // 2} steps, then {questions_after(turns)} questions")
    root = Path(tempfile.mkdtemp(prefix="atlas-context-"))
    try:
        bench = Bench(root, chosen, turns, report)
        async with open_host(root, bench.actor) as host:
            return await bench.run(host)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def questions_after(turns: int) -> int:
    """How many facts are planted and asked for: as many as there are words to tell them apart, however long it is."""
    return min(turns // 5, QUESTIONS)


class Bench:
    """One session and what was seen of it."""

    def __init__(self, root: Path, seed: int, turns: int, report: Callable[[str], None]) -> None:
        self.actor = Actor(root)
        self._root = root
        self._seed = seed
        self._turns = turns
        self._report = report
        self._world = World(seed, turns, questions_after(turns))
        self._limits = Limits()
        self._complaints: list[str] = []
        self._resident: dict[int, float] = {}
        self._runs: dict[int, str] = {}

    async def run(self, host: Host) -> ContextReport:
        """Everything, in order."""
        began = time.monotonic()
        await self._work(host)
        await self._long_turn(host)
        recalled = await self._questions(host)
        bounds = self._bounds()
        built, identical = await self._rebuilt(host)
        handles = await self._handles(host)
        sessions = await self._sessions(host)
        # Later than for sizes: the ledger's caches take a few hundred turns until they are full.
        early, late = self._range(self._resident, max(self._turns * 3 // 10, 25))
        self._expect(late <= early * MEMORY_LIMIT, f"resident memory grew from {early:.0f} to {late:.0f} MB")
        self._expect(built < BUILD_LIMIT_MS, f"building a request takes {built:.2f} ms")
        complaints = (*self._complaints, *self.actor.complaints)
        return ContextReport(
            ok=not complaints,
            turns=self._turns,
            seed=self._seed,
            token_caps=msgspec.structs.asdict(self._limits),
            bounds=bounds,
            build_ms_median=round(built, 3),
            requests_rebuilt_identically=identical,
            resident_mb_early=round(early, 1),
            resident_mb_late=round(late, 1),
            session_bytes_early=round(sessions[0]),
            session_bytes_late=round(sessions[1]),
            handles=handles,
            recall=recalled,
            seconds=round(time.monotonic() - began, 1),
            complaints=complaints[:20],
        )

    # What happens

    async def _work(self, host: Host) -> None:
        import psutil

        here = psutil.Process()
        for turn in range(1, self._turns + 1):
            happening = self._world.happening(turn)
            self.actor.work(turn, happening)
            await self._turn(host, turn, happening.user)
            self._resident[turn] = here.memory_info().rss / 2**20
            if turn % max(self._turns // 5, 1) == 0:
                self._report(f"turn {turn}: {self.actor.meter.seen[-1].size} bytes")

    async def _long_turn(self, host: Host) -> None:
        turn = self._turns + 1
        words = load_words()["filler"]
        user = "Walk through all of it, one document after the other."
        self.actor.walk(turn, user, self._turns // 2, lambda step: prose(Random(f"{self._seed}/{step}"), words, 700))
        await self._turn(host, turn, user)
        self._report(f"a turn of {self._turns // 2} steps: {self.actor.meter.seen[-1].size} bytes")

    async def _questions(self, host: Host) -> Recalled:
        found: Counter[str] = Counter()
        asked: Counter[str] = Counter()
        most, took = 0, []
        for turn, fact in enumerate(self._world.facts, start=self._turns + 2):
            self.actor.question(turn, fact.question)
            began = time.perf_counter()
            answer = await self._turn(host, turn, fact.question)
            took.append((time.perf_counter() - began) * 1_000)
            asked[fact.kind] += 1
            most = max(most, self.actor.calls)
            if set(_CODE.findall(answer)) == {fact.value}:
                found[fact.kind] += 1
            else:
                self._complaints.append(f"t{turn} {fact.question} -> {answer[:100]!r}, not {fact.value} ({fact.kind})")
        self._expect(most <= CALLS, f"a question took {most} calls")
        largest, limit = self.actor.largest_recall, self._limits.recall
        self._expect(largest <= limit, f"a recall answered with {largest} tokens, the cap is {limit}")
        return Recalled(
            asked=asked.total(),
            found=found.total(),
            found_by_place={kind: f"{found[kind]} of {asked[kind]}" for kind in sorted(asked)},
            most_calls=most,
            largest_answer_tokens=largest,
            first_question_ms=round(took[0], 1),
            median_question_ms=round(median(took), 1),
        )

    async def _turn(self, host: Host, turn: int, text: str) -> str:
        """One turn through the host; its answer."""
        submitted = await host.submit(AGENT, {"text": text}, session_id=SESSION)
        self._runs[turn] = submitted.run_id
        await host.drive(submitted.run_id)
        report = await host.report(submitted.run_id)
        self._expect(report.state == "succeeded", f"t{turn} {report.state}: {report.error}")
        return report.text

    # What was seen

    def _bounds(self) -> Bounds:
        meter, long = self.actor.meter, self._turns + 1
        worked, walked = meter.of(1, self._turns), meter.of(long, long)
        middle = per_turn(worked)
        early, late = self._range(middle, self._early)
        growth, rise = late / early, slope((turn, size) for turn, size in middle.items() if turn >= self._early)
        largest = max(one.tokens for one in meter.seen)
        cap = self._limits.total
        shared = self._shared(worked), self._shared(walked)
        self._expect(largest <= cap, f"a request had {largest} tokens, the cap is {cap}")
        # In a short session the turns differ by more than that from one to the next.
        is_long = self._turns >= LONG_ENOUGH
        self._expect(growth <= (GROWTH_LIMIT if is_long else SHORT_GROWTH_LIMIT), f"requests grew {growth:.3f}-fold")
        self._expect(rise < SLOPE_LIMIT or not is_long, f"requests grow by {rise:.2f} bytes per turn")
        self._expect(min(shared) >= SHARED_LIMIT, f"consecutive requests share {min(shared):.2f}")
        return Bounds(
            requests=len(meter.seen),
            largest_tokens=largest,
            largest_bytes=max(one.size for one in meter.seen),
            median_bytes_early=round(early),
            median_bytes_late=round(late),
            growth=round(growth, 3),
            slope_bytes_per_turn=round(rise, 3),
            transcript_bytes_at_end=worked[-1].transcript,
            long_turn_steps=len(walked),
            long_turn_largest_tokens=max(one.tokens for one in walked),
            long_turn_shared_prefix=round(shared[1], 3),
            shared_prefix=round(shared[0], 3),
        )

    def _shared(self, seen: list[Seen]) -> float:
        return median(one.shared for one in seen if one.shared is not None)

    async def _rebuilt(self, host: Host) -> tuple[float, str]:
        """How long a build takes at the last turn, and how many recorded requests come out the same again."""
        last = await read_requests(host.ledger, self._runs[self._turns], self._turns, self._limits)
        requests = list(last)
        for turn in Random(self._seed).sample(range(1, self._turns), min(20, self._turns - 1)):
            requests += await read_requests(host.ledger, self._runs[turn], turn, self._limits)
        same = sum(is_identical(one, self._limits) for one in requests)
        self._expect(same == len(requests), f"only {same} of {len(requests)} requests are built again as they were")
        return median(time_builds(last, self._limits, 50)), f"{same} of {len(requests)}"

    async def _handles(self, host: Host) -> Handles:
        """Whether all that requests print under budgets of any size, and what searches print, leads where it says."""
        random = Random(self._seed)
        turns = [*self._some_turns(random), self._turns, self._turns + 1]
        requests = [await read_requests(host.ledger, self._runs[turn], turn, self._limits) for turn in turns]
        built, refused = under_random_budgets(requests, random, BUDGETS)
        printed = set[str]().union(*map(handles_in, built))
        recorded: dict[str, str] = {}
        for turn in {int(handle[1:].partition(".")[0]) for handle in printed if handle[1:2].isdigit()}:
            recorded |= await recorded_texts(host.ledger, self._runs[turn], turn)
        index = SqliteIndex(self._root / ".atlas" / "index.db")
        recall, last = Recall(host.ledger, index), self._runs[max(self._runs)]

        async def read(handle: str, start: int) -> str:
            text = (await recall.by_handle(last, handle, start, self._limits.recall, DEFAULT_RATE)).text
            self._expect(is_within(text, int(self._limits.recall * DEFAULT_RATE)), f"a page of {handle} is too long")
            return text

        try:
            lost = [await page_problems(read, handle, recorded.get(handle)) for handle in sorted(printed)]
            astray = await self._searched(recall, last, read)
        finally:
            index.close()
        places = [place_problems(request, recorded) for request in built]
        checked, misplaced = sum(one for one, _ in places), {one for _, found in places for one in found}
        self._expect(checked > 0, "no shortened text says where it goes on")
        self._complaints += [*(one for found in lost for one in found), *sorted(misplaced), *astray]
        return Handles(
            printed=len(printed),
            unresolved=sum(map(bool, lost)),
            places=checked,
            misplaced=len(misplaced),
            searches=SEARCHES + 1,
            hits_astray=len(astray),
            budgets_tried=BUDGETS,
            budgets_refused=refused,
        )

    def _some_turns(self, random: Random) -> list[int]:
        """Turns of every kind: some drawn, and some that told more than a request shows."""
        long = [fact.plants[-1].turn for fact in self._world.facts if fact.kind == "deep"]
        return [*random.sample(range(1, self._turns), min(20, self._turns - 1)), *long[:3]]

    async def _searched(self, recall: Recall, run_id: str, read: ReadPage) -> list[str]:
        """What is wrong with the hits of searches, in the order in which recall puts them."""
        asked = [(fact.question, fact.turns) for fact in self._world.facts[:SEARCHES]]
        problems: list[str] = []
        for words, turns in [*asked, (self._world.twin_code, self._world.twins)]:
            listing = await recall.by_words(run_id, words, self._limits.recall, DEFAULT_RATE)
            problems += [*await hit_problems(read, listing), *order_problem(listing, turns)]
        return problems

    async def _sessions(self, host: Host) -> tuple[float, float]:
        """How large what turns leave to the next one is in the beginning and in the end."""
        sizes: dict[int, float] = {}
        for turn in self._compared():
            run = await host.ledger.run(self._runs[turn])
            left = await session_left(host.ledger, run.run_id, run.head_seq)
            sizes[turn] = len(msgspec.json.encode(left))
        early, late = self._range(sizes, self._early)
        self._expect(late <= early * SESSION_LIMIT, f"what a turn leaves grew from {early:.0f} to {late:.0f} bytes")
        return early, late

    @property
    def _early(self) -> int:
        """The first turn that is compared: by then the session is as full as it gets."""
        return max(self._turns // 10, 25)

    def _compared(self) -> list[int]:
        """The turns of a tenth of all that begins with `_early`, and of the last tenth."""
        tenth = self._turns // 10
        return [*range(self._early, self._early + tenth + 1), *range(self._turns - tenth, self._turns + 1)]

    def _range(self, values: dict[int, float], first: int) -> tuple[float, float]:
        """The medians of a tenth of all turns that begins with `first`, and of the last tenth."""
        tenth = self._turns // 10
        early = [value for turn, value in values.items() if first <= turn <= first + tenth]
        late = [value for turn, value in values.items() if self._turns - tenth <= turn <= self._turns]
        return median(early), median(late)

    def _expect(self, is_kept: bool, complaint: str) -> None:
        if not is_kept:
            self._complaints.append(complaint)
