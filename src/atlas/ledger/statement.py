"""Named SQL: each adapter keeps its statements in `.sql` files beside the store and calls them by name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from atlas.kernel.errors import Fault

_MARK: Final = "-- name: "
_SQL: Final = Path(__file__).with_name("sql")


def load_statements(store: str, file: str = "query.sql") -> dict[str, str]:
    """The statements of `sql/<store>/<file>`: each starts with a line `-- name: <its name>`."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in _read(store, file).splitlines():
        if line.startswith(_MARK):
            name = line.removeprefix(_MARK).strip()
            if name in found:
                raise Fault(f"{store}/{file} names {name} twice", code="bad_sql_file")
            lines = found[name] = []
        elif lines is not None and line and not line.startswith("--"):
            lines.append(line)
    return {name: "\n".join(lines).strip().removesuffix(";") for name, lines in found.items()}


def repeat_values(text: str, most: int) -> list[str]:
    """The statement for no row, one row, and so on up to `most`: its row of VALUES as often as that."""
    before, _, rest = text.partition("VALUES (")
    row, _, after = rest.partition(")")
    return [before + "VALUES " + ", ".join([f"({row})"] * count) + after for count in range(most + 1)]


def load_migrations(store: str) -> list[tuple[int, str]]:
    """The migrations of a store in order, each with its number; the numbers start at 1 and leave no gap."""
    folder = _SQL / store
    names = sorted(entry.name for entry in folder.iterdir() if entry.name[:4].isdigit())
    found = [(int(name[:4]), _read(store, name)) for name in names]
    if [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise Fault(f"the migrations of {store} are not numbered 1, 2, 3...: {names}", code="bad_sql_file")
    return found


def _read(store: str, file: str) -> str:
    return (_SQL / store / file).read_text(encoding="utf-8")
