"""A docstring as a model needs it: what the tool does, and what each parameter means."""

from __future__ import annotations

import inspect
import re
from typing import Final, NamedTuple

_SECTION: Final = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*")
_PARAMETER: Final = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


class Docstring(NamedTuple):
    """What is said before the first section, and about each parameter."""

    text: str
    parameters: dict[str, str]


def parse_docstring(written: str | None) -> Docstring:
    """The parts of a docstring in Google's style; without sections all of it is the text."""
    lines = inspect.cleandoc(written or "").splitlines()
    text: list[str] = []
    parameters: dict[str, str] = {}
    section, name = "", ""
    for line in lines:
        heading = _SECTION.fullmatch(line)
        if heading is not None:
            section = heading[1]
        elif not section:
            text.append(line)
        elif section in ("Args", "Arguments", "Parameters"):
            name = _parameter_line(line, name, parameters)
    return Docstring("\n".join(text).strip(), parameters)


def _parameter_line(line: str, name: str, parameters: dict[str, str]) -> str:
    """Takes in one line of the parameters' section; the parameter that a deeper line after it would belong to."""
    indent = len(line) - len(line.lstrip())
    found = _PARAMETER.fullmatch(line.strip())
    if found is not None and indent <= 4:
        parameters[found[1].lstrip("*")] = found[2]
        return found[1].lstrip("*")
    if name and line.strip():
        parameters[name] = f"{parameters[name]} {line.strip()}".strip()
    return name
