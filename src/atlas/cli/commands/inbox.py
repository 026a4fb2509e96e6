"""`atlas inbox`, `approve` and `deny`: what waits for a person, and the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from atlas.cli.command import Group, command
from atlas.cli.terminal import Terminal, pass_terminal
from atlas.kernel.errors import ErrorRecord

if TYPE_CHECKING:
    from atlas.cli.item import Item
    from atlas.control.host import Host
    from atlas.control.signal import Remember
    from atlas.kernel.event import Resolution


class Answered(msgspec.Struct, frozen=True):
    """An answer that is on its way to its run."""

    run_id: str
    effect: str
    name: str
    answer: str


class NotAnswered(msgspec.Struct, frozen=True):
    """A question that somebody else answered, or that this person may not."""

    run_id: str
    effect: str
    name: str
    error: ErrorRecord


class Said(msgspec.Struct, frozen=True):
    """What a person answers, and as whom."""

    approved: bool
    reason: str
    by: str
    more: dict[str, Any] = {}

    @property
    def word(self) -> str:
        """The answer in one word."""
        return "approved" if self.approved else "denied"


_ALL_OPTION = click.option("--all", "is_all", is_flag=True, help="Answer all that the run and those below it ask for.")
_RUN_OPTION = click.option("--run", "is_run", is_flag=True, help="Then drive the run here until it rests.")
_AS_OPTION = click.option("--as", "principal", metavar="WHO", default="owner", show_default=True, help="Who answers.")
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
@click.option("--as", "principal", metavar="WHO", default="owner", show_default=True, help="Whose questions.")
@pass_terminal
def inbox(terminal: Terminal, principal: str) -> int | None:
    """List what waits for a person, and settle effects in doubt.

    An approval asks whether an effect may happen: answer with 'atlas approve' or 'atlas deny'. An effect in doubt began
    before a crash and left no receipt; look at the world, then settle it with a command below. Name an item by its
    number, or by its RUN and EFFECT.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return None
    return terminal.run(_list(terminal, principal))


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
    atlas approve 4821 --args '{"to": "ann", "amount": 5}'
    atlas approve 4821 --remember session
    atlas approve @last --all --run
    """,
)
@click.argument("item", metavar="ITEM|RUN")
@click.argument("effect", required=False)
@click.option(
    "--args", "args", metavar="JSON|@FILE|-", help="Approve these arguments of a tool instead of those shown."
)
@click.option(
    "--remember",
    type=click.Choice(["run", "session"]),
    help="Do not ask again for exactly this call in this run or session; see 'atlas grants'.",
)
@_ALL_OPTION
@_REASON_OPTION
@_AS_OPTION
@_RUN_OPTION
@pass_terminal
def approve(
    terminal: Terminal,
    item: str,
    effect: str | None,
    args: str | None,
    remember: Remember | None,
    is_all: bool,
    reason: str,
    principal: str,
    is_run: bool,
) -> int:
    """Allow an effect that asks for a person.

    Name it by its number in 'atlas inbox', or by its run when the run asks for one thing only; with --all everything that
    the run and those it spawned ask for. The approval holds for exactly the arguments shown, or given with --args.
    """
    if is_all and (effect is not None or args is not None):
        raise click.UsageError("--all takes a run, without an effect or --args.", click.get_current_context())
    more: dict[str, Any] = {} if remember is None else {"remember": remember}
    if args is not None:
        from atlas.cli.value import read_value

        terminal.program.vault_path(terminal.vault)
        more["args"] = msgspec.json.encode(read_value(args, "--args"))
    said = Said(True, reason, principal, more)
    work = _answer_all(terminal, item, said, is_run) if is_all else _answer(terminal, item, effect, said, is_run)
    return terminal.run(work)


@command(
    "deny",
    examples="""
    atlas deny 4821 --reason "not today"
    atlas deny @last --all --reason "wrong customer"
    """,
)
@click.argument("item", metavar="ITEM|RUN")
@click.argument("effect", required=False)
@_ALL_OPTION
@_REASON_OPTION
@_AS_OPTION
@_RUN_OPTION
@pass_terminal
def deny(
    terminal: Terminal, item: str, effect: str | None, is_all: bool, reason: str, principal: str, is_run: bool
) -> int:
    """Refuse an effect that asks for a person.

    The agent gets the reason and may go on without it; the refusal is recorded.
    """
    if is_all and effect is not None:
        raise click.UsageError("--all takes a run, without an effect.", click.get_current_context())
    said = Said(False, reason, principal)
    work = _answer_all(terminal, item, said, is_run) if is_all else _answer(terminal, item, effect, said, is_run)
    return terminal.run(work)


async def _list(terminal: Terminal, principal: str) -> int:
    from atlas.cli.item import list_items

    async with terminal.open() as host:
        items = await list_items(host, principal)
        now_us = host.clock.now_us()
    if terminal.is_json:
        terminal.emit({"items": items})
    elif not items:
        terminal.note("nothing waits for a person")
    else:
        _print(terminal, items, now_us)
    return 0


def _print(terminal: Terminal, items: list[Item], now_us: int) -> None:
    from atlas.cli.item import question, together
    from atlas.cli.text import ago, short

    is_first = True
    for group in together(items):
        asking = [item for item in group if item.kind == "approval"]
        if len(asking) > 1:
            _print_head(terminal, asking, is_first)
            is_first = False
        for item in group:
            if not is_first:
                terminal.say()
            is_first = False
            who = f"{item.agent} {short(item.run_id)}, {ago(item.created_us, now_us)}"
            terminal.say(f"{terminal.style(item.item, bold=True)}  {who}")
            for line in question(terminal, item, now_us):
                terminal.say(f"  {line}")


def _print_head(terminal: Terminal, asking: list[Item], is_first: bool) -> None:
    """One head for all that a tree of runs asks, and the commands that answer it at once."""
    from atlas.cli.text import short

    run = asking[0].root_run_id or asking[0].run_id
    if not is_first:
        terminal.say()
    terminal.say(terminal.style(f"run {short(run)} asks {len(asking)} things", bold=True))
    terminal.say(f"  allow all:   {terminal.command(f'approve {short(run)} --all')}")
    terminal.say(f"  refuse all:  {terminal.command(f'deny {short(run)} --all --reason WHY')}")


async def _answer(terminal: Terminal, word: str, effect: str | None, said: Said, is_run: bool) -> int:
    from atlas.cli.item import get_item

    terminal.require_person()
    async with terminal.open() as host:
        item = await get_item(host, word, effect, "approval", said.by)
        await host.answer(item.run_id, item.effect, said.approved, said.reason, said.by, **said.more)
        if (args := said.more.get("args")) is not None:
            item = msgspec.structs.replace(item, args=msgspec.Raw(args))
        return await _after(terminal, host, item, said.word, is_run)


async def _answer_all(terminal: Terminal, word: str, said: Said, is_run: bool) -> int:
    """Answers everything that a run asks; what somebody else answered meanwhile is told and does not stop the rest."""
    from atlas.cli.item import get_approvals
    from atlas.kernel.errors import AtlasError

    terminal.require_person()
    answered: list[Answered] = []
    failed: list[NotAnswered] = []
    code = 0
    async with terminal.open() as host:
        items = await get_approvals(host, word, said.by)
        for item in items:
            try:
                await host.answer(item.run_id, item.effect, said.approved, said.reason, said.by, **said.more)
            except AtlasError as error:
                failed.append(NotAnswered(item.run_id, item.effect, item.name, error.record()))
                code = code or error.exit_code
            else:
                answered.append(Answered(item.run_id, item.effect, item.name, said.word))
        if not terminal.is_json:
            _say_all(terminal, items, answered, failed, said.word)
        if is_run and answered:
            from atlas.cli.drive import drive_run

            ended = await drive_run(terminal, host, (await host.find_run(word)).run_id)
            return code or ended
    if terminal.is_json:
        terminal.emit({"answered": answered, "failed": failed})
    elif answered:
        terminal.note(f"the run continues with {terminal.command('up --until-idle')}")
    return code


def _say_all(
    terminal: Terminal, items: list[Item], answered: list[Answered], failed: list[NotAnswered], word: str
) -> None:
    done = {(one.run_id, one.effect) for one in answered}
    for item in items:
        if (item.run_id, item.effect) in done:
            terminal.say(_told(item, word))
    for lost in failed:
        terminal.note(f"not answered: {lost.name}: {lost.error.message}")


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

    terminal.require_person()
    async with terminal.open() as host:
        item = await get_item(host, word, effect, "doubt")
        await host.resolve(item.run_id, item.effect, resolution, result, reason)
        return await _after(terminal, host, item, resolution, is_run)


async def _after(terminal: Terminal, host: Host, item: Item, answer: str, is_run: bool) -> int:
    """Says what was answered; the run goes on here, or with the next driver."""
    if not terminal.is_json:
        terminal.say(_told(item, answer))
    if is_run:
        from atlas.cli.drive import drive_run

        return await drive_run(terminal, host, item.run_id)
    if terminal.is_json:
        terminal.emit(Answered(item.run_id, item.effect, item.name, answer))
    else:
        terminal.note(f"the run continues with {terminal.command('up --until-idle')}")
    return 0


def _told(item: Item, answer: str) -> str:
    from atlas.cli.text import clean, one_line, short

    args = one_line(bytes(item.args).decode("utf-8", "replace"), 100)
    return f"{answer.replace('_', ' ')}: {clean(item.name)} {args} of {item.agent} {short(item.run_id)}"
