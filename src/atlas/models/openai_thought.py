"""Thoughts over chat completions: how they came is how they must go back, because servers refuse another's way.

It is carried in the signature of a `Thinking`, under a mark of ours, so that it is recorded with the reply and no other
wire takes it for its own. A thought without any came as `reasoning_content`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from atlas.kernel.model import Part, Thinking

Field: TypeAlias = Literal["reasoning_content", "reasoning"]
_MARK: Final = "chat:"
_WORDS: Final[Mapping[str, str]] = {"reasoning.text": "text", "reasoning.summary": "summary"}


class Way(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a thought came: by which name, or in `details`, which OpenRouter and others sign, and want back unchanged.

    `calls` is what Gemini signs each call with, by the call's id; it refuses a call that comes back without.
    """

    field: Field = "reasoning_content"
    details: tuple[dict[str, Any], ...] = ()
    calls: dict[str, Any] = {}

    @property
    def signature(self) -> str:
        """What a `Thinking` carries of it."""
        return "" if self == _USUAL else _MARK + msgspec.json.encode(self).decode()


_USUAL: Final = Way()


class Details:
    """Collects the details of a thought, whose words come piece by piece."""

    def __init__(self) -> None:
        self._heads: list[dict[str, Any]] = []
        self._words: list[list[str]] = []

    def hear(self, said: Any) -> str:
        """Takes what a piece of an answer says of them; the words in it."""
        heard = ""
        for piece in said if isinstance(said, list) else ():
            if isinstance(piece, dict):
                heard += self._add(piece)
        return heard

    def _add(self, piece: dict[str, Any]) -> str:
        word = piece.get(_word_of(piece))
        word = word if isinstance(word, str) else ""
        if self._heads and _is_one(self._heads[-1], piece):
            self._heads[-1] |= {name: value for name, value in piece.items() if value is not None}
            self._words[-1].append(word)
        else:
            self._heads.append(dict(piece))
            self._words.append([word])
        return word

    @property
    def text(self) -> str:
        """All their words."""
        return "".join(word for words in self._words for word in words)

    def whole(self) -> tuple[dict[str, Any], ...]:
        """Each of them in one piece."""
        return tuple(
            head | {_word_of(head): text} if (text := "".join(words)) else head
            for head, words in zip(self._heads, self._words, strict=True)
        )


def _word_of(detail: Mapping[str, Any]) -> str:
    return _WORDS.get(str(detail.get("type")), "")


def _is_one(detail: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """Whether a piece goes on with a detail."""
    same = all(detail.get(name) == piece.get(name) for name in ("type", "index"))
    return same and piece.get("index") is not None and bool(_word_of(piece))


def given_back(parts: Iterable[Part]) -> dict[str, Any]:
    """The fields of a message that give its thoughts back as they came; those that another wire signed are left out."""
    fields: dict[str, Any] = {}
    for part in parts:
        if not isinstance(part, Thinking) or (way := _way(part)) is None:
            continue
        if way.details:  # they hold the words
            fields["reasoning_details"] = [*fields.get("reasoning_details", ()), *way.details]
        else:
            fields[way.field] = fields.get(way.field, "") + part.text
    return {name: value for name, value in fields.items() if value}


def signed_calls(parts: Iterable[Part]) -> dict[str, Any]:
    """What the calls of a message were signed with, by id."""
    ways = [_way(part) for part in parts if isinstance(part, Thinking)]
    return {call: signed for way in ways if way is not None for call, signed in way.calls.items()}


def _way(thought: Thinking) -> Way | None:
    if thought.signature.startswith(_MARK):
        return msgspec.json.decode(thought.signature.removeprefix(_MARK), type=Way)
    return None if thought.signature else _USUAL
