"""Writes the JSON Schemas of the files people write, for editors that complete and check YAML.

    python -m atlas.vault.schema_docs [--check] DIR

They are generated from the types that the loader reads by; with `--check` nothing is written and a file that
is missing, different or left over is an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from atlas.kernel.config import Config
from atlas.kernel.contract import AgentFile
from atlas.kernel.mandate import MandateFile
from atlas.kernel.rule import PolicyPart
from atlas.vault.schema import DIALECT

SCHEMAS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "agent.schema.json": (AgentFile, "Atlas agent contract (agents/<name>/agent.yaml)"),
    "atlas.config.schema.json": (Config, "Atlas platform configuration (atlas.config.yaml)"),
    "policy.schema.json": (PolicyPart, "Atlas policy (policy.yaml of a vault or a project)"),
    "mandates.schema.json": (MandateFile, "Atlas mandates (mandates.yaml of a vault or an agent)"),
}


def render(kind: type[msgspec.Struct], title: str) -> str:
    """The JSON Schema of a file as it is published."""
    schema = _tidy(msgspec.json.schema(kind))
    return json.dumps({"$schema": DIALECT, "title": title, **schema}, indent=2, ensure_ascii=False) + "\n"


def write(folder: Path) -> list[str]:
    """Writes every schema into `folder` and returns the names of those that changed."""
    changed = drift(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in changed:
        if name in SCHEMAS:
            (folder / name).write_text(render(*SCHEMAS[name]), encoding="utf-8")
        else:
            (folder / name).unlink()
    return changed


def drift(folder: Path) -> list[str]:
    """The names of files in `folder` that are not what would be written now."""
    expected = {name: render(*SCHEMAS[name]) for name in SCHEMAS}
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.schema.json")}
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def _tidy(schema: Any) -> Any:
    """Without the defaults that only repeat the defaults of the parts."""
    match schema:
        case dict():
            return {
                key: _tidy(value)
                for key, value in schema.items()
                if not (key == "default" and (value is None or (isinstance(value, dict) and value)))
            }
        case list():
            return [_tidy(item) for item in schema]
    return schema


def main(arguments: list[str]) -> int:
    """0 when the folder is up to date now, 1 when `--check` found that it is not."""
    check = "--check" in arguments
    places = [argument for argument in arguments if argument != "--check"]
    if len(places) != 1 or places[0].startswith("-"):
        sys.stderr.write("usage: python -m atlas.vault.schema_docs [--check] DIR\n")
        return 2
    folder = Path(places[0])
    if not check:
        sys.stdout.write("".join(f"wrote {folder / name}\n" for name in write(folder)))
        return 0
    stale = drift(folder)
    sys.stderr.write("".join(f"{folder / name} is out of date; run `make docs`\n" for name in stale))
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
