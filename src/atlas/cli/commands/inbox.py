"""`atlas inbox`, `approve` and `deny`: what waits for a person, and the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from atlas.cli.command import Group, command
from atlas.cli.terminal import Terminal, pass_terminal

if TYPE_CHECKING:
    from atlas.cli.item import Item
    from atlas.control.host import Host
    from atlas.kernel.event import Resolution


class Answered(msgspec.Struct, frozen=True):
    """An answer that is on its way to its run."""

    run_id: str
    effect: str
    name: str
    answer: str


_RUN_OPTION = click.option("--run", "is_run", is_flag=True, help="Then drive the run here until it rests.")
_REASON_OPTION = click.option("--reason", default="", help="Why; it becomes part of the record.")


@click.group(
    "inbox",
    cls=Group,
    invoke_without_command=True,
    examples="""
    atlas inbox
    atlas inbox done 4821 --result '{"sent": true}'
    atlas inbox not-done 4821
    atlas inbox abandon run_0193a1b2c3d47abc send:1
    """,
)
@pass_terminal
def inbox(terminal: Terminal) -> int | None:
    """List what waits for a person, and settle effects in doubt.

    An approval asks whether an effect may happen: answer with 'atlas approve' or 'atlas deny'. An effect in doubt began
    before a crash and left no receipt; look at the world, then settle it with a command below. Name an item by its
    number, or by its RUN and EFFECT.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return None
    return terminal.run(_list(terminal))


@inbox.command(
    "done",
    examples="""
    atlas inbox done 4821
    atlas inbox done 4821 --result '{"message_id": "a1"}' --run
    """,
)
@click.argument("item")
@click.argument("effect", required=False)
@click.option("--result", default="null", metavar="JSON|@FILE|-", help="What the effect returned. [default: null]")
@_REASON_OPTION
@_RUN_OPTION
@pass_terminal
def done(terminal: Terminal, item: str, effect: str | None, result: str, reason: str, is_run: bool) -> int:
    """Say that an effect in doubt did happen.

    The run goes on with RESULT as what the effect returned.
    """
    from atlas.cli.value import read_value

    terminal.program.vault_path(terminal.vault)
    raw = msgspec.json.encode(read_value(result, "--result"))
    return terminal.run(_resolve(terminal, item, effect, "done", raw, reason, is_run))


@inbox.command("not-done", examples="atlas inbox not-done 4821 --run")
@click.argument("item")
@click.argument("effect", required=False)
@_REASON_OPTION
@_RUN_OPTION
@pass_terminal
def not_done(terminal: Terminal, item: str, effect: str | None, reason: str, is_run: bool) -> int:
    """Say that an effect in doubt did not happen.

    The run performs it when it goes on.
    """
    return terminal.run(_resolve(terminal, item, effect, "not_done", None, reason, is_run))


@inbox.command("abandon", examples='atlas inbox abandon 4821 --reason "sent by hand"')
@click.argument("item")
@click.argument("effect", required=False)
@_REASON_OPTION
@_RUN_OPTION
@pass_terminal
def abandon(terminal: Terminal, item: str, effect: str | None, reason: str, is_run: bool) -> int:
    """End a run whose effect is in doubt, as failed."""
    return terminal.run(_resolve(terminal, item, effect, "abandon", None, reason, is_run))


@command(
    "approve",
    examples="""
    atlas approve 4821
    atlas approve @last --run
    """,
)
@click.argument("item", metavar="ITEM|RUN")
@click.argument("effect", required=False)
@_REASON_OPTION
@_RUN_OPTION
@pass_terminal
def approve(terminal: Terminal, item: str, effect: str | None, reason: str, is_run: bool) -> int:
    """Allow an effect that asks for a person.

    Name it by its number in 'atlas inbox', or by its run when the run asks for one thing only. The approval holds for
    exactly the arguments shown.
    """
    return terminal.run(_answer(terminal, item, effect, True, reason, is_run))


@command(
    "deny",
    examples="""
    atlas deny 4821 --reason "not today"
    atlas deny @last
    """,
)
@click.argument("item", metavar="ITEM|RUN")
@click.argument("effect", required=False)
@_REASON_OPTION
@_RUN_OPTION
@pass_terminal
def deny(terminal: Terminal, item: str, effect: str | None, reason: str, is_run: bool) -> int:
    """Refuse an effect that asks for a person.

    The agent's code gets an error that it may handle; the refusal and its reason are recorded.
    """
    return terminal.run(_answer(terminal, item, effect, False, reason, is_run))


async def _list(terminal: Terminal) -> int:
    from atlas.cli.item import list_items

    async with terminal.open() as host:
        items = await list_items(host)
        now_us = host.clock.now_us()
    if terminal.is_json:
        terminal.emit({"items": items})
    elif not items:
        terminal.note("nothing waits for a person")
    else:
        _print(terminal, items, now_us)
    return 0


def _print(terminal: Terminal, items: list[Item], now_us: int) -> None:
    from atlas.cli.item import question
    from atlas.cli.text import ago, short

    for number, item in enumerate(items):
        if number:
            terminal.say()
        head, *rest = question(terminal, item)
        who = f"{item.agent} {short(item.run_id)}, {ago(item.created_us, now_us)}"
        terminal.say(f"{terminal.style(item.item, bold=True)}  {who}")
        for line in (head, *rest):
            terminal.say(f"  {line}")


async def _answer(terminal: Terminal, word: str, effect: str | None, approved: bool, reason: str, is_run: bool) -> int:
    from atlas.cli.item import get_item

    async with terminal.open() as host:
        item = await get_item(host, word, effect, "approval")
        await host.answer(item.run_id, item.effect, approved, reason)
        return await _after(terminal, host, item, "approved" if approved else "denied", is_run)


async def _resolve(
    terminal: Terminal,
    word: str,
    effect: str | None,
    resolution: Resolution,
    result: bytes | None,
    reason: str,
    is_run: bool,
) -> int:
    from atlas.cli.item import get_item

    async with terminal.open() as host:
        item = await get_item(host, word, effect, "doubt")
        await host.resolve(item.run_id, item.effect, resolution, result, reason)
        return await _after(terminal, host, item, resolution, is_run)


async def _after(terminal: Terminal, host: Host, item: Item, answer: str, is_run: bool) -> int:
    """Says what was answered; the run goes on here, or with the next driver."""
    from atlas.cli.text import clean, one_line, short

    if not terminal.is_json:
        args = one_line(bytes(item.args).decode("utf-8", "replace"), 100)
        terminal.say(f"{answer.replace('_', ' ')}: {clean(item.name)} {args} of {item.agent} {short(item.run_id)}")
    if is_run:
        from atlas.cli.drive import drive_run

        return await drive_run(terminal, host, item.run_id)
    if terminal.is_json:
        terminal.emit(Answered(item.run_id, item.effect, item.name, answer))
    else:
        terminal.note(f"the run continues with {terminal.command('up --until-idle')}")
    return 0
