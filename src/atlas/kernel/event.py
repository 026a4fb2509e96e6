"""Events: the immutable facts of a run, and the envelope that carries them.

An envelope is what the chain hashes; a body is JSON bytes that are stored exactly as written and never
re-encoded. Every kind has a version; readers upcast old ones in `decode_body`. What happened to a run is the
sequence of its events and nothing else: state, traces, cost and audit are folds over them.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from atlas.kernel.errors import ErrorRecord, Fault
from atlas.kernel.hold import Hold, Pool
from atlas.kernel.rule import Ancestor, Spoke
from atlas.kernel.rule import Decision as Decision
from atlas.kernel.rule import EffectClass as EffectClass
from atlas.kernel.rule import EffectKind as EffectKind

Resolution: TypeAlias = Literal["done", "not_done", "abandon"]

INLINE_LIMIT: Final = 64 * 1024


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """A JSON value: inline when small, a blob named by its SHA-256 when above 64 KB."""

    json: msgspec.Raw = msgspec.Raw(b"null")
    blob: str = ""
    size: int = 0


NULL: Final = Payload()


class Process(msgspec.Struct, frozen=True):
    """A process that can be told from a later one with the same pid, on one boot of one host."""

    host: str
    pid: int
    started_us: int


class Spend(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was used: always a difference, added to totals."""

    steps: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_micro_usd: int = 0

    def plus(self, other: Spend) -> Spend:
        """The sum."""
        return Spend(
            self.steps + other.steps,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.cost_micro_usd + other.cost_micro_usd,
        )


NO_SPEND: Final = Spend()


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run and its tree may use; a child's are never wider than its parent's."""

    timeout_s: float = 60.0
    tree_timeout_s: float = 300.0
    depth: int = 5
    children: int = 100
    tree_runs: int = 1000
    spawns_per_minute: int = 600
    tree_tokens: int | None = None
    cancel_grace_s: float = 5.0


class ForkPoint(msgspec.Struct, frozen=True):
    """Where a forked run left another: the event it continues from, by hash."""

    run_id: str
    seq: int
    hash: str


class InputFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that was given with the input; `blob` names its exact bytes, `tokens` is what it weighs beside its text."""

    blob: str
    media_type: str
    name: str
    size: int
    tokens: int = 0


