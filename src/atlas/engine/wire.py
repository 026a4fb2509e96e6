"""The bytes between a driver and its worker: frames of JSON, each after its length.

JSON and not a denser form, because inputs, results and outputs are JSON bytes already and pass through untouched.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from atlas.kernel.code import (
    Answer,
    CallMade,
    Cancel,
    Finished,
    FromCode,
    Job,
    Noted,
    Perform,
    Performed,
    Printed,
    Probe,
    Probed,
    ValueTaken,
)
from atlas.kernel.errors import Fault


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Are you well?"""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """No more jobs: call the shutdown hook and exit."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The worker's loop turns."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The agent is loaded and its startup hook has returned."""


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The worker takes no further job; its `Finished` follows, then its exit."""


ToWorker: TypeAlias = Job | Perform | Probe | Answer | Cancel | Ping | Shutdown
FromWorker: TypeAlias = CallMade | Performed | Probed | ValueTaken | Noted | Printed | Finished | Pong | Ready | Leaving

OUT_OF_MEMORY: Final = 77  # the exit status of a worker that could not even read a message
HEADER: Final = 4
FRAME_LIMIT: Final = 32 * 1024 * 1024

_ENCODER: Final = msgspec.json.Encoder()
TO_WORKER: Final = msgspec.json.Decoder(ToWorker)
FROM_WORKER: Final = msgspec.json.Decoder(FromWorker)


def frame(message: ToWorker | FromWorker | FromCode) -> bytes:
    """The message as bytes, length first."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(HEADER, "big") + body


class Frames:
    """Cuts a stream of bytes into the frames it is made of."""

    __slots__ = ("_have", "_limit", "_need", "_pieces")

    def __init__(self, limit: int = 0xFFFFFFFF) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes; Fault when one is longer than the limit."""
        if self._pieces:
            # A long frame arrives in many pieces; they are joined once, with the last.
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._pieces)
            self._pieces = []
        found: list[bytes] = []
        start, end, need = 0, len(data), HEADER
        while end - start >= HEADER:
            need = HEADER + self._size(data, start)
            if end - start < need:
                break
            found.append(data[start + HEADER : start + need])
            start += need
            need = HEADER
        if start < end:
            self._pieces = [data[start:]]
            self._have, self._need = end - start, need
        return found

    def _size(self, data: bytes, start: int) -> int:
        size = int.from_bytes(data[start : start + HEADER], "big")
        if size > self._limit:
            raise Fault(f"a frame of {size} bytes; the limit is {self._limit}", code="bad_frame")
        return size
