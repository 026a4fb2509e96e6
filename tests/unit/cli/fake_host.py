"""A program whose vault is a table of facts: commands are tried without a ledger, workers or a disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec

from atlas.control.costs import Bookkeeper
from atlas.control.delta import Deltas
from atlas.control.report import InboxEntry, ReplayReport, RunReport, Tokens, VerifyReport
from atlas.kernel.budget import Warned
from atlas.kernel.config import Config
from atlas.kernel.errors import AtlasError, Conflict, NotFound
from atlas.kernel.event import NO_SPEND, Body, Event, draft
from atlas.kernel.run import RunPage, RunQuery, RunRow, RunState, Submitted
from atlas.testing.secrets import MemorySecrets

S = 1_000_000
NOW_US = 1_800_000_000 * S


def make_row(run_id: str, state: RunState = "succeeded", **changes: Any) -> RunRow:
    made = RunRow(
        run_id=run_id,
        session_id="ses_1",
        turn=1,
        agent="writer",
        version="1.0.0",
        snapshot="",
        principal="owner",
        parent_run_id="",
        parent_effect="",
        root_run_id=run_id,
        depth=0,
        priority=0,
        place="",
        key="",
        state=state,
        created_us=NOW_US - 5 * S,
        updated_us=NOW_US - S,
        ended_us=NOW_US - S if state in ("succeeded", "failed", "refused", "cancelled") else 0,
        due_us=0,
        owner="",
        generation=1,
        lease_until_us=0,
        head_seq=1,
        head_hash=b"",
        spend=NO_SPEND,
    )
    return msgspec.structs.replace(made, **changes)


def make_report(row: RunRow, output: object = None, **changes: Any) -> RunReport:
    raw = msgspec.Raw(msgspec.json.encode(output))
    made = RunReport(row.run_id, row.session_id, row.agent, row.state, raw, "", 0.0, Tokens(), 3, 1240, None)
    return msgspec.structs.replace(made, **changes)


def make_events(run_id: str, *bodies: Body) -> list[Event]:
    made = [draft(body, NOW_US - 5 * S + number * S, "owner") for number, body in enumerate(bodies)]
    return [
        Event(run_id, seq, seq, each.time_us, each.kind, 1, "owner", b"d", b"p", b"\1" * 32, b"salt", each.body)
        for seq, each in enumerate(made, 1)
    ]


class FakeWake:
    """A bell that never rings."""

    async def wait(self, timeout_s: float) -> bool:
        await asyncio.sleep(timeout_s)
        return False


class FakeLedger:
    """Answers what commands read directly; `late` is committed while a run is driven."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        self.stored: dict[str, list[Event]] = {}
        self.late: list[Event] = []

    async def head(self) -> int:
        return 0

    async def feed(self, after: int, limit: int) -> list[Event]:
        return [event for event in self.late if event.position > after][:limit]

    async def events(self, run_id: str, *, after: int = 0, limit: int = 0) -> list[Event]:
        return [event for event in self.stored[run_id] if event.seq > after]

    async def warned(self, since_us: int = 0) -> list[Warned]:
        return [one for one in self.host.alerts if one.at_us >= since_us]

    async def run(self, run_id: str) -> RunRow:
        return self.host.rows[run_id]

    async def runs(self, query: RunQuery) -> RunPage:
        return await self.host.runs(query)

    @asynccontextmanager
    async def wake(self, *, every_commit: bool = False) -> AsyncIterator[FakeWake]:
        yield FakeWake()


class FakeClock:
    def now_us(self) -> int:
        return NOW_US


class FakeVault:
    """Agents by name; one that is an error has a contract that cannot be read."""

    def __init__(self) -> None:
        self.known: dict[str, AtlasError | None] = {}

    def agents(self) -> list[str]:
        return sorted(self.known)

    def contract(self, name: str) -> None:
        error = self.known[name]
        if error is not None:
            raise error


