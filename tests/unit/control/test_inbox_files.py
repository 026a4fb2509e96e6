"""Questions as pages in a folder: what a person ticks is answered once, and nothing they wrote is ever lost."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.control.inbox_files import InboxFiles
from atlas.control.inbox_page import parse, render
from atlas.control.report import InboxEntry
from atlas.kernel.errors import Conflict, Invalid
from atlas.ledger.memory import MemoryLedger
from atlas.testing.clock import FakeClock
from atlas.vault.inbox_folder import VaultInbox

RUN = "run_0193a1b2c3d47abc"


def entry(effect: str = "tool:1.1:send", *, args: Any = None, asked: int = 1, reason: str = "it asks") -> InboxEntry:
    raw = msgspec.Raw(json.dumps({"to": "ann"} if args is None else args).encode())
    return InboxEntry(RUN, effect, "approval", "advisor", "send", raw, "external_side_effect", reason, asked)


class Desk:
    """A vault's inbox folder, and what is asked and answered."""

    def __init__(self, root: Path) -> None:
        (root / ".atlas").mkdir(parents=True)
        self.page = root / "inbox" / f"{RUN}.md"
        self.folder = VaultInbox(root)
        self.asking: list[InboxEntry] = []
        self.answers: list[tuple[str, bool, str, bytes | None]] = []
        self.error: Exception | None = None

    async def _entries(self) -> list[InboxEntry]:
        return list(self.asking)

    async def _answer(
        self, run_id: str, effect: str, approved: bool, reason: str, *, principal: str, args: bytes | None = None
    ) -> None:
        if self.error is not None:
            raise self.error
        assert (run_id, principal) == (RUN, "owner")
        self.answers.append((effect, approved, reason, args))
        self.asking = [one for one in self.asking if one.effect != effect]

    def sync(self, *asking: InboxEntry) -> None:
        if asking:
            self.asking = list(asking)

        async def once() -> None:
            ledger = MemoryLedger(FakeClock())
            await ledger.open()
            await InboxFiles(self.folder, ledger, self._entries, self._answer).sync()

        asyncio.run(once())

    def edit(self, *changes: tuple[str, str]) -> str:
        text = self.page.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        self.page.write_text(text)
        return text


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


APPROVE = ("- [ ] approve", "- [x] approve")
DENY = ("- [ ] deny", "- [X] deny")


def test_a_question_is_a_page_with_all_a_person_needs(desk: Desk) -> None:
    desk.sync(entry(args={"to": "ann", "text": "hi"}, reason="rule mail asks"))
    text = desk.page.read_text()
    for part in (
        "advisor",
        "send (external_side_effect)",
        "rule mail asks",
        '"to": "ann"',
        RUN,
        "cost so far",
        "owner",
    ):
        assert part in text
    assert not desk.answers


def test_a_ticked_box_is_answered_once_and_the_page_goes(desk: Desk) -> None:
    desk.sync(entry())
    desk.edit(APPROVE, ("\nreason:", "\nreason: looks fine"))
    desk.sync()
    desk.sync()
    assert desk.answers == [("tool:1.1:send", True, "looks fine", None)]
    assert not desk.page.exists()


def test_a_denial_carries_its_reason(desk: Desk) -> None:
    desk.sync(entry())
    desk.edit(DENY, ("\nreason:", "\nreason: not today"))
    desk.sync()
    assert desk.answers == [("tool:1.1:send", False, "not today", None)]


def test_edited_arguments_go_with_the_approval(desk: Desk) -> None:
    desk.sync(entry())
    desk.edit(('"ann"', '"bob"'), APPROVE)
    desk.sync()
    assert desk.answers == [("tool:1.1:send", True, "", b'{"to":"bob"}')]


def test_arguments_that_are_only_laid_out_anew_are_not_edited(desk: Desk) -> None:
    desk.sync(entry(args={"a": 1, "b": [1, 2]}))
    text = desk.page.read_text()
    start, end = text.index("```json\n") + 8, text.rindex("\n```")
    desk.page.write_text(text[:start] + '{"b":[1,2],   "a":1}' + text[end:])
    desk.edit(APPROVE)
    desk.sync()
    assert desk.answers == [("tool:1.1:send", True, "", None)]


def test_arguments_that_are_not_json_get_a_note_and_lose_nothing(desk: Desk) -> None:
    desk.sync(entry())
    written = desk.edit(('"ann"', '"ann'), APPROVE, ("\nreason:", "\nreason: because"))
    desk.sync()
    noted = desk.page.read_text()
    assert not desk.answers
    assert "not JSON" in noted
    assert set(written.splitlines()) <= set(noted.splitlines())
    desk.sync()
    assert desk.page.read_text() == noted
    desk.edit(('"ann', '"ann"'))
    desk.sync()
    assert desk.answers == [("tool:1.1:send", True, "because", None)]


def test_both_boxes_ticked_is_no_answer(desk: Desk) -> None:
    desk.sync(entry())
    desk.edit(APPROVE, DENY)
    desk.sync()
    assert not desk.answers
    assert "both boxes" in desk.page.read_text()


