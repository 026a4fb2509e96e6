"""A finder: a scripted model that answers questions about the past with nothing but recall.

It looks at its request and at nothing else. It knows that a code is asked for, and of how codes were written down no
more than that a sentence has them: it searches with the question as it stands, opens the best hit (of equal ones the
newest, as its guide says; earlier questions are no answers), and looks once more where that does not answer. What it
answers is quoted.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

import msgspec

from atlas.kernel.model import Part, Request, Text, ToolCall, ToolResult

UNKNOWN: Final = "I do not know."
_WORD: Final = re.compile(r"\w+")
_HIT: Final = re.compile(r"recall\(handle='(t\d+(?:\.\d+)*)'(?:, start=(\d+))?\)(.*)")
_TITLE: Final = re.compile(r"\[(t\d+) .*\]$")
_MORE: Final = re.compile(r"\[\d+ bytes follow: recall\(handle='([^']+)', start=(\d+)\)\]")
_CODE: Final = re.compile(r"\b(?=\w*[A-Z])[\w-]*\d[\w-]*\b")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n")
_COMMON: Final = frozenset(
    _WORD.findall(
        "a an and as at by can did do does for from have how i in is it me of on our that the to us was what when where "
        "which who why you your"
    )
)
_ENOUGH: Final = 4
"""Two words of the question that stand together: what a sentence must share to be about the same thing."""


def next_move(request: Request) -> tuple[Part, ...]:
    """The next call, or the answer."""
    question = [part.text for part in request.messages[0].parts if isinstance(part, Text)][-1]
    wanted = _words(question)
    pages = [part.text for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
    if not pages:
        return (_call(request, find=question),)
    hits = _hits(pages[0], wanted)
    if not hits:
        return (Text(UNKNOWN),)
    if len(pages) == 1:
        handle, start = hits[0]
        return (_call(request, handle=handle, start=start),)
    answer = _answer(pages[1:], wanted)
    if answer is None and len(pages) == 2:
        return (_look_again(request, pages[1], hits),)
    return (Text(answer or UNKNOWN),)


def _answer(pages: list[str], wanted: list[str]) -> str | None:
    """The sentence with a code that shares most with the question; one that shares nothing only if it is alone."""
    sentences = [one.strip() for page in pages for one in _SENTENCE.split(page) if _CODE.search(one)]
    if not sentences:
        return None
    best = max(sentences, key=lambda one: _score(wanted, one))
    return best if _score(wanted, best) >= _ENOUGH or len(set(sentences)) == 1 else None


def _look_again(request: Request, page: str, hits: list[tuple[str, int]]) -> ToolCall:
    """The rest of what was opened; else the turn it belongs to, as a whole; else the next best hit."""
    handle = hits[0][0]
    more = _MORE.search(page)
    if more is not None:
        return _call(request, handle=more.group(1), start=int(more.group(2)))
    if "." in handle:
        return _call(request, handle=handle.partition(".")[0])
    handle, start = hits[min(1, len(hits) - 1)]
    return _call(request, handle=handle, start=start)


def _hits(page: str, wanted: list[str]) -> list[tuple[str, int]]:
    """The hits of a search, best first and of equal ones the newest; each turn's title stands above its first hit."""
    titles: dict[str, str] = {}
    found = []
    for line in page.splitlines():
        if title := _TITLE.match(line):
            titles[title.group(1)] = line
        if hit := _HIT.match(line):
            handle, start, text = hit.group(1), int(hit.group(2) or 0), hit.group(3)
            title_line = titles.get(handle.partition(".")[0], "")
            place = tuple(int(number) for number in handle[1:].split("."))
            is_answer = not text.endswith("?") and '?"' not in title_line
            found.append((is_answer, max(_score(wanted, text), _score(wanted, title_line)), place, handle, start))
    return [(handle, start) for *_, handle, start in sorted(found, reverse=True)]


def _score(wanted: list[str], text: str) -> int:
    """How much of a question a text shares: its words, and twice as much words that stand together in both."""
    words = _words(text)
    telling = set(wanted) - _COMMON
    together = set(pairwise(wanted)).intersection(pairwise(words))
    return len(telling.intersection(words)) + 2 * sum(telling.issuperset(pair) for pair in together)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _call(request: Request, **arguments: str | int) -> ToolCall:
    given = {name: one for name, one in arguments.items() if one}
    return ToolCall(f"call_{request.step}", "recall", msgspec.json.encode(given).decode())