class FakeHost:
    """A vault with the runs, reports and questions that a test puts in; remembers what was asked of it."""

    def __init__(self) -> None:
        self.rows: dict[str, RunRow] = {}
        self.reports: dict[str, RunReport] = {}
        self.entries: list[InboxEntry] = []
        self.asked: list[tuple[object, ...]] = []
        self.alerts: list[Warned] = []
        self.ledger = FakeLedger(self)
        self.clock = FakeClock()
        self.deltas = Deltas()
        self.vault = FakeVault()
        self.config = Config()
        self.in_hand = 0
        self.error: BaseException | None = None
        self.late_for: set[str] = set()
        self.more: dict[str, object] = {}
        self.next_page = ""
        self.verdict = VerifyReport(1, 4, 0, True, ())
        self.replayed = ReplayReport("run_1", 3, True, (), "identical")

    @property
    def books(self) -> Bookkeeper:
        parts: Any = self
        return Bookkeeper(parts.ledger, parts.vault, parts.config, parts.clock, UTC)

    def add(self, row: RunRow, output: object = None, **changes: Any) -> RunRow:
        self.rows[row.run_id] = row
        self.reports[row.run_id] = make_report(row, output, **changes)
        return row

    async def find_run(self, text: str) -> RunRow:
        for run_id, row in self.rows.items():
            if text == "@last" or run_id.startswith(text):
                return row
        raise NotFound(f"no run begins with {text!r}", hint="List runs with 'atlas runs'.")

    async def submit(self, agent: str, value: object, **options: object) -> Submitted:
        if self.error is not None:
            raise self.error
        self.asked.append(("submit", agent, value, options))
        return Submitted(next(iter(self.rows)), True)

    async def drive(self, run_id: str) -> RunState:
        self.asked.append(("drive", run_id))
        ended = msgspec.structs.replace(self.rows[run_id], state=self.reports[run_id].state)
        self.rows[run_id] = ended
        return ended.state

    async def drive_all(self, *, until_idle: bool) -> None:
        self.asked.append(("drive_all", until_idle))

    async def finish_others(self) -> int:
        self.asked.append(("finish_others",))
        return self.in_hand

    def stop(self) -> None:
        self.asked.append(("stop",))

    async def abort(self) -> None:
        self.asked.append(("abort",))

    async def report(self, run_id: str) -> RunReport:
        return self.reports[run_id]

    async def runs(self, query: RunQuery) -> RunPage:
        self.asked.append(("runs", query))
        return RunPage(tuple(self.rows.values()), self.next_page)

    async def inbox(self, principal: str = "owner") -> list[InboxEntry]:
        return self.entries

    async def answer(
        self, run_id: str, effect: str, approved: bool, reason: str = "", principal: str = "owner", **more: object
    ) -> None:
        if effect in self.late_for:
            raise Conflict("this was answered already", code="already_answered")
        self.more = more
        who = () if principal == "owner" else (principal,)
        self.asked.append(("answer", run_id, effect, approved, reason, *who))

    async def resolve(self, run_id: str, effect: str, resolution: str, result: bytes | None, reason: str = "") -> None:
        self.asked.append(("resolve", run_id, effect, resolution, result, reason))

    async def cancel(self, run_id: str, reason: str) -> RunState:
        self.asked.append(("cancel", run_id, reason))
        return "cancelled"

    async def fork(self, run_id: str, at: int | None) -> Submitted:
        self.asked.append(("fork", run_id, at))
        return Submitted(run_id, True)

    async def replay(self, run_id: str) -> ReplayReport:
        return self.replayed

    async def verify(self, run_id: str | None) -> VerifyReport:
        self.asked.append(("verify", run_id))
        return self.verdict


class FakeProgram:
    """What app.py would hand over."""

    def __init__(self, folder: Path) -> None:
        self.environ: Mapping[str, str] = {}
        self.folder = folder
        self.host = FakeHost()
        self.opened: list[str | None] = []
        self.trouble: AtlasError | OSError | None = None
        self.missing: AtlasError | None = None
        self.kept = MemorySecrets()

    def secrets(self, vault: str | None) -> MemorySecrets:
        self.vault_path(vault)
        return self.kept

    def vault_path(self, vault: str | None) -> Path:
        if self.missing is not None:
            raise self.missing
        return self.folder

    def read_files(self, paths: Sequence[str]) -> list[tuple[str, bytes]]:
        return [(path, b"content") for path in paths]

    @asynccontextmanager
    async def open(self, vault: str | None) -> AsyncIterator[FakeHost]:
        self.opened.append(vault)
        if self.trouble is not None:
            raise self.trouble
        yield self.host

    async def probe_worker(self) -> float:
        return 0.1
