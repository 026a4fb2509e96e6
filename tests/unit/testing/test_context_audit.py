"""The bench of context can fail: each check lets pass what is right and names what is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from atlas.kernel.excerpt import page, shorten
from atlas.kernel.model import Message, Part, Request, Text, ToolResult
from atlas.testing.context_audit import (
    ReadPage,
    hit_problems,
    note_problems,
    order_problem,
    page_problems,
    place_problems,
    said_problems,
)

TEXT = "".join(f"Line {number} says one thing: ü.\n" for number in range(400))


def pager(text: str, *, skips: int = 0, cuts: int = 0, leads: Callable[[int], int] = lambda start: start) -> ReadPage:
    """Pages of `text` as recall makes them, but for what a test breaks."""
    data = text.encode()

    async def read(handle: str, start: int) -> str:
        if handle != "t1.1.1":
            return f"There is no {handle!r}."
        begin, end = page(data, start + (skips if start else 0), 900)
        more = (
            f"\n[{len(data) - end} bytes follow: recall(handle='{handle}', start={leads(end)})]"
            if end < len(data)
            else ""
        )
        return f"{handle} (observed), bytes {begin} to {end} of {len(data)}:\n{data[begin : end - cuts].decode()}{more}"

    return read


def request(*parts: Part) -> Request:
    return Request("m", (), (Message("user", parts),))


def test_pages_that_make_up_what_was_recorded_are_right() -> None:
    assert asyncio.run(page_problems(pager(TEXT), "t1.1.1", TEXT)) == []
    assert asyncio.run(page_problems(pager("short"), "t1.1.1", None)) == []


@pytest.mark.parametrize(
    "read, problem",
    [
        (pager(TEXT, skips=40), "is not bytes"),
        (pager(TEXT, cuts=4), "is not bytes"),
        (pager(TEXT, leads=lambda start: start + 1_000), "is not bytes"),
        (pager(TEXT, leads=lambda start: 0), "is not bytes"),
        (pager(TEXT[:9_000] + TEXT[9_100:]), "not what was recorded"),
        (pager(TEXT.replace("Line 300", "Line 003")), "not what was recorded"),
    ],
)
def test_pages_that_leave_out_or_change_anything_are_found(read: ReadPage, problem: str) -> None:
    [found] = asyncio.run(page_problems(read, "t1.1.1", TEXT))
    assert problem in found


def test_a_handle_that_leads_nowhere_is_found() -> None:
    [found] = asyncio.run(page_problems(pager(TEXT), "t1.1.2", None))
    assert "leads nowhere" in found


def test_a_text_has_to_go_on_where_it_was_cut() -> None:
    shown = shorten(TEXT, "t1.1.1", 900)
    assert place_problems(request(ToolResult("c", f"[data x from t1]\n{shown}")), {"t1.1.1": TEXT}) == (1, [])
    head = shown.partition("\n[...")[0]
    start = len(head.encode())
    for wrong in (
        shown.replace(f"start={start}", f"start={start + 1_000}"),
        shown.replace(head, head[:-40]),
        shown.replace(f"{len(TEXT.encode())} bytes in all", "900 bytes in all"),
    ):
        assert wrong != shown
        checked, [found] = place_problems(request(Text(wrong)), {"t1.1.1": TEXT})
        assert checked == 1
        assert "does not go on" in found


def test_a_hit_has_to_lead_to_the_words_it_shows() -> None:
    start = len(TEXT[: TEXT.index("Line 200")].encode())
    listing = f"[t1 title]\nrecall(handle='t1.1.1', start={start}) (observed) Line 200 says one thing: ü. Line 201 s..."
    assert asyncio.run(hit_problems(pager(TEXT), listing)) == []
    for wrong in (
        listing.replace(f"start={start}", f"start={start + 1_000}"),
        listing.replace("t1.1.1", "t1.1.3"),
        listing.replace("(observed)", "(user)"),
        listing.replace("(observed) ", ""),
    ):
        assert wrong != listing
        assert len(asyncio.run(hit_problems(pager(TEXT), wrong))) == 1


def test_of_equal_hits_the_newer_has_to_be_first() -> None:
    listing = (
        "[t9 title]\nrecall(handle='t9.1.1') (observed) The dial.\n[t1 title]\nrecall(handle='t1.1.1') (user) The dial."
    )
    assert order_problem(listing, (1, 9)) == order_problem(listing, (1,)) == []
    assert len(order_problem(listing, (1, 9, 12))) == 1
    assert len(order_problem("Nothing recorded matches these words.", (9,))) == 1


def test_open_notes_and_what_was_said_last_have_to_be_shown_and_closed_notes_must_not() -> None:
    answer = "That is done. " + "word " * 60
    shown = request(Text("Open notes:\n- [ ] requirement a: check\n\nthe question"), Text(f"t1 you:\n{answer}"))
    assert note_problems(shown, ["- [ ] requirement a: check"], ["- [ ] requirement b: check"]) == []
    assert len(note_problems(shown, ["- [ ] requirement b: check"], ["- [ ] requirement a: check"])) == 2
    assert said_problems(shown, ["short", answer]) == []
    assert len(said_problems(shown, [answer, "That is done. " + "other " * 60])) == 1
