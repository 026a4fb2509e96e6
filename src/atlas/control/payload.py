"""JSON values in and out of events: small ones inline, large ones as blobs."""

from __future__ import annotations

import msgspec

from atlas.kernel.event import INLINE_LIMIT, Payload
from atlas.kernel.port import Ledger


def inline(raw: bytes) -> Payload | None:
    """The payload when it is small enough to stand in the event itself."""
    return Payload(msgspec.Raw(raw), size=len(raw)) if len(raw) <= INLINE_LIMIT else None


async def pack(ledger: Ledger, raw: bytes) -> Payload:
    """`raw` as an event carries it; a blob is durable before this returns."""
    return inline(raw) or Payload(blob=await ledger.put_blob(bytes(raw)), size=len(raw))


async def unpack(ledger: Ledger, payload: Payload) -> msgspec.Raw:
    """The exact JSON bytes of a payload."""
    return msgspec.Raw(await ledger.get_blob(payload.blob)) if payload.blob else payload.json
