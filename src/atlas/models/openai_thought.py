"""Thoughts over chat completions: how they came is how they must go back, because servers refuse another's way.

It is carried in the signature of a `Thinking`, under a mark of ours, so that it is recorded with the reply and no other
wire takes it for its own. A thought without any came as `reasoning_content`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from atlas.kernel.model import Part, Thinking

Field: TypeAlias = Literal["reasoning_content", "reasoning"]
_MARK: Final = "chat:"


class Way(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a thought came."""

    field: Field = "reasoning_content"

    @property
    def signature(self) -> str:
        """What a `Thinking` carries of it."""
        return "" if self == _USUAL else _MARK + msgspec.json.encode(self).decode()


_USUAL: Final = Way()


def given_back(parts: Iterable[Part]) -> dict[str, Any]:
    """The fields of a message that give its thoughts back as they came; those that another wire signed are left out."""
    fields: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, Thinking) and (way := _way(part)) is not None:
            fields[way.field] = fields.get(way.field, "") + part.text
    return {name: value for name, value in fields.items() if value}


def _way(thought: Thinking) -> Way | None:
    if thought.signature.startswith(_MARK):
        return msgspec.json.decode(thought.signature.removeprefix(_MARK), type=Way)
    return None if thought.signature else _USUAL
