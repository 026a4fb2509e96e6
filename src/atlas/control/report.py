"""What use cases answer with: data that every surface shows the same way."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from atlas.kernel.chain import Finding
from atlas.kernel.errors import ErrorRecord, RunFailed, from_record
from atlas.kernel.run import RunState

_WAITS: Final = "See Atlas.inbox(), or 'atlas inbox', and answer with approve, deny or resolve."


class Tokens(msgspec.Struct, frozen=True, rename={"tokens_in": "in", "tokens_out": "out"}):
    """Tokens in and out."""

    tokens_in: int = 0
    tokens_out: int = 0


class RunReport(msgspec.Struct, frozen=True):
    """A run's result: the one object that `atlas run --json` prints."""

    run_id: str
    session_id: str
    agent: str
    state: RunState
    output: msgspec.Raw
    text: str
    cost_usd: float
    tokens: Tokens
    steps: int
    duration_ms: int
    error: ErrorRecord | None
    models: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True):
    """A run's result as Python programs get it: the report with its output decoded."""

    run_id: str
    session_id: str
    agent: str
    state: RunState
    output: Any
    text: str
    cost_usd: float
    tokens_in: int
    tokens_out: int
    steps: int
    duration_ms: int
    error: ErrorRecord | None
    models: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when the run succeeded."""
        return self.state == "succeeded"

    def unwrap(self) -> Any:
        """The output; raises what went wrong when the run did not succeed."""
        if self.error is not None:
            raise from_record(self.error)
        if not self.ok:
            raise RunFailed(f"run {self.run_id} is {self.state}", hint=_WAITS, code=f"run_{self.state}")
        return self.output


def result_of(report: RunReport) -> Result:
    """The report as a Python program wants it."""
    return Result(
        run_id=report.run_id,
        session_id=report.session_id,
        agent=report.agent,
        state=report.state,
        output=msgspec.json.decode(report.output),
        text=report.text,
        cost_usd=report.cost_usd,
        tokens_in=report.tokens.tokens_in,
        tokens_out=report.tokens.tokens_out,
        steps=report.steps,
        duration_ms=report.duration_ms,
        error=report.error,
        models=report.models,
    )


class Mismatch(msgspec.Struct, frozen=True):
    """A recorded decision that came out differently."""

    seq: int
    recorded: str
    decided: str


class ReplayReport(msgspec.Struct, frozen=True):
    """Whether every recorded decision came out identical when decided again, offline, and so did the code."""

    run_id: str
    decisions: int
    identical: bool
    mismatches: tuple[Mismatch, ...]
    code: str
    """`identical`, `different: <how>`, or `skipped: <why>` for running the pinned code against the record."""


class VerifyReport(msgspec.Struct, frozen=True):
    """What verification found."""

    runs: int
    events: int
    erased: int
    ok: bool
    findings: tuple[Finding, ...]


class InboxEntry(msgspec.Struct, frozen=True):
    """Something that waits for a person, as shown. `args` is the exact JSON; a program gets it decoded."""

    run_id: str
    effect: str
    kind: str
    agent: str
    name: str
    args: Any
    effect_class: str
    reason: str
    created_us: int
    principal: str = "owner"
    rule: str = ""
    layer: str = ""
    root_run_id: str = ""
    cost_usd: float = 0.0
    expires_us: int = 0
    second_person: bool = False
    is_editable: bool = False
    escalated_to: str = ""
