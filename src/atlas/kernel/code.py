"""The conversation between a driver and the process that holds an agent's Python code.

The code asks (`FromCode`), the driver answers (`ToCode`). A `step` is asked for, and only after its intent
is durable does the driver say `Perform`; the code then performs and reports `Performed`, and may go on at
once because the receipt is ordered before anything it asks next. The same messages travel over a socket to a
worker process and by plain calls to code in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

import msgspec

from atlas.kernel.errors import ErrorRecord
from atlas.kernel.event import NO_SPEND, CallAnswered, EffectClass, EffectKind, Process, Spend, TurnSteered
from atlas.kernel.hold import Hold


class Job(msgspec.Struct, frozen=True, tag="job"):
    """One execution of an agent's `execute()`, and all it may know.

    `secrets` are those that its contract names, None where one has no value.
    """

    run_id: str
    root_run_id: str
    parent_run_id: str
    session_id: str
    principal: str
    agent: str
    version: str
    attempt: int
    folder: str
    snapshot: str
    input: msgspec.Raw
    seed: str
    values: dict[str, list[int]]
    deadline_us: int
    tokens_left: int | None
    may_spawn: bool
    startup: str = "on_startup"
    shutdown: str = "on_shutdown"
    startup_timeout_s: float = 60.0
    memory_mb: int = 2048
    output_limit_bytes: int = 8 * 1024 * 1024
    secrets: dict[str, str | None] = {}


class Need(msgspec.Struct, frozen=True):
    """What a call to a model may use at most: which one is asked, how much it reads, how much it may write.

    `asks`: how often it may be asked for that, because an answer may need repair.
    """

    model: str
    tokens_in: int
    max_output_tokens: int
    fallback: str = ""
    asks: int = 1


class CallMade(msgspec.Struct, frozen=True, tag="call"):
    """The code wants an effect. `effect` is its stable name within the run; equal calls are numbered.

    `definition` is the hash of the tool's definition; a call that costs money says what it needs.
    """

    id: int
    effect: str
    kind: EffectKind
    name: str
    args: msgspec.Raw
    args_hash: str
    effect_class: EffectClass
    idempotent: bool = False
    can_probe: bool = False
    definition: str = ""
    need: Need | None = None


class Performed(msgspec.Struct, frozen=True, tag="performed"):
    """A step was performed: its result, or the error it raised."""

    id: int
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorRecord | None = None
    duration_us: int = 0
    spend: Spend = NO_SPEND
    model: str = ""
    is_estimated: bool = False
    cached_in: int = 0
    saved_micro_usd: int = 0


class Probed(msgspec.Struct, frozen=True, tag="probed"):
    """What a probe found: it happened (with this result), it did not, or the probe cannot tell."""

    id: int
    found: Literal["done", "not_done", "unknown"]
    result: msgspec.Raw = msgspec.Raw(b"null")
    message: str = ""


class ValueTaken(msgspec.Struct, frozen=True, tag="value"):
    """The code read the clock."""

    name: str
    occurrence: int
    value: int


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """The code logged a line, or said how far it is (`fraction` >= 0)."""

    message: str
    level: str = "info"
    fraction: float = -1.0


class Printed(msgspec.Struct, frozen=True, tag="printed"):
    """The code wrote to stdout or stderr."""

    stream: Literal["stdout", "stderr"]
    text: str


class Steered(msgspec.Struct, frozen=True, tag="steered"):
    """A decision about the turn was made, or a call answered without being performed; what that leads to comes after."""

    fact: TurnSteered | CallAnswered


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """`execute()` came back: with an output, or with the error it raised. Nothing follows."""

    output: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorRecord | None = None


FromCode: TypeAlias = CallMade | Performed | Probed | ValueTaken | Noted | Printed | Steered | Finished


class Perform(msgspec.Struct, frozen=True, tag="perform"):
    """The intent of a step is durable: perform it now. `effect_key` is the same each time it is tried.

    `args` are to be used instead of those the call was made with. `hold` is what a call to a model was granted.
    """

    id: int
    effect_key: str
    args: msgspec.Raw | None = None
    hold: Hold | None = None


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Find out whether a step that may have happened did."""

    id: int
    effect_key: str


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """A call's outcome: from the record, from a child, or a refusal."""

    id: int
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorRecord | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop soon: `execute()` is cancelled at its next await."""

    reason: str = ""


ToCode: TypeAlias = Perform | Probe | Answer | Cancel


class Code(Protocol):
    """A running `execute()`."""

    @property
    def process(self) -> Process | None:
        """Where it runs; None when it runs inside the driver's own process."""
        ...

    def send(self, message: ToCode) -> None:
        """Delivers in order; a no-op once the code has ended."""
        ...

    async def stop(self) -> None:
        """Ends it now, at once and for sure; returns when nothing of it runs any more. Idempotent."""
        ...


class Executor(Protocol):
    """Runs agents' code: in worker processes, or inside this process."""

    async def start(self, job: Job, receive: Callable[[FromCode], None]) -> Code:
        """Begins to execute the job and returns at once.

        `receive` is called on the driver's loop, in order, with everything the code says; the last message is
        always one `Finished`, whatever becomes of the process (crash, kill, flood, import error), unless `stop` was
        called.
        """
        ...

    async def drain(self) -> None:
        """Stops every idle worker and forgets them; running code is stopped too."""
        ...
