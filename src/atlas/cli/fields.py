"""A report as lines of text: every field by its name, tables indented below theirs."""

from __future__ import annotations

from collections.abc import Iterator


def report_lines(report: object) -> Iterator[str]:
    """The fields of a report, one to a line, in their order."""
    import msgspec

    yield from _lines(msgspec.to_builtins(report), "")


def _lines(fields: dict[str, object], indent: str) -> Iterator[str]:
    from atlas.cli.text import clean

    width = max(len(name) for name in fields)
    for name, value in fields.items():
        title = name.replace("_", " ")
        match value:
            case dict() if value:
                yield f"{indent}{title}"
                yield from _lines(value, indent + "  ")
            case list() | tuple() if len(value) > 1:
                yield f"{indent}{title}"
                yield from (f"{indent}  {clean(str(each))}" for each in value)
            case list() | tuple():
                yield f"{indent}{title:{width}}  {clean(str(value[0])) if value else 'none'}"
            case bool():
                yield f"{indent}{title:{width}}  {'yes' if value else 'no'}"
            case int():
                yield (
                    f"{indent}{title:{width}}  {value:,}" if "seed" not in name else f"{indent}{title:{width}}  {value}"
                )
            case _:
                yield f"{indent}{title:{width}}  {clean(str(value))}"
