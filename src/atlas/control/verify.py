"""Checks what is stored against what was hashed, and names the first thing that is wrong."""

from __future__ import annotations

import msgspec

from atlas.control.history import bodies, created_of
from atlas.control.pinned import is_stored
from atlas.control.report import VerifyReport
from atlas.kernel.chain import Finding, check_chain
from atlas.kernel.errors import Fault, LedgerCorrupt, NotFound
from atlas.kernel.event import (
    EffectAsked,
    EffectIntended,
    EffectReceived,
    EffectRefused,
    EffectResolved,
    Event,
    Payload,
    RunCreated,
    RunEnded,
    decode_body,
)
from atlas.kernel.port import Ledger
from atlas.kernel.run import TERMINAL, RunQuery, RunRow
from atlas.kernel.state import State, apply, initial

PAGE = 500


async def verify_run(ledger: Ledger, run_id: str) -> VerifyReport:
    """Recomputes one run's chain."""
    row = await ledger.run(run_id)
    events = await ledger.events(run_id)
    checked: set[str] = set()
    finding = await _check(ledger, row, events, checked)
    return _report(1, len(events), _erased(events), [finding] if finding else [])


async def verify_all(ledger: Ledger) -> VerifyReport:
    """Recomputes every chain, and looks for events that lost their run or their place in the whole."""
    runs = count = erased = 0
    checked: set[str] = set()
    findings: list[Finding] = []
    known: dict[str, int] = {}
    before = ""
    while True:
        page = await ledger.runs(RunQuery(before=before, limit=PAGE))
        for row in page.runs:
            events = await ledger.events(row.run_id)
            finding = await _check(ledger, row, events, checked)
            findings += [finding] if finding else []
            runs, count, erased = runs + 1, count + len(events), erased + _erased(events)
            known[row.run_id] = row.head_seq
        before = page.next
        if not before:
            break
    findings += await _check_order(ledger, known)
    return _report(runs, count, erased, findings)


async def _check(ledger: Ledger, row: RunRow, events: list[Event], known: set[str]) -> Finding | None:
    finding = check_chain(row.run_id, events, row.head_seq, row.head_hash)
    if finding is not None:
        return finding
    for event in events:
        problem = await _check_blobs(ledger, event, known)
        if problem is not None:
            return problem
    return _check_row(row, events)


def _check_row(row: RunRow, events: list[Event]) -> Finding | None:
    """The row that people are shown must say what its events say; erased events leave it unchecked."""
    if not events or not all(event.salt for event in events):
        return None
    try:
        state = _folded(row.run_id, events)
    except Fault as error:
        return Finding("unreadable", row.run_id, 1, error.message)
    created = state.created
    ended = state.ended.state if state.ended is not None else ""
    pairs = (
        ("agent", row.agent, created.agent),
        ("version", row.version, created.version),
        ("snapshot", row.snapshot, created.snapshot),
        ("session", row.session_id, created.session_id),
        ("principal", row.principal, state.principal),
        ("parent", row.parent_run_id, created.parent_run_id),
        ("root", row.root_run_id, created.root_run_id),
        ("key", row.key, created.key),
        ("spend", str(row.spend), str(row.spend if _is_spend_told(row, state) else state.spend)),
        ("state", row.state if row.state in TERMINAL else "", ended),
        ("end", bool(row.ended_us), bool(ended)),
    )
    for name, shown, recorded in pairs:
        if shown != recorded:
            message = f"the run's row says {name} {shown!r}, its events say {recorded!r}"
            return Finding("altered", row.run_id, events[-1].seq, message)
    return None


def _is_spend_told(row: RunRow, state: State) -> bool:
    """Whether the row's spending is what the events say, or more by what may have been lost outside of effects.

    A second opinion that was lost with its process has no event; the end of the run counts it in full, as estimated.
    """
    said, told = row.spend, state.spend
    if said == told or state.ended is None:
        return said == told
    more = (said.tokens_in - told.tokens_in, said.tokens_out - told.tokens_out)
    cost = said.cost_micro_usd - told.cost_micro_usd
    return said.steps == told.steps and min(more) >= 0 and 0 <= cost <= row.estimated_micro_usd


def _folded(run_id: str, events: list[Event]) -> State:
    state = initial(run_id, events[0].principal, created_of(events[0]))
    for event, body in bodies(events[1:]):
        state = apply(state, body, event.time_us)
    return state


async def _check_blobs(ledger: Ledger, event: Event, known: set[str]) -> Finding | None:
    """Every blob that the event names must be there and be what its name says, pinned code and policies included."""
    if not event.salt or not (b'"blob"' in event.body or b'"ruling"' in event.body or event.kind == "run.created"):
        return None
    try:
        for digest in await _blobs(ledger, event, known):
            if digest not in known:
                await ledger.get_blob(digest)
                known.add(digest)
    except NotFound as error:
        return Finding("missing", event.run_id, event.seq, f"event {event.seq}: {error.message}")
    except (LedgerCorrupt, Fault) as error:
        return Finding("altered", event.run_id, event.seq, f"event {event.seq}: {error.message}")
    return None


async def _blobs(ledger: Ledger, event: Event, known: set[str]) -> list[str]:
    digests = [payload.blob for payload in _payloads(event) if payload.blob]
    body = decode_body(event.kind, event.version, event.body)
    if isinstance(body, RunCreated):
        digests += [file.blob for file in body.files]
    if isinstance(body, EffectIntended | EffectAsked | EffectRefused) and body.ruling is not None:
        digests += [body.ruling.version] if body.ruling.version else []
    if isinstance(body, RunCreated) and is_stored(body.snapshot) and body.snapshot not in known:
        manifest = msgspec.json.decode(await ledger.get_blob(body.snapshot), type=dict[str, str])
        known.add(body.snapshot)
        digests += manifest.values()
    return digests


def _payloads(event: Event) -> tuple[Payload, ...]:
    match decode_body(event.kind, event.version, event.body):
        case RunCreated(input=payload) | EffectIntended(args=payload) | EffectAsked(args=payload):
            return (payload,)
        case EffectReceived(result=payload) | EffectResolved(result=payload) | RunEnded(output=payload):
            return (payload,)
        case _:
            return ()


async def _check_order(ledger: Ledger, known: dict[str, int]) -> list[Finding]:
    """Positions are dense: a gap means that events were taken out, even if their run went with them."""
    expected = 1
    while events := await ledger.feed(expected - 1, 5000):
        for event in events:
            if event.position != expected:
                lost = f"positions {expected} to {event.position - 1} of the ledger are gone"
                return [Finding("missing", event.run_id, event.seq, f"{lost}; the next event stored is this one")]
            if event.run_id not in known:
                return [Finding("missing", event.run_id, event.seq, "the run that this event belongs to is gone")]
            expected += 1
    return []


def _erased(events: list[Event]) -> int:
    return sum(1 for event in events if not event.salt)


def _report(runs: int, events: int, erased: int, findings: list[Finding]) -> VerifyReport:
    return VerifyReport(runs, events, erased, not findings, tuple(findings))
