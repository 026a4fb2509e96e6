"""Handles, passages and hits: how anything a session recorded is named, found and brought back. Pure.

parse_handle      what a name such as t12.3.2 means
passages          a recorded text in pieces that search can hold
terms, rank       what to look for in a question, and which pieces answer it best
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from atlas.kernel.excerpt import one_line, page

PASSAGE_SIZE: Final = 1_500
OVERLAP: Final = 300
NEAR_SIZE: Final = 300
SNIPPET: Final = 240
MOST_WORDS: Final = 48
HITS_PER_HANDLE: Final = 2
HITS_RETOLD: Final = 2
_HANDLE: Final = re.compile(r"t(\d{1,9})(?:\.(\d{1,9})(?:\.(\d{1,9}))?)?")
# Thai, Lao, Burmese, Khmer, Japanese, Chinese, Korean: written without spaces, or with endings that grow on the words.
_UNSPACED: Final = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    r"\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowels and other signs that are written onto letters; without them a word would be another one.
_SIGNS: Final = "".join(
    chr(code)
    for code in (*range(0x700, 0x1CFF), *range(0x3099, 0x309B), *range(0xA800, 0xAC00))
    if unicodedata.category(chr(code)) in ("Mn", "Mc")
)
# The first group is a letter that is a word by itself.
_WORD: Final = re.compile(rf"((?=\w)[{_UNSPACED}][{_SIGNS}]*)|(?:(?![{_UNSPACED}])[\w{_SIGNS}])+")
# Accents of Latin, Greek and Cyrillic, points of Hebrew, vowels of Arabic and the stroke that lengthens its words: people
# write them or not. The breve stays where it makes a letter of its own.
_ACCENT: Final = re.compile(
    r"(?<![\u0418\u0438])\u0306|[\u0300-\u0305\u0307-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    r"\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u1ab0-\u1aff\u1dc0-\u1dff]"
)
# Letters and digits in another shape: joined, as Arabic was once printed, full or half width.
_SHAPED: Final = re.compile(r"[\ufb00-\ufdff\ufe70-\ufefc\uff01-\uffdc]+")
# Letters that no encoding takes apart; who cannot type them writes these, and so does half of German spelling.
_LETTER: Final = str.maketrans(
    {"ß": "ss", "ẞ": "SS", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ı": "i"}
    | {"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"}
)
_GAP: Final = "\u200b"
_SENTENCE: Final = re.compile(r"(?<=[.!?;])\s+|\n+|(?<=。|！|？|；)")
_SENTENCE_BYTES: Final = re.compile(_SENTENCE.pattern.encode())
_ASKING: Final = frozenset("?？؟")
_SPACE_BYTES: Final = re.compile(rb"\s+")
# Words that carry no meaning of their own would match everything.
_STOP: Final = frozenset(
    re.findall(
        r"\w+",
        "a about after again all also am an and any are as at be been before but by can come could did do does done for "
        "from get give go got had has have he her here him his how i if in into is it its just know let like made make "
        "may me might more my no not now of on one or our out over please said say she should so some still tell than "
        "that the their them then there these they this those to told too up us was we were what when where which while "
        "who whom why will with would you your",
    )
)

_Alike: TypeAlias = tuple[bool, bool, bool, int, tuple[str, ...]]
Provenance: TypeAlias = Literal["user", "claimed", "observed", "noted"]
"""Who is behind a recorded text: the user, the model's own words, a tool, or a note the model took."""


class Handle(msgspec.Struct, frozen=True):
    """`t12` is a turn, `t12.3` its third step, `t12.3.2` that step's second tool call.

    `t12.0` are the user's words, `t12.0.2` the second file that came with them.
    """

    turn: int
    step: int | None = None
    call: int | None = None

    def __str__(self) -> str:
        parts = [f"t{self.turn}", *(str(one) for one in (self.step, self.call) if one is not None)]
        return ".".join(parts)


def parse_handle(text: str) -> Handle | None:
    """The handle, or None when `text` is none."""
    match = _HANDLE.fullmatch(text.strip())
    if match is None:
        return None
    turn, step, call = (None if one is None else int(one) for one in match.groups())
    return Handle(turn or 0, step, call)