class Critical(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody raised every cap of money for this run by an amount, and said why."""

    micro_usd: int
    why: str
    by: str


class Ruled(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the rules said of an effect: the decision, the rule that made it, everything that was said, and by what text.

    `version` names the blob that holds the policy as it was, `models` those that a tier stood for.
    """

    decision: Decision
    reason: str = ""
    rule: str = ""
    layer: str = ""
    spoke: tuple[Spoke, ...] = ()
    version: str = ""
    models: tuple[str, ...] = ()


class RunCreated(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first event: everything that was fixed when the run was submitted.

    `model` was chosen for this run in place of the contract's.
    """

    agent: str
    version: str
    input: Payload
    snapshot: str
    session_id: str
    seed: str
    runtime: str = "python"
    turn: int = 0
    parent_run_id: str = ""
    parent_effect: str = ""
    root_run_id: str = ""
    depth: int = 0
    limits: Limits = Limits()
    unattended: bool = False
    may_spawn: bool = False
    key: str = ""
    place: str = ""
    fork: ForkPoint | None = None
    files: tuple[InputFile, ...] = ()
    pools: tuple[Pool, ...] = ()
    lineage: tuple[Ancestor, ...] = ()
    narrow: Ancestor | None = None
    critical: Critical | None = None
    model: str = ""


class AttemptStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A driver began to execute the run; `worker` is the process that holds the agent's code.

    `is_retry` says that the same driver lost the process of the attempt before.
    """

    attempt: int
    owner: str
    worker: Process | None = None
    is_retry: bool = False


class EffectIntended(msgspec.Struct, frozen=True, omit_defaults=True):
    """The run is about to touch the world; durable before it does.

    `definition` is the hash of the tool's definition, `hold` what is reserved for it. `is_edited`: `args` are not
    those that `args_hash` names, because a person or a second opinion changed them. `lost` is what an earlier try
    that left no receipt is taken to have used.
    """

    effect: str
    kind: EffectKind
    name: str
    args: Payload
    args_hash: str
    effect_class: EffectClass
    idempotent: bool = False
    can_probe: bool = False
    decision: Decision = "allow"
    reason: str = ""
    answered_by: str = ""
    child_run_id: str = ""
    definition: str = ""
    ruling: Ruled | None = None
    hold: Hold | None = None
    lost: Spend = NO_SPEND
    is_edited: bool = False


class EffectReceived(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the world answered. `source` says who knows: the performer, a probe, a person or a child run.

    `model` names the model that answered, `provider:model`, and says so when it was a script.
    """

    effect: str
    result: Payload = NULL
    error: ErrorRecord | None = None
    source: Literal["performed", "probed", "person", "child"] = "performed"
    duration_us: int = 0
    spend: Spend = NO_SPEND
    model: str = ""
    is_estimated: bool = False


class EffectRefused(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effect was decided against and never touched the world."""

    effect: str
    kind: EffectKind
    name: str
    args_hash: str
    effect_class: EffectClass
    decision: Decision
    error: ErrorRecord
    ruling: Ruled | None = None
    args: Payload = NULL


class EffectJudged(msgspec.Struct, frozen=True, omit_defaults=True):
    """A second opinion on an effect; bound to the hash of the arguments. `args` are those it wants instead."""

    effect: str
    args_hash: str
    verdict: Literal["allow", "block", "revise", "escalate"]
    by: str
    reason: str = ""
    args: Payload = NULL
    version: str = ""
    spend: Spend = NO_SPEND


class EffectAsked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person must decide; bound to the hash of the arguments and of the tool's definition.

    Nobody answers after `expires_us`. `second_person`: somebody else than who asked for the run must answer.
    """

    effect: str
    kind: EffectKind
    name: str
    args: Payload
    args_hash: str
    effect_class: EffectClass
    reason: str
    definition: str = ""
    ruling: Ruled | None = None
    expires_us: int = 0
    second_person: bool = False


class EffectAnswered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person approved or denied what was asked; `args` are those they want instead.

    `remember` says how long the same call is approved without asking again: within the run, or within the session.
    """

    effect: str
    args_hash: str
    approved: bool
    by: str
    reason: str = ""
    signal_id: str = ""
    definition: str = ""
    args: Payload | None = None
    remember: Literal["", "run", "session"] = ""


class EffectDoubted(msgspec.Struct, frozen=True, omit_defaults=True):
    """An intent without a receipt that can be neither repeated nor probed: a person must say."""

    effect: str
    reason: str


class EffectResolved(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person said what became of an effect in doubt."""

    effect: str
    resolution: Resolution
    by: str
    result: Payload = NULL
    reason: str = ""
    signal_id: str = ""


class ValueRecorded(msgspec.Struct, frozen=True):
    """A value taken from outside the code (the time), so that running again sees the same."""

    name: str
    occurrence: int
    value: int


class OutputCaptured(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the agent's code printed."""

    stream: Literal["stdout", "stderr"]
    text: str


class Logged(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line the agent's code logged, or how far it says it is."""

    message: str
    level: str = "info"
    fraction: float = -1.0


class CancelRequested(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody wants the run to stop: no new intents from here on."""

    by: str
    reason: str = ""
    signal_id: str = ""


class TurnClosed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a turn leaves to the next one of its session: bounded, and all that the next one loads."""

    turn: int
    title: str
    session: Payload


class TurnSteered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hook, the critic or the schema of the answer changed the course of a turn; what was decided is never asked for again.

    `moment`, `step` and (of a tool) `call` say where, `by` who. `text` is the reason, or what the model was told, and
    `detail` all that is behind it. `active_us` is how long the run had been executed when the critic looked.
    """

    moment: str
    step: int
    decision: Literal["deny", "stop", "continue", "change", "extend", "nudge"]
    by: str
    call: int = 0
    text: str = ""
    counts_as_stuck: bool = False
    detail: Payload = NULL
    active_us: int = 0

    @property
    def place(self) -> str:
        """What tells it from other decisions of the turn: at most one is made at a place."""
        return f"{self.moment}:{self.step}.{self.call}"


class CallAnswered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call of a turn was answered without being performed; `text` is all that the model was told."""

    step: int
    call: int
    text: Payload


class RunParked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The run holds no lease and no process until something wakes it."""

    reason: Literal["person", "doubt", "interrupted", "children"]


class RunEnded(msgspec.Struct, frozen=True, omit_defaults=True):
    """The only terminal event."""

    state: Literal["succeeded", "failed", "refused", "cancelled"]
    output: Payload = NULL
    error: ErrorRecord | None = None
    unresolved: tuple[str, ...] = ()
    spend: Spend = NO_SPEND
    active_us: int = 0


Body: TypeAlias = (
    RunCreated
    | AttemptStarted
    | EffectIntended
    | EffectReceived
    | EffectRefused
    | EffectJudged
    | EffectAsked
    | EffectAnswered
    | EffectDoubted
    | EffectResolved
    | ValueRecorded
    | OutputCaptured
    | Logged
    | CancelRequested
    | TurnClosed
    | TurnSteered
    | CallAnswered
    | RunParked
    | RunEnded
)

_KINDS: Final[dict[str, type[Body]]] = {
    "run.created": RunCreated,
    "attempt.started": AttemptStarted,
    "effect.intended": EffectIntended,
    "effect.received": EffectReceived,
    "effect.refused": EffectRefused,
    "effect.judged": EffectJudged,
    "effect.asked": EffectAsked,
    "effect.answered": EffectAnswered,
    "effect.doubted": EffectDoubted,
    "effect.resolved": EffectResolved,
    "value.recorded": ValueRecorded,
    "output.captured": OutputCaptured,
    "logged": Logged,
    "cancel.requested": CancelRequested,
    "turn.closed": TurnClosed,
    "turn.steered": TurnSteered,
    "call.answered": CallAnswered,
    "run.parked": RunParked,
    "run.ended": RunEnded,
}
_KIND_OF: Final[dict[type, str]] = {cls: kind for kind, cls in _KINDS.items()}
_DECODERS: Final = {kind: msgspec.json.Decoder(cls) for kind, cls in _KINDS.items()}
_ENCODER: Final = msgspec.json.Encoder()
SCHEMA_VERSION: Final = 1


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event before the ledger gave it its place: kind, time and the exact bytes of its body."""

    kind: str
    time_us: int
    principal: str
    body: bytes
    version: int = SCHEMA_VERSION


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event in its envelope. `body` and `salt` are empty once the event was erased."""

    run_id: str
    seq: int
    position: int
    time_us: int
    kind: str
    version: int
    principal: str
    digest: bytes
    prev: bytes
    hash: bytes
    salt: bytes
    body: bytes


def draft(body: Body, time_us: int, principal: str) -> Draft:
    """`body` as an event that can be appended."""
    return Draft(_KIND_OF[type(body)], time_us, principal, _ENCODER.encode(body))


def decode_body(kind: str, version: int, body: bytes) -> Body:
    """The body of an event of any released version."""
    if version > SCHEMA_VERSION or kind not in _DECODERS:
        raise Fault(
            f"event kind {kind!r} version {version} is newer than this Atlas",
            hint="Open this vault with the newer Atlas that wrote it.",
            code="event_too_new",
        )
    try:
        return _DECODERS[kind].decode(body)
    except msgspec.MsgspecError as error:
        raise Fault(f"event body of kind {kind!r} cannot be read: {error}", code="event_unreadable") from error
