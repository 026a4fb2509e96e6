"""The page-in tool of prompt agents: brings back anything the session recorded, by handle or by search, bounded."""

from __future__ import annotations

import asyncio

import msgspec

from atlas.control.history import bodies, created_of
from atlas.control.payload import unpack
from atlas.kernel.context import count
from atlas.kernel.digest import Done as DoneTurn
from atlas.kernel.digest import title_of
from atlas.kernel.event import EffectReceived, EffectRefused, Event, RunCreated, TurnClosed
from atlas.kernel.model import Asked, Text, ToolCall
from atlas.kernel.port import Ledger
from atlas.kernel.recall import Handle, Index, Passage, parse_handle, passages
from atlas.kernel.run import RunQuery, RunRow

HITS = 8
SNIPPET = 240


class Recall:
    """Reads back what a session recorded."""

    def __init__(self, ledger: Ledger, index: Index) -> None:
        self._ledger = ledger
        self._index = index

    async def by_handle(self, session_id: str, handle: str, start: int, limit: int, rate: float) -> str:
        """Exactly what was recorded under the handle, from character `start`, as much as the limit allows."""
        parsed = parse_handle(handle)
        row = await self._turn(session_id, parsed) if parsed else None
        if parsed is None or row is None:
            return f"There is no {handle!r}. Handles look like t12, t12.3 or t12.3.2; search with recall(find=...)."
        text = await self._text(row, parsed)
        if text is None:
            return f"Nothing is recorded under {handle}."
        room = max(200, int(limit * rate) - 200)
        piece = text.encode()[start : start + room].decode(errors="ignore")
        end = start + len(piece.encode())
        size = len(text.encode())
        more = f"\n[{size - end} bytes follow: recall(handle={handle!r}, start={end})]" if end < size else ""
        return f"{handle}, bytes {start} to {end} of {size}:\n{piece}{more}"

    async def by_words(self, session_id: str, words: str, limit: int, rate: float) -> str:
        """The passages that share most with the words, best first, each with the handle that shows it whole."""
        await self._catch_up(session_id)
        found = await asyncio.to_thread(self._index.find, session_id, words, HITS)
        if not found:
            return f"Nothing recorded matches {words!r}. Try other words."
        lines: list[str] = []
        used = 0
        for hit in found:
            snippet = " ".join(hit.snippet.split())[:SNIPPET]
            at = f", start={hit.start}" if hit.start else ""
            line = f"recall(handle={hit.handle!r}{at}) [{hit.title}] {snippet}"
            used += count(line, rate)
            if used > limit:
                break
            lines.append(line)
        return "\n".join(lines)

    async def _turn(self, session_id: str, handle: Handle) -> RunRow | None:
        before = ""
        while True:
            page = await self._ledger.runs(RunQuery(session_id=session_id, roots_only=True, before=before, limit=200))
            for row in page.runs:
                if row.turn == handle.turn:
                    return row
            if not page.next or (page.runs and page.runs[-1].turn < handle.turn):
                return None
            before = page.next

    async def _text(self, row: RunRow, handle: Handle) -> str | None:
        events = await self._ledger.events(row.run_id)
        if handle.step == 0:
            return await self._user(events)
        if handle.step is None:
            return await self._overview(row, events)
        wanted = f"tool:{handle.step}.{handle.call}:" if handle.call is not None else f"model:{handle.step}"
        parts: list[str] = []
        for _, body in bodies(events):
            if isinstance(body, EffectReceived | EffectRefused) and (
                body.effect.startswith(wanted) if handle.call is not None else _is_step(body.effect, handle.step)
            ):
                parts.append(await self._outcome(body))
        return "\n".join(parts) if parts else None

    async def _overview(self, row: RunRow, events: list[Event]) -> str:
        lines = [f"t{row.turn}.0 user: {await self._user(events)}"]
        for _, body in bodies(events):
            handle = _handle_of(body.effect, row.turn) if isinstance(body, EffectReceived | EffectRefused) else None
            if handle is not None and isinstance(body, EffectReceived | EffectRefused):
                lines.append(f"{handle}: {' '.join((await self._outcome(body)).split())[:300]}")
        return "\n".join(lines)

    async def _user(self, events: list[Event]) -> str:
        return user_text(await unpack(self._ledger, created_of(events[0]).input))

    async def _outcome(self, body: EffectReceived | EffectRefused) -> str:
        if isinstance(body, EffectRefused) or body.error is not None:
            error = body.error
            return f"error: {error.message}" if error is not None else ""
        raw = await unpack(self._ledger, body.result)
        return said(raw) if body.effect.startswith("model:") else result_text(raw)

    async def _catch_up(self, session_id: str) -> None:
        """Indexes what was recorded since the last search, this turn's own steps included."""
        seen = await asyncio.to_thread(self._index.seen, session_id)
        rows: list[RunRow] = []
        before = ""
        while True:
            page = await self._ledger.runs(RunQuery(session_id=session_id, roots_only=True, before=before, limit=200))
            fresh = [row for row in page.runs if seen.get(row.run_id, 0) < row.head_seq]
            rows += fresh
            before = page.next
            # Turns end in order: a page with nothing new means that everything before it is indexed too.
            if not before or not fresh:
                break
        for row in reversed(rows):
            found, seq = await self._passages(row, seen.get(row.run_id, 0))
            await asyncio.to_thread(self._index.add, session_id, row.run_id, seq, found)

    async def _passages(self, row: RunRow, after: int) -> tuple[list[Passage], int]:
        events = await self._ledger.events(row.run_id)
        user = await self._user(events)
        title = title_of(DoneTurn(row.turn, user, ""))
        found: list[Passage] = []
        for _, body in bodies(events):
            if isinstance(body, TurnClosed):
                title = body.title
        for event, body in bodies(events):
            if event.seq <= after:
                continue
            match body:
                case RunCreated():
                    found += passages(f"t{row.turn}.0", title, user, event.position)
                case EffectReceived() | EffectRefused():
                    handle = _handle_of(body.effect, row.turn)
                    if handle is not None and ":recall" not in body.effect:
                        found += passages(handle, title, await self._outcome(body), event.position)
                case _:
                    pass
        return found, events[-1].seq


def user_text(raw: msgspec.Raw) -> str:
    """What the user said, from a run's input."""
    value = msgspec.json.decode(raw)
    if isinstance(value, dict) and set(value) == {"text"}:
        return str(value["text"])
    return value if isinstance(value, str) else msgspec.json.format(bytes(raw), indent=1).decode()


def said(raw: msgspec.Raw) -> str:
    """What a model said in a recorded reply: words and calls."""
    reply = msgspec.json.decode(raw, type=Asked).reply
    parts = [
        part.text if isinstance(part, Text) else f"{part.name}({part.args})"
        for part in reply.parts
        if isinstance(part, Text | ToolCall)
    ]
    return "\n".join(parts)


def result_text(raw: msgspec.Raw) -> str:
    """A tool's recorded result as text."""
    value = msgspec.json.decode(raw)
    return str(value["text"]) if isinstance(value, dict) and "text" in value else str(value)


def _is_step(effect: str, step: int) -> bool:
    return effect == f"model:{step}" or effect.startswith(f"tool:{step}.")


def _handle_of(effect: str, turn: int) -> str | None:
    kind, _, rest = effect.partition(":")
    place = rest.partition(":")[0]
    return f"t{turn}.{place}" if kind in ("model", "tool") else None
