"""`atlas run`: submit and drive."""

from __future__ import annotations

from typing import Any

import click

from atlas.cli.command import command, not_empty
from atlas.cli.terminal import Terminal, pass_terminal

USD = click.FloatRange(0, 1e9)


def complete_agent(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Agents of the vault, read from its folders alone so that the shell need not wait."""
    from atlas.kernel.errors import AtlasError

    try:
        folder = ctx.obj.vault_path(ctx.meta.get("atlas.vault")) / "agents"
        names = [entry.parent.name for entry in folder.glob("*/agent.yaml")]
    except (AtlasError, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


@command(
    "run",
    examples="""
    atlas run summarizer "Some words to shorten."
    atlas run summarizer --input '{"text": "Some words.", "max_length": 3}'
    atlas run report --input @day.json --key 2026-11-03
    atlas run advisor "What is this?" --file picture.png --file notes.txt
    atlas run advisor "Once more." --model powerful --budget 0.50
    curl -s example.org/data.json | atlas run report --input - --json
    """,
)
@click.argument("agent", shell_complete=complete_agent)
@click.argument("words", nargs=-1, metavar="[TEXT]")
@click.option("--input", "input_", metavar="JSON|@FILE|-", help="The input as JSON, in a file, or from standard input.")
@click.option(
    "--file",
    "files",
    metavar="PATH",
    multiple=True,
    help="Show a prompt agent this picture, PDF or text; may be given several times.",
)
@click.option("--session", metavar="ID", default="", callback=not_empty, help="Add a turn to this session.")
@click.option(
    "--key",
    metavar="KEY",
    default="",
    callback=not_empty,
    help="Name this request: asking again with KEY gives the same run.",
)
@click.option("--model", metavar="MODEL", default="", callback=not_empty, help="Ask this tier or provider:model.")
@click.option("--detach", is_flag=True, help="Queue the run and return at once; 'atlas up' drives it.")
@click.option("--quiet", "-q", "is_quiet", is_flag=True, help="Print only the result, errors and questions.")
@click.option("--as", "principal", metavar="WHO", default="owner", show_default=True, help="Who is asking.")
@click.option(
    "--allow", "allow", metavar="TOOL", multiple=True, help="Use only this tool, or those that fit; repeatable."
)
@click.option(
    "--deny", "deny", metavar="TOOL", multiple=True, help="Do not use this tool, nor those that fit; repeatable."
)
@click.option(
    "--budget",
    type=USD,
    metavar="USD",
    help="What the run and all it spawns may cost, where no smaller cap is written.",
)
@click.option("--critical", type=USD, metavar="USD", help="Raise every cap on money by this for the run; needs --why.")
@click.option(
    "--why", metavar="TEXT", default="", callback=not_empty, help="Why it is critical; recorded with your name."
)
@click.option("--unattended", is_flag=True, help="Nobody is there to ask: refuse what needs a person's approval.")
@click.option(
    "--priority",
    type=click.IntRange(-1000, 1000),
    metavar="N",
    default=0,
    show_default=True,
    help="Queued runs with a higher number go first.",
)
@pass_terminal
def run(
    terminal: Terminal,
    agent: str,
    words: tuple[str, ...],
    input_: str | None,
    files: tuple[str, ...],
    session: str,
    key: str,
    model: str,
    detach: bool,
    is_quiet: bool,
    unattended: bool,
    priority: int,
    principal: str,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    budget: float | None,
    critical: float | None,
    why: str,
) -> int:
    """Run an agent and print what it returns.

    TEXT is short for --input '{"text": TEXT}'. What the agent logs and prints goes to standard error while it runs, its
    result to standard output, and at the end one line says state, cost, tokens, steps, time and run.

    Press Ctrl-C once to park the run safely, twice to stop at once. Either way nothing is lost: the same command with
    the same --key, or 'atlas up', continues it. Runs that a crashed process left behind are picked up first.
    """
    from atlas.cli.value import read_value, text_value

    if len(words) > 1:
        said = f'TEXT is one argument: put it in quotes, "{" ".join(words)}".'
        raise click.UsageError(said, click.get_current_context())
    text = words[0] if words else None
    if text is not None and input_ is not None:
        raise click.UsageError("Give either TEXT or --input, not both.", click.get_current_context())
    terminal.program.vault_path(terminal.vault)  # nobody should type or pipe an input for a vault that is not there
    value: Any = text_value(text) if text is not None else read_value(input_, "--input") if input_ is not None else {}
    options: dict[str, Any] = {"session_id": session, "key": key, "priority": priority, "unattended": unattended}
    if principal != "owner":
        options["principal"] = principal
    if allow:
        options["allow"] = allow
    if deny:
        options["deny"] = deny
    options |= _money(budget, critical, why)
    if model:
        options["model"] = model
    if files:
        options["files"] = terminal.program.read_files(files)
    if detach:
        options["detached"] = True
    return terminal.run(_run(terminal, agent, value, options, detach, is_quiet))


def _money(budget: float | None, critical: float | None, why: str) -> dict[str, Any]:
    """What the run may cost, as far as anything was said about it."""
    if bool(critical) != bool(why.strip()):
        raise click.UsageError("--critical USD and --why TEXT belong together.", click.get_current_context())
    given: dict[str, Any] = {} if budget is None else {"budget_usd": budget}
    return {**given, "critical_usd": critical, "why": why} if critical else given


async def _run(
    terminal: Terminal, agent: str, value: object, options: dict[str, Any], detach: bool, is_quiet: bool
) -> int:
    from atlas.cli.drive import drive_run
    from atlas.cli.failure import DONE

    async with terminal.open() as host:
        submitted = await host.submit(agent, value, **options)
        if not detach:
            return await drive_run(terminal, host, submitted.run_id, is_quiet=is_quiet)
        report = await host.report(submitted.run_id)
    if terminal.is_json:
        terminal.emit(report)
    else:
        terminal.say(submitted.run_id)
        what = "queued" if submitted.is_new else f"known by its key, {report.state}"
        how = f"; {terminal.command('up')} drives queued runs" if report.state == "queued" else ""
        terminal.note(what + how)
    return DONE
