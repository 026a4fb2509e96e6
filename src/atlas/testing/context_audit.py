"""Holds what a session shows against what it recorded: pages, places, hits and notes. Each finding is a complaint.

It reads the events by itself: a fault of what shows them cannot hide in it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from atlas.control.account import error_text, handle_of, user_text
from atlas.control.history import bodies
from atlas.control.payload import unpack
from atlas.kernel.event import EffectReceived, RunCreated
from atlas.kernel.model import Asked, Request, Text, ToolResult
from atlas.kernel.port import Ledger
from atlas.kernel.tool import ToolOutcome

ReadPage: TypeAlias = Callable[[str, int], Awaitable[str]]
"""What recall answers to a handle and a start."""

_HEAD: Final = re.compile(r"\S+ \(([^)]*)\), bytes (\d+) to (\d+) of (\d+):\n")
_MORE: Final = re.compile(r"\n\[(\d+) bytes follow: recall\(handle='([^']+)', start=(\d+)\)\]\Z")
_GAP: Final = re.compile(r"\n\[\.\.\. (\d+) bytes in all; recall\(handle='([^']+)', start=(\d+)\) shows")
_HIT: Final = re.compile(r"recall\(handle='([^']+)'(?:, start=(\d+))?\) \((\w+)\) ?(.*)")
_COMPARED: Final = 200
_TITLED: Final = 80


class _Page(msgspec.Struct, frozen=True):
    label: str
    begin: int
    end: int
    whole: int
    data: bytes
    onward: tuple[str, int] | None


async def recorded_texts(ledger: Ledger, run_id: str, turn: int) -> dict[str, str]:
    """The user's words, the model's words of each step, and what each tool call came to, by handle."""
    found: dict[str, str] = {}
    for _, body in bodies(await ledger.events(run_id)):
        if isinstance(body, RunCreated):
            found[f"t{turn}.0"] = user_text(await unpack(ledger, body.input))
        elif isinstance(body, EffectReceived) and (handle := handle_of(body.effect, turn)) is not None:
            if body.error is not None:
                text = error_text(body.error)
            elif handle.call is not None:
                text = msgspec.json.decode(await unpack(ledger, body.result), type=ToolOutcome).text
            else:
                reply = msgspec.json.decode(await unpack(ledger, body.result), type=Asked).reply
                text = "".join([part.text for part in reply.parts if isinstance(part, Text)])
            found[str(handle)] = text
    return found


async def page_problems(read: ReadPage, handle: str, recorded: str | None) -> list[str]:
    """What is wrong with the pages behind a handle, read as a model does: each one from where the last one said.

    Together they are what was recorded; of a step, its words come first, and `recorded` is no more than these.
    """
    data, start, whole = b"", 0, None
    while True:
        page = _page(await read(handle, start))
        if page is None:
            return [f"the handle {handle} leads nowhere from {start} on"]
        if (page.begin, page.end) != (len(data), len(data) + len(page.data)) or page.whole != (whole or page.whole):
            return [f"{handle}: the page from {start} on is not bytes {page.begin} to {page.end} of {page.whole}"]
        data, whole = data + page.data, page.whole
        if page.onward is None:
            break
        if page.onward[0] != handle or not page.data:
            return [f"{handle}: the page from {start} on does not lead to the next one"]
        start = page.onward[1]
    if len(data) != whole:
        return [f"{handle}: its pages are {len(data)} bytes of {whole}"]
    told = (recorded or "").encode()
    is_step = handle.count(".") == 1 and not handle.endswith(".0")
    if recorded is not None and (not data.startswith(told) if is_step else data != told):
        return [f"{handle}: its pages are not what was recorded"]
    return []


def place_problems(request: Request, recorded: Mapping[str, str]) -> tuple[int, list[str]]:
    """How many shortened texts say where they go on, and which of these do not go on where they broke off."""
    checked, problems = 0, []
    for text in shown_texts(request):
        for gap in _GAP.finditer(text):
            size, handle, start = int(gap[1]), gap[2], int(gap[3])
            if handle not in recorded:
                continue
            told = recorded[handle].encode()
            before = text[: gap.start()].encode()[-min(_COMPARED, start) :] if start else b""
            if b"bytes in all; recall(" in before:
                continue  # shortened twice: what stands here is the inside of another gap
            checked += 1
            is_whole = size == len(told) or handle.count(".") == 1
            if not is_whole or told[:start][-len(before) :] != before or not before:
                problems.append(f"{handle} does not go on at {start}, where it was cut")
    return checked, problems


async def hit_problems(read: ReadPage, listing: str) -> list[str]:
    """Which hits of a search do not lead to the words that they show, or say of somebody else that they are his."""
    problems = []
    for line in listing.splitlines():
        hit = _HIT.fullmatch(line)
        if hit is None:
            problems += [] if line.startswith("[t") else [f"no hit and no title: {line[:60]!r}"]
            continue
        page = _page(await read(hit[1], int(hit[2] or 0)))
        told = "" if page is None else " ".join(page.data.decode().split())
        if page is None or hit[4].removesuffix("...") not in told:
            problems.append(f"{hit[1]} from {hit[2] or 0} on does not show {hit[4][:60]!r}")
        elif page.label != hit[3]:
            problems.append(f"{hit[1]} is {page.label} and not {hit[3]}")
    return problems


def order_problem(listing: str, turns: Sequence[int]) -> list[str]:
    """Whether, of turns that say the same of what was looked for, another one than the newest is hit first."""
    said = {f"t{turn}" for turn in turns}
    hits = [hit[1].partition(".")[0] for hit in map(_HIT.match, listing.splitlines()) if hit is not None]
    first = next((hit for hit in hits if hit in said), None)
    if first == f"t{max(turns)}":
        return []
    return [f"of {sorted(said)} the newest is not hit first: {listing[:100]!r}"]


def note_problems(request: Request, carried: Iterable[str], closed: Iterable[str]) -> list[str]:
    """Which open notes of earlier turns a request does not show, and which closed ones it shows."""
    lines = {line for text in shown_texts(request) for line in text.splitlines()}
    missing = [f"an open note is not shown: {one}" for one in carried if one not in lines]
    return missing + [f"a closed note is still shown: {one}" for one in closed if one in lines]


def said_problems(request: Request, said: Iterable[str]) -> list[str]:
    """What was said last that a request does not show word for word; how it begins is in its turn's title too."""
    shown = "\n".join(shown_texts(request))
    pieces = [text[_TITLED : _TITLED + _COMPARED // 4] for text in said]
    return [f"what was said last is not shown: {piece!r}" for piece in pieces if piece not in shown]


def shown_texts(request: Request) -> list[str]:
    """Everything in a request that the model reads as text."""
    return [part.text for one in request.messages for part in one.parts if isinstance(part, Text | ToolResult)]


def _page(text: str) -> _Page | None:
    head = _HEAD.match(text)
    if head is None:
        return None
    more = _MORE.search(text, head.end())
    body = text[head.end() : more.start() if more else len(text)]
    begin, end, whole = int(head[2]), int(head[3]), int(head[4])
    return _Page(head[1], begin, end, whole, body.encode(), (more[2], int(more[3])) if more and end < whole else None)
