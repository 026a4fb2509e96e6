"""Checks what is stored against what was hashed, and names the first thing that is wrong."""

from __future__ import annotations

from atlas.control.report import VerifyReport
from atlas.kernel.chain import Finding, check_chain
from atlas.kernel.errors import Fault, LedgerCorrupt, NotFound
from atlas.kernel.event import (
    EffectAsked,
    EffectIntended,
    EffectReceived,
    EffectResolved,
    Event,
    Payload,
    RunCreated,
    RunEnded,
    decode_body,
)
from atlas.kernel.port import Ledger
from atlas.kernel.run import RunQuery, RunRow

PAGE = 500


async def verify_run(ledger: Ledger, run_id: str) -> VerifyReport:
    """Recomputes one run's chain."""
    row = await ledger.run(run_id)
    events = await ledger.events(run_id)
    finding = await _check(ledger, row, events)
    return _report(1, len(events), _erased(events), [finding] if finding else [])


async def verify_all(ledger: Ledger) -> VerifyReport:
    """Recomputes every chain, and looks for events that lost their run or their place in the whole."""
    runs = count = erased = 0
    findings: list[Finding] = []
    known: dict[str, int] = {}
    before = ""
    while True:
        page = await ledger.runs(RunQuery(before=before, limit=PAGE))
        for row in page.runs:
            events = await ledger.events(row.run_id)
            finding = await _check(ledger, row, events)
            findings += [finding] if finding else []
            runs, count, erased = runs + 1, count + len(events), erased + _erased(events)
            known[row.run_id] = row.head_seq
        before = page.next
        if not before:
            break
    findings += await _check_order(ledger, known)
    return _report(runs, count, erased, findings)


async def _check(ledger: Ledger, row: RunRow, events: list[Event]) -> Finding | None:
    finding = check_chain(row.run_id, events, row.head_seq, row.head_hash)
    if finding is not None:
        return finding
    for event in events:
        problem = await _check_blobs(ledger, event)
        if problem is not None:
            return problem
    return None


async def _check_blobs(ledger: Ledger, event: Event) -> Finding | None:
    if not event.salt or b'"blob"' not in event.body:
        return None
    try:
        for payload in _payloads(event):
            if payload.blob:
                await ledger.get_blob(payload.blob)
    except NotFound as error:
        return Finding("missing", event.run_id, event.seq, f"event {event.seq}: {error.message}")
    except (LedgerCorrupt, Fault) as error:
        return Finding("altered", event.run_id, event.seq, f"event {event.seq}: {error.message}")
    return None


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