class Passage(msgspec.Struct, frozen=True):
    """A piece of something recorded, as search knows it.

    `start` is the byte at which it begins in the whole, `near` what stood before and after it, `at` its place in the
    ledger: a larger one is newer. `is_retold`: its turn did nothing but recall, so that it repeats what others say.
    """

    handle: str
    start: int
    title: str
    text: str
    at: int
    near: str = ""
    is_retold: bool = False


class Query(msgspec.Struct, frozen=True):
    """What to look for: words that carry meaning, and pairs of them that stand together."""

    words: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()


class Candidate(msgspec.Struct, frozen=True):
    """A passage that shares words with a question; a larger `score` is better."""

    passage: Passage
    score: float


class Found(msgspec.Struct, frozen=True):
    """A hit: where to look, and the words that speak for it. A turn whose title fits stands for all its passages."""

    handle: str
    start: int
    title: str
    snippet: str


class Indexed(msgspec.Struct, frozen=True):
    """A run as the index knows it: its turn, how far it is indexed, and whether it was over by then."""

    run_id: str
    turn: int
    title: str
    seq: int
    is_over: bool


class Index(Protocol):
    """Finds words in what was recorded. Derived: it can be deleted and is built again.

    A scope is what one search may see: a session, or a child run.
    """

    def reach(self, scope: str) -> int:
        """The last turn up to which every turn is indexed and over."""
        ...

    def run(self, scope: str, turn: int) -> Indexed | None:
        """The run of a turn, if it is indexed."""
        ...

    def titles(self, scope: str) -> list[str]:
        """The titles of the turns that are over, newest first."""
        ...

    def add(self, scope: str, run: Indexed, passages: Iterable[Passage], after: int) -> bool:
        """Adds what the run recorded after event `after`; 0 replaces all of it. False when another was faster."""
        ...

    def find(self, scope: str, query: Query, limit: int) -> list[Candidate]:
        """The passages that share most with the query; what is rare in the index weighs more.

        At most `limit` that were told for the first time, as many that were retold, and as many of those that say as much
        as the best of them at last.
        """
        ...

    def forget(self, run_id: str) -> None:
        """Takes a run out, so that it is read again when it is next needed."""
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


def passages(whole: Passage) -> Iterator[Passage]:
    """The passage in pieces that overlap, so that no sentence is cut apart unfindably."""
    data = whole.text.encode()
    begin, end = page(data, 0, PASSAGE_SIZE)
    if end == len(data):
        yield whole
        return
    while True:
        # What stands around a long text says little about its inside.
        yield replace(whole, start=begin, text=data[begin:end].decode(), near="")
        if end == len(data):
            return
        begin, end = page(data, _fresh_start(data, end - OVERLAP, end), PASSAGE_SIZE)


def _fresh_start(data: bytes, first: int, last: int) -> int:
    """Where a sentence, or else a word, begins between two places, so that no piece begins in the middle of one."""
    for end_of in (_SENTENCE_BYTES, _SPACE_BYTES):
        found = end_of.search(data, first, last)
        if found is not None and found.end() < last:
            return found.end()
    return first


def folded(text: str) -> str:
    """The text in the one form in which words are compared: however it was encoded, and whether it has accents or not."""
    if text.isascii():
        return text
    plain = _SHAPED.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    return unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFD", plain))).translate(_LETTER)


def spread(text: str) -> str:
    """The text for a store that finds words: folded, and where no spaces part them, each letter is made a word."""
    if text.isascii():
        return text
    parted = _WORD.sub(lambda word: f"{_GAP}{word[0]}{_GAP}" if word[1] else word[0], folded(text))
    return parted.replace(2 * _GAP, _GAP)


def gathered(text: str) -> str:
    """A text that was spread, as it was before, but for what folding changed."""
    return text if text.isascii() else text.replace(_GAP, "")


def _words(text: str) -> list[str]:
    """The words of a text as they are compared."""
    return [word[0].lower() for word in _WORD.finditer(folded(text))]


def query_of(question: str) -> Query:
    """The words of a question that carry its meaning, each once; all of them when none does."""
    said = _words(question)
    telling = dict.fromkeys(word for word in said if word not in _STOP)
    words = tuple(telling or dict.fromkeys(said))[:MOST_WORDS]
    pairs = dict.fromkeys(pair for pair in pairwise(said) if pair[0] in telling and pair[1] in telling)
    return Query(words, tuple(pairs)[:MOST_WORDS])


