"""The classes of all commands: options that every command has, and help that ends with examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def shared_options() -> list[click.Parameter]:
    """--vault, --json and --debug: accepted before and after the command, wherever a person thinks of them."""
    return [
        click.Option(
            ["--vault"],
            metavar="PATH",
            expose_value=False,
            callback=_remember,
            help="The vault to use. [default: $ATLAS_VAULT, this folder or one above, ~/atlas]",
            shell_complete=_complete_folder,
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            callback=_remember,
            help="Print one JSON object on standard output and nothing else there.",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            callback=_remember,
            help="Print the traceback of an unexpected error.",
        ),
    ]


class _Documented(click.Command):
    """A command with the shared options and examples."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params += shared_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; --json is known first, because --help ends the command before later options are read."""
        if "--json" in args:
            ctx.meta["atlas.json"] = True
        return super().parse_args(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        """The help; with --json as one object."""
        text = super().get_help(ctx)
        if not ctx.meta.get("atlas.json"):
            return text
        import json

        return json.dumps({"command": ctx.command_path, "help": text})

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """-h and --help, on every command."""
        return ["-h", "--help"]

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """As click makes it, but what standard output does not take is told as everywhere."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples as they are, one command per line."""
        if not self.examples:
            return
        with formatter.section("Examples"):
            for line in self.examples.strip().splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")


class Command(_Documented):
    """A command that does something; its callback returns the exit code, None for 0."""

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but a broken pipe inside is an error: click would end the process without a word."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise RuntimeError(f"a pipe inside the command broke: {error}") from error


class Group(_Documented, click.Group):
    """A command that has commands."""

    command_class = Command


def command(name: str, examples: str) -> Callable[[F], Command]:
    """Makes a function a command. Its docstring is the help: the first line is what `atlas --help` shows."""
    return click.command(name, cls=Command, examples=examples)


def not_empty(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """The value of an option that means nothing when it is empty: an unset variable in a script, most often."""
    if value == "" and ctx.get_parameter_source(param.name or "") is not click.core.ParameterSource.DEFAULT:
        raise click.BadParameter("It is empty.", ctx, param)
    return value


def print_line(text: str) -> None:
    """One line on standard output, of what is printed before there is a terminal."""
    try:
        click.echo(text)
    except OSError as error:
        from atlas.cli.terminal import unwritten

        raise unwritten(error) from error


def _show_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        print_line(ctx.get_help())
        ctx.exit()


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    # `meta` is one mapping for the whole chain of contexts, so the option means the same at every place.
    if value is not None and value is not False:
        ctx.meta[f"atlas.{param.name}"] = value


def _complete_folder(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]
