"""The inbox as files: a page for each run that asks, written after the commit, read back when a person has ticked.

    sync     read the pages -> give the answers that are ticked -> write what is asked now, remove what is closed

A tick goes the same way as `atlas approve`, under the same id, so whichever comes first counts and the other is told.
A page is only ever replaced as it was read: what a person saved in the meantime is looked at the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Final, Protocol

import msgspec

from atlas.control.history import bodies
from atlas.control.inbox_page import Asked, Page, Section, by_run, lost_note, parse, render, revise, unreadable
from atlas.control.report import InboxEntry
from atlas.control.signal import AnswerBody
from atlas.kernel.errors import AtlasError, Conflict, LedgerUnavailable, NotFound, Unavailable
from atlas.kernel.event import EffectAnswered
from atlas.kernel.port import Ledger
from atlas.kernel.principal import OWNER

LOOK_S: Final = 0.5
IDLE_S: Final = 5.0
PAUSE_S: Final = 0.25
READ_S: Final = 24 * 3600.0
_SUFFIX: Final = ".md"


class InboxFolder(Protocol):
    """The folder of pages. Every method raises Unavailable when the folder cannot be used."""

    def names(self) -> list[str]:
        """The names of all pages."""
        ...

    def stamp(self) -> object:
        """Something that differs after any page was changed, made or deleted."""
        ...

    def read(self, name: str) -> bytes | None:
        """A page's bytes, if there is such a page."""
        ...

    def age_s(self, name: str) -> float:
        """How long a page has not been changed."""
        ...

    def write(self, name: str, data: bytes, replaces: bytes | None) -> None:
        """Makes `data` the page, all or nothing; Conflict when it is not what it is to replace (None: no page)."""
        ...

    def remove(self, name: str, data: bytes) -> None:
        """Removes a page; Conflict, and nothing is lost, when its bytes are not these."""
        ...

    def turn(self) -> AbstractContextManager[bool]:
        """One process at a time: True inside when it is this one's turn."""
        ...


class InboxFiles:
    """Keeps the folder and the ledger's inbox in step."""

    def __init__(
        self,
        folder: InboxFolder,
        ledger: Ledger,
        entries: Callable[[], Awaitable[list[InboxEntry]]],
        answer: Callable[..., Awaitable[None]],
    ) -> None:
        self._folder = folder
        self._ledger = ledger
        self._entries = entries
        self._answer = answer
        self._turn = asyncio.Lock()
        self._seen: object = None

    async def watch(self) -> None:
        """Keeps them in step until it is cancelled: after every commit, and soon after a page was saved."""
        async with self._ledger.wake() as wake:
            is_news = True
            while True:
                with suppress(Unavailable):
                    # An editor that saves a file tells nobody, so the folder is looked at while it has pages.
                    if is_news or self._folder.stamp() != self._seen:
                        await self.sync()
                        await asyncio.sleep(PAUSE_S)  # a thousand commits in a moment are one piece of news
                is_news = await wake.wait(LOOK_S if self._has_pages() else IDLE_S)

    async def read_answers(self) -> None:
        """For a command at its start: gives the answers that are ticked; does nothing where there are no pages."""
        if self._has_pages():
            await self.sync()

    async def sync(self) -> None:
        """Gives every answer that is ticked and brings the pages up to date; a page that cannot be written is left."""
        async with self._turn:
            try:
                with self._folder.turn() as is_mine:
                    if is_mine:
                        await self._sync()
                        self._seen = self._folder.stamp()
            except LedgerUnavailable:
                raise
            except Unavailable:
                return  # the pages are a view; whoever cannot write them can still work

    async def _sync(self) -> None:
        asking = by_run(await self._entries())
        names = set(self._folder.names())
        for name in sorted(names):
            data = self._folder.read(name)
            if data is not None and name.endswith(_SUFFIX) and name.startswith("run_"):
                await self._visit(name, data, asking.get(name.removesuffix(_SUFFIX), []))
        for run_id, entries in asking.items():
            if f"{run_id}{_SUFFIX}" not in names:
                self._write(f"{run_id}{_SUFFIX}", render(entries), None)

    async def _visit(self, name: str, data: bytes, entries: list[InboxEntry]) -> None:
        """One page: its answers are given, then it is changed to what is asked now, or removed."""
        text = data.decode("utf-8", "replace")
        page = parse(text)
        if page is None or f"{page.head.run}{_SUFFIX}" != name:
            if entries:
                self._write(name, unreadable(text), data)
            return
        asking = {(entry.effect, entry.created_us): entry for entry in entries}
        outcomes = await self._give_answers(page, asking)
        present = {section.asked for section in page.sections}
        is_old = self._folder.age_s(name) > READ_S

        def keep(section: Section) -> Section | None:
            outcome = outcomes.get(section.asked)
            if outcome is not None:
                return section.noted(outcome) if outcome else None
            if section.asked in asking:
                return section
            return section if section.is_lost and not is_old else None

        new = [entry for asked, entry in asking.items() if asked not in present and outcomes.get(asked) != ""]
        revised = revise(page, keep, new)
        if revised is None:
            with suppress(Conflict):
                self._folder.remove(name, data)
        elif revised.sections != page.sections:
            self._write(name, revised.text(), data)

    async def _give_answers(self, page: Page, asking: Mapping[Asked, InboxEntry]) -> dict[Asked, str]:
        """What became of each ticked box: nothing to say when it counted, else what the person is told."""
        outcomes: dict[Asked, str] = {}
        for section in page.sections:
            if section.ticks and not section.is_lost:
                outcomes[section.asked] = await self._give(page.head.run, section, section.asked in asking)
        return outcomes

    async def _give(self, run_id: str, section: Section, is_asked: bool) -> str:
        if len(section.ticks) > 1:
            return "both boxes are ticked; leave one."
        approved = section.ticks[0] == "approve"
        effect = section.mark.effect
        if not is_asked:
            return lost_note(await self._verdict(run_id, effect))
        try:
            args = section.edited_args() if approved else None
        except ValueError as error:
            return f"{error}. Nothing was answered."
        try:
            edited = {} if args is None else {"args": args}
            await self._answer(run_id, effect, approved, section.reason, principal=OWNER, **edited)
        except (Conflict, NotFound) as error:
            if error.reason in ("already_answered", "not_found"):
                return lost_note(await self._verdict(run_id, effect))
            return f"{error.message}. {error.hint}".strip()
        except Unavailable:
            raise
        except AtlasError as error:
            return f"{error.message}. {error.hint}".strip()
        return ""

    async def _verdict(self, run_id: str, effect: str) -> str:
        """What was answered, and by whom, as far as the record says."""
        with suppress(NotFound):
            for signal in await self._ledger.signals(run_id):
                if signal.kind == "answer":
                    body = msgspec.json.decode(signal.body, type=AnswerBody)
                    if body.effect == effect:
                        return _said(body.approved, signal.principal)
            answered = [
                body for _, body in bodies(await self._ledger.events(run_id)) if isinstance(body, EffectAnswered)
            ]
            for body_ in reversed(answered):
                if body_.effect == effect:
                    return _said(body_.approved, body_.by)
        return "it is no longer asked"

    def _write(self, name: str, text: str, replaces: bytes | None) -> None:
        data = text.encode("utf-8", "replace")
        if data != replaces:
            with suppress(Conflict):  # the person was faster; the next look sees what they wrote
                self._folder.write(name, data, replaces)

    def _has_pages(self) -> bool:
        try:
            return bool(self._folder.names())
        except Unavailable:
            return False


def _said(approved: bool, by: str) -> str:
    return f"{'approved' if approved else 'denied'} by {by}"
