"""What waits for a person, by the numbers that `atlas inbox` shows.

A number is made from the run and the effect, so it always means the same question: answering one item never
moves another one to its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from atlas.control.report import InboxEntry
from atlas.control.trace import timestamp
from atlas.kernel.errors import Conflict, NotFound
from atlas.kernel.principal import OWNER
from atlas.kernel.run import RunQuery

if TYPE_CHECKING:
    from atlas.cli.terminal import Terminal
    from atlas.control.host import Host

# Runs begin with 0 for the next five centuries, so a number is never taken for a run.
_SIZES: Final = (4, 6, 12)


class Item(msgspec.Struct, frozen=True):
    """One question, as --json prints it."""

    item: str
    run_id: str
    effect: str
    kind: str
    agent: str
    name: str
    args: msgspec.Raw
    effect_class: str
    reason: str
    created_at: str
    created_us: int
    principal: str = OWNER
    rule: str = ""
    layer: str = ""
    root_run_id: str = ""
    cost_usd: float = 0.0
    expires_at: str = ""
    expires_us: int = 0
    second_person: bool = False
    is_editable: bool = False
    escalated_to: str = ""


async def list_items(host: Host, principal: str = OWNER) -> list[Item]:
    """Everything that waits and is the principal's business, oldest first, each with its number."""
    entries = await host.inbox(principal)
    numbers = _numbers(entries)
    return [
        Item(
            number,
            entry.run_id,
            entry.effect,
            entry.kind,
            entry.agent,
            entry.name,
            entry.args,
            entry.effect_class,
            entry.reason,
            timestamp(entry.created_us),
            entry.created_us,
            entry.principal,
            entry.rule,
            entry.layer,
            entry.root_run_id or entry.run_id,
            entry.cost_usd,
            timestamp(entry.expires_us) if entry.expires_us else "",
            entry.expires_us,
            entry.second_person,
            entry.is_editable,
            entry.escalated_to,
        )
        for number, entry in zip(numbers, entries, strict=True)
    ]


async def items_of_tree(host: Host, run_id: str) -> list[Item]:
    """What a run or one of its descendants waits for."""
    row = await host.find_run(run_id)
    page = await host.runs(RunQuery(root_run_id=row.root_run_id, states=("waiting", "in_doubt"), limit=500))
    inside = {run_id, *(each.run_id for each in page.runs)}
    return [item for item in await list_items(host) if item.run_id in inside]


async def get_item(host: Host, word: str, effect: str | None, kind: str, principal: str = OWNER) -> Item:
    """The question that a number, a run, or a run and an effect name; it must be of `kind`."""
    items = await list_items(host, principal)
    if effect is None:
        numbered = [item for item in items if item.item == word]
        if numbered:
            return _of_kind(numbered[0], kind)
        if word.isdigit() and not word.startswith("0"):
            raise NotFound(f"nothing with the number {word} waits", hint="It may be answered; see 'atlas inbox'.")
    row = await host.find_run(word)
    mine = [item for item in items if item.run_id == row.run_id and effect in (None, item.effect)]
    if not mine:
        raise NotFound(
            f"run {row.run_id} waits for nothing" + (f" named {effect}" if effect else ""),
            hint="'atlas inbox' lists what waits.",
        )
    fitting = [item for item in mine if item.kind == kind] or mine
    if len(fitting) > 1:
        names = ", ".join(f"{item.item} ({item.name})" for item in fitting)
        raise Conflict(f"run {row.run_id} waits for several things: {names}", hint="Name one by its number.")
    return _of_kind(fitting[0], kind)


async def get_approvals(host: Host, word: str, principal: str = OWNER) -> list[Item]:
    """Everything that a run asks approval for; for one that nobody spawned, what those below it ask for as well."""
    row = await host.find_run(word)
    items = [item for item in await list_items(host, principal) if item.kind == "approval"]
    mine = [item for item in items if row.run_id in (item.run_id, item.root_run_id)]
    if not mine:
        raise NotFound(f"run {row.run_id} asks for no approval", hint="'atlas inbox' lists what waits.")
    return mine


def together(items: list[Item]) -> list[list[Item]]:
    """The items of each tree of runs together, the tree that has waited longest first."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.root_run_id or item.run_id, []).append(item)
    return list(groups.values())


def first_number(run_id: str, effect: str) -> str:
    """The number that a question gets unless another one that waits has the same."""
    return _number(_digest(run_id, effect), _SIZES[0])


def question(terminal: Terminal, item: Item, now_us: int = 0) -> list[str]:
    """What is asked and why, and the commands that answer it."""
    from atlas.cli.text import clean, one_line

    args = one_line(bytes(item.args).decode("utf-8", "replace"), 200)
    if item.kind == "approval":
        head = f"waits for a person: {clean(item.name)} ({item.effect_class}) {args}"
        answers = [("allow it", f"approve {item.item}"), ("refuse it", f"deny {item.item} --reason WHY")]
    else:
        head = f"in doubt: {clean(item.name)} ({item.effect_class}) {args}"
        answers = [
            ("it happened", f"inbox done {item.item} --result JSON"),
            ("it did not", f"inbox not-done {item.item}"),
            ("give up", f"inbox abandon {item.item}"),
        ]
    rule = f" ({item.layer}: {clean(item.rule)})" if item.rule else ""
    lines = [head] + ([f"  because: {clean(item.reason)}{rule}"] if item.reason else [])
    lines += [f"  {about}"] if (about := ", ".join(_about(item, now_us))) else []
    return lines + [f"  {meaning + ':':13}{terminal.command(words)}" for meaning, words in answers]


def _about(item: Item, now_us: int) -> Iterator[str]:
    """For whom, at what cost, until when, and who else must look."""
    from atlas.cli.text import clean, duration, money

    if item.principal != OWNER:
        yield f"for {clean(item.principal)}"
    if item.kind == "approval":
        yield f"cost so far {money(item.cost_usd)}"
    if item.expires_us and now_us:
        left_us = item.expires_us - now_us
        yield f"expires in {duration(left_us)}" if left_us > 0 else "expired"
    elif item.expires_at:
        yield f"expires {item.expires_at}"
    if item.second_person:
        yield "a second person must approve it (--as NAME)"
    if item.escalated_to:
        yield f"passed on to {clean(item.escalated_to)}"


def _of_kind(item: Item, kind: str) -> Item:
    if item.kind == kind:
        return item
    if kind == "approval":
        raise Conflict(
            f"{item.name} is in doubt; it needs to be settled, not approved",
            hint=f"Use 'atlas inbox done|not-done|abandon {item.item}'.",
        )
    raise Conflict(f"{item.name} asks for approval; it has not begun", hint=f"Use 'atlas approve|deny {item.item}'.")


def _numbers(entries: list[InboxEntry]) -> list[str]:
    """A number for each entry; those whose short numbers are equal get longer ones."""
    digests = [_digest(entry.run_id, entry.effect) for entry in entries]
    choices = [[_number(digest, size) for digest in digests] for size in _SIZES]
    return [
        next((sized[index] for sized in choices if sized.count(sized[index]) == 1), choices[-1][index])
        for index in range(len(entries))
    ]


def _digest(run_id: str, effect: str) -> bytes:
    return hashlib.sha256(f"{run_id}\0{effect}".encode()).digest()


def _number(digest: bytes, size: int) -> str:
    first = 10 ** (size - 1)
    return str(first + int.from_bytes(digest, "big") % (9 * first))
