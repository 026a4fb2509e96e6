"""The page-in tool of prompt agents: brings back anything the session recorded, by handle or by search, bounded.

    by_handle     exactly what was recorded, a page at a time
    by_words      where the words of a question were recorded, best first
    catch_up      what was recorded since the last search becomes findable

What a turn sees is everything of its session before it and its own steps, but not its own question and not what it
recalled. A child run sees itself only.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from atlas.control.account import RECALL_TOOL, Account, Entry, events_of, read, revises, session_left
from atlas.kernel.context import NOTES, TURNS
from atlas.kernel.digest import carried
from atlas.kernel.excerpt import page
from atlas.kernel.media import Given
from atlas.kernel.port import Ledger
from atlas.kernel.recall import (
    NEAR_SIZE,
    Found,
    Handle,
    Index,
    Indexed,
    Passage,
    parse_handle,
    passages,
    query_of,
    rank,
)
from atlas.kernel.run import TERMINAL, RunQuery, RunRow
from atlas.kernel.token import text_size
from atlas.kernel.tool import ToolOutcome

HITS: Final = 8
CANDIDATES: Final = 24
_PAGE: Final = 100
_UNKNOWN: Final = "There is no {!r}. Handles look like t12, t12.3 or t12.3.2; recall(find=...) searches for words."


class Recall:
    """Reads back what a session recorded."""

    def __init__(self, ledger: Ledger, index: Index) -> None:
        self._ledger = ledger
        self._index = index
        self._catching_up = asyncio.Lock()

    async def by_handle(self, run_id: str, handle: str, start: int, limit: int, rate: float) -> ToolOutcome:
        """What was recorded under the handle from byte `start` on, in an answer of at most `limit` tokens."""
        row = await self._ledger.run(run_id)
        shown = await self._shown(row, handle.strip())
        if shown is None:
            return ToolOutcome(_UNKNOWN.format(handle[:40]))
        text = _page(shown.label, handle.strip(), shown.text.encode(), start, int(limit * rate))
        return ToolOutcome(text, picture=shown.picture)

    async def by_words(self, run_id: str, words: str, limit: int, rate: float) -> str:
        """The passages that share most with the words, best first, each with the handle that shows it whole."""
        row = await self._ledger.run(run_id)
        await self.catch_up(row)
        query = query_of(words)
        found = rank(query, await asyncio.to_thread(self._index.find, _scope(row), query, CANDIDATES), HITS)
        if not found:
            return "Nothing recorded matches these words. Try others."
        return _listed(found, int(limit * rate))

    async def forget(self, run_id: str) -> None:
        """Takes a run out of the index, because something of it was erased; what is left is indexed again."""
        await asyncio.to_thread(self._index.forget, run_id)

    async def catch_up(self, row: RunRow) -> None:
        """Indexes what was recorded since the last search: turns before this one, and its own steps so far."""
        async with self._catching_up:
            scope = _scope(row)
            reach = await asyncio.to_thread(self._index.reach, scope) if row.turn else 0
            for one in (*await self._turns(row, reach), row):
                known = await asyncio.to_thread(self._index.run, scope, one.turn)
                if known is None or not known.is_over:
                    await self._add(scope, one, known.seq if known else 0)

    async def _shown(self, row: RunRow, handle: str) -> _Shown | None:
        if handle == TURNS:
            await self.catch_up(row)
            titles = await asyncio.to_thread(self._index.titles, _scope(row))
            return _Shown("newest first", "\n".join(titles))
        if handle == NOTES:
            return _Shown("open", await self._notes(row))
        parsed = parse_handle(handle)
        run_id = await self._run_of(row, parsed.turn) if parsed else None
        if parsed is None or run_id is None:
            return None
        account = await read(self._ledger, parsed.turn, await events_of(self._ledger, run_id))
        text = await account.text(parsed)
        if text is None:
            return None
        picture = account.picture(parsed)
        if picture is not None:
            await self._ledger.get_blob(picture.file.blob)  # one that is gone or damaged is told here, not by the model
        return _Shown(account.provenance(parsed), text, picture)

    async def _run_of(self, row: RunRow, turn: int) -> str | None:
        """The run of a turn; looked up, not searched for, however many turns there are."""
        if turn == row.turn:
            return row.run_id
        if turn > row.turn or turn < 1:
            return None
        known = await asyncio.to_thread(self._index.run, _scope(row), turn)
        if known is None:
            await self.catch_up(row)
            known = await asyncio.to_thread(self._index.run, _scope(row), turn)
        return known.run_id if known else None

    async def _notes(self, row: RunRow) -> str:
        """The open notes: what the last turn left, and what this one changed."""
        before = await self._run_of(row, row.turn - 1)
        session = None
        if before is not None:
            session = await session_left(self._ledger, before, (await self._ledger.run(before)).head_seq)
        account = await read(self._ledger, row.turn, await events_of(self._ledger, row.run_id))
        notes = carried(session.notes if session else (), account.notes())
        return "\n".join(note.line for note in notes) or "There are none."

    async def _turns(self, row: RunRow, reach: int) -> list[RunRow]:
        """The turns after `reach` and before this one, oldest first."""
        missing = set(range(reach + 1, row.turn))
        found: list[RunRow] = []
        before = ""
        while missing:
            limit = min(len(missing) + 8, _PAGE)
            query = RunQuery(session_id=row.session_id, roots_only=True, before=before, limit=limit)
            page_of_runs = await self._ledger.runs(query)
            found += [one for one in page_of_runs.runs if one.turn in missing]
            missing -= {one.turn for one in page_of_runs.runs}
            before = page_of_runs.next
            if not before:
                break
        return sorted(found, key=lambda one: one.turn)

    async def _add(self, scope: str, row: RunRow, after: int) -> None:
        """Indexes one run: the rest of one under way, the whole of one that is over, now that its title is known."""
        is_over = row.state in TERMINAL
        after = 0 if is_over else after
        events = await events_of(self._ledger, row.run_id, after)
        if not events:
            return
        if after and revises(events):
            after, events = 0, await events_of(self._ledger, row.run_id)
        account = await read(self._ledger, row.turn, events)
        title = account.title if is_over else f"{Handle(row.turn)} (this turn)"
        run = Indexed(row.run_id, row.turn, title, events[-1].seq, is_over)
        found = await self._passages(account, title, is_over)
        await asyncio.to_thread(self._index.add, scope, run, found, after)

    async def _passages(self, account: Account, title: str, is_over: bool) -> list[Passage]:
        # The question of a turn under way would be the best answer to itself; so would what was recalled for it.
        entries = [one for one in account.entries if _is_findable(one) and (is_over or one.provenance != "user")]
        texts = [await account.searched(entry) for entry in entries]
        found: list[Passage] = []
        for number, (entry, text) in enumerate(zip(entries, texts, strict=True)):
            before = texts[number - 1][-NEAR_SIZE:] if number else ""
            after = texts[number + 1][:NEAR_SIZE] if number + 1 < len(texts) else ""
            near = f"{before}\n{after}"
            whole = Passage(str(entry.handle), 0, title, text, entry.at, near, account.is_retelling)
            found += passages(whole) if text else ()
        return found


class _Shown(msgspec.Struct, frozen=True):
    """What a handle brings back; `label` says who is behind it."""

    label: str
    text: str
    picture: Given | None = None


def _is_findable(entry: Entry) -> bool:
    return entry.label != RECALL_TOOL


def _scope(row: RunRow) -> str:
    return row.session_id if row.turn else row.run_id


def _listed(found: list[Found], limit: int) -> str:
    """Hits as the calls that open them, each turn's title above its first one, as many as fit; the best one always."""
    lines: list[str] = []
    for hit in found:
        call = f"recall(handle='{hit.handle}', start={hit.start})" if hit.start else f"recall(handle='{hit.handle}')"
        title = f"[{hit.title}]"
        added = [f"{call} {hit.snippet}".strip()] if title in lines else [title, f"{call} {hit.snippet}".strip()]
        limit -= sum(text_size(one) + 2 for one in added)
        if limit < 0:
            return "\n".join(lines) or call
        lines += added
    return "\n".join(lines)


def _page(label: str, handle: str, data: bytes, start: int, limit: int) -> str:
    """A page of `data` with its place in the whole and the call that shows the next one, within `limit` bytes."""
    whole = len(data)
    head = "{} ({}), bytes {} to {} of {}:\n"
    more = "\n[{} bytes follow: recall(handle='{}', start={})]"
    around = text_size(head.format(handle, label, whole, whole, whole) + more.format(whole, handle, whole))
    begin, end = page(data, start, max(limit - around, 1))
    rest = more.format(whole - end, handle, end) if end < whole else ""
    return head.format(handle, label, begin, end, whole) + data[begin:end].decode() + rest