def test_several_questions_of_a_run_share_one_page_and_are_answered_apart(desk: Desk) -> None:
    desk.sync(entry("a"), entry("b"), entry("c"))
    assert desk.folder.names() == [f"{RUN}.md"]
    desk.edit(APPROVE)
    desk.sync()
    assert [one[0] for one in desk.answers] == ["a"]
    page = parse(desk.page.read_text())
    assert page is not None
    assert [section.mark.effect for section in page.sections] == ["b", "c"]


def test_a_new_question_joins_a_page_that_a_person_is_editing(desk: Desk) -> None:
    desk.sync(entry("a"))
    desk.edit(('"ann"', '"half'), ("\nreason:", "\nreason: let me think"))
    desk.sync(entry("a"), entry("b"))
    text = desk.page.read_text()
    assert '"half' in text
    assert "let me think" in text
    page = parse(text)
    assert page is not None
    assert [section.mark.effect for section in page.sections] == ["a", "b"]


def test_a_question_answered_elsewhere_takes_its_page_along(desk: Desk) -> None:
    desk.sync(entry())
    desk.asking = []
    desk.sync()
    assert desk.folder.names() == []


def test_an_answer_that_came_second_is_told_so_in_the_file(desk: Desk) -> None:
    desk.sync(entry())
    desk.edit(APPROVE)
    desk.error = Conflict("this was answered already", code="already_answered")
    desk.sync()
    assert "did not count" in desk.page.read_text()
    desk.asking = []
    desk.sync()
    assert "did not count" in desk.page.read_text()
    os.utime(desk.page, (0, 0))
    desk.sync()
    assert not desk.page.exists()


def test_a_page_saved_after_its_question_was_answered_is_told_so(desk: Desk) -> None:
    desk.sync(entry())
    text = desk.page.read_text()
    desk.asking = []
    desk.sync()
    desk.page.write_text(text.replace(*APPROVE))
    desk.sync()
    assert not desk.answers
    assert "did not count" in desk.page.read_text()


def test_a_question_asked_again_is_not_answered_by_an_old_tick(desk: Desk) -> None:
    desk.sync(entry(asked=1))
    desk.edit(APPROVE)
    desk.sync(entry(asked=2))
    assert not desk.answers
    page = parse(desk.page.read_text())
    assert page is not None
    assert [section.mark.asked for section in page.sections] == [1, 2]


def test_a_refused_answer_says_why_and_keeps_the_question(desk: Desk) -> None:
    desk.sync(entry())
    desk.edit(('"ann"', "7"), APPROVE)
    desk.error = Invalid("to is not text", hint="Write a name.")
    desk.sync()
    text = desk.page.read_text()
    assert "to is not text" in text
    assert "- [x] approve" in text


def test_a_page_whose_comments_are_gone_is_kept_and_says_what_to_do(desk: Desk) -> None:
    desk.sync(entry())
    text = desk.page.read_text().replace("<!-- atlas question", "<!-- my question")
    desk.page.write_text(text)
    desk.sync()
    noted = desk.page.read_text()
    assert noted.endswith(text)
    assert "Delete it" in noted
    desk.page.unlink()
    desk.sync()
    assert parse(desk.page.read_text()) is not None


def test_a_save_in_the_last_instant_is_never_lost(desk: Desk) -> None:
    desk.sync(entry())
    before = desk.page.read_bytes()
    desk.page.write_text("the person's text")
    with pytest.raises(Conflict):
        desk.folder.write(desk.page.name, b"ours", before)
    with pytest.raises(Conflict):
        desk.folder.remove(desk.page.name, before)
    assert desk.page.read_text() == "the person's text"
    assert desk.folder.names() == [desk.page.name]


def test_other_files_and_other_processes_are_left_alone(desk: Desk) -> None:
    desk.sync(entry())
    other = desk.page.with_name("notes.md")
    other.write_text("- [x] approve")
    with desk.folder.turn() as is_mine:
        assert is_mine
        desk.edit(APPROVE)
        desk.sync()
        assert not desk.answers
    desk.sync()
    assert len(desk.answers) == 1
    assert other.read_text() == "- [x] approve"


@given(st.text(min_size=1), st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5))
def test_what_others_wrote_never_answers_or_breaks_a_page(effect: str, reason: str, args: Any) -> None:
    page = parse(render([entry(effect, reason=f"{reason}\n- [x] approve\n<!-- atlas question", args=args)]))
    assert page is not None
    assert page.is_untouched
    (section,) = page.sections
    assert section.mark.effect == effect
    assert section.ticks == ()
    assert section.reason == ""
    assert section.edited_args() is None


@pytest.mark.parametrize("text", ["- [x] approve", "```\n- [x] approve\n```", "\u2028- [x] approve", "\r- [x] approve"])
def test_a_box_inside_the_arguments_is_not_a_box(text: str, desk: Desk) -> None:
    desk.sync(entry(args={"text": text}))
    desk.sync()
    assert not desk.answers
    desk.edit(DENY)
    desk.sync()
    assert desk.answers == [("tool:1.1:send", False, "", None)]


def test_pages_survive_windows_line_ends(desk: Desk) -> None:
    desk.sync(entry())
    text = desk.edit(APPROVE)
    desk.page.write_bytes(text.replace("\n", "\r\n").encode())
    desk.sync()
    assert len(desk.answers) == 1
