"""The page-in tool of prompt agents: brings back anything the session recorded, by handle or by search, bounded.

    by_handle     exactly what was recorded, a page at a time
    by_words      where the words of a question were recorded, best first
    catch_up      what was recorded since the last search becomes findable

What a turn sees is everything of its session before it and its own steps, but not its own question and not what it
recalled; in a branch also what the session that it left had recorded by then. A child run sees itself only.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from atlas.control.account import RECALL_TOOL, Account, Entry, events_of, origin, read, revises, session_before
from atlas.control.branch import Stretch, stretches_before
from atlas.kernel.context import NOTES, TURNS
from atlas.kernel.digest import carried
from atlas.kernel.excerpt import page
from atlas.kernel.media import Given
from atlas.kernel.port import Ledger
from atlas.kernel.recall import (
    NEAR_SIZE,
    Candidate,
    Found,
    Handle,
    Index,
    Indexed,
    Passage,
    Query,
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
            return ToolOutcome(_UNKNOWN.format(handle[:40]), is_error=True)
        text = _page(shown.label, handle.strip(), shown.text.encode(), start, int(limit * rate))
        return ToolOutcome(text, picture=shown.picture)

    async def by_words(self, run_id: str, words: str, limit: int, rate: float) -> str:
        """The passages that share most with the words, best first, each with the handle that shows it whole."""
        row = await self._ledger.run(run_id)
        await self.catch_up(row)
        query = query_of(words)
        candidates = await self._candidates(_scope(row), query, row.turn)
        for stretch in await stretches_before(self._ledger, row.session_id, row.turn):
            if stretch.session_id != row.session_id:
                candidates += await self._candidates(stretch.session_id, query, stretch.last)
        found = rank(query, candidates, HITS)
        if not found:
            return "Nothing recorded matches these words. Try others."
        return _listed(found, int(limit * rate))

    async def forget(self, run_id: str) -> None:
        """Takes a run out of the index, because something of it was erased; what is left is indexed again."""
        await asyncio.to_thread(self._index.forget, run_id)

    async def catch_up(self, row: RunRow) -> None:
        """Indexes what was recorded since the last search: turns before this one, and its own steps so far."""
        async with self._catching_up:
            for stretch in await stretches_before(self._ledger, row.session_id, row.turn):
                for one in await self._turns(stretch):
                    await self._learn(stretch.session_id, one)
            await self._learn(_scope(row), row)

    async def _learn(self, scope: str, row: RunRow) -> None:
        known = await asyncio.to_thread(self._index.run, scope, row.turn)
        if known is None or not known.is_over:
            await self._add(scope, row, known.seq if known else 0)

    async def _candidates(self, scope: str, query: Query, last: int) -> list[Candidate]:
        """The passages of a scope up to a turn; more are looked at while those of later turns stand in their way."""
        limit = CANDIDATES
        while True:
            found = await asyncio.to_thread(self._index.find, scope, query, limit)
            kept = [one for one in found if _turn_of(one.passage.handle) <= last]
            if all(_is_enough(found, kept, limit, is_retold) for is_retold in (False, True)):
                return kept
            limit *= 4

    async def _shown(self, row: RunRow, handle: str) -> _Shown | None:
        if handle == TURNS:
            await self.catch_up(row)
            return _Shown("newest first", "\n".join(await self._titles(row)))
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
        for stretch in await stretches_before(self._ledger, row.session_id, row.turn):
            if stretch.first <= turn <= stretch.last:
                known = await asyncio.to_thread(self._index.run, stretch.session_id, turn)
                if known is None:
                    await self.catch_up(row)
                    known = await asyncio.to_thread(self._index.run, stretch.session_id, turn)
                return known.run_id if known else None
        return None

    async def _titles(self, row: RunRow) -> list[str]:
        """What the turns before this one were about, newest first."""
        found: list[str] = []
        for stretch in await stretches_before(self._ledger, row.session_id, row.turn):
            titles = await asyncio.to_thread(self._index.titles, stretch.session_id)
            found += [title for title in titles if _turn_of(title.partition(" ")[0]) <= stretch.last]
        return found

    async def _notes(self, row: RunRow) -> str:
        """The open notes: what the last turn left, and what this one changed."""
        session = await session_before(self._ledger, row.session_id, row.turn)
        account = await read(self._ledger, row.turn, await events_of(self._ledger, row.run_id))
        notes = carried(session.notes, account.notes())
        return "\n".join(note.line for note in notes) or "There are none."

    async def _turns(self, stretch: Stretch) -> list[RunRow]:
        """The turns of a stretch that are over and may not be indexed yet, oldest first."""
        reach = await asyncio.to_thread(self._index.reach, stretch.session_id)
        missing = set(range(max(reach + 1, stretch.first), stretch.last + 1))
        if stretch.first > 1:  # turn 1 is another session's, so that the reach never goes beyond it
            titles = await asyncio.to_thread(self._index.titles, stretch.session_id)
            missing -= {_turn_of(title.partition(" ")[0]) for title in titles}
        found: list[RunRow] = []
        before = ""
        while missing:
            limit = min(len(missing) + 8, _PAGE)
            query = RunQuery(session_id=stretch.session_id, roots_only=True, before=before, limit=limit)
            page_of_runs = await self._ledger.runs(query)
            found += [one for one in page_of_runs.runs if one.turn in missing and one.state in TERMINAL]
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


def _turn_of(handle: str) -> int:
    parsed = parse_handle(handle)
    return parsed.turn if parsed else 0


def _is_enough(found: list[Candidate], kept: list[Candidate], limit: int, is_retold: bool) -> bool:
    """Whether looking at more passages of a kind would bring nothing: there are no more, or enough are kept."""
    seen, left = (sum(one.passage.is_retold == is_retold for one in some) for some in (found, kept))
    return seen < limit or left >= CANDIDATES


def _listed(found: list[Found], limit: int) -> str:
    """Hits as the calls that open them and who is behind them, each turn's title above its first one, as many as fit; the best one always."""
    lines: list[str] = []
    for hit in found:
        call = f"recall(handle='{hit.handle}', start={hit.start})" if hit.start else f"recall(handle='{hit.handle}')"
        title = f"[{hit.title}]"
        parsed = parse_handle(hit.handle)
        line = f"{call} ({origin(parsed)}) {hit.snippet}".strip() if parsed else call
        added = [line] if title in lines else [title, line]
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
