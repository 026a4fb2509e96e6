"""Imports the files of a folder's tools, in the process that will call them, and says what is wrong with them."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from msgspec.structs import replace

from atlas.engine.failure import record_of
from atlas.kernel.errors import Invalid, Problem
from atlas.kernel.tool import TOOL_ATTRIBUTE, LoadedTool, ToolDefinition

_PACKAGE: Final = "tools"


class Loaded(NamedTuple):
    """The tools of a folder by name, what they declare, and every problem of its files."""

    tools: dict[str, LoadedTool]
    definitions: tuple[ToolDefinition, ...]
    problems: tuple[Problem, ...]


def load_tools(folder: str) -> Loaded:
    """Imports `tools/*.py` as modules of a package `tools`; files that begin with `_` only when another one asks."""
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True  # the folder is a pinned snapshot: nothing may appear in it
    # Made by hand, so that it is this folder whatever packages of that name are installed.
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(Path(folder) / _PACKAGE)]
    sys.modules[_PACKAGE] = package
    tools: dict[str, LoadedTool] = {}
    definitions: dict[str, ToolDefinition] = {}
    problems: list[Problem] = []
    for path in sorted((Path(folder) / _PACKAGE).glob("*.py")):
        if path.name.startswith(("_", ".")):
            continue
        try:
            found = _tools_of(_imported(path, folder))
        except Invalid as error:
            place, line = _split(error.where.removeprefix(f"{folder}/") or f"{_PACKAGE}/{path.name}")
            problems.append(Problem(error.reason, error.message, place, line, int(line > 0), error.hint))
            continue
        for tool in found:
            definition = tool.definition
            definition = replace(definition, where=definition.where.removeprefix(f"{folder}/"))
            if definition.name in tools:
                problems.append(_twice(definition, definitions[definition.name]))
            else:
                tools[definition.name], definitions[definition.name] = tool, definition
    return Loaded(tools, tuple(definitions[name] for name in sorted(definitions)), tuple(problems))


def _imported(path: Path, folder: str) -> ModuleType:
    name = f"{_PACKAGE}.{path.stem}"
    if name in sys.modules:  # another file of the folder asked for it
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Invalid):
            raise
        record = record_of(error, folder, "tool_import_failed")
        hint = (
            "The module is not installed where Atlas runs." if isinstance(error, ModuleNotFoundError) else record.hint
        )
        raise Invalid(
            f"{_PACKAGE}/{path.name} cannot be imported: {record.message}",
            where=record.where,
            hint=hint,
            code="tool_import_failed",
        ) from error
    return module


def _tools_of(module: ModuleType) -> list[LoadedTool]:
    """The tools that the module defines; one that it only imported belongs to another file."""
    found: dict[int, LoadedTool] = {}
    for item in list(vars(module).values()):
        tool = getattr(item, TOOL_ATTRIBUTE, None) if callable(item) else None
        if tool is not None and getattr(item, "__module__", "") == module.__name__:
            found[id(tool)] = tool
    return list(found.values())


def _twice(definition: ToolDefinition, first: ToolDefinition) -> Problem:
    place, line = _split(definition.where)
    message = f"there are two tools {definition.name}; the other one is at {first.where}"
    return Problem("tool_defined_twice", message, place, line, 1, 'Rename one, or give it @tool(name="...").')


def _split(where: str) -> tuple[str, int]:
    path, _, rest = where.partition(":")
    line = rest.partition(":")[0]
    return path, int(line) if line.isdigit() else 0
