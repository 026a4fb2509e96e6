"""YAML tokens, and syntax errors in plain words at the line a person has to change.

The only place that touches PyYAML. A YAML parser reports where it gave up, which is often a line after the
mistake: an unclosed quote is noticed at the next quote, a missing colon at the next key. `_explain` looks at
the text around that place and names the cause; it never changes whether a file is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from atlas.vault.source import Source, refusal

if TYPE_CHECKING:
    from yaml.error import MarkedYAMLError
    from yaml.events import Event

TokenKind = Literal["scalar", "alias", "sequence", "mapping", "end", "document", "other"]


class Token(NamedTuple):
    """One step of a YAML document; which fields mean something depends on `kind`."""

    kind: TokenKind
    at: int
    until: int
    text: str = ""
    quote: str = ""
    anchor: str = ""
    tag: str = ""
    flow: bool = False


def tokens(source: Source) -> Iterator[Token]:
    """The steps of a file, one at a time; a syntax error becomes a refusal where it was made."""
    import yaml

    scalar: Token | None = None
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(source.text)
        while loader.check_event():
            token = _token(loader.get_event())
            scalar = token if token.kind == "scalar" else scalar
            yield token
    except yaml.MarkedYAMLError as error:
        found = _explain(source, error, scalar)
        raise refusal(source.problem(*found)) from None
    except (yaml.YAMLError, ValueError, OverflowError):
        # How the parser written in Python fails on escapes beyond Unicode.
        hint = "look for a backslash in double quotes"
        raise refusal(source.problem("yaml_syntax", "this is not YAML", scalar.until if scalar else 0, hint)) from None


def _token(event: Event) -> Token:
    import yaml

    assert event.start_mark is not None
    assert event.end_mark is not None
    at: int = event.start_mark.index
    until: int = event.end_mark.index
    match event:
        case yaml.ScalarEvent():
            return Token("scalar", at, until, event.value, event.style or "", event.anchor or "", event.tag or "")
        case yaml.AliasEvent():
            return Token("alias", at, until, anchor=event.anchor or "")
        case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
            kind: TokenKind = "sequence" if isinstance(event, yaml.SequenceStartEvent) else "mapping"
            flow = bool(event.flow_style)
            return Token(kind, at, until, anchor=event.anchor or "", tag=event.tag or "", flow=flow)
        case yaml.CollectionEndEvent():
            return Token("end", at, until)
        case yaml.DocumentStartEvent():
            return Token("document", at, until)
    return Token("other", at, until)


class _Explanation(NamedTuple):
    code: str
    message: str
    offset: int
    hint: str = ""


def _explain(source: Source, error: MarkedYAMLError, last: Token | None) -> _Explanation:
    """The most useful account of a parser's error; `last` is the last text it read."""
    problem = error.problem or "this is not YAML"
    context = error.context or ""
    mark = error.problem_mark or error.context_mark
    at: int = min(mark.index, len(source.text)) if mark else 0
    opened: int = error.context_mark.index if error.context_mark else at

    if (tab := _tab_in_indentation(source, at)) is not None:
        hint = "replace each tab at the start of the line by spaces"
        return _Explanation("yaml_tab", "a tab indents this line; YAML allows only spaces there", tab, hint)
    if "quoted scalar" in context and ("end of stream" in problem or "document indicator" in problem):
        return _Explanation("yaml_syntax", "the quote that opens here is never closed", opened, "close the quote")
    if last is not None and _swallows_lines(source, last, at):
        line, _ = source.position(last.until)
        message = f"the quote that opens here is closed only on line {line}"
        return _Explanation("yaml_syntax", message, last.at, "close the quote on this line")
    if "flow sequence" in context or "flow mapping" in context:
        bracket = "[" if "sequence" in context else "{"
        message = f"the {bracket} that opens here is not closed, or a comma is missing in it"
        return _Explanation("yaml_syntax", message, opened)
    if "simple key" in context:
        return _no_colon(opened)
    if "mapping values are not allowed" in problem:
        return _second_colon(source, at, last)
    if "cannot start any token" in problem and at < len(source.text):
        message = f"a value cannot start with {source.text[at]}"
        return _Explanation("yaml_syntax", message, at, "put the value in quotes")
    if "block scalar" in context:
        message = f"a value that starts with {source.text[opened : opened + 1]} is a block of text on the lines below"
        return _Explanation("yaml_syntax", message, opened, "put the value in quotes")
    if "block mapping" in context:
        hint = "keys that belong together start in the same column"
        return _Explanation("yaml_syntax", "this does not fit the lines above it", at, hint)
    if "block collection" in context:
        hint = "each item of the list starts with '- ' in the same column"
        return _Explanation("yaml_syntax", "this does not fit the list above it", at, hint)
    return _Explanation("yaml_syntax", f"{context}: {problem}" if context else problem, at)


def _tab_in_indentation(source: Source, at: int) -> int | None:
    """The offset of a tab before the first visible character of the line `at` is on."""
    line = source.line(at)
    tab = line[: len(line) - len(line.lstrip())].find("\t")
    return None if tab < 0 else source.line_start(at) + tab


def _swallows_lines(source: Source, last: Token, at: int) -> bool:
    """True when `last` is a quoted text that began on an earlier line and ends on the line of the error."""
    here = source.line_start(at)
    return last.quote in ("'", '"') and last.at < here < last.until


def _second_colon(source: Source, at: int, last: Token | None) -> _Explanation:
    """A ':' where no value can start: a line above lacks its colon, or a text needs quotes."""
    if last is not None and not last.quote:
        # A text that fills its line and goes on to the next is a key without a colon that swallowed its neighbour.
        start = source.line_start(last.at)
        if start < source.line_start(at) and not source.text[start : last.at].strip():
            return _no_colon(last.at)
    hint = "put a text that contains ': ' in quotes, or line the key up with its neighbours"
    return _Explanation("yaml_syntax", "a ':' cannot start a value here", at, hint)


def _no_colon(offset: int) -> _Explanation:
    return _Explanation("yaml_syntax", "this line has no ':' after its key", offset, "write key: value")