def rank(query: Query, candidates: Sequence[Candidate], limit: int) -> list[Found]:
    """The best hits first, each with the sentence that shares most with the question.

    Where a title shares more than any sentence of the passage, its turn is meant, and stands for all of its passages. What
    shares the same with the question says the same thing at another time, or asks it: of each the newest comes first.
    """
    scored: list[tuple[float, int, _Alike, Found]] = []
    for candidate in candidates:
        passage = candidate.passage
        share, sentence = _best_sentence(query, passage.text)
        found = Found(passage.handle, passage.start, passage.title, sentence)
        if is_titled := _share(query, passage.title) > share:
            found = Found(passage.handle.partition(".")[0], 0, passage.title, "")
        # What only stands beside the words of the question, or has other forms of them, is like nothing else.
        words = shared_words(query, passage) or (passage.handle,)
        is_question = not _ASKING.isdisjoint(found.snippet or found.title)
        alike = (passage.is_retold, is_titled, is_question, share, words)
        scored.append((candidate.score / (1 + passage.is_retold), passage.at, alike, found))
    scored.sort(key=lambda one: one[:2], reverse=True)
    told: dict[_Alike, list[Found]] = {}
    for _, _, alike, found in sorted(scored, key=lambda one: (one[1], one[0])):
        told.setdefault(alike, []).append(found)
    return _distinct([(alike[0], told[alike].pop()) for _, _, alike, _ in scored])[:limit]


def shared_words(query: Query, passage: Passage) -> tuple[str, ...]:
    """The words of the question that the passage or its title has."""
    said = {_stem(word) for word in _words(f"{passage.title} {passage.text}")}
    return tuple(word for word in query.words if _stem(word) in said)


def _distinct(ranked: list[tuple[bool, Found]]) -> list[Found]:
    """Without repetition: a text that two pieces share is shown once, and neither one text nor hearsay fills the page."""
    kept: list[Found] = []
    seen: set[tuple[str, str]] = set()
    times: Counter[str] = Counter()
    for is_retold, one in ranked:
        group, most = ("", HITS_RETOLD) if is_retold else (one.handle, HITS_PER_HANDLE)
        if (one.handle, one.snippet) not in seen and times[group] < most:
            times[group] += 1
            seen.add((one.handle, one.snippet))
            kept.append(one)
    return kept


def _best_sentence(query: Query, text: str) -> tuple[int, str]:
    """How much of the question the best sentence shares, and that sentence with what follows, on one line."""
    best, place, last = -1, 0, 0
    for begin, end in _sentences(text):
        share = _share(query, text[begin:end])
        if share > best:
            best, place, last = share, begin, end
    if best > 0 and last - place > SNIPPET:
        place = _telling_place(query, text, place, last)
    return max(best, 0), one_line(text[place : place + 4 * SNIPPET], SNIPPET)


def _telling_place(query: Query, text: str, begin: int, end: int) -> int:
    """Where in a sentence without end, as data and tables are, a part begins that shares most with the question."""
    part = SNIPPET * 3 // 4
    place = max(range(begin, end, part // 2), key=lambda at: _share(query, text[at : at + part]))
    return max(text.rfind(" ", max(begin, place - part // 6), place) + 1, place - part // 6, begin)


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for match in _SENTENCE.finditer(text):
        if match.start() > begin:
            yield begin, match.start()
        begin = match.end()
    if begin < len(text):
        yield begin, len(text)


def _share(query: Query, text: str) -> int:
    """How much of a question a text has: its words, and twice as much pairs that still stand together."""
    words = [_stem(word) for word in _words(text)]
    wanted = {_stem(word) for word in query.words}
    pairs = {(_stem(one), _stem(other)) for one, other in query.pairs}
    return len(wanted.intersection(words)) + 2 * len(pairs.intersection(pairwise(words)))


def _stem(word: str) -> str:
    """A word without the commonest endings; only ever compared with others of its kind."""
    for ending in ("'s", "ing", "ied", "ies", "ed", "es", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
