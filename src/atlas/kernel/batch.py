"""The order in which the calls of one batch run: side by side where they cannot get in each other's way. Pure.

    claim(definition, args)              what a call touches
    ready(claims, started, finished)     which calls may start now

A resource is written `[read:|write:]name`, `name` being a path such as `file:notes/a.md` or a plain word; `{param}`
stands for an argument. Without a mode it is read by a read-only tool and written by any other. `*` is everything, and a
path includes all below it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from atlas.kernel.event import EffectClass
from atlas.kernel.tool import ToolDefinition

EVERYTHING: Final = "*"
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")


class Touch(msgspec.Struct, frozen=True):
    """One resource: its path, the empty one being everything, and whether it is written."""

    path: tuple[str, ...]
    is_write: bool


class Claim(msgspec.Struct, frozen=True):
    """All that a call touches."""

    touches: tuple[Touch, ...] = ()

    @property
    def is_alone(self) -> bool:
        """Whether it writes everything, so that nothing may run beside it, not even what touches nothing."""
        return any(touch.is_write and not touch.path for touch in self.touches)


def claim(definition: ToolDefinition, args: Mapping[str, Any]) -> Claim:
    """What a call with these arguments touches; everything, in the tool's mode, when it does not declare it."""
    if definition.resources is None:
        return Claim((Touch((), is_write=definition.effect != "read_only"),))
    named = {name for text in definition.resources for name in placeholders(text)}
    known = args if named <= args.keys() else {**_defaults(definition), **args}
    return claim_of([one for text in definition.resources for one in _filled(text, known)], definition.effect)


def claim_of(resources: Iterable[str], effect: EffectClass) -> Claim:
    """The claim that these resources make for a tool of this effect class."""
    return Claim(tuple(dict.fromkeys([_touch(text, effect) for text in resources])))


def conflicts(one: Claim, other: Claim) -> bool:
    """Whether two calls may get in each other's way: one writes what the other touches, or something above or below."""
    if one.is_alone or other.is_alone:
        return True
    return any(
        (mine.is_write or theirs.is_write) and _overlaps(mine.path, theirs.path)
        for mine in one.touches
        for theirs in other.touches
    )


def ready(claims: Sequence[Claim], started: Collection[int], finished: Collection[int]) -> tuple[int, ...]:
    """The calls that may start now, in order: no earlier call that has not finished conflicts with them.

    Earlier calls that have not even started count too, so that no call is overtaken by one that it conflicts with.
    """
    found: list[int] = []
    unfinished: list[Claim] = []
    for number, mine in enumerate(claims):
        if number in finished:
            continue
        if number not in started and not any(conflicts(mine, earlier) for earlier in unfinished):
            found.append(number)
        unfinished.append(mine)
    return tuple(found)


def placeholders(resource: str) -> tuple[str, ...]:
    """The parameters a resource names."""
    return tuple(_PLACEHOLDER.findall(resource))


def _touch(text: str, effect: EffectClass) -> Touch:
    mode, colon, rest = text.partition(":")
    if colon and mode in ("read", "write"):
        return Touch(_path(rest), mode == "write")
    return Touch(_path(text), effect != "read_only")


def _path(name: str) -> tuple[str, ...]:
    """Two spellings of one place give one path. Letters lose their case: where case counts, two wait for nothing."""
    if name.strip() == EVERYTHING:
        return ()
    scheme, colon, rest = name.strip().casefold().partition(":")
    if not colon:
        scheme, rest = "", scheme
    parts: list[str] = []
    for part in rest.replace("\\", "/").split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return (scheme, *parts)


def _overlaps(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _filled(text: str, args: Mapping[str, Any]) -> Iterator[str]:
    """The resource for each value of the arguments it names; cut off, and so wider, where one is not known."""
    match = _PLACEHOLDER.search(text)
    if match is None:
        yield text
        return
    head, tail = text[: match.start()], text[match.end() :]
    value = args.get(match[1])
    for one in value if isinstance(value, list | tuple) else (value,):
        if one is None or isinstance(one, list | tuple | dict):
            yield _widened(head)
        else:
            # What an argument says is not looked at for placeholders again.
            yield from (f"{head}{one}{rest}" for rest in _filled(tail, args))


def _widened(head: str) -> str:
    """The resource that includes whatever begins with `head`: cut back to its last whole part."""
    kept = head[: max(head.rfind("/"), head.rfind(":")) + 1]
    return kept + EVERYTHING if kept in ("", "read:", "write:") else kept


def _defaults(definition: ToolDefinition) -> dict[str, Any]:
    properties = msgspec.json.decode(definition.spec.schema).get("properties", {})
    return {name: part["default"] for name, part in properties.items() if "default" in part}
